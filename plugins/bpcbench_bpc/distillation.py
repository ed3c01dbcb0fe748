"""The outer loop of methods that use expert trajectories."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from bpcbench.api import Context
from bpcbench.records import Array, Coreset, Data, Inputs
from bpcbench.sampling import per_class
from bpcbench_bpc.method import ROLE
from bpcbench_bpc.problem import Augmented, Problem
from bpcbench_bpc.windows import Windows
from bpcbench_torch.batches import Batches
from bpcbench_torch.capture import Regions
from bpcbench_torch.flat import FlatNetwork
from bpcbench_torch.memory import sizes
from bpcbench_torch.strategy import strategy

if TYPE_CHECKING:
    from bpcbench_bpc.method import TrajectoryMethod


def initial_images(init: str, data: Data, ipc: int, inputs: Inputs, seed: int) -> tuple[Array, Array]:
    """Return the initial images of a coreset, in network space, and the class of each.

    `real` are the initial images shared by all methods; `mix` mixes each of them with another image of its class.
    """
    chosen = per_class(data.labels, ipc, seed)
    classes = np.asarray(data.labels)[chosen]
    images = inputs.transform.apply(np.asarray(data.train.images[chosen]))
    rng = np.random.default_rng(seed)
    if init == "noise":
        images = rng.standard_normal(images.shape, np.float32)
    elif init == "mix":
        # The first half of a draw of 2 * ipc is the draw of ipc.
        both = per_class(data.labels, 2 * ipc, seed).reshape(-1, 2, ipc)
        others = inputs.transform.apply(np.asarray(data.train.images[both[:, 1].reshape(-1)]))
        share = rng.random((len(images), 1, 1, 1), np.float32)
        images = share * images + (1 - share) * others
    return images, classes


def distil(method: TrajectoryMethod, data: Data, ipc: int, inputs: Inputs, ctx: Context) -> Coreset:
    """Run the outer loop of a method and return its last iterate."""
    if ctx.precision != "float32":
        raise ValueError(f"{method.name} computes in float32, not in {ctx.precision!r}")
    shape, count, device = data.facts.shape, data.facts.classes, ctx.device
    start, class_ids = initial_images(method.init, data, ipc, inputs, ctx.seed)
    images = torch.tensor(start, device=device, requires_grad=True)
    classes = torch.tensor(class_ids, dtype=torch.int64, device=device)
    logits = torch.nn.functional.one_hot(classes, count).float() * method.label_scale
    logits.requires_grad_(method.labels == "learned")
    rate_lr = method.rate_learning()
    rate = torch.tensor(method.inner_lr, device=device, requires_grad=rate_lr is not None)
    groups = [{"params": [images], "lr": method.lr}]
    if method.labels == "learned":
        groups.append({"params": [logits], "lr": method.label_lr})
    if rate_lr is not None:
        groups.append({"params": [rate], "lr": rate_lr})
    optimizer = torch.optim.SGD(groups, lr=method.lr, momentum=method.image_momentum())
    windows = Windows(
        inputs[ROLE],
        max_start=method.max_start,
        min_start=method.min_start,
        order="passes" if method.official else "uniform",
        seed=ctx.seed + 1,
        device=device,
    )
    generator = torch.Generator(device).manual_seed(ctx.seed + 2)
    # A separate CPU generator: the drawn operation decides what is launched, and must not wait for the device.
    chooser = torch.Generator().manual_seed(ctx.seed + 3)
    augment = strategy(method.augmentation_used(shape[0]), shape[0])
    network = FlatNetwork(method.network.build(shape, count, ctx.seed).to(device))
    these = sizes(method.network, data.facts, ipc)
    captured = method.capture if these is None else method.captures(these)
    regions = Regions(device, generators=[generator], enabled=captured)
    batches = _batches(method, data, ipc, inputs, ctx)
    state = {
        "images": images,
        "logits": logits,
        "rate": rate,
        "optimizer": optimizer,
        "windows": windows,
        "generator": generator,
        "chooser": chooser,
        **({"batches": batches} if batches else {}),
    }

    def coreset() -> Coreset:
        targets = class_ids
        if method.labels == "learned":
            targets = torch.softmax(logits.detach(), 1).cpu().numpy()
        pixels = images.detach().to("cpu", torch.float32, copy=True).numpy()
        return Coreset(
            images=pixels, targets=targets, class_ids=class_ids, classes=count, convention=method.convention()
        )

    for _ in ctx.steps(method.updates(), state=state, snapshot=coreset):
        problem = Problem(
            network=network,
            window=windows.draw(),
            images=images,
            classes=classes,
            logits=logits if method.labels == "learned" else None,
            rate=rate,
            choose=lambda: Augmented(augment.drawn(chooser), generator),
            normal=partial(_normal, generator),
            real=batches.next if batches else _no_batches,
            examples=len(data.train),
            regions=regions,
            sizes=these,
        )
        estimate = method.estimate(problem)
        for leaf, gradient in zip(problem.learned, estimate.gradients, strict=True):
            leaf.grad = gradient
        rate.grad = estimate.rate
        optimizer.step()
        method.constrain(rate)
        ctx.log(**estimate.values)
    return coreset()


def _batches(method: TrajectoryMethod, data: Data, ipc: int, inputs: Inputs, ctx: Context) -> Batches | None:
    size = method.batch_used()
    if not size:
        return None
    needed = method.peak_bytes(data.facts, ipc)
    return Batches(data, inputs.transform, size=size, seed=ctx.seed + 4, device=ctx.device, needed=needed)


def _no_batches() -> tuple[Tensor, Tensor]:
    raise RuntimeError("the method declares no real images: override batch_used")


def _normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=generator, device=generator.device)
