"""What methods that distil through a pool of networks share: VBPC and FRePo differ only in what they override.

Torch is imported when something is distilled.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from bpcbench.api import Context, Method, Network, option, refers
from bpcbench.records import Convention, Coreset, Data, Facts, Given
from bpcbench_torch.strategy import strategy

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class PoolMethod(Method):
    """Learns images X and labels Y by gradient descent on an outer loss over features of pool networks.

    Each step: draw a network of the pool; compute its features of a real batch (constant) and of X; take one optimiser
    step of X and Y on the outer loss; take one Adam step of the network on 0.5 * ||f(X) - Y||^2 with the new X, Y.
    """

    preload: ClassVar[tuple[str, ...]] = ("torch", "torch._dynamo", "torch.optim")

    steps: int = option(500_000, "outer steps")
    batch: int = option(1024, "real images per step")
    network: Network = refers("network", "conv-bn", "the network that is trained in the pool")
    pool: int = option(10, "P: networks in the pool")
    updates: int = option(100, "T: updates of a pool network before it is replaced")
    pool_lr: float = option(3e-4, "learning rate of the pool networks (Adam, constant)")
    pool_rows: int = option(1000, "rows of the coreset that a pool update draws if it has more")
    lr: float = option(3e-3, "learning rate of the images")
    label_lr: float | None = option(None, "learning rate of the labels; none: that of the images (the paper)")
    label_scale: float = option(1.0, "factor of the initial labels; 1 is the paper, short budgets need more")
    learn_labels: bool = option(True, "learn the labels too")
    init: Literal["real", "uniform"] = option("real", "initial images: training images, or uniformly random pixels")
    optimiser: Literal["adam", "lamb"] = option("adam", "optimiser of images and labels")
    final_lr: float = option(0.0, "learning rate at the end of the cosine, as a share of its start")
    augmentation: str = option("paper", "strategy (bpcbench_torch.augmentation); paper: by the number of channels")
    augment_pool: bool = option(True, "augment the coreset in the pool updates too")
    statistics: Literal["running", "batch"] = option("running", "BatchNorm statistics when features are computed")
    compile: bool = option(False, "compile the step with torch.compile; results differ in the last bits", absent=False)

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        for name in ("steps", "batch", "pool", "updates", "pool_rows"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("lr", "pool_lr", "label_scale"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, got {getattr(self, name)}")
        strategy(self.augmentation, 1)

    def convention(self) -> Convention:
        """Labels start as one-hot minus 1/k and are unbounded."""
        return "centred"

    def skip(self, facts: Facts, ipc: int) -> str | None:
        """Return a reason if there are too few images to start from, or the network does not fit."""
        if ipc > facts.sizes["train"] // facts.classes:
            return f"ipc {ipc} needs more images per class than the training data have"
        if self.network.framework != "torch":
            return f"{self.name} trains torch networks, and {self.network.name} is a {self.network.framework} one"
        return self.network.skip(facts)

    def scalars(self, rows: int) -> dict[str, float]:
        """Return the numbers an inference reads from the recipe."""
        return {}

    def augmentation_used(self) -> str:
        """Return the strategy of augmentation."""
        return self.augmentation

    def rows(self, images: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows whose features enter the outer loss; FRePo appends mirrored copies."""
        return images, targets

    @abc.abstractmethod
    def outer(self, features: Tensor, targets: Tensor, real: Tensor, labels: Tensor, n: int) -> dict[str, Tensor]:
        """Return `loss`, and what else is logged, of synthetic features and targets against a real batch.

        `n` is the number of real images in all.
        """

    def distil(self, data: Data, ipc: int, given: Given, ctx: Context) -> Coreset:
        """Return the last iterate."""
        from bpcbench_torch.distillation import distil

        return distil(self, data, ipc, given, ctx)

    def pool_loss(self, model: Callable[[Tensor], Tensor], images: Tensor, targets: Tensor) -> Tensor:
        """Return the Gaussian loss of a pool update, 0.5 * mean ||f(x) - y||^2."""
        return 0.5 * (model(images) - targets).square().sum(1).mean()
