"""Predictives of torch networks that prepare images on the device that predicts, if that is not the host."""

from __future__ import annotations

import abc

import torch
from torch import Tensor

from bpcbench.api import Predictive
from bpcbench.records import Array, Predicted, Transform
from bpcbench_torch.device_transform import DeviceTransform, as_function
from bpcbench_torch.transfer import on_device

CHUNK = 250
"""Images per forward pass, and per preprocessing on a device; it bounds the memory of wide networks."""


class DevicePredictive(Predictive, abc.ABC):
    """A predictive that is a function of tensors.

    On an accelerator, images arrive there as bytes and are preprocessed there: a quarter of the copying, and no product
    with a whitening matrix on the host. On the CPU they are preprocessed as everywhere, with the same bits as ever.
    """

    device: str | torch.device
    _prepared: tuple[Transform, DeviceTransform | None] | None = None

    @abc.abstractmethod
    def predict_tensor(self, images: Tensor) -> Predicted:
        """Return what is predicted for float32 images in network space, on the CPU or on the device."""

    @torch.inference_mode()
    def predict(self, images: Array) -> Predicted:
        return self.predict_tensor(torch.tensor(images, dtype=torch.float32))

    def log_probs(self, images: Array) -> Array:
        """Return log-probabilities of images in network space."""
        return self.predict(images).log_probs

    @torch.inference_mode()
    def predict_pixels(self, pixels: Array, transform: Transform) -> Predicted:
        convert = self._function(transform) if self._is_away() else None
        if convert is None:
            return super().predict_pixels(pixels, transform)
        parts = torch.tensor(pixels).split(CHUNK)
        return self.predict_tensor(torch.cat([convert(on_device(part, self.device)) for part in parts]))

    def _function(self, transform: Transform) -> DeviceTransform | None:
        """Return the transform on the device; its matrices are copied there once."""
        if self._prepared is None or self._prepared[0] is not transform:
            self._prepared = transform, as_function(transform, str(self.device))
        return self._prepared[1]

    def _is_away(self) -> bool:
        return torch.device(self.device).type != "cpu"
