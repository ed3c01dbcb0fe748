"""The inference `random-features`: kernel ridge regression on the features of random networks."""

from dataclasses import dataclass

import numpy as np

import bpcbench

CHUNK = 250
"""Images per forward pass; it bounds the memory of wide networks."""


@dataclass(frozen=True)
class RandomFeatures(bpcbench.Inference):
    """p(y|x) = softmax(scale * k(x, S) (k(S, S) + r I)^-1 y), S being the coreset; no network is trained.

    k is the covariance of the outputs of random networks, bias^2 + 2 mean_j f_j(x) f_j(x'), averaged over the features
    f_j of `members` networks: an estimate of the kernel of the infinitely wide network (NNGP), with which RFAD (Loo et
    al., 2022) evaluates its coresets. The ridge is r = ridge * trace(k(S, S)) / |S|. A row of weight w counts like w.
    """

    name = "random-features"
    version = 1
    preload = ("torch", "torch._dynamo", "torch.optim")

    members: int = bpcbench.option(8, "number of random networks")
    ridge: float = bpcbench.option(0.005, "ridge, relative to the mean of the kernel's diagonal")
    bias: float = bpcbench.option(0.1, "standard deviation of the biases of the last layer")
    scale: float = bpcbench.option(40.0, "factor of the outputs in the softmax: an inverse temperature")

    def accepts(self, offer):
        if offer.network.framework != "torch":
            return f"{self.name} needs a torch network, but {offer.network.name} is one of {offer.network.framework}"
        return None

    def fit(self, coreset, network, inputs, ctx):
        seeds = np.random.SeedSequence(ctx.seed).generate_state(self.members)
        shape = coreset.images.shape[1:]
        networks = [network.build(shape, coreset.classes, int(seed)).to(ctx.device).eval() for seed in seeds]
        features = random_features(networks, self.bias, coreset.images, ctx.device).astype(np.float64)
        if coreset.convention == "class":
            targets = np.eye(coreset.classes)[coreset.targets] - 1 / coreset.classes
        else:
            targets = coreset.targets - coreset.targets.mean(1, keepdims=True)
        weights = np.ones(len(coreset)) if coreset.weights is None else coreset.weights
        root = np.sqrt(weights)[:, None]
        kernel = (root * features) @ (root * features).T
        ridge = self.ridge * np.trace(kernel) / weights.sum()
        solved = root * np.linalg.solve(kernel + ridge * np.eye(len(kernel)), root * targets)
        return Regressor(networks, self.bias, self.scale * features.T @ solved, ctx.device)


class Regressor(bpcbench.Predictive):
    """A linear map of the features of random networks."""

    def __init__(self, networks, bias, head, device):
        self.networks, self.bias, self.head, self.device = networks, bias, head, device

    def log_probs(self, images):
        outputs = random_features(self.networks, self.bias, images, self.device) @ self.head
        return (outputs - np.logaddexp.reduce(outputs, axis=1, keepdims=True)).astype(np.float32)


def random_features(networks, bias, images, device):
    """Return the features of all networks side by side and a constant one, such that inner products are the kernel."""
    import torch

    parts = [torch.from_numpy(images[i : i + CHUNK]).to(device) for i in range(0, len(images), CHUNK)]
    with torch.inference_mode():
        columns = [torch.cat([network.features(part) for part in parts]).cpu().numpy() for network in networks]
    everything = np.concatenate(columns, axis=1)
    constant = np.full((len(images), 1), bias, np.float32)
    return np.concatenate([everything * np.float32(np.sqrt(2 / everything.shape[1])), constant], axis=1)
