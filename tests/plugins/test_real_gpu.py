"""Inferences on a real GPU: what a CPU has fitted predicts the same there, and what is fitted there learns as well."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from bpcbench.api import Inference
from bpcbench.data.splits import training_data
from bpcbench.records import Coreset, Inputs, Transform
from bpcbench.running import numerics
from bpcbench.running.usage import Usage
from bpcbench.sampling import per_class
from bpcbench.testing import context
from bpcbench_data.digits import Digits
from bpcbench_distill.inference import RegressionInference
from bpcbench_distill.rcig_inference import RCIGInference
from bpcbench_torch.inferences import Ensemble, NetworkInference
from bpcbench_torch.networks import ConvBN
from bpcbench_torch.samplers import HMCInference, SGHMCInference
from bpcbench_torch.zca import ZCA
from bpcbench_vbpc.inference import VariationalInference

DEVICE = "cuda"
pytestmark = pytest.mark.skipif(DEVICE == "cuda" and not torch.cuda.is_available(), reason="no CUDA device")

NET = ConvBN(width=8)
CHAINS = {"chains": 2, "samples": 4, "burn": 20, "thin": 1}
INFERENCES: list[Inference] = [
    NetworkInference(steps=60),
    Ensemble(steps=60, members=2),
    VariationalInference(steps=60),
    VariationalInference(steps=60, rows=20, statistics="settled"),
    RegressionInference(steps=60),
    RCIGInference(steps=60, loops="nominal"),
    SGHMCInference(**CHAINS),
    HMCInference(chains=2, samples=4, burn=4, leapfrog=5),
]
inferences = pytest.mark.parametrize("inference", INFERENCES, ids=lambda one: f"{one.name}-{INFERENCES.index(one)}")


@pytest.fixture(autouse=True)
def as_in_a_run() -> Iterator[None]:
    """Float32 without TF32, as a stage has it."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    numerics.settle("float32", DEVICE)
    yield
    matmul.allow_tf32, cudnn.allow_tf32 = before


@pytest.fixture(scope="module")
def digits() -> tuple[Coreset, Inputs, np.ndarray, np.ndarray]:
    """A coreset of real digits, their whitening, and test images with labels."""
    data = training_data(Digits(), Path(), holdout=False)
    plugin = ZCA(grey=True)
    transform = Transform(plugin, plugin.fit(data, None))  # type: ignore[arg-type]  # it needs no context
    rows = per_class(data.labels, 5, 0)
    labels = data.labels[rows]
    targets = np.eye(10, dtype=np.float32)[labels] - np.float32(0.1)
    images = transform.apply(data.train.images[rows])
    coreset = Coreset(images=images, targets=targets, class_ids=labels, classes=10, convention="centred")
    test = Digits().load(Path(), "test")
    assert test.labels is not None
    return coreset, Inputs(transform), test.images, test.labels


@inferences
def test_what_the_cpu_has_fitted_predicts_the_same_on_a_gpu(inference: Inference, digits, tmp_path: Path) -> None:
    coreset, inputs, images, _ = digits
    fitted = inference.fit(coreset, NET, inputs, context(tmp_path / "fit"))
    arrays = fitted.arrays()
    assert arrays is not None
    here = inference.restore(arrays, coreset, NET, inputs, context(tmp_path / "here"))
    there = inference.restore(arrays, coreset, NET, inputs, context(tmp_path / "there", device=DEVICE))
    prepared = inputs.transform.apply(images)
    expected = np.exp(here.log_probs(prepared))
    np.testing.assert_allclose(np.exp(there.log_probs(prepared)), expected, atol=1e-3)
    # The same images as bytes, whitened on the device.
    np.testing.assert_allclose(np.exp(there.predict_pixels(images, inputs.transform).log_probs), expected, atol=1e-3)


@inferences
def test_what_is_fitted_on_a_gpu_learns_as_well(inference: Inference, digits, tmp_path: Path) -> None:
    coreset, inputs, images, labels = digits
    prepared = inputs.transform.apply(images)
    used = Usage()

    def right(device: str) -> float:
        fitted = inference.fit(coreset, NET, inputs, context(tmp_path / device, device=device))
        probabilities = np.exp(fitted.log_probs(prepared))
        mean = probabilities if probabilities.ndim == 2 else probabilities.mean(0)
        return float((mean.argmax(1) == labels).mean())

    assert right("cpu") == pytest.approx(right(DEVICE), abs=0.1)
    assert used.device(DEVICE) == DEVICE
    if DEVICE == "cuda":
        described = used.described()
        assert described["peak_device_bytes"] > 0
        assert described["accelerator"]["tf32"] == {"matmul": False, "cudnn": False}
