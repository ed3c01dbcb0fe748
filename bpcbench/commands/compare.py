"""The command `compare`: two invocations side by side."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from bpcbench.commands.output import check_output, write_output
from bpcbench.commands.waiting import waiting
from bpcbench.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from bpcbench.reporting.compare import Comparison
    from bpcbench.reporting.view import View


def compare(arguments: argparse.Namespace) -> int:
    """Print what differs between two invocations."""
    check_output(arguments.output)
    if arguments.open and arguments.format != "html":
        raise UserError("--open shows a page: add --format html")
    with waiting("comparing"):
        before, after, comparison = _comparison(arguments)
    for note in (*before.store.messages, *after.store.messages):
        print(f"note: {note}", file=sys.stderr)
    if arguments.format == "html":
        from bpcbench.commands.page import write_page
        from bpcbench.reporting.page import comparison_page

        write_page(comparison_page(comparison), arguments.output, "comparison", show=arguments.open)
        return 0
    from bpcbench.reporting.compare import comparison_text

    text = comparison_text(comparison, arguments.format)
    if arguments.output:
        write_output(Path(arguments.output), text)
    else:
        print(text, end="")
    return 0


def _comparison(arguments: argparse.Namespace) -> tuple[View, View, Comparison]:
    from bpcbench.reporting.compare import compare as compared

    before, after = (named_view(text, Path(arguments.out)) for text in (arguments.before, arguments.after))
    if before.invocation.path == after.invocation.path:
        raise UserError(f"{arguments.before} and {arguments.after} are the same invocation, {before.invocation.path}")
    metrics = tuple(arguments.metrics.split(",")) if arguments.metrics else ()
    for view in (before, after):
        view.shown(metrics)
    return before, after, compared(before, after, metrics)


def named_view(text: str, out: Path) -> View:
    """Return the invocation that a text names: NAME, NAME:DIGEST, STORE, STORE:NAME or STORE:NAME:DIGEST.

    Without a digest it is the latest of that name, without a name the latest of the store. A digest may be shortened.
    UserError, with what there is, if nothing matches.
    """
    from bpcbench.reporting.view import View
    from bpcbench.store.invocations import invocations
    from bpcbench.store.store import Store

    folder, wanted = _split(text, out)
    if not (folder / "store.json").is_file():
        raise UserError(f"{text}: {folder} is not a store; run a suite first, or name another with --out")
    store = Store.open(folder, create=False)
    every = invocations(store, "run", "tune")
    if not wanted and every:
        return View(store, every[0])
    for one in every:
        if wanted in (one.name, one.source):
            return View(store, one)
    name, _, digest = wanted.rpartition(":")
    mine = [one for one in every if name in (one.name, one.source)]
    matching = [one for one in mine if digest and one.path.name.startswith(digest)]
    if len(matching) == 1:
        return View(store, matching[0])
    if mine:
        listed = "\n".join(f"  {one.name}:{one.path.name}  {one.title}" for one in mine)
        problem = "more than one digest starts so" if matching else "there is no such digest"
        raise UserError(f"{text}: {problem}; {folder} has\n{listed}")
    known = sorted({one.name for one in every})
    has = f" (it has: {', '.join(known)})" if known else ""
    raise UserError(f"the store {folder} has no results of {wanted!r}{did_you_mean(wanted, known)}{has}")


def _split(text: str, out: Path) -> tuple[Path, str]:
    """Return the store and the rest of a text: the longest part before a colon that is a store, else `out`."""
    parts = text.split(":")
    for count in range(len(parts), 0, -1):
        folder = Path(":".join(parts[:count]))
        if (folder / "store.json").is_file():
            return folder, ":".join(parts[count:])
    return out, text
