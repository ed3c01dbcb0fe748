"""Toy data, coresets, preprocessing and contexts: what conformance tests hand to a plugin."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bpcbench.api import Plugin, Preprocessing, Prerequisite
from bpcbench.records import (
    Array,
    Arrays,
    Convention,
    Coreset,
    Data,
    EvaluatorInputs,
    Facts,
    Inputs,
    Need,
    PrerequisiteOutput,
    Ref,
    Split,
    Transform,
)
from bpcbench.registry.discovery import registry
from bpcbench.registry.options import build, ready
from bpcbench.running.context import StageContext
from bpcbench.running.seeding import seed_globals

PRESENT = (0, 2)
"""The classes of the toy data that are left where some are to be absent."""


def toy_data(classes: int = 3, per_class: int = 30, shape: tuple[int, int, int] = (1, 8, 8), seed: int = 0) -> Data:
    """Return a small data set that can be learned: every class is a bright square at its own place, with noise."""
    rng = np.random.default_rng(seed)
    labels = np.arange(classes * per_class) % classes
    images = rng.integers(0, 80, (len(labels), *shape))
    for row, label in enumerate(labels):
        top, left = divmod(int(label) * 2, shape[2] - 1)
        images[row, :, 2 * top : 2 * top + 3, left : left + 3] += 150
    facts = Facts(shape=shape, classes=classes, sizes={"train": len(labels), "test": len(labels)})
    return Data(facts, Split(images.astype(np.uint8), labels.astype(np.int64)))


class Scale(Preprocessing):
    """The simplest preprocessing: pixels to [-1, 1]."""

    name = "scale"

    def fit(self, data: Data, ctx: Any) -> Arrays:
        """Fit nothing."""
        return {}

    def apply(self, images: Array, arrays: Arrays) -> Array:
        """Map 0 ... 255 to -1 ... 1."""
        return (images.astype(np.float32) / 127.5) - 1.0

    def invert(self, images: Array, arrays: Arrays) -> Array:
        """Map -1 ... 1 to 0 ... 1."""
        return (images + 1.0) / 2.0


def toy_images(seed: int = 1) -> Array:
    """Return images of the toy data that were not trained on, in the space of `Scale`."""
    return Scale().apply(toy_data(seed=seed).train.images, {})


def toy_inputs() -> Inputs:
    """Return what a method without prerequisites is given."""
    return Inputs(Transform(Scale(), {}))


def toy_evaluator_inputs() -> EvaluatorInputs:
    """Return what an evaluator without a reference works with."""
    return EvaluatorInputs(Transform(Scale(), {}))


def toy_coreset(data: Data | None = None, per_class: int = 5, convention: Convention = "class") -> Coreset:
    """Return a coreset of real toy images; its targets say the class, in the given convention."""
    data = data or toy_data()
    rows = np.concatenate([np.flatnonzero(data.labels == c)[:per_class] for c in range(data.facts.classes)])
    images, ids = Scale().apply(data.train.images[rows], {}), data.labels[rows]
    targets = ids
    if convention != "class":
        targets = np.eye(data.facts.classes, dtype=np.float32)[ids]
        targets = targets - 1 / data.facts.classes if convention == "centred" else targets
    return Coreset(images=images, targets=targets, class_ids=ids, classes=data.facts.classes, convention=convention)


def weighted(coreset: Coreset) -> Coreset:
    """Return the coreset with weights that differ within every class."""
    return replace(coreset, weights=np.where(np.arange(len(coreset)) % 2, 3.0, 0.25).astype(np.float32))


def toy_prerequisites(needs: Mapping[str, Need], data: Data) -> dict[str, PrerequisiteOutput]:
    """Return prerequisites, made from the toy data: what a method that asks for them is given."""
    made = {}
    for role, need in needs.items():
        plugin: Plugin = need.plugin if isinstance(need.plugin, Prerequisite) else _built(need.plugin)
        assert isinstance(plugin, Prerequisite)
        inputs = Inputs(Transform(Scale(), {}), toy_prerequisites(plugin.prerequisites(data.facts), data))
        members = {}
        for member in need.members:
            with tempfile.TemporaryDirectory() as folder:
                members[member] = plugin.make(data, inputs, context(Path(folder)), member)
        made[role] = PrerequisiteOutput(plugin, "", members)
    return made


def _built(ref: Ref | Plugin) -> Plugin:
    return build(registry(), "prerequisite", ref) if isinstance(ref, Ref) else ready(registry(), ref)


def context(folder: Path, seed: int = 0, **more: Any) -> StageContext:
    """Return a real context that keeps its checkpoints below `folder`; global generators are seeded."""
    attempts = len(list(folder.glob("*"))) if folder.exists() else 0
    made = StageContext(seed=seed, attempt=folder / f"attempt-{attempts}", **more)
    seed_globals(seed)
    return made


class CountingContext(StageContext):
    """A context that counts the steps of all loops in `made`."""

    made = 0

    def steps(self, total: int, **more: Any) -> Iterator[int]:
        """Yield as usual."""
        for step in super().steps(total, **more):
            self.made += 1
            yield step


class InterruptedContext(StageContext):
    """A context that stops the stage, with a checkpoint, after some steps."""

    def __init__(self, *, after: int, **more: Any) -> None:
        super().__init__(**more)
        self._left = after

    def steps(self, total: int, **more: Any) -> Iterator[int]:
        """Yield as usual, until the time has come."""
        for step in super().steps(total, **more):
            self._left -= 1
            if self._left == 0:
                self.stopping = True
            yield step
