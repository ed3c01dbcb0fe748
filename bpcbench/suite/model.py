"""A validated suite: the data sets, images per class, methods, inferences, networks, seeds and evaluators it compares.

Every plugin is built and every option has its declared type.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bpcbench.api import Dataset, Engine, Evaluator, Inference, Method, Network, Preprocessing
from bpcbench.suite.keys import PROTOCOLS
from bpcbench.suite.tasks import Tasks

NATIVE = "native"
"""The label of each method's own inference and network."""


@dataclass(frozen=True)
class MethodChoice:
    """A built method and the label of the preprocessing it uses."""

    plugin: Method
    preprocessing: str


@dataclass(frozen=True)
class Setting:
    """The plugins, with their options, for one data set and one number of images per class."""

    methods: Mapping[str, MethodChoice]
    preprocessing: Mapping[str, Preprocessing]
    inferences: Mapping[str, Inference | None]
    networks: Mapping[str, Network | None]


@dataclass(frozen=True)
class Suite:
    """A validated suite; all plugins are built."""

    name: str
    datasets: Mapping[str, Dataset]
    ipc: tuple[int, ...]
    settings: Mapping[tuple[str, int], Setting]
    evaluators: Mapping[str, Evaluator]
    description: str = ""
    protocol: int = PROTOCOLS[-1]
    tasks: Tasks | None = None
    distil_seeds: int = 1
    evaluate_seeds: int = 1
    split: str = "test"
    examples: int | None = None
    exclude: tuple[Mapping[str, tuple[Any, ...]], ...] = ()
    threads: int = 1
    precision: str = "float32"
    deterministic: bool = False
    device: str = "auto"
    timeout: float | None = None
    engine: Engine | None = None
    metrics: tuple[str, ...] = ("acc", "nll")
    tried: Mapping[str, int] = field(default_factory=dict)
    """How many settings were tried on the validation split, by method."""
    source: Mapping[str, Any] = field(default_factory=dict)
    """The merged document, with the protocol and the plugins that are defaults."""
    notes: tuple[str, ...] = ()
    """What overrides changed that nobody may have meant."""

    @property
    def numerics(self) -> str:
        """What stages are keyed by: the precision, and `+deterministic` where the suite asks for it."""
        return f"{self.precision}+deterministic" if self.deterministic else self.precision

    def excluded(self, **cell: Any) -> bool:
        """Return whether a pattern of `exclude` matches the cell."""
        return any(all(cell[key] in allowed for key, allowed in pattern.items()) for pattern in self.exclude)
