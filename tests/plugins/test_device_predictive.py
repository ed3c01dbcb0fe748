"""Images prepared on the device: the same predictions as with NumPy's preparation, matrices copied there once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from bpcbench.api import Preprocessing
from bpcbench.records import Array, Data, Facts, Predicted, Split, Transform
from bpcbench.running.predictions import predict_split
from bpcbench_torch import device_predictive
from bpcbench_torch.device_predictive import DevicePredictive
from bpcbench_torch.networks import ConvIN
from bpcbench_torch.predictive import NetworkPredictive
from bpcbench_torch.preprocessing import Standardize
from bpcbench_torch.zca import ZCA

IMAGES = np.random.default_rng(0).integers(0, 256, (23, 3, 8, 8), np.uint8)
FACTS = Facts(shape=(3, 8, 8), classes=3, sizes={"train": 23})


def fitted(plugin: Preprocessing) -> Transform:
    return Transform(plugin, plugin.fit(Data(FACTS, Split(IMAGES, None)), None))  # type: ignore[arg-type]


class Own(Standardize):
    """A preprocessing of which only the NumPy code is known."""

    def apply(self, images: Array, arrays: Any) -> Array:
        return super().apply(images, arrays) + 1


def predictive(members: int = 2) -> NetworkPredictive:
    models = [ConvIN(width=4, depth=2).build((3, 8, 8), 3, seed) for seed in range(members)]
    return NetworkPredictive(models, sampled=True, device="cpu")


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Pretend that the device is not the host; return the sizes of what was copied to it."""
    copied: list[int] = []

    def counted(values: torch.Tensor, device: Any) -> torch.Tensor:
        copied.append(values.nbytes)
        return values.to(device)

    monkeypatch.setattr(device_predictive, "on_device", counted)
    monkeypatch.setattr(DevicePredictive, "_is_away", lambda self: True)
    monkeypatch.setattr(device_predictive, "CHUNK", 5)
    return copied


@pytest.mark.parametrize("plugin", [Standardize(), ZCA()], ids=lambda plugin: plugin.name)
def test_the_device_prepares_what_numpy_prepares(plugin: Preprocessing, request: pytest.FixtureRequest) -> None:
    transform = fitted(plugin)
    expected = predict_split(predictive(), IMAGES, None, transform, 10)
    copied = request.getfixturevalue("away")
    found = predict_split(predictive(), IMAGES, None, transform, 10)
    np.testing.assert_allclose(found["log_probs"], expected["log_probs"], atol=2e-5)
    # As bytes, and once for all networks.
    assert sum(copied) == IMAGES.nbytes


def test_matrices_are_copied_once(away: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Transform] = []
    real = device_predictive.as_function
    monkeypatch.setattr(device_predictive, "as_function", lambda *a: made.append(a[0]) or real(*a))
    one, first, second = predictive(1), fitted(ZCA()), fitted(ZCA())
    for transform in (first, first, second):
        predict_split(one, IMAGES, None, transform, 10)
    assert made == [first, second]


def test_other_preprocessings_are_applied_on_the_host(away: list[int]) -> None:
    transform = fitted(Own())
    found = predictive().predict_pixels(IMAGES, transform)
    np.testing.assert_array_equal(found.log_probs, predictive().log_probs(transform.apply(IMAGES)))
    assert away == []


def test_on_the_cpu_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_predictive, "as_function", lambda *a: pytest.fail("prepared by torch"))
    transform = fitted(ZCA())
    seen: list[torch.Tensor] = []

    class Keeps(NetworkPredictive):
        def predict_tensor(self, images: torch.Tensor) -> Predicted:
            seen.append(images)
            return super().predict_tensor(images)

    Keeps(predictive(1).models, sampled=False, device="cpu").predict_pixels(IMAGES, transform)
    np.testing.assert_array_equal(seen[0], transform.apply(IMAGES))
