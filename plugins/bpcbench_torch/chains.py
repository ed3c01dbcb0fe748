"""Run chains in the harness's loop and keep their samples in memory or on disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from bpcbench.api import Context


class Kernel(Protocol):
    """A sampler that updates the parameters of all its chains."""

    theta: Tensor
    """The current parameters of the chains, (chains, size)."""

    def state(self) -> dict[str, Any]:
        """Return all mutable objects; they are restored in place when a run resumes."""

    def step(self, *, burning: bool) -> dict[str, Tensor]:
        """Advance all chains by one step; return at least `energy`. Every value has shape (chains,)."""


@dataclass(frozen=True)
class Schedule:
    """The steps whose samples are kept: after `burn` steps, every `thin`-th one, `samples` times."""

    burn: int
    samples: int
    thin: int = 1

    @property
    def total(self) -> int:
        """The number of steps."""
        return self.burn + self.samples * self.thin

    def keeps(self, step: int) -> bool:
        """Return whether the sample after `step`, counted from 0, is kept."""
        done = step + 1 - self.burn
        return done > 0 and done % self.thin == 0


class Samples:
    """The kept samples of all chains: in memory, or as files in `folder`, with only the current one in memory.

    A checkpoint contains samples in memory themselves, and the file names of samples on disk.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self._kept: list[Any] = []

    def keep(self, theta: Tensor) -> None:
        """Store a copy of the parameters (chains, size)."""
        array = theta.detach().cpu().clone()
        if self.folder is None:
            self._kept.append(array)
        else:
            path = self.folder / f"sample-{len(self._kept):06d}.npy"
            np.save(path, array.numpy())
            self._kept.append(str(path))

    def __len__(self) -> int:
        """The number of samples of each chain."""
        return len(self._kept)

    def read(self, chain: int, index: int) -> Tensor:
        """Return one sample of one chain, (size,)."""
        kept = self._kept[index]
        if isinstance(kept, Tensor):
            return kept[chain]
        return torch.from_numpy(np.array(np.load(kept, mmap_mode="r", allow_pickle=False)[chain]))

    def state_dict(self) -> dict[str, Any]:
        """Return the content of a checkpoint."""
        return {"kept": list(self._kept)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a checkpoint; samples on disk stay where the earlier attempt wrote them."""
        self._kept = list(state["kept"])
        missing = [kept for kept in self._kept if not isinstance(kept, Tensor) and not Path(kept).exists()]
        if missing:
            raise ValueError(f"{len(missing)} samples named by the checkpoint are missing, such as {missing[0]}")


def run(
    kernel: Kernel,
    schedule: Schedule,
    samples: Samples,
    ctx: Context,
    *,
    state: Mapping[str, Any] | None = None,
    what: str = "",
    describe: Callable[[Tensor, Tensor], Mapping[str, Tensor]] | None = None,
) -> None:
    """Run all chains to the end of the schedule and keep their samples, with progress and exact resume.

    `state` holds further mutable objects by name. The means over chains of the kernel's values and of
    `describe(theta, energy)` are logged.
    """
    everything = {**kernel.state(), **(state or {}), "samples": samples}
    for step in ctx.steps(schedule.total, state=everything, what=what):
        values = kernel.step(burning=step < schedule.burn)
        if schedule.keeps(step):
            samples.keep(kernel.theta)
        if describe is not None:
            values |= describe(kernel.theta, values["energy"])
        ctx.log(**{name: value.mean() for name, value in values.items()})
