"""A network replaced by its first-order expansion in the parameters, with its last layer left to a closed form."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, jvp, vjp, vmap
from torch.utils.checkpoint import checkpoint

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

    With `chunk` so many images go through the network at a time, and nothing of a pass stays in memory but its results:
    gradients and transposed products compute it again. Results are equal up to rounding.
    """

    def __init__(self, model: nn.Module, chunk: int | None = None) -> None:
        self.chunk = chunk
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
        parts = self._parts(images)
        if len(parts) == 1:
            return self._push(images, tangents)
        # Evaluation mode draws nothing, so there is no state of a generator to keep.
        pushed = [
            checkpoint(self._push, part, tangents, use_reentrant=False, preserve_rng_state=False) for part in parts
        ]
        outputs, features = zip(*pushed, strict=True)
        return torch.cat(outputs), torch.cat(features)

    def _push(self, images: Tensor, tangents: Tensor) -> Pair:
        result = jvp(lambda parameters: self._call(parameters, images), (self.base,), (self.split(tangents),))
        (_, features), (outputs, _) = cast(tuple[Pair, Pair], result)
        return outputs, features

    def pull(self, images: Tensor) -> Callable[[Tensor], Tensor]:
        """Return the function u -> sum_i J(x_i)^T u_i; it may be called many times.

        There is one forward pass for all calls, with `chunk` one for each.
        """
        parts = self._parts(images)
        if len(parts) == 1:
            return self._pull(images)

        def pulled(cotangents: Tensor) -> Tensor:
            total = self.zeros()
            for part, own in zip(parts, cotangents.split([len(part) for part in parts]), strict=True):
                total += self._pull(part)(own)
            return total

        return pulled

    def _pull(self, images: Tensor) -> Callable[[Tensor], Tensor]:
        _, back = cast(
            tuple[Tensor, Callable[[Tensor], tuple[Parameters]]],
            vjp(lambda parameters: self._call(parameters, images)[0], self.base),
        )
        return lambda cotangents: self._flat(back(cotangents)[0])

    def jacobian(self, images: Tensor) -> Tensor:
        """Return J itself, (n * k, size)."""

        def one(parameters: Parameters, image: Tensor) -> Tensor:
            return self._call(parameters, image[None])[0][0]

        def matrix(part: Tensor) -> Tensor:
            blocks = vmap(jacrev(one), (None, 0))(self.base, part)
            return torch.cat([block.flatten(0, 1).flatten(1) for block in blocks.values()], 1)

        parts = [matrix(part) for part in self._parts(images)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _parts(self, images: Tensor) -> tuple[Tensor, ...]:
        return (images,) if self.chunk is None else images.split(self.chunk)

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
