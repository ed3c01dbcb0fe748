"""A network as a function of one flat parameter vector."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor, nn

Statistics = Literal["batch"] | Mapping[str, Tensor]
"""The source of BatchNorm's mean and variance: the current batch, or buffers by name."""

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def row_wise(module: nn.Module) -> bool:
    """Return whether an image's outputs never depend on the other images of its batch, also in training mode."""
    return not any(isinstance(part, _BATCH_NORMS) for part in module.modules())


class FlatNetwork:
    """The function f(x; theta) of a module, with all parameters in one vector, in the order of `parameters()`.

    Calls have no state: equal arguments give equal logits, and the given module is never modified. A call is twice
    differentiable in theta and in the images, and works under `torch.func.vmap` over either. Random layers such as
    dropout are off.

    With `channels_last`, grey images are laid out channels last if the module's convolutions are, which its device and
    norms decide; others always are. Logits differ in the last bits.
    """

    def __init__(self, module: nn.Module, *, channels_last: bool = False) -> None:
        named = dict(module.named_parameters())
        self._names = tuple(named)
        self._shapes = tuple(value.shape for value in named.values())
        self._sizes = [value.numel() for value in named.values()]
        self.size: int = sum(self._sizes)
        """Number of parameters."""
        self._initial = torch.cat([value.detach().reshape(-1) for value in named.values()])
        self.buffers: dict[str, Tensor] = {name: value.detach().clone() for name, value in module.named_buffers()}
        """A copy of the given module's buffers."""
        self.row_wise: bool = row_wise(module)
        """Whether the logits of an image never depend on the other images of its batch."""
        self.channels_last: bool = channels_last and any(map(_channels_last, named.values()))
        """Whether grey images are laid out channels last."""
        self._fixed = copy.deepcopy(module).requires_grad_(False).eval()
        self._free = copy.deepcopy(self._fixed)
        # Norms without running statistics use those of the batch, and update nothing in place.
        torch.func.replace_all_batch_norm_modules_(self._free)

    def initial(self) -> Tensor:
        """Return the parameters of the given module as a new vector."""
        return self._initial.clone()

    def __call__(self, theta: Tensor, images: Tensor, *, statistics: Statistics = "batch") -> Tensor:
        """Return logits (n, classes) for parameters (size,) and images (n, c, h, w)."""
        parameters, images = self.split(theta), self._laid_out(images)
        if isinstance(statistics, str):
            return torch.func.functional_call(self._free, parameters, (images,))
        return torch.func.functional_call(self._fixed, (parameters, dict(statistics)), (images,))

    def split(self, theta: Tensor) -> dict[str, Tensor]:
        """Return views of a flat vector by parameter name, in the shapes of the module."""
        if theta.shape != (self.size,):
            raise ValueError(f"flat parameters must have shape {(self.size,)}, got {tuple(theta.shape)}")
        parts = theta.split(self._sizes)
        return {name: part.view(shape) for name, part, shape in zip(self._names, parts, self._shapes, strict=True)}

    @torch.no_grad()
    def recomputed_statistics(self, theta: Tensor, images: Tensor) -> dict[str, Tensor]:
        """Return buffers in which every BatchNorm has the statistics of exactly these images as one batch.

        Variances are unbiased, as torch stores them for predictions. Other buffers keep their initial values.
        """
        buffers, images = {name: value.clone() for name, value in self.buffers.items()}, self._laid_out(images)
        if not self.row_wise:
            model = copy.deepcopy(self._fixed)
            for prefix, module in model.named_modules():
                if isinstance(module, _BATCH_NORMS):
                    module.train()
                    module.momentum = 1.0  # the statistics of this one batch
                    buffers[f"{prefix}.num_batches_tracked" if prefix else "num_batches_tracked"].zero_()
            torch.func.functional_call(model, (self.split(theta), buffers), (images,))
        return buffers

    def _laid_out(self, images: Tensor) -> Tensor:
        """Return grey images with the strides of channels last, if they are to have them.

        With one channel both layouts have the same numbers in the same order. Torch then takes what the strides say,
        and the views of a flat vector, which are the weights here, say contiguous, unlike the weights of a module.
        """
        if not self.channels_last or images.shape[1] != 1:
            return images
        return images.contiguous()[:, 0].unsqueeze(-1).permute(0, 3, 1, 2)


def _channels_last(weight: Tensor) -> bool:
    """Return whether a parameter is the weight of a convolution, larger than 1x1, in channels last."""
    return weight.dim() == 4 and weight.shape[2] * weight.shape[3] > 1 and weight.stride(1) == 1
