"""The five methods as plugins: conformance, what they share, and that they learn on real digits."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from bpcbench import metrics, testing
from bpcbench.data.splits import load_split, training_data
from bpcbench.records import Facts, Inputs, PrerequisiteOutput, Transform
from bpcbench.registry import options
from bpcbench.sampling import per_class
from bpcbench.testing import MethodConformance, toy_inputs
from bpcbench_bpc.contrastive import Contrastive
from bpcbench_bpc.distillation import initial_images
from bpcbench_bpc.forward_kl import ForwardKL
from bpcbench_bpc.function_space import FunctionSpace
from bpcbench_bpc.method import sghmc_options
from bpcbench_bpc.reverse_kl import ReverseKL
from bpcbench_bpc.trajectories import Trajectories
from bpcbench_bpc.wasserstein import Wasserstein
from bpcbench_data.digits import Digits
from bpcbench_torch.inferences import NetworkInference
from bpcbench_torch.networks import ConvBN, ConvIN
from bpcbench_torch.preprocessing import Standardize

METHODS = [ReverseKL, ForwardKL, Wasserstein, Contrastive, FunctionSpace]
SMALL = ConvIN(width=4, growth=1, order="conv-first", init="torch")
PLAN = Trajectories(network=SMALL, epochs=3, lr=0.1, batch=32)
TINY = {"steps": 6, "trajectories": PLAN, "experts": 2, "max_start": 2, "inner_steps": 3, "lr": 1.0}


@cache
def experts(plan, count=2):
    """Experts of the toy data, as a store would hand them out."""
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        data, inputs = testing.toy_data(), testing.toy_inputs()
        members = {
            f"{index:03d}": plan.make(
                data, inputs, testing.context(Path(place) / str(index), seed=index), f"{index:03d}"
            )
            for index in range(count)
        }
    return PrerequisiteOutput(plan, "", members)


class Conformance(MethodConformance):
    def inputs(self, data):
        return Inputs(testing.toy_inputs().transform, {"experts": experts(self.plugin.trajectories)})


class TestReverseKL(Conformance):
    plugin = ReverseKL(**TINY, draws=3, batch=16)


class TestReverseKLOfficial(Conformance):
    plugin = ReverseKL(**TINY, preset="official", draws=3, batch=16, chunk=2, labels="learned")


class TestForwardKL(Conformance):
    plugin = ForwardKL(**TINY, draws=3)


class TestForwardKLLearnedLabels(Conformance):
    plugin = ForwardKL(**TINY, preset="official", draws=3, chunk=2, labels="learned", init="mix")


class TestWasserstein(Conformance):
    plugin = Wasserstein(**TINY, labels="learned", rate_lr=1e-3)


class TestContrastive(Conformance):
    plugin = Contrastive(**TINY, chain_noise=0.01)


class TestContrastiveOfficial(Conformance):
    plugin = Contrastive(**TINY, preset="official", energy="logit", labels="learned", init="noise")


class TestFunctionSpace(Conformance):
    plugin = FunctionSpace(**{**TINY, "max_start": 1}, points=3, labels="learned")


class TestFunctionSpaceAtRealImages(Conformance):
    plugin = FunctionSpace(**{**TINY, "max_start": 1}, points=2, variant="real", batch=16, delta=0.1)


class TestBatchNorm(Conformance):
    plugin = ForwardKL(**{**TINY, "trajectories": replace(PLAN, network=ConvBN(width=4))}, draws=2)


def distil(method, folder, inputs=None, **more):
    inputs = inputs or Inputs(testing.toy_inputs().transform, {"experts": experts(PLAN)})
    return method.distil(testing.toy_data(), 2, inputs, testing.context(folder, **more))


@pytest.mark.parametrize("cls", METHODS)
def test_all_start_from_the_same_images(cls, tmp_path):
    kept = {}
    ctx = {"keep_snapshot": lambda step, coreset, seconds: kept.setdefault(step, coreset)}
    distil(
        cls(**{**TINY, "max_start": 1, "steps": 2, **({"points": 2} if cls is FunctionSpace else {})}), tmp_path, **ctx
    )
    data = testing.toy_data()
    wanted = testing.Scale().apply(data.train.images[per_class(data.labels, 2, 0)], {})
    np.testing.assert_array_equal(kept[0].images, wanted)
    assert not np.array_equal(kept[2].images, wanted)


def test_the_official_preset_counts_one_update_more(tmp_path):
    for preset, wanted in (("clean", 6), ("official", 7)):
        assert ForwardKL(**TINY, preset=preset).updates() == wanted


def test_official_flips_digits_and_clean_does_not():
    assert ForwardKL().augmentation_used(1) == "dsa-grey"
    assert ForwardKL(preset="official").augmentation_used(1) == "dsa"
    assert ForwardKL().augmentation_used(3) == "dsa"
    assert ForwardKL(augmentation="none", preset="official").augmentation_used(1) == "none"


def test_initial_images():
    data, inputs = testing.toy_data(), testing.toy_inputs()
    real, classes = initial_images("real", data, 3, inputs, 7)
    mixed, again = initial_images("mix", data, 3, inputs, 7)
    np.testing.assert_array_equal(classes, again)
    everything = inputs.transform.apply(data.train.images)
    for row in range(len(real)):
        others = everything[data.labels == classes[row]]
        # On a line between its own start and another image of the class.
        away = mixed[row] - real[row]
        along = (others - real[row]).reshape(len(others), -1)
        cosine = along @ away.ravel() / (np.linalg.norm(along, axis=1) * np.linalg.norm(away) + 1e-9)
        assert cosine.max() > 0.9999
    noise, _ = initial_images("noise", data, 10, inputs, 7)
    assert abs(noise.mean()) < 0.1
    assert noise.std() == pytest.approx(1.0, abs=0.1)


def test_all_five_share_their_experts():
    facts = testing.toy_data().facts
    needs = [
        cls(trajectories=PLAN, experts=2, max_start=1, **({"points": 2} if cls is FunctionSpace else {})).prerequisites(
            facts, 1
        )["experts"]
        for cls in METHODS
    ]
    assert all(need == needs[0] for need in needs)


@pytest.mark.parametrize("cls", METHODS)
def test_default_options_build_and_have_a_native_inference(cls, registry):
    method = options.ready(registry, cls())
    facts = Facts(shape=(3, 32, 32), classes=10, sizes={"train": 50_000, "test": 10_000})
    assert method.skip(facts, 10) is None
    assert method.network.parameters(facts.shape, 10) == 320_010
    native = method.native(facts, 10)
    assert native.inference.plugin == "sghmc"
    options.build(registry, "inference", native.inference)
    options.build(registry, "inference", replace(method, preset="official").native(facts, 1).inference)
    assert native.network == method.network


@pytest.mark.parametrize(
    ("ipc", "step", "burn", "samples", "weight"),
    [(1, 0.03, 50, 10, 1.0), (10, 0.01, 250, 50, 1.5), (20, 0.01, 250, 50, 1.0)],
)
def test_the_public_sampler(ipc, step, burn, samples, weight, registry):
    """Its settings by images per class: the step's square times the rows is the sampler's learning rate."""
    facts = Facts(shape=(3, 32, 32), classes=10, sizes={"train": 50_000, "test": 10_000})
    method = options.ready(registry, ForwardKL(preset="official"))
    inference = options.build(registry, "inference", method.native(facts, ipc).inference)
    assert inference.lr == pytest.approx(step**2 * 10 * ipc)
    assert (inference.burn, inference.samples, inference.thin, inference.chains) == (burn, samples, 5, 1)
    assert (inference.prior, inference.start, inference.augmentation) == ("norm", "normal", "dsa")
    assert (inference.friction, inference.temperature) == (0.1, 0.01)
    assert inference.weight_decay == pytest.approx(weight)


def test_the_public_sampler_pulls_a_small_network_as_gently_per_parameter():
    assert sghmc_options(100, 10, 320_010 // 4)["weight_decay"] == pytest.approx(0.75, rel=1e-4)


@pytest.mark.parametrize("cls", METHODS)
def test_notes(cls):
    own = ("reconstruction",) if cls is FunctionSpace else ()
    assert cls().notes() == own
    assert cls(preset="official").notes() == ("official", *own)


def test_rkl_needs_no_target():
    """Only the start of a window enters, which may then be the expert's end."""
    plan = Trajectories(epochs=3)
    ReverseKL(trajectories=plan, max_start=4)
    with pytest.raises(ValueError, match="windows reach epoch 4 but the trajectories end at 3"):
        ForwardKL(trajectories=plan, max_start=4)


def test_windows_start_where_they_are_told_to(tmp_path):
    read = set()

    class Noting(dict):
        def __getitem__(self, name):
            read.add(name)
            return super().__getitem__(name)

    made = experts(PLAN)
    inputs = Inputs(
        testing.toy_inputs().transform,
        {"experts": PrerequisiteOutput(PLAN, "", {name: Noting(arrays) for name, arrays in made.members.items()})},
    )
    distil(ForwardKL(**{**TINY, "steps": 8, "max_start": 3, "min_start": 1}, draws=1), tmp_path, inputs)
    assert read == {"0001", "0002", "0003"}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"steps": 0}, "steps must be at least 1"),
        ({"lr": 0.0}, "lr must be above 0"),
        ({"inner_steps": -1}, "inner_steps"),
        ({"min_start": -1}, "min_start must not be negative"),
        ({"min_start": 20}, "min_start 20 must be below max_start 20"),
        (
            {"trajectories": replace(PLAN, epochs=4, stride=2), "max_start": 2, "min_start": 1, "ahead": 2},
            "no snapshot",
        ),
        ({"momentum": 1.0}, "momentum"),
        ({"augmentation": "flop"}, "flop"),
        ({"trajectories": Standardize()}, "not standardize"),
        ({"trajectories": PLAN, "max_start": 3, "ahead": 2}, "reach epoch 4 but the trajectories end at 3"),
        ({"trajectories": replace(PLAN, epochs=4, stride=2), "max_start": 1}, "multiple of the trajectories' stride 2"),
    ],
)
def test_wrong_options(wrong, message):
    with pytest.raises(ValueError, match=message):
        ForwardKL(**wrong)
    with pytest.raises(ValueError, match="draws at least 2"):
        ReverseKL(draws=1)


def test_what_cannot_be_done_is_said():
    facts = testing.toy_data().facts
    assert "more images per class" in ForwardKL(**TINY).skip(facts, 31)
    assert "more images per class" in ForwardKL(**TINY, init="mix").skip(facts, 16)
    assert "too small" in ForwardKL(**{**TINY, "trajectories": replace(PLAN, network=replace(SMALL, depth=4))}).skip(
        facts, 1
    )


def test_another_precision_is_refused(tmp_path):
    with pytest.raises(ValueError, match="bpc-fkl computes in float32, not in 'bf16'"):
        distil(ForwardKL(**TINY), tmp_path, precision="bf16")


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """Digits with the validation split held out, and three experts."""
    data = training_data(Digits(), Path(), holdout=True)
    preprocessing = Standardize()
    transform = Transform(preprocessing, preprocessing.fit(data, None))
    network = ConvIN(width=16, growth=1, order="conv-first", init="torch")
    plan = Trajectories(network=network, epochs=10, lr=0.1, batch=64, augmentation="none")
    place = tmp_path_factory.mktemp("experts")
    members = {
        f"{i:03d}": plan.make(data, Inputs(transform), testing.context(place / str(i), seed=i), f"{i:03d}")
        for i in range(3)
    }
    return (
        data,
        Inputs(transform, {"experts": PrerequisiteOutput(plan, "", members)}),
        load_split(Digits(), Path(), "validation"),
    )


def nll(digits, coreset, folder):
    _, inputs, held = digits
    network = ConvIN(width=16, growth=1, order="conv-first", init="torch")
    scores = []
    for seed in range(2):
        fitted = NetworkInference(steps=150).fit(
            coreset, network, toy_inputs(), testing.context(folder / str(seed), seed=seed)
        )
        scores.append(metrics.nll(fitted.predict(inputs.transform.apply(held.images)).log_probs, held.labels))
    return float(np.mean(scores))


@pytest.mark.parametrize(
    "method",
    [
        ForwardKL(lr=30.0, draws=3, steps=60),
        pytest.param(Wasserstein(lr=30.0, rate_lr=1e-3, steps=60), marks=pytest.mark.campaign),
        pytest.param(Contrastive(lr=30.0, inner_lr=0.1, steps=60), marks=pytest.mark.campaign),
        pytest.param(FunctionSpace(lr=30.0, points=3, steps=60), marks=pytest.mark.campaign),
    ],
    ids=lambda method: method.name,
)
def test_it_learns_on_digits(digits, method, tmp_path):
    data, inputs, _ = digits
    method = replace(
        method, trajectories=inputs["experts"].plugin, experts=3, max_start=6, inner_steps=10, augmentation="none"
    )
    method = replace(method, inner_lr=0.1)
    kept = {}
    ctx = testing.context(
        tmp_path / "distil", keep_snapshot=lambda step, coreset, seconds: kept.setdefault(step, coreset)
    )
    learned = method.distil(data, 1, inputs, ctx)
    assert nll(digits, learned, tmp_path / "after") < nll(digits, kept[0], tmp_path / "before")
    assert torch.isfinite(torch.tensor(learned.images)).all()
