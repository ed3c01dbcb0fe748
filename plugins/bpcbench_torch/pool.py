"""FRePo's pool of networks at different stages of training on a coreset (Zhou, Nezhadarya & Ba, 2022)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from bpcbench.api import Network
from bpcbench_torch.convnet import ConvNet
from bpcbench_torch.separable import SeparableNet

Loss = Callable[[nn.Module], Tensor]


class Pool:
    """`size` networks, each with its own Adam; a network is replaced after exactly `updates` updates.

    The counters start at multiples of updates / size, although all weights are new, so that networks are not all
    replaced at once; those that are not `staggered` start at 0. All draws come from one generator. The first networks
    are the same on every device; on a GPU a replacement is drawn there, in place, and its Adam starts again in place. A
    checkpoint holds the whole pool.
    """

    def __init__(
        self,
        network: Network,
        shape: tuple[int, int, int],
        classes: int,
        *,
        size: int,
        updates: int,
        lr: float,
        seed: int,
        device: str,
        staggered: bool = True,
    ) -> None:
        self.network, self.shape, self.classes = network, shape, classes
        self.updates, self.lr, self.device = updates, lr, device
        self.generator = torch.Generator().manual_seed(seed)
        self.counters = [updates // size * index if staggered else 0 for index in range(size)]
        self.models = [self._built(self._seed()) for _ in range(size)]
        self.optimizers = [self._optimizer(model) for model in self.models]
        self.current = 0

    def _seed(self) -> int:
        return int(torch.randint(2**31, (), generator=self.generator))

    def _built(self, seed: int) -> nn.Module:
        model: nn.Module = self.network.build(self.shape, self.classes, seed).to(self.device)
        return model.eval()

    def _optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), self.lr, fused=self.device in ("cpu", "cuda"))

    def draw(self) -> nn.Module:
        """Return a uniformly drawn network, in evaluation mode."""
        self.current = int(torch.randint(len(self.models), (), generator=self.generator))
        return self.models[self.current]

    def update(self, loss: Loss) -> None:
        """Train the last drawn network for one step on `loss(model)`, or replace it if it is due."""
        index = self.current
        if self.counters[index] >= self.updates:
            self._replace(index)
        else:
            self._train(index, loss)

    def age(self, loss: Loss, updates: int) -> None:
        """Train network i of P for i/P of the updates, whatever its counter says, to which they do not add."""
        for index, counter in enumerate(self.counters):
            for _ in range(updates * index // len(self.models)):
                self._train(index, loss)
            self.counters[index] = counter

    def train(self, loss: Loss, steps: int) -> None:
        """Train the last drawn network for some steps on `loss(model)`, then replace it if it is due."""
        index = self.current
        for _ in range(steps):
            self._train(index, loss)
        if self.counters[index] >= self.updates:
            self._replace(index)

    def _replace(self, index: int) -> None:
        model, seed = self.models[index], self._seed()
        if self.device != "cpu" and isinstance(model, ConvNet | SeparableNet):
            # Drawn where it is, by a generator of the device: building it on the host and copying it would stop both.
            model.draw(torch.Generator(self.device).manual_seed(seed))
            _start_again(self.optimizers[index])
        else:
            self.models[index] = self._built(seed)
            self.optimizers[index] = self._optimizer(self.models[index])
        self.counters[index] = 0

    def _train(self, index: int, loss: Loss) -> None:
        model, optimizer = self.models[index], self.optimizers[index]
        model.train()
        value = loss(model)
        optimizer.zero_grad(set_to_none=True)
        value.backward()
        optimizer.step()
        model.eval()
        self.counters[index] += 1

    def state_dict(self) -> dict[str, Any]:
        """Return the mutable state."""
        return {
            "models": [model.state_dict() for model in self.models],
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "counters": list(self.counters),
            "current": self.current,
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        for index, (model, optimizer) in enumerate(zip(state["models"], state["optimizers"], strict=True)):
            self.models[index].load_state_dict(model)
            self.optimizers[index] = self._optimizer(self.models[index])
            self.optimizers[index].load_state_dict(optimizer)
        self.counters = list(state["counters"])
        self.current = int(state["current"])
        self.generator.set_state(state["generator"])


def _start_again(optimizer: torch.optim.Optimizer) -> None:
    """Make the state of an Adam that of a new one, in place: moments and the number of steps are 0."""
    for state in optimizer.state.values():
        for value in state.values():
            value.zero_()
