"""The evaluators that this plugin offers."""

from __future__ import annotations

from bpcbench import hookimpl
from bpcbench_evaluators.classification import Classification

BPCBENCH_API = 1


@hookimpl
def bpcbench_evaluators() -> list[type[Classification]]:
    """Return the evaluators."""
    return [Classification]
