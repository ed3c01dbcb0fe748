"""Whether the head node of the cluster is still there: Ray itself says so only by ending the process."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

from bpcbench.errors import EngineError

LOOK_SECONDS = 2.0
"""How often the head node is looked for while nothing happens."""
AWAY_SECONDS = 30.0
"""How long the head node may be away. After 60 s Ray ends this process without a word of ours."""


class Head:
    """The head node of the cluster, without which calls are answered neither well nor badly."""

    def __init__(self, address: str, report: Callable[[str], None]) -> None:
        self._address, self._report = address, report
        self._next = 0.0
        self._since: float | None = None

    def answers(self, *, fresh: bool = False) -> bool:
        """Look whether it accepts connections, but not often unless `fresh`; EngineError after it was away for long."""
        now = time.monotonic()
        if now >= self._next or fresh:
            self._next = now + LOOK_SECONDS
            self._look(now)
        return self._since is None

    def _look(self, now: float) -> None:
        host, _, port = self._address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=LOOK_SECONDS).close()
        except OSError:
            if self._since is None:
                self._since = now
                self._report("the head node of the Ray cluster does not answer; waiting for it")
            elif now - self._since > AWAY_SECONDS:
                raise EngineError(
                    f"the head node of the Ray cluster at {self._address} is gone; start the cluster again, then this"
                ) from None
        else:
            if self._since is not None:
                self._report("the head node of the Ray cluster answers again")
            self._since = None
