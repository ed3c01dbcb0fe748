"""A worker process: forked from a server that has its framework loaded, it runs tasks and dies with its parent."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import types
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection, wait
from typing import Any

from bpcbench.engine import Outcome, Task

PRELOAD_VARIABLE = "BPCBENCH_PRELOAD"
_NEVER_INHERITED = "BPCBENCH_"


class Worker:
    """The parent's end of one worker process."""

    def __init__(self, preload: tuple[str, ...] = ()) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["bpcbench.preloaded"])
        self.connection, theirs = context.Pipe()
        settings = {name: value for name, value in os.environ.items() if name.startswith(_NEVER_INHERITED)}
        self.process: Any = context.Process(target=serve, args=(theirs, settings))
        with _server_environment(preload), _no_main_module():
            self.process.start()
        theirs.close()
        self.task: Task | None = None

    def send(self, task: Task) -> None:
        """Hand over a task."""
        self.task = task
        # A worker that died at once is found out by `result`.
        with contextlib.suppress(OSError):
            self.connection.send(task)

    def ready(self) -> list[Any]:
        """Return what to wait for: an answer, or the end of the process."""
        return [self.connection, self.process.sentinel]

    def result(self) -> Outcome | None:
        """Return the outcome if there is one; a process that died without an answer has failed."""
        assert self.task is not None
        try:
            if self.connection.poll():
                outcome = self.connection.recv()
                assert isinstance(outcome, Outcome)
                return outcome
        except (EOFError, OSError):
            pass
        if self.process.is_alive():
            self.process.join(0.05)
            if self.process.is_alive():
                return None
        if self.connection.poll():
            return self.result()
        return Outcome(self.task.stage.id, "failed", message=_death(self.process.exitcode))

    def terminate(self) -> None:
        """Ask the process to stop: it writes a checkpoint first."""
        if self.process.is_alive():
            self.process.terminate()

    def close(self, *, kill: bool = False) -> None:
        """End the process and release what it holds."""
        if kill:
            self.process.kill()
        else:
            with contextlib.suppress(OSError):
                self.connection.send(None)
        self.process.join(5)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.connection.close()
        self.process.close()


def _death(code: int | None) -> str:
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        hint = " (out of memory?)" if name == "SIGKILL" else ""
        return f"the worker was killed by {name}{hint}"
    return f"the worker ended with code {code} before it answered"


@contextlib.contextmanager
def _server_environment(preload: tuple[str, ...]) -> Iterator[None]:
    """Set what the fork server must find in its environment when it starts; libraries read it at import."""
    wanted = {PRELOAD_VARIABLE: ",".join(dict.fromkeys(preload)), "OMP_WAIT_POLICY": "passive"}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update({name: before[name] or value for name, value in wanted.items()})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _no_main_module() -> Iterator[None]:
    """Keep multiprocessing from importing the caller's script again: a task needs nothing from it."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def serve(connection: Connection, settings: Mapping[str, str]) -> None:
    """Run tasks until None arrives or the parent is gone. This is the whole life of a worker process."""
    _die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _adopt(settings)
    while True:
        try:
            task = connection.recv()
        except (EOFError, OSError):
            return
        if task is None:
            return
        outcome = _run(task)
        with contextlib.suppress(OSError):
            connection.send(outcome)


def _run(task: Task) -> Outcome:
    from bpcbench.context import StageContext
    from bpcbench.errors import Stopped
    from bpcbench.stages import execute

    running: list[StageContext] = []

    def stop(signum: int, frame: types.FrameType | None) -> None:
        if running and running[-1].looping:
            running[-1].stopping = True
        else:
            raise Stopped

    if task.visible is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = task.visible
    _redirect(task)
    signal.signal(signal.SIGTERM, stop)
    try:
        return execute(task, running.append)
    except Stopped:
        return Outcome(task.stage.id, "stopped", message="stopped")
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        sys.stdout.flush()
        sys.stderr.flush()


def _redirect(task: Task) -> None:
    task.log.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(task.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(70)

    threading.Thread(target=watch, daemon=True, name="parent-watch").start()


def _adopt(settings: Mapping[str, str]) -> None:
    """Take over the parent's BPCBENCH_ variables: the server may have been started under others."""
    from bpcbench.plugins import LOCAL_VARIABLE, registry

    if os.environ.get(LOCAL_VARIABLE) != settings.get(LOCAL_VARIABLE):
        registry.cache_clear()
    for name in [name for name in os.environ if name.startswith(_NEVER_INHERITED)]:
        del os.environ[name]
    os.environ.update(settings)
