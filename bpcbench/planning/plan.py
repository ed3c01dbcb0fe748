"""The plan of a suite: its cells, and the stages they ask for, cached or to do."""

from __future__ import annotations

import contextlib
import gc
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path

from bpcbench.errors import BpcbenchError, MissingData, Mistake, Mistakes, PluginError, UserError
from bpcbench.planning.cells import Cell, Snapshots, cells
from bpcbench.planning.datasets import ResolvedDataset, resolve_dataset
from bpcbench.planning.lookup import Lookup
from bpcbench.planning.planner import DeviceMemory, PlannedStage, Planner
from bpcbench.planning.sources import Sources
from bpcbench.planning.status import demand, without_data
from bpcbench.registry.discovery import Registry
from bpcbench.store.store import Store
from bpcbench.suite.model import Suite
from bpcbench.suite.tasks import task_classes


@dataclass(frozen=True)
class Plan:
    """All cells of a suite, and the stages they ask for, in an order in which they can be run.

    `missing` says what to place where, by the key of the suite that asks for it (`datasets.LABEL`).
    """

    suite: Suite
    cells: tuple[Cell, ...]
    stages: tuple[PlannedStage, ...]
    missing: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """What evaluators do without, and why."""
    datasets: Mapping[str, ResolvedDataset] = field(default_factory=dict)
    declared: Mapping[str, str] = field(default_factory=dict)
    """What is wrong with data of which only declared facts are known, by the name of the data set."""

    def __repr__(self) -> str:
        cells = sum(not cell.skipped for cell in self.cells)
        name, stages, to_do = self.suite.name, len(self.stages), len(self.to_do())
        return f"Plan({name!r}: {cells:,} cells, {stages:,} stages, {to_do:,} to do)"

    def _repr_html_(self) -> str:
        """Return a table for notebooks: how many stages of each kind are cached and to do, and what is skipped."""
        counts = Counter((planned.kind, planned.status) for planned in self.stages)
        kinds = dict.fromkeys(kind for kind, _ in counts)
        states = dict.fromkeys(state for _, state in counts)
        rows = [(kind, *(f"{counts[kind, state]:,}" for state in states)) for kind in kinds]
        head = "".join(f"<th>{escape(name)}</th>" for name in ("stages", *states))
        body = "".join("<tr>" + "".join(f"<td>{escape(word)}</td>" for word in row) + "</tr>" for row in rows)
        skipped = "".join(f"<li>{count:,} cells skipped: {escape(why)}</li>" for why, count in self.skipped().items())
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        return f"<p>{escape(repr(self))}</p>{table}{f'<ul>{skipped}</ul>' if skipped else ''}"

    def to_do(self) -> list[PlannedStage]:
        """Return the stages that must be run."""
        return [planned for planned in self.stages if planned.status == "to do"]

    def exhausted(self) -> dict[str, list[PlannedStage]]:
        """Return the stages to do that ran out of memory when they were last run, by message."""
        found: dict[str, list[PlannedStage]] = {}
        for planned in self.to_do():
            if planned.exhausted:
                found.setdefault(planned.exhausted, []).append(planned)
        return found

    def stale(self) -> list[str]:
        """Return the names of the plugins of which cached results were made by other code, for `--recompute`."""
        changed = (planned for planned in self.stages if planned.status == "cached (code changed)")
        return sorted({planned.plugin for planned in changed})

    def skipped(self) -> Counter[str]:
        """Return how many cells are skipped for each reason."""
        return Counter(cell.skipped for cell in self.cells if cell.skipped)


def make(
    registry: Registry,
    suite: Suite,
    store: Store | None,
    data: Path,
    *,
    skip_missing: bool = False,
    unverified: bool = False,
    recompute: Iterable[str] = (),
    snapshots: Snapshots | None = None,
    declare: bool = False,
    memory: DeviceMemory | None = None,
    exhausted: Mapping[str, str] | None = None,
) -> Plan:
    """Return the plan of a suite; raise Mistakes if data are missing (unless skipped) or nothing is left to do.

    Data that are not the official ones are refused unless `unverified` says that they may be used. With `snapshots`,
    which says at which steps each coreset was kept, these are evaluated too. With `declare`, what data sets declare of
    themselves stands in for data that are absent or refused: such a plan cannot be run.
    Cells that need more than `memory` are skipped. `exhausted` has the messages of stages that ran out of memory.
    """
    try:
        sources = Sources(Lookup(registry), data, unverified, declare)
        with _collector_paused():
            made = _make(registry, suite, store, sources, skip_missing, set(recompute), snapshots, memory)
        noted = (replace(planned, exhausted=(exhausted or {}).get(planned.id, "")) for planned in made.stages)
        return replace(made, stages=tuple(noted)) if exhausted else made
    except (BpcbenchError, KeyboardInterrupt):
        raise
    except Exception as error:
        # Planning calls plugins: their facts, skip, native and prerequisites.
        where = traceback.extract_tb(error.__traceback__)[-1]
        what = f"{type(error).__name__}: {error} ({where.filename}:{where.lineno}, in {where.name})"
        raise PluginError(f"{suite.name} cannot be planned: {what}") from error


@contextlib.contextmanager
def _collector_paused() -> Iterator[None]:
    """Keep the cyclic garbage collector from scanning what only grows: that is half the time of a large plan."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _make(
    registry: Registry,
    suite: Suite,
    store: Store | None,
    sources: Sources,
    skip_missing: bool,
    recompute: set[str],
    snapshots: Snapshots | None,
    memory: DeviceMemory | None,
) -> Plan:
    lookup = sources.lookup
    datasets: dict[str, ResolvedDataset | str] = {}
    missing: dict[str, str] = {}
    for label, plugin in suite.datasets.items():
        try:
            dataset = datasets[label] = resolve_dataset(lookup, suite, sources, plugin)
        except MissingData as error:
            datasets[label] = missing[f"datasets.{label}"] = str(error)
        else:
            missing |= {f"evaluators.{name}": text for name, text in dataset.missing.items()}
    if missing and not skip_missing:
        raise Mistakes(
            suite.name, [Mistake(path, f"{text} (or run with --skip-missing)") for path, text in missing.items()]
        )
    _check_tasks(suite, [one for one in datasets.values() if isinstance(one, ResolvedDataset)])
    if memory is not None and sources.stand_ins and not memory.given:
        memory = None  # what is planned from declared facts is run elsewhere
    planner = Planner(suite, lookup, memory)
    grid = tuple(cells(planner, datasets, snapshots))
    if all(cell.skipped for cell in grid):
        reasons = "; ".join(sorted({cell.skipped for cell in grid})) or "every cell is excluded"
        raise UserError(f"{suite.name}: the grid is empty: {reasons}")
    wanted = (address.stage for cell in grid for address in cell.scores.values())
    stages = demand(registry, planner.stages, wanted, store, recompute, planner.expected)
    if sources.stand_ins:
        stages = without_data(stages, planner.operations, planner.sizes)
    resolved = {label: one for label, one in datasets.items() if isinstance(one, ResolvedDataset)}
    notes = dict.fromkeys(note for one in resolved.values() for note in one.left_out)
    return Plan(suite, grid, tuple(stages), missing, tuple(notes), resolved, sources.stand_ins)


def _check_tasks(suite: Suite, datasets: Iterable[ResolvedDataset]) -> None:
    """Raise Mistakes if the classes of a data set cannot come in the suite's steps."""
    if suite.tasks is None:
        return
    mistakes = []
    for dataset in datasets:
        try:
            task_classes(suite.tasks.orders[0], dataset.facts.classes, suite.tasks.steps)
        except ValueError as error:
            mistakes.append(Mistake("tasks.steps", f"data set {dataset.plugin.name}: {error}"))
    if mistakes:
        raise Mistakes(suite.name, mistakes)
