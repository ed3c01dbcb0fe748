"""What surrounds the numbers: cells without a result and why, settings, data sets, versions and runs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bpcbench.reporting.collect import Progress
from bpcbench.reporting.costs import COLUMNS, FOOTNOTES, Cost
from bpcbench.reporting.page.document import folded
from bpcbench.reporting.page.markup import Html, element, joined, table
from bpcbench.reporting.table import Cell
from bpcbench.reporting.view import View
from bpcbench.store.manifest import CellRecord, PluginRecord
from bpcbench.store.runs import last_failures

LISTED = 50
"""So many cells or groups are named one by one."""
_ROLES = ("method", "inference", "network", "preprocessing")


def unfinished(view: View) -> Html | None:
    """Return the cells that have no result, by state and reason; None if every cell has one."""
    progress = view.progress
    logs = {failure.message: failure.log for failure in last_failures(view.invocation.runs).values()}
    parts = []
    if progress.failed:
        reasons = _by_reason(progress.failed, lambda cell: progress.reasons.get(cell.label, "unknown"))
        lines = [(len(cells), reason, _named(cells), logs.get(reason, "")) for reason, cells in reasons.items()]
        parts += [element("h3", "Failed"), table(("cells", "reason", "which", "log"), lines)]
    for title, cells in (("Running", progress.running), ("Not run yet", progress.missing)):
        if cells:
            groups = Counter(cell.group.label for cell in cells)
            parts += [
                element("h3", title),
                table(("cells", "which"), _capped([(n, name) for name, n in groups.items()])),
            ]
    if progress.skipped:
        reasons = _by_reason(progress.skipped, lambda cell: cell.skipped)
        lines3 = [(len(cells), reason, _named(cells)) for reason, cells in reasons.items()]
        parts += [element("h3", "Skipped"), table(("cells", "reason", "which"), lines3)]
    return joined(parts) if parts else None


def state(progress: Progress) -> str:
    """Return in a few words how many cells have results."""
    total = len(progress.done) + len(progress.running) + len(progress.failed) + len(progress.missing)
    words = [f"{len(progress.done):,} of {total:,} evaluations have results"]
    others = (
        ("running", progress.running),
        ("failed", progress.failed),
        ("not run yet", progress.missing),
        ("skipped", progress.skipped),
    )
    words += [f"{len(cells):,} {name}" for name, cells in others if cells]
    return ", ".join(words)


def cost_table(costs: Sequence[Cost]) -> Html | None:
    """Return what every line took."""
    if not costs:
        return None
    headings = ("data set", "ipc", "method", "inference", "network", *(column.metric for column in COLUMNS))
    lines = [
        (cost.dataset, cost.ipc, cost.method, cost.inference, cost.network, *map(_cost_text, cost.cells()))
        for cost in costs
    ]
    return joined((table(headings, lines), *(element("p", note, class_="note") for note in FOOTNOTES)))


def _cost_text(cell: Cell) -> str:
    return f"{cell.mean}±{cell.spread}" if cell.spread else cell.mean


def settings(view: View) -> Html:
    """Return the suite's seeds, data sets and the options of its plugins, as resolved."""
    manifest = view.manifest
    distil, evaluate = manifest.seeds
    rows: list[Sequence[object]] = [
        ("protocol", manifest.protocol),
        ("split", manifest.split),
        ("seeds", f"{distil} of distillation, {evaluate} of evaluation for each"),
    ]
    tried = ", ".join(f"{method} {count}" for method, count in manifest.tried.items())
    rows.append(
        ("settings tried on the validation split", f"{tried} (per data set and ipc)" if tried else "none recorded")
    )
    parts = [_facts(rows), element("h3", "Data sets")]
    heads = ("data set", "plugin", "shape", "classes", "sizes", "official", "fingerprint", "notes")
    lines = []
    for one in manifest.datasets:
        sizes = ", ".join(f"{name} {size:,}" for name, size in one.sizes.items())
        notes = "; ".join((*one.notes, *(f"left out: {item}" for item in one.left_out)))
        shape = "×".join(map(str, one.shape))
        official = "yes" if one.official else "no: marked subset"
        lines.append((one.label, one.plugin.name, shape, one.classes, sizes, official, one.fingerprint[:12], notes))
    parts.append(table(heads, lines))
    parts.append(element("h3", "Plugins"))
    seen: dict[tuple[str, str, str], list[str]] = {}
    for group in manifest.groups:
        for role in _ROLES:
            if plugin := group.plugins.get(role):
                label = str(getattr(group, role, plugin.name))
                where = f"{group.dataset} ipc {group.ipc}"
                seen.setdefault((role, label, _configured(plugin)), []).append(where)
    several = Counter((role, label) for role, label, _ in seen)
    listed = []
    for (role, label, configured), places in seen.items():
        only = ", ".join(dict.fromkeys(places)) if several[role, label] > 1 else ""
        listed.append((label, role, configured, only))
    parts.append(table(("label", "kind", "plugin, version and options", "where"), _capped(listed)))
    document = json.dumps(manifest.document, indent=1, ensure_ascii=False, default=str)
    parts.append(folded("The suite as it was read", element("pre", document, tabindex="0")))
    return joined(parts)


def provenance(view: View, command: str) -> Html:
    """Return commands, dates, machines and versions."""
    manifest, runs = view.manifest, view.invocation.runs
    rows: list[Sequence[object]] = [
        ("command", element("code", command)),
        ("suite", manifest.source),
        ("digest", element("code", manifest.digest)),
        ("request", element("code", manifest.request)),
    ]
    for name, words in _environments(view).items():
        rows.append((name, words))
    for name, version in manifest.versions.items():
        rows.append((f"version of {name}", version))
    parts = [_facts(rows)]
    if runs:
        heads = ("started (UTC)", "ended", "host", "exit code", "overrides", "stages", "command")
        lines = [
            (
                _moment(run.started),
                _moment(run.ended) if run.ended else "under way" if run.alive else "unknown",
                run.host,
                "" if run.exit_code is None else run.exit_code,
                " ".join(run.overrides),
                ", ".join(f"{count} {word}" for word, count in run.counts.items()),
                run.command,
            )
            for run in reversed(runs)
        ]
        parts += [element("h3", "Runs, the latest first"), table(heads, _capped(lines))]
    return joined(parts)


def _environments(view: View) -> dict[str, str]:
    """Return where the scores were made: the values that occur, by name, in one evaluation per coreset."""
    values: dict[str, Counter[str]] = {}
    one_each = {(id(cell.group), cell.draw): cell for cell in view.manifest.cells if cell.step is None}
    for cell in one_each.values():
        for address in cell.scores.values():
            if view.store.has(address):
                meta = view.store.meta(address)
                environment: Mapping[str, Any] = meta.get("environment") or {}
                for name in ("system", "processor", "cpus", "commit"):
                    if environment.get(name) is not None:
                        values.setdefault(name, Counter())[str(environment[name])] += 1
    return {name: ", ".join(value for value, _ in seen.most_common(4)) for name, seen in values.items()}


def _configured(plugin: PluginRecord) -> str:
    options = ", ".join(f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in plugin.options.items())
    return f"{plugin.package}:{plugin.name} {plugin.version}" + (f" ({options})" if options else "")


def _facts(rows: Iterable[Sequence[object]]) -> Html:
    return element("dl", *(joined((element("dt", name), element("dd", value))) for name, value in rows), class_="facts")


def _by_reason(cells: Iterable[CellRecord], reason: Any) -> dict[str, list[CellRecord]]:
    groups: dict[str, list[CellRecord]] = {}
    for cell in cells:
        groups.setdefault(str(reason(cell)), []).append(cell)
    return groups


def _named(cells: Iterable[CellRecord]) -> Html:
    names = list(dict.fromkeys(cell.group.label for cell in cells))
    more = f"; and {len(names) - LISTED} more" if len(names) > LISTED else ""
    listed = "; ".join(names[:LISTED]) + more
    return element("span", listed) if len(names) < 4 else folded(f"{len(names)} lines", listed)


def _capped(lines: Sequence[Sequence[object]]) -> list[Sequence[object]]:
    if len(lines) <= LISTED:
        return list(lines)
    return [*lines[:LISTED], ("…", f"and {len(lines) - LISTED} more", *[""] * (len(lines[0]) - 2))]


def _moment(stamp: str) -> str:
    return stamp[:19].replace("T", " ")
