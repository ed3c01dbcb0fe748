"""The hooks of bpcbench_baselines."""

from __future__ import annotations

from bpcbench import hookimpl
from bpcbench.api import Method
from bpcbench_baselines.file import File
from bpcbench_baselines.herding import Herding
from bpcbench_baselines.kmeans import KMeans
from bpcbench_baselines.random_choice import RandomChoice
from bpcbench_baselines.whole import Whole

BPCBENCH_API = 1


@hookimpl
def bpcbench_methods() -> list[type[Method]]:
    """Return the baselines."""
    return [RandomChoice, Herding, KMeans, Whole, File]
