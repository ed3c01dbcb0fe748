"""The evaluators that this plugin offers."""

from __future__ import annotations

from bpcbench import hookimpl
from bpcbench.api import Evaluator, Prerequisite
from bpcbench_evaluators.classification import Classification
from bpcbench_evaluators.continual import Continual
from bpcbench_evaluators.corruption import CorruptionShift
from bpcbench_evaluators.linear_posterior import LinearMoments, LinearPosterior
from bpcbench_evaluators.ood import OutOfDistribution
from bpcbench_evaluators.posterior import Posterior

BPCBENCH_API = 1


@hookimpl
def bpcbench_evaluators() -> list[type[Evaluator]]:
    """Return the evaluators."""
    return [Classification, Continual, CorruptionShift, OutOfDistribution, Posterior, LinearPosterior]


@hookimpl
def bpcbench_prerequisites() -> list[type[Prerequisite]]:
    """Return what the evaluators need."""
    return [LinearMoments]
