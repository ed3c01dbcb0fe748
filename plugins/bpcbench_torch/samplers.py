"""Inference by sampling network parameters: SGHMC and HMC. Torch is imported when fitting starts."""

from __future__ import annotations

import abc
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from bpcbench.api import Context, Inference, Network, Predictive, option
from bpcbench.records import Arrays, Coreset, Inputs, Offer
from bpcbench_torch.inferences import Ensemble
from bpcbench_torch.memory import AUGMENTED, FLOAT, predicted, sizes, trained, trained_together
from bpcbench_torch.networks import batch_normalised
from bpcbench_torch.operations import STEP
from bpcbench_torch.strategy import strategy

if TYPE_CHECKING:
    import torch

    from bpcbench_torch.chains import Kernel
    from bpcbench_torch.potential import Potential


@dataclass(frozen=True)
class Sampler(Inference):
    """Bayesian model averaging over samples of exp(-E(theta) / T), E the loss summed over the coreset plus the prior.

    The loss follows the coreset's convention, as for `network` and `ensemble`. For `class` and `probabilities` it is
    the cross-entropy. For `centred` targets it is 0.5 ||f - y||^2, a Gaussian likelihood of unit variance (variance T
    at temperature T), with the softmax of the outputs as probabilities. With `standardise` the targets are divided by
    their root mean square s and the network's outputs are multiplied by it: f = s g and 0.5 ||g - y/s||^2, a variance
    of s^2. Step sizes that suit class labels then also suit large targets, whose energy is otherwise too steep.

    In a coreset with weights every row counts by its weight, and the number of rows n is the total of the weights.

    While sampling, BatchNorm uses the statistics of the current rows. Predictions use statistics of the coreset,
    recomputed for every sample.

    Networks compute in their own memory layout, except that grey images keep them from it: those of one channel say no
    layout, and neither do the weights, which here are parts of a vector. `channels_last` lays the images out. It is for
    speed on a CPU (docs/speed.md) and changes nothing for colour, or for networks that are not channels last.

    The norm of theta and the training loss are logged, and at the end the worst and the median R-hat and effective
    sample size of the class probabilities of coreset images (Vehtari et al., 2021).
    """

    # The diagnostics rank with scipy.stats, whose import takes longer than sampling a small network.
    preload: ClassVar[tuple[str, ...]] = ("torch", "torch._dynamo", "torch.optim", "scipy.stats")

    remedy: ClassVar[str] = "the first step is too large; use a smaller `lr`"
    """The advice in the error message for an energy that is not finite."""

    chains: int = option(3, "number of chains, each with its own initial network")
    samples: int = option(10, "samples kept per chain")
    burn: int = option(250, "steps before the first sample")
    thin: int = option(25, "steps between samples")
    temperature: float = option(0.01, "T of exp(-E/T); below 1 the posterior is cold")
    prior: Literal["l2", "norm", "gaussian"] = option(
        "l2", "l2: n w/2 |theta|^2, norm: n w |theta| as in BPC-D's code, gaussian: w/2 |theta|^2; n: images"
    )
    weight_decay: float | None = option(None, "w; none: BPC-D's, adapted to the network's size (gaussian: 1)")
    start: Literal["network", "normal"] = option(
        "network", "start of the chains: the network's initial weights, or N(0, 0.01) as in BPC-D's code"
    )
    standardise: bool = option(
        False, "divide real targets by their root mean square, and multiply the network's outputs by it", absent=False
    )
    batched: bool = option(False, "send all chains through the network together; equal up to rounding")
    chunk: int | None = option(
        None,
        "images of a step whose activations are in memory at a time, for networks without BatchNorm; none: all",
        absent=None,
    )
    channels_last: bool = option(
        False,
        "grey images channels last as well, where the network is; faster, results differ in the last bits",
        absent=False,
    )
    samples_in: Literal["memory", "disk"] = option("memory", "where samples are kept while chains run", key=False)
    keep: bool = option(
        True,
        "store the samples, so that further splits need no new chains; needs memory for all of them",
        key=False,
    )

    def __post_init__(self) -> None:
        for name, least in (("chains", 1), ("samples", 1), ("burn", 0), ("thin", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if self.chunk is not None and self.chunk < 1:
            raise ValueError(f"chunk must be at least 1, got {self.chunk}")
        if self.chunk is not None and self.batched:
            raise ValueError("chunk cannot be combined with `batched`: it is for one chain at a time")
        if self.temperature <= 0:
            raise ValueError(f"temperature must be above 0, got {self.temperature}")
        if self.weight_decay is not None and self.weight_decay < 0:
            raise ValueError(f"weight_decay must not be negative, got {self.weight_decay}")

    def scale(self, coreset: Coreset) -> float:
        """Return the factor that multiplies the network's outputs and divides the targets."""
        if not self.standardise or coreset.convention != "centred":
            return 1.0
        squares = np.square(coreset.targets, dtype=np.float64)
        if coreset.weights is not None:
            squares = np.average(squares, axis=0, weights=coreset.weights)
        return float(np.sqrt(np.mean(squares))) or 1.0

    def seeds(self, seed: int) -> list[int]:
        """Return a seed per chain: those of an ensemble, so that chains start from its members' initial weights."""
        return Ensemble(members=self.chains).seeds(seed)

    def rows(self, count: int) -> int:
        """Return the number of images per step for a coreset of `count` images."""
        return count

    def augmentation_used(self) -> str:
        """Return the name of the augmentation in use."""
        return "none"

    def stochastic(self, coreset: Coreset) -> bool:
        """Return whether a step draws rows or augmentations in addition to the sampler's noise."""
        return self.rows(len(coreset)) < len(coreset) or self.augmentation_used() != "none"

    @abc.abstractmethod
    def kernel(
        self, potential: Potential, theta: torch.Tensor, generators: Sequence[torch.Generator], rows: float
    ) -> Kernel:
        """Return the sampler of chains that start at theta, for a coreset of `rows` rows, or of that total weight."""

    def accepts(self, offer: Offer) -> str | None:
        """Return a reason to refuse networks of another framework."""
        if offer.network.framework != "torch":
            return (
                f"{self.name} samples torch networks, but {offer.network.name} is a {offer.network.framework} network"
            )
        if self.chunk is not None and batch_normalised(offer.network):
            return f"{self.name}'s chunk is for networks without BatchNorm, whose statistics are those of all rows"
        return None

    def peak_bytes(self, offer: Offer) -> float | None:
        """Return 4 times what the samples, the chains and a step, or a prediction, hold.

        Samples in memory are counted where chains run on the CPU or keep them in memory. BatchNorm's statistics need a
        forward pass of all rows.
        """
        these = sizes(offer.network, offer.facts, offer.ipc)
        if these is None:
            return None
        chains = self.chains * offer.seeds
        samples = chains * self.samples if self.samples_in == "memory" else 0
        held = (samples + 10 * chains) * these.parameters + these.rows * (these.pixels + these.classes)
        rows, augmented = self.rows(these.rows), self.augmentation_used() != "none"
        if self.batched or offer.seeds > 1:
            step = trained_together(these, rows, chains, augmented=augmented)
        else:
            part = min(rows, self.chunk or rows)
            step = trained(these, part, augmented=augmented)
            step += (rows - part) * these.pixels * AUGMENTED * augmented + (part < rows) * these.parameters
        statistics = min(these.rows, 5000) * these.one.forward if batch_normalised(offer.network) else 0.0
        return FLOAT * (held + max(step, statistics, predicted(these)))

    def fit(self, coreset: Coreset, network: Network, inputs: Inputs, ctx: Context) -> Predictive:
        """Return the predictive of new samples."""
        from bpcbench_torch.sampled import fit

        return fit(self, coreset, network, ctx, [ctx.seed])[0]

    def fit_together(
        self, coreset: Coreset, network: Network, inputs: Inputs, ctx: Context, seeds: Sequence[int]
    ) -> Sequence[Predictive]:
        """Return a predictive for each of several seeds, whose chains go through the network together."""
        from bpcbench_torch.sampled import fit

        return fit(self, coreset, network, ctx, seeds)

    def restore(self, arrays: Arrays, coreset: Coreset, network: Network, inputs: Inputs, ctx: Context) -> Predictive:
        """Return the predictive of stored samples."""
        from bpcbench_torch.sampled import restore

        return restore(self, arrays, coreset, network, ctx)


@dataclass(frozen=True)
class SGHMCInference(Sampler):
    """Stochastic gradient Hamiltonian Monte Carlo, the inference of the BPC papers (Kim et al., NeurIPS 2022).

    theta <- theta + eps m; m <- (1 - friction) m - eps grad E + sqrt(2 friction T) N(0, I), with eps^2 = lr / n for n
    images. Without noise it is SGD with learning rate lr and momentum 1 - friction on the mean loss. BPC-D's code uses
    lr 0.01, friction 0.1, T 0.01, prior norm, start normal, augmentation dsa, burn 250, thin 5, 50 samples and 1 chain.
    """

    name: ClassVar[str] = "sghmc"
    remedy: ClassVar[str] = "the chains diverge; use a smaller `lr`"

    lr: float = option(0.01, "eps^2 n, the learning rate of the equivalent SGD without noise")
    friction: float = option(0.1, "fraction of the momentum lost per step")
    batch_size: int = option(1000, "images per step; a smaller coreset is used whole")
    augmentation: str = option("none", "augmentation strategy while sampling, such as dsa or paper")
    together: int = option(
        1, "evaluation seeds of one coreset whose chains are run together; equal up to rounding", absent=1
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.together < 1:
            raise ValueError(f"together must be at least 1, got {self.together}")
        if self.together > 1 and (self.chunk is not None or not self.keep):
            raise ValueError("together needs `keep` and cannot be combined with `chunk`")
        if self.lr <= 0 or self.batch_size < 1:
            raise ValueError(f"lr and batch_size must be positive, got {self.lr} and {self.batch_size}")
        if not 0 < self.friction <= 1:
            raise ValueError(f"friction must be above 0 and at most 1, got {self.friction}")
        strategy(self.augmentation, 1)

    def rows(self, count: int) -> int:
        return min(count, self.batch_size)

    def seeds_together(self) -> int:
        """Return the option `together`."""
        return self.together

    def operations(self, offer: Offer, images: int) -> float | None:
        """Return chains * F * (3 steps * rows + samples * images), F being one image's forward pass."""
        one = offer.network.operations(offer.facts.shape, offer.facts.classes)
        rows, steps = self.rows(offer.ipc * offer.facts.classes), self.burn + self.samples * self.thin
        return None if one is None else self.chains * one * (STEP * steps * rows + self.samples * images)

    def augmentation_used(self) -> str:
        return self.augmentation

    def kernel(
        self, potential: Potential, theta: torch.Tensor, generators: Sequence[torch.Generator], rows: float
    ) -> Kernel:
        from bpcbench_torch.sghmc import SGHMC

        step_size = math.sqrt(self.lr / rows)
        return SGHMC(
            potential, theta, generators, step_size=step_size, friction=self.friction, temperature=self.temperature
        )


@dataclass(frozen=True)
class HMCInference(Sampler):
    """Hamiltonian Monte Carlo with Metropolis acceptance, for small networks: every step uses the whole coreset.

    A step is a trajectory of `leapfrog` gradients. Its end is accepted with probability min(1, exp(-dH / T)), where H
    is E plus the kinetic energy. Step sizes are adapted during burn-in; see the logged `acceptance`.
    """

    name: ClassVar[str] = "hmc"

    burn: int = option(50, "trajectories before the first sample")
    thin: int = option(1, "trajectories between samples")
    leapfrog: int = option(20, "gradients per trajectory")
    lr: float = option(0.01, "eps^2 n for the initial step size eps")
    acceptance: float = option(0.8, "target acceptance rate of step size adaptation; 0: no adaptation")
    capture: bool = option(True, "on a GPU, replay trajectories as CUDA graphs", key=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.leapfrog < 1 or self.lr <= 0:
            raise ValueError(f"leapfrog and lr must be positive, got {self.leapfrog} and {self.lr}")
        if not 0 <= self.acceptance < 1:
            raise ValueError(f"acceptance must be at least 0 and below 1, got {self.acceptance}")

    def kernel(
        self, potential: Potential, theta: torch.Tensor, generators: Sequence[torch.Generator], rows: float
    ) -> Kernel:
        from bpcbench_torch.hmc import HMC

        return HMC(
            potential,
            theta,
            generators,
            step_size=math.sqrt(self.lr / rows),
            steps=self.leapfrog,
            temperature=self.temperature,
            acceptance=self.acceptance,
            capture=self.capture,
        )
