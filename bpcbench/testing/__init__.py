"""Conformance tests for anyone's plugin, and the toy data they run on.

Subclass the class for your kind of plugin in a pytest file, set `plugin`, and every rule of the contract is tested:

    from bpcbench.testing import MethodConformance

    class TestMyMethod(MethodConformance):
        plugin = MyMethod(steps=20)

`bpcbench check NAME` runs the same tests without a file.
"""

from __future__ import annotations

from typing import Any

from bpcbench.registry.discovery import registry
from bpcbench.testing.checking import CONFORMANCE, Outcome, check
from bpcbench.testing.datasets import DatasetConformance
from bpcbench.testing.engines import EngineConformance
from bpcbench.testing.evaluators import EvaluatorConformance
from bpcbench.testing.inferences import TOLERANCE, InferenceConformance
from bpcbench.testing.methods import MethodConformance
from bpcbench.testing.networks import NetworkConformance
from bpcbench.testing.plugins import PluginConformance
from bpcbench.testing.preprocessings import PreprocessingConformance
from bpcbench.testing.prerequisites import PrerequisiteConformance
from bpcbench.testing.toys import Scale, context, toy_coreset, toy_data, toy_evaluator_inputs, toy_inputs

__all__ = [
    "CONFORMANCE",
    "TOLERANCE",
    "DatasetConformance",
    "EngineConformance",
    "EvaluatorConformance",
    "InferenceConformance",
    "MethodConformance",
    "NetworkConformance",
    "Outcome",
    "PluginConformance",
    "PreprocessingConformance",
    "PrerequisiteConformance",
    "Scale",
    "check",
    "context",
    "registered",
    "toy_coreset",
    "toy_data",
    "toy_evaluator_inputs",
    "toy_inputs",
]


def registered(kind: str, name: str) -> Any:
    """Return the class that an installed plugin registered: what a suite would get."""
    return registry().get(kind, name).cls
