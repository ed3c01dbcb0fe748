"""The conformance tests of prerequisites."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from bpcbench.api import Prerequisite
from bpcbench.records import FINAL, Array, Inputs, Transform
from bpcbench.testing.devices import on_its_device
from bpcbench.testing.plugins import PluginConformance, repeats, resumes
from bpcbench.testing.toys import Scale, toy_data, toy_prerequisites


class PrerequisiteConformance(PluginConformance):
    """A prerequisite gives finite arrays, the same ones for the same seed, also after an interruption."""

    plugin: ClassVar[Prerequisite]
    member: ClassVar[str] = FINAL
    interruptions: ClassVar[tuple[int, ...]] = (1, 3)
    """After how many steps of its loops it is interrupted and resumed, beside a number drawn at random."""

    def inputs(self) -> Inputs:
        """Return preprocessing and prerequisites; override to give others."""
        data = toy_data()
        return Inputs(Transform(Scale(), {}), toy_prerequisites(self.ready().prerequisites(data.facts), data))

    def _arrays(self, ctx: Any) -> dict[str, Array]:
        made = self.ready().make(toy_data(), self.inputs(), ctx, self.member)
        return {name: np.asarray(value) for name, value in made.items()}

    def test_deterministic(self, tmp_path: Path) -> None:
        """The same seed gives the same bits, and they are finite."""
        for name, array in repeats(self._arrays, tmp_path).items():
            assert array.dtype.kind != "f" or np.isfinite(array).all(), f"{name} has values that are NaN or infinite"

    def test_resumes_exactly(self, tmp_path: Path) -> None:
        """Interrupted at any step and resumed, it ends with the same bits."""
        resumes(self._arrays, tmp_path, self.interruptions)

    def test_device(self, tmp_path: Path) -> None:
        """It computes on the device that it is given."""
        on_its_device(self.ready(), self._arrays, tmp_path)
