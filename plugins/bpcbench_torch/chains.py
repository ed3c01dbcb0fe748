"""Running chains under the harness's loop, and keeping their samples in memory or on disk."""

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
    """A sampler: it moves the parameters of all its chains."""

    theta: Tensor
    """Where the chains are, (chains, size)."""

    def state(self) -> dict[str, Any]:
        """Return every object that changes from step to step, restored in place when a run is resumed."""

    def step(self, *, burning: bool) -> dict[str, Tensor]:
        """Move all chains by one step; return at least their `energy`, all values (chains,)."""


@dataclass(frozen=True)
class Schedule:
    """Which steps of a chain are kept: after `burn` steps every `thin`-th, `samples` times."""

    burn: int
    samples: int
    thin: int = 1

    @property
    def total(self) -> int:
        """The number of steps."""
        return self.burn + self.samples * self.thin

    def keeps(self, step: int) -> bool:
        """Say whether the chain is kept as it is after `step`, counted from 0."""
        done = step + 1 - self.burn
        return done > 0 and done % self.thin == 0


class Samples:
    """Kept parameters of all chains: in memory, or as files in `folder`, so that chains need memory for one only.

    A checkpoint holds those in memory themselves, and of those on disk the names of the files.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self._kept: list[Any] = []

    def keep(self, theta: Tensor) -> None:
        """Keep a copy of parameters (chains, size)."""
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
        return torch.from_numpy(np.array(np.load(kept, mmap_mode="r")[chain]))

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        return {"kept": list(self._kept)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint; samples on disk stay where the earlier attempt has written them."""
        self._kept = list(state["kept"])
        lost = [kept for kept in self._kept if not isinstance(kept, Tensor) and not Path(kept).exists()]
        if lost:
            raise ValueError(f"{len(lost)} samples that it names are gone, {lost[0]} among them")


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

    `state` names objects beside the kernel's that change from step to step. Logged are the means over chains of what
    the kernel returns and of what `describe(theta, energy)` adds.
    """
    everything = {**kernel.state(), **(state or {}), "samples": samples}
    for step in ctx.steps(schedule.total, state=everything, what=what):
        noted = kernel.step(burning=step < schedule.burn)
        if schedule.keeps(step):
            samples.keep(kernel.theta)
        if describe is not None:
            noted |= describe(kernel.theta, noted["energy"])
        ctx.log(**{name: values.mean() for name, values in noted.items()})
