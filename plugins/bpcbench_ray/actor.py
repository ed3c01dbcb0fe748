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
    """Runs on a node. Methods run in threads of their own, so that `stop` is heard while `join` waits.

    The worker is started with the actor: Ray keeps calls of methods in the process that makes them until the actor
    lives, and such a call is lost with that process.
    """

    def __init__(
        self,
        task: str,
        log: str,
        python: str | None,
        environment: Mapping[str, str],
        timeout: float | None,
        grace: float,
    ) -> None:
        """Start the worker, which writes a checkpoint and stops when its standard input closes: with this process."""
        self._process: subprocess.Popen[bytes] | None = None
        self._error: OSError | None = None
        command = [python or sys.executable, "-m", "bpcbench.running.worker", task, "--bound", "stop"]
        try:
            with open(log, "ab") as output:  # noqa: PTH123 - a text from another process
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=output,
                    env={**os.environ, **environment},
                    start_new_session=True,
                )
        except OSError as error:
            self._error = error
        threading.Thread(target=self._follow, args=(timeout, grace), daemon=True).start()

    def where(self) -> tuple[str, int]:
        """Return the node and the process of the worker; OSError if it could not be started."""
        if self._error is not None:
            raise self._error
        assert self._process is not None
        return socket.gethostname(), self._process.pid

    def join(self) -> int | None:
        """Wait for the end of the worker and return its exit code."""
        return None if self._process is None else self._process.wait()

    def stop(self, grace: float) -> None:
        """Ask the worker to write a checkpoint and end; after the grace it is killed, whether or not a run listens."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            timer = threading.Timer(grace, self.kill)
            timer.daemon = True
            timer.start()

    def kill(self) -> None:
        """Kill the worker and all it has started."""
        if self._process is not None and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def _follow(self, timeout: float | None, grace: float) -> None:
        if self._process is not None:
            try:
                # Later than the run would: it knows better what to say.
                self._process.wait(None if timeout is None else timeout + 2 * grace)
            except subprocess.TimeoutExpired:
                self.stop(grace)
                self._process.wait()
        threading.Event().wait(LINGER_SECONDS)
        self._leave()

    def _leave(self) -> None:
        """End this process, and the actor with it."""
        os._exit(0)
