"""A suite: which data sets, images per class, methods, inferences, networks, seeds and evaluators are compared.

`load` reads YAML (with `extends:` and overrides) and either returns a Suite in which every plugin is built and every
option has its declared type, or raises Mistakes with everything that is wrong, each with its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bpcbench.api import Dataset, Engine, Evaluator, Inference, Method, Network, Preprocessing

PROTOCOLS = (1,)
AXES = {
    "datasets": "dataset",
    "methods": "method",
    "preprocessing": "preprocessing",
    "inferences": "inference",
    "networks": "network",
    "evaluators": "evaluator",
}
"""The keys whose labels stand for plugins, and the kind of each."""
NATIVE = "native"
KEYS = {
    "name": "the experiment's name; default: the file's",
    "description": "one line for people",
    "protocol": "version of the comparison rules (docs/protocol.md)",
    "extends": "a suite, or several, to start from",
    "datasets": "labels of data sets, with options",
    "ipc": "images per class, a list of integers",
    "methods": "labels of methods, with options",
    "preprocessing": "labels of preprocessings; `default` is used by every method that names no other",
    "inferences": "labels of inferences, with options; `native` is each method's own",
    "networks": "labels of evaluation networks, with options; `native` is each method's own",
    "evaluators": "labels of evaluators, with options",
    "seeds": "{distil: n, evaluate: m}: coresets per cell, evaluations per coreset",
    "split": "test, or validation (a tenth of train, held out)",
    "examples": "evaluate a fixed stratified subset of so many images of every split; null: all of them",
    "cases": "list of {when: {dataset, ipc}, set: {KEY: value}}: options for some cells only",
    "exclude": "list of {dataset, ipc, method, inference, network} patterns that are left out",
    "threads": "CPU threads per stage, part of reproducibility, never derived from --jobs",
    "precision": "float32, or another precision that plugins document",
    "device": "auto, cpu, cuda, ...",
    "timeout": "limit per stage: seconds, or 30m, 2h; null: no limit",
    "engine": "how stages are run: a name, or a mapping with `plugin` and options",
    "metrics": "the metrics that the table shows, in order",
    "tune": "{trials, seed, objective, inference: {METHOD: LABEL}, space: {METHOD: {OPTION: values}}}: what is tried",
    "tuned": "written by `bpcbench tune`: what was tried for each method; tables print the number",
}


@dataclass(frozen=True)
class MethodChoice:
    """A built method and the label of the preprocessing it uses."""

    plugin: Method
    preprocessing: str


@dataclass(frozen=True)
class Setting:
    """The plugins as they are for one data set and one number of images per class."""

    methods: Mapping[str, MethodChoice]
    preprocessing: Mapping[str, Preprocessing]
    inferences: Mapping[str, Inference | None]
    networks: Mapping[str, Network | None]


@dataclass(frozen=True)
class Suite:
    """A validated suite; all plugins are built."""

    name: str
    description: str
    protocol: int
    datasets: Mapping[str, Dataset]
    ipc: tuple[int, ...]
    settings: Mapping[tuple[str, int], Setting]
    evaluators: Mapping[str, Evaluator]
    distil_seeds: int
    evaluate_seeds: int
    split: str = "test"
    examples: int | None = None
    exclude: tuple[Mapping[str, tuple[Any, ...]], ...] = ()
    threads: int = 1
    precision: str = "float32"
    device: str = "auto"
    timeout: float | None = None
    engine: Engine | None = None
    metrics: tuple[str, ...] = ("acc", "nll")
    tried: Mapping[str, int] = field(default_factory=dict)
    """Settings that were tried on the validation split, by method."""
    source: Mapping[str, Any] = field(default_factory=dict)

    def excluded(self, **cell: Any) -> bool:
        """Say whether a pattern of `exclude` matches the cell."""
        return any(all(cell[key] in allowed for key, allowed in pattern.items()) for pattern in self.exclude)
