"""Conformance tests for anyone's engine. Subclass `EngineConformance` in a pytest file and set `plugin`.

They run suites of the plugins in `bpcbench.testing.probes`. The engine's module must be importable by its name in
other processes of this machine.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from unittest import SkipTest

from bpcbench.api import Engine
from bpcbench.records import RunInfo
from bpcbench.testing.plugins import PluginConformance
from bpcbench.testing.probes import Entry, read_journal

if TYPE_CHECKING:
    from bpcbench.running.run import Result

PROBES = "bpcbench.testing.probes"
_RUNNER = "import sys; from bpcbench.testing.engines import main; sys.exit(main(*sys.argv[1:]))"
_HOLDER = """
import pathlib, sys
from bpcbench.store.store import Store
with Store.open(pathlib.Path(sys.argv[1])).lock(sys.argv[2]):
    print("held", flush=True)
    sys.stdin.read()
"""


@dataclass
class Bench:
    """A suite of probes and a store in a folder, run by an engine."""

    folder: Path
    engine: Engine
    grace: float
    reports: list[str] = field(default_factory=list)

    @property
    def out(self) -> Path:
        """The store."""
        return self.folder / "store"

    @property
    def suite(self) -> Path:
        """The suite's file."""
        return self.folder / "suite.yaml"

    def write(self, methods: dict[str, dict[str, Any]], **more: Any) -> Bench:
        """Write the suite: options of probes by label, and further keys."""
        self.folder.mkdir(parents=True, exist_ok=True)
        journal = str(self.folder / "journal.jsonl")
        suite = {
            "protocol": 1,
            "datasets": ["probe-data"],
            "ipc": [2],
            "preprocessing": "probe-scale",
            "methods": {
                label: {"plugin": "probe", "journal": journal, **options} for label, options in methods.items()
            },
            "inferences": {"probe-inference": {"journal": journal}},
            "networks": ["probe-network"],
            "evaluators": {"probe-evaluator": {"journal": journal}},
            "metrics": ["acc"],
            **more,
        }
        self.suite.write_text(json.dumps(suite))
        return self

    def journal(self, event: str = "", who: str = "") -> list[Entry]:
        """Return the entries of that event and that probe; empty means any."""
        entries = read_journal(self.folder / "journal.jsonl")
        return [entry for entry in entries if event in ("", entry.event) and who in ("", entry.who)]

    def run(self) -> Result:
        """Run the suite to its end."""
        from bpcbench.running.run import Runner
        from bpcbench.session import Session
        from bpcbench.store.store import Store

        prepared = Session(str(self.suite), out=self.out).prepare()
        store = Store.open(prepared.out)
        runner = Runner(
            prepared.registry,
            prepared.plan,
            store,
            prepared.data,
            self.engine,
            report=self.reports.append,
            grace=self.grace,
        )
        return runner.run()

    def stage(self, label: str) -> str:
        """Return the id of the stage that distils with the method of that label."""
        from bpcbench.session import Session

        stages = Session(str(self.suite), out=self.out).plan().stages
        return next(p.id for p in stages if p.kind == "coreset" and f" {label} " in f" {p.label} ")

    def results(self) -> dict[str, dict[str, bytes]]:
        """Return all arrays of the store, as bytes."""
        from safetensors.numpy import load_file

        files = sorted((self.out / "stages").glob("*/*/*/arrays.safetensors"))
        return {
            str(file.relative_to(self.out)): {name: array.tobytes() for name, array in load_file(file).items()}
            for file in files
        }

    def checkpoints(self) -> list[Path]:
        """Return the checkpoints of interrupted attempts."""
        return sorted((self.out / "scratch" / "stages").glob("*/*/checkpoint-*"))

    def all_gone(self, seconds: float = 10.0) -> bool:
        """Wait until every process that has executed a probe is gone, this one excepted."""
        pids = {entry.pid for entry in self.journal()} - {os.getpid()}
        return _until(lambda: not any(map(_alive, pids)), seconds)


def _alive(pid: int) -> bool:
    found = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    state = found.stdout.strip()
    return bool(state) and not state.startswith("Z")


def _until(condition: Callable[[], Any], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


@contextlib.contextmanager
def _meanwhile(action: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run a function in a thread; the event it gets is set when the block has ended."""
    over = threading.Event()
    thread = threading.Thread(target=action, args=(over,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


class EngineConformance(PluginConformance):
    """An engine executes every attempt it took, reports how each began and ended, and leaves nothing behind."""

    plugin: ClassVar[Engine]
    grace: ClassVar[float] = 20.0
    """How many seconds attempts get to stop; a run that is stopped ends within them."""
    timeout: ClassVar[float] = 5.0
    """The timeout of a stage in the test of timeouts; the start of a worker must not take longer."""

    @contextlib.contextmanager
    def bench(self, folder: Path, *, jobs: int | None = 2) -> Iterator[Bench]:
        """Make the probes known to this process and to workers, and return a bench."""
        from bpcbench.registry.discovery import LOCAL_VARIABLE, registry

        before = os.environ.get(LOCAL_VARIABLE)
        os.environ[LOCAL_VARIABLE] = ",".join(filter(None, [before, PROBES]))
        registry.cache_clear()
        try:
            yield Bench(folder, dataclasses.replace(self.plugin, jobs=jobs), self.grace)
        finally:
            if before is None:
                del os.environ[LOCAL_VARIABLE]
            else:
                os.environ[LOCAL_VARIABLE] = before
            registry.cache_clear()

    def _isolated(self) -> None:
        if self.plugin.in_process:
            raise SkipTest("stages run in this process")

    def test_inputs_come_first(self, tmp_path: Path) -> None:
        """Everything is done, once, and inputs before what is made from them."""
        with self.bench(tmp_path) as bench:
            result = bench.write({"a": {"number": 1}, "b": {"number": 2}}).run()
            assert (result.exit_code, result.counts) == (0, {"done": 7}), bench.reports
            assert [len(bench.journal("begin", who)) for who in ("1", "2", "fit", "score")] == [1, 1, 2, 2]
            order = [entry.event + entry.who for entry in bench.journal()]
            assert min(order.index("end1"), order.index("end2")) < order.index("beginfit") < order.index("beginscore")
            assert bench.run().counts == {}

    def test_as_many_at_once_as_jobs(self, tmp_path: Path) -> None:
        """`jobs` stages run at the same time, and never more; an in-process engine runs one."""
        wanted = 1 if self.plugin.in_process else 2
        probes = {f"p{i}": {"number": i, "meet": wanted, "steps": 4, "pace": 0.05} for i in range(5)}
        with self.bench(tmp_path) as bench:
            assert bench.write(probes).run().exit_code == 0
            assert len(bench.journal("met")) == 5
            most = under_way = 0
            for entry in bench.journal():
                under_way += {"begin": 1, "end": -1}.get(entry.event, 0) if entry.who.isdigit() else 0
                most = max(most, under_way)
            assert most == wanted

    def test_a_failure_is_isolated(self, tmp_path: Path) -> None:
        """A stage that raises is not tried again; what needs it is skipped, everything else is done."""
        with self.bench(tmp_path) as bench:
            result = bench.write({"bad": {"number": 1, "behaviour": "raise"}, "good": {"number": 2}}).run()
            assert result.exit_code == 1
            assert result.counts == {"done": 4, "failed": 1, "skipped": 2}
            assert [failure.message for failure in result.failures] == ["LookupError: as asked"]
            assert "LookupError: as asked" in result.failures[0].log.read_text()
            assert len(bench.journal("begin", "1")) == 1

    def test_a_stop_keeps_a_checkpoint(self, tmp_path: Path) -> None:
        """Ctrl-C ends the run within the grace, nothing runs on, and the next run ends with the same bits."""
        options: dict[str, Any] = {"number": 1, "steps": 500}
        with self.bench(tmp_path) as bench:
            bench.write({"a": {**options, "pace": 0.05}})
            sent: list[float] = []

            def interrupt(over: threading.Event) -> None:
                while not over.wait(0.02):
                    if len(bench.journal("step")) >= 3:
                        sent.append(time.monotonic())
                        os.kill(os.getpid(), signal.SIGINT)
                        return

            with _meanwhile(interrupt):
                result = bench.run()
                ended = time.monotonic()
            assert result.signal == signal.SIGINT
            assert ended - sent[0] < self.grace
            assert bench.all_gone(), "a process lives on after the run has stopped"
            assert len(bench.checkpoints()) == 1
            assert result.counts.get("failed", 0) == 0
            bench.write({"a": options})
            assert bench.run().exit_code == 0
            first, second = bench.journal("from", "1")
            assert (first.step, second.step > 3) == (0, True)
            reference = dataclasses.replace(bench, folder=tmp_path / "reference").write({"a": options})
            assert reference.run().exit_code == 0
            assert bench.results() == reference.results()

    def test_a_stage_that_does_not_stop_is_killed(self, tmp_path: Path) -> None:
        """After the grace, what ignores the request to stop is ended all the same."""
        self._isolated()
        with self.bench(tmp_path) as bench:
            bench.grace = 1.0
            bench.write({"a": {"number": 1, "behaviour": "deaf"}})

            def interrupt(over: threading.Event) -> None:
                while not over.wait(0.02):
                    if bench.journal("begin", "1"):
                        time.sleep(0.2)
                        os.kill(os.getpid(), signal.SIGTERM)
                        return

            with _meanwhile(interrupt):
                result = bench.run()
            assert result.signal == signal.SIGTERM
            assert bench.all_gone()

    def test_a_lost_worker_is_replaced(self, tmp_path: Path) -> None:
        """A worker that is killed is replaced; one that always is, `retries` times."""
        self._isolated()
        with self.bench(tmp_path) as bench:
            bench.write({"once": {"number": 1, "behaviour": "vanish-once"}})
            assert bench.run().exit_code == 0
            assert len(bench.journal("begin", "1")) == 2
            assert len([line for line in bench.reports if line.startswith("worker lost: ")]) == 1
            bench.write({"always": {"number": 2, "behaviour": "vanish"}, "good": {"number": 3}})
            result = bench.run()
            assert len(bench.journal("begin", "2")) == 1 + self.plugin.retries
            assert result.counts == {"done": 3, "failed": 1, "skipped": 2}

    def test_a_busy_stage_is_waited_for(self, tmp_path: Path) -> None:
        """While another process works on a stage, the others go on; then it is done too."""
        with self.bench(tmp_path) as bench:
            from bpcbench.store.store import Store

            bench.write({"busy": {"number": 1}, "free": {"number": 2}})
            Store.open(bench.out)
            command = [sys.executable, "-c", _HOLDER, str(bench.out), bench.stage("busy")]
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
            holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
            assert holder.stdin is not None
            assert holder.stdout is not None
            released: list[float] = []

            def release(over: threading.Event) -> None:
                _until(lambda: bench.journal("begin", "score") or over.is_set(), 60)
                time.sleep(0.5)
                released.append(time.time())
                holder.communicate()

            assert holder.stdout.readline() == b"held\n"
            with _meanwhile(release):
                result = bench.run()
            assert (result.exit_code, result.counts) == (0, {"done": 7})
            (begin,) = bench.journal("begin", "1")
            assert begin.time >= released[0]

    def test_a_timeout(self, tmp_path: Path) -> None:
        """A stage that takes too long fails, alone, and its process ends."""
        self._isolated()
        with self.bench(tmp_path) as bench:
            bench.write({"slow": {"number": 1, "behaviour": "sleep"}, "good": {"number": 2}}, timeout=self.timeout)
            result = bench.run()
            assert [failure.message for failure in result.failures] == [
                f"it took longer than its timeout of {self.timeout:g} s"
            ]
            assert result.counts == {"done": 4, "failed": 1, "skipped": 2}
            assert bench.all_gone()

    def test_the_runner_is_killed(self, tmp_path: Path) -> None:
        """Attempts die with it or, if the engine is detached, are adopted by the next run and finished."""
        with self.bench(tmp_path) as bench:
            bench.write({"a": {"number": 1, "steps": 60, "pace": 0.1}})
            cls = type(self.plugin)
            options = dataclasses.asdict(bench.engine)
            words = [cls.__module__, cls.__qualname__, json.dumps(options), str(bench.folder)]
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
            runner = subprocess.Popen([sys.executable, "-c", _RUNNER, *words], env=environment)
            try:
                assert _until(lambda: len(bench.journal("step")) > 3 or runner.poll() is not None, 60)
                assert runner.poll() is None
            finally:
                runner.kill()
                runner.wait()
            if not self.plugin.detached:
                # Sooner than the stage would have ended by itself.
                assert bench.all_gone(3.0), "a process lives on after its runner was killed"
                return
            (worker,) = {entry.pid for entry in bench.journal("begin", "1")}
            assert _alive(worker)
            pool = bench.engine.open(RunInfo(store=bench.out, run="test"))
            assert [task.id for task in pool.adopt()] == [bench.stage("a")]
            pool.close()
            assert bench.run().exit_code == 0
            assert len(bench.journal("begin", "1")) == 1
            assert bench.all_gone()


def main(module: str, name: str, options: str, folder: str) -> int:
    """Run a bench in a process of its own, which a test kills."""
    cls: Any = importlib.import_module(module)
    for part in name.split("."):
        cls = getattr(cls, part)
    return Bench(Path(folder), cls(**json.loads(options)), EngineConformance.grace).run().exit_code
