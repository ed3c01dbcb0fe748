"""Worker processes, which execute tasks.

`Worker` is the parent's end of a process that is forked from a server with the frameworks loaded, gets tasks as JSON
through a pipe, and dies with its parent. `python -m bpcbench.running.worker TASK.json` executes one task anywhere.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import fcntl
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
import types
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from multiprocessing.popen_forkserver import Popen
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from bpcbench.records import Ended, Started, Task
from bpcbench.running.exhaustion import OUT_OF_MEMORY, kernel_kills
from bpcbench.running.processes import descendants, end_tree, lead

PRELOAD_VARIABLE = "BPCBENCH_PRELOAD"
_NEVER_INHERITED = "BPCBENCH_"
SERVER_SECONDS = 900.0
"""How long the server may take to start a process before it is ended: some libraries wait for memory for ever."""
STARTING_SECONDS = 300.0
"""How long the server may take to load frameworks before a stage's timeout starts."""
EXIT_CODES = {"done": 0, "cached": 0, "failed": 1, "busy": 75, "stopped": 128 + signal.SIGTERM}
"""The exit codes of `python -m bpcbench.running.worker` by status; 2 if the task cannot be read."""
_CRASHES = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT}
"""Signals of a crash in the stage's own code; any other signal means the process was killed from outside."""
_SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
_NO_SERVER = 1000
"""The exit code of a worker whose fork server, which would know it, was killed."""
_STARTING = threading.Lock()
"""Held while a worker starts: the environment and `__main__` are changed for that moment, and are global."""


class _OneReader(Popen):
    """A process whose exit code is read by one thread at a time.

    The fork server sends it once; a second reader would see a closed pipe. Starting a process polls all others, so a
    second reader may come at any time. A server that was killed sends nothing: then it is `_NO_SERVER`, which no
    process can return, and nothing is known of the worker.
    """

    def __init__(self, process_obj: BaseProcess) -> None:
        self._reading = threading.Lock()
        super().__init__(process_obj)

    def poll(self, flag: int = os.WNOHANG) -> int | None:
        with self._reading:
            if self.returncode is None and wait([self.sentinel], 0 if flag == os.WNOHANG else None):
                try:
                    self.returncode = forkserver.read_signed(self.sentinel)
                except (OSError, EOFError):
                    self.returncode = _NO_SERVER
            return self.returncode


class _Process(ForkServerProcess):
    _Popen = staticmethod(_OneReader)


class Worker:
    """The parent's end of one worker process."""

    def __init__(self, preload: tuple[str, ...] = ()) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["bpcbench.running.preloaded"])
        self.connection, theirs = context.Pipe()
        # Never written to: when this end closes, the worker knows that its parent is gone.
        ending, self._alive = context.Pipe(duplex=False)
        with _STARTING:
            settings = {name: value for name, value in os.environ.items() if name.startswith(_NEVER_INHERITED)}
            self.process: Any = _Process(target=serve, args=(theirs, ending, settings))
            with _server_environment(preload), _no_main_module(), _server_watched(), _signals_blocked():
                self.process.start()
        theirs.close()
        ending.close()
        self.task: Task | None = None
        self._sent = 0.0
        self._begun = False
        self._kills: int | None = None

    def send(self, task: Task) -> None:
        """Hand over a task."""
        self.task = task
        self._sent, self._begun, self._kills = time.monotonic(), False, kernel_kills()
        # If the worker is already dead, `events` reports it.
        with contextlib.suppress(OSError):
            self.connection.send_bytes(json.dumps(task.to_json()).encode())

    def ready(self) -> list[Any]:
        """Return what to wait for: an answer, or the end of the process."""
        return [self.connection, self.process.sentinel]

    def events(self) -> Iterator[Started | Ended]:
        """Yield the events of the task; a process that dies without an answer ends it too."""
        assert self.task is not None
        # Checked before reading: messages sent before the end must not be missed.
        ended = not self.process.is_alive()
        try:
            while self.connection.poll():
                answer = json.loads(self.connection.recv_bytes())
                if answer is None:
                    yield from self._start()
                else:
                    yield Ended.from_json(answer)
                    return
        except (EOFError, OSError):
            # It has closed its end, so it is about to exit.
            self.process.join(0.05)
        if ended:
            yield death(self.task, self.process.exitcode, self._kills)
        elif time.monotonic() - self._sent > STARTING_SECONDS:
            yield from self._start()

    def _start(self) -> Iterator[Started]:
        assert self.task is not None
        if not self._begun:
            self._begun = True
            yield Started(self.task.attempt)

    def terminate(self) -> None:
        """Ask the process to stop: it writes a checkpoint first."""
        if self.process.is_alive():
            self.process.terminate()

    def kill(self) -> None:
        """End the process and everything that it has started at once."""
        end_tree(self.process.pid)

    def close(self, *, kill: bool = False) -> None:
        """End the process and release what it holds."""
        # Whatever a plugin has left running ends with its worker.
        below = descendants(self.process.pid)
        if not kill:
            with contextlib.suppress(OSError):
                self.connection.send_bytes(b"null")
            self.process.join(5)
        end_tree(self.process.pid, below)
        self.process.join()
        self.connection.close()
        self._alive.close()
        self.process.close()


def note(task: Task, text: str) -> None:
    """Append a line to the log of a task, for what its own process could not write."""
    with contextlib.suppress(OSError):
        task.log.parent.mkdir(parents=True, exist_ok=True)
        with task.log.open("a", encoding="utf-8") as stream:
            stream.write(f"{task.kind} {task.label}: {text}\n")


def death(task: Task, code: int | None, kills: int | None = None) -> Ended:
    """Return the `Ended` of a task whose process died without an answer; `code` is its exit code as in `subprocess`.

    A process killed from outside counts as lost, and is retried: also one that the kernel killed to get memory, for
    others may have used most of it. One that exits or crashes by itself would do so again. `kills` is what
    `kernel_kills` returned when the task was handed over.
    """
    now = kernel_kills()
    known = kills is not None and now is not None
    exhausted = code == -signal.SIGKILL and (now or 0) > (kills or 0) and known
    if exhausted:
        message, lost = f"{OUT_OF_MEMORY} on this machine: the worker was killed by the kernel", True
    elif code is not None and code < 0:
        name = signal.Signals(-code).name
        hint = " (out of memory?)" if name == "SIGKILL" and not known else ""
        message, lost = f"the worker was killed by {name}{hint}", -code not in _CRASHES
    elif code == _NO_SERVER:
        message, lost = "the process that starts workers was killed", True
    else:
        message, lost = f"the worker ended with code {code} before it answered", code is None
    note(task, message)
    return Ended(task.attempt, "failed", message, lost=lost, out_of_memory=exhausted)


@contextlib.contextmanager
def _server_environment(preload: tuple[str, ...]) -> Iterator[None]:
    """Set the environment that the fork server starts with; libraries read it at import."""
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
def _signals_blocked() -> Iterator[None]:
    """Start what is started meanwhile with signals blocked: Ctrl-C reaches a fork server that is still importing, too.

    The server ignores them in its own time, and workers unblock them.
    """
    # It is started first, because it would unblock them.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _server_watched() -> Iterator[None]:
    """Kill a fork server that does not answer meanwhile: whoever waits for it gets EOFError."""

    def end() -> None:
        # Not known before it was started; the next process starts a new one.
        server = getattr(forkserver._forkserver, "_forkserver_pid", None)
        if server is not None:
            end_tree(server)

    timer = threading.Timer(SERVER_SECONDS, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


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
    """Run tasks until null arrives or the parent is gone. This is the whole life of a forked worker."""
    lead()
    _die_with_parent(ending.fileno())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    # The server blocks them, so that a signal sent while the worker starts stays pending until here.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    faulthandler.enable(file=2)
    _adopt(settings)
    while True:
        try:
            received = json.loads(connection.recv_bytes())
        except (EOFError, OSError):
            return
        if received is None:
            return
        with contextlib.suppress(OSError):
            connection.send_bytes(b"null")
        ended = _run(Task.from_json(received), (signal.SIGTERM,), signal.SIG_DFL)
        with contextlib.suppress(OSError):
            connection.send_bytes(json.dumps(ended.to_json()).encode())


def _run(
    task: Task,
    signals: Sequence[signal.Signals],
    afterwards: signal.Handlers,
    ready: Callable[[], None] | None = None,
) -> Ended:
    """Execute a task in this process; any of the signals stops it, with a checkpoint if it is in a loop.

    `ready` is called when signals are handled.
    """
    from bpcbench.errors import Stopped
    from bpcbench.running.bodies import execute
    from bpcbench.running.context import StageContext

    contexts: list[StageContext] = []
    over = False

    def stop(signum: int, frame: types.FrameType | None) -> None:
        nonlocal over
        if contexts and contexts[-1].looping:
            contexts[-1].stopping = True
        elif not over:
            # Raised once: a second signal must not interrupt the clean-up after the first.
            over = True
            raise Stopped

    if task.visible is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = task.visible
    _redirect(task)
    try:
        for number in signals:
            signal.signal(number, stop)
        if ready is not None:
            ready()
        outcome = execute(task, contexts.append)
        return outcome.ended(task.attempt)
    except Stopped:
        return Ended(task.attempt, "stopped", "stopped")
    finally:
        over = True
        for number in signals:
            signal.signal(number, afterwards)
        # A full disk must not cost the answer.
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()


def main(words: Sequence[str] | None = None) -> int:
    """Execute the task that a JSON file describes, write its outcome file, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bpcbench.running.worker", description=main.__doc__)
    parser.add_argument("task", type=Path, metavar="TASK.json")
    parser.add_argument(
        "--bound",
        nargs="?",
        choices=("kill", "stop"),
        const="kill",
        help="when standard input is closed, end at once (kill), or with a checkpoint (stop)",
    )
    arguments = parser.parse_args(words)
    if arguments.bound == "kill":
        _die_with_parent(0)
    try:
        task = Task.from_json(json.loads(arguments.task.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"{arguments.task} is not a task: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    faulthandler.enable(file=2)
    # Ignored afterwards: a late signal must not cost the outcome.
    ready = (lambda: _stop_with_parent(0)) if arguments.bound == "stop" else None
    ended = _run(task, (signal.SIGTERM, signal.SIGINT), signal.SIG_IGN, ready)
    _write_outcome(task, ended)
    return EXIT_CODES[ended.status or "failed"]


def _write_outcome(task: Task, ended: Ended) -> None:
    file = task.outcome_file
    temporary = file.with_suffix(f".{uuid.uuid4().hex}")
    # Without the file, the runner checks the store.
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(ended.to_json()), encoding="utf-8")
        temporary.replace(file)


def _redirect(task: Task) -> None:
    """Send everything that is printed into the task's log, in UTF-8 whatever the locale."""
    task.log.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(task.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(descriptor, number)
        stream = getattr(sys, name)
        if stream is None:  # it was closed when this process started
            setattr(sys, name, os.fdopen(number, "w", encoding="utf-8", errors="backslashreplace", closefd=False))
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    os.close(descriptor)


def _die_with_parent(descriptor: int) -> None:
    """End this process, and its whole group if it leads one, when the other end of a pipe is closed."""
    leads = os.getpgrp() == os.getpid()

    def watch() -> None:
        wait([descriptor])
        if leads:
            os.killpg(0, signal.SIGKILL)
        os._exit(70)

    threading.Thread(target=watch, daemon=True, name="parent-watch").start()
    # The thread cannot run while a plugin holds the GIL in one long call; where supported, the kernel sends SIGKILL.
    set_signal = getattr(fcntl, "F_SETSIG", None)
    if set_signal is not None:
        fcntl.fcntl(descriptor, fcntl.F_SETOWN, -os.getpid() if leads else os.getpid())
        fcntl.fcntl(descriptor, set_signal, signal.SIGKILL)
        fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_ASYNC)


def _stop_with_parent(descriptor: int) -> None:
    """Send SIGTERM to this process when the other end of a pipe is closed."""

    def watch() -> None:
        wait([descriptor])
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True, name="parent-watch").start()


def _adopt(settings: Mapping[str, str]) -> None:
    """Adopt the parent's BPCBENCH_ variables: the server may have been started with others."""
    from bpcbench.registry.discovery import LOCAL_VARIABLE, registry

    if os.environ.get(LOCAL_VARIABLE) != settings.get(LOCAL_VARIABLE):
        registry.cache_clear()
    for name in [name for name in os.environ if name.startswith(_NEVER_INHERITED)]:
        del os.environ[name]
    os.environ.update(settings)


if __name__ == "__main__":
    sys.exit(main())
