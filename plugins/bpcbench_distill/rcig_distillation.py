"""The outer loop of RCIG."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bpcbench.api import Context
from bpcbench.records import Coreset, Data, Inputs, Recipe
from bpcbench_distill.adabelief import AdaBelief
from bpcbench_distill.inner_problem import InnerProblem, dual_weights, implicit_term
from bpcbench_distill.kernel import margin, mirrored
from bpcbench_distill.linearisation import Linearisation
from bpcbench_distill.rates import Rate, searched
from bpcbench_distill.rcig import RCIG, while_distilling
from bpcbench_distill.rcig_inference import mirrors
from bpcbench_torch.allocation import freed_memory_kept
from bpcbench_torch.batches import Batches
from bpcbench_torch.distillation import initial_images
from bpcbench_torch.flat import row_wise
from bpcbench_torch.growth import grown, size_at
from bpcbench_torch.moving_average import MovingAverage
from bpcbench_torch.pool import Pool
from bpcbench_torch.targets import centred_targets


@dataclass(frozen=True)
class Learned:
    """What RCIG learns: images (n, c, h, w), labels (n, k), and the logarithm tau of the inverse temperature."""

    images: Tensor
    targets: Tensor
    log_scale: Tensor

    def rows(self, mirror: bool) -> tuple[Tensor, Tensor]:
        """Return images and labels with mirrored copies, if asked."""
        return mirrored(self.images, self.targets) if mirror else (self.images, self.targets)


@dataclass(frozen=True)
class Real:
    """A batch of real images and their class numbers."""

    images: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Gradients:
    """The gradients of the outer loss: direct in what is learned, and in the tangents."""

    loss: Tensor
    accuracy: Tensor
    images: Tensor
    targets: Tensor
    log_scale: Tensor
    tangents: Tensor


def outer_gradients(
    problem: InnerProblem, tangents: Tensor, learned: Learned, real: Real, l2: float, *, mirror: bool
) -> Gradients:
    """Return the outer loss and its gradients at fixed tangents.

    The loss is the mean of -log softmax(e^tau (J t + phi Phi^T a))_y over the batch, with a = A^-1 (Y - J_S t), minus
    the label term. Only coreset rows are differentiated through the expansion; what the batch adds to the gradient in
    t is pulled back from the gradient in its outputs.
    """
    linear = problem.linear
    with torch.no_grad():
        outputs, features = linear.push(real.images, tangents)
    outputs.requires_grad_()
    images, targets = learned.rows(mirror)
    own, own_features = linear.push(images, tangents)
    weights = dual_weights(own_features, targets - own, l2)
    logits = outputs + (features @ own_features.mT) @ weights
    loss = F.cross_entropy(logits * learned.log_scale.exp(), real.labels)
    loss = loss + margin(learned.targets, 0.5 / targets.shape[1])
    wanted = [learned.images, learned.targets, learned.log_scale, own, outputs]
    by_images, by_targets, by_scale, by_own, by_outputs = torch.autograd.grad(loss, wanted)
    by_tangents = (problem.pull(by_own) + linear.pull(real.images)(by_outputs)).detach()
    accuracy = (logits.argmax(1) == real.labels).float().mean()
    return Gradients(loss.detach(), accuracy, by_images, by_targets, by_scale, by_tangents)


def implicit_gradients(
    linear: Linearisation, tangents: Tensor, direction: Tensor, learned: Learned, l2: float, *, mirror: bool
) -> tuple[Tensor, Tensor]:
    """Return -d/dS <v, dL/dt> in images and labels."""
    images, targets = learned.rows(mirror)
    term = implicit_term(linear, images, targets, tangents, direction, l2)
    by_images, by_targets = torch.autograd.grad(-term, [learned.images, learned.targets])
    return by_images, by_targets


def limited(implicit: Tensor, direct: Tensor) -> Tensor:
    """Return the implicit gradient, at most as long as the direct one; 0 where it is not finite."""
    own = implicit.norm()
    return (implicit * (torch.minimum(own, direct.norm()) / own)).nan_to_num(0.0, 0.0, 0.0)


@freed_memory_kept()
def distil(method: RCIG, data: Data, ipc: int, inputs: Inputs, ctx: Context) -> Coreset:
    """Run the outer loop and return the moving average."""
    count = data.facts.classes
    start, classes = initial_images(method, data, ipc, inputs, ctx.seed)
    fresh = Coreset(images=start, targets=classes, class_ids=classes, classes=count)
    labels = centred_targets(fresh, method.label_scale * math.sqrt(count / 10))
    learned = Learned(
        images=torch.tensor(start, device=ctx.device, requires_grad=True),
        targets=torch.tensor(labels, device=ctx.device, requires_grad=True),
        log_scale=torch.zeros((), device=ctx.device, requires_grad=True),
    )
    mirror = mirrors(method.mirror, start.shape[1], count, len(start))
    l2 = method.l2_rate * len(start)
    optimizer = _optimizer(method, learned)
    average = MovingAverage(vars(learned), method.decay)
    pool = Pool(
        while_distilling(method.network, method.beta),
        data.facts.shape,
        count,
        size=method.pool,
        updates=method.updates,
        lr=method.pool_lr,
        seed=ctx.seed,
        device=ctx.device,
        staggered=False,
    )
    batches = Batches(
        data,
        inputs.transform,
        size=method.batch,
        seed=ctx.seed + 1,
        device=ctx.device,
        needed=method.peak_bytes(data.facts, ipc),
    )
    chooser = torch.Generator().manual_seed(ctx.seed + 2)
    inner_rate, hvp_rate = Rate(method.inner_lr, ctx.device), Rate(method.hvp_lr, ctx.device)

    def coreset() -> Coreset:
        return Coreset(
            images=average.value("images").cpu().contiguous().numpy(),
            targets=average.value("targets").cpu().numpy(),
            class_ids=classes,
            classes=count,
            convention=method.convention(),
            recipe=Recipe(scalars={"temperature": math.exp(-float(average.value("log_scale")))}),
        )

    state = {
        **vars(learned),
        "optimizer": optimizer,
        "average": average,
        "pool": pool,
        "batches": batches,
        "chooser": chooser,
        "inner_rate": inner_rate,
        "hvp_rate": hvp_rate,
    }
    sizes = grown(method.batch_start, method.batch)
    for step in ctx.steps(method.steps, state=state, snapshot=coreset):
        batches.resize(size_at(step, method.steps, sizes))
        linear = Linearisation(pool.draw(), method.chunk)
        real = Real(*batches.next())
        problem = InnerProblem(linear, *learned.rows(mirror), l2)
        if step == 0 and method.search:
            _search(method, problem, learned, real, inner_rate, hvp_rate, mirror=mirror)
        inner = problem.descend(method.inner_steps, inner_rate.value)
        direct = outer_gradients(problem, inner.end, learned, real, l2, mirror=mirror)
        inverse = problem.invert(direct.tangents, method.hvp_steps, hvp_rate.value)
        ctx.log(inner_lr=inner_rate.value, hvp_lr=hvp_rate.value)
        if method.adapt != "none":
            inner_rate.observe(step, inner.losses)
        if method.adapt == "both":
            hvp_rate.observe(step, inverse.losses)
        implicit = implicit_gradients(linear, inner.end, inverse.end, learned, l2, mirror=mirror)
        learned.images.grad = direct.images + limited(implicit[0], direct.images)
        learned.targets.grad = direct.targets + limited(implicit[1], direct.targets) if method.learn_labels else None
        learned.log_scale.grad = direct.log_scale
        optimizer.step()
        average.update()
        images, targets = (rows.detach() for rows in learned.rows(mirror))
        updates = int(torch.randint(1, method.pool_steps + 1, (), generator=chooser))
        pool.train(lambda model: _pool_loss(model, images, targets, method.chunk), updates)  # noqa: B023
        ctx.log(
            loss=direct.loss,
            accuracy=direct.accuracy,
            inner_loss=inner.losses[-1],
            implicit_share=implicit[0].norm() / direct.images.norm(),
            log_scale=learned.log_scale.detach().clone(),
        )
    return coreset()


def _search(
    method: RCIG,
    problem: InnerProblem,
    learned: Learned,
    real: Real,
    inner_rate: Rate,
    hvp_rate: Rate,
    *,
    mirror: bool,
) -> None:
    """Set both rates by trial on the initial coreset and a new network."""
    inner_rate.value = searched(inner_rate.value, lambda lr: problem.descend(method.inner_steps, lr).losses)
    tangents = problem.descend(method.inner_steps, inner_rate.value).end
    gradient = outer_gradients(problem, tangents, learned, real, problem.l2, mirror=mirror).tangents
    hvp_rate.value = searched(hvp_rate.value, lambda lr: problem.invert(gradient, method.hvp_steps, lr).losses)


def _optimizer(method: RCIG, learned: Learned) -> AdaBelief:
    label_lr = method.lr if method.label_lr is None else method.label_lr
    groups = [
        {"params": [learned.images], "lr": method.lr},
        {"params": [learned.targets], "lr": label_lr},
        {"params": [learned.log_scale], "lr": method.temperature_lr},
    ]
    return AdaBelief(groups)


def _pool_loss(model: nn.Module, images: Tensor, targets: Tensor, chunk: int | None) -> Tensor:
    """Return the loss of a pool update with the network's own last layer, 0.5 * mean ||f(x) - y||^2 / k.

    With `chunk` the outputs are computed part by part, unless BatchNorm makes them depend on all rows.
    """
    if chunk is None or len(images) <= chunk or not row_wise(model):
        outputs = model(images)
    else:
        outputs = torch.cat([checkpoint(model, part, use_reentrant=False) for part in images.split(chunk)])
    loss: Tensor = 0.5 * (outputs - targets).square().mean()
    return loss
