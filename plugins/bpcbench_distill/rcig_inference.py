"""The inference `rcig`: a network regressed on real-valued labels as RCIG's authors evaluate. It needs no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from bpcbench.api import Context, Inference, Network, Predictive, option
from bpcbench.records import Arrays, Coreset, Inputs, Offer, mirrored
from bpcbench_torch.memory import ADAM, FLOAT, predicted, sizes, trained
from bpcbench_torch.operations import STEP

Mirror = Literal["auto", "yes", "no"]
MIRROR_HELP = "mirrored copies of the images; auto: colour, up to 200 classes and 1000 images, as its authors"

_SMALL, _SMALL_STEPS, _STEPS = 10, 1000, 2000
_MIRRORED_CLASSES, _MIRRORED_ROWS = 200, 1000
_BLOCK, _PLAIN_BLOCK = 500, 200
"""The authors' loops train in blocks of 500 steps. Without augmentation they run one per 200 nominal steps."""


def mirrors(mirror: Mirror, channels: int, classes: int, rows: int) -> bool:
    """Return whether mirrored copies are appended to `rows` images."""
    small = classes <= _MIRRORED_CLASSES and rows <= _MIRRORED_ROWS
    return mirror == "yes" or (mirror == "auto" and channels == 3 and small)


@dataclass(frozen=True)
class Schedule:
    """Linear warm-up from 0, a half cosine down to 1 % at `nominal` steps, and 1 % from then on."""

    lr: float
    warmup: int
    nominal: int

    def rate(self, step: int) -> float:
        """Return the learning rate of a step."""
        if step < self.warmup:
            return self.lr * step / self.warmup
        done = min(1.0, (step - self.warmup) / max(1, self.nominal - self.warmup))
        return self.lr * (0.01 + 0.99 * (0.5 + 0.5 * math.cos(math.pi * done)))


@dataclass(frozen=True)
class RCIGRegression:
    """The settings of one fit, with everything that depends on the coreset resolved."""

    steps: int
    schedule: Schedule
    rows: int
    augmentation: str
    label_scale: float
    temperature: float | None
    eps: float

    def rate(self, step: int) -> float:
        """Return the learning rate of a step."""
        return self.schedule.rate(step)


@dataclass(frozen=True)
class RCIGInference(Inference):
    """A new network trained with 0.5 * ||f(x) - y||^2 / k on the coreset, as in RCIG's evaluation (Loo et al., 2023).

    Adam with a warm-up of 500 steps and a cosine to 1 %. The nominal number of steps is 1000 for ten images, else
    2000. The authors report two numbers, with augmentation (the default, an operation drawn for every image) and
    without (`augmentation: none`). Their loops train in blocks of 500 steps; with augmentation they run the nominal
    number, without 2.5 times as many, the rest at 1 % of the rate. `loops: nominal` stops at the nominal number.

    Coresets of more than 256 images are used in batches of 256. Copies are not appended to a coreset that already
    consists of images and their mirrored copies, and do not count for the number of steps. Class labels become one-hot
    minus 1/k, RCIG's initial labels. The predictive is softmax(f(x) / temperature), with the temperature of the option,
    else that of the recipe (RCIG learns one), else 1/k. Accuracy does not depend on it.
    """

    name: ClassVar[str] = "rcig"
    preload: ClassVar[tuple[str, ...]] = ("torch", "torch._dynamo", "torch.optim")

    steps: int | None = option(None, "nominal Adam steps; none: 1000 for ten images, else 2000, as its authors")
    loops: Literal["code", "nominal"] = option(
        "code", "without augmentation: 2.5 times the nominal steps, as the authors' loops do, or the nominal number"
    )
    lr: float = option(1e-4, "learning rate after the warm-up")
    warmup: int = option(500, "steps of linear warm-up; at most half of the nominal steps")
    rows: int = option(256, "images per step of a coreset that has more")
    mirror: Mirror = option("auto", f"append {MIRROR_HELP}")
    augmentation: str = option("rcig-each", "augmentation strategy while training; none: the authors' other number")
    label_scale: float = option(1.0, "factor of one-hot minus 1/k, or of probabilities minus 1/k, as targets")
    temperature: float | None = option(None, "softmax temperature; none: from the recipe, else 1/k")

    def __post_init__(self) -> None:
        """Reject invalid values."""
        from bpcbench_torch.strategy import strategy

        if self.steps is not None and self.steps < 1:
            raise ValueError(f"steps must be at least 1, got {self.steps}")
        if self.rows < 1:
            raise ValueError(f"rows must be at least 1, got {self.rows}")
        strategy(self.augmentation, 1)

    def accepts(self, offer: Offer) -> str | None:
        """Return a reason to refuse networks of another framework."""
        if offer.network.framework != "torch":
            return f"{self.name} trains torch networks, but {offer.network.name} is a {offer.network.framework} network"
        return None

    def operations(self, offer: Offer, images: int) -> float | None:
        """Return F * (3 steps * rows + images), F being one image's forward pass."""
        one, rows = offer.network.operations(offer.facts.shape, offer.facts.classes), offer.ipc * offer.facts.classes
        if one is None:
            return None
        copies = 2 if mirrors(self.mirror, offer.facts.shape[0], offer.facts.classes, rows) else 1
        used = self.rows if rows > self.rows else copies * rows
        return one * (STEP * self.performed(self.nominal(rows)) * used + images)

    def nominal(self, rows: int) -> int:
        """Return the nominal number of steps for a coreset of so many images, mirrored copies not counted."""
        return self.steps if self.steps is not None else _SMALL_STEPS if rows == _SMALL else _STEPS

    def performed(self, nominal: int) -> int:
        """Return the number of steps that are taken."""
        plain = self.augmentation == "none" and self.loops == "code"
        return max(1, nominal * _BLOCK // _PLAIN_BLOCK) if plain else nominal

    def regression(self, coreset: Coreset) -> RCIGRegression:
        """Return the settings for a coreset, mirrored already or not."""
        rows = len(coreset.images) // (2 if _holds_copies(coreset) else 1)
        nominal = self.nominal(rows)
        return RCIGRegression(
            steps=self.performed(nominal),
            schedule=Schedule(self.lr, min(self.warmup, nominal // 2), nominal),
            # The authors compare the images before mirroring with 256.
            rows=self.rows if rows > self.rows else 2 * rows,
            augmentation=self.augmentation,
            label_scale=self.label_scale * math.sqrt(coreset.classes / 10),
            temperature=self.temperature,
            # The authors divide the loss by k. For Adam that is the same as an epsilon k times as large.
            eps=1e-8 * coreset.classes,
        )

    def prepared(self, coreset: Coreset) -> Coreset:
        """Return the coreset that the network is trained on."""
        rows, channels = coreset.images.shape[:2]
        append = not _holds_copies(coreset) and mirrors(self.mirror, channels, coreset.classes, rows)
        return mirrored(coreset) if append else coreset

    def peak_bytes(self, offer: Offer) -> float | None:
        """Return 4 times what a training step or a prediction holds, whichever is more; mirrored copies count."""
        these = sizes(offer.network, offer.facts, offer.ipc)
        if these is None:
            return None
        rows = these.rows * (2 if mirrors(self.mirror, offer.facts.shape[0], these.classes, these.rows) else 1)
        held = ADAM * these.parameters + 2 * rows * (these.pixels + these.classes)
        step = trained(these, self.rows if these.rows > self.rows else rows, augmented=self.augmentation != "none")
        return FLOAT * (held + max(step, predicted(these)))

    def fit(self, coreset: Coreset, network: Network, inputs: Inputs, ctx: Context) -> Predictive:
        """Return the predictive of a newly trained network."""
        from bpcbench_distill.predictive import fit

        return fit(self.regression(coreset), self.prepared(coreset), network, ctx)

    def restore(self, arrays: Arrays, coreset: Coreset, network: Network, inputs: Inputs, ctx: Context) -> Predictive:
        """Return the predictive of the stored network."""
        from bpcbench_distill.predictive import restore

        return restore(self.regression(coreset), arrays, coreset, network, ctx)


def _holds_copies(coreset: Coreset) -> bool:
    """Return whether the second half of the rows is the mirror image of the first, as from an imported coreset."""
    images = coreset.images
    half, odd = divmod(len(images), 2)
    return not odd and half > 0 and np.array_equal(images[half:], images[:half, ..., ::-1])
