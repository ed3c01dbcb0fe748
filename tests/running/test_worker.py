"""Worker processes as their parent sees them."""

from __future__ import annotations

import multiprocessing.forkserver
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from bpcbench.running.worker import Worker


def test_two_threads_ask_how_it_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every start of a process asks it of all others, in whatever thread it is, and the answer comes only once."""
    read = multiprocessing.forkserver.read_signed

    def slowly(descriptor: int) -> int:
        time.sleep(0.2)
        return read(descriptor)

    worker = Worker()
    try:
        monkeypatch.setattr(multiprocessing.forkserver, "read_signed", slowly)
        os.kill(worker.process.pid, signal.SIGKILL)
        with ThreadPoolExecutor(3) as threads:
            found = [threads.submit(worker.process.join) for _ in range(3)]
            assert [one.result() for one in found] == [None] * 3
        assert worker.process.exitcode == -signal.SIGKILL
    finally:
        worker.close(kill=True)
