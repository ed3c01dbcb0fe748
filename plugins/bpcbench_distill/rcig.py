"""The method RCIG. Torch is imported when distillation starts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from bpcbench.api import Context, Method, Network, option, refers
from bpcbench.records import Convention, Coreset, Data, Facts, Inputs, Native, Ref
from bpcbench_distill.rcig_inference import MIRROR_HELP, Mirror, mirrors
from bpcbench_torch.growth import check_growth, grown
from bpcbench_torch.memory import ADAM, FLOAT, read, resident, sizes, trained
from bpcbench_torch.networks import ConvGN, ConvIN, ConvNetwork, batch_normalised
from bpcbench_torch.operations import STEP

EXPLICIT = 2**26
"""The largest Jacobian that is computed as a matrix, in numbers. Beyond, its products are computed through the network.

Both ways agree up to rounding; which is taken depends on sizes alone. docs/speed.md has measurements.
"""
_TWO_GRAPHS = 1.6
"""Two graphs of a push, differentiated one after the other, relative to one that is pushed and differentiated."""


@dataclass(frozen=True)
class RCIG(Method):
    """Reparameterised convexified implicit gradients (Loo, Hasani, Lechner & Rus, ICML 2023).

    Every step draws a network of a pool (FRePo's) and replaces it by its first-order expansion about its parameters,
    with tangents t for the body and a last layer W on the features Phi. Fitting that to the coreset (X, Y) is convex:

        L(t, W) = [0.5 ||Y - J t - Phi W||^2 + 0.5 l2 (||W||^2 + ||t||^2)] / (n k),     l2 = `l2_rate` * ipc * k.

    W has a closed form, t gets `inner_steps` Adam steps from 0. The outer loss on a real batch is the cross-entropy of
    softmax(e^tau (J t + phi W)) minus the mean of min(top1(Y) - top2(Y), 1/(2k)). Its gradient in (X, Y) is the direct
    one, through W at fixed t, plus the implicit one through t,

        -d/d(X, Y) <v, dL/dt>,     v = H^-1 dF/dt,     H the Hessian of L in t,

    where v is `hvp_steps` Adam steps on 0.5 v^T H v - v^T dF/dt. Per tensor the implicit gradient is scaled down to the
    norm of the direct one. AdaBelief learns X, Y and tau; the coreset is a moving average. Then the network takes 1 to
    `pool_steps` Adam steps on the new coreset with its own last layer, and is replaced after `updates` of them.

    The two inner learning rates are searched for before the first step and `adapt`ed every 50: the authors' code adapts
    that of t only. Networks have softplus(beta x) / beta while distilling, and ReLU when the coreset is used.

    Where this differs from the authors' code: there, t also holds a displacement of the last layer's weights, which the
    closed form makes redundant; an optimiser meant to leave it alone adds its gradient instead. Also there, the
    network's parameters drift a little during the inner steps, by the momentum that Adam still has from the pool. The
    batches of rows to which the authors restrict gradients of large coresets are left out: all rows are used, with
    `chunk` so many at a time. Linear systems are solved in double precision. Everything else is float32 whatever the
    suite's precision.
    """

    name: ClassVar[str] = "rcig"
    preload: ClassVar[tuple[str, ...]] = ("torch", "torch._dynamo", "torch.optim")

    steps: int = option(10_000, "outer steps; the authors' code shows 15,000 for CIFAR-10 at ipc 1, 10,000 at ipc 10")
    batch: int = option(1024, "real images per step")
    batch_start: int | None = option(
        None, "real images per step at the start, doubled until `batch`; none: always `batch`", absent=None
    )
    network: Network = refers("network", "conv-nn", "network of the pool, and of the native inference")
    beta: float = option(60.0, "softplus(beta x) / beta in place of ReLU while distilling; 0: ReLU (depth 4 and 5)")
    pool: int = option(30, "networks in the pool")
    updates: int = option(100, "updates after which a pool network is replaced")
    pool_steps: int = option(15, "at most so many updates of the drawn network per step, a uniform number from 1")
    pool_lr: float = option(5e-5, "learning rate of the pool networks (Adam, constant)")
    inner_steps: int = option(20, "Adam steps on the tangents")
    hvp_steps: int = option(20, "Adam steps on the inverse Hessian-vector product")
    inner_lr: float = option(1e-5, "learning rate of the tangents at which the search starts")
    hvp_lr: float = option(5e-5, "learning rate of the inverse product at which the search starts")
    search: bool = option(True, "search for both inner learning rates before the first step")
    adapt: Literal["inner", "both", "none"] = option(
        "inner", "which of the two are adapted every 50 steps; inner: as in the authors' code"
    )
    l2_rate: float = option(
        5e-4, "l2 per image of the coreset, mirrored copies not counted; the authors' 0.05 at 128 px"
    )
    lr: float = option(3e-3, "learning rate of images and labels (AdaBelief, constant)")
    label_lr: float | None = option(None, "learning rate of the labels; none: that of the images")
    label_scale: float = option(1.0, "factor of the initial labels, one-hot minus 1/k")
    learn_labels: bool = option(True, "learn the labels as well")
    temperature_lr: float = option(0.03, "learning rate of tau")
    decay: float = option(0.99, "decay of the moving average of images and labels, which is the coreset")
    mirror: Mirror = option("auto", f"append {MIRROR_HELP}")
    init: Literal["real", "uniform", "uniform-normalised"] = option(
        "real", "initial images: training images, or uniform random pixels, whitened like all images or only normalised"
    )
    init_seed: int | None = option(None, "seed of the initial images; none: each distillation seed draws its own")
    chunk: int | None = option(
        None, "images whose activations are in memory at a time, recomputed for the gradient; none: all", absent=None
    )
    evaluation_steps: int | None = option(None, "nominal steps of the native inference; none: by images", key=False)
    evaluation_lr: float = option(1e-4, "learning rate of the native inference", key=False)
    evaluation_warmup: int = option(500, "warm-up steps of the native inference", key=False)
    evaluation_augmentation: str = option("rcig-each", "augmentation of the native inference", key=False)

    def __post_init__(self) -> None:
        """Reject invalid values."""
        for name in ("steps", "batch", "pool", "updates", "pool_steps", "inner_steps", "hvp_steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("lr", "pool_lr", "inner_lr", "hvp_lr", "l2_rate", "label_scale"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, got {getattr(self, name)}")
        check_growth(self.batch_start, self.batch)
        if not 0 <= self.decay < 1:
            raise ValueError(f"decay must lie in [0, 1), got {self.decay}")
        if self.beta < 0:
            raise ValueError(f"beta must not be negative, got {self.beta}")
        if self.chunk is not None and self.chunk < 1:
            raise ValueError(f"chunk must be at least 1, got {self.chunk}")
        if self.init_seed is not None and self.init_seed < 0:
            raise ValueError(f"init_seed must not be negative, got {self.init_seed}")

    def convention(self) -> Convention:
        """Labels start as one-hot minus 1/k and are unbounded."""
        return "centred"

    def skip(self, facts: Facts, ipc: int) -> str | None:
        """Return a reason to skip if there are too few initial images, or if the network does not fit."""
        if ipc > facts.sizes["train"] // facts.classes:
            return f"ipc {ipc} needs more images per class than the training data have"
        if self.network.framework != "torch":
            return f"{self.name} trains torch networks, but {self.network.name} is a {self.network.framework} network"
        if self.beta and not isinstance(self.network, ConvNetwork):
            return f"only the ConvNets have a softplus; with {self.network.name}, set {self.name}'s beta to 0"
        if isinstance(self.network, ConvIN | ConvGN) and self.network.order == "norm-first":
            return f"torch has no forward derivative of {self.network.name} in this order; set `order: conv-first`"
        return self.network.skip(facts)

    def peak_bytes(self, facts: Facts, ipc: int) -> float | None:
        """Return 4 times what a step holds plus its largest part, plus the data on the device.

        A step holds the learned tensors with gradient, two moments and average, the pool with its optimisers, tangents
        with theirs, and the coreset's Jacobian, or the graph that stands for it. Its parts are that Jacobian while it
        is computed, the real batch pushed and pulled, the coreset's rows pushed and differentiated, with two graphs for
        the implicit gradient, and a pool update. With `chunk` no graph is held, and the parts are those of `chunk`
        images, but for the update of a network with BatchNorm, whose statistics need all rows.
        """
        these = sizes(while_distilling(self.network, self.beta), facts, ipc)
        if these is None:
            return None
        one, parameters = these.one, these.parameters
        rows = these.rows * (2 if mirrors(self.mirror, facts.shape[0], facts.classes, these.rows) else 1)
        batch, outputs = min(self.batch, facts.sizes["train"]), rows * facts.classes
        linearised = parameters - one.features * facts.classes
        explicit = outputs * linearised <= EXPLICIT
        held: float = 5 * these.rows * (these.pixels + these.classes) + self.pool * ADAM * parameters + 7 * parameters
        held += batch * these.pixels + (2 * rows - these.rows) * these.pixels
        held += outputs * linearised if explicit else 0 if self.chunk else rows * one.kept
        part, forwarded = (min(count, self.chunk or count) for count in (rows, batch))
        passes = 1.0 if self.chunk else _TWO_GRAPHS
        updated = rows if batch_normalised(self.network) else part
        gram = 4 * rows**2  # in double precision
        results = 2 * rows * (one.features + facts.classes) if self.chunk else 0
        parts = (
            (outputs * linearised + part * facts.classes * one.jacobian) if explicit else 0.0,
            forwarded * max(one.tangent_forward, one.pull) + batch * one.features,
            part * one.tangent + batch * (one.features + rows) + gram + results,
            passes * part * one.tangent + gram + results,
            trained(these, updated, augmented=False),
            read(facts, batch),
        )
        return FLOAT * (held + max(parts)) + resident(facts)

    def native(self, facts: Facts, ipc: int) -> Native:
        """Return the authors' evaluation, with augmentation, of the network with ReLU."""
        options = {
            "steps": self.evaluation_steps,
            "lr": self.evaluation_lr,
            "warmup": self.evaluation_warmup,
            "augmentation": self.evaluation_augmentation,
            "mirror": self.mirror,
        }
        return Native(Ref("rcig", options), self.network)

    def operations(self, facts: Facts, ipc: int) -> float | None:
        """Return steps * F * ((5 products + 22 + 3 updates) * rows + 6 batch), as through the network.

        F is one image's forward pass. A product with J takes three convolutions for each of the network, one with its
        transpose two. Rows include mirrored copies. The search for rates, what a small Jacobian saves, and what `chunk`
        computes again, are left out.
        """
        one, rows = self.network.operations(facts.shape, facts.classes), ipc * facts.classes
        if one is None:
            return None
        if mirrors(self.mirror, facts.shape[0], facts.classes, rows):
            rows *= 2
        updates = (1 + self.pool_steps) / 2
        products = self.inner_steps + self.hvp_steps
        batches = grown(self.batch_start, self.batch)
        batch = sum(batches) / len(batches)
        return self.steps * one * ((5 * products + 22 + STEP * updates) * rows + 6 * batch)

    def initial_seed(self, seed: int) -> int:
        """Return the seed of the initial images for a distillation seed."""
        return seed if self.init_seed is None else self.init_seed

    def distil(self, data: Data, ipc: int, inputs: Inputs, ctx: Context) -> Coreset:
        """Return the moving average of the coreset after the last step, with the temperature e^-tau."""
        from bpcbench_distill.rcig_distillation import distil

        return distil(self, data, ipc, inputs, ctx)


def while_distilling(network: Network, beta: float) -> Network:
    """Return the network with softplus in place of ReLU."""
    return replace(network, softplus=beta) if isinstance(network, ConvNetwork) and beta else network
