"""The frozen records exchanged between the harness and a plugin.

Arrays are NumPy on purpose: a plugin may be written in torch, JAX or neither, and each side converts in one line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from bpcbench.api import Inference, Method, Network, Preprocessing, Prerequisite
    from bpcbench.figures import Figure

Array = npt.NDArray[Any]
Arrays = Mapping[str, Array]
Convention = Literal["class", "probabilities", "centred"]
"""How targets are read: class numbers; rows that sum to one; or real rows such as one-hot minus 1/k, unbounded."""

Kind = Literal["prerequisite", "coreset", "predict", "score", "examination"]
"""The kinds of stages; an examination is none: its worker says what it sees, for `bpcbench doctor`."""
Status = Literal["done", "cached", "busy", "failed", "skipped", "stopped"]
"""How a stage ends: computed here; computed by another process; still under way there; ..."""
Direction = Literal["higher", "lower"]
Unit = Literal["", "percent"]
"""How tables print a metric: as it is; or a fraction in percent."""

FINAL = "final"
"""The member that holds a coreset's last iterate."""
FIT = "fit"
"""The member of a prediction that holds the fitted predictive."""


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


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is known of a data set without reading its images.

    `shape` is (channels, height, width); `sizes` maps each split to its number of images. `official` is False for
    content that is not, or not completely, the published one: it is refused unless the user allows it, and every table
    then marks it `subset`. `notes` are further words, such as `generated`, that every table must carry. The harness
    fills in `name` and `options`, the data set's own.
    """

    shape: tuple[int, int, int]
    classes: int
    sizes: Mapping[str, int]
    class_names: tuple[str, ...] = ()
    official: bool = True
    notes: tuple[str, ...] = ()
    name: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def marks(self) -> tuple[str, ...]:
        """The words that every table must carry: the notes, after `subset` where the data are not official."""
        return self.notes if self.official else ("subset", *self.notes)


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
            raise ValueError(f"{self.url} has no checksum, so the download cannot be verified")


@dataclass(frozen=True)
class Activations:
    """How many numbers a network holds per image, parameters excluded: what predictions of memory are made from.

    `forward` is the peak of a pass without gradients, `gradient` of a forward and a backward pass, of which `kept` lie
    between the two. `second` and `second_kept` are those of a gradient in the parameters that is differentiated again.
    `tangent_forward`, `tangent` and `pull` belong to the network's first-order expansion: pushed, pushed and
    differentiated, and transposed; `jacobian` is per image and class, of the matrix itself. `features` are the inputs
    of the last layer. `together` is `gradient` per image and parameter vector where `torch.func.vmap` sends several of
    them through the network at once; None if unknown.
    """

    features: int
    forward: float
    kept: float
    gradient: float
    second_kept: float
    second: float
    tangent_forward: float
    tangent: float
    pull: float
    jacobian: float
    together: float | None = None


@dataclass(frozen=True, eq=False)
class Split:
    """Images (uint8, NCHW) and their int64 labels; None where labels have no meaning here.

    Images may be a memory map, or rows of one that are read when they are indexed; `numpy.asarray` reads them all.
    """

    images: Array
    labels: Array | None

    def __len__(self) -> int:
        return len(self.images)


@dataclass(frozen=True, eq=False)
class Data:
    """What a method or a prerequisite may see: the facts and the training split, never a test split.

    In class-incremental learning the split holds the classes of one step only. `facts.classes` is then still the number
    of all classes, and the others have no images here; `present` are those that have.
    """

    facts: Facts
    train: Split

    @property
    def labels(self) -> Array:
        """The training labels, which every data set that can be distilled has."""
        if self.train.labels is None:
            raise ValueError("this data set has no training labels")
        return self.train.labels

    @property
    def present(self) -> tuple[int, ...]:
        """The classes that have training images, sorted."""
        return tuple(np.unique(self.labels).tolist())


@dataclass(frozen=True)
class Need:
    """A prerequisite that a plugin asks for, and which of its members (default: its only one)."""

    plugin: Ref | Prerequisite
    members: tuple[str, ...] = (FINAL,)


@dataclass(frozen=True, eq=False)
class PrerequisiteOutput:
    """The result of a prerequisite: its plugin, and its members' arrays (memory mapped, read on access)."""

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
        return self.plugin.apply(np.asarray(images), self.arrays)

    def invert(self, images: Array) -> Array:
        """Return float32 images in pixel space; 0 is black and 1 white, values outside are not clipped."""
        return self.plugin.invert(images, self.arrays)

    def apply_float(self, pixels: Array) -> Array:
        """Return float32 images in network space, from float pixels; the inverse of `invert`."""
        return self.plugin.apply_float(pixels, self.arrays)

    def convert(self, images: Array, source: Transform) -> Array:
        """Return images of the space of `source` in this space; unchanged if both are the same, else via pixels."""
        return images if self.same_space(source) else self.apply_float(source.invert(images))

    def same_space(self, other: Transform) -> bool:
        """Return whether two preprocessings are the same plugin, fitted to the same arrays up to rounding."""
        return (
            type(self.plugin) is type(other.plugin)
            and self.plugin == other.plugin
            and self.arrays.keys() == other.arrays.keys()
            and all(
                self.arrays[name].shape == other.arrays[name].shape
                and np.allclose(self.arrays[name], other.arrays[name], rtol=1e-4, atol=1e-5)
                for name in self.arrays
            )
        )


@dataclass(frozen=True, eq=False)
class Inputs:
    """What a plugin works with: the preprocessing of its cell, and the prerequisites it asked for, by role."""

    transform: Transform
    prerequisites: Mapping[str, PrerequisiteOutput] = field(default_factory=dict)

    def __getitem__(self, role: str) -> PrerequisiteOutput:
        return self.prerequisites[role]


@dataclass(frozen=True, eq=False)
class EvaluatorInputs(Inputs):
    """What an evaluator works with beside predictions: those of its reference, and the coreset, if it asks for them.

    `tasks` are the steps of class-incremental learning, for an evaluator that asks for them; the predictions after the
    last one are those that are scored.
    """

    reference: Mapping[SplitRef, Predictions] = field(default_factory=dict)
    coreset: Coreset | None = None
    tasks: tuple[LearnedTask, ...] = ()


@dataclass(frozen=True, eq=False)
class LearnedTask:
    """One step of class-incremental learning: the classes that it brought, and what was predicted after it.

    Log-probabilities have a column for every class of the data set, also for those that have not been seen.
    """

    classes: tuple[int, ...]
    predictions: Mapping[SplitRef, Predictions]


@dataclass(frozen=True)
class Native:
    """The inference and the network a method is meant to be evaluated with."""

    inference: Ref | Inference
    network: Ref | Network


@dataclass(frozen=True)
class Reference:
    """Predictions that an evaluator compares with: those of one coreset, made once and shared by all cells.

    They are of the same splits, in the cell's preprocessing, and of a seed that no cell has: a cell with the same
    method and inference shows how far two runs of the reference are apart. `network` None is the cell's own.
    """

    method: Ref | Method
    inference: Ref | Inference
    network: Ref | Network | None = None


@dataclass(frozen=True)
class FittedRef:
    """A preprocessing by name and options, and the store address of what it fitted."""

    plugin: Ref
    address: str


@dataclass(frozen=True)
class Recipe:
    """What a coreset needs to be used as intended.

    A method sets `scalars`: learned or chosen numbers, such as a prior precision or a temperature, that an inference
    reads for every option it leaves at None. The harness adds the preprocessing, whose space the images are in, and,
    when a coreset is exported, the method's native inference and network.
    """

    preprocessing: FittedRef | None = None
    network: Ref | None = None
    inference: Ref | None = None
    scalars: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, eq=False, kw_only=True)
class Coreset:
    """A small synthetic data set in the space it was learned in.

    `images` are float32 NCHW, unclamped; `targets` are int64 class numbers (`class`) or float32 rows
    (`probabilities`, `centred`). `class_ids` says for which class each row was made; class numbers stand for
    themselves, otherwise the largest target decides. `weights`, one per row, are None where all rows count the same.
    """

    images: Array
    targets: Array
    class_ids: Array = field(default=None)  # type: ignore[arg-type]  # filled in below
    classes: int
    convention: Convention = "class"
    weights: Array | None = None
    recipe: Recipe = field(default_factory=Recipe)
    _picture: Callable[[], bytes] | None = field(default=None, init=False)
    """Draws the images as pixels, where a reader knows how; `replace` does not hand it on."""

    def __post_init__(self) -> None:
        n = len(self.images)
        if self.images.ndim != 4 or self.images.dtype != np.float32:
            raise ValueError(
                f"coreset images must be float32 (n, c, h, w), got {self.images.dtype} {self.images.shape}"
            )
        wanted = (n,) if self.convention == "class" else (n, self.classes)
        if self.targets.shape != wanted:
            raise ValueError(f"{self.convention!r} targets must have shape {wanted}, got {self.targets.shape}")
        if self.class_ids is None:
            ids = self.targets if self.convention == "class" else self.targets.argmax(1)
            object.__setattr__(self, "class_ids", np.asarray(ids, np.int64))
        if self.class_ids.shape != (n,):
            raise ValueError(f"class_ids must have shape {(n,)}, got {self.class_ids.shape}")
        if self.weights is not None and self.weights.shape != (n,):
            raise ValueError(f"weights must have shape {(n,)}, got {self.weights.shape}")

    def __len__(self) -> int:
        return len(self.images)

    def __repr__(self) -> str:
        shape = "x".join(map(str, self.images.shape[1:]))
        weighted = ", weighted" if self.weights is not None else ""
        return f"Coreset({len(self)} images {shape}, {self.classes} classes, {self.convention!r} targets{weighted})"

    def _repr_png_(self) -> bytes | None:
        """Return a picture for notebooks: a row per class.

        Images whose pixels are not known are drawn as they are, stretched from the smallest to the largest value.
        """
        from bpcbench.figures import image_grid

        images = np.asarray(self.images)
        if not len(images) or images.shape[1] not in (1, 3):
            return None
        if self._picture is not None:
            return self._picture()
        low, high = float(np.nanmin(images)), float(np.nanmax(images))
        return image_grid((images - low) / ((high - low) or 1.0), self.class_ids)

    @property
    def nbytes(self) -> int:
        """The bytes of images, targets and weights: the storage cost of a coreset."""
        extra = 0 if self.weights is None else self.weights.nbytes
        return int(self.images.nbytes + self.targets.nbytes + extra)

    def arrays(self) -> dict[str, Array]:
        """Return the arrays to keep; with `description` they are the whole coreset but for its recipe's references."""
        kept = {"images": self.images, "targets": self.targets, "class_ids": self.class_ids}
        return kept if self.weights is None else {**kept, "weights": self.weights}

    def description(self) -> dict[str, Any]:
        """Return what is not an array, as JSON."""
        scalars = {name: float(value) for name, value in self.recipe.scalars.items()}
        return {
            "classes": self.classes,
            "convention": self.convention,
            "scalars": scalars,
            "rows": len(self),
            "bytes": self.nbytes,
        }

    @classmethod
    def restore(cls, arrays: Arrays, description: Mapping[str, Any], recipe: Recipe | None = None) -> Coreset:
        """Return the coreset that `arrays` and `description` describe; `recipe` holds the references."""
        return cls(
            images=arrays["images"],
            targets=arrays["targets"],
            class_ids=arrays["class_ids"],
            classes=int(description["classes"]),
            convention=description["convention"],
            weights=arrays.get("weights"),
            recipe=replace(recipe or Recipe(), scalars=dict(description["scalars"])),
        )


@dataclass(frozen=True)
class StoredCoreset:
    """What is known of a coreset in a folder without reading its images.

    `digest` is of everything that determines results: arrays, conventions and recipe. `counts` are the rows of each
    class. `mirrored` says that horizontally mirrored copies of all rows are to be appended when it is used.
    """

    path: Path
    digest: str
    shape: tuple[int, int, int]
    classes: int
    counts: tuple[int, ...]
    convention: Convention
    weighted: bool = False
    mirrored: bool = False

    @property
    def ipc(self) -> int | None:
        """The images per class, None if they differ from class to class."""
        return self.counts[0] if len(set(self.counts)) == 1 else None


def mirrored(coreset: Coreset) -> Coreset:
    """Return the rows of a coreset followed by their horizontally mirrored copies, with the same targets."""
    return replace(
        coreset,
        images=np.concatenate([coreset.images, coreset.images[..., ::-1]]),
        targets=np.concatenate([coreset.targets] * 2),
        class_ids=np.concatenate([coreset.class_ids] * 2),
        weights=None if coreset.weights is None else np.concatenate([coreset.weights] * 2),
    )


def union(coresets: Sequence[Coreset]) -> Coreset:
    """Return the rows of several coresets, in order; they must agree on classes and convention.

    Scalars on which they differ are left out.
    """
    first = coresets[0]
    if len(coresets) == 1:
        return first
    for other in coresets[1:]:
        if (other.classes, other.convention) != (first.classes, first.convention):
            raise ValueError("coresets of different classes or target conventions have no union")
    weights = None
    if any(coreset.weights is not None for coreset in coresets):
        parts = [np.ones(len(c), np.float32) if c.weights is None else c.weights for c in coresets]
        weights = np.concatenate(parts)
    shared = {
        name: value
        for name, value in first.recipe.scalars.items()
        if all(coreset.recipe.scalars.get(name) == value for coreset in coresets)
    }
    return Coreset(
        images=np.concatenate([coreset.images for coreset in coresets]),
        targets=np.concatenate([coreset.targets for coreset in coresets]),
        class_ids=np.concatenate([coreset.class_ids for coreset in coresets]),
        classes=first.classes,
        convention=first.convention,
        weights=weights,
        recipe=replace(first.recipe, scalars=shared),
    )


@dataclass(frozen=True)
class Offer:
    """What an inference is offered when a plan asks whether it accepts a cell; the coreset need not exist yet."""

    facts: Facts
    ipc: int
    method: str
    convention: Convention
    network: Network
    seeds: int = 1
    """How many evaluation seeds are fitted together, where a peak of memory is asked for."""


@dataclass(frozen=True, eq=False)
class Predicted:
    """The output of a predictive for a batch of images.

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
    """The declaration of a number that an evaluator returns.

    `direction` says which values are better; a metric without one is shown but not ranked. With the unit `percent` the
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
    """The output of an evaluator: numbers by metric name, and figures by their own names."""

    metrics: Mapping[str, float]
    figures: Mapping[str, Figure] = field(default_factory=dict)


def undeclared(scores: Scores, metrics: Iterable[Metric]) -> tuple[str, ...]:
    """Return the names in the scores that are not declared metrics."""
    declared = {metric.name for metric in metrics}
    return tuple(name for name in scores.metrics if name not in declared)


@dataclass(frozen=True)
class StageEvent:
    """The event that observers receive when a stage has ended."""

    address: str
    kind: Kind
    label: str
    status: Status
    seconds: float
    message: str = ""


@dataclass(frozen=True)
class Resources:
    """What a stage needs: a number of GPUs, possibly a fraction of one, and a hint of the memory in GB."""

    gpus: float = 0.0
    memory: float | None = None


@dataclass(frozen=True)
class Task:
    """One attempt at a stage: plain data that `python -m bpcbench.running.worker TASK.json` executes anywhere.

    `stage` is the stage's description and `key` what its key must be when it is derived again. `id` names the stage
    among those of a run, `attempt` the attempt. What a task makes is in the store, not in an answer.
    """

    id: str
    kind: Kind
    key: str
    body_version: int
    stage: Mapping[str, Any]
    label: str
    store: Path
    data: Path
    attempt: str
    log: Path
    threads: int = 1
    device: str = "auto"
    timeout: float | None = None
    jobs: int = 1
    resources: Resources = field(default_factory=Resources)
    preload: tuple[str, ...] = ()
    family: str = ""
    visible: str | None = None
    """The value of CUDA_VISIBLE_DEVICES, or None to leave it."""
    plugin: str = ""
    """The name of the method, inference, evaluator, ... whose work it is."""
    run: str = ""
    """The run that submitted it; see `RunInfo.run`."""
    along: tuple[Mapping[str, Any], ...] = ()
    """Predictions that differ in their seed alone and whose fits it makes as well: their `key`, `label` and `stage`."""

    @property
    def outcome_file(self) -> Path:
        """Where `python -m bpcbench.running.worker` writes the `Ended` of the attempt, as JSON, when it is over."""
        return self.store / "scratch" / "outcomes" / f"{self.attempt}.json"

    def to_json(self) -> dict[str, Any]:
        """Return the task as JSON."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__}
        paths = {name: str(plain[name]) for name in ("store", "data", "log")}
        return {
            **plain,
            **paths,
            "preload": list(self.preload),
            "resources": vars(self.resources).copy(),
            "along": list(self.along),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Task:
        """Read what `to_json` returned."""
        paths = {name: Path(value[name]) for name in ("store", "data", "log")}
        resources = Resources(**value["resources"])
        along = tuple(value.get("along", ()))
        return cls(**{**value, **paths, "preload": tuple(value["preload"]), "resources": resources, "along": along})


def _anyones(task: Task) -> bool:
    """Claim every attempt: there are no other runs."""
    return True


@dataclass(frozen=True)
class RunInfo:
    """What an engine knows about a run when it opens its pool."""

    store: Path
    run: str
    """A globally unique name of the run."""
    threads: int = 1
    """CPU threads of every stage."""
    device: str = "auto"
    preload: tuple[str, ...] = ()
    """Modules that the run's stages import: a process that has them loaded may be forked."""
    grace: float = 30.0
    """How many seconds an attempt that is asked to stop gets to write a checkpoint, before it is killed."""
    debug: bool = False
    """An engine whose stages run in this process opens a debugger where one fails."""
    report: Callable[[str], None] = print
    """Shows a line to the user."""
    claim: Callable[[Task], bool] = _anyones
    """Says whether an attempt that is not of this run's making is its own from now on.

    That is so if the run that it belonged to is no more, and no other was faster. The pool of an engine that is
    detached neither ends, signals nor tidies away any attempt but those that it has submitted or claimed.
    """

    def folder(self, engine: str) -> Path:
        """Return a folder of the store for an engine's own files, the same for all runs; it may not exist yet."""
        return self.store / "scratch" / "engines" / engine


@dataclass(frozen=True)
class Started:
    """An attempt has begun to execute; its timeout counts from now on."""

    attempt: str


@dataclass(frozen=True)
class Requeued:
    """An attempt that had started waits again, for instance preempted; its timeout counts anew from the next start."""

    attempt: str


@dataclass(frozen=True)
class Ended:
    """An attempt is over, and nothing of it runs any more.

    An engine that only knows that it is over leaves `status` at None: the runner then reads the attempt's outcome
    file or, if there is none, looks into the store. `lost` means that the worker is gone without an answer, through
    no fault of the stage as far as one can tell: the attempt is repeated, a bounded number of times. `out_of_memory`
    means that it failed because memory was not enough: tables then have a dash with the message.
    """

    attempt: str
    status: Status | None = None
    message: str = ""
    seconds: float = 0.0
    messages: tuple[str, ...] = ()
    lost: bool = False
    out_of_memory: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON."""
        return {**vars(self), "messages": list(self.messages)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Ended:
        """Read what `to_json` returned."""
        return cls(**{**value, "messages": tuple(value["messages"])})


COST = "cost/"
"""A scalar that a plugin logs under such a name is a cost: `bpcbench report --costs` has a column for it.

Published costs have such metrics too: `cost/` and the heading of the column.
"""


@dataclass(frozen=True)
class PublishedQuery:
    """What a cell of a table is made of: what `PublishedPattern`s are compared with.

    Names are those of plugins, not labels of a suite. Options are complete, defaults included; an option that is a
    plugin is `{"plugin": NAME, OPTION: value, ...}`. `native` says that the inference is the method's native one.
    """

    dataset: str
    ipc: int
    method: str
    inference: str
    network: str
    native: bool = False
    method_options: Mapping[str, Any] = field(default_factory=dict)
    inference_options: Mapping[str, Any] = field(default_factory=dict)
    network_options: Mapping[str, Any] = field(default_factory=dict)
    metric: str = ""
    tasks: int | None = None
    """The number of steps in which the classes come; None: all at once."""


@dataclass(frozen=True)
class PublishedPattern:
    """The cells that a published number stands beside: those with these plugins, options and metrics.

    None matches everything; the images per class are the number's own. Options match if the cell has all that are
    named here, with these values; an option that is a plugin is given as a mapping such as
    `{"network": {"plugin": "convnet"}}`. Without `metrics` the pattern matches the number's own metric. `tasks` is the
    number of steps in which the classes come; here None matches only suites in which they come all at once.
    """

    dataset: str | None = None
    method: str | None = None
    inference: str | None = None
    network: str | None = None
    native: bool | None = None
    method_options: Mapping[str, Any] = field(default_factory=dict)
    inference_options: Mapping[str, Any] = field(default_factory=dict)
    network_options: Mapping[str, Any] = field(default_factory=dict)
    metrics: tuple[str, ...] = ()
    tasks: int | None = None

    def __post_init__(self) -> None:
        for name in ("method_options", "inference_options", "network_options"):
            if not isinstance(getattr(self, name), Mapping):
                raise ValueError(f"{name} must be a mapping, got {getattr(self, name)!r}")
        if not isinstance(self.metrics, tuple):
            raise ValueError(f"metrics must be a tuple of names, got {self.metrics!r}")


@dataclass(frozen=True)
class PublishedNumber:
    """One printed number, and the cells that it stands beside.

    `table`, `dataset`, `method` and `setting` are the publication's own words; `ipc` None matches every number of
    images per class. `metric` is a metric of bpcbench, and `mean` and `std` are in its unit (an accuracy is a
    fraction); `mean` is None where the publication prints a word such as `oom`, `std` where it prints none. `printed`
    is both as they are printed, and what a table shows; where it is empty, a table formats them like measured numbers.
    A number without `cells` has no equivalent here and is never shown.
    """

    table: str
    dataset: str
    ipc: int | None
    method: str
    metric: str
    mean: float | None
    std: float | None = None
    setting: str = ""
    printed: tuple[str, str] = ("", "")
    cells: tuple[PublishedPattern, ...] = ()

    def __post_init__(self) -> None:
        if self.mean is None and not self.printed[0]:
            raise ValueError("a published number without a mean needs the printed word")


@dataclass(frozen=True)
class Publication:
    """The printed numbers of a paper.

    `name` is short, such as `Lee et al., 2025`; `citation` is what a reference list says. `note` is one or more
    sentences that are printed below every table with numbers of the publication: how its protocol may differ.
    """

    name: str
    citation: str
    numbers: tuple[PublishedNumber, ...]
    note: str = ""

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("a publication needs a name")
        for number in self.numbers:
            if not isinstance(number, PublishedNumber):
                raise ValueError(f"{self.name}: {number!r} is not a PublishedNumber")
