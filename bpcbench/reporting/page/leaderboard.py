"""The page of a leaderboard: one static file with the results of several sources."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from bpcbench.reporting.leaderboard import ROLES, Block, Entry, Leaderboard, Source
from bpcbench.reporting.page.cells import heading, marks, number_cell
from bpcbench.reporting.page.commands import line_command
from bpcbench.reporting.page.document import document, folded, section
from bpcbench.reporting.page.markup import Html, element, joined, scrolling, table
from bpcbench.reporting.page.results import controls
from bpcbench.reporting.table import Column, Line

_LABELS = ("method", "inference", "network")


def leaderboard_page(board: Leaderboard, title: str = "Leaderboard") -> str:
    """Return a leaderboard as one HTML document that needs nothing else."""
    columns = list(
        dict.fromkeys(column for block in board.blocks for group in block.table.groups for column in group.columns)
    )
    several = len(board.sources) > 1
    entries = [entry for block in board.blocks for entry in block.entries.values()]
    axes: dict[str, Sequence[str]] = {
        "method": _values(entry.group.method for entry in entries),
        "dataset": _values(block.conditions.dataset for block in board.blocks),
        "ipc": [str(ipc) for ipc in sorted({block.conditions.ipc for block in board.blocks})],
        "inference": _values(entry.group.inference for entry in entries),
        "network": _values(entry.group.network for entry in entries),
        "source": _values(entry.origin for entry in entries),
    }
    labels = tuple(name for name in _LABELS if name == "method" or len(axes[name]) > 1)
    blocks = [_block(block, labels, columns, board, several=several) for block in board.blocks]
    results = joined(
        (
            controls(axes, columns, board.metrics),
            element("div", *blocks, class_="blocks"),
            element("p", "No line matches the filters.", class_="nothing", hidden=True),
            element("ul", *(element("li", note) for note in _notes(board)), class_="notes"),
        )
    )
    parts = [
        ("results", "Results", results if blocks else element("p", "The sources have no results yet.")),
        ("configurations", "Configurations", _configurations(board)),
        ("sources", "Sources", _sources(board.sources)),
    ]
    count = sum(len(block.entries) for block in board.blocks)
    words = f"{count:,} lines of {len(board.sources)} source{'s' if several else ''} in {len(board.blocks)} tables."
    header = element(
        "header",
        element("h1", title),
        element("p", words, class_="state"),
        element(
            "nav",
            element("ul", *(element("li", element("a", name, href=f"#{anchor}")) for anchor, name, _ in parts)),
            aria_label="sections",
        ),
    )
    skip = element("a", "Skip to the results", href="#results", class_="skip")
    sections = [section(anchor, name, content) for anchor, name, content in parts]
    return document(title, joined((skip, header, element("main", *sections))))


def _values(words: Iterator[str]) -> list[str]:
    return list(dict.fromkeys(words))


def _block(
    block: Block, labels: Sequence[str], columns: Sequence[Column], board: Leaderboard, *, several: bool
) -> Html:
    helps = {
        (metric.evaluator, metric.name): metric.help
        for source in board.sources
        for metric in source.view.manifest.metrics
    }
    mine = [column for group in block.table.groups for column in group.columns]
    heads = [element("th", name, scope="col", data_label=name) for name in labels]
    heads += [
        heading(one, columns.index(one), one.metric in board.metrics, helps.get((one.evaluator, one.metric), ""))
        for one in mine
    ]
    heads += [element("th", name, scope="col") for name in (*(["source"] if several else []), "configuration")]
    common = set.intersection(*(set(entry.group.notes) for entry in block.entries.values()))
    rows = [
        _row(block.entries[line.method], line, labels, mine, columns, common, several) for line in block.table.lines
    ]
    made = element(
        "table",
        element("caption", block.title, class_="unseen"),
        element("thead", element("tr", *heads)),
        element("tbody", *rows),
        class_="results",
    )
    where = {"data_dataset": block.conditions.dataset, "data_ipc": block.conditions.ipc}
    title = element("h3", block.title, " ", marks(sorted(common)))
    notes = element("ul", *(element("li", note) for note in block.table.footnotes), class_="notes")
    body = scrolling(made, block.title)
    return element("section", title, body, notes, class_="block", data_filtered=True, **where)


def _row(
    entry: Entry,
    line: Line,
    labels: Sequence[str],
    mine: Sequence[Column],
    columns: Sequence[Column],
    common: set[str],
    several: bool,
) -> Html:
    group, first = entry.group, entry.sources[0]
    own = [note for note in group.notes if note not in common]
    aside = [] if line.ranked else [element("span", "not ranked", class_="badge")]
    texts = [element("th", group.method, " ", joined((marks(own), *aside)), scope="row")]
    texts += [element("td", getattr(group, name)) for name in labels[1:]]
    texts += [number_cell(cell, column, columns.index(column)) for cell, column in zip(line.cells, mine, strict=True)]
    if several:
        texts.append(element("td", entry.origin))
    texts.append(element("td", element("code", element("a", entry.configuration, href=f"#c{entry.configuration}"))))
    return element(
        "tr",
        *texts,
        data_filtered=True,
        data_command=line_command(first.view.invocation, group),
        data_method=group.method,
        data_inference=group.inference,
        data_network=group.network,
        data_source=entry.origin,
        data_line=entry.configuration,
    )


def _notes(board: Leaderboard) -> Iterator[object]:
    tests = [block.table.test for block in board.blocks if block.table.test]
    yield joined(
        (
            "In each column: ",
            element("b", "bold"),
            " best, ",
            element("u", "underlined"),
            f" second{f', ~ not distinguishable from the best ({tests[0]})' if tests else ''}. ",
            f"Tables open with the best {board.metrics[0]} first." if board.metrics else None,
        )
    )
    yield (
        "A line is one configuration: plugins, versions and all options. A table holds one data set (by its "
        "fingerprint), one number of images per class, one split and one protocol. Only seeds of one configuration on "
        "the same data are averaged; lines that share a label but not the configuration stay apart."
    )
    yield from board.notes


def _configurations(board: Leaderboard) -> Html:
    """Return what every configuration is: plugins, versions and options."""
    found: dict[str, Entry] = {}
    for block in board.blocks:
        for entry in block.entries.values():
            found.setdefault(entry.configuration, entry)
    labels = [" / ".join((one.group.method, one.group.inference, one.group.network)) for one in found.values()]
    lines = []
    for (name, entry), label in zip(found.items(), labels, strict=True):
        again = f" ({labels.count(label)} configurations have this label)" if labels.count(label) > 1 else ""
        plugins = entry.group.plugins
        options = [
            element(
                "li",
                f"{role}: {_configured(plugins[role].package, plugins[role].name, plugins[role].version)} ",
                element("code", _options(plugins[role].options)),
            )
            for role in ROLES
            if role in plugins
        ]
        lines.append((element("code", name, id=f"c{name}"), f"{label}{again}", element("ul", *options, class_="plain")))
    return table(("configuration", "label", "plugins, versions and options"), lines)


def _configured(package: str, name: str, version: int) -> str:
    return f"{package}:{name} version {version}"


def _options(options: Mapping[str, object]) -> str:
    written = (f"{name}={json.dumps(value, ensure_ascii=False, default=str)}" for name, value in options.items())
    return ", ".join(written) or "no options"


def _sources(sources: Sequence[Source]) -> Html:
    lines, documents = [], []
    for source in sources:
        view, manifest = source.view, source.view.manifest
        runs = view.invocation.runs
        versions = ", ".join(f"{name} {version}" for name, version in manifest.versions.items())
        data = ", ".join(f"{one.label} {one.fingerprint[:12] or 'unknown'}" for one in manifest.datasets)
        tried = ", ".join(f"{method} {count}" for method, count in manifest.tried.items())
        done, total = len(view.progress.done), len([cell for cell in manifest.cells if not cell.skipped])
        lines.append(
            (
                source.name,
                f"{manifest.name}:{manifest.digest}",
                f"{done:,} of {total:,}",
                runs[-1].started[:10] if runs else "",
                data,
                tried or "none recorded",
                versions,
            )
        )
        written = json.dumps(manifest.document, indent=1, ensure_ascii=False, default=str)
        documents.append(folded(f"The suite of {source.name}", element("pre", written, tabindex="0")))
    heads = ("source", "suite", "evaluations", "run", "data", "settings tried", "versions")
    return joined((table(heads, lines), *documents))
