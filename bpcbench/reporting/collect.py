"""From a manifest and a store to the rows of a report: numbers are read, never recomputed."""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from bpcbench.reporting.rows import Asked, Place, Row
from bpcbench.store.address import Address
from bpcbench.store.folder import ARRAYS
from bpcbench.store.manifest import CellRecord, Group, Manifest, PublishedRecord
from bpcbench.store.runs import RunRecord, last_failures
from bpcbench.store.store import Store

_HIGHER_IS_BETTER = {"higher": True, "lower": False, None: None}


def place_of(group: Group) -> Place:
    """Return where a group stands in a table."""
    return Place(group.dataset, group.ipc, group.method, group.inference, group.network)


def collect(manifest: Manifest, store: Store, step: int | None = None) -> list[Row]:
    """Return one row per cell, evaluator and metric that the store holds, of coresets after `step` or at their end.

    Coresets of a method that have equal content and equal scores are one: their rows carry the first one's address.
    """
    rows = list(_rows(manifest, store, step))
    first = _first_of_equals(rows, store)
    return [replace(row, coreset=first[row.coreset]) if row.coreset in first else row for row in rows]


def _first_of_equals(rows: Sequence[Row], store: Store) -> dict[str, str]:
    """Return, for coresets that repeat an earlier one of their method, the address of that one."""
    contents: dict[str, Hashable] = {}
    scores: dict[str, dict[Hashable, float]] = {}
    for row in rows:
        if row.coreset not in contents:
            contents[row.coreset] = (row.dataset, row.ipc, row.method, _content(row.coreset, store))
        key = (row.inference, row.network, row.evaluator, row.metric, row.evaluate_seed)
        scores.setdefault(row.coreset, {})[key] = row.value
    firsts: dict[Hashable, str] = {}
    equal = {}
    for coreset, content in contents.items():
        first = firsts.setdefault(content, coreset)
        # Evaluations that are not reproducible to the last bit must not contradict each other.
        if first != coreset and _agree(scores[first], scores[coreset]):
            equal[coreset] = first
            scores[first].update(scores[coreset])
    return equal


def _content(coreset: str, store: Store) -> Hashable:
    """Return the checksums of a coreset's arrays with its scalars, or its address if the store no longer has it."""
    addresses = [Address.parse(part) for part in coreset.split("+")]
    if not all(store.has(address) for address in addresses):
        return coreset
    metas = [store.meta(address) for address in addresses]
    described = [(meta["files"].get(ARRAYS, {}).get("sha256"), meta.get("coreset")) for meta in metas]
    return coreset if any(checksum is None for checksum, _ in described) else json.dumps(described, sort_keys=True)


def _agree(a: Mapping[Hashable, float], b: Mapping[Hashable, float]) -> bool:
    return all(a[key] == b[key] or (math.isnan(a[key]) and math.isnan(b[key])) for key in a if key in b)


def _rows(manifest: Manifest, store: Store, step: int | None) -> Iterator[Row]:
    for cell in manifest.cells:
        if cell.step != step:
            continue
        group = cell.group
        for evaluator, address in cell.scores.items():
            if not store.has(address):
                continue
            meta = store.meta(address)
            for metric, value in meta["metrics"].items():
                yield Row(
                    dataset=group.dataset,
                    ipc=group.ipc,
                    method=group.method,
                    inference=group.inference,
                    network=group.network,
                    coreset=cell.coreset,
                    distil_seed=cell.distil_seed,
                    evaluate_seed=cell.evaluate_seed,
                    evaluator=evaluator,
                    metric=metric,
                    value=float(value),
                    higher_is_better=_HIGHER_IS_BETTER[meta["directions"][metric]],
                    unit=meta["units"][metric],
                    notes=group.notes,
                    ranked=group.ranked,
                    order=cell.order,
                )


def asked(manifest: Manifest) -> dict[Place, Asked]:
    """Return what the suite asks for, in the suite's order; places whose cells are all skipped are left out."""
    cells: dict[Place, list[CellRecord]] = {place_of(group): [] for group in manifest.groups}
    for cell in manifest.cells:
        if cell.step is None and not cell.skipped:
            cells[place_of(cell.group)].append(cell)
    return {
        place: Asked(
            distil=len({cell.draw for cell in mine}),
            evaluate=len({cell.evaluate_seed for cell in mine}),
            ranked=mine[0].group.ranked,
        )
        for place, mine in cells.items()
        if mine
    }


def task_steps(manifest: Manifest) -> int | None:
    """Return in how many steps the classes come, None if they come all at once."""
    tasks = manifest.document.get("tasks")
    steps = tasks.get("steps") if isinstance(tasks, Mapping) else None
    return steps if isinstance(steps, int) else None


def task_notes(manifest: Manifest) -> Iterator[str]:
    """Say of a suite of class-incremental learning what its coresets are."""
    if steps := task_steps(manifest):
        orders = list(dict.fromkeys(cell.order for cell in manifest.cells))
        which = f"{len(orders)} class orders ({', '.join(orders)})" if len(orders) > 1 else f"class order {orders[0]}"
        yield (
            f"Class-incremental: the classes come in {steps} steps, {which}. A coreset is here the memory "
            "of one order and distil seed: the union of those of all steps."
        )


def skip_notes(manifest: Manifest) -> Iterator[str]:
    """Say which places of the suite are skipped and why, in a sentence per reason."""
    places: dict[str, dict[str, None]] = {}
    for cell in manifest.cells:
        if cell.skipped:
            places.setdefault(cell.skipped, {})[cell.group.label] = None
    for reason, labels in places.items():
        first, more = list(labels)[:4], len(labels) - 4
        yield f"Skipped ({reason}): {', '.join(first)}" + (f" and {more} more." if more > 0 else ".")


def published_numbers(manifest: Manifest) -> dict[Place, tuple[PublishedRecord, ...]]:
    """Return the published numbers by the place they stand beside."""
    return {place_of(group): group.published for group in manifest.groups}


@dataclass(frozen=True)
class Progress:
    """How far a suite is: its cells by state. `reasons` holds what went wrong, by the label of the cell.

    `exhausted` are the labels of those that failed because memory was not enough.
    """

    done: tuple[CellRecord, ...] = ()
    running: tuple[CellRecord, ...] = ()
    failed: tuple[CellRecord, ...] = ()
    missing: tuple[CellRecord, ...] = ()
    skipped: tuple[CellRecord, ...] = ()
    reasons: dict[str, str] = field(default_factory=dict)
    exhausted: frozenset[str] = frozenset()

    def dashes(self) -> Iterator[str]:
        """Say which places have a dash because memory was not enough, in a sentence per message."""
        places: dict[str, dict[str, None]] = {}
        for cell in self.failed:
            if cell.label in self.exhausted:
                places.setdefault(self.reasons[cell.label], {})[cell.group.label] = None
        for message, labels in places.items():
            first, more = list(labels)[:4], len(labels) - 4
            yield f"— {message}: {', '.join(first)}" + (f" and {more} more." if more > 0 else ".")

    @property
    def complete(self) -> bool:
        """Whether every cell that is not skipped has all its scores."""
        return not (self.running or self.failed or self.missing)

    def note(self) -> str:
        """Return what is missing in one sentence, or an empty text."""
        if self.complete:
            return ""
        total = len(self.done) + len(self.running) + len(self.failed) + len(self.missing)
        oom = sum(cell.label in self.exhausted for cell in self.failed)
        counts = (
            (len(self.running), "running"),
            (len(self.failed) - oom, "failed"),
            (oom, "out of memory"),
            (len(self.missing), "not run yet"),
        )
        parts = [f"{count} {word}" for count, word in counts if count]
        return f"Incomplete: {total - len(self.done)} of {total} evaluations have no result ({', '.join(parts)})."


def progress(manifest: Manifest, store: Store, runs: list[RunRecord]) -> Progress:
    """Return the state of every cell: what the store lacks is missing; run records tell what runs and what failed."""
    under_way = {stage for run in runs if run.alive for stage in run.running}
    reasons: dict[str, str] = {}
    failed = last_failures(runs)
    exhausted: set[str] = set()
    groups: dict[str, list[CellRecord]] = {name: [] for name in ("done", "running", "failed", "missing", "skipped")}
    for cell in manifest.cells:
        if cell.skipped:
            state = "skipped"
        elif all(store.has(address) for address in cell.scores.values()):
            state = "done"
        else:
            stages = _stages(cell)
            broken = next((failed[stage] for stage in stages if stage in failed), None)
            if any(stage in under_way for stage in stages):
                state = "running"
            elif broken is not None:
                state, reasons[cell.label] = "failed", broken.message
                if broken.out_of_memory:
                    exhausted.add(cell.label)
            else:
                state = "missing"
        groups[state].append(cell)
    found = {name: tuple(cells) for name, cells in groups.items()}
    return Progress(**found, reasons=reasons, exhausted=frozenset(exhausted))


def _stages(cell: CellRecord) -> list[str]:
    scores = [address.stage for address in cell.scores.values()]
    return [*cell.stages, *scores]
