"""A step of VBPC in JAX, written for speed there: what the step of `bpcbench_torch.distillation` is measured against.

The same mathematics without augmentation: features of a real batch and of the coreset with running BatchNorm
statistics, the closed-form posterior, the outer loss, its gradient for images and labels, Adam on both along a cosine,
and one Adam step of the network on the new coreset. The whole step is one jitted function; images are channels-last.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve, solve_triangular

Tree = Any
EPSILON, MOMENTUM = 1e-5, 0.9


def from_torch(model: Any) -> tuple[Tree, Tree]:
    """Return parameters and running statistics of a `ConvNet` of order norm-first with BatchNorm."""
    convs, norms = list(model.convs), list(model.norms)[1:]
    channels, side = convs[-1].out_channels, round((model.feature_size / convs[-1].out_channels) ** 0.5)
    head = _array(model.head.weight).reshape(-1, channels, side, side).transpose(2, 3, 1, 0)
    parameters = {
        "convs": [{"w": _array(c.weight).transpose(2, 3, 1, 0), "b": _array(c.bias)} for c in convs],
        "norms": [{"w": _array(n.weight), "b": _array(n.bias)} for n in norms],
        "head": {"w": head.reshape(-1, head.shape[-1]), "b": _array(model.head.bias)},
    }
    statistics = [{"mean": _array(n.running_mean), "var": _array(n.running_var)} for n in norms]
    return jax.tree.map(jnp.asarray, parameters), jax.tree.map(jnp.asarray, statistics)


def _array(tensor: Any) -> np.ndarray:
    return tensor.detach().numpy().copy()


def features(parameters: Tree, statistics: Tree, x: jax.Array, *, train: bool = False) -> tuple[jax.Array, Tree]:
    """Return the features of images (n, height, width, channels), and the statistics after a look at them."""
    padding = 3 if x.shape[1:3] == (28, 28) else 1
    updated = []
    for block, conv in enumerate(parameters["convs"]):
        if block:
            norm, running = parameters["norms"][block - 1], statistics[block - 1]
            if train:
                running, used = _observe(running, x)
                updated.append(running)
            else:
                used = running
            scale = norm["w"] * jax.lax.rsqrt(used["var"] + EPSILON)
            x = x * scale + (norm["b"] - used["mean"] * scale)
        pads = [(padding, padding)] * 2 if block == 0 else [(1, 1)] * 2
        x = jax.lax.conv_general_dilated(x, conv["w"], (1, 1), pads, dimension_numbers=("NHWC", "HWIO", "NHWC"))
        x = jax.nn.relu(x + conv["b"])
        # A sixth faster than the mean of a reshaped array.
        x = jax.lax.reduce_window(x, 0.0, jax.lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") / 4
    return x.reshape(len(x), -1), updated


def _observe(running: Tree, x: jax.Array) -> tuple[Tree, Tree]:
    """Return the running statistics, with the unbiased variance as in torch, and those of the batch."""
    mean, count = x.mean((0, 1, 2)), x.size // x.shape[-1]
    var = jnp.square(x - mean).mean((0, 1, 2))
    seen = {"mean": mean, "var": var * (count / (count - 1))}
    return jax.tree.map(lambda old, new: (1 - MOMENTUM) * old + MOMENTUM * new, running, seen), {
        "mean": mean,
        "var": var,
    }


def outer(learned: Tree, parameters: Tree, statistics: Tree, real: jax.Array, labels: jax.Array) -> jax.Array:
    """Return VBPC's loss with rho 1, gamma 100, beta_S the number of rows and beta_D 1e-8."""
    phi, _ = features(parameters, statistics, learned["images"])
    targets = learned["targets"]
    rows, ratio = len(phi), 100.0 / len(phi)
    gram = phi @ phi.T
    factor = jnp.linalg.cholesky(jnp.eye(rows) + ratio * gram)
    weights = ratio * cho_solve((factor, True), targets)
    cross = real @ phi.T
    half = solve_triangular(factor, cross.T, lower=True)
    variance = jnp.maximum(jnp.square(real).sum(1) - ratio * jnp.square(half).sum(0), 0.0)
    inverse = solve_triangular(factor, jnp.eye(rows), lower=True)
    spread = 2.0 * jnp.log(jnp.diagonal(factor)).sum() - rows + jnp.square(inverse).sum()
    kl = 0.5 * (targets.shape[1] * jnp.maximum(spread, 0.0) + (weights * (gram @ weights)).sum())
    log_probs = jax.nn.log_softmax((cross @ weights) / jnp.sqrt(1.0 + jnp.pi / 8 * variance)[:, None])
    return -jnp.take_along_axis(log_probs, labels[:, None], 1).mean() + 1e-8 * kl


def loss_and_gradients(
    learned: Tree, parameters: Tree, statistics: Tree, images: jax.Array, labels: jax.Array
) -> tuple[jax.Array, Tree]:
    """Return the outer loss of a batch of real images and its gradients for the coreset."""
    real, _ = features(parameters, statistics, images)
    return jax.value_and_grad(outer)(learned, parameters, statistics, jax.lax.stop_gradient(real), labels)


def adam_state(tree: Tree) -> Tree:
    """Return the state of Adam before the first step."""
    return {"m": jax.tree.map(jnp.zeros_like, tree), "v": jax.tree.map(jnp.zeros_like, tree), "t": jnp.zeros(())}


def adam(tree: Tree, gradients: Tree, state: Tree, rate: Any) -> tuple[Tree, Tree]:
    """Return parameters and state after a step of Adam with torch's defaults."""
    t = state["t"] + 1
    m = jax.tree.map(lambda a, g: 0.9 * a + 0.1 * g, state["m"], gradients)
    v = jax.tree.map(lambda a, g: 0.999 * a + 0.001 * g * g, state["v"], gradients)
    first, second = 1 - 0.9**t, jnp.sqrt(1 - 0.999**t)
    stepped = jax.tree.map(lambda p, a, b: p - rate / first * a / (jnp.sqrt(b) / second + 1e-8), tree, m, v)
    return stepped, {"m": m, "v": v, "t": t}


def pool_loss(parameters: Tree, statistics: Tree, learned: Tree) -> tuple[jax.Array, Tree]:
    """Return the loss of a pool update, and the new running statistics."""
    phi, updated = features(parameters, statistics, learned["images"], train=True)
    outputs = phi @ parameters["head"]["w"] + parameters["head"]["b"]
    return 0.5 * jnp.square(outputs - learned["targets"]).sum(1).mean(), updated


@functools.partial(jax.jit, donate_argnums=(0, 1))
def step(learned: Tree, network: Tree, data: jax.Array, labels: jax.Array, rows: jax.Array, rate: Any) -> Tree:
    """Return coreset and network after a step, and the loss; both carry the state of their Adam."""
    loss, gradients = loss_and_gradients(
        learned["values"], network["parameters"], network["statistics"], data[rows], labels[rows]
    )
    values, optimiser = adam(learned["values"], gradients, learned["adam"], rate)
    # The loss is of the new coreset, in training mode.
    differentiated = jax.grad(pool_loss, has_aux=True)
    gradients, statistics = differentiated(network["parameters"], network["statistics"], values)
    parameters, network_optimiser = adam(network["parameters"], gradients, network["adam"], 3e-4)
    return (
        {"values": values, "adam": optimiser},
        {"parameters": parameters, "statistics": statistics, "adam": network_optimiser},
        loss,
    )
