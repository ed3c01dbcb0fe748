"""Several networks of one architecture as one module, whose operations are launched once for all of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class StackedNetworks(nn.Module):
    """Networks that `torch.func.vmap` sends through the code of the first one, each with values of its own.

    Every parameter and buffer has an axis for the networks in front. Gradients and optimisers that work element by
    element treat each network as if it were alone, up to rounding; running statistics are updated in place, as in the
    networks themselves. The given networks keep their values until `separated` writes the present ones back.
    """

    def __init__(self, models: Sequence[nn.Module]) -> None:
        super().__init__()
        # A tuple, so that they are no submodules: their values are not those of this module.
        self._models = tuple(models)
        parameters, buffers = torch.func.stack_module_state(list(models))
        self._names = tuple(parameters), tuple(buffers)
        self.values = nn.ParameterList(parameters.values())
        for index, value in enumerate(buffers.values()):
            self.register_buffer(f"buffer{index}", value)

    def _stacked(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        parameters, buffers = self._names
        return dict(zip(parameters, self.values, strict=True)), dict(zip(buffers, self.buffers(), strict=True))

    def forward(self, images: Tensor) -> Tensor:
        """Return the outputs (networks, n, classes) of images (networks, n, channels, height, width)."""
        first = self._models[0].train(self.training)

        def one(parameters: dict[str, Tensor], buffers: dict[str, Tensor], own: Tensor) -> Tensor:
            outputs: Tensor = torch.func.functional_call(first, (parameters, buffers), (own,))
            return outputs

        outputs: Tensor = torch.func.vmap(one)(*self._stacked(), images)
        return outputs

    @torch.no_grad()
    def separated(self) -> list[nn.Module]:
        """Return the given networks with the values they have by now, in the mode of this module."""
        for values in self._stacked():
            for name, stacked in values.items():
                for model, value in zip(self._models, stacked.unbind(), strict=True):
                    owner, _, last = name.rpartition(".")
                    getattr(model.get_submodule(owner), last).copy_(value)
        return [model.train(self.training) for model in self._models]
