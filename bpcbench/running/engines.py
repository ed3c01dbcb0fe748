"""The built-in engines: a process per stage on this machine, or everything in this very process for a debugger.

Their pools are imported when a run opens them: this module is loaded by every command.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from bpcbench.api import Engine, Pool, option
from bpcbench.hooks import hookimpl
from bpcbench.records import RunInfo
from bpcbench.running.device import gpu_count, usable_cpus

BPCBENCH_API = 1


@dataclass(frozen=True)
class Local(Engine):
    """Processes on this machine: one per stage, forked from a server that has the frameworks loaded.

    At most `jobs` stages run at once, and at most as many as fit on the GPUs (`gpus` of a method or an inference may
    be a fraction). A stage that crashes, hangs past its timeout or is killed fails alone.
    """

    name = "local"
    retries: ClassVar[int] = 1
    """One: on one machine a worker that is killed has most likely used too much memory, and would again."""

    gpus: int | None = option(None, "GPUs to use; none: all that are visible", key=False)

    def open(self, run: RunInfo) -> Pool:
        """Return a pool of worker processes."""
        from bpcbench.running.local import LocalPool

        gpus = gpu_count() if self.gpus is None else self.gpus
        slots = max(1, usable_cpus() // max(1, run.threads)) if self.jobs is None else max(1, self.jobs)
        return LocalPool(run, slots, gpus)


@dataclass(frozen=True)
class Inline(Engine):
    """This process, one stage after the other: for pdb, profilers and coverage. Nothing is isolated, no timeouts."""

    name = "inline"
    in_process: ClassVar[bool] = True

    def open(self, run: RunInfo) -> Pool:
        """Return a pool that executes in `wait`."""
        from bpcbench.running.inline import InlinePool

        return InlinePool(run)


@hookimpl
def bpcbench_engines() -> list[type[Any]]:
    """Register the built-in engines."""
    return [Local, Inline]
