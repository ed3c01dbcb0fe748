"""Tiny plugins with which engines are tested. They need no framework and no files, and write a journal of their work.

`EngineConformance` names this module in BPCBENCH_PLUGINS while it runs, so that workers find it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from bpcbench.api import Context, Dataset, Evaluator, Inference, Method, Network, Predictive, Preprocessing, option
from bpcbench.hooks import hookimpl
from bpcbench.records import (
    Array,
    Arrays,
    Coreset,
    Data,
    EvaluatorInputs,
    Facts,
    Inputs,
    Metric,
    Predictions,
    Resources,
    Scores,
    Split,
    SplitRef,
)

BPCBENCH_API = 1
MEETING_SECONDS = 30.0
"""How long a probe waits for the others that it is to meet."""


@dataclass(frozen=True)
class Entry:
    """A line of a journal: what happened (`begin`, `met`, `from`, `step`, `end`), to whom, where and when."""

    event: str
    who: str
    pid: int
    time: float
    step: int = 0


def read_journal(path: Path) -> list[Entry]:
    """Return what probes have written so far."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [Entry(**json.loads(line)) for line in lines]


def _write(path: str, event: str, who: str, step: int = 0) -> None:
    if path:
        line = json.dumps(vars(Entry(event, who, os.getpid(), time.time(), step))) + "\n"
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        with contextlib.closing(os.fdopen(descriptor, "wb", buffering=0)) as stream:
            stream.write(line.encode())


@dataclass(frozen=True)
class ProbeData(Dataset):
    """Two classes of 4x4 noise around two grey levels."""

    name: ClassVar[str] = "probe-data"

    def facts(self, root: Path) -> Facts:
        """Return shape and sizes."""
        return Facts(shape=(1, 4, 4), classes=2, sizes={"train": 24, "test": 30})

    def fingerprint(self, root: Path, split: str) -> str:
        """Return a constant."""
        return f"{split}-1"

    def load(self, root: Path, split: str) -> Split:
        """Return noise that depends on the split alone."""
        size = self.facts(root).sizes[split]
        labels = np.arange(size) % 2
        noise = np.random.default_rng(size).integers(0, 160, (size, 1, 4, 4))
        return Split((noise + 60 * labels[:, None, None, None]).astype(np.uint8), labels)


@dataclass(frozen=True)
class ProbeScale(Preprocessing):
    """Pixels to [0, 1]."""

    name: ClassVar[str] = "probe-scale"

    def fit(self, data: Data, ctx: Context) -> Arrays:
        """Fit nothing."""
        return {"scale": np.full(1, 255.0, np.float32)}

    def apply(self, images: Array, arrays: Arrays) -> Array:
        """Divide."""
        return images.astype(np.float32) / arrays["scale"]

    def invert(self, images: Array, arrays: Arrays) -> Array:
        """Return the images, which are pixels in [0, 1]."""
        return images


@dataclass(frozen=True)
class Probe(Method):
    """Does what the test of an engine asks for."""

    name: ClassVar[str] = "probe"
    resources: ClassVar[Resources] = Resources()

    number: int = option(0, "tells probes apart")
    steps: int = option(3, "steps of a loop with checkpoints")
    behaviour: str = option("finish", "finish, raise, vanish, vanish-once, sleep or deaf")
    pace: float = option(0.0, "seconds per step", key=False)
    meet: int = option(1, "wait until so many probes have begun", key=False)
    journal: str = option("", "file to write to", key=False)

    def distil(self, data: Data, ipc: int, inputs: Inputs, ctx: Context) -> Coreset:
        """Return real images with noise, or do something else."""
        who = str(self.number)
        before = [entry for entry in read_journal(Path(self.journal)) if entry.who == who]
        _write(self.journal, "begin", who)
        self._behave(first=not before)
        self._meet(who)
        rows = np.concatenate([np.flatnonzero(data.labels == c)[:ipc] for c in range(2)])
        images = inputs.transform.apply(data.train.images[rows])
        rng = np.random.default_rng(ctx.seed)
        fresh = True
        for step in ctx.steps(self.steps, state={"images": images, "rng": rng}):
            _write(self.journal, "from" if fresh else "step", who, step)
            fresh = False
            images += rng.normal(0, 0.01, images.shape).astype(np.float32)
            ctx.log(level=float(images.mean()))
            time.sleep(self.pace)
        _write(self.journal, "end", who)
        labels = data.labels[rows]
        return Coreset(images=images, targets=labels, class_ids=labels, classes=2)

    def _behave(self, *, first: bool) -> None:
        if self.behaviour == "raise":
            raise LookupError("as asked")
        if self.behaviour == "vanish" or (self.behaviour == "vanish-once" and first):
            os.kill(os.getpid(), signal.SIGKILL)
        if self.behaviour == "deaf":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if self.behaviour in ("sleep", "deaf"):
            time.sleep(1000)

    def _meet(self, who: str) -> None:
        end = time.monotonic() + MEETING_SECONDS
        while time.monotonic() < end:
            begun = {entry.who for entry in read_journal(Path(self.journal)) if entry.event == "begin"}
            if len(begun) >= self.meet or not self.journal:
                _write(self.journal, "met", who)
                return
            time.sleep(0.01)


@dataclass(frozen=True)
class ProbeNetwork(Network):
    """No network at all."""

    name: ClassVar[str] = "probe-network"
    framework: ClassVar[str] = "numpy"

    def build(self, shape: tuple[int, int, int], classes: int, seed: int) -> Any:
        """Return nothing."""
        return None


class _NearestMean(Predictive):
    def __init__(self, means: Array) -> None:
        self.means = means

    def log_probs(self, images: Array) -> Array:
        logits = -((images[:, None] - self.means[None]) ** 2).mean((2, 3, 4)).astype(np.float64)
        return (logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)).astype(np.float32)


@dataclass(frozen=True)
class ProbeInference(Inference):
    """The nearest class mean."""

    name: ClassVar[str] = "probe-inference"
    resources: ClassVar[Resources] = Resources()

    journal: str = option("", "file to write to", key=False)

    def fit(self, coreset: Coreset, network: Network, inputs: Inputs, ctx: Context) -> Predictive:
        """Return the nearest class mean."""
        _write(self.journal, "begin", "fit")
        return _NearestMean(np.stack([coreset.images[coreset.targets == c].mean(0) for c in range(2)]))


@dataclass(frozen=True)
class ProbeEvaluator(Evaluator):
    """The accuracy."""

    name: ClassVar[str] = "probe-evaluator"

    journal: str = option("", "file to write to", key=False)

    def metrics(self) -> Sequence[Metric]:
        """Return the one metric."""
        return (Metric("acc", "higher", "percent"),)

    def score(self, predictions: Mapping[SplitRef, Predictions], inputs: EvaluatorInputs) -> Scores:
        """Return the accuracy."""
        _write(self.journal, "begin", "score")
        (predicted,) = predictions.values()
        return Scores({"acc": float((predicted.log_probs.argmax(1) == predicted.labels).mean())})


@hookimpl
def bpcbench_datasets() -> list[type[Dataset]]:
    """Register the data."""
    return [ProbeData]


@hookimpl
def bpcbench_preprocessings() -> list[type[Preprocessing]]:
    """Register the preprocessing."""
    return [ProbeScale]


@hookimpl
def bpcbench_methods() -> list[type[Method]]:
    """Register the method."""
    return [Probe]


@hookimpl
def bpcbench_inferences() -> list[type[Inference]]:
    """Register the inference."""
    return [ProbeInference]


@hookimpl
def bpcbench_networks() -> list[type[Network]]:
    """Register the network."""
    return [ProbeNetwork]


@hookimpl
def bpcbench_evaluators() -> list[type[Evaluator]]:
    """Register the evaluator."""
    return [ProbeEvaluator]
