"""The hooks of bpcbench_bpc."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from bpcbench import hookimpl
from bpcbench.api import Method, Prerequisite
from bpcbench_bpc.contrastive import Contrastive
from bpcbench_bpc.forward_kl import ForwardKL
from bpcbench_bpc.function_space import FunctionSpace
from bpcbench_bpc.reverse_kl import ReverseKL
from bpcbench_bpc.trajectories import Trajectories
from bpcbench_bpc.wasserstein import Wasserstein

BPCBENCH_API = 1


@hookimpl
def bpcbench_prerequisites() -> list[type[Prerequisite]]:
    """Return the expert trajectories."""
    return [Trajectories]


@hookimpl
def bpcbench_methods() -> list[type[Method]]:
    """Return the methods of this distribution."""
    return [ReverseKL, ForwardKL, Wasserstein, Contrastive, FunctionSpace]


@hookimpl
def bpcbench_suites() -> Mapping[str, Path]:
    """Return the suites of this distribution."""
    return {path.stem: path for path in sorted((Path(__file__).parent / "suites").glob("*.yaml"))}
