"""A suite: which data sets, images per class, methods, inferences, networks, seeds and evaluators are compared.

`load` reads YAML (with `extends:` and overrides) and either returns a Suite in which every plugin is built and every
option has its declared type, or raises Mistakes with everything that is wrong, each with its place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bpcbench import document
from bpcbench.api import Dataset, Engine, Evaluator, Inference, Method, Network, Preprocessing
from bpcbench.document import Document
from bpcbench.errors import Mistake, Mistakes, UserError, unknown
from bpcbench.plugins import Registry

PROTOCOLS = (1,)
AXES = {
    "datasets": "dataset",
    "methods": "method",
    "preprocessing": "prerequisite",
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


def shipped() -> dict[str, Path]:
    """Return the suites that come with bpcbench, by name: from the wheel, or from the checkout if editable."""
    package = Path(__file__).parent
    for folder in (package / "suites", package.parent / "suites"):
        if folder.is_dir():
            return {str(p.relative_to(folder).with_suffix("")): p for p in sorted(folder.rglob("*.yaml"))}
    return {}


def locate(registry: Registry, name: str, beside: Path | None = None) -> Path:
    """Return the file of a suite: a path (relative to `beside`), a plugin's `plugin:name`, or a shipped name."""
    if name in registry.suites:
        return registry.suites[name]
    ours = shipped()
    if name in ours:
        return ours[name]
    if name.endswith((".yaml", ".yml")) or "/" in name:
        path = Path(name) if beside is None or Path(name).is_absolute() else beside / name
        if not path.exists() and name.startswith("suites/") and name[7:].removesuffix(".yaml") in ours:
            return ours[name[7:].removesuffix(".yaml")]
        return path
    raise UserError(unknown("suite", name, [*ours, *registry.suites]) + "; a path must contain / or end in .yaml")


def read(registry: Registry, name: str, overrides: Sequence[str] = ()) -> tuple[Document, Path]:
    """Read a suite with everything it extends and the overrides, not yet validated."""
    path = locate(registry, name)
    return document.override(_extended(registry, path, ()), list(overrides)), path


def _extended(registry: Registry, path: Path, seen: tuple[Path, ...]) -> Document:
    if path.resolve() in seen:
        raise UserError(f"{path}: extends itself, by way of {' -> '.join(str(p) for p in seen)}")
    own = document.read(path)
    result = Document({})
    for parent in _parents(registry, own, path):
        result = _laid_over(result, _extended(registry, parent, (*seen, path.resolve())))
    result.values.pop("name", None)
    return _laid_over(result, own)


def _laid_over(below: Document, above: Document) -> Document:
    """Merge suites: `cases` follow each other, the later ones winning, so that presets of several methods combine."""
    first, second = (doc.values.get("cases") for doc in (below, above))
    if not (isinstance(first, list) and isinstance(second, list)):
        return document.merge(below, above)
    shifted = {
        ("cases", str(int(path[1]) + len(first)), *path[2:]) if path[0] == "cases" and len(path) > 1 else path: place
        for path, place in above.places.items()
    }
    return document.merge(below, Document({**above.values, "cases": [*first, *second]}, {**below.places, **shifted}))


def _parents(registry: Registry, own: Document, path: Path) -> list[Path]:
    names = own.values.get("extends") or []
    names = [names] if isinstance(names, str) else names
    place = own.place(("extends",))
    line = place.line if place else None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        message = f"expected a suite's name or a list of them, got {names!r}"
        raise Mistakes(str(path), [Mistake("extends", message, line, str(path))])
    found, mistakes = [], []
    for name in names:
        try:
            found.append(locate(registry, name, path.parent))
            if not found[-1].exists():
                mistakes.append(Mistake("extends", f"{found[-1]}: no such file", line, str(path)))
        except UserError as error:
            mistakes.append(Mistake("extends", str(error), line, str(path)))
    if mistakes:
        raise Mistakes(str(path), mistakes)
    return found


def load(registry: Registry, name: str, overrides: Sequence[str] = ()) -> Suite:
    """Read and validate a suite; raise Mistakes with everything that is wrong with it."""
    from bpcbench.validation import validate

    doc, path = read(registry, name, overrides)
    return validate(registry, doc, path)
