"""The conformance tests of methods."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from bpcbench.api import Method
from bpcbench.data.classes import of_classes
from bpcbench.records import Array, Coreset, Data, Inputs, Transform
from bpcbench.testing.devices import on_its_device
from bpcbench.testing.plugins import PluginConformance, above_chance, differ, not_asked, repeats, resumes
from bpcbench.testing.toys import PRESENT, Scale, context, toy_data, toy_images, toy_prerequisites


class MethodConformance(PluginConformance):
    """A method gives a valid coreset, the same one for the same seed, also after an interruption at any step.

    Its training data may lack classes, as those of a step of class-incremental learning do.
    """

    plugin: ClassVar[Method]
    ipc: ClassVar[int] = 2
    interruptions: ClassVar[tuple[int, ...]] = (1, 3)
    """After how many steps of its loops the method is interrupted and resumed, beside a number drawn at random."""
    learns: ClassVar[bool] = False
    """Whether a linear model that is fitted to the coreset must beat chance on new images."""

    def inputs(self, data: Data) -> Inputs:
        """Return preprocessing and prerequisites; override to give cheaper ones than the method asks for."""
        needs = self.ready().prerequisites(data.facts, self.ipc)
        return Inputs(Transform(Scale(), {}), toy_prerequisites(needs, data))

    def _distil(self, ctx: Any) -> Coreset:
        data = toy_data()
        return self.ready().distil(data, self.ipc, self.inputs(data), ctx)

    def _arrays(self, ctx: Any) -> dict[str, Array]:
        return self._distil(ctx).arrays()

    def test_valid(self, tmp_path: Path) -> None:
        """The coreset has the promised size, convention and finite values."""
        coreset, facts = self._distil(context(tmp_path)), toy_data().facts
        promised = self.plugin.convention()
        assert coreset.convention == promised, (
            f"the targets are {coreset.convention!r}, but convention() promises {promised!r}, by which inferences "
            "decide whether they accept the coreset"
        )
        assert coreset.classes == facts.classes, f"{coreset.classes} classes instead of {facts.classes}"
        assert coreset.images.shape[1:] == facts.shape, (
            f"images of shape {coreset.images.shape[1:]}; the data has {facts.shape}"
        )
        assert np.isfinite(coreset.images).all(), "some pixels are NaN or infinite"
        assert np.isfinite(coreset.targets).all(), "some targets are NaN or infinite"
        if self.plugin.uses_ipc and (rows := self.plugin.rows_per_class(self.ipc)) is not None:
            counts = np.bincount(coreset.class_ids, minlength=coreset.classes).tolist()
            assert counts == [rows] * coreset.classes, (
                f"images per class {counts}, asked for were {rows} of each. A method that takes no notice of it "
                "says `uses_ipc = False`"
            )

    def test_absent_classes(self, tmp_path: Path) -> None:
        """Where training data lack classes, the coreset is of those that are there, with targets over all of them."""
        data = of_classes(toy_data(), PRESENT)
        coreset = self.ready().distil(data, self.ipc, self.inputs(data), context(tmp_path))
        counts = np.bincount(coreset.class_ids, minlength=data.facts.classes)
        foreign = sorted(set(np.flatnonzero(counts).tolist()) - set(PRESENT))
        assert coreset.classes == data.facts.classes, f"{coreset.classes} classes instead of {data.facts.classes}"
        assert not foreign, f"images of the classes {foreign}, which the training data lack: data.present are there"
        assert np.isfinite(coreset.images).all(), "some pixels are NaN or infinite where classes have no images"
        assert np.isfinite(coreset.targets).all(), "some targets are NaN or infinite where classes have no images"
        if self.plugin.uses_ipc:
            there = counts[list(PRESENT)].tolist()
            assert there == [self.ipc] * len(PRESENT), f"images per class {there}, asked for were {self.ipc} of each"

    def test_deterministic(self, tmp_path: Path) -> None:
        """The same seed gives the same bits; another seed matters exactly if the method says so."""
        first = repeats(self._arrays, tmp_path)
        other = self._arrays(context(tmp_path / "c", seed=1))
        if self.plugin.uses_seed:
            assert differ(first, other), (
                "another seed gives the same coreset. Draw from ctx.seed, or say `uses_seed = False`: the coreset is "
                "then made once for all seeds, and no ± is printed that means nothing"
            )
        else:
            assert not differ(first, other), (
                "another seed gives another coreset, although the class has `uses_seed = False`"
            )

    def test_resumes_exactly(self, tmp_path: Path) -> None:
        """Interrupted at any step and resumed, it ends with the same bits."""
        resumes(self._arrays, tmp_path, self.interruptions)

    def test_device(self, tmp_path: Path) -> None:
        """It computes on the device that it is given."""
        on_its_device(self.ready(), self._distil, tmp_path)

    def test_learns(self, tmp_path: Path) -> None:
        """A linear model that is fitted to the coreset beats chance on new images."""
        if not self.learns:
            raise not_asked()
        coreset, data = self._distil(context(tmp_path)), toy_data(seed=1)
        targets = np.eye(coreset.classes)[coreset.targets] if coreset.convention == "class" else coreset.targets
        rows = coreset.images.reshape(len(coreset), -1).astype(np.float64)
        kernel = rows @ rows.T
        ridge = (0.01 * np.trace(kernel) / len(rows) + 1e-9) * np.eye(len(rows))
        solved = np.linalg.solve(kernel + ridge, targets - targets.mean(1, keepdims=True))
        new = toy_images(seed=1).reshape(len(data.labels), -1)
        above_chance(new @ rows.T @ solved, data.labels, coreset.classes)
