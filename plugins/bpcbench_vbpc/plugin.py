"""What this package brings to bpcbench."""

from __future__ import annotations

from bpcbench import Inference, Method, hookimpl
from bpcbench.records import Publication
from bpcbench_vbpc.inference import VariationalInference
from bpcbench_vbpc.method import VBPC

BPCBENCH_API = 1


@hookimpl
def bpcbench_methods() -> list[type[Method]]:
    """Register the method."""
    return [VBPC]


@hookimpl
def bpcbench_inferences() -> list[type[Inference]]:
    """Register its inference."""
    return [VariationalInference]


@hookimpl
def bpcbench_published() -> list[Publication]:
    """Register the paper's printed numbers."""
    from bpcbench_vbpc.published import publication

    return [publication()]
