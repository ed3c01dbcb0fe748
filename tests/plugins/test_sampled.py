"""The inferences `sghmc` and `hmc`: exact posteriors through the whole fit, energies, statistics, samples, options."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from scipy.special import log_softmax
from torch import Tensor, nn

from bpcbench.api import Network
from bpcbench.errors import NotFinite
from bpcbench.planning.spec import Spec
from bpcbench.records import Convention, Coreset, Facts, Offer
from bpcbench.testing import InferenceConformance, context, toy_coreset, toy_inputs
from bpcbench_torch import diagnostics
from bpcbench_torch.flat import FlatNetwork
from bpcbench_torch.inferences import Ensemble
from bpcbench_torch.networks import ConvBN, ConvIN, ConvNN
from bpcbench_torch.peak import peak_allocation
from bpcbench_torch.potential import CoresetPotential, Prior
from bpcbench_torch.resnet import ResNet18
from bpcbench_torch.samplers import HMCInference, Sampler, SGHMCInference


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Noting:
    """A context without a harness that remembers what was logged."""

    device, precision = "cpu", "float32"

    def __init__(self, seed: int = 0, scratch: Path = Path("nowhere")) -> None:
        self.seed, self.scratch = seed, scratch
        self.curves: dict[str, list[float]] = {}

    def steps(self, total: int, *, state: Any = None, snapshot: Any = None, what: str = "") -> Iterator[int]:
        yield from range(total)

    def log(self, **metrics: Any) -> None:
        for name, value in metrics.items():
            self.curves.setdefault(name, []).append(float(value))


@dataclass(frozen=True)
class Linear(Network):
    """A linear map of the pixels, with a bias."""

    name: ClassVar[str] = "linear"

    def build(self, shape: tuple[int, int, int], classes: int, seed: int) -> nn.Module:
        torch.manual_seed(seed % 2**31)
        return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), classes))


SHORT: list[Sampler] = [
    SGHMCInference(chains=2, samples=3, burn=4, thin=2),
    HMCInference(chains=2, samples=3, burn=4, thin=1, leapfrog=3),
]
each_sampler = pytest.mark.parametrize("inference", SHORT, ids=lambda inference: inference.name)


class _Conformance(InferenceConformance):
    network = ConvBN(width=4)
    interruptions = (1, 5, 7)


class TestSGHMC(_Conformance):
    plugin = SHORT[0]


class TestSGHMCOnDiskWithDrawnRows(_Conformance):
    plugin = replace(SHORT[0], samples_in="disk", batch_size=6, augmentation="dsa", batched=True)  # type: ignore[call-arg]
    interruptions = (7,)


class TestHMC(_Conformance):
    plugin = SHORT[1]


REGRESSIONS: list[tuple[Sampler, float]] = [
    (SGHMCInference(chains=10, samples=120, burn=80, thin=6, lr=0.05, friction=0.3, batched=True), 1.0),
    (HMCInference(chains=10, samples=120, burn=50, leapfrog=4, batched=True), 0.01),
]


@pytest.mark.parametrize(("inference", "temperature"), REGRESSIONS, ids=["sghmc", "hmc"])
def test_linear_regression_has_its_exact_posterior(inference: Sampler, temperature: float) -> None:
    rng = np.random.default_rng(0)
    images = rng.normal(size=(30, 1, 2, 2)).astype(np.float32)
    targets = (images.reshape(30, 4) @ rng.normal(size=(4, 2)) + 0.3 * rng.normal(size=(30, 2))).astype(np.float32)
    small = Coreset(images=images, targets=targets, class_ids=np.zeros(30, np.int64), classes=2, convention="centred")
    inference = replace(inference, temperature=temperature, prior="gaussian", weight_decay=4.0)
    fitted = inference.fit(small, Linear(), toy_inputs(), Noting())
    draws = (fitted.arrays() or {})["theta"].reshape(inference.chains, inference.samples, 10).astype(np.float64)
    inputs = np.hstack([images.reshape(30, 4), np.ones((30, 1))]).astype(np.float64)
    precision = (inputs.T @ inputs + 4 * np.eye(5)) / temperature
    mean = np.linalg.solve(precision, inputs.T @ targets / temperature)
    weights = draws[..., :8].reshape(*draws.shape[:2], 2, 4)  # torch keeps (outputs, inputs), then the biases
    off = np.concatenate([weights, draws[..., 8:, None]], -1) - mean.T
    z = off @ np.linalg.cholesky(precision)  # standard normal, both outputs alike
    z = z.reshape(*draws.shape[:2], 10)
    rows, columns = np.triu_indices(10)
    products, expected = z[..., rows] * z[..., columns], np.eye(10)[rows, columns]
    assert diagnostics.rhat(z).max() < 1.05
    bias = 0.0 if inference.name == "hmc" else 0.05  # what SGHMC's step costs: c eps^2 / 4 at the largest curvature
    for found, truth, more in ((z, np.zeros(10), 0.0), (products, expected, bias)):
        error = found.std((0, 1)) / np.sqrt(diagnostics.ess(found))
        assert (np.abs(found.mean((0, 1)) - truth) < 4.5 * error + more).all()


CONVENTIONS: list[Convention] = ["class", "probabilities", "centred"]


def labelled(convention: Convention, rows: int = 6) -> Coreset:
    rng = np.random.default_rng(1)
    images = rng.normal(size=(rows, 1, 8, 8)).astype(np.float32)
    labels = np.arange(rows) % 3
    soft = rng.dirichlet(np.ones(3), rows).astype(np.float32)
    targets = {"class": labels, "probabilities": soft, "centred": 5 * soft - 2}[convention]
    return Coreset(images=images, targets=targets, class_ids=labels, classes=3, convention=convention)


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize("kind", ["l2", "norm", "gaussian"])
def test_the_energy_is_its_formula_and_the_gradient_belongs_to_it(convention: Convention, kind: Any) -> None:
    small = labelled(convention)
    flat = FlatNetwork(ConvNN(width=4).build((1, 8, 8), 3, 0).double())
    images = torch.tensor(small.images).double()
    targets = torch.tensor(small.targets)
    potential = CoresetPotential(
        flat, images, targets if convention == "class" else targets.double(), convention, Prior(kind, 0.7)
    )
    theta = torch.stack([flat.initial(), 0.5 * flat.initial()])
    energies, gradients = potential(theta)
    for one, energy in zip(theta, energies, strict=True):
        outputs = flat(one, images).numpy()
        logs = log_softmax(outputs, 1)
        losses = {
            "class": -logs[np.arange(6), small.targets.astype(int)] if convention == "class" else np.zeros(6),
            "probabilities": -(small.targets * logs).sum(1) if convention == "probabilities" else np.zeros(6),
            "centred": 0.5 * ((outputs - small.targets) ** 2).sum(1) if convention == "centred" else np.zeros(6),
        }[convention]
        square = float((one**2).sum())
        prior = {"l2": 6 * 0.35 * square, "norm": 6 * 0.7 * square**0.5, "gaussian": 0.35 * square}[kind]
        assert float(energy) == pytest.approx(losses.sum() + prior, rel=1e-6)
        loss = potential.loss(one[None], energy[None])
        assert float(loss) == pytest.approx(losses.mean(), rel=1e-5)
    direction = torch.randn(theta.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ahead, behind = potential(theta + 1e-5 * direction)[0], potential(theta - 1e-5 * direction)[0]
    torch.testing.assert_close((ahead - behind) / 2e-5, (gradients * direction).sum(1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("network", [ConvBN(width=4), ConvIN(width=4)], ids=lambda network: network.name)
@pytest.mark.parametrize("drawn", [False, True])
def test_chains_sent_together_are_chains_sent_alone(network: Any, drawn: bool) -> None:
    small = labelled("class", 12)
    flats = [FlatNetwork(network.build((1, 8, 8), 3, seed)) for seed in range(3)]
    images, targets = torch.tensor(small.images), torch.tensor(small.targets)
    choose = [lambda rows=rows: (images[rows:][:6], targets[rows:][:6]) for rows in range(3)] if drawn else None
    theta = torch.stack([flat.initial() for flat in flats])
    alone, together = (
        CoresetPotential(flats[0], images, targets, "class", Prior("l2", 0.1), choose=choose, batched=batched)(theta)
        for batched in (False, True)
    )
    torch.testing.assert_close(alone, together, rtol=1e-4, atol=1e-4)


def potential(network: Network, rows: int, **more: Any) -> tuple[CoresetPotential, Tensor]:
    """The energy of a coreset of colour images with weights, and two chains."""
    generator = torch.Generator().manual_seed(0)
    flat = FlatNetwork(network.build((3, 16, 16), 3, 0))
    images = torch.randn(rows, 3, 16, 16, generator=generator)
    weights = torch.rand(rows, generator=generator)
    prior = Prior.of("norm", None, flat.size)
    labels = torch.arange(rows) % 3
    energy = CoresetPotential(flat, images, labels, "class", prior, weights=weights / weights.mean(), **more)
    return energy, torch.stack([flat.initial(), 0.5 * flat.initial()])


@pytest.mark.parametrize("network", [ConvIN(width=4), ConvNN(width=4)], ids=lambda one: one.name)
def test_the_energy_of_parts_is_that_of_all_rows(network: Network) -> None:
    """Ten rows, four at a time: the last part is smaller."""
    whole, theta = potential(network, 10)
    parts, _ = potential(network, 10, chunk=4)
    for found, expected in zip(parts(theta), whole(theta), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_what_a_step_in_parts_allocates_stays_within_a_bound() -> None:
    """Eight images of 16 pixels a side at a time, width 16: below 700 kB, however many rows there are."""

    def peak(rows: int, chunk: int | None = None) -> int:
        energy, theta = potential(ConvIN(width=16, order="conv-first"), rows, chunk=chunk)
        return peak_allocation(lambda: energy(theta[:1]), "cpu")

    assert peak(48, 8) < 700_000
    assert peak(192, 8) < 700_000
    assert peak(48) > 3_000_000


def test_parts_are_an_option_that_old_results_do_not_have() -> None:
    assert "chunk" not in Spec.of(SGHMCInference()).options
    assert Spec.of(SGHMCInference(chunk=8)).options["chunk"] == 8
    facts = Facts(shape=(3, 16, 16), classes=3, sizes={"train": 90})
    for network in (ConvBN(), ResNet18()):
        offer = Offer(facts, 50, "random", "class", network)
        assert "without BatchNorm" in (SGHMCInference(chunk=8).accepts(offer) or "")
    offer = Offer(facts, 50, "random", "class", ResNet18(norm="in"))
    assert SGHMCInference(chunk=8).accepts(offer) is None
    with pytest.raises(ValueError, match="without BatchNorm"):
        potential(ConvBN(width=2), 10, chunk=4)
    for wrong in ({"chunk": 0}, {"chunk": 8, "batched": True}):
        with pytest.raises(ValueError, match="chunk"):
            SGHMCInference(**wrong)


def test_parts_bound_the_predicted_memory() -> None:
    """ImageNet at 64 px, two images per class: 2,000 rows."""
    facts = Facts(shape=(3, 64, 64), classes=1000, sizes={"train": 1_281_167})
    offer = Offer(facts, 2, "random", "class", ConvIN(growth=1, order="conv-first"))
    whole, parts = (SGHMCInference(batch_size=10_000, chunk=chunk).peak_bytes(offer) or 0 for chunk in (None, 100))
    assert parts < 4e9 < 12e9 < whole


def test_a_prior_that_does_not_know_the_size_of_the_network_leaves_small_ones_alive() -> None:
    # BPC-D's weight for BPC-D's network, and the one that the rule gives for a network of width 32.
    assert Prior.of("norm", None, 320010).weight == pytest.approx(1.5)
    assert Prior.of("norm", None, 24138).weight == pytest.approx(0.412, abs=1e-3)
    assert Prior.of("l2", None, 24138) == Prior.of("l2", None, 99) == Prior("l2", pytest.approx(0.0265, abs=1e-4))
    chains = SGHMCInference(chains=1, samples=1, burn=120, thin=1, prior="norm", start="normal")
    losses, norms = {}, {}
    for weight in (1.5, None):
        ctx = Noting()
        replace(chains, weight_decay=weight).fit(toy_coreset(), ConvIN(width=8), toy_inputs(), ctx)
        losses[weight], norms[weight] = ctx.curves["loss"][-1], ctx.curves["norm"]
    assert losses[1.5] == pytest.approx(np.log(3), abs=0.02)
    assert norms[1.5][-1] < 0.3 * norms[1.5][0]
    assert losses[None] < 0.3
    assert norms[None][-1] > 0.5 * norms[None][0]


@each_sampler
@pytest.mark.parametrize("convention", CONVENTIONS)
def test_every_convention_is_sampled_and_averaged(inference: Sampler, convention: Convention) -> None:
    small = labelled(convention, 9)
    log_probs = inference.fit(small, ConvBN(width=4), toy_inputs(), Noting()).log_probs(small.images)
    assert log_probs.shape == (6, 9, 3)
    np.testing.assert_allclose(np.exp(log_probs).sum(-1), 1, atol=1e-5)
    assert len({member.tobytes() for member in log_probs}) > (5 if inference.name == "sghmc" else 1)


@each_sampler
def test_batchnorm_statistics_are_each_samples_own_of_the_coreset(inference: Sampler) -> None:
    small = toy_coreset()
    arrays = inference.fit(small, ConvBN(width=4), toy_inputs(), Noting()).arrays() or {}
    model = ConvBN(width=4).build((1, 8, 8), 3, 0)
    names = [name for name, _ in model.named_parameters()]
    assert len(arrays["theta"]) == 6
    for index, theta in enumerate(arrays["theta"]):
        parts = torch.tensor(theta).split([value.numel() for value in model.parameters()])
        first = dict(zip(names, parts, strict=True))
        conv = model.convs[0]
        hidden = nn.functional.conv2d(
            torch.tensor(small.images), first["convs.0.weight"].view_as(conv.weight), first["convs.0.bias"], padding=1
        )
        pooled = nn.functional.avg_pool2d(hidden.relu(), 2)
        np.testing.assert_allclose(
            arrays["statistics.norms.1.running_mean"][index], pooled.mean((0, 2, 3)), rtol=1e-4, atol=1e-5
        )
        np.testing.assert_allclose(
            arrays["statistics.norms.1.running_var"][index], pooled.var((0, 2, 3)), rtol=1e-4, atol=1e-5
        )


@each_sampler
def test_samples_on_disk_are_those_in_memory_and_need_not_be_kept(inference: Sampler, tmp_path: Path) -> None:
    small = toy_coreset()
    memory = inference.fit(small, ConvNN(width=4), toy_inputs(), Noting())
    disk = replace(inference, samples_in="disk", keep=False).fit(
        small, ConvNN(width=4), toy_inputs(), Noting(scratch=tmp_path)
    )
    assert len(list(tmp_path.glob("*.npy"))) == inference.samples
    np.testing.assert_array_equal(memory.log_probs(small.images), disk.log_probs(small.images))
    assert disk.arrays() is None


def test_samples_on_disk_that_are_gone_are_noticed(tmp_path: Path) -> None:
    from bpcbench_torch.chains import Samples

    first = Samples(tmp_path)
    first.keep(torch.arange(6.0).view(2, 3))
    again = Samples(tmp_path)
    again.load_state_dict(first.state_dict())
    assert again.read(1, 0).tolist() == [3, 4, 5]
    (file,) = tmp_path.glob("*.npy")
    file.unlink()
    with pytest.raises(ValueError, match="are missing"):
        Samples(tmp_path).load_state_dict(first.state_dict())


@each_sampler
def test_chains_start_where_an_ensemble_does_and_have_their_own_noise(inference: Sampler) -> None:
    assert inference.seeds(5) == Ensemble(members=2).seeds(5)
    longer = replace(inference, chains=3).fit(toy_coreset(), ConvNN(width=4), toy_inputs(), Noting()).arrays() or {}
    shorter = inference.fit(toy_coreset(), ConvNN(width=4), toy_inputs(), Noting()).arrays() or {}
    np.testing.assert_array_equal(longer["theta"][:6], shorter["theta"])


@each_sampler
def test_the_curves_tell_how_the_chains_are_doing(inference: Sampler) -> None:
    ctx = Noting()
    inference = replace(inference, samples=6)
    inference.fit(toy_coreset(), ConvBN(width=4), toy_inputs(), ctx)
    steps = inference.burn + inference.samples * inference.thin
    for name in ("energy", "loss", "worst_loss", "norm"):
        assert len(ctx.curves[name]) == steps
    assert all(worst >= mean for worst, mean in zip(ctx.curves["worst_loss"], ctx.curves["loss"], strict=True))
    for name in ("rhat", "rhat_median", "ess", "ess_median"):
        assert len(ctx.curves[name]) == 1
    assert ctx.curves["rhat"] >= ctx.curves["rhat_median"] >= [0.9]
    assert [0] < ctx.curves["ess"] <= ctx.curves["ess_median"]
    few = Noting()
    replace(inference, samples=3).fit(toy_coreset(), ConvBN(width=4), toy_inputs(), few)
    assert "rhat" not in few.curves


def test_a_large_coreset_is_sampled_in_batches(tmp_path: Path) -> None:
    whole = toy_coreset(per_class=30)
    drawn = SGHMCInference(chains=2, samples=4, burn=60, thin=5, batch_size=30)
    log_probs = drawn.fit(whole, ConvBN(width=8), toy_inputs(), context(tmp_path)).log_probs(whole.images)
    assert (log_probs.mean(0).argmax(1) == whole.targets).mean() > 0.9


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SGHMCInference(chains=0), "chains must be at least 1, got 0"),
        (lambda: HMCInference(samples=0), "samples must be at least 1"),
        (lambda: SGHMCInference(burn=-1), "burn must be at least 0"),
        (lambda: SGHMCInference(temperature=0.0), "temperature must be above 0"),
        (lambda: SGHMCInference(weight_decay=-1.0), "weight_decay must not be negative"),
        (lambda: SGHMCInference(friction=1.5), "friction must be above 0 and at most 1"),
        (lambda: SGHMCInference(lr=0.0), "lr and batch_size must be positive"),
        (lambda: SGHMCInference(augmentation="flop"), "flop"),
        (lambda: HMCInference(acceptance=1.0), "acceptance must be at least 0 and below 1"),
        (lambda: HMCInference(leapfrog=0), "leapfrog and lr must be positive"),
    ],
)
def test_options_that_make_no_sense_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@each_sampler
def test_other_frameworks_and_precisions_are_refused(inference: Sampler) -> None:
    @dataclass(frozen=True)
    class Foreign(Linear):
        framework: ClassVar[str] = "jax"

    facts = Facts(shape=(1, 8, 8), classes=10, sizes={})
    assert "is a jax network" in (inference.accepts(Offer(facts, 1, "random", "class", Foreign())) or "")
    ctx = Noting()
    ctx.precision = "bf16"
    with pytest.raises(ValueError, match="float32, not in 'bf16'"):
        inference.fit(toy_coreset(), ConvNN(width=4), toy_inputs(), ctx)


def test_chains_that_stand_still_at_places_of_their_own_are_told_and_do_not_end_the_stage() -> None:
    ctx = Noting()
    stuck = HMCInference(chains=2, samples=4, burn=0, leapfrog=2, lr=1e6, acceptance=0.0)
    stuck.fit(toy_coreset(), ConvNN(width=4), toy_inputs(), ctx)
    assert ctx.curves["acceptance"] == [0.0] * 4
    assert 1e3 < ctx.curves["rhat"][0] < np.inf


def test_chains_that_diverge_say_what_helps(tmp_path: Path) -> None:
    coreset, wild = toy_coreset(), SGHMCInference(lr=1e6, chains=1, samples=4, burn=100, thin=1)
    with pytest.raises(NotFinite, match=r"energy is (inf|nan) at step \d+ of 1 chains: .*smaller `lr`"):
        wild.fit(coreset, ConvNN(width=4), toy_inputs(), context(tmp_path))


@each_sampler
def test_standardised_targets_are_sampled_alike_whatever_their_size(inference: Sampler) -> None:
    small, factor = labelled("centred", 9), 64.0  # a power of two: divisions are exact
    large = replace(small, targets=small.targets * np.float32(factor))
    plain, inference = inference, replace(inference, standardise=True)
    fitted, other = (inference.fit(coreset, ConvBN(width=4), toy_inputs(), Noting()) for coreset in (small, large))
    assert np.array_equal((fitted.arrays() or {})["theta"], (other.arrays() or {})["theta"])
    assert other.scale == factor * fitted.scale
    assert fitted.scale == pytest.approx(np.sqrt(np.mean(small.targets**2)))
    expected = log_softmax(factor * fitted.log_probs(small.images), -1)
    np.testing.assert_allclose(other.log_probs(small.images), expected, rtol=1e-4, atol=1e-4)
    again = inference.restore(other.arrays() or {}, large, ConvBN(width=4), toy_inputs(), Noting())
    assert np.array_equal(again.log_probs(small.images), other.log_probs(small.images))
    assert (plain.scale(large), inference.scale(toy_coreset())) == (1.0, 1.0)


@each_sampler
def test_grey_images_channels_last_are_an_option_of_the_key(inference: Sampler) -> None:
    """The chains, the statistics and the predictions are those of the other layout, but for rounding."""
    assert "channels_last" not in Spec.of(inference).options
    inference = replace(inference, burn=1, samples=2, thin=1)
    other = replace(inference, channels_last=True)
    assert Spec.of(other).options["channels_last"] is True
    coreset = toy_coreset()
    plain, laid = (one.fit(coreset, ConvBN(width=4), toy_inputs(), Noting()) for one in (inference, other))
    assert (plain.network.channels_last, laid.network.channels_last) == (False, True)
    np.testing.assert_allclose(laid.arrays()["theta"], plain.arrays()["theta"], rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(laid.log_probs(coreset.images), plain.log_probs(coreset.images), rtol=1e-2, atol=1e-2)
    again = other.restore(laid.arrays(), coreset, ConvBN(width=4), toy_inputs(), Noting())
    assert np.array_equal(again.log_probs(coreset.images), laid.log_probs(coreset.images))
