"""The actor of one attempt: it starts the worker process, forwards stops, enforces the timeout, and ends with it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping

LINGER_SECONDS = 10.0
"""How long the actor stays when its worker has ended, so that the run hears of it."""


class StageActor:
    """Runs on a node. Methods run in threads of their own, so that `stop` is heard while `join` waits."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def start(
        self,
        task: str,
        log: str,
        python: str | None,
        environment: Mapping[str, str],
        timeout: float | None,
        grace: float,
    ) -> tuple[str, int]:
        """Start the worker and return the node and the process.

        The worker writes a checkpoint and stops when its standard input is closed: when this process is gone.
        """
        command = [python or sys.executable, "-m", "bpcbench.running.worker", task, "--bound", "stop"]
        with open(log, "ab") as output:  # noqa: PTH123 - a text from another process
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env={**os.environ, **environment},
                start_new_session=True,
            )
        threading.Thread(target=self._follow, args=(timeout, grace), daemon=True).start()
        return socket.gethostname(), self._process.pid

    def join(self) -> int | None:
        """Wait for the end of the worker and return its exit code."""
        return None if self._process is None else self._process.wait()

    def stop(self, grace: float) -> None:
        """Ask the worker to write a checkpoint and end; after the grace it is killed, whether or not a run listens."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            threading.Timer(grace, self.kill).start()

    def kill(self) -> None:
        """Kill the worker and all it has started."""
        if self._process is not None and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def _follow(self, timeout: float | None, grace: float) -> None:
        assert self._process is not None
        try:
            # Later than the run would: it knows better what to say.
            self._process.wait(None if timeout is None else timeout + 2 * grace)
        except subprocess.TimeoutExpired:
            self.stop(grace)
            self._process.wait()
        threading.Event().wait(LINGER_SECONDS)
        os._exit(0)
