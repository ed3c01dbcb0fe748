"""RCIG: its implicit gradient, its learning rates, its evaluation, conformance, and that it learns on digits."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from torch import Tensor

from bpcbench import metrics
from bpcbench.data.splits import load_split, training_data
from bpcbench.planning.spec import Spec
from bpcbench.records import Coreset, Facts, Inputs, Transform, mirrored
from bpcbench.testing import InferenceConformance, MethodConformance, context, toy_coreset, toy_data, toy_inputs
from bpcbench_data.digits import Digits
from bpcbench_distill import rates
from bpcbench_distill.inner_problem import InnerProblem
from bpcbench_distill.kernel import margin
from bpcbench_distill.linearisation import Linearisation
from bpcbench_distill.rates import Rate, course, searched
from bpcbench_distill.rcig import RCIG
from bpcbench_distill.rcig_distillation import Learned, Real, implicit_gradients, limited, outer_gradients
from bpcbench_distill.rcig_inference import RCIGInference, Schedule, mirrors
from bpcbench_torch.alexnet import AlexNet
from bpcbench_torch.moving_average import MovingAverage
from bpcbench_torch.networks import ConvBN, ConvIN, ConvNN
from bpcbench_torch.peak import peak_allocation
from bpcbench_torch.pool import Pool
from bpcbench_torch.preprocessing import Standardize

SMALL = ConvNN(width=4)
QUICK = RCIG(
    steps=7, network=SMALL, batch=16, pool=2, updates=6, pool_steps=3, inner_steps=4, hvp_steps=4, search=False
)


@pytest.mark.campaign
class TestRCIG(MethodConformance):
    plugin = replace(QUICK, steps=5, network=ConvNN(width=2), batch=8, inner_lr=1e-3, hvp_lr=0.1)
    interruptions = (3,)


@pytest.mark.campaign
class TestRCIGVariants(MethodConformance):
    plugin = replace(
        QUICK,
        steps=4,
        network=ConvBN(width=2),
        batch=8,
        beta=0.0,
        learn_labels=False,
        mirror="yes",
        init="uniform",
        adapt="none",
    )


class TestRCIGInference(InferenceConformance):
    plugin = RCIGInference(steps=15)
    network = SMALL


@pytest.mark.campaign
def test_it_resumes_in_the_middle_of_search_and_adaptation(tmp_path, monkeypatch):
    """Interrupted after the search of step 0 and just before the rates adapt, here every 8 steps."""
    monkeypatch.setattr(rates, "_INTERVAL", 8)

    class Test(MethodConformance):
        plugin = replace(
            QUICK,
            steps=10,
            network=ConvNN(width=2),
            batch=8,
            pool_steps=1,
            inner_steps=2,
            hvp_steps=2,
            inner_lr=1e-2,
            hvp_lr=10.0,
            adapt="both",
            search=True,
        )
        interruptions = (7,)

    logged = []
    ctx = context(tmp_path / "once")
    log = ctx.log
    ctx.log = lambda **values: logged.append(values) or log(**values)
    Test.plugin.distil(toy_data(), 1, toy_inputs(), ctx)
    seen = [values["inner_lr"] for values in logged if "inner_lr" in values]
    assert Test.plugin.inner_lr != seen[0] == seen[8] != seen[9]
    Test().test_resumes_exactly(tmp_path / "again")


def tiny(mirror: bool = False) -> tuple[Linearisation, Learned, Real]:
    model = ConvNN(width=2, softplus=5.0).build((1, 8, 8), 3, 0).double().eval()
    generator = torch.Generator().manual_seed(0)
    shapes = ((3, 1, 8, 8), (3, 3), (12, 1, 8, 8))
    images, targets, real = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    log_scale = torch.tensor(0.3, dtype=torch.float64)
    learned = Learned(*(tensor.requires_grad_() for tensor in (images, targets, log_scale)))
    return Linearisation(model), learned, Real(real, torch.arange(12) % 3)


def stated_outer(linear: Linearisation, learned: Learned, real: Real, t: Tensor, l2: float, mirror: bool) -> Tensor:
    """The outer loss as the paper writes it, by explicit matrices."""
    images, targets = learned.rows(mirror)
    own, phi = linear.push(images, t)
    eye = torch.eye(phi.shape[1], dtype=phi.dtype)
    w = torch.linalg.solve(phi.T @ phi + l2 * eye, phi.T @ (targets - own))
    outputs, features = linear.push(real.images, t)
    logits = learned.log_scale.exp() * (outputs + features @ w)
    loss = torch.nn.functional.cross_entropy(logits, real.labels)
    return loss + margin(learned.targets, 1 / 6)


@pytest.mark.parametrize("mirror", [False, True])
@pytest.mark.parametrize("explicit", [0, 10**9], ids=["through-the-network", "matrix"])
def test_direct_gradients_are_those_of_the_stated_outer_loss(mirror, explicit):
    linear, learned, real = tiny()
    l2 = 0.02
    problem = InnerProblem(linear, *learned.rows(mirror), l2, explicit=explicit)
    t = 0.1 * torch.randn(linear.size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = outer_gradients(problem, t, learned, real, l2, mirror=mirror)
    free = t.clone().requires_grad_()
    loss = stated_outer(linear, learned, real, free, l2, mirror)
    wanted = torch.autograd.grad(loss, [*vars(learned).values(), free])
    torch.testing.assert_close(found.loss, loss.detach())
    for got, expected in zip((found.images, found.targets, found.log_scale, found.tangents), wanted, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("mirror", [False, True])
def test_the_implicit_gradient_is_that_of_full_unrolling(mirror):
    """Both inner problems solved to convergence, against autograd through hundreds of unrolled gradient steps."""
    linear, learned, real = tiny()
    l2 = 2.0  # well conditioned, so that plain gradient descent converges in a test's time

    images, targets = learned.rows(mirror)
    matrix = linear.jacobian(images.detach())
    problem = InnerProblem(linear, images, targets, l2)
    phi = linear.push(images, linear.zeros())[1].detach()
    a = torch.linalg.inv(phi @ phi.T + l2 * torch.eye(len(phi), dtype=phi.dtype))
    eye = torch.eye(linear.size, dtype=phi.dtype)
    hessian = problem.scale * (matrix.T @ torch.kron(a.contiguous(), torch.eye(3, dtype=phi.dtype)) @ matrix + eye)
    largest = float(torch.linalg.eigvalsh(hessian)[-1])

    t = linear.zeros()
    for _ in range(800):
        outputs, features = linear.push(images, t)
        gram = features @ features.T + l2 * torch.eye(len(features), dtype=features.dtype)
        dual = torch.linalg.solve(gram, targets - outputs)
        pulled = _pull_with_graph(linear, images, dual)
        t = t - 1.8 / (largest + problem.scale) * problem.scale * (t - pulled)
        if (gap := float((problem.loss_and_gradient(t.detach())[1]).norm())) < 1e-13:
            break
    assert gap < 1e-12
    unrolled = torch.autograd.grad(stated_outer(linear, learned, real, t, l2, mirror), list(vars(learned).values()))

    end = t.detach()
    direct = outer_gradients(problem, end, learned, real, l2, mirror=mirror)
    inverse = torch.linalg.solve(hessian, direct.tangents)
    implicit = implicit_gradients(linear, end, inverse, learned, l2, mirror=mirror)
    torch.testing.assert_close(direct.images + implicit[0], unrolled[0], rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(direct.targets + implicit[1], unrolled[1], rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(direct.log_scale, unrolled[2], rtol=1e-6, atol=1e-9)
    # It matters: the direct gradient alone is another one.
    assert float(implicit[0].norm() / direct.images.norm()) > 0.01


@pytest.mark.parametrize("explicit", [0, 10**9], ids=["through-the-network", "matrix"])
def test_chunks_give_the_same_gradients(explicit):
    """Of a whole step but for its optimiser: the descent, the outer loss, the inverse product, the implicit term."""

    def found(chunk: int | None) -> list[Tensor]:
        linear, learned, real = tiny()
        linear.chunk = chunk
        problem = InnerProblem(linear, *learned.rows(True), 0.02, explicit=explicit)
        t = problem.descend(5, 1e-2).end
        direct = outer_gradients(problem, t, learned, real, 0.02, mirror=True)
        v = problem.invert(direct.tangents, 5, 1e-2).end
        implicit = implicit_gradients(linear, t, v, learned, 0.02, mirror=True)
        return [
            t,
            *(getattr(direct, name) for name in ("loss", "images", "targets", "log_scale", "tangents")),
            *implicit,
        ]

    for whole, parts in zip(found(None), found(4), strict=True):
        torch.testing.assert_close(parts, whole, rtol=1e-9, atol=1e-12)


@pytest.mark.campaign
@pytest.mark.parametrize("network", [SMALL, ConvBN(width=4, order="conv-first")], ids=lambda one: one.name)
def test_a_run_in_chunks_is_one_of_all_rows_up_to_rounding(network, tmp_path):
    """With BatchNorm as well: the pool's own updates then see all rows."""
    method = replace(QUICK, network=network, steps=3)
    whole, parts = (
        replace(method, chunk=chunk).distil(toy_data(), 2, toy_inputs(), context(tmp_path / str(chunk)))
        for chunk in (None, 3)
    )
    np.testing.assert_allclose(parts.images, whole.images, atol=2e-3)
    np.testing.assert_allclose(parts.targets, whole.targets, atol=2e-3)


@pytest.mark.campaign
def test_chunks_bound_what_is_allocated():
    """An eighth of the rows through the network at a time, where the Jacobian is no matrix."""
    model = ConvNN(width=8, softplus=60.0).build((3, 8, 8), 3, 0).eval()
    learned = Learned(torch.randn(64, 3, 8, 8), torch.randn(64, 3), torch.zeros(()))
    learned = Learned(*(tensor.requires_grad_() for tensor in vars(learned).values()))
    real = Real(torch.randn(64, 3, 8, 8), torch.arange(64) % 3)
    peaks = {}
    for chunk in (None, 8):
        linear = Linearisation(model, chunk)

        def step(linear: Linearisation = linear) -> None:
            problem = InnerProblem(linear, *learned.rows(False), 0.02, explicit=0)
            direct = outer_gradients(problem, linear.zeros(), learned, real, 0.02, mirror=False)
            implicit_gradients(linear, linear.zeros(), direct.tangents, learned, 0.02, mirror=False)

        peaks[chunk] = peak_allocation(step, "cpu")
    assert peaks[8] < 0.4 * peaks[None]


def test_chunks_are_an_option_that_old_results_do_not_have():
    assert "chunk" not in Spec.of(QUICK).options
    assert Spec.of(replace(QUICK, chunk=100)).options["chunk"] == 100
    with pytest.raises(ValueError, match="chunk"):
        RCIG(chunk=0)


def test_chunks_bound_the_predicted_memory():
    """CIFAR-100 at 10 and 50 images per class, Tiny-ImageNet at 10, ImageNet at 64 px with two: up to 5,000 rows.

    With BatchNorm the update of a pool network, which needs all rows, is what is left.
    """
    for side, classes, ipc in ((32, 100, 10), (32, 100, 50), (64, 200, 10), (64, 1000, 2)):
        facts = Facts(shape=(3, side, side), classes=classes, sizes={"train": 50_000})
        plain, normed = (
            [RCIG(network=network, chunk=chunk).peak_bytes(facts, ipc) for chunk in (None, 100)]
            for network in (ConvNN(order="conv-first"), ConvBN(order="conv-first"))
        )
        assert plain[1] < 20e9 < 24e9 < plain[0]
        assert normed[1] < 0.4 * normed[0]


def _pull_with_graph(linear: Linearisation, images: Tensor, cotangents: Tensor) -> Tensor:
    """J^T u as a function of images and u, by the network's own double backward instead of the code under test."""
    base = {name: value.clone().requires_grad_() for name, value in linear.base.items()}
    outputs, _ = linear._call(base, images)
    parts = torch.autograd.grad((outputs * cotangents).sum(), list(base.values()), create_graph=True)
    return torch.cat([part.reshape(-1) for part in parts])


def test_the_implicit_gradient_is_at_most_as_long_as_the_direct_one():
    direct = torch.tensor([3.0, 4.0])
    long, short = torch.tensor([0.0, 20.0]), torch.tensor([0.3, 0.4])
    torch.testing.assert_close(limited(long, direct), torch.tensor([0.0, 5.0]))
    torch.testing.assert_close(limited(short, direct), short)
    for useless in (torch.zeros(2), torch.tensor([math.nan, 1.0]), torch.tensor([math.inf, 1.0])):
        assert torch.equal(limited(useless, direct), torch.zeros(2))


@pytest.mark.parametrize(
    ("losses", "expected"),
    [([3, 2, 1], 1), ([3, 4, 1], 0), ([3, 1, 4], -1), ([3, 3, 3], 0), ([3, math.nan, 1], -1), ([1.0], 1)],
)
def test_courses(losses, expected):
    assert int(course(torch.tensor(losses, dtype=torch.float64))) == expected


def test_the_search_ends_just_below_the_first_rate_that_fails():
    tried = []

    def losses(rate: float) -> Tensor:
        tried.append(rate)
        return torch.tensor([2.0, 1.0]) if rate < 1 else torch.tensor([1.0, 2.0])

    found = searched(0.5, losses)
    assert tried == pytest.approx([0.5, 0.6, 0.72, 0.864, 1.0368])
    assert found == pytest.approx(1.0368 * 1.2 * 0.7)
    assert math.isfinite(searched(0.5, lambda rate: torch.tensor([2.0, 1.0])))


@pytest.mark.parametrize(
    ("failed", "monotone", "factor"), [(0, 40, 1.05), (0, 35, 1.0), (14, 0, 1.0), (15, 36, 0.9), (15, 0, 0.9)]
)
def test_a_rate_adapts_by_the_runs_of_a_period(failed, monotone, factor):
    """51 runs at first: 29 % of them are 15, and 70 % are 36."""
    rate = Rate(1.0, "cpu")
    kinds = [-1] * failed + [1] * monotone
    losses = {-1: torch.tensor([1.0, 3.0, 2.0]), 1: torch.tensor([3.0, 2.0, 1.0]), 0: torch.tensor([3.0, 4.0, 1.0])}
    for step, kind in enumerate(kinds + [0] * (51 - len(kinds))):
        assert rate.value == 1.0
        rate.observe(step, losses[kind])
    assert rate.value == pytest.approx(factor)
    assert rate.courses == []
    rate.observe(51, losses[0])
    other = Rate(5.0, "cpu")
    other.load_state_dict(rate.state_dict())
    assert (other.value, len(other.courses)) == (rate.value, 1)


def test_the_average_is_corrected_for_its_start():
    x = torch.tensor([1.0], dtype=torch.float64)
    average = MovingAverage({"x": x}, 0.9)
    assert float(average.value("x")) == 1.0
    values = [2.0, 5.0, -1.0]
    for value in values:
        x.fill_(value)
        average.update()
    weights = [0.9**age for age in (2, 1, 0)]
    expected = sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)
    assert float(average.value("x")) == pytest.approx(expected)


def test_pool_networks_train_for_a_while_and_are_replaced_at_once():
    pool = Pool(SMALL, (1, 8, 8), 3, size=3, updates=10, lr=1e-3, seed=0, device="cpu", staggered=False)
    assert pool.counters == [0, 0, 0]
    pool.current = 1
    trained = []

    def loss(model):
        trained.append(model)
        return model(torch.ones(2, 1, 8, 8)).square().mean()

    pool.train(loss, 9)
    assert (len(trained), pool.counters) == (9, [0, 9, 0])
    before = pool.models[1].head.weight.clone()
    pool.train(loss, 4)
    assert (len(trained), pool.counters) == (13, [0, 0, 0])
    assert not torch.allclose(before, pool.models[1].head.weight, atol=0.02)


def test_labels_start_as_one_hot_minus_the_share_and_images_as_those_of_other_methods(tmp_path):
    kept = {}
    ctx = context(tmp_path, keep_snapshot=lambda step, coreset, seconds: kept.setdefault(step, coreset))
    final = replace(QUICK, steps=2).distil(toy_data(), 2, toy_inputs(), ctx)
    np.testing.assert_allclose(kept[0].targets, np.eye(3)[kept[0].class_ids] - 1 / 3, atol=1e-6)
    assert not np.array_equal(kept[0].images, final.images)
    assert final.convention == "centred"
    assert final.recipe.scalars["temperature"] != 1.0


def test_networks_are_softplus_while_distilling_and_relu_when_used():
    facts = toy_data().facts
    assert QUICK.native(facts, 1).network == SMALL
    assert QUICK.skip(facts, 1) is None
    other = replace(QUICK, network=AlexNet(width=8))
    assert "beta" in (other.skip(facts, 1) or "")
    instance = ConvIN(width=8)
    assert "conv-first" in (replace(QUICK, network=instance).skip(facts, 1) or "")
    assert replace(QUICK, network=replace(instance, order="conv-first")).skip(facts, 1) is None
    large = Facts(shape=(3, 32, 32), classes=3, sizes={"train": 90, "test": 90})
    assert replace(other, beta=0.0).skip(large, 1) is None
    x = torch.linspace(-1, 1, 64).view(1, 1, 8, 8)
    relu, soft, sharp = (ConvNN(width=4, softplus=beta).build((1, 8, 8), 3, 0) for beta in (0.0, 60.0, 6000.0))
    assert not torch.allclose(relu(x), soft(x), atol=1e-4)
    torch.testing.assert_close(relu(x), sharp(x), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("mirror", "channels", "classes", "rows", "expected"), [
    ("auto", 1, 10, 10, False),          # depth_3_no_flip
    ("auto", 3, 10, 500, True),          # depth_3: CIFAR-10
    ("auto", 3, 100, 1000, True),        # depth_3: CIFAR-100 at ipc 10
    ("auto", 3, 100, 5000, False),       # cifar100_50
    ("auto", 3, 200, 200, True),         # depth_4_200
    ("auto", 3, 200, 2000, False),       # depth_4_big: Tiny-ImageNet at ipc 10
    ("auto", 3, 1000, 1000, False),      # depth_4_big: ImageNet
    ("yes", 1, 10, 10, True),
    ("no", 3, 10, 10, False),
])  # fmt: skip
def test_mirrored_copies_are_those_of_the_authors_configurations(mirror, channels, classes, rows, expected):
    assert mirrors(mirror, channels, classes, rows) is expected


def coloured(rows: int, classes: int = 10) -> Coreset:
    labels = np.arange(rows) % classes
    images = np.random.default_rng(0).normal(size=(rows, 3, 8, 8)).astype(np.float32)
    return Coreset(images=images, targets=labels, class_ids=labels, classes=classes)


def test_the_steps_are_both_readings_of_the_authors_loops():
    ten, more = coloured(10), coloured(20)
    plain, nominal = RCIGInference(augmentation="none"), RCIGInference(augmentation="none", loops="nominal")
    for inference, expected in ((RCIGInference(), (1000, 2000)), (plain, (2500, 5000)), (nominal, (1000, 2000))):
        assert (inference.regression(ten).steps, inference.regression(more).steps) == expected
        assert inference.regression(ten).schedule.nominal == 1000
    assert RCIGInference(steps=300).regression(ten).steps == 300


def test_the_schedule_is_the_authors():
    rate = Schedule(1e-4, 500, 1000).rate
    assert [rate(step) for step in (0, 250, 500, 750)] == pytest.approx([0.0, 5e-5, 1e-4, 1e-4 * (0.01 + 0.99 / 2)])
    assert [rate(step) for step in (1000, 2499)] == pytest.approx([1e-6, 1e-6])


def test_a_coreset_that_holds_its_copies_is_evaluated_as_one_that_does_not():
    inference, plain = RCIGInference(), coloured(10)
    twice = mirrored(plain)
    assert inference.regression(plain) == inference.regression(twice)
    np.testing.assert_array_equal(inference.prepared(plain).images, twice.images)
    assert inference.prepared(twice) is twice
    assert len(replace(inference, mirror="no").prepared(plain).images) == 10


def test_large_coresets_are_used_in_batches_by_their_size_before_mirroring():
    assert RCIGInference().regression(coloured(200)).rows >= 400
    assert RCIGInference().regression(coloured(260)).rows == 256


def test_class_labels_are_regressed_as_one_hot_minus_the_share(tmp_path):
    """And an epsilon of k times 1e-8 is a loss divided by k, for Adam."""
    from bpcbench_torch.targets import centred_targets

    coreset = toy_coreset()
    settings = RCIGInference(steps=2).regression(coreset)
    targets = centred_targets(coreset, settings.label_scale)
    np.testing.assert_allclose(targets, np.eye(3)[coreset.targets] - 1 / 3, atol=1e-6)
    assert settings.eps == pytest.approx(3e-8)
    inputs = [torch.ones(2, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    for x, eps, factor in zip(inputs, (1e-8, 3e-8), (1 / 3, 1.0), strict=True):
        optimizer = torch.optim.Adam([x], 0.1, eps=eps)
        for scale in (1e-7, 3e-8, 2e-7):
            x.grad = factor * scale * torch.tensor([1.0, -2.0], dtype=torch.float64)
            optimizer.step()
    torch.testing.assert_close(*inputs)


def test_an_operation_is_drawn_for_every_image():
    """RCIG's augmentation: in one batch some images are erased in part, some are mirrored."""
    from bpcbench_torch.strategy import strategy

    images = torch.rand((64, 3, 8, 8), generator=torch.Generator().manual_seed(0)) + 1
    augment = strategy("flip_cutout-each", 3)
    out = augment(images, torch.Generator().manual_seed(0))
    erased = (out == 0).flatten(1).any(1)
    same = (out == images).flatten(1).all(1)
    flipped = (out == images.flip(-1)).flatten(1).all(1)
    assert bool((erased | same | flipped).all())
    assert min(int(erased.sum()), int(flipped.sum()), int(same.sum())) >= 5
    assert strategy("rcig-each", 1).operations == ("crop", "rotate", "translate", "cutout")
    assert strategy("rcig-each", 3).operations == strategy("frepo", 3).operations


def test_the_operations_of_a_plan_are_those_that_torch_counts():
    """Through the network, for a coreset too large for the matrix; 5 % for what is not a convolution."""
    from torch.utils.flop_counter import FlopCounterMode

    method = RCIG(network=ConvNN(width=4, softplus=60.0), batch=20, steps=1, pool_steps=1, inner_steps=3, hvp_steps=2)
    linear = Linearisation(method.network.build((1, 8, 8), 10, 0).eval())
    learned = Learned(*(torch.zeros(shape, requires_grad=True) for shape in ((20, 1, 8, 8), (20, 10), ())))
    real = Real(torch.zeros(20, 1, 8, 8), torch.arange(20) % 10)
    counter = FlopCounterMode(display=False)
    counter.mod_tracker = MagicMock(parents={"Global"})  # it cannot follow transformed modules
    with counter:
        problem = InnerProblem(linear, learned.images, learned.targets, 0.1, explicit=0)
        inner = problem.descend(method.inner_steps, 1e-3)
        direct = outer_gradients(problem, inner.end, learned, real, 0.1, mirror=False)
        inverse = problem.invert(direct.tangents, method.hvp_steps, 1.0)
        implicit_gradients(linear, inner.end, inverse.end, learned, 0.1, mirror=False)
    facts = Facts(shape=(1, 8, 8), classes=10, sizes={"train": 100})
    predicted = method.operations(facts, 2)
    pool = 3 * 20 * method.network.operations((1, 8, 8), 10)
    assert counter.get_total_flops() == pytest.approx(predicted - pool, rel=0.05)
    assert replace(method, mirror="yes").operations(facts, 2) > 1.5 * predicted


@pytest.mark.parametrize(
    "wrong", [{"steps": 0}, {"inner_steps": 0}, {"l2_rate": 0.0}, {"decay": 1.0}, {"beta": -1.0}, {"init_seed": -1}]
)
def test_senseless_options_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        RCIG(**wrong)


@pytest.mark.campaign
def test_it_learns_on_digits(tmp_path):
    data = training_data(Digits(), Path(), holdout=True)
    plugin = Standardize()
    transform = Transform(plugin, plugin.fit(data, None))
    held = load_split(Digits(), Path(), "validation")
    network = ConvNN(width=8)
    method = RCIG(
        steps=40,
        network=network,
        batch=64,
        pool=2,
        pool_lr=1e-3,
        pool_steps=8,
        lr=0.03,
        inner_steps=8,
        hvp_steps=8,
        search=False,
        inner_lr=5e-3,
        hvp_lr=10.0,
    )
    inference = RCIGInference(steps=100, lr=5e-3, augmentation="none", loops="nominal")
    kept = {}
    ctx = context(tmp_path, keep_snapshot=lambda step, coreset, seconds: kept.setdefault(step, coreset))
    learned = method.distil(data, 1, Inputs(transform), ctx)

    def score(coreset: Coreset, name: str) -> tuple[float, float]:
        fitted = inference.fit(coreset, network, toy_inputs(), context(tmp_path / name))
        log_probs = fitted.predict(transform.apply(held.images)).log_probs
        return metrics.accuracy(log_probs, held.labels), metrics.nll(log_probs, held.labels)

    before, after = score(kept[0], "before"), score(learned, "after")
    assert after[0] > before[0] + 0.1
    assert after[1] < before[1]
