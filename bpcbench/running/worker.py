"""A worker process: forked from a server that has its framework loaded, it runs tasks and dies with its parent."""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import multiprocessing
import os
import signal
import sys
import threading
import time
import types
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from multiprocessing.popen_forkserver import Popen
from multiprocessing.process import BaseProcess
from typing import Any

from bpcbench.records import Task
from bpcbench.running.queue import Outcome

PRELOAD_VARIABLE = "BPCBENCH_PRELOAD"
_NEVER_INHERITED = "BPCBENCH_"
BEGUN = "begun"
"""What a worker says when it takes up a task."""
STARTING_SECONDS = 300.0
"""How long the server may take to load frameworks before the time of a stage begins to count."""
_STARTING = threading.Lock()
"""Held while a worker is started: what the environment and `__main__` are for that moment is global."""


class _OneReader(Popen):
    """A process whose exit code is read by one thread at a time.

    The fork server says it once, and whoever comes second would find the pipe closed and take 255 for the answer.
    Starting a process asks all others for theirs, so that a second thread may come at any time.
    """

    def __init__(self, process_obj: BaseProcess) -> None:
        self._reading = threading.Lock()
        super().__init__(process_obj)

    def poll(self, flag: int = os.WNOHANG) -> int | None:
        with self._reading:
            return super().poll(flag)


class _Process(ForkServerProcess):
    _Popen = staticmethod(_OneReader)


class Worker:
    """The parent's end of one worker process."""

    def __init__(self, preload: tuple[str, ...] = ()) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["bpcbench.running.preloaded"])
        self.connection, theirs = context.Pipe()
        # Never written to: that this end is closed tells the worker that its parent is gone.
        ending, self._alive = context.Pipe(duplex=False)
        with _STARTING:
            settings = {name: value for name, value in os.environ.items() if name.startswith(_NEVER_INHERITED)}
            self.process: Any = _Process(target=serve, args=(theirs, ending, settings))
            with _server_environment(preload), _no_main_module():
                self.process.start()
        theirs.close()
        ending.close()
        self.task: Task | None = None
        self._sent = 0.0
        self._begun: float | None = None

    def send(self, task: Task) -> None:
        """Hand over a task."""
        self.task = task
        self._sent, self._begun = time.monotonic(), None
        # A worker that died at once is found out by `result`.
        with contextlib.suppress(OSError):
            self.connection.send(task)

    def ready(self) -> list[Any]:
        """Return what to wait for: an answer, or the end of the process."""
        return [self.connection, self.process.sentinel]

    def result(self) -> Outcome | None:
        """Return the outcome if there is one; a process that died without an answer has failed."""
        assert self.task is not None
        # Asked for first: what it sent before it ended must not be missed.
        ended = not self.process.is_alive()
        try:
            while self.connection.poll():
                outcome = self.connection.recv()
                if isinstance(outcome, Outcome):
                    return outcome
                self._begun = time.monotonic()
        except (EOFError, OSError):
            # It has closed its end, so it is about to be gone.
            self.process.join(0.05)
        if not ended:
            return None
        message = _death(self.process.exitcode)
        note(self.task, message)
        return Outcome(self.task.id, "failed", message=message)

    def late(self) -> bool:
        """Say whether the task has taken longer than its timeout, not counting the start of server and process."""
        assert self.task is not None
        begun = self._sent + STARTING_SECONDS if self._begun is None else self._begun
        return self.task.timeout is not None and time.monotonic() - begun > self.task.timeout

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
        self._alive.close()
        self.process.close()


def note(task: Task, text: str) -> None:
    """Add a line to the log of a task, for what its own process could not say."""
    with contextlib.suppress(OSError):
        task.log.parent.mkdir(parents=True, exist_ok=True)
        with task.log.open("a") as stream:
            stream.write(f"{task.kind} {task.label}: {text}\n")


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


def serve(connection: Connection, ending: Connection, settings: Mapping[str, str]) -> None:
    """Run tasks until None arrives or the parent is gone. This is the whole life of a worker process."""
    _die_with_parent(ending)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # The server blocks it, so that one that comes while the worker starts is not lost but waits until here.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    faulthandler.enable(file=2)
    _adopt(settings)
    while True:
        try:
            task = connection.recv()
        except (EOFError, OSError):
            return
        if task is None:
            return
        with contextlib.suppress(OSError):
            connection.send(BEGUN)
        outcome = _run(task)
        with contextlib.suppress(OSError):
            connection.send(outcome)


def _run(task: Task) -> Outcome:
    from bpcbench.errors import Stopped
    from bpcbench.running.bodies import execute
    from bpcbench.running.context import StageContext

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
        return Outcome(task.id, "stopped", message="stopped")
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        # A disk that is full must not cost the answer.
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()


def _redirect(task: Task) -> None:
    task.log.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(task.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def _die_with_parent(ending: Connection) -> None:
    def watch() -> None:
        wait([ending])
        os._exit(70)

    threading.Thread(target=watch, daemon=True, name="parent-watch").start()
    if sys.platform == "linux":
        # The thread cannot run while a plugin holds the interpreter in one long call; the kernel can.
        descriptor = ending.fileno()
        fcntl.fcntl(descriptor, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_ASYNC)


def _adopt(settings: Mapping[str, str]) -> None:
    """Take over the parent's BPCBENCH_ variables: the server may have been started under others."""
    from bpcbench.registry.discovery import LOCAL_VARIABLE, registry

    if os.environ.get(LOCAL_VARIABLE) != settings.get(LOCAL_VARIABLE):
        registry.cache_clear()
    for name in [name for name in os.environ if name.startswith(_NEVER_INHERITED)]:
        del os.environ[name]
    os.environ.update(settings)
