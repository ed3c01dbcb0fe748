"""The base of methods that distil through a pool of networks; VBPC and FRePo differ only in what they override.

Torch is imported when distillation starts.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from bpcbench.api import Context, Method, Network, option, refers
from bpcbench.records import Convention, Coreset, Data, Facts, Inputs
from bpcbench_torch.growth import check_growth, grown
from bpcbench_torch.memory import ADAM, AUGMENTED, FLOAT, Sizes, read, resident, sizes, trained
from bpcbench_torch.operations import STEP
from bpcbench_torch.strategy import strategy

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class PoolMethod(Method):
    """Learns images X and labels Y by gradient descent on an outer loss over features of pool networks.

    Each step draws a pool network, computes its features of a real batch (constant) and of X, takes one optimiser step
    in X and Y on the outer loss, and one Adam step in the network on 0.5 * ||f(X) - Y||^2 with the new X, Y.

    Labels start as (one-hot - 1/k) / sqrt(k/10), times `label_scale`. Options that decide how a paper is read:

    - `augment_real`: whether real batches are augmented too. VBPC's paper says only that augmentations are applied
      while the coreset is learned. FRePo's code, on which VBPC's is built, leaves real batches as they are, and the
      paper defines the outer loss over the data set itself. The suites under paper/ therefore turn it off.
    - `augmentation`: both public codes draw one operation per call, and so do the paper suites. A name that ends in
      `-all` chains all operations instead, in the order in which VBPC's paper lists them.
    - `init_seed`: the paper draws initial images "using a fixed sampling seed". With a seed, all coresets of a suite
      start from the same images, and the spread over coresets does not include that choice. Without, each
      distillation seed draws its own, which are those of `random` and of all other methods under that seed. The paper
      suites leave it out, so that ± is over independent coresets and differences between methods are paired. On
      digits the two cannot be told apart (docs/results/ablations.md, which has what was measured of the others too).
    - `init`: `uniform` are random 8-bit pixels that pass through the whole preprocessing, whitening included.
      `uniform-normalised` is as VBPC's paper writes it: pixels from U[0, 1], minus the mean and divided by the standard
      deviation of each channel, and not whitened. They differ only where there is whitening.
    - `updates`: a network is replaced after exactly this many updates. FRePo's code compares with `>`, so that its
      networks have 101 at a T of 100; `updates: 101` reproduces it, initial counters included.

    Options that decide how fast a step is; results differ in the last bits:

    - `compile_mode`: a mode of torch.compile. `reduce-overhead` and `max-autotune` replay CUDA graphs, on a GPU alone;
      `max-autotune` and `max-autotune-no-cudagraphs` choose kernels by their time, so that two runs may differ in the
      last bits.
    - `compile_parts`: `all` compiles the augmentation too, with the same random numbers, and updates images and labels
      by torch's fused Adam. It saves launches of a GPU; on a CPU, where warps stay as they are, it gains next to
      nothing (docs/speed.md).

    Options for short CPU budgets, which the papers do not have and the suites under paper/ leave off:

    - `batch_start`: real batches grow from this size to `batch` by doubling, each size for equally many steps. The
      direction of the first steps needs few images.
    - `repeats`: updates of X and Y per step, all with the same network and the same features of the real batch, which
      are computed once; the network gets its own update after the last.
    - `pool_age`: the first networks of the pool start with up to so many updates on the initial coreset, network i of P
      with i/P of them, as many as its counter says at `pool_age` = `updates`. Replacements start new.
    - `average`: the coreset is the moving average of X and Y with weights `average`^age over all updates, corrected for
      its start at zero. The optimiser goes on from X and Y themselves.
    - `warmup`: the learning rates of X and Y grow linearly over so many steps.
    """

    preload: ClassVar[tuple[str, ...]] = ("torch", "torch._dynamo", "torch.optim")

    steps: int = option(500_000, "outer steps")
    batch: int = option(1024, "real images per step")
    network: Network = refers("network", "conv-bn", "network trained in the pool")
    pool: int = option(10, "P: networks in the pool")
    updates: int = option(100, "T: updates of a pool network before it is replaced; 101 is FRePo's code at T = 100")
    pool_lr: float = option(3e-4, "learning rate of the pool networks (Adam, constant)")
    pool_rows: int = option(1000, "coreset rows per pool update; a smaller coreset is used whole")
    lr: float = option(3e-3, "learning rate of the images; 3e-3 suits adam, lamb needs its own (FRePo: 3e-4)")
    label_lr: float | None = option(None, "learning rate of the labels; none: that of the images, as in the paper")
    label_scale: float = option(1.0, "factor of the initial labels; 1 is the paper's, short budgets need more")
    learn_labels: bool = option(True, "learn the labels as well")
    init: Literal["real", "uniform", "uniform-normalised"] = option(
        "real", "initial images: training images, or uniform random pixels, whitened like all images or only normalised"
    )
    init_seed: int | None = option(
        None, "seed of the initial images of all coresets; none: each distillation seed draws its own", absent=None
    )
    optimiser: Literal["adam", "lamb"] = option("adam", "optimiser of images and labels")
    final_lr: float = option(0.0, "final learning rate of the cosine schedule, as a fraction of the initial one")
    augmentation: str = option("paper", "strategy (bpcbench_torch.strategy); paper: by the number of channels")
    augment_real: bool = option(True, "augment real batches as well", absent=True)
    augment_pool: bool = option(True, "augment the coreset in pool updates as well")
    statistics: Literal["running", "batch"] = option("running", "BatchNorm statistics used for features")
    chunk: int | None = option(
        None, "images whose activations are in memory at a time, recomputed for the gradient; none: all", absent=None
    )
    compile: bool | Literal["auto"] = option(
        False,
        "compile the step with torch.compile; results differ in the last bits; auto: where it saves more than it costs",
        absent=False,
    )
    compile_mode: Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"] = option(
        "default", "mode of torch.compile, for compile: true or auto", absent="default"
    )
    compile_parts: Literal["network", "all"] = option(
        "network",
        "what `compile` covers: the network and its losses, or the augmentation and a fused Adam as well",
        absent="network",
    )
    batch_start: int | None = option(
        None, "real images per step at the start, doubled until `batch`; none: always `batch`", absent=None
    )
    repeats: int = option(1, "updates of images and labels per step, on one network and one real batch", absent=1)
    pool_age: int = option(
        0, "updates of the first pool networks on the initial coreset, spread from 0 to this", absent=0
    )
    average: float = option(0.0, "decay of a moving average of images and labels; 0: the last iterate", absent=0.0)
    warmup: int = option(0, "steps over which the learning rates of images and labels grow to their values", absent=0)

    def __post_init__(self) -> None:
        """Reject invalid values."""
        for name in ("steps", "batch", "pool", "updates", "pool_rows"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("lr", "pool_lr", "label_scale"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, got {getattr(self, name)}")
        if self.chunk is not None and self.chunk < 1:
            raise ValueError(f"chunk must be at least 1, got {self.chunk}")
        if self.chunk is not None and (self.compile is True or self.statistics == "batch"):
            raise ValueError("chunk needs `statistics: running`, and cannot be combined with `compile: true`")
        for name, off in (("compile_mode", "default"), ("compile_parts", "network")):
            if self.compile is False and getattr(self, name) != off:
                raise ValueError(f"{name}: {getattr(self, name)} is for `compile: true` or `compile: auto`")
        if self.init_seed is not None and self.init_seed < 0:
            raise ValueError(f"init_seed must not be negative, got {self.init_seed}")
        check_growth(self.batch_start, self.batch)
        if self.repeats < 1:
            raise ValueError(f"repeats must be at least 1, got {self.repeats}")
        for name in ("pool_age", "warmup"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")
        if self.pool_age > self.updates:
            raise ValueError(f"pool_age must be at most updates, {self.updates}, got {self.pool_age}")
        if not 0 <= self.average < 1:
            raise ValueError(f"average must lie in [0, 1), got {self.average}")
        strategy(self.augmentation, 1)

    def convention(self) -> Convention:
        """Labels start as one-hot minus 1/k and are unbounded."""
        return "centred"

    def skip(self, facts: Facts, ipc: int) -> str | None:
        """Return a reason to skip if there are too few initial images, or if the network does not fit."""
        if ipc > facts.sizes["train"] // facts.classes:
            return f"ipc {ipc} needs more images per class than the training data have"
        if self.network.framework != "torch":
            return f"{self.name} trains torch networks, but {self.network.name} is a {self.network.framework} network"
        return self.network.skip(facts)

    def operations(self, facts: Facts, ipc: int) -> float | None:
        """Return steps * F * (batch + 3 repeats rows + 3 min(rows, pool_rows)), F being one image's forward pass.

        The updates of `pool_age` come on top; a batch that grows counts by its mean.
        """
        one, rows = self.network.operations(facts.shape, facts.classes), ipc * facts.classes
        if one is None:
            return None
        batches, update = grown(self.batch_start, self.batch), STEP * min(rows, self.pool_rows)
        each = sum(batches) / len(batches) + STEP * self.repeats * rows + update
        older = sum(self.pool_age * index // self.pool for index in range(self.pool))
        return one * (self.steps * each + older * update)

    def peak_bytes(self, facts: Facts, ipc: int) -> float | None:
        """Return 4 times the sum of what a step holds, plus that of its largest part, plus the data on the device.

        A step holds the coreset, its gradient and two moments, and the pool with its optimisers. Its parts are the
        features of the real batch, the outer loss of the coreset's rows and its gradient, and the pool update.
        """
        these = sizes(self.network, facts, ipc)
        if these is None:
            return None
        rows, pixels, one = self.row_count(facts, ipc), these.pixels, these.one
        augmented = self.augmentation_used() != "none"
        held = ADAM * these.rows * (pixels + these.classes) + self.pool * ADAM * these.parameters
        held += (self.average > 0) * these.rows * (pixels + these.classes)
        batch = min(self.batch, facts.sizes["train"])
        part, forwarded = min(rows, self.chunk or rows), min(batch, self.chunk or batch)
        features = batch * pixels * (1 + AUGMENTED * (augmented and self.augment_real)) + forwarded * one.forward
        if self.chunk:
            features += 2 * batch * one.features
        copies = rows * pixels * (2 * augmented + (rows > these.rows))
        given = batch * (pixels + one.features)
        outer = given + copies + part * max(one.gradient, one.kept) + self.loss_numbers(rows, batch, these)
        if self.chunk:
            outer += rows * (one.features + pixels)
        update = trained(these, min(these.rows, self.pool_rows), augmented=augmented and self.augment_pool)
        update += given + these.parameters
        return FLOAT * (held + max(features, outer, update, read(facts, batch))) + resident(facts)

    def row_count(self, facts: Facts, ipc: int) -> int:
        """Return how many rows enter the outer loss."""
        return ipc * facts.classes

    def loss_numbers(self, rows: int, batch: int, these: Sizes) -> float:
        """Return how many numbers the outer loss holds beside the features, at its peak or until its gradient."""
        width = these.one.features
        return 6 * min(rows, width) ** 2 + 3 * batch * min(rows, width) + 2 * rows * width

    def scalars(self, rows: int) -> dict[str, float]:
        """Return the scalars of the recipe, which inferences read."""
        return {}

    def initial_seed(self, seed: int) -> int:
        """Return the seed of the initial images for a distillation seed."""
        return seed if self.init_seed is None else self.init_seed

    def augmentation_used(self) -> str:
        """Return the augmentation strategy in use."""
        return self.augmentation

    def rows(self, images: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows whose features enter the outer loss; FRePo appends mirrored copies."""
        return images, targets

    @abc.abstractmethod
    def outer(self, features: Tensor, targets: Tensor, real: Tensor, labels: Tensor, n: int) -> dict[str, Tensor]:
        """Return `loss` and further logged values of synthetic features and targets against a real batch.

        `n` is the total number of real images.
        """

    def distil(self, data: Data, ipc: int, inputs: Inputs, ctx: Context) -> Coreset:
        """Return the last iterate."""
        from bpcbench_torch.distillation import distil

        return distil(self, data, ipc, inputs, ctx)

    def pool_loss(self, model: Callable[[Tensor], Tensor], images: Tensor, targets: Tensor) -> Tensor:
        """Return the Gaussian loss of a pool update, 0.5 * mean ||f(x) - y||^2."""
        return 0.5 * (model(images) - targets).square().sum(1).mean()
