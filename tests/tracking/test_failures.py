"""Cells that fail have runs that say why, and a tracking server that never answers does not hold a run up."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import toys

import bpcbench
from bpcbench.cli import main
from bpcbench.tracking.live import SERVER_SECONDS, Tracker
from bpcbench.tracking.location import quiet_environment, tracking_uri
from bpcbench.tracking.mlflow import Book

SUITE = toys.TOYS.replace("[pick]", "[pick, moody]").replace("[1, 2]", "[1]") + "metrics: [right]\n"


@dataclass(frozen=True)
class Moody(toys.Pick):
    """Fails while a file exists."""

    name = "moody"

    def distil(self, data, ipc, inputs, ctx):
        if Path(toys.__file__).with_name("moody.no").exists():
            raise RuntimeError("not today")
        return super().distil(data, ipc, inputs, ctx)


def runs(store):
    quiet_environment()
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri(store))
    (experiment,) = [each for each in client.search_experiments() if each.name != "Default"]
    return client.search_runs([experiment.experiment_id])


def kinds(found, kind):
    return [run for run in found if run.data.tags["bpcbench.kind"] == kind]


def test_a_failed_cell_says_why_until_it_succeeds(tmp_path, monkeypatch, install, write_suite):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    install(toys, Moody)
    mood = tmp_path / "moody.no"
    monkeypatch.setattr(toys, "__file__", str(tmp_path / "toys.py"))
    mood.touch()
    suite, store = write_suite(SUITE), tmp_path / "store"
    assert bpcbench.run(suite, out=store, inline=True).exit_code == 1
    found = runs(store)
    failed = [run for run in kinds(found, "cell") if run.info.status == "FAILED"]
    assert sorted(run.data.tags["mlflow.runName"] for run in failed) == [
        f"moody seed {distil}.{evaluate}" for distil in (0, 1) for evaluate in (0, 1)
    ]
    for run in failed:
        assert "not today" in run.data.tags["failed.reason"]
        log = (store / run.data.tags["failed.log"]).read_text()
        assert "Traceback" in log
        relative = run.info.artifact_uri.removeprefix("mlflow-artifacts:/")
        assert (store / "mlflow-artifacts" / relative / "failed.log").read_text() == log
        assert run.data.params["method"] == "moody"
        assert run.info.end_time >= run.info.start_time
    assert [run.data.params["method"] for run in kinds(found, "summary")] == ["pick"]
    assert [run.info.status for run in kinds(found, "suite")] == ["FAILED"]
    mood.unlink()
    assert bpcbench.run(suite, out=store, inline=True).exit_code == 0
    found = runs(store)
    assert [run.info.status for run in kinds(found, "cell")] == ["FINISHED"] * 8
    assert sorted(run.data.params["method"] for run in kinds(found, "summary")) == ["moody", "pick"]
    ranks = {run.data.params["method"]: run.data.tags.get("rank.right") for run in kinds(found, "summary")}
    assert all(ranks.values()), "the summary that was there is rewritten: it now has a rival"


@pytest.fixture
def dripping_server():
    """A server that takes every request and answers a byte at a time, without end."""
    server = socket.create_server(("127.0.0.1", 0))
    ended = threading.Event()

    def drip(connection):
        with connection:
            while not ended.wait(0.2):
                try:
                    connection.sendall(b"H" if drip.begun else b"HTTP/1.1 200 OK\r\nX: ")
                    drip.begun = True
                except OSError:
                    return

    drip.begun = False

    def accept():
        while not ended.is_set():
            try:
                connection, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=drip, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield f"http://127.0.0.1:{server.getsockname()[1]}"
    ended.set()
    server.close()


class _Answering(BaseHTTPRequestHandler):
    """Answers every request with an error, after a while."""

    seconds = 0.0

    def answer(self):
        time.sleep(self.seconds)
        self.send_error(500, "out of order")

    def __getattr__(self, name):
        if name.startswith("do_"):
            return self.answer
        raise AttributeError(name)

    def log_message(self, *_):
        pass


@pytest.mark.campaign
@pytest.mark.parametrize("seconds", [0.0, 3.0], ids=["failing", "slow"])
def test_a_server_that_fails_or_is_slow_costs_seconds_and_loses_nothing(
    seconds, tmp_path, monkeypatch, install, write_suite, capsys
):
    install(toys)
    handler = type("Handler", (_Answering,), {"seconds": seconds})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    quiet_environment()
    import mlflow  # noqa: F401 - its import takes seconds that say nothing about the server

    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{server.server_address[1]}")
    said = []
    try:
        before = time.monotonic()
        suite = write_suite(SUITE.replace("[pick, moody]", "[pick]"))
        done = bpcbench.run(suite, out=tmp_path / "s", inline=True, report_to=said.append)
        took = time.monotonic() - before
    finally:
        server.shutdown()
        server.server_close()
    assert done.exit_code == 0
    assert took < SERVER_SECONDS + 15
    assert any("cannot be written" in line and "bpcbench sync" in line for line in said)
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert main(["sync", "--out", str(tmp_path / "s")]) == 0
    assert "4 cells added" in capsys.readouterr().out


@pytest.mark.campaign
def test_a_dripping_server_costs_seconds_and_loses_nothing(toy, dripping_server, monkeypatch, capsys):
    toy.write("[toy-loop]", "seeds: {distil: 1, evaluate: 2}")
    command = [sys.executable, "-m", "bpcbench", "run", str(toy.suite), "--out", str(toy.out), "--in-process"]
    environment = {**toy.environment(), "MLFLOW_TRACKING_URI": dripping_server}
    # The bpcbench that is tested, wherever it was imported from.
    environment["PYTHONPATH"] += os.pathsep + os.environ.get("PYTHONPATH", "")
    before = time.monotonic()
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=100, cwd=toy.folder)
    seconds = time.monotonic() - before
    assert ended.returncode == 0, ended.stderr
    assert "cannot be written" in ended.stderr
    assert "bpcbench sync" in ended.stderr
    # The run itself and MLflow's import take seconds too.
    assert seconds < SERVER_SECONDS + 40
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert main(["sync", "--out", str(toy.out)]) == 0
    assert "2 cells added" in capsys.readouterr().out


def test_the_last_writing_says_how_much_is_left(tmp_path, monkeypatch, install, write_suite):
    install(toys)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr("bpcbench.tracking.live.BAR_SECONDS", 0.1)
    suite = write_suite(SUITE.replace("[pick, moody]", "[pick]"))
    done = bpcbench.run(suite, out=tmp_path / "s", inline=True, track=False)
    begin = Book.begin
    monkeypatch.setattr(Book, "begin", lambda book: (time.sleep(0.5), begin(book))[1])
    said = []
    tracker = Tracker(done.view.manifest, done.view.store, set(), said.append)
    tracker.start()
    tracker.close(ok=True)
    assert not tracker.failed
    (line,) = said
    assert re.fullmatch(r"writing \d+ entr(y|ies) to MLflow \.\.\.", line)
    assert len(kinds(runs(tmp_path / "s"), "cell")) == 4
