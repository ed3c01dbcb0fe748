"""The engine `slurm` keeps the contract of engines, on a real Slurm."""

from __future__ import annotations

from typing import ClassVar

import pytest

from bpcbench.api import Engine
from bpcbench.testing import EngineConformance
from bpcbench_slurm.engine import Slurm

pytestmark = [pytest.mark.slurm, pytest.mark.usefixtures("slurm"), pytest.mark.timeout(300)]


class TestSlurm(EngineConformance):
    plugin: ClassVar[Engine] = Slurm()
    timeout = 8.0
