"""The method `dm`: distribution matching."""

from dataclasses import dataclass

import numpy as np

import bpcbench


@dataclass(frozen=True)
class DistributionMatching(bpcbench.Method):
    """Matches the mean features of every class in new random networks (Zhao & Bilen, WACV 2023).

    The loss of a step is sum_c ||mean f(real images of c) - mean f(coreset images of c)||^2, where f are the features
    of a network that is drawn anew at every step and never trained. The paper also augments both sides alike, which is
    left out here.
    """

    name = "dm"
    version = 1
    preload = ("torch", "torch._dynamo", "torch.optim")

    steps: int = bpcbench.option(20000, "number of steps, each with a new network")
    batch: int = bpcbench.option(256, "real images per class and step")
    lr: float = bpcbench.option(1.0, "learning rate of the images")
    momentum: float = bpcbench.option(0.5, "momentum of the images")
    network: bpcbench.Network = bpcbench.refers("network", "conv-in", help="whose random features are matched")

    def __post_init__(self):
        if self.steps < 0 or self.batch < 1:
            raise ValueError(f"steps must be at least 0 and batch at least 1, got {self.steps} and {self.batch}")

    def native(self, facts, ipc):
        return bpcbench.Native(bpcbench.Ref("network"), self.network)

    def skip(self, facts, ipc):
        return self.network.skip(facts)

    def distil(self, data, ipc, inputs, ctx):
        import torch  # here, so that `bpcbench list` stays fast

        chosen = bpcbench.per_class(data.labels, ipc, ctx.seed)
        chosen = chosen[np.argsort(data.labels[chosen], kind="stable")]  # rows of a class follow each other
        start = inputs.transform.apply(data.train.images[chosen])
        images = torch.tensor(start, device=ctx.device, requires_grad=True)
        rows = [np.flatnonzero(data.labels == c) for c in data.present]
        rng = np.random.default_rng(ctx.seed)
        sgd = torch.optim.SGD([images], self.lr, momentum=self.momentum)

        def coreset():
            return bpcbench.Coreset(
                images=images.detach().cpu().numpy().copy(), targets=data.labels[chosen], classes=data.facts.classes
            )

        for step in ctx.steps(self.steps, state={"images": images, "sgd": sgd, "rng": rng}, snapshot=coreset):
            seed = int(np.random.SeedSequence([ctx.seed, step]).generate_state(1)[0])
            network = self.network.build(data.facts.shape, data.facts.classes, seed).to(ctx.device)
            batch = np.concatenate([rng.choice(r, self.batch) for r in rows])
            real = torch.tensor(inputs.transform.apply(data.train.images[batch]), device=ctx.device)
            with torch.no_grad():
                target = network.features(real).unflatten(0, (len(rows), -1)).mean(1)
            found = network.features(images).unflatten(0, (len(rows), -1)).mean(1)
            loss = (found - target).square().sum()
            sgd.zero_grad()
            loss.backward()
            sgd.step()
            ctx.log(loss=loss.detach())  # no .item(): a device is not kept waiting
        return coreset()
