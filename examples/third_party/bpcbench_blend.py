"""A method that blends real images into a coreset, as a plugin of bpcbench."""

from dataclasses import dataclass

import numpy as np

import bpcbench

BPCBENCH_API = 1


@dataclass(frozen=True)
class Blend(bpcbench.Method):
    """Moves real images towards their class mean, a little at every step."""

    name = "blend"
    version = 1
    resources = bpcbench.Resources()
    steps: int = bpcbench.option(20, "number of steps")
    rate: float = bpcbench.option(0.05, "share of the remaining way that one step goes")

    def native(self, facts, ipc):
        return bpcbench.Native(bpcbench.Ref("network"), bpcbench.Ref("conv-bn", {"width": 32}))

    def distil(self, data, ipc, inputs, ctx):
        chosen = bpcbench.per_class(data.labels, ipc, ctx.seed)
        everything = inputs.transform.apply(data.train.images)
        labels = data.labels[chosen]
        images = everything[chosen]
        means = np.stack([everything[data.labels == c].mean(0) for c in range(data.facts.classes)])
        for step in ctx.steps(self.steps, state={"images": images}):
            images += self.rate * (means[labels] - images)
            ctx.log(distance=float(np.abs(means[labels] - images).mean()))
        return bpcbench.Coreset(images=images, targets=labels, classes=data.facts.classes)


@bpcbench.hookimpl
def bpcbench_methods():
    return [Blend]
