"""bpcbench: a benchmark harness for Bayesian pseudo-coresets.

Plugin authors import everything from here: the classes of `bpcbench.api`, the records of `bpcbench.records`, and
`hookimpl`. Users of the Python interface call `run`, `results` and `load_coreset`. No framework is imported.
"""

from __future__ import annotations

from bpcbench.api import (
    Context,
    Dataset,
    Engine,
    Evaluator,
    Inference,
    Method,
    Network,
    Plugin,
    Predictive,
    Preprocessing,
    Prerequisite,
    option,
    refers,
)
from bpcbench.errors import BpcbenchError, MissingData, Mistakes, UserError
from bpcbench.hooks import API_VERSION, hookimpl
from bpcbench.records import (
    FINAL,
    Array,
    Arrays,
    Convention,
    Coreset,
    Data,
    Download,
    Facts,
    Given,
    Made,
    Metric,
    Native,
    Need,
    Offer,
    Predicted,
    Predictions,
    Recipe,
    Ref,
    Reference,
    Scores,
    Split,
    SplitRef,
    StageEvent,
    Transform,
)
from bpcbench.running.queue import Execute, Outcome, Stage, Task, Work
from bpcbench.sampling import per_class, stratified_holdout
from bpcbench.session import load_coreset, results, run

__version__ = "0.1.0"

__all__ = [
    "API_VERSION",
    "FINAL",
    "Array",
    "Arrays",
    "BpcbenchError",
    "Context",
    "Convention",
    "Coreset",
    "Data",
    "Dataset",
    "Download",
    "Engine",
    "Evaluator",
    "Execute",
    "Facts",
    "Given",
    "Inference",
    "Made",
    "Method",
    "Metric",
    "MissingData",
    "Mistakes",
    "Native",
    "Need",
    "Network",
    "Offer",
    "Outcome",
    "Plugin",
    "Predicted",
    "Predictions",
    "Predictive",
    "Preprocessing",
    "Prerequisite",
    "Recipe",
    "Ref",
    "Reference",
    "Scores",
    "Split",
    "SplitRef",
    "Stage",
    "StageEvent",
    "Task",
    "Transform",
    "UserError",
    "Work",
    "hookimpl",
    "load_coreset",
    "option",
    "per_class",
    "refers",
    "results",
    "run",
    "stratified_holdout",
]
