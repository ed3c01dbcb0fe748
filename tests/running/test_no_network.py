"""A run, with MLflow and workers, asks nobody outside of this machine: every other connection is refused here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.campaign
# Imported by every interpreter that is started, the fork server and the MLflow of a run included.
REFUSE = """
import os, socket

def _refused(address):
    with open(os.environ["REFUSED"], "a") as stream:
        stream.write(f"{address!r}\\n")
    raise PermissionError(f"no network in this test: {address!r}")

def _checked(function):
    def call(self, address, *more):
        inside = self.family == socket.AF_UNIX or (isinstance(address, tuple) and address[0] in ("127.0.0.1", "::1"))
        return function(self, address, *more) if inside else _refused(address)
    return call

for _name in ("connect", "connect_ex", "sendto"):
    setattr(socket.socket, _name, _checked(getattr(socket.socket, _name)))
_look_up = socket.getaddrinfo

def _local(host, *arguments, **options):
    return _look_up(host, *arguments, **options) if host in (None, "127.0.0.1", "::1", "localhost") else _refused(host)

socket.getaddrinfo = _local
"""

TESTED = (
    "PYTEST_", "CI", "GITHUB_", "GITLAB_", "JENKINS_", "TRAVIS", "TF_BUILD", "BITBUCKET_", "CODEBUILD_", "BUILDKITE",
    "TEAMCITY_", "CLOUD_RUN_", "RUNBOT_", "DO_NOT_TRACK",
)  # fmt: skip
"""How the names of variables begin by which MLflow knows that it is tested: then it has no telemetry anyway."""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "refuse").mkdir()
    (tmp_path / "refuse" / "sitecustomize.py").write_text(REFUSE)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MLFLOW_", "BPCBENCH_", *TESTED))}
    path = [str(tmp_path / "refuse"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**kept, "PYTHONPATH": os.pathsep.join(path), "REFUSED": str(tmp_path / "refused.txt")}


def run(words: list[str], folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=280)


@pytest.mark.timeout(600)
def test_a_run_needs_no_network(environment: dict[str, str], tmp_path: Path) -> None:
    suite = ["quickstart", "ipc=[1]", "seeds=1", "methods=[random, kmeans]", "networks.conv-bn.width=8"]
    for words in (["plan", *suite], ["run", *suite, "--jobs", "2"], ["report", *suite], ["doctor"], ["sync"]):
        done = run(["-m", "bpcbench", *words], tmp_path, environment)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
    assert (tmp_path / "results" / "mlflow.db").exists()
    assert not (tmp_path / "refused.txt").exists(), (tmp_path / "refused.txt").read_text()


def test_connections_to_elsewhere_are_noticed(environment: dict[str, str], tmp_path: Path) -> None:
    for program in (
        "import socket; socket.create_connection(('192.0.2.1', 9), 1)",
        "import urllib.request; urllib.request.urlopen('http://example.org')",
        "import multiprocessing as m, socket\n"
        "def f(): socket.create_connection(('192.0.2.2', 9), 1)\n"
        "if __name__ == '__main__': p = m.get_context('forkserver').Process(target=f); p.start(); p.join(); exit(1)",
    ):
        (tmp_path / "program.py").write_text(program)
        assert run(["program.py"], tmp_path, environment).returncode == 1
    refused = (tmp_path / "refused.txt").read_text()
    assert all(name in refused for name in ("192.0.2.1", "example.org", "192.0.2.2"))
