"""The predictive of sampled network parameters: sampling, and Bayesian model averaging."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from bpcbench.api import Context, Network
from bpcbench.errors import NotFinite
from bpcbench.records import Array, Arrays, Coreset, Predicted
from bpcbench_torch import diagnostics
from bpcbench_torch.chains import Samples, Schedule, run
from bpcbench_torch.device_predictive import CHUNK, DevicePredictive
from bpcbench_torch.flat import FlatNetwork
from bpcbench_torch.potential import Batch, CoresetPotential, Prior
from bpcbench_torch.samplers import Sampler
from bpcbench_torch.strategy import strategy
from bpcbench_torch.training import relative_weights
from bpcbench_torch.transfer import on_device

_STATISTICS_ROWS = 5000
"""The largest batch for BatchNorm's statistics; for larger coresets they are averaged over parts."""
_PROBES = 50
"""Coreset images used for diagnostics."""
_INFINITE = 1e9

Members = Callable[[int], Tensor]
"""Maps the index of a member to its parameters (size,)."""


class SampledPredictive(DevicePredictive):
    """Bayesian model averaging: p(y|x) = mean over samples s of softmax(f(x; theta_s)), members first.

    `scale` multiplies the outputs f. Each sample has its own BatchNorm statistics, computed from the coreset alone.
    """

    def __init__(
        self,
        network: FlatNetwork,
        theta: Members,
        statistics: Sequence[Mapping[str, Tensor]],
        *,
        scale: float,
        keep: bool,
        device: str,
    ) -> None:
        self.network, self.theta, self.statistics, self.keep, self.device = network, theta, statistics, keep, device
        self.scale = scale

    def predict_tensor(self, images: Tensor) -> Predicted:
        parts = [part.to(self.device) for part in images.split(CHUNK)]
        members = []
        for member, statistics in enumerate(self.statistics):
            theta = self.theta(member).to(self.device)
            outputs = [self.network(theta, part, statistics=statistics).float() for part in parts]
            rows = [(self.scale * output).log_softmax(1) for output in outputs]
            members.append(torch.cat(rows).cpu().numpy())
        return Predicted(np.stack(members))

    def arrays(self) -> Arrays | None:
        """Return `theta` (members, size) and each sample's statistics, or None if `keep` is off."""
        if not self.keep:
            return None
        count = len(self.statistics)
        names = self.statistics[0]
        kept = {f"statistics.{n}": np.stack([s[n].cpu().numpy() for s in self.statistics]) for n in names}
        return {"theta": np.stack([self.theta(member).cpu().numpy() for member in range(count)]), **kept}


def fit(
    inference: Sampler, coreset: Coreset, network: Network, ctx: Context, seeds: Sequence[int]
) -> list[SampledPredictive]:
    """Run the chains of every seed on a coreset, and return the predictive of each seed's samples.

    Those of several seeds go through the network together. Convergence diagnostics of the first are logged.
    """
    if ctx.precision != "float32":
        raise ValueError(f"{inference.name} computes in float32, not in {ctx.precision!r}")
    shape, of_chains = coreset.images.shape[1:], [one for seed in seeds for one in inference.seeds(seed)]
    images = torch.tensor(coreset.images, device=ctx.device)
    targets = torch.tensor(coreset.targets, device=ctx.device)
    scale = inference.scale(coreset)
    targets = targets.long() if coreset.convention == "class" else targets.float() / scale
    last = inference.channels_last
    flats = [
        FlatNetwork(network.build(shape, coreset.classes, seed).to(ctx.device), channels_last=last)
        for seed in of_chains
    ]
    noise = [torch.Generator(ctx.device).manual_seed(seed) for seed in of_chains]
    theta = torch.stack([flat.initial() for flat in flats])
    if inference.start == "normal":
        theta = torch.stack([0.1 * torch.randn(flats[0].size, generator=g, device=ctx.device) for g in noise])
    prior = Prior.of(inference.prior, inference.weight_decay, flats[0].size)
    weights = relative_weights(coreset, ctx.device)
    batch = (images, targets) if weights is None else (images, targets, weights)
    choosers = [_Chooser(batch, inference, seed) for seed in of_chains] if inference.stochastic(coreset) else None
    potential = CoresetPotential(
        flats[0],
        images,
        targets,
        coreset.convention,
        prior,
        choose=choosers,
        batched=inference.batched or len(seeds) > 1,
        chunk=inference.chunk,
        weights=weights,
        total=None if coreset.weights is None else float(coreset.weights.sum(dtype=np.float64)),
    )
    kernel = inference.kernel(potential, theta, noise, potential.rows)
    samples = Samples(ctx.scratch if inference.samples_in == "disk" else None)
    schedule = Schedule(inference.burn, inference.samples, inference.thin)

    def describe(theta: Tensor, energy: Tensor) -> dict[str, Tensor]:
        loss = potential.loss(theta, energy)
        return {"loss": loss, "worst_loss": loss.max(), "norm": torch.linalg.vector_norm(theta, dim=1)}

    more = {
        f"{name}.{chain}": getattr(chooser, name)
        for chain, chooser in enumerate(choosers or ())
        for name in ("rows", "pixels")
    }
    try:
        run(kernel, schedule, samples, ctx, state=more, what=f"{len(of_chains)} chains", describe=describe)
    except NotFinite as error:
        raise NotFinite(f"{error}: {inference.remedy}") from error

    predictives = []
    for index, seed in enumerate(seeds):
        member = partial(_member, samples, index * inference.chains, inference.samples)
        count = inference.chains * inference.samples
        statistics = [_statistics(flats[0], member(one).to(ctx.device), images, seed) for one in range(count)]
        predictives.append(
            SampledPredictive(flats[0], member, statistics, scale=scale, keep=inference.keep, device=ctx.device)
        )
    ctx.log(**agreement(predictives[0], coreset.images, inference.chains))
    return predictives


def _member(samples: Samples, first: int, count: int, index: int) -> Tensor:
    """Return a sample of the chains from `first` on, each of which has `count`."""
    chain, sample = divmod(index, count)
    return samples.read(first + chain, sample)


def restore(inference: Sampler, arrays: Arrays, coreset: Coreset, network: Network, ctx: Context) -> SampledPredictive:
    """Return the predictive of stored samples."""
    module = network.build(coreset.images.shape[1:], coreset.classes, ctx.seed).to(ctx.device)
    flat = FlatNetwork(module, channels_last=inference.channels_last)
    theta = torch.tensor(arrays["theta"])
    prefix = "statistics."
    names = [name for name in arrays if name.startswith(prefix)]
    stacked = {name.removeprefix(prefix): torch.tensor(arrays[name], device=ctx.device) for name in names}
    statistics = [{name: values[index] for name, values in stacked.items()} for index in range(len(theta))]
    return SampledPredictive(
        flat,
        lambda index: theta[index],
        statistics,
        scale=inference.scale(coreset),
        keep=inference.keep,
        device=ctx.device,
    )


def agreement(predictive: SampledPredictive, images: Array, chains: int) -> dict[str, float]:
    """Return the worst and the median R-hat and effective sample size of the class probabilities of some images.

    Diagnostics use function values, because a network's parameters can be permuted without changing its function.
    """
    probes = images[np.unique(np.linspace(0, len(images) - 1, _PROBES).round().astype(int))]
    log_probs = predictive.log_probs(probes)
    draws = log_probs.reshape(chains, len(log_probs) // chains, -1)
    if draws.shape[1] < diagnostics.SMALLEST:
        return {}
    diagnosed = {"rhat": diagnostics.rhat(draws), "ess": diagnostics.ess(draws)}
    # A class with the same probability in every sample is uninformative. Chains that stand still at different points
    # have an infinite R-hat, which must not fail the stage.
    varying = {name: np.minimum(values[~np.isnan(values)], _INFINITE) for name, values in diagnosed.items()}
    worst = {"rhat": np.max, "ess": np.min}
    return {
        f"{name}{suffix}": float(reduce(values))
        for name, values in varying.items()
        if len(values)
        for suffix, reduce in (("", worst[name]), ("_median", np.median))
    }


class _Chooser:
    """Draws the rows of one chain: an augmented random batch, or the whole coreset if it fits in one.

    It has its own generators, so that its draws do not change the noise of the chain.
    """

    def __init__(self, batch: Batch, inference: Sampler, seed: int) -> None:
        self.batch = batch
        images = batch[0]
        self.size = inference.rows(len(images))
        self.augment = strategy(inference.augmentation_used(), images.shape[1])
        self.rows = torch.Generator().manual_seed(seed ^ 0x5DEECE66D)
        self.pixels = torch.Generator(images.device).manual_seed(seed ^ 0x2545F4914F6CDD1D)

    def __call__(self) -> Batch:
        images, *others = self.batch
        if self.size < len(images):
            rows = on_device(torch.randperm(len(images), generator=self.rows)[: self.size], images.device)
            images, *others = (part[rows] for part in self.batch)
        return self.augment(images, self.pixels, chooser=self.rows), *others


def _statistics(network: FlatNetwork, theta: Tensor, images: Tensor, seed: int) -> dict[str, Tensor]:
    """Return BatchNorm's statistics on the coreset, averaged over shuffled parts of equal size if it is large."""
    if not network.buffers or len(images) <= _STATISTICS_ROWS:
        return network.recomputed_statistics(theta, images)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed)).to(images.device)
    parts = order.tensor_split(math.ceil(len(images) / _STATISTICS_ROWS))
    buffers = [network.recomputed_statistics(theta, images[rows]) for rows in parts]
    return {
        name: torch.stack([part[name] for part in buffers]).mean(0) if value.is_floating_point() else value
        for name, value in buffers[0].items()
    }
