"""The conformance tests of inferences."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar
from unittest import SkipTest

import numpy as np

from bpcbench.api import Inference, Network, Predictive
from bpcbench.errors import UserError
from bpcbench.records import Array, Coreset, Inputs, Offer, Transform
from bpcbench.testing.devices import on_its_device
from bpcbench.testing.plugins import PluginConformance, above_chance, differ, not_asked, repeats, resumes, same
from bpcbench.testing.toys import (
    PRESENT,
    Scale,
    context,
    toy_coreset,
    toy_data,
    toy_images,
    toy_prerequisites,
    weighted,
)

TOLERANCE = 1e-5
"""How much a log-probability may move when the test batch is split or permuted."""
TOGETHER_TOLERANCE = 1e-3
"""How much a log-probability may move when seeds are fitted together."""
_ALONE = (
    "an image's prediction depends on the other images of its batch. Predict in evaluation mode, with statistics of "
    "the coreset and none of the test batch"
)


class InferenceConformance(PluginConformance):
    """An inference gives normalised float32 log-probabilities that do not depend on the test batch.

    They have a column for every class, also for those of which the coreset has no images.
    """

    plugin: ClassVar[Inference]
    network: ClassVar[Network]
    interruptions: ClassVar[tuple[int, ...]] = (1, 7)
    """After how many steps of its loops the fit is interrupted and resumed, beside a number drawn at random."""
    learns: ClassVar[bool] = False
    """Whether the predictive must beat chance on new images."""

    def coreset(self) -> Coreset:
        """Return the coreset to fit; override for another convention."""
        return toy_coreset()

    def inputs(self) -> Inputs:
        """Return preprocessing and prerequisites; override to give cheaper ones than the inference asks for."""
        data = toy_data()
        return Inputs(Transform(Scale(), {}), toy_prerequisites(self.ready().prerequisites(data.facts), data))

    def _images(self) -> Array:
        return toy_images()

    def _fit(self, ctx: Any) -> Predictive:
        return self.ready().fit(self.coreset(), self.network, self.inputs(), ctx)

    def _arrays(self, ctx: Any) -> dict[str, Array]:
        return {"log_probs": self._fit(ctx).predict(self._images()).log_probs}

    def test_accepts(self) -> None:
        """The inference accepts what this test offers it."""
        offer = Offer(toy_data().facts, 5, "toy", self.coreset().convention, self.network)
        reason = self.plugin.accepts(offer)
        assert reason is None, f"it refuses the coreset and the network of this test: {reason}. Give the test others"

    def test_log_probs(self, tmp_path: Path) -> None:
        """Rows are float32 and sum to one."""
        log_probs = self._fit(context(tmp_path)).predict(self._images()).log_probs
        wanted = (len(self._images()), self.coreset().classes)
        assert log_probs.dtype == np.float32, f"log-probabilities are {log_probs.dtype}, not float32"
        assert log_probs.shape[-2:] == wanted, (
            f"log-probabilities have shape {log_probs.shape}; expected {wanted}, or (members, {wanted[0]}, {wanted[1]})"
        )
        sums = np.exp(log_probs.astype(np.float64)).sum(-1)
        assert np.abs(sums - 1).max() < 1e-4, (
            f"probabilities sum to {sums.min():.4g} ... {sums.max():.4g}, not to 1: return log_softmax of the logits"
        )

    def test_absent_classes(self, tmp_path: Path) -> None:
        """A coreset that lacks classes, as the memory after a step of class-incremental learning, can be fitted."""
        whole = self.coreset()
        rows = np.isin(whole.class_ids, PRESENT)
        weights = None if whole.weights is None else whole.weights[rows]
        images, targets, ids = whole.images[rows], whole.targets[rows], whole.class_ids[rows]
        part = replace(whole, images=images, targets=targets, class_ids=ids, weights=weights)
        predictive = self.ready().fit(part, self.network, self.inputs(), context(tmp_path))
        log_probs = predictive.predict(self._images()).log_probs
        wanted = (len(self._images()), whole.classes)
        assert log_probs.shape[-2:] == wanted, f"log-probabilities have shape {log_probs.shape}; expected {wanted}"
        assert not np.isnan(log_probs).any(), "log-probabilities are NaN where a class has no images in the coreset"
        sums = np.exp(log_probs.astype(np.float64)).sum(-1)
        assert np.abs(sums - 1).max() < 1e-4, f"probabilities sum to {sums.min():.4g} ... {sums.max():.4g}, not to 1"

    def test_batch_invariance(self, tmp_path: Path) -> None:
        """Splitting or permuting the test batch moves no log-probability by more than TOLERANCE."""
        predictive, images = self._fit(context(tmp_path)), self._images()
        whole = predictive.predict(images).log_probs
        parts = [predictive.predict(part).log_probs for part in (images[:1], images[1:8], images[8:])]
        np.testing.assert_allclose(np.concatenate(parts, axis=-2), whole, atol=TOLERANCE, err_msg=_ALONE)
        order = np.random.default_rng(0).permutation(len(images))
        permuted = predictive.predict(images[order]).log_probs
        np.testing.assert_allclose(permuted, whole[..., order, :], atol=TOLERANCE, err_msg=_ALONE)

    def test_deterministic(self, tmp_path: Path) -> None:
        """The same seed gives the same bits."""
        repeats(self._arrays, tmp_path)

    def test_other_seed(self, tmp_path: Path) -> None:
        """Another seed gives other predictions."""
        if not differ(self._arrays(context(tmp_path / "a")), self._arrays(context(tmp_path / "b", seed=1))):
            raise SkipTest("another seed gives the same predictions: right if it draws nothing, else use ctx.seed")

    def test_resumes_exactly(self, tmp_path: Path) -> None:
        """A fit that was interrupted at any step and resumed predicts the same bits."""
        resumes(self._arrays, tmp_path, self.interruptions)

    def test_restores(self, tmp_path: Path) -> None:
        """A kept fit predicts what the fit did."""
        predictive = self._fit(context(tmp_path / "a"))
        arrays = predictive.arrays()
        if arrays is None:
            raise SkipTest("arrays() gives None, so no fit is kept: it is made again from its seed")
        copies = {name: np.array(value) for name, value in arrays.items()}
        restored = self.ready().restore(copies, self.coreset(), self.network, self.inputs(), context(tmp_path / "b"))
        before, after = ({"log_probs": p.predict(self._images()).log_probs} for p in (predictive, restored))
        same(before, after, "restore(arrays()) predicts other bits than the fit: keep all that the predictive uses")

    def _together(self, ctx: Any) -> list[Predictive]:
        """Return the predictives of up to three seeds from 0 on, or skip the test."""
        plugin = self.ready()
        if plugin.seeds_together() == 1:
            raise SkipTest("it fits one seed at a time: seeds_together() is 1")
        seeds = list(range(min(3, plugin.seeds_together())))
        return list(plugin.fit_together(self.coreset(), self.network, self.inputs(), ctx, seeds))

    def test_together_is_an_option(self) -> None:
        """Seeds are fitted together if an option asks for it: by default each is alone."""
        if self.plugin.seeds_together() == 1:
            raise SkipTest("it fits one seed at a time: seeds_together() is 1")
        try:
            plain = type(self.plugin)()
        except (TypeError, ValueError) as reason:
            raise SkipTest(f"it cannot be made without options: {reason}") from None
        assert plain.seeds_together() == 1, (
            f"seeds_together() is {plain.seeds_together()} without options. Let an option that is part of keys and 1 "
            "by default say how many: bits may depend on it, and keys must tell"
        )

    def test_together(self, tmp_path: Path) -> None:
        """Seeds that are fitted together predict what each does alone, up to rounding, also when restored."""
        for seed, predictive in enumerate(self._together(context(tmp_path / "together"))):
            arrays = predictive.arrays()
            assert arrays is not None, "arrays() gives None, so the other seeds cannot have what was fitted for them"
            ctx = context(tmp_path / f"restored-{seed}", seed=seed)
            copies = {name: np.array(value) for name, value in arrays.items()}
            restored = self.ready().restore(copies, self.coreset(), self.network, self.inputs(), ctx)
            alone = self._fit(context(tmp_path / f"alone-{seed}", seed=seed))
            wanted, *found = (one.predict(self._images()).log_probs for one in (alone, predictive, restored))
            for log_probs in found:
                message = f"seed {seed} predicts something else when it is fitted together with others"
                np.testing.assert_allclose(log_probs, wanted, rtol=0, atol=TOGETHER_TOLERANCE, err_msg=message)

    def test_together_resumes_exactly(self, tmp_path: Path) -> None:
        """A fit of several seeds that was interrupted at any step and resumed predicts the same bits."""

        def arrays(ctx: Any) -> dict[str, Array]:
            found = enumerate(self._together(ctx))
            return {f"log_probs.{seed}": one.predict(self._images()).log_probs for seed, one in found}

        resumes(arrays, tmp_path, self.interruptions)

    def test_weights(self, tmp_path: Path) -> None:
        """The weights of rows matter, or the inference refuses them with a reason."""
        plain = self._arrays(context(tmp_path / "a"))
        made = weighted(self.coreset())
        try:
            fitted = self.ready().fit(made, self.network, self.inputs(), context(tmp_path / "b"))
        except (ValueError, UserError) as reason:
            refusal = str(reason)
        else:
            refusal = ""
        if refusal:
            assert "weight" in refusal, f"a coreset with weights is refused without naming them: {refusal}"
            raise SkipTest(f"it refuses weights: {refusal}")
        other = {"log_probs": fitted.predict(self._images()).log_probs}
        assert differ(plain, other), (
            "Coreset.weights change nothing. Let a row of weight w count like w rows, or raise ValueError in fit for a "
            "coreset with weights"
        )

    def test_device(self, tmp_path: Path) -> None:
        """It computes on the device that it is given."""
        on_its_device(self.ready(), self._arrays, tmp_path)

    def test_learns(self, tmp_path: Path) -> None:
        """It beats chance on new images."""
        if not self.learns:
            raise not_asked()
        log_probs = self._arrays(context(tmp_path))["log_probs"]
        probs = np.exp(log_probs.astype(np.float64))
        above_chance(probs if probs.ndim == 2 else probs.mean(0), toy_data(seed=1).labels, self.coreset().classes)
