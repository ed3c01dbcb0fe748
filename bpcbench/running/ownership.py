"""Whose an attempt is, when several runs share a store and an engine whose attempts outlive the runs.

An attempt belongs to the run that submitted it. When that run is no more, the first that claims the attempt owns it: it
alone stops it, applies its timeout and reads its outcome.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from pathlib import Path

from bpcbench.records import Task
from bpcbench.store import leases
from bpcbench.store.locks import Busy

ABANDONED_SECONDS = 86400.0


class Ownership:
    """The attempts that one run owns, noted in a folder that all runs of an engine share."""

    def __init__(self, folder: Path, run: str) -> None:
        self.run = run
        self._runs, self._claims = folder / "runs", folder / "claims"
        self._lease: leases.Lease | None = None

    def begin(self) -> None:
        """Let other runs see that this one lives."""
        self._lease = leases.acquire(self._runs / self.run)
        self._sweep()

    def end(self) -> None:
        """Let other runs take over what is left."""
        if self._lease is not None:
            self._lease.release()
            shutil.rmtree(self._runs / self.run, ignore_errors=True)

    def claim(self, task: Task) -> bool:
        """Say whether the attempt is now this run's: its owner is gone, and no other run was faster."""
        self._claims.mkdir(parents=True, exist_ok=True)
        owner, number = task.run, 0
        while (successor := self._claim(task, number + 1)) is not None:
            owner, number = successor, number + 1
        if owner == self.run:
            return True
        if leases.living(self._runs / owner):
            return False
        try:
            descriptor = os.open(self._file(task.attempt, number + 1), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            return False
        with os.fdopen(descriptor, "w") as stream:
            stream.write(self.run)
        return True

    def forget(self, attempt: str) -> None:
        """Remove the notes of an attempt that is over."""
        with contextlib.suppress(OSError):
            for file in self._claims.glob(f"{attempt}-*"):
                file.unlink()

    def _claim(self, task: Task, number: int) -> str | None:
        try:
            return self._file(task.attempt, number).read_text().strip()
        except OSError:
            return None

    def _file(self, attempt: str, number: int) -> Path:
        return self._claims / f"{attempt}-{number}"

    def _sweep(self) -> None:
        """Remove what runs that were killed have left behind."""
        for left in [*self._runs.glob("*/"), *self._claims.glob("*")]:
            with contextlib.suppress(OSError, Busy):
                if time.time() - left.stat().st_mtime > ABANDONED_SECONDS and not leases.living(left):
                    shutil.rmtree(left) if left.is_dir() else left.unlink()
