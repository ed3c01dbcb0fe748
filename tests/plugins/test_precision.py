"""`bf16` is honoured by the inferences that regress a network: other numbers, close ones, and float32 results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bpcbench.api import Inference
from bpcbench.testing import context, toy_coreset, toy_inputs
from bpcbench.testing.toys import toy_images
from bpcbench_distill.inference import RegressionInference
from bpcbench_distill.rcig_inference import RCIGInference
from bpcbench_torch.networks import ConvBN
from bpcbench_vbpc.inference import VariationalInference

INFERENCES = [VariationalInference(steps=5), RegressionInference(steps=5), RCIGInference(steps=5)]


@pytest.mark.parametrize("inference", INFERENCES, ids=lambda inference: inference.name)
def test_features_in_bf16(inference: Inference, tmp_path: Path) -> None:
    coreset, network, images = toy_coreset(convention="centred"), ConvBN(width=4), toy_images()[:20]

    def probabilities(precision: str, folder: str) -> np.ndarray:
        ctx = context(tmp_path / folder, precision=precision)
        log_probs = inference.fit(coreset, network, toy_inputs(), ctx).predict(images).log_probs
        assert log_probs.dtype == np.float32
        return np.exp(log_probs)

    fine, rough = probabilities("float32", "a"), probabilities("bf16", "b")
    np.testing.assert_array_equal(fine, probabilities("float32", "c"))
    assert not np.array_equal(fine, rough)
    np.testing.assert_allclose(rough, fine, atol=0.05)
    np.testing.assert_allclose(rough.sum(1), 1, atol=1e-5)


def test_the_closed_form_is_float32(tmp_path: Path) -> None:
    ctx = context(tmp_path, precision="bf16")
    predictive = VariationalInference(steps=2).fit(toy_coreset(), ConvBN(width=4), toy_inputs(), ctx)
    mean, covariance = predictive.full()  # type: ignore[attr-defined]
    assert (mean.dtype, covariance.dtype) == (np.float32, np.float32)
