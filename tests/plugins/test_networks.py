"""The ConvNet family: initialisation, sizes, normalisations, seeds, devices."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bpcbench.records import Facts
from bpcbench.running.numerics import settle
from bpcbench_torch import convnet
from bpcbench_torch.networks import ConvBN, ConvGN, ConvIN, ConvNetwork, ConvNN

FAMILY = [ConvBN, ConvIN, ConvGN, ConvNN]
ORDERS = ["norm-first", "conv-first"]


def weights(model: nn.Module) -> list[Tensor]:
    return [p.detach() for name, p in model.named_parameters() if name.startswith(("convs", "head"))]


def test_lecun_initialisation_has_variance_one_over_fan_in_and_zero_biases() -> None:
    model = ConvNN(width=64).build((3, 32, 32), 100, seed=1)
    for weight, bias in zip(weights(model)[::2], weights(model)[1::2], strict=True):
        fan_in = weight[0].numel()
        # The relative standard error of a variance estimate is at most sqrt(2/n).
        tolerance = 4 * math.sqrt(2 / weight.numel())
        assert weight.var().item() * fan_in == pytest.approx(1, abs=tolerance)
        assert weight.abs().max().item() <= 2 / math.sqrt(fan_in) / 0.8796 * 1.0001  # cut at two raw sigmas
        assert weight.mean().abs().item() < 4 / math.sqrt(fan_in * weight.numel())
        assert not bias.any()


def test_gaussian_initialisation_has_the_prior_of_the_kernels() -> None:
    model = ConvNN(width=64, init="gaussian").build((3, 32, 32), 100, seed=1)
    for weight, bias in zip(weights(model)[::2], weights(model)[1::2], strict=True):
        tolerance = 4 * math.sqrt(2 / weight.numel())
        assert weight.var().item() * weight[0].numel() / 2 == pytest.approx(1, abs=tolerance)
        assert bias.std().item() == pytest.approx(0.1, rel=4 * math.sqrt(1 / (2 * bias.numel())))


def test_torch_initialisation_is_what_torch_draws() -> None:
    ours = weights(ConvNN(width=8, init="torch").build((3, 32, 32), 10, seed=5))
    with torch.random.fork_rng():
        torch.manual_seed(5)
        layers: list[Any] = [nn.Conv2d(3, 8, 3), nn.Conv2d(8, 16, 3), nn.Conv2d(16, 32, 3), nn.Linear(512, 10)]
        theirs = [p.detach() for layer in layers for p in (layer.weight, layer.bias)]
    for mine, their in zip(ours, theirs, strict=True):
        assert torch.equal(mine, their)


@pytest.mark.parametrize("network", FAMILY)
@pytest.mark.parametrize(("shape", "depth"), [((1, 28, 28), 3), ((3, 32, 32), 3), ((3, 64, 64), 4), ((3, 128, 128), 5)])
def test_feature_size_is_16_width_2_to_the_depth_minus_1(
    network: type[ConvNetwork], shape: tuple[int, int, int], depth: int
) -> None:
    model = network(width=4).build(shape, 10, seed=0)
    assert len(model.convs) == depth
    features = model.features(torch.zeros(2, *shape))
    assert features.shape == (2, 16 * 4 * 2 ** (depth - 1)) == (2, model.feature_size)
    assert torch.equal(model.head(features), model(torch.zeros(2, *shape)))


def test_digits_have_two_blocks_and_growth_one_keeps_the_width() -> None:
    assert ConvBN(width=8).build((1, 8, 8), 10, 0).feature_size == 2 * 2 * 16
    assert ConvBN(width=8, growth=1).build((3, 32, 32), 10, 0).feature_size == 4 * 4 * 8
    assert ConvBN(width=8, depth=1).build((1, 8, 8), 10, 0).feature_size == 4 * 4 * 8


def test_parameter_count_is_the_reference_codes() -> None:
    model = ConvNN().build((1, 28, 28), 10, 0)
    convs = sum(p.numel() for p in model.convs.parameters())
    assert convs == (9 * 1 + 1) * 128 + (9 * 128 + 1) * 256 + (9 * 256 + 1) * 512
    assert sum(p.numel() for p in model.head.parameters()) == 81_930


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("network", FAMILY)
def test_blocks_are_in_the_order_of_the_reference_codes(network: type[ConvNetwork], order: Any) -> None:
    model = network(width=4, order=order).build((3, 32, 32), 5, seed=2)
    x = torch.randn(6, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    y = x
    for block in range(3):
        conv = model.convs[block]
        norm = model.norms[block] if block or order == "conv-first" else nn.Identity()
        y = conv(norm(y)) if order == "norm-first" else norm(conv(y))
        y = nn.AvgPool2d(2, 2)(nn.ReLU()(y))
    assert torch.allclose(model.features(x), y.flatten(1), atol=1e-6)
    norms = sum(isinstance(norm, nn.BatchNorm2d | nn.GroupNorm) for norm in model.norms)
    assert norms == (0 if network is ConvNN else 2 if order == "norm-first" else 3)


def test_28_pixel_images_are_padded_by_two_in_the_first_convolution() -> None:
    model: Any = ConvNN(width=4).build((1, 28, 28), 10, 0)
    x = torch.randn(3, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    first = nn.functional.conv2d(nn.functional.pad(x, (2, 2, 2, 2)), model.convs[0].weight, padding=1)
    assert first.shape[2:] == (32, 32)
    assert torch.allclose(model.convs[0](x), first, atol=1e-6)


def test_group_norm_of_group_size_one_is_instance_norm() -> None:
    norm = ConvIN(width=8).build((3, 32, 32), 10, 0).norms[1]
    x = torch.randn(5, 8, 6, 6, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(norm(x), nn.InstanceNorm2d(8, eps=1e-6, affine=True)(x), atol=1e-6)


def test_norms_have_the_reference_codes_constants() -> None:
    batch = ConvBN(width=8).build((3, 32, 32), 10, 0).norms[2]
    assert isinstance(batch, nn.BatchNorm2d)
    assert (batch.momentum, batch.eps, batch.num_features) == (0.9, 1e-5, 16)
    groups = [norm.num_groups for norm in ConvGN(width=16).build((3, 64, 64), 10, 0).norms[1:]]
    assert groups == [16, 32, 32]


@pytest.mark.parametrize("init", ["lecun", "torch"])
def test_a_seed_decides_everything_and_the_global_generator_is_untouched(init: Any) -> None:
    network = ConvBN(width=4, init=init)
    before = torch.get_rng_state()
    first, again, other = (weights(network.build((1, 8, 8), 10, seed)) for seed in (3, 3, 4))
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(123)
    later = weights(network.build((1, 8, 8), 10, 3))
    assert all(torch.equal(a, b) and torch.equal(a, c) for a, b, c in zip(first, again, later, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(first[::2], other[::2], strict=True))
    network.build((1, 8, 8), 10, 2**70)  # any non-negative integer is a seed


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("network", FAMILY)
def test_layout_does_not_change_the_function(network: type[ConvNetwork], order: Any) -> None:
    model: Any = network(width=4, order=order).build((3, 32, 32), 10, 0)
    x = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    outputs = model(x)
    model.memory_format = torch.contiguous_format
    model.to(memory_format=torch.contiguous_format)
    assert torch.allclose(outputs, model(x), atol=1e-5)


def test_skip_says_why() -> None:
    def facts(pixels: int) -> Facts:
        return Facts(shape=(1, pixels, pixels), classes=2, sizes={})

    assert ConvBN().skip(facts(8)) is None
    assert ConvBN(depth=5).skip(facts(28)) is None
    assert "too small for the 4 poolings" in (ConvBN(depth=4).skip(facts(8)) or "")
    assert "too small" in (ConvBN().skip(facts(2)) or "")
    assert "at least 1" in (ConvBN(depth=0).skip(facts(8)) or "")
    assert "groups" in (ConvGN(width=48).skip(facts(32)) or "")
    assert "48 channels" in (ConvGN(width=24).skip(facts(32)) or "")
    assert ConvGN(width=24).skip(facts(8)) is None
    assert ConvGN(width=16).skip(facts(32)) is None


def test_options_are_declared_with_help() -> None:
    fields = dataclasses.fields(ConvGN)
    assert [field.name for field in fields] == ["width", "growth", "init", "order", "depth", "softplus"]
    assert all(field.metadata["help"] for field in fields)


@pytest.mark.parametrize("network", FAMILY)
def test_it_runs_where_its_parameters_are(network: type[ConvNetwork]) -> None:
    model = network(width=4).build((3, 32, 32), 10, 0).to("meta")
    outputs = model(torch.empty(2, 3, 32, 32, device="meta"))
    assert outputs.device.type == "meta"
    assert outputs.shape == (2, 10)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("network", FAMILY)
def test_cuda_agrees_with_cpu(network: type[ConvNetwork]) -> None:
    model = network(width=4).build((3, 32, 32), 10, 0).eval()
    x = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    expected = model(x)
    settle("float32", "cuda")  # as in a run: no TF32, whose three digits would not do
    outputs = model.to("cuda")(x.to("cuda"))
    assert outputs.device.type == "cuda"
    torch.testing.assert_close(outputs.cpu(), expected, rtol=1e-4, atol=1e-4)


def test_normalisations_have_their_epsilons() -> None:
    wanted = {ConvBN(width=8): 1e-5, ConvIN(width=8): 1e-6, ConvIN(width=8, eps=1e-5): 1e-5, ConvGN(width=8): 1e-6}
    for network, eps in wanted.items():
        norms = [layer for layer in network.build((1, 28, 28), 10, 0).norms if not isinstance(layer, nn.Identity)]
        assert norms
        assert {layer.eps for layer in norms} == {eps}


@pytest.mark.parametrize("options", [{}, {"growth": 1, "depth": 2}, {"order": "conv-first"}])
@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 64, 48)])
def test_operations_of_a_forward_pass_are_those_that_torch_counts(options, shape):
    from bpcbench_torch.operations import forward

    for network in (ConvBN(width=4, **options), ConvNN(width=3, **options)):
        assert network.operations(shape, 7) == forward(network, shape, 7)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("network", FAMILY)
def test_the_layout_is_that_of_the_device(
    network: type[ConvNetwork], order: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    grouped, rule = network.norm in ("in", "gn"), convnet.memory_format
    cpu = torch.contiguous_format if grouped and order == "conv-first" else torch.channels_last
    cuda = torch.contiguous_format if grouped else torch.channels_last
    assert (rule(network.norm, order), rule(network.norm, order, "cuda")) == (cpu, cuda)
    # The meta device, which is always there, takes the part of CUDA.
    monkeypatch.setattr(
        convnet,
        "memory_format",
        lambda kind, order, device="cpu": rule(kind, order, "cuda" if device == "meta" else device),
    )
    model = network(width=4, order=order).build((3, 8, 8), 3, 0)
    assert model.memory_format is cpu
    assert model.convs[1].weight.is_contiguous(memory_format=cpu)
    model.to("meta")
    assert model.memory_format is cuda
    assert model.convs[1].weight.is_contiguous(memory_format=cuda)
