"""The MLflow server of `bpcbench ui`: started on this machine only, and ended with everything that it started."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bpcbench.errors import UserError
from bpcbench.tracking.location import ARTIFACTS, quiet_environment, tracking_uri

HOST = "127.0.0.1"
GRACE_SECONDS = 3.0
_START_SECONDS = 60.0


class Ended(Exception):
    """A signal has asked for the end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def check_port(port: int) -> None:
    """Raise UserError if the port cannot be used."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OverflowError:
            raise UserError(f"--port {port}: a port is at most 65535") from None
        except OSError as error:
            raise UserError(f"port {port} of {HOST} cannot be used ({error}); choose another with --port") from None


def serve(store: Path, port: int, ready: Callable[[], None]) -> int:
    """Serve the store's own MLflow until the server ends or SIGTERM, SIGHUP or Ctrl-C asks for it.

    Call `ready` once the server answers. Return the exit code: 0 after Ctrl-C, 128 + n after signal n.
    """
    command = _command(store, port)
    quiet_environment()
    # Jobs of GenAI evaluations would run in sessions of their own, which outlive the server.
    environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    server = None
    try:
        with _signals():
            server = subprocess.Popen(command, env=environment, start_new_session=True)
            if _answers(port, server):
                ready()
            return server.wait()
    except KeyboardInterrupt:
        return 0
    except Ended as ended:
        return 0 if ended.number == signal.SIGINT else 128 + ended.number
    finally:
        if server is not None:
            _end_group(server)


def _command(store: Path, port: int) -> list[str]:
    place = ["--backend-store-uri", tracking_uri(store), "--artifacts-destination", (store / ARTIFACTS).as_uri()]
    return [sys.executable, "-m", "mlflow", "server", *place, "--host", HOST, "--port", str(port), "--workers", "1"]


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    """Turn the signals that ask for the end into `Ended`; once one has come, further ones are ignored."""
    numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)

    def end(number: int, frame: types.FrameType | None) -> None:
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)
        raise Ended(number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[int, Any] = {number: signal.signal(number, end) for number in numbers}
    try:
        yield
    except BaseException:
        # Whatever ends the server must not be ended itself.
        raise
    else:
        for number, handler in before.items():
            signal.signal(number, handler)


def _answers(port: int, server: subprocess.Popen[bytes]) -> bool:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection((HOST, port), 1):
            return True
        time.sleep(0.2)
    return False


def _end_group(server: subprocess.Popen[bytes]) -> None:
    """End the server and its helpers: all of its process group, by force after a grace."""
    deadline = time.monotonic() + GRACE_SECONDS
    _signal_group(server.pid, signal.SIGTERM)
    while time.monotonic() < deadline and (server.poll() is None or _signal_group(server.pid, 0)):
        time.sleep(0.05)
    _signal_group(server.pid, signal.SIGKILL)
    server.wait()


def _signal_group(group: int, number: int) -> bool:
    """Send a signal to a process group; return whether there is one."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True
