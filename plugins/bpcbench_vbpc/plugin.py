"""The hooks of bpcbench_vbpc."""

from __future__ import annotations

from bpcbench import Inference, Method, hookimpl
from bpcbench.records import Publication
from bpcbench_vbpc.inference import VariationalInference
from bpcbench_vbpc.method import VBPC

BPCBENCH_API = 1


@hookimpl
def bpcbench_methods() -> list[type[Method]]:
    """Return VBPC."""
    return [VBPC]


@hookimpl
def bpcbench_inferences() -> list[type[Inference]]:
    """Return VBPC's inference."""
    return [VariationalInference]


@hookimpl
def bpcbench_published() -> list[Publication]:
    """Register the paper's printed numbers."""
    from bpcbench_vbpc.published import publication

    return [publication()]
