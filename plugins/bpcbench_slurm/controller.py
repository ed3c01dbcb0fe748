"""Slurm's command line: what is submitted, what is in the queue, what is signalled."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from bpcbench.errors import EngineError
from bpcbench_slurm.request import environment

SECONDS = 60.0
"""How long a command may take."""
_AWAY = re.compile(
    r"contact slurm controller|timed out|connection|communication|temporarily|try again|standby mode|zero bytes"
    r"|transport endpoint|unexpected message|resource temporarily",
    re.IGNORECASE,
)
_FULL = re.compile(r"job submit limit|QOSMaxSubmitJob|AssocMaxSubmitJob|AssocGrpSubmitJob|MaxJobCount", re.IGNORECASE)
OVER = frozenset(
    {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED"}
    | {"REVOKED", "TIMEOUT"}
)
"""The states of a job that will not run any more."""


class Away(Exception):
    """The controller does not answer, which says nothing about jobs."""


class Full(Exception):
    """The cluster takes no more jobs of this user for now."""


@dataclass(frozen=True)
class Job:
    """A line of the queue; `script` is what was submitted."""

    id: str
    state: str
    reason: str
    script: str

    @property
    def over(self) -> bool:
        """Whether it will not run any more."""
        return self.state in OVER


class Controller:
    """Talks to the controller with sbatch, squeue and scancel. Whatever else goes wrong is an EngineError."""

    def submit(self, words: Sequence[str], script: Path) -> None:
        """Submit a batch script."""
        self._call(["sbatch", "--parsable", *words, str(script)])

    def jobs(self) -> list[Job]:
        """Return the user's jobs, those that ended lately among them."""
        found = []
        command = ["squeue", "--me", "--states=all", "--array", "--noheader", "--format=%i|%T|%r|%o"]
        for line in self._call(command).splitlines():
            parts = line.strip().split("|", 3)
            if len(parts) == 4:
                found.append(Job(parts[0], parts[1], parts[2], parts[3].strip()))
        return found

    def cancel(self, jobs: Collection[str], *options: str) -> None:
        """Cancel or signal jobs; those that are over already do not matter."""
        if jobs:
            self._call(["scancel", "--quiet", *options, *jobs], tolerate=True)

    def _call(self, command: list[str], *, tolerate: bool = False) -> str:
        try:
            # A session of its own: Ctrl-C is for this process alone.
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                check=False,
                timeout=SECONDS,
                env=environment(),
                start_new_session=True,
                stdin=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired:
            raise Away(f"{command[0]} took longer than {SECONDS:g} s") from None
        if done.returncode == 0:
            return done.stdout
        lines = [re.sub(r"^\w+: (error: |fatal: )?", "", line.strip()) for line in done.stderr.splitlines()]
        said = "; ".join(line for line in lines if line)
        if _FULL.search(said):
            raise Full(said)
        if _AWAY.search(said):
            raise Away(said)
        if tolerate:
            return ""
        raise EngineError(f"{command[0]}: {said or f'exit code {done.returncode}'}")
