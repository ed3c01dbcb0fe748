"""A network replaced by its first-order expansion in the parameters, with its last layer left to a closed form."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, jvp, vjp, vmap

_PREFIX = "model."
_SOLVED = f"{_PREFIX}head.weight"

Parameters = dict[str, Tensor]
Pair = tuple[Tensor, Tensor]


class Linearisation:
    """The expansion of a network about its parameters theta, in all of them but the weights W of the last layer.

    f(x; theta + t) = f(x; theta) + J(x) t + O(|t|^2), for tangents t in one flat vector. J(x) t is linear in t.
    Together with phi(x) W, which is linear in W, it is the tangent model on the features phi at theta. The network has
    `features` and a linear `head`, is used in evaluation mode, and is not changed. No result has a gradient with
    respect to theta.
    """

    def __init__(self, model: nn.Module) -> None:
        named = {f"{_PREFIX}{name}": value.detach() for name, value in model.named_parameters()}
        buffers = {f"{_PREFIX}{name}": value for name, value in model.named_buffers()}
        self.base = {name: value for name, value in named.items() if name != _SOLVED}
        self._rest = {_SOLVED: named[_SOLVED], **buffers}
        self._module = _OutputsAndFeatures(model)
        self._sizes = [value.numel() for value in self.base.values()]
        self.size = sum(self._sizes)
        """The number of linearised parameters."""

    def zeros(self) -> Tensor:
        """Return tangents of zero."""
        return next(iter(self.base.values())).new_zeros(self.size)

    def split(self, tangents: Tensor) -> Parameters:
        """Return views of flat tangents by parameter name, in the parameters' shapes."""
        parts = zip(self.base.items(), tangents.split(self._sizes), strict=True)
        return {name: part.view(value.shape) for (name, value), part in parts}

    def push(self, images: Tensor, tangents: Tensor) -> Pair:
        """Return J(x) t (n, k) and the features phi(x) (n, h); both are differentiable in images and tangents."""
        result = jvp(lambda parameters: self._call(parameters, images), (self.base,), (self.split(tangents),))
        (_, features), (outputs, _) = cast(tuple[Pair, Pair], result)
        return outputs, features

    def pull(self, images: Tensor) -> Callable[[Tensor], Tensor]:
        """Return the function u -> sum_i J(x_i)^T u_i; it may be called many times for one forward pass."""
        _, back = cast(
            tuple[Tensor, Callable[[Tensor], tuple[Parameters]]],
            vjp(lambda parameters: self._call(parameters, images)[0], self.base),
        )
        return lambda cotangents: self._flat(back(cotangents)[0])

    def jacobian(self, images: Tensor) -> Tensor:
        """Return J itself, (n * k, size)."""

        def one(parameters: Parameters, image: Tensor) -> Tensor:
            return self._call(parameters, image[None])[0][0]

        blocks = vmap(jacrev(one), (None, 0))(self.base, images)
        return torch.cat([block.flatten(0, 1).flatten(1) for block in blocks.values()], 1)

    def _call(self, parameters: Parameters, images: Tensor) -> Pair:
        result: Pair = functional_call(self._module, {**self._rest, **parameters}, (images,))
        return result

    def _flat(self, parameters: Parameters) -> Tensor:
        # In the order of the base; strides may differ from those of the parameters.
        return torch.cat([parameters[name].reshape(-1) for name in self.base])


class _OutputsAndFeatures(nn.Module):
    """A module whose forward pass returns a network's outputs and features."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Pair:
        """Return outputs and features."""
        features = self.model.features(images)  # type: ignore[operator]
        return self.model.head(features), features  # type: ignore[operator]
