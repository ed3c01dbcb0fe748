"""The built-in engines: a process per stage on this machine, or everything in this very process for a debugger.

Their pools are imported when a run opens them: this module is loaded by every command.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from bpcbench.api import Engine, Pool, option
from bpcbench.hooks import hookimpl
from bpcbench.records import RunInfo
from bpcbench.running.device import usable_cpus

BPCBENCH_API = 1


@dataclass(frozen=True)
class Local(Engine):
    """Processes on this machine, forked from a server that has the frameworks loaded: one per stage on the CPU.

    On a GPU one process executes stage after stage, because starting CUDA takes seconds (`reuse`).

    At most `jobs` stages run at once, and at most as many as fit on the GPUs (`gpus` of a method or an inference may
    be a fraction, and `overrides` sets it). A stage that crashes, hangs past its timeout or is killed fails alone.
    """

    name = "local"
    retries: ClassVar[int] = 1
    """One: on one machine a worker that is killed has most likely used too much memory, and would again."""

    gpus: int | None = option(None, "GPUs to use; none: all that are visible", key=False)
    overrides: dict[str, Any] = option({}, "by method or inference: {vbpc: {gpus: 0.5}}", key=False)

    reuse: Literal["gpus", "always", "never"] = option(
        "gpus", "one process for stage after stage: on GPUs, always or never", key=False
    )

    def __post_init__(self) -> None:
        """Reject what is no number of GPUs."""
        if self.gpus is not None and self.gpus < 0:
            raise ValueError(f"gpus must not be negative, got {self.gpus}")
        for name, values in self.overrides.items():
            gpus = values.get("gpus") if isinstance(values, dict) and set(values) == {"gpus"} else None
            if isinstance(gpus, bool) or not isinstance(gpus, int | float) or not 0 <= gpus <= 1:
                raise ValueError(f"overrides.{name}: expected a mapping such as {{gpus: 0.5}}, 0 to 1, got {values!r}")

    def open(self, run: RunInfo) -> Pool:
        """Return a pool of worker processes."""
        from bpcbench.running.gpus import visible_gpus
        from bpcbench.running.local import LocalPool

        gpus = visible_gpus()[: self.gpus]
        shares = {name: float(values["gpus"]) for name, values in self.overrides.items()}
        slots = max(1, usable_cpus() // max(1, run.threads)) if self.jobs is None else max(1, self.jobs)
        return LocalPool(run, slots, gpus, shares, reuse=self.reuse)


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
