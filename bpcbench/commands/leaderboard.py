"""The command `leaderboard`: the results of several stores or suites in one static page."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bpcbench.commands.waiting import waiting
from bpcbench.errors import UserError

if TYPE_CHECKING:
    from bpcbench.reporting.leaderboard import Source


def leaderboard(arguments: argparse.Namespace) -> int:
    """Write the page of a leaderboard."""
    from bpcbench.commands.output import check_output
    from bpcbench.commands.page import write_page
    from bpcbench.reporting.leaderboard import leaderboard as ranked
    from bpcbench.reporting.page import leaderboard_page

    check_output(arguments.output)
    metrics = tuple(name.strip() for name in arguments.metrics.split(",")) if arguments.metrics else ()
    with waiting("writing the page"):
        sources = list(_sources(arguments.sources, Path(arguments.out)))
        page = leaderboard_page(ranked(sources, metrics), arguments.title)
    for source in sources:
        for note in source.view.store.messages:
            print(f"note: {note}", file=sys.stderr)
    write_page(page, arguments.output, "leaderboard", show=arguments.open)
    return 0


def _sources(texts: Sequence[str], out: Path) -> Iterator[Source]:
    """Yield a source per text: what `compare` takes, after the name to show it by and `=`."""
    from bpcbench.commands.compare import named_view
    from bpcbench.reporting.leaderboard import Source

    named = [_named(text) for text in texts]
    views = [named_view(where, out) for _, where in named]
    seen = Counter(view.invocation.path.resolve() for view in views)
    if twice := [text for text, view in zip(texts, views, strict=True) if seen[view.invocation.path.resolve()] > 1]:
        raise UserError(
            f"{' and '.join(twice)} are the same invocation, {views[texts.index(twice[0])].invocation.path}"
        )
    stores, suites = ({what(view) for view in views} for what in (lambda v: v.store.root, lambda v: v.manifest.name))
    names = []
    for (given, _), view in zip(named, views, strict=True):
        folder, suite = view.store.root.resolve().name, view.manifest.name
        whole = f"{folder}: {suite}" if len(suites) > 1 else folder
        names.append(given or (whole if len(stores) > 1 else suite))
    usual = Counter(names)
    for name, view, (given, _) in zip(names, views, named, strict=True):
        if usual[name] > 1 and given:
            raise UserError(f"two sources are called {name!r}")
        yield Source(name if usual[name] == 1 else f"{name}:{view.invocation.path.name[:6]}", view)


def _named(text: str) -> tuple[str, str]:
    name, equals, where = text.partition("=")
    return (name.strip(), where) if equals and name.strip() and not Path(text).exists() else ("", text)
