"""Commands about what surrounds a store: ui, sync, doctor."""

from __future__ import annotations

import argparse
import contextlib
import shutil
import socket
import subprocess
import sys
import time
import webbrowser
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlencode

from bpcbench.commands.store import existing
from bpcbench.data.root import data_root
from bpcbench.errors import BpcbenchError, UserError, unknown
from bpcbench.registry.discovery import registry
from bpcbench.running.device import resolve_device, usable_cpus
from bpcbench.store import folder, provenance
from bpcbench.store.invocations import Invocation, invocations
from bpcbench.store.locks import Busy
from bpcbench.store.store import Store
from bpcbench.text import spell_bytes


def _invocations(arguments: argparse.Namespace) -> tuple[Store, list[Invocation]]:
    """Return the runs of a suite, or of all, that the store remembers, the latest first."""
    store = existing(arguments.out)
    every = invocations(store, "run", "tune")
    mine = [one for one in every if arguments.suite in (None, one.name, one.source)]
    for message in store.messages:
        print(f"note: {message}", file=sys.stderr)
    if not mine:
        names = {one.name for one in every}
        raise UserError(unknown("suite", arguments.suite, names) if arguments.suite else "no suite was run here yet")
    return store, mine


def sync(arguments: argparse.Namespace) -> int:
    """Add to MLflow whatever the store has and MLflow lacks."""
    from bpcbench.tracking import mlflow

    store, mine = _invocations(arguments)
    for one in mine:
        with _mlflow_errors(store):
            added = mlflow.sync(one.manifest, store)
        print(f"{one.title}: {added} cells added to MLflow")
    return 0


@contextlib.contextmanager
def _mlflow_errors(store: Store) -> Iterator[None]:
    """Turn whatever MLflow raises into one message."""
    from bpcbench.tracking.mlflow import tracking_uri

    try:
        yield
    except Exception as error:
        where, text = tracking_uri(store.root), " ".join(str(error).split())[:300]
        raise UserError(f"MLflow at {where} cannot be written: {text}") from None


def ui(arguments: argparse.Namespace) -> int:
    """Serve the MLflow UI on this machine only, and open it at the suite's runs."""
    from bpcbench.tracking import mlflow

    store, mine = _invocations(arguments)
    latest = mine[0].manifest
    uri = mlflow.tracking_uri(store.root)
    remote = uri.startswith(("http://", "https://"))
    if not remote:
        _check_port(arguments.port)
    with _mlflow_errors(store):
        book = mlflow.Book(latest, store).open()
    base = uri.rstrip("/") if remote else f"http://127.0.0.1:{arguments.port}"
    # Flat, best first: the runs of cells, not the invocations above them.
    chosen = {
        "searchFilter": f"tags.`{mlflow.CELL_TAG}` != ''",
        "orderByKey": f"metrics.`{latest.shown[0]}`",
    }
    address = f"{base}/#/experiments/{book.experiment}/runs?{urlencode(chosen, quote_via=quote)}&orderByAsc=false"
    print(f"{latest.name}: {address}", flush=True)
    if remote:
        webbrowser.open(address)
        return 0
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", uri, "--host", "127.0.0.1"]
    command += ["--port", str(arguments.port), "--workers", "1"]
    command += ["--artifacts-destination", (store.root / mlflow.ARTIFACTS).as_uri()]
    server = subprocess.Popen(command)
    try:
        if not arguments.no_browser and _answers(arguments.port, server):
            webbrowser.open(address)
        return server.wait()
    except KeyboardInterrupt:
        return 0
    finally:
        server.terminate()
        server.wait()


def _check_port(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OverflowError:
            raise UserError(f"--port {port}: a port is at most 65535") from None
        except OSError as error:
            raise UserError(f"port {port} of 127.0.0.1 cannot be used ({error}); choose another with --port") from None


def _answers(port: int, server: subprocess.Popen[bytes]) -> bool:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and server.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return True
        time.sleep(0.3)
    return False


def doctor(arguments: argparse.Namespace) -> int:
    """Say what bpcbench finds around it; exit code 1 if something is broken."""
    from bpcbench.commands.data import examine

    broken = False
    print("versions")
    for name, value in provenance.versions().items():
        print(f"  {name:<14} {value}")
    print("machine")
    for name, value in provenance.machine().items():
        print(f"  {name:<14} {value}")
    print(f"  {'usable CPUs':<14} {usable_cpus()}")
    print(f"  {'device':<14} {_device()}")
    print("plugins")
    for plugin in registry().found:
        broken |= bool(plugin.error)
        state = f"NOT LOADED: {plugin.error}" if plugin.error else f"ok, brings {len(plugin.classes)}"
        print(f"  {plugin.name:<14} {f'{plugin.distribution} {plugin.version}'.strip()}: {state}")
    data = data_root(arguments.data)
    print(f"data sets (looked for in {data})")
    for name in registry().names("dataset"):
        holding = examine(name, data)
        print(f"  {name:<14} {holding.status}: {holding.says}")
    print(f"store {Path(arguments.out).absolute()}")
    problem, lines = _examine(Path(arguments.out))
    print("\n".join(f"  {line}" for line in lines))
    return 1 if broken or problem else 0


def _device() -> str:
    import importlib

    try:
        importlib.import_module("torch")
    except ImportError as error:
        return f"cpu (torch cannot be imported: {error})"
    return resolve_device("auto")


def _examine(root: Path) -> tuple[bool, list[str]]:
    from bpcbench.tracking.mlflow import tracking_uri

    if not (root / "store.json").exists():
        return False, ["none yet; a run makes it"]
    try:
        store = Store.open(root)
        with store.turn("doctor"):
            lines = ["locks: working" if not store.messages else f"locks: {store.messages[0]}"]
    except Busy:
        lines = ["locks: working"]
    except BpcbenchError as error:
        return True, [str(error)]
    lines.append(f"members: {sum(1 for _ in store.addresses()):,}, {spell_bytes(folder.size(store.root))}")
    damaged = list((store.root / "damaged").glob("*"))
    if damaged:
        lines.append(f"damaged: {len(damaged)} set aside in {store.root / 'damaged'}")
    free = shutil.disk_usage(store.root).free
    lines.append(f"free disk: {spell_bytes(free)}")
    uri = tracking_uri(store.root)
    made = not uri.startswith("sqlite:///") or Path(uri.removeprefix("sqlite:///")).exists()
    lines.append(f"MLflow: {uri}" + ("" if made else " (not made yet)"))
    return False, lines
