"""The base of methods that use expert trajectories. Torch is imported when distillation starts."""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from bpcbench.api import Context, Method, Network, Prerequisite, option, refers
from bpcbench.records import Convention, Coreset, Data, Facts, Inputs, Native, Need, Ref
from bpcbench_bpc.trajectories import Trajectories, augmentation_for
from bpcbench_torch.memory import DIFFERENTIATED, FLOAT, Sizes, read, resident, sizes, trained
from bpcbench_torch.operations import STEP
from bpcbench_torch.strategy import strategy

if TYPE_CHECKING:
    from torch import Tensor

    from bpcbench_bpc.problem import Estimate, Problem

_PARAMETERS = 320_010
"""Parameters of BPC-D's network on CIFAR-10, for which its sampler was tuned."""

CAPTURED_BYTES = 1_500_000_000
"""Parts of an iteration that need more memory are not captured as CUDA graphs."""

ROLE = "experts"
"""The role of the trajectories among a method's prerequisites."""


@dataclass(frozen=True)
class TrajectoryMethod(Method):
    """Learns images u by SGD on a divergence between two posteriors of a network's parameters theta.

    The posterior given all data is represented by an expert's trajectory tau; the posterior given u by theta_u, the
    result of T steps of SGD on u from a point of the same trajectory. Each outer iteration draws an expert and a start
    t in [min_start, max_start), runs the inner SGD, and takes one step along the method's gradient estimate. Energies
    are mean cross-entropies.

    Preset `clean` is the mathematics of the paper. `official` reproduces the public code where it differs; each method
    documents how. In all methods it visits experts in shuffled passes (clean: draws them independently), flips grey
    images too under `auto` augmentation, and makes one more update than `steps`.
    """

    preload: ClassVar[tuple[str, ...]] = ("torch", "torch._dynamo", "torch.optim")

    preset: Literal["clean", "official"] = option("clean", "the paper's mathematics, or the public code's behaviour")
    steps: int = option(5000, "updates of the coreset")
    trajectories: Prerequisite = refers("prerequisite", "trajectories", "the experts, whose network the method uses")
    experts: int = option(100, "number of experts")
    max_start: int = option(20, "windows start before this epoch")
    min_start: int = option(0, "windows start at this epoch or later; 0: the initialisation", absent=0)
    ahead: int = option(1, "e: epochs from the start of a window to its target")
    inner_steps: int = option(30, "T: SGD steps on the coreset per iteration")
    inner_lr: float = option(0.03, "step size of the inner SGD")
    lr: float = option(1000.0, "learning rate of the images")
    momentum: float = option(0.5, "momentum of images and labels")
    labels: Literal["hard", "learned"] = option("hard", "class labels, or learned probabilities (softmax of logits)")
    label_lr: float = option(1.0, "learning rate of the logits, for learned labels")
    label_scale: float = option(5.0, "initial logit of the true class (the others are 0), for learned labels")
    init: Literal["real", "mix", "noise"] = option(
        "real", "initial images: training images, random mixtures of two per class (BPC-CD's code), or N(0, 1)"
    )
    augmentation: str = option("auto", "strategy (bpcbench_torch.augmentation); auto: DSA, without flips on grey")
    capture: bool = option(True, "on a GPU, replay the parts of an iteration as CUDA graphs", key=False)

    def __post_init__(self) -> None:
        """Reject invalid values."""
        for name in ("steps", "experts", "max_start", "ahead"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("min_start", "inner_steps"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")
        if self.min_start >= self.max_start:
            raise ValueError(f"min_start {self.min_start} must be below max_start {self.max_start}")
        for name in ("inner_lr", "lr", "label_lr", "label_scale"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, got {getattr(self, name)}")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must lie in [0, 1), got {self.momentum}")
        strategy(augmentation_for(self.augmentation, 1), 1)
        if isinstance(self.trajectories, Ref):
            return  # not built yet
        if not isinstance(self.trajectories, Trajectories):
            raise ValueError(f"trajectories must be a `trajectories`, not {self.trajectories.name}")
        self._check_window(self.trajectories)

    def _check_window(self, plan: Trajectories) -> None:
        reach = self.reach(plan)
        if reach % plan.stride:
            raise ValueError(f"ahead must be a multiple of the trajectories' stride {plan.stride}, got {self.ahead}")
        starts = [epoch for epoch in plan.snapshots if self.min_start <= epoch < self.max_start]
        if not starts:
            raise ValueError(
                f"no snapshot from epoch {self.min_start} to below {self.max_start}: lower min_start or raise max_start"
            )
        last = max(starts) + reach
        if last > plan.epochs or self.max_start > plan.epochs + 1:
            raise ValueError(
                f"windows reach epoch {max(last, self.max_start - 1)} but the trajectories end at {plan.epochs}: "
                "lower max_start or ahead"
            )

    def reach(self, plan: Trajectories) -> int:
        """Return the length of a window in epochs."""
        return self.ahead

    @property
    def network(self) -> Network:
        """The network of the experts, of the inner SGD and of the native inference."""
        assert isinstance(self.trajectories, Trajectories)
        return self.trajectories.network

    def convention(self) -> Convention:
        """Return `class`, or `probabilities` if labels are learned."""
        return "class" if self.labels == "hard" else "probabilities"

    def prerequisites(self, facts: Facts, ipc: int) -> Mapping[str, Need]:
        """Return the experts."""
        assert isinstance(self.trajectories, Trajectories)
        return {ROLE: self.trajectories.need(self.experts)}

    def native(self, facts: Facts, ipc: int) -> Native:
        """Return SGHMC with the network of the experts; official: with the settings of the public code."""
        assert isinstance(self.trajectories, Trajectories)
        options: dict[str, object] = {}
        if self.official:
            options = sghmc_options(facts.classes * ipc, ipc, self.trajectories.parameters(facts))
        return Native(Ref("sghmc", options), self.network)

    def skip(self, facts: Facts, ipc: int) -> str | None:
        """Return a reason to skip if there are too few initial images, or if the network does not fit."""
        each = 2 * ipc if self.init == "mix" else ipc
        if each > facts.sizes["train"] // facts.classes:
            return f"ipc {ipc} needs more images per class than the training data have"
        if self.network.framework != "torch":
            return f"{self.name} trains torch networks, but {self.network.name} is a {self.network.framework} network"
        return self.network.skip(facts)

    def operations(self, facts: Facts, ipc: int) -> float | None:
        """Return steps * F * (3 rows * passes + real_passes * batch), F being one image's forward pass."""
        one = self.network.operations(facts.shape, facts.classes)
        if one is None:
            return None
        return self.updates() * one * (STEP * ipc * facts.classes * self.passes() + self.real_passes())

    def peak_bytes(self, facts: Facts, ipc: int) -> float | None:
        """Return 4 times the coreset with gradient and momentum, the window, and the largest part of an iteration.

        It is that of a GPU, where recording graphs takes the memory of a part once more; a CPU needs less. The parts
        are a step of the inner SGD, and what the method's own `estimate_numbers` says.
        """
        these = sizes(self.network, facts, ipc)
        if these is None:
            return None
        augmentation = strategy(self.augmentation_used(facts.shape[0]), facts.shape[0])
        augmented = bool(augmentation.operations)
        held = 3 * these.rows * these.pixels + 3 * these.parameters
        real = self.batch_used()
        if real:
            held += min(real, facts.sizes["train"]) * these.pixels
        data = resident(facts) if real else 0
        inner = self.inner_numbers(these, augmented=augmented)
        part = max(inner, self.estimate_numbers(these, augmented=augmented), read(facts, real))
        if self.captures(these):
            part = max(part, self.replayed_numbers(these, augmentation.kinds))
        return FLOAT * (held + part) + data

    def captures(self, these: Sizes) -> bool:
        """Return whether a GPU replays CUDA graphs: where they are small, for large ones are not bound by launches."""
        return self.capture and FLOAT * self.region_numbers(these) <= CAPTURED_BYTES

    def region_numbers(self, these: Sizes) -> float:
        """Return how many numbers the largest part of an iteration holds that is captured as one graph."""
        return max(self.inner_numbers(these, augmented=True), self.estimate_numbers(these, augmented=True))

    def inner_numbers(self, these: Sizes, *, augmented: bool) -> float:
        """Return how many numbers a step of the inner SGD holds."""
        return trained(these, these.rows, augmented=augmented) + 4 * these.parameters

    def replayed_numbers(self, these: Sizes, kinds: int) -> float:
        """Return how many numbers an iteration holds while a graph is recorded.

        The memory of all graphs is that of the largest; a region is called once, outside of it, before it is captured.
        It is captured for each of the `kinds` of operations that the augmentation draws, so the largest is called again
        when there is a graph of it. What regions read, and what each of them returns, stays.
        """
        again = self.region_numbers(these) if kinds > 1 else self.inner_numbers(these, augmented=True)
        return self.region_numbers(these) + _apart(again, these) + self.recorded_numbers(these, kinds)

    def recorded_numbers(self, these: Sizes, kinds: int) -> float:
        """Return how many numbers recordings keep: what all of one shape read, and what each of them returns."""
        return 2 * these.parameters + kinds * (these.parameters + these.rows * these.pixels)

    def estimate_numbers(self, these: Sizes, *, augmented: bool) -> float:
        """Return how many numbers the gradient estimate holds: here those of one pass in the images."""
        copies = these.rows * these.pixels * (1 + DIFFERENTIATED * augmented)
        return these.rows * these.one.gradient + copies + 4 * these.parameters

    def passes(self) -> int:
        """Return how often a step passes the coreset through a network, forward and backward."""
        return self.inner_steps

    def real_passes(self) -> int:
        """Return how many real images a step passes through networks, forward."""
        return self.batch_used()

    def notes(self) -> tuple[str, ...]:
        """Mark results of the preset official."""
        return ("official",) if self.official else ()

    @property
    def official(self) -> bool:
        """Whether the preset is official."""
        return self.preset == "official"

    def updates(self) -> int:
        """Return the number of outer iterations."""
        return self.steps + 1 if self.official else self.steps

    def image_momentum(self) -> float:
        """Return the momentum of the outer SGD."""
        return self.momentum

    def rate_learning(self) -> float | None:
        """Return the learning rate of the inner step size, or None if the step size is not learned."""
        return None

    def constrain(self, rate: Tensor) -> None:
        """Project a learned step size onto its allowed range, in place."""

    def augmentation_used(self, channels: int) -> str:
        """Return the strategy for images with this many channels."""
        return augmentation_for(self.augmentation, 3 if self.official else channels)

    def batch_used(self) -> int:
        """Return the batch size of `Problem.real`; 0 if the method needs no real images."""
        return 0

    @abc.abstractmethod
    def estimate(self, problem: Problem) -> Estimate:
        """Return the gradients of one outer iteration."""

    def distil(self, data: Data, ipc: int, inputs: Inputs, ctx: Context) -> Coreset:
        """Run the outer loop."""
        from bpcbench_bpc.distillation import distil

        return distil(self, data, ipc, inputs, ctx)


def _apart(numbers: float, these: Sizes) -> float:
    """Return the larger part of a step's numbers: activations, which are gone when its four parameter vectors come."""
    return max(numbers - 4 * these.parameters, 4 * these.parameters)


def sghmc_options(rows: int, ipc: int, parameters: int) -> dict[str, object]:
    """Return the sampler settings of BPC-D's code, which depend on the images per class.

    Its prior weight suits only its own network and drives a small one to zero. For other sizes the weight is scaled
    with the square root of the number of parameters, as the norm of the parameters scales.
    """
    step, burn, samples = (0.03, 50, 10) if ipc == 1 else (0.01, 250, 50)
    weight = 1.0 if ipc in (1, 20) else 1.5
    return {
        "weight_decay": round(weight * math.sqrt(parameters / _PARAMETERS), 12),
        "lr": round(step**2 * rows, 12),
        "friction": 0.1,
        "temperature": 0.01,
        "chains": 1,
        "burn": burn,
        "thin": 5,
        "samples": samples,
        "prior": "norm",
        "start": "normal",
        "augmentation": "dsa",
        "batch_size": rows,
    }
