"""The outer loop of methods that distil through a pool of networks."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from bpcbench.api import Context
from bpcbench.records import Array, Arrays, Coreset, Data, Inputs, Recipe
from bpcbench.sampling import per_class
from bpcbench_torch.allocation import freed_memory_kept
from bpcbench_torch.batches import Batches
from bpcbench_torch.computation import Compiled, CompiledAugmentation, Computation, compiles
from bpcbench_torch.growth import grown, size_at
from bpcbench_torch.lamb import Lamb
from bpcbench_torch.moving_average import MovingAverage
from bpcbench_torch.pool import Pool
from bpcbench_torch.pool_method import PoolMethod
from bpcbench_torch.strategy import strategy
from bpcbench_torch.targets import centred_targets


class Start(Protocol):
    """What a method says of its initial images."""

    @property
    def init(self) -> Literal["real", "uniform", "uniform-normalised"]:
        """Training images, or uniform random pixels."""

    def initial_seed(self, seed: int) -> int:
        """Return the seed of the initial images for a distillation seed."""


def initial_images(method: Start, data: Data, ipc: int, inputs: Inputs, seed: int) -> tuple[Array, Array]:
    """Return the initial images of a coreset, in network space, and the class of each; `seed` is the distillation's."""
    seed = method.initial_seed(seed)
    chosen = per_class(data.labels, ipc, seed)
    classes = np.asarray(data.labels)[chosen]
    pixels = np.asarray(data.train.images[chosen])
    if method.init == "uniform-normalised":
        return _normalised(np.random.default_rng(seed).random(pixels.shape), inputs.transform.arrays), classes
    if method.init == "uniform":
        pixels = np.random.default_rng(seed).integers(0, 256, pixels.shape, dtype=np.uint8)
    return inputs.transform.apply(pixels), classes


def _normalised(pixels: Array, fitted: Arrays) -> Array:
    """Return pixels in [0, 1] minus the mean and divided by the std of each channel, without any whitening."""
    if not {"mean", "std"} <= set(fitted):
        raise ValueError("init uniform-normalised needs a preprocessing with a mean and a std per channel")
    mean, std = (np.asarray(fitted[name]).reshape(1, -1, 1, 1) for name in ("mean", "std"))
    return ((pixels - mean) / std).astype(np.float32)


def cosine(step: int, total: int, final: float) -> float:
    """Return the factor of the learning rate: 1 at the start, `final` at the end, along a half cosine."""
    return final + (1.0 - final) * (0.5 + 0.5 * math.cos(math.pi * step / total))


@freed_memory_kept()
def distil(
    method: PoolMethod, data: Data, ipc: int, inputs: Inputs, ctx: Context, *, real_rows: Array | None = None
) -> Coreset:
    """Run the outer loop of a method and return its last iterate, or with `average` the moving average.

    The initial images come from all of `data`, so methods share them; real batches from `real_rows` of it if given.
    """
    count = data.facts.classes
    start, classes = initial_images(method, data, ipc, inputs, ctx.seed)
    images = torch.tensor(start, device=ctx.device, requires_grad=True)
    fresh = Coreset(images=start, targets=classes, class_ids=classes, classes=count)
    targets = torch.tensor(centred_targets(fresh, method.label_scale), device=ctx.device)
    targets.requires_grad_(method.learn_labels)
    learned = [images, targets] if method.learn_labels else [images]
    compiling = compiles(method, data.facts, ipc, ctx.device)
    everything = compiling and method.compile_parts == "all"
    optimizer = _optimizer(method, images, targets, fused=everything)
    rates = [group["lr"] for group in optimizer.param_groups]
    pool = Pool(
        method.network,
        data.facts.shape,
        count,
        size=method.pool,
        updates=method.updates,
        lr=method.pool_lr,
        seed=ctx.seed,
        device=ctx.device,
    )
    batches = Batches(
        data,
        inputs.transform,
        size=method.batch,
        seed=ctx.seed + 1,
        device=ctx.device,
        rows=real_rows,
        needed=method.peak_bytes(data.facts, ipc),
    )
    generator = torch.Generator(ctx.device).manual_seed(ctx.seed + 2)
    # A separate CPU generator: the drawn operation decides what is launched, and must not wait for the device.
    chooser = torch.Generator().manual_seed(ctx.seed + 3)
    augmentation = strategy(method.augmentation_used(), data.facts.shape[0])
    augment: Callable[[Tensor], Tensor] = partial(augmentation, generator=generator, chooser=chooser)
    compute = Computation(method, len(data.train), ctx)
    if compiling:
        compute = Compiled(method, len(data.train), ctx, pool.models[0])
    if everything:
        augment = CompiledAugmentation(augmentation, generator, chooser, method.compile_mode)
    average = MovingAverage({"images": images, "targets": targets}, method.average) if method.average else None

    def kept(name: str, tensor: Tensor) -> Tensor:
        return tensor.detach() if average is None else average.value(name)

    def coreset() -> Coreset:
        return Coreset(
            images=kept("images", images).to("cpu", torch.float32, copy=True).contiguous().numpy(),
            targets=kept("targets", targets).to("cpu", torch.float32, copy=True).numpy(),
            class_ids=classes,
            classes=count,
            convention=method.convention(),
            recipe=Recipe(scalars=method.scalars(len(classes))),
        )

    state = {
        "images": images,
        "targets": targets,
        "optimizer": optimizer,
        "pool": pool,
        "batches": batches,
        "generator": generator,
        "chooser": chooser,
    }
    if average is not None:
        state["average"] = average

    def pool_loss(model: nn.Module) -> Tensor:
        return _pool_loss(compute, model, images, targets, augment, generator)

    if method.pool_age:
        pool.age(pool_loss, method.pool_age)
    sizes = grown(method.batch_start, method.batch)
    for step in ctx.steps(method.steps, state=state, snapshot=coreset):
        batches.resize(size_at(step, method.steps, sizes))
        model = pool.draw()
        real, labels = batches.next()
        features = compute.constant(model, augment(real) if method.augment_real else real)
        factor = cosine(step, method.steps, method.final_lr) * min(1.0, (step + 1) / max(1, method.warmup))
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * factor
        for _ in range(method.repeats):
            rows, row_targets = method.rows(images, targets)
            values = compute.outer(model, augment(rows), row_targets, features, labels)
            # Only for learned tensors: gradients of the network's weights are not needed.
            for tensor, gradient in zip(learned, torch.autograd.grad(values["loss"], learned), strict=True):
                # Fused kernels take numbers as they lie in memory, whatever the strides of a gradient say.
                tensor.grad = gradient.contiguous() if everything else gradient
            optimizer.step()
            if average is not None:
                average.update()
        pool.update(pool_loss)
        ctx.log(**values)
    return coreset()


def _optimizer(method: PoolMethod, images: Tensor, targets: Tensor, *, fused: bool) -> torch.optim.Optimizer:
    """Return the optimiser of images and labels; a `fused` Adam is one kernel for each of them, LAMB stays as it is."""
    groups = [{"params": [images], "lr": method.lr}]
    if method.learn_labels:
        groups.append({"params": [targets], "lr": method.lr if method.label_lr is None else method.label_lr})
    return Lamb(groups) if method.optimiser == "lamb" else torch.optim.Adam(groups, fused=fused or None)


def _pool_loss(
    compute: Computation,
    model: nn.Module,
    images: Tensor,
    targets: Tensor,
    augment: Callable[[Tensor], Tensor],
    generator: torch.Generator,
) -> Tensor:
    method = compute.method
    x, y = images.detach(), targets.detach()
    if len(x) > method.pool_rows:
        rows = torch.randperm(len(x), generator=generator, device=x.device)[: method.pool_rows]
        x, y = x[rows], y[rows]
    return compute.pool_loss(model, augment(x) if method.augment_pool else x, y)
