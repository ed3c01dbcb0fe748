"""Conformance tests for anyone's plugin, and the toy data they run on.

Subclass the class for your kind of plugin in a pytest file, set `plugin`, and every rule of the contract is tested:

    from bpcbench.testing import MethodConformance

    class TestMyMethod(MethodConformance):
        plugin = MyMethod(steps=20)
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from bpcbench.api import Dataset, Evaluator, Inference, Method, Network, Predictive, Preprocessing
from bpcbench.data.splits import load_split
from bpcbench.errors import Stopped
from bpcbench.figures import draw, figure_from_json, figure_to_json
from bpcbench.records import (
    Array,
    Arrays,
    Coreset,
    Data,
    EvaluatorInputs,
    Facts,
    Inputs,
    Offer,
    Predictions,
    Split,
    SplitRef,
    Transform,
    undeclared,
)
from bpcbench.registry.discovery import registry
from bpcbench.registry.options import ready
from bpcbench.running.context import StageContext
from bpcbench.running.seeding import seed_globals
from bpcbench.testing.engines import EngineConformance as EngineConformance

TOLERANCE = 1e-5
"""How much a log-probability may move when the test batch is split or permuted."""


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


def toy_inputs() -> Inputs:
    """Return what a method without prerequisites is given."""
    return Inputs(Transform(Scale(), {}))


def toy_evaluator_inputs() -> EvaluatorInputs:
    """Return what an evaluator without a reference works with."""
    return EvaluatorInputs(Transform(Scale(), {}))


def toy_coreset(data: Data | None = None, per_class: int = 5) -> Coreset:
    """Return a coreset of real toy images."""
    data = data or toy_data()
    rows = np.concatenate([np.flatnonzero(data.labels == c)[:per_class] for c in range(data.facts.classes)])
    images = Scale().apply(data.train.images[rows], {})
    return Coreset(images=images, targets=data.labels[rows], class_ids=data.labels[rows], classes=data.facts.classes)


def context(folder: Path, seed: int = 0, **more: Any) -> StageContext:
    """Return a real context that keeps its checkpoints below `folder`; global generators are seeded."""
    attempts = len(list(folder.glob("*"))) if folder.exists() else 0
    made = StageContext(seed=seed, attempt=folder / f"attempt-{attempts}", **more)
    seed_globals(seed)
    return made


_FORGOTTEN = "resumed differently: is everything that changes from step to step named in `state`?"


def _ready(plugin: Any) -> Any:
    return ready(registry(), plugin)


class MethodConformance:
    """A method gives a valid coreset, the same one for the same seed, also after an interruption at any step."""

    plugin: ClassVar[Method]
    ipc: ClassVar[int] = 2
    interruptions: ClassVar[tuple[int, ...]] = (1, 3)
    """After how many steps of its loops the method is interrupted and resumed."""

    def inputs(self, data: Data) -> Inputs:
        """Return the prerequisites; override if the method needs some."""
        return toy_inputs()

    def _distil(self, folder: Path, seed: int = 0, **more: Any) -> Coreset:
        data = toy_data()
        ctx = context(folder, seed, **more)
        return _ready(self.plugin).distil(data, self.ipc, self.inputs(data), ctx)

    def test_valid(self, tmp_path: Path) -> None:
        """The coreset has the promised size, convention and finite values."""
        coreset = self._distil(tmp_path)
        assert coreset.convention == self.plugin.convention()
        assert coreset.classes == toy_data().facts.classes
        assert np.isfinite(coreset.images).all()
        if self.plugin.uses_ipc:
            assert np.bincount(coreset.class_ids).tolist() == [self.ipc] * coreset.classes

    def test_deterministic(self, tmp_path: Path) -> None:
        """The same seed gives the same bits; another seed matters exactly if the method says so."""
        first, again = self._distil(tmp_path / "a"), self._distil(tmp_path / "b")
        np.testing.assert_array_equal(first.images, again.images)
        np.testing.assert_array_equal(first.targets, again.targets)
        if not self.plugin.uses_seed:
            np.testing.assert_array_equal(first.images, self._distil(tmp_path / "c", seed=1).images)

    def test_resumes_exactly(self, tmp_path: Path) -> None:
        """Interrupted and resumed, it ends with the same bits; a method without `ctx.steps` starts over."""
        reference = self._distil(tmp_path / "reference")
        for after in self.interruptions:
            folder = tmp_path / str(after)
            ctx = _Interrupted(seed=0, attempt=folder / "first", after=after)
            seed_globals(0)
            data = toy_data()
            with contextlib.suppress(Stopped):
                _ready(self.plugin).distil(data, self.ipc, self.inputs(data), ctx)
            resumed = self._distil(folder)
            np.testing.assert_array_equal(reference.images, resumed.images, _FORGOTTEN)
            np.testing.assert_array_equal(reference.targets, resumed.targets, _FORGOTTEN)


class _Interrupted(StageContext):
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


class InferenceConformance:
    """An inference gives normalised float32 log-probabilities that do not depend on the test batch."""

    plugin: ClassVar[Inference]
    network: ClassVar[Network]
    interruptions: ClassVar[tuple[int, ...]] = (1, 7)
    """After how many steps of its loops the fit is interrupted and resumed."""

    def coreset(self) -> Coreset:
        """Return the coreset to fit; override for another convention."""
        return toy_coreset()

    def _images(self) -> Array:
        return Scale().apply(toy_data(seed=1).train.images, {})

    def _fit(self, folder: Path) -> Predictive:
        return _ready(self.plugin).fit(self.coreset(), self.network, toy_inputs(), context(folder))

    def test_accepts(self) -> None:
        """The inference accepts what this test offers it."""
        offer = Offer(toy_data().facts, 5, "toy", self.coreset().convention, self.network)
        assert self.plugin.accepts(offer) is None

    def test_log_probs(self, tmp_path: Path) -> None:
        """Rows are float32 and sum to one."""
        log_probs = self._fit(tmp_path).predict(self._images()).log_probs
        assert log_probs.dtype == np.float32
        assert log_probs.shape[-2:] == (len(self._images()), self.coreset().classes)
        np.testing.assert_allclose(np.exp(log_probs.astype(np.float64)).sum(-1), 1.0, atol=1e-4)

    def test_batch_invariance(self, tmp_path: Path) -> None:
        """Splitting or permuting the test batch moves no log-probability by more than TOLERANCE."""
        predictive, images = self._fit(tmp_path), self._images()
        whole = predictive.predict(images).log_probs
        parts = [predictive.predict(part).log_probs for part in (images[:1], images[1:8], images[8:])]
        np.testing.assert_allclose(np.concatenate(parts, axis=-2), whole, atol=TOLERANCE)
        order = np.random.default_rng(0).permutation(len(images))
        np.testing.assert_allclose(predictive.predict(images[order]).log_probs, whole[..., order, :], atol=TOLERANCE)

    def test_deterministic(self, tmp_path: Path) -> None:
        """The same seed gives the same bits."""
        first = self._fit(tmp_path / "a").predict(self._images()).log_probs
        again = self._fit(tmp_path / "b").predict(self._images()).log_probs
        np.testing.assert_array_equal(first, again)

    def test_resumes_exactly(self, tmp_path: Path) -> None:
        """A fit that was interrupted and resumed predicts the same bits."""
        reference = self._fit(tmp_path / "reference").predict(self._images()).log_probs
        for after in self.interruptions:
            folder = tmp_path / str(after)
            ctx = _Interrupted(seed=0, attempt=folder / "first", after=after)
            seed_globals(0)
            with contextlib.suppress(Stopped):
                _ready(self.plugin).fit(self.coreset(), self.network, toy_inputs(), ctx)
            resumed = self._fit(folder).predict(self._images()).log_probs
            np.testing.assert_array_equal(resumed, reference, _FORGOTTEN)

    def test_restores(self, tmp_path: Path) -> None:
        """A kept fit predicts what the fit did."""
        predictive = self._fit(tmp_path / "a")
        arrays = predictive.arrays()
        if arrays is not None:
            copies = {name: np.array(value) for name, value in arrays.items()}
            restored = self.plugin.restore(copies, self.coreset(), self.network, toy_inputs(), context(tmp_path / "b"))
            np.testing.assert_array_equal(
                predictive.predict(self._images()).log_probs, restored.predict(self._images()).log_probs
            )


class EvaluatorConformance:
    """An evaluator gives the numbers that it declares, finite and whatever the order of the examples, and figures."""

    plugin: ClassVar[Evaluator]

    def predictions(self) -> dict[SplitRef, Predictions]:
        """Return predictions for every split that the evaluator asks for; override to add members or extras."""
        data = toy_data()
        rng = np.random.default_rng(0)
        logits = rng.normal(0, 1, (len(data.labels), data.facts.classes)) + 2 * np.eye(data.facts.classes)[data.labels]
        log_probs = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
        made = Predictions(log_probs.astype(np.float32), data.labels)
        return dict.fromkeys(self.plugin.splits(data.facts), made)

    def inputs(self) -> EvaluatorInputs:
        """Return the prerequisites, reference and coreset; override if the evaluator needs some."""
        return toy_evaluator_inputs()

    def test_metrics(self) -> None:
        """Names are lower case and declared, values finite, and permuting the examples changes nothing."""
        evaluator = _ready(self.plugin)
        scores, declared = evaluator.score(self.predictions(), self.inputs()), evaluator.metrics()
        first = scores.metrics
        assert first
        assert all(name == name.lower() and np.isfinite(value) for name, value in first.items())
        assert undeclared(scores, declared) == (), "score gives metrics that metrics() does not declare"
        assert len({metric.name for metric in declared}) == len(declared), "a metric is declared twice"
        for name, figure in scores.figures.items():
            assert draw(figure_from_json(figure_to_json(figure))).startswith("<svg"), f"figure {name!r} is not drawn"
        order = np.random.default_rng(1).permutation(len(toy_data().labels))
        permuted = {
            split: Predictions(p.log_probs[order], None if p.labels is None else p.labels[order])
            for split, p in self.predictions().items()
        }
        again = evaluator.score(permuted, self.inputs()).metrics
        np.testing.assert_allclose([again[name] for name in first], list(first.values()), rtol=1e-9, atol=1e-12)


class DatasetConformance:
    """A data set's facts, fingerprints and content agree."""

    plugin: ClassVar[Dataset]
    root: ClassVar[Path] = Path()

    def test_splits(self) -> None:
        """Every split has the promised size, type and labels, and a fingerprint that stays."""
        facts = self.plugin.facts(self.root)
        assert "train" in facts.sizes
        for split, size in facts.sizes.items():
            assert len(load_split(self.plugin, self.root, split)) == size
            assert self.plugin.fingerprint(self.root, split) == self.plugin.fingerprint(self.root, split)

    def test_every_class_in_train(self) -> None:
        """No class is without training images."""
        labels = self.plugin.load(self.root, "train").labels
        assert labels is not None
        assert set(np.unique(labels)) == set(range(self.plugin.facts(self.root).classes))


class PreprocessingConformance:
    """A preprocessing maps uint8 to float32, image by image, and back."""

    plugin: ClassVar[Preprocessing]
    tolerance: ClassVar[float] = 1e-3

    def test_inverts(self, tmp_path: Path) -> None:
        """Pixels survive the round trip, and an image's result does not depend on its neighbours."""
        data = toy_data()
        arrays = self.plugin.fit(data, context(tmp_path))
        mapped = self.plugin.apply(data.train.images, arrays)
        assert mapped.dtype == np.float32
        np.testing.assert_allclose(self.plugin.apply(data.train.images[3:4], arrays), mapped[3:4], atol=1e-4)
        back = self.plugin.invert(mapped, arrays)
        np.testing.assert_allclose(back, data.train.images / 255.0, atol=self.tolerance)


def registered(kind: str, name: str) -> Any:
    """Return the class that an installed plugin registered: what a suite would get."""
    return registry().get(kind, name).cls
