"""VBPC and FRePo: conformance, resume, and that they learn on real digits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from bpcbench import metrics
from bpcbench.data.splits import load_split, training_data
from bpcbench.records import Inputs, Transform
from bpcbench.sampling import per_class
from bpcbench.testing import InferenceConformance, MethodConformance, context, toy_coreset, toy_data, toy_inputs
from bpcbench_data.digits import Digits
from bpcbench_distill.inference import RegressionInference
from bpcbench_distill.method import FRePo
from bpcbench_torch.distillation import initial_images
from bpcbench_torch.networks import ConvBN, ConvIN, ConvNN, without_batch_norm
from bpcbench_torch.pool import Pool
from bpcbench_torch.preprocessing import Standardize
from bpcbench_torch.targets import centred_targets
from bpcbench_torch.temperature import fit_temperature
from bpcbench_torch.zca import ZCA
from bpcbench_vbpc.inference import VariationalInference
from bpcbench_vbpc.method import VBPC

SMALL = ConvBN(width=4)


class TestVBPC(MethodConformance):
    plugin = VBPC(steps=12, network=SMALL, batch=16, pool=3, updates=4)
    interruptions = (1, 5, 11)


class TestVBPCVariants(MethodConformance):
    plugin = VBPC(
        steps=6,
        network=SMALL,
        batch=200,
        pool=2,
        updates=3,
        optimiser="lamb",
        init="uniform",
        learn_labels=False,
        statistics="batch",
        noise=False,
        form="sum",
        pool_rows=3,
    )


class TestFRePo(MethodConformance):
    plugin = FRePo(steps=12, network=SMALL, batch=16, pool=3, updates=4, evaluation_steps=5, temperature_share=0.1)
    interruptions = (1, 5, 14)


class TestFRePoOnAllData(MethodConformance):
    plugin = FRePo(
        steps=4, network=SMALL, batch=16, pool=2, evaluation_steps=5, temperature_share=0.2, temperature_on="seen"
    )


class TestVI(InferenceConformance):
    plugin = VariationalInference(steps=15)
    network = SMALL


class TestMonteCarloVI(InferenceConformance):
    plugin = VariationalInference(steps=3, samples=50, statistics="settled")
    network = SMALL


class TestRegression(InferenceConformance):
    plugin = RegressionInference(steps=15)
    network = SMALL


@pytest.fixture(scope="module")
def digits():
    data = training_data(Digits(), Path(), holdout=True)
    plugin = Standardize()
    return data, Transform(plugin, plugin.fit(data, None)), load_split(Digits(), Path(), "validation")


def score(digits, coreset, inference, tmp_path):
    _, transform, held = digits
    fitted = inference.fit(coreset, ConvBN(width=16), toy_inputs(), context(tmp_path))
    log_probs = fitted.predict(transform.apply(held.images)).log_probs
    return metrics.accuracy(log_probs, held.labels), metrics.nll(log_probs, held.labels)


@pytest.mark.parametrize(
    ("method", "inference"),
    [
        (
            VBPC(steps=150, network=ConvBN(width=16), batch=256, lr=0.01, label_scale=8.0, augmentation="none"),
            VariationalInference(augmentation="none"),
        ),
        (
            FRePo(steps=150, network=ConvBN(width=16), batch=256, lr=0.03, evaluation_steps=100),
            RegressionInference(steps=100, augmentation="none"),
        ),
    ],
    ids=["vbpc", "frepo"],
)
def test_it_learns_on_digits(digits, method, inference, tmp_path):
    data, transform, _ = digits
    kept = {}

    def keep(step, coreset, seconds):
        kept[step] = coreset

    ctx = context(tmp_path / "distil", keep_snapshot=keep)
    learned = method.distil(data, 1, Inputs(transform), ctx)
    before = score(digits, replace(kept[0], recipe=learned.recipe), inference, tmp_path / "before")
    after = score(digits, learned, inference, tmp_path / "after")
    assert after[0] > before[0] + 0.1
    assert after[1] < before[1]


def test_the_predictive_keeps_the_variance_and_gives_the_posterior(tmp_path):
    coreset = toy_coreset()
    fitted = VariationalInference(steps=3).fit(coreset, SMALL, toy_inputs(), context(tmp_path))
    images = coreset.images[:4]
    predicted = fitted.predict(images)
    mean, covariance = fitted.full()
    phi = fitted.model.features(torch.tensor(images)).detach().numpy().astype(np.float64)
    np.testing.assert_allclose(
        predicted.extras["variance"], np.einsum("nh,hg,ng->n", phi, covariance, phi), rtol=2e-2, atol=1e-4
    )
    logits = phi @ mean / np.sqrt(1 + np.pi / 8 * predicted.extras["variance"])[:, None]
    expected = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    np.testing.assert_allclose(predicted.log_probs, expected, atol=1e-3)


def test_monte_carlo_agrees_with_mean_field_where_the_variance_is_small(tmp_path):
    plain = VariationalInference(steps=3, rho=1000.0)
    sampled = replace(plain, samples=20_000)
    a = plain.fit(toy_coreset(), SMALL, toy_inputs(), context(tmp_path / "a")).predict(toy_coreset().images).log_probs
    b = sampled.fit(toy_coreset(), SMALL, toy_inputs(), context(tmp_path / "b")).predict(toy_coreset().images).log_probs
    np.testing.assert_allclose(a, b, atol=0.02)


def test_options_left_open_come_from_the_recipe():
    coreset = toy_coreset()
    named = replace(coreset, recipe=replace(coreset.recipe, scalars={"rho": 7.0}))
    assert VariationalInference().scalar(named, "rho", 1.0) == 7.0
    assert VariationalInference(rho=2.0).scalar(named, "rho", 1.0) == 2.0
    assert VariationalInference().scalar(coreset, "rho", 1.0) == 1.0


def test_targets_are_divided_by_the_temperature_of_their_recipe(tmp_path):
    coreset = replace(
        toy_coreset(),
        convention="centred",
        targets=np.eye(toy_coreset().classes, dtype=np.float32)[toy_coreset().class_ids],
    )
    warm = replace(coreset, recipe=replace(coreset.recipe, scalars={"temperature": 0.25}))
    scaled = VariationalInference(steps=3, by_temperature=True)
    images = coreset.images

    def predicted(inference, given, name):
        return inference.fit(given, SMALL, toy_inputs(), context(tmp_path / name)).predict(images).log_probs

    by_hand = replace(coreset, targets=4 * coreset.targets)
    np.testing.assert_array_equal(predicted(scaled, warm, "a"), predicted(VariationalInference(steps=3), by_hand, "b"))
    assert scaled.rescaled(coreset) is coreset
    assert VariationalInference().rescaled(warm) is warm
    named = replace(toy_coreset(), recipe=warm.recipe)
    assert scaled.rescaled(named) is named


def test_naive_and_efficient_distil_the_same(tmp_path):
    method = VBPC(steps=3, network=SMALL, batch=16, pool=2, updates=5, augmentation="none")
    fast = method.distil(toy_data(), 2, toy_inputs(), context(tmp_path / "a"))
    slow = replace(method, naive=True).distil(toy_data(), 2, toy_inputs(), context(tmp_path / "b"))
    np.testing.assert_allclose(fast.images, slow.images, atol=2e-3)
    np.testing.assert_allclose(fast.targets, slow.targets, atol=2e-3)


def test_pool_networks_are_staggered_and_replaced():
    pool = Pool(SMALL, (1, 8, 8), 3, size=4, updates=8, lr=1e-3, seed=0, device="cpu")
    assert pool.counters == [0, 2, 4, 6]
    weights = [model.head.weight.clone() for model in pool.models]
    assert not torch.equal(weights[0], weights[1])
    for _ in range(200):
        pool.draw()
        pool.update(lambda model: model(torch.ones(2, 1, 8, 8)).square().mean())
        assert max(pool.counters) <= 8
    pool.current = 0
    pool.counters[0] = 8
    before = pool.models[0].head.weight.clone()
    pool.update(lambda model: pytest.fail("a network that is due is replaced, not trained"))
    assert pool.counters[0] == 0
    assert not torch.equal(before, pool.models[0].head.weight)


def test_targets_of_every_convention():
    coreset = toy_coreset()
    centred = centred_targets(coreset)
    np.testing.assert_allclose(centred.sum(1), 0.0, atol=1e-6)
    scale = np.sqrt(3 / 10)
    np.testing.assert_allclose(centred[0] * scale, np.eye(3)[coreset.targets[0]] - 1 / 3, atol=1e-6)
    learned = replace(coreset, targets=centred * 3, convention="centred")
    np.testing.assert_array_equal(centred_targets(learned, scale=9.0), learned.targets)


def test_the_temperature_minimises_the_loss():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 500)
    outputs = 0.1 * (np.eye(4)[labels] + rng.normal(0, 0.6, (500, 4)))
    found = fit_temperature(outputs, labels)

    def loss(t):
        return metrics.nll((outputs / t - np.logaddexp.reduce(outputs / t, axis=1, keepdims=True)), labels)

    assert loss(found) <= min(loss(found * 1.02), loss(found * 0.98))


@pytest.mark.parametrize("wrong", [{"steps": 0}, {"rho": 0.0}, {"augmentation": "flop"}, {"beta_d": -1.0}])
def test_senseless_options_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        VBPC(network=SMALL, **wrong)


def test_all_methods_start_from_the_same_images(digits, tmp_path):
    data, transform, _ = digits
    started = []
    for index, method in enumerate((VBPC(steps=1, network=SMALL, pool=1), FRePo(steps=1, network=SMALL, pool=1))):
        kept = {}

        def keep(step, coreset, seconds, kept=kept):
            kept[step] = coreset

        ctx = context(tmp_path / str(index), keep_snapshot=keep)
        replace(method, batch=8).distil(data, 3, Inputs(transform), ctx)
        started.append(kept[0].images)
    random = transform.apply(data.train.images[per_class(data.labels, 3, 0)])
    np.testing.assert_array_equal(started[0], random)
    np.testing.assert_array_equal(started[1], random)


def test_a_pool_of_101_updates_is_that_of_frepos_code():
    """Its counters start at (100 // 10) * i, and a network whose counter is above 100 is replaced, not trained."""
    pool = Pool(SMALL, (1, 8, 8), 3, size=10, updates=101, lr=1e-3, seed=0, device="cpu")
    assert pool.counters == [100 // 10 * index for index in range(10)]
    trained = []
    pool.current = 0
    for _ in range(102):
        pool.update(lambda model: trained.append(1) or model(torch.ones(2, 1, 8, 8)).square().mean())
    assert len(trained) == 101
    assert pool.counters[0] == 0


def test_frepo_is_evaluated_without_batch_norm_as_by_its_authors():
    pool = ConvBN(width=8, growth=1, order="conv-first", depth=2)
    facts = toy_data().facts
    assert FRePo(network=pool).native(facts, 1).network == ConvNN(width=8, growth=1, order="conv-first", depth=2)
    assert FRePo(network=pool, evaluation_norm="same").native(facts, 1).network == pool
    assert without_batch_norm(ConvIN(width=8)) == ConvIN(width=8)


def test_the_norm_of_the_evaluation_is_part_of_the_key_because_the_temperature_depends_on_it(tmp_path):
    method = FRePo(steps=2, network=SMALL, batch=16, pool=2, evaluation_steps=20, evaluation_lr=0.01)
    ours, same = (
        replace(method, evaluation_norm=norm).distil(toy_data(), 1, toy_inputs(), context(tmp_path / norm))
        for norm in ("none", "same")
    )
    np.testing.assert_array_equal(ours.images, same.images)
    assert ours.recipe.scalars["temperature"] != same.recipe.scalars["temperature"]


def test_a_temperature_on_seen_data_leaves_all_data_to_the_distillation(tmp_path):
    """The coreset is that of a run without any temperature, and tables say where the temperature is from."""
    method = FRePo(steps=3, network=SMALL, batch=16, pool=2, evaluation_steps=5, temperature_share=0.3)
    results = {}
    for name, options in {
        "seen": {"temperature_on": "seen"},
        "held-out": {},
        "none": {"temperature_share": 0.0},
    }.items():
        ctx = context(tmp_path / name)
        results[name] = replace(method, **options).distil(toy_data(), 1, toy_inputs(), ctx)
    np.testing.assert_array_equal(results["seen"].images, results["none"].images)
    assert not np.array_equal(results["seen"].images, results["held-out"].images)
    assert results["seen"].recipe.scalars["temperature"] > 0
    assert "temperature" not in results["none"].recipe.scalars
    assert replace(method, temperature_on="seen").notes() == ("temperature fitted on training data it saw",)
    assert method.notes() == ()
    with pytest.raises(ValueError, match="temperature_share"):
        replace(method, temperature_on="seen", temperature_share=0.0)


def test_initial_images_vary_with_the_distillation_seed_unless_they_have_their_own():
    data, inputs = toy_data(), toy_inputs()

    def start(seed, **options):
        return initial_images(VBPC(network=SMALL, **options), data, 2, inputs, seed)[0]

    assert not np.array_equal(start(0), start(1))
    np.testing.assert_array_equal(start(0, init_seed=5), start(1, init_seed=5))
    np.testing.assert_array_equal(start(0, init_seed=5), start(5))


def test_uniform_images_are_normalised_and_not_whitened_as_the_paper_writes(digits):
    data, _, _ = digits
    plugin = ZCA(grey=True)
    transform = Transform(plugin, plugin.fit(data, None))
    images, _ = initial_images(VBPC(network=SMALL, init="uniform-normalised"), data, 10, Inputs(transform), 0)
    pixels = images * transform.arrays["std"] + transform.arrays["mean"]
    assert pixels.min() >= -1e-6
    assert pixels.max() <= 1 + 1e-6
    # U[0, 1] has mean 1/2 and variance 1/12; neighbouring pixels are independent, which whitening would change.
    assert pixels.mean() == pytest.approx(0.5, abs=0.01)
    assert pixels.var() == pytest.approx(1 / 12, rel=0.03)
    flat = pixels.reshape(len(pixels), -1)
    assert abs(np.corrcoef(flat[:, :-1].ravel(), flat[:, 1:].ravel())[0, 1]) < 0.05
    whitened, _ = initial_images(VBPC(network=SMALL, init="uniform"), data, 10, Inputs(transform), 0)
    assert not np.allclose(images.std(), whitened.std(), rtol=0.1)


@pytest.mark.parametrize("augment_real", [True, False])
def test_real_batches_are_augmented_only_if_asked(augment_real, tmp_path, monkeypatch):
    """Cutout erases squares; without it a real batch keeps every pixel."""
    from bpcbench_torch import computation

    seen = []
    monkeypatch.setattr(
        computation.Computation,
        "constant",
        lambda self, model, images: seen.append(images.clone()) or model.features(images).detach(),
    )
    data = toy_data()
    method = VBPC(steps=3, network=SMALL, batch=4, pool=1, augmentation="cutout", augment_real=augment_real)
    inputs = toy_inputs()
    method.distil(data, 1, inputs, context(tmp_path))
    known = {image.tobytes() for image in inputs.transform.apply(data.train.images)}
    unchanged = [image.numpy().tobytes() in known for batch in seen for image in batch]
    assert len(unchanged) == 12
    assert all(unchanged) is not augment_real
