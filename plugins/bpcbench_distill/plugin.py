"""The hooks of bpcbench_distill."""

from __future__ import annotations

from bpcbench import Inference, Method, hookimpl
from bpcbench_distill.inference import RegressionInference
from bpcbench_distill.method import FRePo

BPCBENCH_API = 1


@hookimpl
def bpcbench_methods() -> list[type[Method]]:
    """Return FRePo."""
    return [FRePo]


@hookimpl
def bpcbench_inferences() -> list[type[Inference]]:
    """Return FRePo's inference."""
    return [RegressionInference]
