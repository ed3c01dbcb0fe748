"""A plugin of tiny classes, one or two of each kind: every stage takes milliseconds and needs no framework."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import bpcbench
from bpcbench import MissingData, Native, Need, Ref, SplitRef, metrics, option, refers

BPCBENCH_API = 1
TOYS = """
protocol: 1
datasets: [dots]
ipc: [1, 2]
methods: [pick]
preprocessing: scale
inferences: [centroid]
networks: [line]
evaluators: [right]
seeds: {distil: 2, evaluate: 2}
"""


@dataclass(frozen=True)
class Dots(bpcbench.Dataset):
    """Two classes of noisy 4x4 images; the noise comes from a file's content, if a file is named."""

    name = "dots"
    file: str = option("", "file below the data folder")

    def _entropy(self, root: Path) -> bytes:
        if not self.file:
            return b""
        if not (root / self.file).exists():
            raise MissingData(f"place {self.file} in {root}")
        return (root / self.file).read_bytes()

    def facts(self, root: Path) -> bpcbench.Facts:
        self._entropy(root)
        return bpcbench.Facts(shape=(1, 4, 4), classes=2, sizes={"train": 40, "test": 20}, notes=("toy",))

    def load(self, root: Path, split: str) -> bpcbench.Split:
        labels = np.arange(self.facts(root).sizes[split]) % 2
        noise = hashlib.shake_256(self._entropy(root) + f"{self.name} {split}".encode()).digest(len(labels) * 16)
        images = np.frombuffer(noise, np.uint8).reshape(-1, 1, 4, 4) // 2 + 100 * labels[:, None, None, None]
        return bpcbench.Split(images.astype(np.uint8), labels)

    def fingerprint(self, root: Path, split: str) -> str:
        return hashlib.sha256(self.load(root, split).images.tobytes()).hexdigest()


@dataclass(frozen=True)
class Blobs(Dots):
    """Other data of the same shape."""

    name = "blobs"


@dataclass(frozen=True)
class Scale(bpcbench.Preprocessing):
    """Pixels divided by the largest one."""

    name = "scale"

    def fit(self, data: Any, ctx: Any) -> Mapping[str, Any]:
        return {"top": np.array([float(data.train.images.max())])}

    def apply(self, images: Any, arrays: Mapping[str, Any]) -> Any:
        return (images / arrays["top"]).astype(np.float32)

    def invert(self, images: Any, arrays: Mapping[str, Any]) -> Any:
        return images * (arrays["top"] / 255).astype(np.float32)


@dataclass(frozen=True)
class Means(bpcbench.Prerequisite):
    """A mean image, one noisy version per member."""

    name = "means"
    noise: float = option(0.1, "standard deviation")
    chunk: int = option(8, "images at a time", key=False)

    def make(self, data: Any, inputs: Any, ctx: Any, member: str) -> Mapping[str, Any]:
        mean = inputs.transform.apply(data.train.images).mean(0)
        return {"mean": (mean + np.random.default_rng(ctx.seed).normal(0, self.noise, mean.shape)).astype(np.float32)}


@dataclass(frozen=True)
class Pick(bpcbench.Method):
    """Real images, moved a little."""

    name = "pick"
    resources = bpcbench.Resources()
    steps: int = option(2, "number of moves")
    rate: float = option(0.1, "how far")
    chunk: int = option(8, "speed only", key=False)
    style: str = option("plain", "a later addition", absent="plain")
    net: Any = refers("network", "line", "where to look", width=3)

    def notes(self) -> tuple[str, ...]:
        return () if self.style == "plain" else (self.style,)

    def native(self, facts: Any, ipc: int) -> Native:
        return Native(Ref("centroid", {"heat": 2}), Ref("line"))

    def skip(self, facts: Any, ipc: int) -> str | None:
        return "at most 15 per class" if ipc > 15 else None

    def distil(self, data: Any, ipc: int, inputs: Any, ctx: Any) -> bpcbench.Coreset:
        rows = bpcbench.per_class(data.labels, ipc, ctx.seed)
        images = inputs.transform.apply(data.train.images[rows]) + np.float32(self.rate * self.steps)
        return bpcbench.Coreset(
            images=images, targets=data.labels[rows], class_ids=data.labels[rows], classes=data.facts.classes
        )


@dataclass(frozen=True)
class Everything(Pick):
    """All images, whatever ipc and seed are; it has no native inference."""

    name = "everything"
    uses_ipc = False
    uses_seed = False

    def native(self, facts: Any, ipc: int) -> None:
        return None

    def distil(self, data: Any, ipc: int, inputs: Any, ctx: Any) -> bpcbench.Coreset:
        return super().distil(data, 20, inputs, ctx)


@dataclass(frozen=True)
class Guided(Pick):
    """Needs two members of a prerequisite."""

    name = "guided"
    experts: int = option(2, "how many")
    chunk_of_means: int = option(8, "speed only", key=False)

    def prerequisites(self, facts: Any, ipc: int) -> Mapping[str, Need]:
        members = tuple(f"{i:03d}" for i in range(self.experts))
        return {"experts": Need(Ref("means", {"chunk": self.chunk_of_means}), members)}

    def distil(self, data: Any, ipc: int, inputs: Any, ctx: Any) -> bpcbench.Coreset:
        mean = np.mean([inputs["experts"].members[m]["mean"] for m in inputs["experts"].members], axis=0)
        plain = super().distil(data, ipc, inputs, ctx)
        images = (plain.images + 0.01 * mean).astype(np.float32)
        return bpcbench.Coreset(images=images, targets=plain.targets, class_ids=plain.class_ids, classes=plain.classes)


@dataclass(frozen=True)
class Line(bpcbench.Network):
    """Nothing but options."""

    name = "line"
    framework = "toy"
    width: int = option(4, "features")
    height: int = option(1, "smallest image")

    def skip(self, facts: Any) -> str | None:
        return f"images of {facts.shape[1]} are too small" if facts.shape[1] < self.height else None

    def build(self, shape: Any, classes: int, seed: int) -> Any:
        return None


class _Near(bpcbench.Predictive):
    def __init__(self, means: Any, heat: float) -> None:
        self.means, self.heat = means, heat

    def log_probs(self, images: Any) -> Any:
        logits = -((images[:, None] - self.means) ** 2).mean((2, 3, 4)) / self.heat
        return (logits - np.log(np.exp(logits).sum(1, keepdims=True))).astype(np.float32)


@dataclass(frozen=True)
class Centroid(bpcbench.Inference):
    """Softmax of the distance to the class means, jittered by the seed."""

    name = "centroid"
    resources = bpcbench.Resources()
    heat: float = option(1, "temperature; declared as a float, written as an int")

    def accepts(self, offer: Any) -> str | None:
        return f"{offer.method} is too wide" if offer.network.width > 99 else None

    def fit(self, coreset: Any, network: Any, inputs: Any, ctx: Any) -> _Near:
        means = np.full((coreset.classes, *coreset.images.shape[1:]), np.inf, np.float32)
        for c in np.unique(coreset.class_ids):
            means[c] = coreset.images[coreset.class_ids == c].mean(0)
        return _Near(means + np.random.default_rng(ctx.seed).normal(0, 0.01, means.shape), self.heat)


@dataclass(frozen=True)
class Right(bpcbench.Evaluator):
    """Accuracy on the evaluation split."""

    name = "right"
    bonus: float = option(0.0, "added to it")

    def metrics(self) -> Sequence[bpcbench.Metric]:
        return [bpcbench.Metric("right", "higher")]

    def score(self, predictions: Any, inputs: Any) -> bpcbench.Scores:
        found = predictions[SplitRef()]
        return bpcbench.Scores({"right": metrics.accuracy(found.log_probs, found.labels) + self.bonus})


@dataclass(frozen=True)
class Elsewhere(bpcbench.Evaluator):
    """Confidence on another data set's test split, beside that on the own one."""

    name = "elsewhere"
    file: str = option("", "option of the other data set")
    own: str = option("", "name of the own data set, to ask for its test split by name")

    def splits(self, facts: Any) -> Sequence[SplitRef]:
        other = SplitRef("test", Ref("blobs", {"file": self.file}))
        return [SplitRef(), other, *([SplitRef("test", Ref(self.own))] if self.own else [])]

    def metrics(self) -> Sequence[bpcbench.Metric]:
        return [bpcbench.Metric("gap", None)]

    def score(self, predictions: Any, inputs: Any) -> bpcbench.Scores:
        surest = {ref: float(p.log_probs.max(1).mean()) for ref, p in predictions.items()}
        assert set(surest) == set(self.splits(None))
        return bpcbench.Scores({"gap": surest[SplitRef()] - surest[self.splits(None)[1]]})


@bpcbench.hookimpl
def bpcbench_datasets() -> list[type]:
    return [Dots, Blobs]


@bpcbench.hookimpl
def bpcbench_preprocessings() -> list[type]:
    return [Scale]


@bpcbench.hookimpl
def bpcbench_prerequisites() -> list[type]:
    return [Means]


@bpcbench.hookimpl
def bpcbench_methods() -> list[type]:
    return [Pick, Everything, Guided]


@bpcbench.hookimpl
def bpcbench_networks() -> list[type]:
    return [Line]


@bpcbench.hookimpl
def bpcbench_inferences() -> list[type]:
    return [Centroid]


@bpcbench.hookimpl
def bpcbench_evaluators() -> list[type]:
    return [Right, Elsewhere]
