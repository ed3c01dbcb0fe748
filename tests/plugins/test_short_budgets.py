"""The options for short CPU budgets: what each does, exact resumption, and keys that are as before without them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch._inductor.config

from bpcbench import metrics
from bpcbench.planning.spec import Spec
from bpcbench.records import Facts
from bpcbench.testing import MethodConformance, context, toy_data, toy_inputs
from bpcbench_distill.method import FRePo
from bpcbench_distill.rcig import RCIG
from bpcbench_torch.batches import Batches
from bpcbench_torch.computation import WORTH_COMPILING, compiles
from bpcbench_torch.growth import grown, size_at
from bpcbench_torch.networks import ConvBN, ConvNN
from bpcbench_torch.pool import Pool
from bpcbench_vbpc.inference import VariationalInference
from bpcbench_vbpc.method import VBPC

SMALL = ConvBN(width=4)
SHORT = VBPC(steps=6, network=SMALL, batch=16, pool=3, updates=4, augmentation="none")


@pytest.mark.campaign
class TestVBPC(MethodConformance):
    plugin = VBPC(
        steps=6,
        network=SMALL,
        batch=16,
        pool=3,
        updates=4,
        batch_start=5,
        repeats=2,
        pool_age=4,
        average=0.8,
        warmup=3,
        label_fit=3,
    )
    interruptions = (4,)
    test_valid = test_deterministic = test_absent_classes = None


def distilled(method, folder, **more):
    return method.distil(toy_data(), 2, toy_inputs(), context(folder, **more))


def test_batches_double_each_size_for_as_many_steps():
    assert grown(None, 256) == (256,)
    assert grown(48, 256) == (48, 96, 192, 256)
    assert [size_at(step, 8, grown(48, 256)) for step in range(8)] == [48, 48, 96, 96, 192, 192, 256, 256]
    assert grown(256, 256) == (256,)


def test_the_loop_takes_the_sizes_of_a_growing_batch(tmp_path, monkeypatch):
    taken, next_batch = [], Batches.next

    def seen(self):
        images, labels = next_batch(self)
        taken.append(len(images))
        return images, labels

    monkeypatch.setattr(Batches, "next", seen)
    options = {"steps": 3, "network": ConvNN(width=2), "pool": 1, "batch": 8, "batch_start": 2}
    rcig = RCIG(**options, pool_steps=1, inner_steps=1, hvp_steps=1, search=False)
    for index, method in enumerate((VBPC(**options), FRePo(**options, temperature_share=0.0), rcig)):
        taken.clear()
        distilled(method, tmp_path / str(index))
        assert taken == [2, 4, 8], method.name


def test_repeats_update_the_coreset_more_often_with_as_many_real_batches_and_pool_updates(tmp_path, monkeypatch):
    counts = {"outer": 0, "pool": 0}
    outer, update = VBPC.outer, Pool.update

    def counted_outer(self, *arguments):
        counts["outer"] += 1
        return outer(self, *arguments)

    def counted_update(self, loss):
        counts["pool"] += 1
        update(self, loss)

    monkeypatch.setattr(VBPC, "outer", counted_outer)
    monkeypatch.setattr(Pool, "update", counted_update)
    distilled(replace(SHORT, repeats=3), tmp_path)
    assert counts == {"outer": 18, "pool": 6}


def test_the_average_is_that_of_all_updates(tmp_path):
    """From a constant rate on, recomputed from the iterates that shorter runs of the same draws end with."""
    constant = replace(SHORT, steps=3, final_lr=1.0)
    iterates = [distilled(replace(constant, steps=n), tmp_path / str(n)).targets for n in (1, 2, 3)]
    weights = np.array([0.25, 0.5, 1.0]) / 1.75
    wanted = sum(weight * targets.astype(np.float64) for weight, targets in zip(weights, iterates, strict=True))
    found = distilled(replace(constant, average=0.5), tmp_path / "average").targets
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    assert not np.allclose(found, iterates[-1], rtol=1e-4, atol=1e-5)


def test_a_warm_up_starts_with_small_steps(tmp_path):
    start = distilled(replace(SHORT, steps=1, lr=1e-12), tmp_path / "start").targets
    moved = [
        np.abs(distilled(replace(SHORT, steps=1, warmup=warmup), tmp_path / str(warmup)).targets - start).max()
        for warmup in (0, 4)
    ]
    assert moved[1] == pytest.approx(moved[0] / 4, rel=1e-3)


def test_an_aged_pool_has_networks_of_all_ages_and_the_same_counters():
    pool = Pool(SMALL, (1, 8, 8), 3, size=4, updates=8, lr=0.1, seed=0, device="cpu")
    before = [torch.cat([p.detach().flatten() for p in model.parameters()]) for model in pool.models]
    calls = []

    def loss(model):
        calls.append(pool.models.index(model))
        return model(torch.ones(2, 1, 8, 8)).square().sum()

    pool.age(loss, 8)
    assert calls == [1] * 2 + [2] * 4 + [3] * 6
    assert pool.counters == [0, 2, 4, 6]
    after = [torch.cat([p.detach().flatten() for p in model.parameters()]) for model in pool.models]
    assert [torch.equal(a, b) for a, b in zip(before, after, strict=True)] == [True, False, False, False]
    assert not any(model.training for model in pool.models)


@pytest.mark.campaign
def test_the_fitted_scale_changes_labels_by_one_factor_that_lowers_the_nll(tmp_path):
    plain = replace(SHORT, steps=20, lr=0.01)
    fitted = replace(plain, label_fit=5)
    before, after = (distilled(method, tmp_path / str(index)) for index, method in enumerate((plain, fitted)))
    np.testing.assert_array_equal(before.images, after.images)
    factor = float(np.median(after.targets / before.targets))
    assert factor > 1.1
    np.testing.assert_allclose(after.targets, factor * before.targets, rtol=1e-5)
    inference = VariationalInference(steps=5, augmentation="none")
    data, inputs = toy_data(), toy_inputs()
    images = inputs.transform.apply(np.asarray(data.train.images))
    scores = []
    for index, coreset in enumerate((before, after)):
        predictive = inference.fit(coreset, SMALL, inputs, context(tmp_path / f"fit-{index}"))
        scores.append(metrics.nll(predictive.predict(images).log_probs, np.asarray(data.labels)))
    assert scores[1] < scores[0]


def test_keys_are_as_before_without_the_options():
    new = {"batch_start", "repeats", "pool_age", "average", "warmup", "label_fit"}
    assert not new & set(Spec.of(SHORT).options)
    set_all = replace(SHORT, batch_start=4, repeats=2, pool_age=1, average=0.9, warmup=1, label_fit=1)
    assert new <= set(Spec.of(set_all).options)
    assert "batch_start" not in Spec.of(RCIG()).options


@pytest.mark.parametrize(
    "wrong",
    [
        {"batch_start": 0},
        {"batch": 8, "batch_start": 9},
        {"repeats": 0},
        {"pool_age": -1},
        {"pool_age": 101},
        {"average": 1.0},
        {"warmup": -1},
        {"label_fit": -1},
    ],
    ids=str,
)
def test_senseless_values_are_refused(wrong):
    with pytest.raises(ValueError, match=[*wrong][-1]):
        VBPC(**wrong)


def test_auto_compiles_long_runs_where_there_is_a_compiler():
    facts = Facts(shape=(3, 32, 32), classes=10, sizes={"train": 50_000})
    long, short = (VBPC(steps=steps, network=ConvBN(width=32), compile="auto") for steps in (100_000, 10))
    assert short.operations(facts, 10) < WORTH_COMPILING < long.operations(facts, 10)
    assert compiles(long, facts, 10, "cpu")
    assert not compiles(short, facts, 10, "cpu")
    assert not compiles(replace(long, chunk=10), facts, 10, "cpu")
    with torch._inductor.config.patch({"cpp.cxx": ("no-such-compiler",)}):
        assert not compiles(long, facts, 10, "cpu")
    assert compiles(replace(short, compile=True), facts, 10, "cpu")
    assert Spec.of(long).options["compile"] == "auto"


def test_repeats_cost_what_the_formula_says():
    facts = Facts(shape=(1, 28, 28), classes=10, sizes={"train": 60_000})
    one = SHORT.network.operations(facts.shape, 10)
    base = replace(SHORT, batch=256)
    assert base.operations(facts, 1) == 6 * one * (256 + 30 + 30)
    assert replace(base, repeats=2, batch_start=64).operations(facts, 1) == pytest.approx(
        6 * one * ((64 + 128 + 256) / 3 + 60 + 30)
    )
    assert replace(base, pool_age=4).operations(facts, 1) == 6 * one * (256 + 60) + (1 + 2) * one * 30
