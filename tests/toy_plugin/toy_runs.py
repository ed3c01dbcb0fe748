"""Runs of suites of the toy plugin in real processes, for tests that kill them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

HERE = Path(__file__).parent
HEAD = """protocol: 1
datasets: [toy-data]
ipc: [2]
inferences: {inferences}
networks: [toy-net]
evaluators: [{evaluators}]
metrics: [acc, nll]
"""


class Toy:
    """A suite and a store in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.out = folder / "store"
        self.count = folder / "count.txt"
        self.suite = folder / "suite.yaml"
        self.mark = uuid.uuid4().hex

    def write(
        self, methods: str, *more: str, evaluators: str = "classification", inferences: str = "[toy-nearest]"
    ) -> Toy:
        """Write the suite: `methods` and further keys are YAML."""
        head = HEAD.format(evaluators=evaluators, inferences=inferences)
        self.suite.write_text("\n".join([head, f"methods: {methods}", *more]) + "\n")
        return self

    def environment(self, **settings: object) -> dict[str, str]:
        """Return the environment of a run; `pace=0.1` sets BPCBENCH_TEST_PACE and so on."""
        chosen = {name: value for name, value in os.environ.items() if not name.startswith("BPCBENCH_")}
        chosen |= {
            "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]),
            "BPCBENCH_PLUGINS": "bpcbench_toy",
            "BPCBENCH_TEST_COUNT": str(self.count),
            "BPCBENCH_TEST_MARK": self.mark,
            "BPCBENCH_CHECKPOINT_SECONDS": str(settings.pop("checkpoint", 0.05)),
        }
        return chosen | {f"BPCBENCH_TEST_{name.upper()}": str(value) for name, value in settings.items()}

    def start(
        self, *overrides: str, jobs: int = 2, group: bool = False, prefix: Sequence[str] = (), **settings: object
    ) -> subprocess.Popen[str]:
        """Start `bpcbench run` and return the process; `jobs=0` runs everything in that one process."""
        how = ["--jobs", str(jobs)] if jobs else ["--in-process"]
        command = [sys.executable, "-m", "bpcbench", "run", str(self.suite), *overrides, "--out", str(self.out)]
        with (self.folder / "output.txt").open("a") as output:
            return subprocess.Popen(
                [*prefix, *command, *how, "--no-mlflow"],
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                cwd=self.folder,
                env=self.environment(**settings),
                start_new_session=group,
            )

    def command(self, words: list[str], **settings: object) -> subprocess.CompletedProcess[str]:
        """Run a command with the suite's plugin to its end, and return all it printed as its stdout."""
        return subprocess.run(
            words,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.folder,
            env=self.environment(**settings),
            timeout=200,
        )

    def run(self, *overrides: str, expect: int = 0, **more: Any) -> str:
        """Run to the end, check the exit code, and return all output so far."""
        code = self.start(*overrides, **more).wait(200)
        assert code == expect, f"exit code {code}\n{self.output()}"
        return self.output()

    def output(self) -> str:
        """Return what all runs have printed."""
        return (self.folder / "output.txt").read_text()

    def said(self) -> int:
        """Return how many characters all runs have printed."""
        return len(self.output()) if (self.folder / "output.txt").exists() else 0

    def counted(self, *words: object) -> list[list[str]]:
        """Return the noted executions that begin with these words, without them."""
        lines = [line.split() for line in self.count.read_text().splitlines()] if self.count.exists() else []
        wanted = [str(word) for word in words]
        return [line[len(wanted) :] for line in lines if line[: len(wanted)] == wanted]

    def processes(self) -> dict[int, str]:
        """Return the living processes of all runs of this suite, by the mark in their environment."""
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if self.mark.encode() in (path / "environ").read_bytes():
                    found[int(path.name)] = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()[-60:]
            except OSError:
                continue
        return found

    def all_gone(self, seconds: float = 2.0) -> bool:
        """Wait until no process of a run is left; false if some live on after `seconds`."""
        return until(lambda: not self.processes(), seconds, fail=False)

    def kill_all(self) -> None:
        """End whatever a failed test has left."""
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)

    def scratch(self, pattern: str) -> list[Path]:
        """Return what lies in the scratch of stages under way; nothing if one of them ends while this looks."""
        try:
            return sorted((self.out / "scratch" / "stages").glob(pattern))
        except FileNotFoundError:
            return []

    def members(self, kind: str = "*") -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
        """Yield name, stage.json and arrays of what is committed."""
        for path in sorted((self.out / "stages").glob(f"{kind}/*/*/stage.json")):
            arrays = path.parent / "arrays.safetensors"
            name = str(path.parent.relative_to(self.out / "stages"))
            yield name, json.loads(path.read_text()), load_file(arrays) if arrays.exists() else {}

    def results(self) -> dict[str, Any]:
        """Return all that must not depend on how a run went: arrays as bytes, metrics, scalars, points of curves."""
        found: dict[str, Any] = {}
        for name, meta, arrays in self.members():
            found[name] = {key: (value.shape, value.tobytes()) for key, value in arrays.items()}
            metrics = {key: value for key, value in meta.get("metrics", {}).items() if key != "pid"}
            found[name]["meta"] = (metrics, meta.get("coreset", {}).get("recipe", {}).get("scalars"))
            curves = self.out / "stages" / name / "curves.jsonl"
            lines = [json.loads(line) for line in curves.read_text().splitlines()] if curves.exists() else []
            found[name]["curves"] = [(line["what"], line["step"], line["m"]) for line in lines]
        return found


def until(what: Callable[[], Any], seconds: float = 120.0, *, fail: bool = True) -> Any:
    """Wait for something to become true and return it."""
    end = time.monotonic() + seconds
    while not (found := what()):
        if time.monotonic() > end:
            assert not fail, "waited in vain"
            return found
        time.sleep(0.01)
    return found


def flip(path: Path, position: int = -1) -> None:
    """Change one byte of a file; its times show it, whatever the clock's resolution."""
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    before = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1_000_000))
