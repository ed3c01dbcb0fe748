"""`bpcbench ui` serves the store, and leaves no process behind however it is ended."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

import bpcbench
from bpcbench.tracking.server import _end_group

SUITE = """
name: served
protocol: 1
datasets: [digits]
ipc: [1]
methods: [random]
inferences: {network: {steps: 2}}
networks: {conv-nn: {width: 2}}
seeds: 1
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    # A name with all that is special in an address.
    folder = tmp_path_factory.mktemp("served") / "50% of a #b ?c"
    folder.mkdir()
    (folder / "suite.yaml").write_text(SUITE)
    assert bpcbench.run(str(folder / "suite.yaml"), out=folder / "store", inline=True).exit_code == 0
    return folder / "store"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def processes(mark: str) -> list[int]:
    """The processes whose environment has a mark."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            alive = "Z" not in (path / "stat").read_text().rpartition(")")[2].split()[0]
            if alive and mark.encode() in (path / "environ").read_bytes():
                found.append(int(path.name))
        except OSError:
            continue
    return found


def asked_by(host: str, port: int) -> int:
    """Return the status of an answer to a request that names a host."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/", headers={"Host": host})
    try:
        return int(urllib.request.urlopen(request, timeout=20).status)
    except urllib.error.HTTPError as error:
        return error.code


def ended_by(
    command: list[str], port: int, number: int, folder: Path, look: Callable[[], object] = lambda: None
) -> tuple[int, str]:
    """Start a command, wait until the port answers, send a signal; return the exit code and what was printed.

    No process of it may be left. `look` is called while it runs.
    """
    mark = f"BPCBENCH_TEST_MARK={folder}"
    environment = {**os.environ, "BPCBENCH_TEST_MARK": str(folder)}
    environment.pop("MLFLOW_TRACKING_URI", None)
    with (folder / "output.txt").open("w") as output:
        ui = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + 90
        status = 0
        while not status and time.monotonic() < deadline and ui.poll() is None:
            try:
                status = urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=2).status
            except OSError:
                time.sleep(0.1)
        assert status == 200, (folder / "output.txt").read_text()
        assert len(processes(mark)) > 2, "the command, the server and its helper"
        look()
        ui.send_signal(number)
        code = ui.wait(20)
        assert processes(mark) == []
    finally:
        for process in processes(mark):
            os.kill(process, signal.SIGKILL)
    return code, (folder / "output.txt").read_text()


needs_proc = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")


@needs_proc
@pytest.mark.campaign
def test_the_interface_of_a_store_is_ended_with_all_its_helpers(store, tmp_path):
    port = free_port()
    command = [sys.executable, "-m", "bpcbench", "ui", "--out", str(store), "--port", str(port), "--no-browser"]
    statuses = []

    def look() -> None:
        statuses.extend(asked_by(host, port) for host in ("elsewhere.example", f"127.0.0.1:{port}"))

    code, printed = ended_by(command, port, signal.SIGTERM, tmp_path, look)
    assert statuses == [403, 200], "only this machine is answered"
    assert code == 128 + signal.SIGTERM
    assert f"http://127.0.0.1:{port}/#/experiments/1/runs?workflowType=machine_learning" in printed
    assert "viewStateShareKey=results" in printed


STAND_IN = """
import sys
from pathlib import Path
from bpcbench.tracking import server

helped = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); "
served = "from http.server import *; "
served += "HTTPServer(('127.0.0.1', int(sys.argv[1])), SimpleHTTPRequestHandler).serve_forever()"
server._command = lambda store, port: [sys.executable, "-c", helped + served, str(port)]
sys.exit(server.serve(Path("."), int(sys.argv[1]), lambda: None))
"""


@needs_proc
@pytest.mark.parametrize(("number", "code"), [(signal.SIGHUP, 128 + signal.SIGHUP), (signal.SIGINT, 0)])
def test_a_closed_terminal_and_ctrl_c_end_it_too(number, code, tmp_path):
    port = free_port()
    assert ended_by([sys.executable, "-c", STAND_IN, str(port)], port, number, tmp_path)[0] == code


def test_a_group_that_ignores_the_request_is_ended_by_force(monkeypatch):
    monkeypatch.setattr("bpcbench.tracking.server.GRACE_SECONDS", 0.3)
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"
    server = subprocess.Popen([sys.executable, "-c", deaf], start_new_session=True, stdout=subprocess.PIPE)
    assert server.stdout is not None
    server.stdout.readline()
    _end_group(server)
    assert server.returncode == -signal.SIGKILL
