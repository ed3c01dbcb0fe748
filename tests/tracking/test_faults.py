"""An MLflow that is damaged, locked, full, silent or somebody else's: a note, the results, and `sync` later."""

from __future__ import annotations

import errno
import os
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import toys

import bpcbench
from bpcbench.cli import main
from bpcbench.store.store import Store
from bpcbench.tracking.live import SERVER_SECONDS
from bpcbench.tracking.location import quiet_environment
from bpcbench.tracking.mlflow import Book

pytestmark = pytest.mark.campaign
SUITE = toys.TOYS.replace("[1, 2]", "[1]") + "metrics: [right]\n"
CELLS = 4


@pytest.fixture
def run(
    install: Callable[..., Any], write_suite: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], tuple[list[str], float]]:
    """Return a function that runs a suite with MLflow: what it said, and how many seconds it took."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    install(toys)
    suite = write_suite(SUITE)
    quiet_environment()
    import mlflow  # noqa: F401 - its import takes seconds that say nothing about the server

    def once() -> tuple[list[str], float]:
        said: list[str] = []
        before = time.monotonic()
        done = bpcbench.run(suite, out=tmp_path / "s", inline=True, report_to=said.append)
        assert done.exit_code == 0
        assert set(done.counts) == {"done"}
        return said, time.monotonic() - before

    return once


def noted(said: list[str]) -> str:
    """Return the one note about MLflow, which is a sentence."""
    (note,) = [line for line in said if "cannot be written" in line]
    assert "`bpcbench sync` adds them to MLflow later" in note
    assert "Traceback" not in "\n".join(said)
    assert len(note) < 1000
    return note


def synced(store: Path, capsys: pytest.CaptureFixture[str], cells: int = CELLS) -> None:
    capsys.readouterr()
    assert main(["sync", "--out", str(store)]) == 0
    assert " added to MLflow" in capsys.readouterr().out


def test_a_damaged_database(run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Store.open(tmp_path / "s")
    (tmp_path / "s" / "mlflow.db").write_bytes(b"no database at all" * 1000)
    said, _ = run()
    assert "database" in noted(said)
    assert main(["sync", "--out", str(tmp_path / "s")]) == 2
    error = capsys.readouterr().err
    assert "cannot be written" in error
    assert "Traceback" not in error
    (tmp_path / "s" / "mlflow.db").unlink()
    # MLflow keeps the connection to the file that was deleted: another process makes a new one.
    again = [sys.executable, "-m", "bpcbench", "sync", "--out", str(tmp_path / "s")]
    assert "4 cells added" in subprocess.run(again, capture_output=True, text=True, timeout=200).stdout


def test_a_locked_database(
    run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bpcbench.tracking.live.STALL_SECONDS", 3.0)
    Store.open(tmp_path / "s")
    holder = sqlite3.connect(tmp_path / "s" / "mlflow.db")
    holder.execute("create table held (x int)")
    holder.commit()
    holder.execute("begin exclusive")
    said, _ = run()
    noted(said)
    holder.rollback()
    holder.execute("drop table held")
    holder.commit()
    holder.close()
    # The thread that waited for the lock may still be writing what it began.
    for thread in threading.enumerate():
        if thread.name == "tracker":
            thread.join(60)
    assert main(["sync", "--out", str(tmp_path / "s")]) == 0
    synced(tmp_path / "s", capsys, 0)


@pytest.mark.parametrize("cell", [0, 2])
def test_a_full_disk_while_cells_are_logged(
    cell: int, run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    logged, log = [], Book.log_cell

    def full(book: Book, *arguments: Any) -> Any:
        logged.append(arguments)
        if len(logged) > cell:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(tmp_path / "s" / "mlflow.db"))
        return log(book, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(Book, "log_cell", full)
        said, _ = run()
    assert "No space left on device" in noted(said)
    synced(tmp_path / "s", capsys, CELLS - cell)


class _Page(BaseHTTPRequestHandler):
    """Answers everything with a page, as a proxy or a login does."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<html><body>Please log in</body></html>")

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def page() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Page)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()


@pytest.fixture
def silence() -> Iterator[str]:
    """A server that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize("server", ["page", "silence"])
def test_a_server_that_is_none(
    server: str,
    run: Any,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", request.getfixturevalue(server))
    said, seconds = run()
    noted(said)
    assert seconds < SERVER_SECONDS + 40
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    synced(tmp_path / "s", capsys)


def test_no_secret_is_written_anywhere(
    run: Any, page: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither in the store, nor in what is printed: credentials of a server, and what only the environment holds."""
    monkeypatch.setenv("SOME_API_TOKEN", "t0ken-in-environment")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", page.replace("//", "//somebody:pass-in-address@"))
    said, _ = run()
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "pass-of-environment")
    assert main(["doctor", "--out", str(tmp_path / "s")]) in (0, 1)
    assert main(["sync", "--out", str(tmp_path / "s")]) == 2
    shown = "".join(capsys.readouterr()) + "\n".join(said)
    files = [path for path in (tmp_path / "s").rglob("*") if path.is_file()]
    assert len(files) > 20
    for secret in ("t0ken-in-environment", "pass-in-address", "pass-of-environment"):
        assert secret not in shown
        assert [path for path in files if secret.encode() in path.read_bytes()] == []
