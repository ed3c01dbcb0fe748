"""Predictions are checked, reduced and kept; a kept fit is not made again for one more split."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from toy_runs import Toy

from bpcbench import metrics
from bpcbench.api import Predictive
from bpcbench.records import Array, Predicted, Transform
from bpcbench.running.predictions import predict_split, read_predictions
from bpcbench.store.store import Store
from bpcbench.testing import Scale

TRANSFORM = Transform(Scale(), {})
IMAGES = np.random.default_rng(0).integers(0, 256, (23, 1, 2, 2)).astype(np.uint8)
LABELS = np.arange(23) % 3
WEIGHTS = np.random.default_rng(1).normal(size=(4, 4, 3)).astype(np.float32) * 3


def log_softmax(logits: Array) -> Array:
    return logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)


class Linear(Predictive):
    """Softmax of linear functions: one, or one per member."""

    def __init__(self, members: int = 0, dtype: Any = np.float32, spoil: Any = None) -> None:
        self.members, self.dtype, self.spoil = members, dtype, spoil
        self.batches: list[int] = []

    def predict(self, images: Array) -> Predicted:
        self.batches.append(len(images))
        flat = images.reshape(len(images), -1)
        logits = np.stack([flat @ weights for weights in WEIGHTS[: self.members or 1]])
        found = log_softmax(logits.astype(np.float64)).astype(self.dtype)
        found = found if self.members else found[0]
        if self.spoil:
            found = self.spoil(found)
        return Predicted(found, {"size": flat.sum(1)})


def predict(predictive: Predictive, batch: int = 1000, labels: Array | None = LABELS) -> dict[str, Array]:
    return predict_split(predictive, IMAGES, labels, TRANSFORM, batch)


def test_one_predictive() -> None:
    predictive = Linear()
    found = predict(predictive, batch=10)
    assert predictive.batches == [10, 10, 3]
    assert {name: (array.dtype, array.shape) for name, array in found.items()} == {
        "log_probs": (np.float32, (23, 3)),
        "extra.size": (np.float32, (23,)),
        "labels": (np.int64, (23,)),
    }
    np.testing.assert_allclose(np.exp(found["log_probs"]).sum(1), 1, atol=1e-5)


def test_sampled_predictive() -> None:
    """Probabilities are averaged; each member's log-likelihood and the expected entropy are kept."""
    found = predict(Linear(members=4), batch=7)
    flat = TRANSFORM.apply(IMAGES).reshape(23, -1).astype(np.float64)
    members = log_softmax(np.stack([flat @ weights for weights in WEIGHTS.astype(np.float64)]))
    np.testing.assert_allclose(found["log_probs"], np.log(np.exp(members).mean(0)), atol=1e-5)
    assert found["member_log_likelihood"].shape == (4, 23)
    np.testing.assert_allclose(found["member_log_likelihood"], members[:, np.arange(23), LABELS], atol=1e-5)
    entropy = -(np.exp(members) * members).sum(-1).mean(0)
    np.testing.assert_allclose(found["expected_entropy"], entropy, atol=1e-5)
    assert all(found[name].dtype == np.float32 for name in ("log_probs", "member_log_likelihood", "expected_entropy"))
    # Jensen: the average predicts at least as well as the average member.
    assert metrics.nll(found["log_probs"], LABELS) <= -found["member_log_likelihood"].mean()


@pytest.mark.parametrize("members", [0, 4])
@pytest.mark.parametrize("batch", [1, 5, 23, 1000])
def test_batch_size_does_not_matter(members: int, batch: int) -> None:
    reference, found = predict(Linear(members)), predict(Linear(members), batch)
    assert reference.keys() == found.keys()
    for name in reference:
        np.testing.assert_allclose(found[name], reference[name], atol=1e-5)


def test_without_labels() -> None:
    found = predict(Linear(members=4), labels=None)
    assert sorted(found) == ["expected_entropy", "extra.size", "log_probs"]


def _spoil(row: int, value: float) -> Any:
    def change(log_probs: Array) -> Array:
        log_probs[..., row, 0] = value
        return log_probs

    return change


@pytest.mark.parametrize("members", [0, 2])
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"dtype": np.float64}, "must be float32, got float64"),
        ({"dtype": np.float16}, "must be float32, got float16"),
        ({"spoil": _spoil(3, np.nan)}, "contain NaN"),
        ({"spoil": _spoil(3, np.inf)}, "not normalised"),
        ({"spoil": _spoil(3, 0.01)}, "not normalised"),
        ({"spoil": lambda log_probs: log_probs - np.float32(0.01)}, "not normalised: log of the sum is up to 0.01"),
        ({"spoil": lambda log_probs: log_probs[..., :-1, :]}, r"log_probs of 23 images must be .* got \(.*22, 3\)"),
        ({"spoil": lambda log_probs: log_probs[..., 0]}, "log_probs of 23 images"),
        ({"spoil": lambda log_probs: log_probs[None, None]}, "log_probs of 23 images"),
    ],
)
def test_bad_predictions_are_refused(members: int, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        predict(Linear(members, **arguments))


def test_impossible_is_allowed() -> None:
    """A probability of zero is a legitimate prediction."""

    def certain(log_probs: Array) -> Array:
        result = np.full_like(log_probs, -np.inf)
        result[..., 0] = 0
        return result

    assert np.isneginf(predict(Linear(spoil=certain))["log_probs"]).sum() == 46


def test_extras_are_one_number_per_image() -> None:
    class Wide(Linear):
        def predict(self, images: Array) -> Predicted:
            return Predicted(super().predict(images).log_probs, {"wide": np.zeros((len(images), 2))})

    with pytest.raises(ValueError, match=r"'wide' of 23 images must be \(n,\), got \(23, 2\)"):
        predict(Wide())


def predictions_in(toy: Toy) -> dict[str, Any]:
    store = Store.open(toy.out, create=False)
    wanted = [address for address in store.addresses() if address.kind == "predict" and "~" in address.member]
    return {str(address): read_predictions(store.read(address)) for address in wanted}


@pytest.mark.parametrize("keep", [True, False])
def test_one_more_split_does_not_refit(toy: Toy, keep: bool) -> None:
    """A second evaluator with another split: the kept fit is restored, or made again if it is not kept."""
    inferences = f"{{toy-nearest: {{keep: {str(keep).lower()}}}}}"
    toy.write("[toy-real]", inferences=inferences).run(jobs=0)
    (before,) = predictions_in(toy).items()
    assert (len(toy.counted("fit")), len(toy.counted("restore"))) == (1, 0)
    toy.run("evaluators={classification: null, toy-shifted: null}", jobs=0)
    assert (len(toy.counted("fit")), len(toy.counted("restore"))) == ((1, 1) if keep else (2, 0))
    found = predictions_in(toy)
    assert sorted(prediction.log_probs.shape for prediction in found.values()) == [(10, 2), (30, 2)]
    assert found[before[0]].log_probs.tobytes() == before[1].log_probs.tobytes()
    assert len(toy.counted("coreset")) == 1
    both = Toy(toy.folder / "both").write("[toy-real]", inferences=inferences, evaluators="classification, toy-shifted")
    both.run(jobs=0)
    assert toy.results() == both.results()
