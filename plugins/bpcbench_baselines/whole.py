"""The whole training set as a coreset: the ceiling for coresets of real images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from bpcbench.api import Context
from bpcbench.records import Coreset, Data, Facts, Inputs
from bpcbench_baselines.selection import Baseline, real_images


@dataclass(frozen=True)
class Whole(Baseline):
    """All training images with their labels; ipc and seed have no effect.

    It shows what the same network and inference reach without distillation. An inference with a fixed number of steps
    may need more steps here than on a small coreset.
    """

    name: ClassVar[str] = "whole"
    uses_ipc: ClassVar[bool] = False
    uses_seed: ClassVar[bool] = False
    ranked: ClassVar[bool] = False

    def operations(self, facts: Facts, ipc: int) -> float:
        """Return 0: images are only copied."""
        return 0.0

    def distil(self, data: Data, ipc: int, inputs: Inputs, ctx: Context) -> Coreset:
        """Return all training images in their original order."""
        return real_images(data, np.arange(len(data.train)), inputs)
