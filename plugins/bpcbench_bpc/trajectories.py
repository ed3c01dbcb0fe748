"""Expert trajectories as a prerequisite, computed once and shared by all methods. Torch is imported to train them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from bpcbench.api import Context, Network, Prerequisite, option, refers
from bpcbench.records import Arrays, Data, Facts, Inputs, Need, Resources
from bpcbench_torch.operations import STEP
from bpcbench_torch.strategy import strategy

_BYTES = {"float32": 4, "float16": 2}


def expert_names(count: int) -> tuple[str, ...]:
    """Return the names of the members; a smaller number of experts is a prefix of a larger one, so they are shared."""
    return tuple(f"{index:03d}" for index in range(count))


def snapshot_name(epoch: int) -> str:
    """Return the name of the array that holds the flat parameters after this many epochs."""
    return f"{epoch:04d}"


def augmentation_for(name: str, channels: int) -> str:
    """Return the strategy; `auto` is DSA's list, without the flip for grey images."""
    if name != "auto":
        return name
    return "dsa-grey" if channels == 1 else "dsa"


@dataclass(frozen=True)
class Trajectories(Prerequisite):
    """Experts: networks trained by SGD on all training data, with their flat parameters at the start and every epoch.

    Each expert is a separate member, named by its index and seeded by that name: 10 experts are the first 10 of 100,
    and they train in parallel. Each snapshot is a separate array that can be read on its own. The defaults are those of
    Kim et al. (NeurIPS 2022). BatchNorm's buffers are not stored; the methods use batch statistics.
    """

    name: ClassVar[str] = "trajectories"
    resources: ClassVar[Resources] = Resources(gpus=1.0)
    preload: ClassVar[tuple[str, ...]] = ("torch", "torch._dynamo", "torch.optim")

    network: Network = refers(
        "network", "conv-in", "network of the experts", width=128, growth=1, order="conv-first", init="torch", eps=1e-5
    )
    epochs: int = option(50, "E: epochs per expert")
    lr: float = option(0.01, "learning rate")
    momentum: float = option(0.0, "momentum")
    weight_decay: float = option(0.0, "weight decay, added to the gradient")
    decay: bool = option(False, "divide the learning rate by 10 after the middle epoch")
    batch: int = option(256, "images per update; the last batch of an epoch may be smaller")
    augmentation: str = option("auto", "strategy (bpcbench_torch.augmentation); auto: DSA, without flips on grey")
    stride: int = option(1, "epochs between snapshots")
    dtype: Literal["float32", "float16"] = option("float32", "precision of stored snapshots")

    def __post_init__(self) -> None:
        """Reject invalid values."""
        for name in ("epochs", "batch", "stride"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not self.lr > 0:
            raise ValueError(f"lr must be above 0, got {self.lr}")
        if not 0 <= self.momentum < 1 or self.weight_decay < 0:
            raise ValueError("momentum must lie in [0, 1), and weight_decay must not be negative")
        if self.epochs % self.stride:
            raise ValueError(f"epochs must be a multiple of stride, got {self.epochs} and {self.stride}")
        strategy(augmentation_for(self.augmentation, 1), 1)

    @property
    def snapshots(self) -> tuple[int, ...]:
        """The epochs after which parameters are stored; 0 is the initialisation."""
        return tuple(range(0, self.epochs + 1, self.stride))

    def need(self, experts: int) -> Need:
        """Return the request of a method for this many experts."""
        return Need(self, expert_names(experts))

    def parameters(self, facts: Facts) -> int:
        """Return the number of parameters of an expert."""
        known = self.network.parameters(facts.shape, facts.classes)
        if known is not None:
            return known
        module = self.network.build(facts.shape, facts.classes, 0)
        return sum(value.numel() for value in module.parameters())

    def expected_bytes(self, facts: Facts) -> int:
        """Return the size of one expert: parameters times snapshots times bytes per number."""
        return self.parameters(facts) * len(self.snapshots) * _BYTES[self.dtype]

    def operations(self, facts: Facts) -> float | None:
        """Return epochs * n * 3 F for one expert, F being one image's forward pass."""
        one = self.network.operations(facts.shape, facts.classes)
        return None if one is None else STEP * self.epochs * facts.sizes["train"] * one

    def make(self, data: Data, inputs: Inputs, ctx: Context, member: str) -> Arrays:
        """Train one expert."""
        from bpcbench_bpc.expert import record

        return record(self, data, inputs.transform, ctx)
