"""Plain training as inference: it learns, predicts row by row, and comes back from its arrays."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bpcbench.api import Network
from bpcbench.records import Convention, Coreset, Facts, Offer
from bpcbench.sampling import per_class
from bpcbench.testing import toy_inputs
from bpcbench_data.digits import Digits
from bpcbench_torch.inferences import Ensemble, NetworkInference
from bpcbench_torch.networks import ConvBN, ConvGN, ConvIN, ConvNetwork, ConvNN
from bpcbench_torch.training import Schedule, loss_for, settle_statistics, train

FAMILY = [ConvBN, ConvIN, ConvGN, ConvNN]
INFERENCES = [NetworkInference(steps=20), Ensemble(steps=20, members=2)]


class Recorder:
    """A context without a harness."""

    device = "cpu"
    precision = "float32"
    scratch = Path("nowhere")

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.losses: list[Any] = []
        self.states: list[dict[str, Any]] = []

    def steps(self, total: int, *, state: Any = None, snapshot: Any = None, what: str = "") -> Iterator[int]:
        self.states.append(state)
        yield from range(total)

    def log(self, **metrics: Any) -> None:
        self.losses.append(metrics["loss"])


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def digits(split: str) -> tuple[np.ndarray, np.ndarray]:
    loaded = Digits().load(Path(), split)
    assert loaded.labels is not None
    return ((loaded.images / 255 - 0.3) / 0.37).astype(np.float32), loaded.labels


def coreset(ipc: int | None, convention: Convention = "class") -> Coreset:
    images, labels = digits("train")
    if ipc is not None:
        rows = per_class(labels, ipc, 0)
        images, labels = images[rows], labels[rows]
    one_hot = np.eye(10, dtype=np.float32)[labels]
    targets = {"class": labels, "probabilities": one_hot, "centred": one_hot - np.float32(0.1)}[convention]
    return Coreset(images=images, targets=targets, class_ids=labels, classes=10, convention=convention)


def accuracy(log_probs: np.ndarray, labels: np.ndarray) -> float:
    return float((log_probs.argmax(-1) == labels).mean())


def test_the_whole_of_digits_is_learned() -> None:
    images, labels = digits("test")
    predictive = NetworkInference(steps=100, lr=3e-3, cosine=True).fit(
        coreset(None), ConvBN(width=32), toy_inputs(), Recorder()
    )
    assert accuracy(predictive.log_probs(images), labels) >= 0.95


@pytest.mark.parametrize("convention", ["class", "probabilities", "centred"])
def test_ten_images_per_class_are_far_above_chance(convention: Convention) -> None:
    images, labels = digits("test")
    predictive = NetworkInference(steps=60).fit(coreset(10, convention), ConvBN(width=16), toy_inputs(), Recorder())
    log_probs = predictive.log_probs(images)
    assert accuracy(log_probs, labels) >= 0.7
    np.testing.assert_allclose(np.exp(log_probs).sum(1), 1, atol=1e-5)


@pytest.mark.parametrize("inference", INFERENCES, ids=lambda inference: inference.name)
@pytest.mark.parametrize("network", FAMILY)
def test_rows_do_not_depend_on_the_batch(network: type[ConvNetwork], inference: Any) -> None:
    images, _ = digits("test")
    predictive = inference.fit(coreset(3), network(width=8), toy_inputs(), Recorder())
    together = predictive.log_probs(images)
    assert together.shape == ((2, 360, 10) if inference.sampled else (360, 10))
    assert together.dtype == np.float32
    split = np.concatenate([predictive.log_probs(part) for part in (images[:1], images[1:8], images[8:])], axis=-2)
    np.testing.assert_allclose(split, together, atol=1e-5)
    order = np.random.default_rng(0).permutation(len(images))
    np.testing.assert_allclose(predictive.log_probs(images[order]), together[..., order, :], atol=1e-5)


@pytest.mark.parametrize("inference", INFERENCES, ids=lambda inference: inference.name)
@pytest.mark.parametrize("network", FAMILY)
def test_a_fit_comes_back_from_its_arrays_bit_by_bit(network: type[ConvNetwork], inference: Any) -> None:
    images, _ = digits("test")
    fitted = inference.fit(coreset(1), network(width=8), toy_inputs(), Recorder())
    arrays = fitted.arrays()
    assert all(isinstance(array, np.ndarray) and array.flags.c_contiguous for array in arrays.values())
    for array in arrays.values():
        array.flags.writeable = False  # as the store hands them out
    restored = inference.restore(arrays, coreset(1), network(width=8), toy_inputs(), Recorder())
    np.testing.assert_array_equal(restored.log_probs(images), fitted.log_probs(images))


def test_a_seed_decides_the_fit_and_the_global_generator_is_untouched() -> None:
    images, _ = digits("test")
    inference = NetworkInference(steps=5, batch_size=16)
    before = torch.get_rng_state()
    first, again, other = (
        inference.fit(coreset(3), ConvBN(width=4), toy_inputs(), Recorder(seed)).log_probs(images) for seed in (1, 1, 2)
    )
    assert torch.equal(before, torch.get_rng_state())
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 1e-3


def test_members_have_their_own_seeds_and_loops() -> None:
    ctx = Recorder(9)
    predictive = Ensemble(steps=4, members=3).fit(coreset(1), ConvNN(width=4), toy_inputs(), ctx)
    assert len(ctx.states) == 3
    assert len(ctx.losses) == 12
    members = predictive.log_probs(digits("test")[0])
    assert len({member.tobytes() for member in members}) == 3
    larger = Ensemble(members=5).seeds(9)
    assert larger[:3] == Ensemble(members=3).seeds(9)
    assert len(set(larger)) == 5
    assert set(larger).isdisjoint(Ensemble().seeds(10))


def test_every_step_is_logged_without_synchronising_and_all_that_changes_is_in_the_state() -> None:
    ctx = Recorder()
    NetworkInference(steps=7, batch_size=16).fit(coreset(3), ConvBN(width=4), toy_inputs(), ctx)
    assert len(ctx.losses) == 7
    assert all(isinstance(loss, torch.Tensor) and not loss.requires_grad for loss in ctx.losses)
    assert set(ctx.states[0]) == {"model", "optimizer", "generator", "order"}


class Interrupted(Recorder):
    """Notes the state in front of step 6, or goes on from a state that was noted there."""

    def __init__(self, noted: dict[str, Any]) -> None:
        super().__init__()
        self.noted = noted

    def steps(self, total: int, *, state: Any = None, snapshot: Any = None, what: str = "") -> Iterator[int]:
        start = 6 if self.noted else 0
        if self.noted:
            state["model"].load_state_dict(self.noted["model"])
            state["optimizer"].load_state_dict(self.noted["optimizer"])
            state["generator"].set_state(self.noted["generator"])
            state["order"].copy_(self.noted["order"])
        for step in range(start, total):
            if step == 6 and start == 0:
                self.noted["model"] = copy.deepcopy(state["model"].state_dict())
                self.noted["optimizer"] = copy.deepcopy(state["optimizer"].state_dict())
                self.noted["generator"] = state["generator"].get_state().clone()
                self.noted["order"] = state["order"].clone()
            yield step


def test_a_run_cut_in_the_middle_of_an_epoch_ends_as_one_that_was_not() -> None:
    noted: dict[str, Any] = {}
    images = torch.tensor(digits("test")[0])
    outputs = []
    for _ in range(2):
        model = ConvBN(width=4).build((1, 8, 8), 10, 0)
        schedule = Schedule(steps=10, lr=1e-2, batch_size=7, cosine=True)  # four batches per epoch
        train(model, coreset(3), schedule, Interrupted(noted), seed=0)
        outputs.append(model(images).detach())
    assert torch.equal(outputs[0], outputs[1])


def test_minibatches_visit_every_row_once_per_epoch() -> None:
    seen: list[torch.Tensor] = []
    small = coreset(4)
    model = ConvNN(width=2).build((1, 8, 8), 10, 0)
    model.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].clone()))
    train(model, small, Schedule(steps=8, lr=0.0, batch_size=10), Recorder(), seed=0)
    epochs = [torch.cat(seen[:4]), torch.cat(seen[4:8])]
    rows = [sorted(image.numpy().tobytes() for image in epoch) for epoch in epochs]
    assert rows[0] == rows[1] == sorted(image.tobytes() for image in small.images)
    assert not torch.equal(epochs[0], epochs[1])


def test_running_statistics_come_from_the_coreset_alone() -> None:
    small = coreset(3)
    model = ConvBN(width=4).build((1, 8, 8), 10, 0)
    train(model, small, Schedule(steps=5, lr=1e-2, batch_size=256), Recorder(), seed=0)
    assert not model.training
    norm: Any = model.norms[1]
    conv = model.convs[0]
    assert norm.momentum == 0.9
    hidden = torch.nn.functional.avg_pool2d(conv(torch.tensor(small.images)).relu(), 2)
    assert torch.allclose(norm.running_mean, hidden.mean((0, 2, 3)), atol=1e-5)
    assert torch.allclose(norm.running_var, hidden.var((0, 2, 3)), rtol=1e-4, atol=1e-6)


def test_statistics_of_a_large_set_sorted_by_class_are_those_of_shuffled_batches() -> None:
    images, labels = digits("train")
    order = np.argsort(labels, kind="stable")
    # Classes differ in brightness, so that most of the variance lies between them.
    inputs = torch.tensor(images[order] + labels[order, None, None, None].astype(np.float32))
    model: Any = ConvBN(width=4).build((1, 8, 8), 10, 0)
    settle_statistics(model, inputs, 200, torch.Generator().manual_seed(0))
    hidden = torch.nn.functional.avg_pool2d(model.convs[0](inputs).relu(), 2)
    assert torch.allclose(model.norms[1].running_var, hidden.var((0, 2, 3)), rtol=0.05)


def test_losses_are_their_formulas() -> None:
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(6, 4, generator=generator)
    labels = torch.tensor([0, 1, 2, 3, 0, 1])
    soft = torch.rand(6, 4, generator=generator).softmax(1)
    log_p = outputs - outputs.exp().sum(1, keepdim=True).log()
    assert torch.allclose(loss_for("class", outputs, labels), -log_p[range(6), labels].mean())
    assert torch.allclose(loss_for("probabilities", outputs, soft), -(soft * log_p).sum(1).mean())
    assert torch.allclose(loss_for("centred", outputs, soft), 0.5 * ((outputs - soft) ** 2).sum() / 6)


def test_cosine_falls_from_the_learning_rate_to_zero() -> None:
    schedule = Schedule(steps=100, lr=2.0, batch_size=1, cosine=True)
    assert schedule.rate(0) == 2.0
    assert schedule.rate(50) == pytest.approx(1.0)
    assert schedule.rate(100) == pytest.approx(0.0)
    assert Schedule(steps=100, lr=2.0, batch_size=1).rate(99) == 2.0


def test_bf16_trains_and_other_precisions_are_refused() -> None:
    ctx = Recorder()
    ctx.precision = "bf16"
    fitted = NetworkInference(steps=40).fit(coreset(5), ConvBN(width=8), toy_inputs(), ctx)
    assert all(array.dtype == np.float32 for name, array in (fitted.arrays() or {}).items() if "tracked" not in name)
    images, labels = digits("test")
    assert accuracy(fitted.log_probs(images), labels) > 0.5
    ctx.precision = "int4"
    with pytest.raises(ValueError, match="float32 or bf16, not in 'int4'"):
        NetworkInference(steps=1).fit(coreset(1), ConvBN(width=4), toy_inputs(), ctx)


def test_accepts_gives_a_reason() -> None:
    class Foreign(Network):
        name = "foreign"
        framework = "jax"

        def build(self, shape: tuple[int, int, int], classes: int, seed: int) -> None:
            raise NotImplementedError

    facts = Facts(shape=(1, 8, 8), classes=10, sizes={})
    reason = NetworkInference().accepts(Offer(facts, 1, "random", "class", Foreign()))
    assert "foreign is a jax network" in (reason or "")
    assert "at least 1 member" in (Ensemble(members=0).accepts(Offer(facts, 1, "random", "class", ConvBN())) or "")
    assert Ensemble().accepts(Offer(facts, 1, "random", "class", ConvBN())) is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_it_trains_on_the_contexts_device() -> None:
    ctx = Recorder()
    ctx.device = "cuda"
    fitted = NetworkInference(steps=40).fit(coreset(5), ConvBN(width=8), toy_inputs(), ctx)
    images, labels = digits("test")
    assert accuracy(fitted.log_probs(images), labels) > 0.5
