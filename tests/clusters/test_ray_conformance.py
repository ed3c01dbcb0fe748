"""The engine `ray` keeps the contract of engines, on a real Ray."""

from __future__ import annotations

from typing import ClassVar

import pytest

from bpcbench.api import Engine
from bpcbench.testing import EngineConformance
from bpcbench_ray.engine import RayEngine

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_nodes"), pytest.mark.timeout(300)]


class TestRay(EngineConformance):
    plugin: ClassVar[Engine] = RayEngine()
    timeout = 8.0
