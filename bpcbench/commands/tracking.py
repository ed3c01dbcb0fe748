"""Commands about MLflow: ui, sync."""

from __future__ import annotations

import argparse
import contextlib
import sys
import webbrowser
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from bpcbench.commands.store import existing
from bpcbench.commands.waiting import waiting
from bpcbench.errors import BpcbenchError, UserError, unknown
from bpcbench.store.invocations import Invocation, invocations, readable
from bpcbench.store.manifest import Manifest
from bpcbench.store.store import Store
from bpcbench.text import counted


def _invocations(arguments: argparse.Namespace) -> tuple[Store, list[Invocation]]:
    """Return the runs of a suite, or of all, that the store remembers, the latest first."""
    store = existing(arguments.out)
    every = invocations(store, "run", "tune")
    mine = [one for one in every if arguments.suite in (None, one.name, one.source)]
    whole = readable(store, mine)
    for message in store.messages:
        print(f"note: {message}", file=sys.stderr)
    if mine and not whole:
        raise UserError("no manifest of it can be read" if arguments.suite else "no manifest can be read")
    if not mine:
        names = {one.name for one in every}
        raise UserError(unknown("suite", arguments.suite, names) if arguments.suite else "no suite was run here yet")
    return store, whole


def _as_last_run(one: Invocation) -> Manifest:
    """Return the manifest with the description and the shown metrics of the latest run."""
    if not one.runs:
        return one.manifest
    latest = one.runs[-1]
    return replace(
        one.manifest,
        description=latest.description or one.manifest.description,
        shown=latest.shown or one.manifest.shown,
    )


def sync(arguments: argparse.Namespace) -> int:
    """Add to MLflow whatever the store has and MLflow lacks."""
    from bpcbench.reporting.view import View
    from bpcbench.running.story import tell
    from bpcbench.tracking import mlflow
    from bpcbench.tracking.sync import sync as bring_up_to_date

    store, mine = _invocations(arguments)
    # The first to be written: MLflow is imported, and its database made, before there is anything to count.
    with _mlflow_errors(store), waiting("opening MLflow"):
        mlflow.Book(_as_last_run(mine[-1]), store).open()
    latest = {one.name: one for one in reversed(mine)}
    # The latest last, so that the views of an experiment show it.
    for one in reversed(mine):
        with _mlflow_errors(store):
            added = bring_up_to_date(
                _as_last_run(one),
                store,
                runs=one.runs,
                story=partial(tell, View(store, one)),
                latest=one is latest[one.name],
            )
        failed = f" and {added.failed} that failed" if added.failed else ""
        print(f"{one.title}: {counted(added.finished, 'cell')} added to MLflow{failed}")
    return 0


@contextlib.contextmanager
def _mlflow_errors(store: Store) -> Iterator[None]:
    """Turn whatever MLflow raises into one message."""
    from bpcbench.tracking.location import redacted, tracking_uri

    try:
        yield
    except BpcbenchError:
        raise
    except Exception as error:
        where, text = tracking_uri(store.root), " ".join(str(error).split())[:300]
        raise UserError(redacted(f"MLflow at {where} cannot be written: {text}")) from None


def ui(arguments: argparse.Namespace) -> int:
    """Serve the MLflow UI on this machine only, and open it at the suite's results."""
    from bpcbench.tracking import location, mlflow
    from bpcbench.tracking.server import HOST, check_port, serve
    from bpcbench.tracking.views import saved_views

    store, mine = _invocations(arguments)
    latest = _as_last_run(mine[0])
    uri = location.tracking_uri(store.root)
    remote = uri.startswith(("http://", "https://"))
    if not remote:
        check_port(arguments.port)
    with _mlflow_errors(store), waiting("opening MLflow"):
        book = mlflow.Book(latest, store).open()
        missing = len(book.missing())
    base = location.without_credentials(uri).rstrip("/") if remote else f"http://{HOST}:{arguments.port}"
    views = saved_views(latest)
    for view in views:
        print(f"{view.name + ':':<9} {view.address(base, book.experiment)}", flush=True)
    if missing:
        print(f"note: MLflow lacks {missing} finished cells; `bpcbench sync` adds them", file=sys.stderr)
    address = views[0].address(base, book.experiment)
    if remote:
        if not arguments.no_browser:
            webbrowser.open(address)
        return 0
    return serve(store.root, arguments.port, lambda: _open(address, arguments.no_browser))


def _open(address: str, stay: bool) -> None:
    if not stay:
        webbrowser.open(address)
