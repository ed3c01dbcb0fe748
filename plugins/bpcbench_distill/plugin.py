"""The hooks of bpcbench_distill."""

from __future__ import annotations

from bpcbench import Inference, Method, hookimpl
from bpcbench_distill.inference import RegressionInference
from bpcbench_distill.method import FRePo
from bpcbench_distill.rcig import RCIG
from bpcbench_distill.rcig_inference import RCIGInference

BPCBENCH_API = 1


@hookimpl
def bpcbench_methods() -> list[type[Method]]:
    """Return FRePo and RCIG."""
    return [FRePo, RCIG]


@hookimpl
def bpcbench_inferences() -> list[type[Inference]]:
    """Return FRePo's and RCIG's inferences."""
    return [RegressionInference, RCIGInference]
