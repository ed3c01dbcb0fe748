"""The frozen records that cross the border between the harness and a plugin.

Arrays are NumPy on purpose: a plugin may be written in torch, JAX or neither, and each side converts in one line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from bpcbench.api import Network, Preprocessing, Prerequisite
    from bpcbench.figures import Figure

Array = npt.NDArray[Any]
Arrays = Mapping[str, Array]
Convention = Literal["class", "probabilities", "centred"]
"""How targets are read: class numbers; rows that sum to one; or real rows such as one-hot minus 1/k, unbounded."""

Direction = Literal["higher", "lower"]
Unit = Literal["", "percent"]
"""How tables print a metric: as it is; or a fraction in percent."""

FINAL = "final"
"""The member that holds a coreset's last iterate."""


def snapshot_member(step: int) -> str:
    """Return the member that holds a coreset as it was after `step` steps."""
    return f"step-{step}"


@dataclass(frozen=True)
class Ref:
    """A plugin by name with options, not yet built: what a suite or a default says before the harness looks it up."""

    plugin: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def __hash__(self) -> int:
        return hash((self.plugin, repr(sorted(self.options.items()))))


@dataclass(frozen=True)
class Facts:
    """What can be known of a data set without reading its images.

    `shape` is (channels, height, width); `sizes` maps each split to its number of images; `notes` are words such as
    `subset` or `generated` that every table must carry; `name` and `options` are the data set's own, which the harness
    fills in.
    """

    shape: tuple[int, int, int]
    classes: int
    sizes: Mapping[str, int]
    class_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    name: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Download:
    """A file that `bpcbench data get` fetches for a data set; nothing else ever downloads.

    `path`, below the data root, is what is there in the end: the file itself or, with `unpack`, the folder of that name
    which the archive (zip or tar) holds. `md5` or `sha256` is that of what is fetched; `size` in bytes is a hint.
    """

    url: str
    path: str
    unpack: bool = False
    size: int | None = None
    md5: str = ""
    sha256: str = ""

    def __post_init__(self) -> None:
        parts = PurePosixPath(self.path).parts
        if not parts or ".." in parts or parts[0] == "/" or "\\" in self.path:
            raise ValueError(f"{self.path!r} is not a path below the data root")
        if not self.url.startswith(("http://", "https://")):
            raise ValueError(f"{self.url!r} is neither http:// nor https://")
        if not (self.md5 or self.sha256):
            raise ValueError(f"{self.url} has no checksum, so what comes from there could be anything")


@dataclass(frozen=True, eq=False)
class Split:
    """Images (uint8, NCHW, possibly a memory map) and their int64 labels; None where labels mean nothing here."""

    images: Array
    labels: Array | None

    def __len__(self) -> int:
        return len(self.images)


@dataclass(frozen=True, eq=False)
class Data:
    """What a method or a prerequisite may see: the facts and the training split, never a test split."""

    facts: Facts
    train: Split

    @property
    def labels(self) -> Array:
        """The training labels, which every data set that can be distilled has."""
        if self.train.labels is None:
            raise ValueError("this data set has no training labels")
        return self.train.labels


@dataclass(frozen=True)
class Need:
    """A prerequisite that a plugin asks for, and which of its members (default: its only one)."""

    plugin: Ref
    members: tuple[str, ...] = (FINAL,)


@dataclass(frozen=True, eq=False)
class Made:
    """What a prerequisite made: the plugin that made it, and its members' arrays (memory mapped, read on access)."""

    plugin: Prerequisite
    address: str
    members: Mapping[str, Arrays]


@dataclass(frozen=True, eq=False)
class Transform:
    """A fitted preprocessing: raw uint8 images to the space in which networks see them, and back."""

    plugin: Preprocessing
    arrays: Arrays
    address: str = ""

    def apply(self, images: Array) -> Array:
        """Return float32 images in network space."""
        return self.plugin.apply(images, self.arrays)

    def invert(self, images: Array) -> Array:
        """Return float32 images in pixel space; 0 is black and 1 white, values outside are not clipped."""
        return self.plugin.invert(images, self.arrays)


@dataclass(frozen=True, eq=False)
class Given:
    """What a plugin asked for and got: the preprocessing of this cell, and its prerequisites by role.

    An evaluator that asks for them also finds the predictions of its `reference`, and the cell's `coreset`.
    """

    transform: Transform
    made: Mapping[str, Made] = field(default_factory=dict)
    reference: Mapping[SplitRef, Predictions] = field(default_factory=dict)
    coreset: Coreset | None = None

    def __getitem__(self, role: str) -> Made:
        return self.made[role]


@dataclass(frozen=True)
class Native:
    """The inference and the network a method is meant to be evaluated with."""

    inference: Ref
    network: Ref


@dataclass(frozen=True)
class Reference:
    """Predictions that an evaluator compares with: those of one coreset, made once and shared by all cells.

    They are of the same splits, in the cell's preprocessing, and of a seed that no cell has: a cell with the same
    method and inference shows how far two runs of the reference are apart. `network` None is the cell's own.
    """

    method: Ref
    inference: Ref
    network: Ref | None = None


@dataclass(frozen=True)
class Recipe:
    """What a coreset needs to be used as intended. Without it a distilled set is worthless.

    `preprocessing` holds the plugin, its options and the store address of what it fitted; `scalars` are learned or
    chosen numbers (prior precision, temperature) that an inference reads for every option it leaves at None.
    """

    preprocessing: Mapping[str, Any] = field(default_factory=dict)
    network: Mapping[str, Any] | None = None
    inference: Mapping[str, Any] | None = None
    scalars: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Coreset:
    """A small weighted-by-learning data set in the space it was learned in.

    `images` are float32 NCHW, unclamped; `targets` are int64 class numbers (`class`) or float32 rows
    (`probabilities`, `centred`); `class_ids` says for which class each row was made. A method fills in these and the
    recipe's scalars; the harness completes the recipe.
    """

    images: Array
    targets: Array
    class_ids: Array
    classes: int
    convention: Convention = "class"
    recipe: Recipe = field(default_factory=Recipe)

    def __post_init__(self) -> None:
        n = len(self.images)
        if self.images.ndim != 4 or self.images.dtype != np.float32:
            raise ValueError(
                f"coreset images must be float32 (n, c, h, w), got {self.images.dtype} {self.images.shape}"
            )
        wanted = (n,) if self.convention == "class" else (n, self.classes)
        if self.targets.shape != wanted:
            raise ValueError(f"{self.convention!r} targets must have shape {wanted}, got {self.targets.shape}")
        if self.class_ids.shape != (n,):
            raise ValueError(f"class_ids must have shape {(n,)}, got {self.class_ids.shape}")

    def __len__(self) -> int:
        return len(self.images)


@dataclass(frozen=True)
class Offer:
    """What an inference is offered when a plan asks whether it accepts a cell; the coreset need not exist yet."""

    facts: Facts
    ipc: int
    method: str
    convention: Convention
    network: Network


@dataclass(frozen=True, eq=False)
class Predicted:
    """What a predictive says of a batch of images.

    `log_probs` is (n, k), or (members, n, k) when the inference samples: the harness then averages probabilities and
    keeps each member's log-likelihood and the expected entropy. `extras` are further numbers per example, shape (n,),
    such as a predictive variance.
    """

    log_probs: Array
    extras: Arrays = field(default_factory=dict)


@dataclass(frozen=True)
class SplitRef:
    """A split that an evaluator wants predictions for.

    `dataset` None is the cell's own data set, whose `test` is the suite's evaluation split. An `optional` one is left
    out, and the table says so, where its data are not there or where it is the evaluation split itself; but an
    evaluator that asks for other data sets gets at least one of them.
    """

    split: str = "test"
    dataset: Ref | None = None
    optional: bool = field(default=False, compare=False)


@dataclass(frozen=True, eq=False)
class Predictions:
    """Stored predictions of one split, float32 and per example, with what is needed to score them.

    `log_probs` (n, k); `labels` (n,) or None; for sampled inferences `member_log_likelihood` (members, n) and
    `expected_entropy` (n,); `extras` as the inference gave them.
    """

    log_probs: Array
    labels: Array | None
    member_log_likelihood: Array | None = None
    expected_entropy: Array | None = None
    extras: Arrays = field(default_factory=dict)


@dataclass(frozen=True)
class Metric:
    """What an evaluator declares of a number that it gives.

    `direction` says which values are better; a metric without one is shown and not ranked. With the unit `percent` the
    value is a fraction that tables print in percent.
    """

    name: str
    direction: Direction | None
    unit: Unit = ""
    help: str = ""

    def __post_init__(self) -> None:
        if self.direction not in ("higher", "lower", None):
            raise ValueError(
                f"metric {self.name!r}: direction must be 'higher', 'lower' or None, got {self.direction!r}"
            )
        if self.unit not in ("", "percent"):
            raise ValueError(f"metric {self.name!r}: unit must be '' or 'percent', got {self.unit!r}")


@dataclass(frozen=True, eq=False)
class Scores:
    """What an evaluator makes of predictions: numbers by the names of its metrics, and figures by their own names."""

    metrics: Mapping[str, float]
    figures: Mapping[str, Figure] = field(default_factory=dict)


def undeclared(scores: Scores, metrics: Iterable[Metric]) -> tuple[str, ...]:
    """Return the names in the scores that are not among the declared metrics."""
    declared = {metric.name for metric in metrics}
    return tuple(name for name in scores.metrics if name not in declared)


@dataclass(frozen=True)
class StageEvent:
    """What an observer is told when a stage has ended. `status` is done, failed, skipped or stopped."""

    address: str
    kind: str
    label: str
    status: str
    seconds: float
    message: str = ""
