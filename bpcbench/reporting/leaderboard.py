"""Results of several sources side by side: which of them may stand in one table, and which are one configuration.

A source is one invocation of one store. A block of a leaderboard holds what was measured on one data set (by the
fingerprint of its training data), with one number of images per class, split and protocol; a line is one configuration:
the plugins of a group, their versions and all their options. Nothing else is averaged or ranked together.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from bpcbench.reporting.collect import place_of, task_steps
from bpcbench.reporting.observations import Draw
from bpcbench.reporting.rows import Place, Row
from bpcbench.reporting.table import Line, Table, build
from bpcbench.reporting.view import View
from bpcbench.store.address import digest
from bpcbench.store.manifest import Group, PluginRecord

ROLES = ("method", "inference", "network", "preprocessing")
_CONDITIONS = ("examples", "precision")
"""Keys of a suite that no plugin holds, and that change what is measured."""


@dataclass(frozen=True, eq=False)
class Source:
    """One invocation, and what a reader knows it by."""

    name: str
    view: View

    @property
    def incomplete(self) -> str:
        """What has no result, in one sentence, or an empty text."""
        return self.view.progress.note()


class Conditions(NamedTuple):
    """What lines must share to be compared: the data, and how they are measured. `others` are conditions by name."""

    dataset: str
    plugin: str
    fingerprint: str
    ipc: int
    split: str
    protocol: int
    others: str


@dataclass(frozen=True, eq=False)
class Entry:
    """One line of a block: a configuration, where it comes from, and the group that the first source has of it."""

    name: str
    group: Group
    configuration: str
    sources: tuple[Source, ...]

    @property
    def origin(self) -> str:
        """The names of the sources."""
        return ", ".join(source.name for source in self.sources)


@dataclass(frozen=True, eq=False)
class Block:
    """A table of its own: what is measured under the same conditions, the best first; its lines are entries by name."""

    title: str
    conditions: Conditions
    table: Table
    entries: Mapping[str, Entry]


@dataclass(frozen=True, eq=False)
class Leaderboard:
    """The blocks of all sources. `notes` say what was kept apart, and why."""

    sources: tuple[Source, ...]
    blocks: tuple[Block, ...]
    metrics: tuple[str, ...]
    notes: tuple[str, ...]


def leaderboard(sources: Sequence[Source], metrics: Sequence[str] = ()) -> Leaderboard:
    """Return the leaderboard of some sources; `metrics` are by default those that any of them shows.

    Seeds of one configuration that several sources have are one line, unless they disagree about a number; the same
    evaluation counts once. Raise UserError for a metric that no source has.
    """
    shown = tuple(metrics) or tuple(dict.fromkeys(name for source in sources for name in source.view.shown()))
    if metrics and not any(set(metrics) <= {m.name for m in source.view.manifest.metrics} for source in sources):
        sources[0].view.shown(metrics)
    notes: list[str] = []
    evaluators = _evaluators(sources, notes)
    found: dict[Conditions, list[_Candidate]] = {}
    for source in sources:
        rows: dict[Place, list[Row]] = {}
        for row in source.view.rows():
            named = evaluators[source.name, row.evaluator]
            rows.setdefault(row.place, []).append(dataclasses.replace(row, evaluator=named))
        for group in source.view.manifest.groups:
            if mine := rows.get(place_of(group)):
                found.setdefault(_conditions(source.view, group), []).append(_Candidate(source, group, mine))
    titles = _titles(list(found), notes)
    blocks = [_block(titles[conditions], conditions, mine, shown, notes) for conditions, mine in found.items()]
    notes += [f"{source.name} is not complete. {source.incomplete}" for source in sources if source.incomplete]
    return Leaderboard(tuple(sources), tuple(blocks), shown, tuple(dict.fromkeys(notes)))


@dataclass(frozen=True, eq=False)
class _Candidate:
    source: Source
    group: Group
    rows: list[Row]

    @property
    def configuration(self) -> str:
        """A digest of the plugins, of their versions and of their options."""
        plugins = {role: dataclasses.asdict(self.group.plugins[role]) for role in ROLES if role in self.group.plugins}
        return digest(plugins)[:8]


def _conditions(view: View, group: Group) -> Conditions:
    manifest = view.manifest
    record = next((one for one in manifest.datasets if one.label == group.dataset), None)
    plugin = group.plugins.get("dataset", PluginRecord("", group.dataset, 0))
    others = {name: manifest.document[name] for name in _CONDITIONS if manifest.document.get(name) is not None}
    if steps := task_steps(manifest):
        others["classes in steps:"] = steps
    return Conditions(
        group.dataset,
        f"{plugin.package}:{plugin.name}",
        record.fingerprint if record else "",
        group.ipc,
        manifest.split,
        manifest.protocol,
        ", ".join(f"{name} {value}" for name, value in others.items()),
    )


def _evaluators(sources: Sequence[Source], notes: list[str]) -> dict[tuple[str, str], str]:
    """Return how an evaluator of a source is called; those of one label with other options get names of their own."""
    written: dict[str, dict[str, list[str]]] = {}
    for source in sources:
        manifest = source.view.manifest
        options = manifest.document.get("evaluators")
        for label in dict.fromkeys(metric.evaluator for metric in manifest.metrics):
            own: Any = options.get(label) if isinstance(options, Mapping) else None
            written_out = {key: value for key, value in (own or {}).items() if (key, value) != ("plugin", label)}
            signature = json.dumps(written_out, sort_keys=True, default=str)
            written.setdefault(label, {}).setdefault(signature, []).append(source.name)
    names = {}
    for label, by_signature in written.items():
        for number, users in enumerate(by_signature.values()):
            for user in users:
                names[user, label] = label if number == 0 else f"{label} of {users[0]}"
        if len(by_signature) > 1:
            who = "; ".join(", ".join(users) for users in by_signature.values())
            notes.append(f"The options of the evaluator {label} differ ({who}): its metrics have columns of their own.")
    return names


def _titles(every: Sequence[Conditions], notes: list[str]) -> dict[Conditions, str]:
    """Return a title for each block that says in what it differs from others of the same data set and ipc."""
    titles = {}
    for conditions in every:
        rivals = [other for other in every if (other.dataset, other.ipc) == (conditions.dataset, conditions.ipc)]
        words = []
        if len({other.plugin for other in rivals}) > 1:
            words.append(conditions.plugin)
        if len({other.fingerprint for other in rivals}) > 1:
            words.append(f"data {conditions.fingerprint[:8] or 'unknown'}")
            notes.append(f"{conditions.dataset} is not the same data everywhere: each has tables of its own.")
        if len({other.split for other in rivals}) > 1:
            words.append(f"{conditions.split} split")
        if len({other.protocol for other in rivals}) > 1:
            words.append(f"protocol {conditions.protocol}")
        if len({other.others for other in rivals}) > 1:
            words.append(conditions.others or "all examples")
        if len(rivals) > 1 and words:
            notes.append(f"{conditions.dataset} was measured under different conditions: each has tables of its own.")
        extra = f" ({', '.join(words)})" if words else ""
        titles[conditions] = f"{conditions.dataset}{extra}, {conditions.ipc} per class"
    return titles


def _block(
    title: str, conditions: Conditions, candidates: Sequence[_Candidate], metrics: Sequence[str], notes: list[str]
) -> Block:
    lines: list[list[_Candidate]] = []
    for candidate in candidates:
        same = [line for line in lines if line[0].configuration == candidate.configuration]
        agreeing = next((line for line in same if _agree((row for one in line for row in one.rows), candidate)), None)
        if agreeing is not None:
            agreeing.append(candidate)
            continue
        if same:
            who = f"{same[0][0].source.name} and {candidate.source.name}"
            notes.append(f"{who} disagree about {candidate.group.label}: each has a line of its own.")
        lines.append([candidate])
    entries: dict[str, Entry] = {}
    rows = []
    names = [_label(line[0].group) for line in lines]
    for number, line in enumerate(lines):
        group, name = line[0].group, names[number]
        if names.count(name) > 1:
            name = f"{name} [{line[0].configuration}]"
        if name in entries:
            name = f"{name} of {line[0].source.name}"
        entries[name] = Entry(name, group, line[0].configuration, tuple(one.source for one in line))
        seen = set()
        for row in (row for one in line for row in one.rows):
            key = (row.coreset, row.evaluate_seed, row.evaluator, row.metric)
            if key not in seen:
                seen.add(key)
                rows.append(dataclasses.replace(row, method=name, inference="", network=""))
    table = build(rows, metrics)
    return Block(title, conditions, dataclasses.replace(table, lines=_sorted(table)), entries)


def _label(group: Group) -> str:
    return f"{group.method} / {group.inference} / {group.network}"


def _agree(rows: Iterable[Row], candidate: _Candidate) -> bool:
    known = {_evaluation(row): row.value for row in rows}
    pairs = ((known[_evaluation(row)], row.value) for row in candidate.rows if _evaluation(row) in known)
    return all(a == b or (math.isnan(a) and math.isnan(b)) for a, b in pairs)


def _evaluation(row: Row) -> tuple[Draw, int, str, str]:
    return row.draw, row.evaluate_seed, row.evaluator, row.metric


def _sorted(table: Table) -> tuple[Line, ...]:
    """Return the lines by their first number, the best first; lines without one, or that do not compete, stand last."""
    column = table.groups[0].columns[0] if table.groups and table.groups[0].columns else None

    def key(line: Line) -> tuple[bool, bool, float]:
        summary = line.cells[0].summary if column is not None else None
        if summary is None or not math.isfinite(summary.mean):
            return (not line.ranked, True, 0.0)
        return (not line.ranked, False, -summary.mean if column and column.higher_is_better else summary.mean)

    return tuple(sorted(table.lines, key=key))
