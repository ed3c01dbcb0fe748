"""The predictive of one or more trained torch networks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from bpcbench.records import Array, Arrays, Predicted
from bpcbench_torch.device_predictive import CHUNK, DevicePredictive


class NetworkPredictive(DevicePredictive):
    """log softmax(f(x)) of trained networks in evaluation mode, computed in float32.

    With `sampled` the result has a member axis, (members, n, k); without, it is that of one network, (n, k).
    """

    def __init__(self, models: Sequence[nn.Module], *, sampled: bool, device: str) -> None:
        self.models = [model.to(device).eval() for model in models]
        self.sampled = sampled
        self.device = device

    def predict_tensor(self, images: torch.Tensor) -> Predicted:
        parts = images.split(CHUNK)
        members = np.stack([self._member(model, parts) for model in self.models])
        return Predicted(members if self.sampled else members[0])

    def _member(self, model: nn.Module, parts: Sequence[torch.Tensor]) -> Array:
        rows = [model(part.to(self.device)).float().log_softmax(1) for part in parts]
        return torch.cat(rows).cpu().numpy()

    def arrays(self) -> Arrays:
        """Return all parameters and buffers, named `MEMBER.NAME`."""
        return state_arrays(self.models)


def state_arrays(models: Sequence[nn.Module]) -> dict[str, Array]:
    """Return all parameters and buffers of networks, named `MEMBER.NAME`."""
    return {
        f"{index}.{name}": value.detach().cpu().contiguous().numpy().copy()
        for index, model in enumerate(models)
        for name, value in model.state_dict().items()
    }


def load_arrays(model: nn.Module, arrays: Arrays, member: int) -> None:
    """Load one member of `NetworkPredictive.arrays()` into a network."""
    prefix = f"{member}."
    kept = {name[len(prefix) :]: torch.tensor(array) for name, array in arrays.items() if name.startswith(prefix)}
    model.load_state_dict(kept)
