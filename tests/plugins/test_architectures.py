"""AlexNet, ResNet-18 and VGG-11: sizes, both forms, seeds, skips, and their use by every inference and method."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from bpcbench.api import Inference, Method
from bpcbench.records import Array, Coreset, Data, Facts, Inputs, PrerequisiteOutput, Ref
from bpcbench.registry.options import OptionError, build, ready
from bpcbench.testing import Scale, context, registered, registry, toy_coreset, toy_data, toy_inputs
from bpcbench_bpc.contrastive import Contrastive
from bpcbench_bpc.forward_kl import ForwardKL
from bpcbench_bpc.function_space import FunctionSpace
from bpcbench_bpc.method import TrajectoryMethod
from bpcbench_bpc.reverse_kl import ReverseKL
from bpcbench_bpc.trajectories import Trajectories
from bpcbench_bpc.wasserstein import Wasserstein
from bpcbench_distill.inference import RegressionInference
from bpcbench_distill.method import FRePo
from bpcbench_torch.alexnet import AlexNet
from bpcbench_torch.architectures import Architecture
from bpcbench_torch.flat import FlatNetwork
from bpcbench_torch.inferences import Ensemble, NetworkInference
from bpcbench_torch.resnet import ResNet18
from bpcbench_torch.samplers import HMCInference, SGHMCInference
from bpcbench_torch.torchvision_compat import import_torchvision
from bpcbench_torch.vgg import VGG11
from bpcbench_vbpc.inference import VariationalInference
from bpcbench_vbpc.method import VBPC

FAMILY: list[type[Architecture]] = [AlexNet, ResNet18, VGG11]
FORMS: list[Any] = ["faithful", "proper"]
NORMS: list[Any] = ["bn", "in", "gn", "none"]
SIZES = [(1, 28, 28), (3, 32, 32), (3, 64, 64), (3, 128, 128)]
FEATURES = {
    ("alexnet-nn", "faithful"): 192,
    ("alexnet-nn", "proper"): 256,
    ("resnet18-bn", "faithful"): 512,
    ("resnet18-bn", "proper"): 512,
    ("vgg11-gn", "faithful"): 128,
    ("vgg11-gn", "proper"): 512,
}
"""Filters of the last convolution."""
TINY: list[Architecture] = [cls(width=8, form=form) for cls in FAMILY for form in FORMS]
each_class = pytest.mark.parametrize("cls", FAMILY, ids=lambda cls: cls.name)
each_form = pytest.mark.parametrize("form", FORMS)
each_norm = pytest.mark.parametrize("norm", NORMS)
each_tiny = pytest.mark.parametrize("network", TINY, ids=lambda network: f"{network.name}-{network.form}")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def layers(model: nn.Module, kind: type[nn.Module]) -> list[Any]:
    return [layer for layer in model.modules() if isinstance(layer, kind)]


def count(model: nn.Module) -> int:
    return sum(value.numel() for value in model.parameters())


def copy_values(source: nn.Module, target: nn.Module) -> None:
    """Copy parameters and buffers in their order; names may differ, shapes may not."""
    values, places = list(source.state_dict().values()), list(target.state_dict().values())
    assert [value.shape for value in values] == [place.shape for place in places]
    with torch.no_grad():
        for value, place in zip(values, places, strict=True):
            place.copy_(value)


def disturb(model: nn.Module) -> None:
    """Give norms scales, shifts and running statistics that tests can tell from the initial ones."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for norm in [*layers(model, nn.BatchNorm2d), *layers(model, nn.GroupNorm)]:
            for name in ("weight", "bias", "running_mean", "running_var"):
                if hasattr(norm, name):
                    getattr(norm, name).uniform_(0.5, 1.5, generator=generator)


# Sizes


@pytest.mark.parametrize(
    ("network", "pixels", "features", "parameters"),
    [
        # Convolutions: (25*3+1)*128 + (25*128+1)*192 + (9*192+1)*256 + (9*256+1)*192 + (9*192+1)*192 = 1,841,472.
        (AlexNet(), 32, 192 * 4 * 4, 1_841_472 + 3073 * 10),
        (AlexNet(), 64, 192 * 8 * 8, 1_841_472 + 12_289 * 10),
        # Stem 27*64; stages 147,456, 524,288, 2,097,152, 8,388,608; one BatchNorm of 64 channels.
        (ResNet18(), 32, 512 * 4 * 4, 11_159_232 + 128 + 8193 * 10),
        (ResNet18(), 64, 512 * 8 * 8, 11_159_232 + 128 + 32_769 * 10),
        # (27+1)*128 + 7*(9*128+1)*128, and eight group norms of 128 channels.
        (VGG11(), 32, 128, 1_036_672 + 8 * 256 + 129 * 10),
        (VGG11(), 64, 128 * 2 * 2, 1_036_672 + 8 * 256 + 513 * 10),
    ],
)
def test_faithful_sizes_are_the_reference_codes(
    network: Architecture, pixels: int, features: int, parameters: int
) -> None:
    shape = (3, pixels, pixels)
    assert network.parameters(shape, 10) == parameters
    model = network.build(shape, 10, 0)
    assert count(model) == parameters
    assert model.features(torch.zeros(1, *shape)).shape == (1, features) == (1, model.feature_size)


@pytest.mark.parametrize("pixels", [32, 64])
def test_proper_parameter_counts_are_torchvisions(pixels: int) -> None:
    models = import_torchvision().models
    with torch.device("meta"):
        alexnet, resnet, vgg = models.alexnet(), models.resnet18(num_classes=10), models.vgg11_bn()
    shape = (3, pixels, pixels)
    assert AlexNet(form="proper").parameters(shape, 10) == count(alexnet.features) + 257 * 10
    # The stem is 3x3 instead of 7x7.
    assert ResNet18(form="proper").parameters(shape, 10) == count(resnet) - (49 - 9) * 3 * 64 == 11_173_962
    for norm in ("bn", "gn", "in"):
        network = VGG11(form="proper", norm=norm)  # type: ignore[arg-type]
        assert network.parameters(shape, 10) == count(vgg.features) + 513 * 10 == 9_231_114


@each_form
@each_class
@pytest.mark.parametrize("shape", SIZES, ids=str)
def test_features_and_head_at_every_resolution(cls: type[Architecture], form: Any, shape: tuple[int, int, int]) -> None:
    network = cls(width=4, form=form)
    assert network.skip(Facts(shape=shape, classes=5, sizes={})) is None
    model = network.build(shape, 5, 0).eval()
    images = drawn(2, *shape)
    features = model.features(images)
    assert features.shape == (2, model.feature_size)
    channels = FEATURES[cls.name, form] * 4 // cls(form=form).base_width()
    halvings = {"alexnet-nn": 3, "resnet18-bn": 3, "vgg11-gn": 5}[cls.name]
    side = max(shape[1], 32) >> halvings
    assert model.feature_size == (channels if form == "proper" else channels * side**2)
    assert torch.equal(model.head(features), model(images))
    assert count(model) == network.parameters(shape, 5)


@each_norm
@each_form
@each_class
def test_parameters_are_counted_without_building(cls: type[Architecture], form: Any, norm: Any) -> None:
    network = cls(width=4, form=form, norm=norm)
    for shape in ((1, 28, 28), (2, 33, 47)):
        assert network.parameters(shape, 4) == count(network.build(shape, 4, 0))


def test_width_scales_all_filters_and_is_at_least_one() -> None:
    filters = [conv.out_channels for conv in layers(AlexNet(width=6).build((1, 28, 28), 2, 0), nn.Conv2d)]
    assert filters == [6, 9, 12, 9, 9]
    filters = [conv.out_channels for conv in layers(VGG11(width=2, form="proper").build((1, 28, 28), 2, 0), nn.Conv2d)]
    assert filters == [2, 4, 8, 8, 16, 16, 16, 16]


# Functions


def reference_alexnet(convs: list[nn.Conv2d], x: Tensor) -> Tensor:
    for index, conv in enumerate(convs):
        x = F.relu(F.conv2d(x, conv.weight, conv.bias, padding=conv.weight.shape[2] // 2))
        if index in (0, 1, 4):
            x = F.avg_pool2d(x, 2, 2)
    return x.flatten(1)


def reference_vgg(convs: list[nn.Conv2d], norms: list[nn.GroupNorm], x: Tensor) -> Tensor:
    for index, (conv, norm) in enumerate(zip(convs, norms, strict=True)):
        x = F.conv2d(x, conv.weight, conv.bias, padding=1)
        groups = x.unflatten(1, (32, -1))
        mean, var = groups.mean((2, 3, 4), keepdim=True), groups.var((2, 3, 4), keepdim=True, correction=0)
        x = ((groups - mean) / (var + 1e-6).sqrt()).flatten(1, 2)
        x = F.relu(x * norm.weight[:, None, None] + norm.bias[:, None, None])
        if index in (0, 1, 3, 5, 7):
            x = F.avg_pool2d(x, 2, 2)
    return x.flatten(1)


def reference_resnet(convs: list[nn.Conv2d], norm: nn.BatchNorm2d, x: Tensor) -> Tensor:
    weights = iter([conv.weight for conv in convs])
    x = F.conv2d(x, next(weights), padding=1)
    scale = norm.weight / (norm.running_var + 1e-5).sqrt()  # type: ignore[operator]
    x = F.relu((x - norm.running_mean[:, None, None]) * scale[:, None, None] + norm.bias[:, None, None])  # type: ignore[index]
    for stage in range(4):
        for block in range(2):
            stride = 2 if stage and not block else 1
            y = F.relu(F.conv2d(x, next(weights), stride=stride, padding=1))
            y = F.conv2d(y, next(weights), padding=1)
            if stride == 2:
                x = F.conv2d(x, next(weights), stride=2)
            x = F.relu(x + y)
    return x.flatten(1)


def test_faithful_alexnet_is_the_reference() -> None:
    model = AlexNet(width=16, init="torch").build((3, 32, 32), 5, 1)
    x = drawn(4, 3, 32, 32)
    torch.testing.assert_close(model.features(x), reference_alexnet(layers(model, nn.Conv2d), x))


def test_faithful_vgg_is_the_reference() -> None:
    model = VGG11(width=64, init="torch").build((3, 64, 64), 5, 1)
    disturb(model)
    x = drawn(3, 3, 64, 64)
    expected = reference_vgg(layers(model, nn.Conv2d), layers(model, nn.GroupNorm), x)
    torch.testing.assert_close(model.features(x), expected, rtol=1e-4, atol=1e-5)


def test_faithful_resnet_is_the_reference_with_one_norm() -> None:
    model = ResNet18(width=8).build((1, 28, 28), 5, 1).eval()
    disturb(model)
    (norm,) = layers(model, nn.BatchNorm2d)
    x = drawn(3, 1, 28, 28)
    expected = reference_resnet(layers(model, nn.Conv2d), norm, x)
    torch.testing.assert_close(model.features(x), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("pixels", [28, 64])
def test_proper_resnet_is_torchvisions_with_the_stem_for_small_images(pixels: int) -> None:
    theirs = import_torchvision().models.ResNet(import_torchvision().models.resnet.BasicBlock, [2, 2, 2, 2], 7)
    theirs.conv1, theirs.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()
    model = ResNet18(form="proper").build((3, pixels, pixels), 7, 1)
    disturb(model)
    copy_values(model, theirs)
    x = drawn(2, 3, pixels, pixels)
    torch.testing.assert_close(model.eval()(x), theirs.eval()(x), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(model.train()(x), theirs.train()(x), rtol=1e-4, atol=1e-3)
    # A training step moves the running statistics by the same amount, too.
    torch.testing.assert_close(
        [norm.running_var for norm in layers(model, nn.BatchNorm2d)],
        [norm.running_var for norm in layers(theirs, nn.BatchNorm2d)],
        rtol=1e-4,
        atol=1e-4,
    )


@each_form
def test_resnet_has_no_strided_1x1_convolution(form: Any) -> None:
    # Their gradients corrupt memory with oneDNN 3.12, channels_last, several threads and fewer than 16 channels.
    convs = layers(ResNet18(width=4, form=form).build((1, 28, 28), 3, 0), nn.Conv2d)
    assert {(conv.kernel_size[0], conv.stride[0]) for conv in convs} == {(3, 1), (3, 2), (1, 1)}


@pytest.mark.parametrize("norm", ["bn", "none"])
def test_proper_vgg_has_torchvisions_convolutions(norm: Any) -> None:
    vgg = import_torchvision().models.vgg
    theirs = vgg.make_layers(vgg.cfgs["A"], batch_norm=norm == "bn")
    model = VGG11(form="proper", norm=norm).build((3, 64, 64), 5, 1).eval()
    disturb(model)
    copy_values(model.body, theirs)
    x = drawn(2, 3, 64, 64)
    torch.testing.assert_close(model.features(x), theirs.eval()(x).mean((2, 3)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("pixels", [63, 64, 128])
def test_proper_alexnet_is_torchvisions_from_63_pixels_on(pixels: int) -> None:
    with torch.device("meta"):
        theirs = import_torchvision().models.alexnet().features
    theirs = theirs.to_empty(device="cpu")
    model = AlexNet(form="proper").build((3, pixels, pixels), 5, 1)
    copy_values(model.body, theirs)
    x = drawn(2, 3, pixels, pixels)
    torch.testing.assert_close(model.features(x), theirs(x).mean((2, 3)), rtol=1e-4, atol=1e-4)


def test_proper_alexnet_of_small_images() -> None:
    model = AlexNet(form="proper", width=8).build((3, 32, 32), 5, 1)
    x = y = drawn(2, 3, 32, 32)
    for index, conv in enumerate(layers(model, nn.Conv2d)):
        stride, padding = ((4, 5), (1, 2), (1, 1), (1, 1), (1, 1))[index]
        y = F.relu(F.conv2d(y, conv.weight, conv.bias, stride, padding))
        y = F.max_pool2d(y, 2) if index in (0, 1, 4) else y
    assert y.shape[2:] == (1, 1)
    torch.testing.assert_close(model.features(x), y.flatten(1))


@each_form
@pytest.mark.parametrize("cls", [AlexNet, VGG11], ids=lambda cls: cls.name)
def test_28_pixels_are_padded_to_32(cls: type[Architecture], form: Any) -> None:
    small, large = (cls(width=8, form=form).build((1, side, side), 5, 3) for side in (28, 32))
    x = drawn(3, 1, 28, 28)
    torch.testing.assert_close(small(x), large(F.pad(x, (2, 2, 2, 2))))


@each_norm
@each_form
@each_class
def test_norms_are_where_the_form_has_them(cls: type[Architecture], form: Any, norm: Any) -> None:
    model = cls(width=64, norm=norm, form=form).build((3, 32, 32), 3, 0)
    kind = nn.BatchNorm2d if norm == "bn" else nn.GroupNorm
    norms = layers(model, kind)
    assert len(layers(model, nn.BatchNorm2d)) + len(layers(model, nn.GroupNorm)) == len(norms)
    everywhere = len(layers(model, nn.Conv2d))
    assert len(norms) == (0 if norm == "none" else 1 if (cls, form) == (ResNet18, "faithful") else everywhere)
    for layer in norms:
        if isinstance(layer, nn.BatchNorm2d):
            assert (layer.momentum, layer.eps) == (0.1, 1e-5)
        else:
            assert layer.eps == (1e-6 if form == "faithful" else 1e-5)
            assert layer.num_groups == (layer.num_channels if norm == "in" else min(32, layer.num_channels))


@each_norm
@each_form
@each_class
def test_layout_does_not_change_the_function(cls: type[Architecture], form: Any, norm: Any) -> None:
    model = cls(width=4, norm=norm, form=form).build((3, 32, 32), 4, 0)
    x = drawn(4, 3, 32, 32)
    outputs = model(x)
    assert torch.isfinite(outputs).all()
    assert outputs.std() > 0
    model.memory_format = torch.contiguous_format
    model.to(memory_format=torch.contiguous_format)
    torch.testing.assert_close(outputs, model(x), rtol=1e-3, atol=1e-4)


# Seeds


@pytest.mark.parametrize("init", ["lecun", "torch"])
@each_tiny
def test_a_seed_decides_everything_and_the_global_generator_is_untouched(network: Architecture, init: Any) -> None:
    network = replace(network, init=init)

    def values(seed: int) -> list[Tensor]:
        return list(network.build((1, 28, 28), 3, seed).state_dict().values())

    before = torch.get_rng_state()
    first, again, other = values(3), values(3), values(4)
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    weights = [index for index, value in enumerate(first) if value.dim() > 1]
    assert len(weights) >= 6
    assert not any(torch.equal(first[index], other[index]) for index in weights)
    assert network.build((1, 28, 28), 3, 2**70).head.weight.device.type == "cpu"


@each_tiny
def test_lecun_initialisation(network: Architecture) -> None:
    model = network.build((3, 32, 32), 100, 1)
    for layer in [*layers(model, nn.Conv2d), model.head]:
        fan_in = layer.weight[0].numel()
        # The relative standard error of a variance estimate is at most sqrt(2/n).
        assert layer.weight.var().item() * fan_in == pytest.approx(1, abs=5 * (2 / layer.weight.numel()) ** 0.5)
        assert layer.weight.abs().max().item() <= 2 / fan_in**0.5 / 0.8796 * 1.0001
        assert layer.bias is None or not layer.bias.any()


def test_torch_initialisation_is_what_torch_draws() -> None:
    model = AlexNet(width=8, init="torch").build((3, 32, 32), 10, 5)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        theirs: list[Any] = [nn.Conv2d(3, 8, 5), nn.Conv2d(8, 12, 5), nn.Conv2d(12, 16, 3), nn.Conv2d(16, 12, 3)]
        theirs += [nn.Conv2d(12, 12, 3), nn.Linear(192, 10)]
    ours = [*layers(model, nn.Conv2d), model.head]
    for mine, their in zip(ours, theirs, strict=True):
        assert torch.equal(mine.weight, their.weight)
        assert torch.equal(mine.bias, their.bias)


# Skips and options


def skip(network: Architecture, pixels: int) -> str:
    return network.skip(Facts(shape=(3, pixels, pixels), classes=2, sizes={})) or ""


def test_skip_says_why() -> None:
    assert "8x8 images are too small for vgg11-gn" in skip(VGG11(), 8)
    assert "too small for vgg11-gn" in skip(VGG11(form="proper"), 27)
    assert "7x7 images are too small for alexnet-nn" in skip(AlexNet(), 7)
    assert skip(AlexNet(), 8) == ""
    assert "too small" in skip(AlexNet(form="proper"), 24)
    assert skip(ResNet18(), 8) == skip(ResNet18(form="proper"), 8) == ""
    for cls in FAMILY:
        assert "width of at least 1, got 0" in skip(cls(width=0), 32)
    assert "48 channels cannot be divided into the 32 groups of alexnet-nn" in skip(AlexNet(norm="gn", width=32), 32)
    assert skip(AlexNet(norm="in", width=32), 32) == ""
    # The blocks of the faithful form have no norm whose groups could fail.
    assert "groups" in skip(ResNet18(norm="gn", form="proper", width=24), 32)
    assert skip(ResNet18(norm="gn", width=24), 32) == ""
    assert "single values" in skip(ResNet18(norm="in", form="proper"), 8)
    assert "single values" in skip(ResNet18(norm="gn", form="proper", width=4), 8)
    assert skip(ResNet18(norm="gn", form="proper"), 8) == ""


@each_form
@each_class
def test_nothing_between_28_and_128_pixels_is_skipped(cls: type[Architecture], form: Any) -> None:
    for norm in NORMS:
        assert {skip(cls(form=form, norm=norm), pixels) for pixels in range(28, 129)} == {""}


def test_what_is_not_skipped_can_be_built() -> None:
    for cls in FAMILY:
        for form in FORMS:
            for pixels in range(1, 34):
                network = cls(form=form, width=1, norm="none")
                if not skip(network, pixels):
                    model = network.build((3, pixels, pixels), 2, 0)
                    assert model.features(torch.zeros(1, 3, pixels, pixels)).shape == (1, model.feature_size)


@each_class
def test_it_is_registered_and_its_options_have_help(cls: type[Architecture]) -> None:
    assert registered("network", cls.name) is cls
    fields = dataclasses.fields(cls)
    assert [field.name for field in fields] == ["width", "norm", "form", "init"]
    assert all(field.metadata["help"] for field in fields)
    assert {"-nn": "none"}.get(cls.name[-3:], cls.name[-2:]) == cls().norm


# Use by inferences and methods


@cache
def data() -> Data:
    return toy_data(per_class=8, shape=(1, 28, 28))


@cache
def coreset() -> Coreset:
    return toy_coreset(data(), per_class=3)


def unseen_images() -> Array:
    return Scale().apply(toy_data(per_class=4, shape=(1, 28, 28), seed=1).train.images, {})


INFERENCES: list[Inference] = [
    NetworkInference(steps=3),
    Ensemble(steps=2, members=2),
    VariationalInference(steps=3),
    RegressionInference(steps=3),
    SGHMCInference(chains=2, samples=2, burn=1, thin=1, lr=1e-4),
    SGHMCInference(chains=2, samples=2, burn=1, thin=1, lr=1e-4, batched=True),
    HMCInference(chains=2, samples=2, burn=1, thin=1, leapfrog=2, lr=1e-4),
]


@pytest.mark.parametrize("inference", INFERENCES, ids=lambda i: f"{i.name}{'-batched' * getattr(i, 'batched', False)}")
@each_tiny
def test_every_inference_predicts_row_by_row(network: Architecture, inference: Any, tmp_path: Path) -> None:
    inference = ready(registry(), inference)
    images = unseen_images()
    predictive = inference.fit(coreset(), network, toy_inputs(), context(tmp_path / "a"))
    whole = predictive.predict(images).log_probs
    assert whole.shape[-2:] == (len(images), 3)
    np.testing.assert_allclose(np.exp(whole.astype(np.float64)).sum(-1), 1.0, atol=1e-4)
    assert np.ptp(whole) > 0
    parts = [predictive.predict(part).log_probs for part in (images[:1], images[1:4], images[4:])]
    np.testing.assert_allclose(np.concatenate(parts, axis=-2), whole, atol=1e-5)
    arrays = predictive.arrays()
    if arrays is not None:
        restored = inference.restore(arrays, coreset(), network, toy_inputs(), context(tmp_path / "b"))
        np.testing.assert_array_equal(restored.predict(images).log_probs, whole)


POOL: list[Method] = [
    VBPC(steps=3, batch=8, pool=2, updates=2),
    VBPC(steps=2, batch=8, pool=2, updates=2, statistics="batch"),
    FRePo(steps=3, batch=8, pool=2, updates=2, evaluation_steps=2, temperature_share=0.1),
]


@pytest.mark.parametrize("method", POOL, ids=["vbpc", "vbpc-batch", "frepo"])
@each_tiny
def test_pool_methods_learn_through_it(network: Architecture, method: Any, tmp_path: Path) -> None:
    method = ready(registry(), replace(method, network=network))
    assert method.skip(data().facts, 1) is None
    learned = method.distil(data(), 1, toy_inputs(), context(tmp_path))
    start = replace(method, steps=1, lr=1e-12).distil(data(), 1, toy_inputs(), context(tmp_path / "start"))
    assert np.isfinite(learned.images).all()
    assert np.abs(learned.images - start.images).max() > 1e-5


def plan(network: Architecture) -> Trajectories:
    return Trajectories(network=network, epochs=2, lr=0.01, batch=12)


@cache
def experts(network: Architecture) -> PrerequisiteOutput:
    """Return one expert, as a store would hand it out."""
    with tempfile.TemporaryDirectory() as place:
        made = plan(network).make(data(), toy_inputs(), context(Path(place)), "000")
    assert all(len(values) == network.parameters((1, 28, 28), 3) for values in made.values())
    return PrerequisiteOutput(plan(network), "", {"000": made})


TRAJECTORY: list[type[TrajectoryMethod]] = [ReverseKL, ForwardKL, Wasserstein, Contrastive, FunctionSpace]
MORE: dict[type[TrajectoryMethod], dict[str, Any]] = {
    ReverseKL: {"draws": 3, "batch": 8, "chunk": 2},
    ForwardKL: {"draws": 3, "chunk": 2},
    FunctionSpace: {"points": 2, "draws": 2},
}


@pytest.mark.parametrize("method", TRAJECTORY, ids=lambda cls: cls.name)
@each_tiny
def test_trajectory_methods_learn_through_it(
    network: Architecture, method: type[TrajectoryMethod], tmp_path: Path
) -> None:
    made = method(
        steps=2, trajectories=plan(network), experts=1, max_start=1, inner_steps=2, lr=1.0, **MORE.get(method, {})
    )
    inputs = Inputs(toy_inputs().transform, {"experts": experts(network)})
    learned = ready(registry(), made).distil(data(), 1, inputs, context(tmp_path))
    start = ready(registry(), replace(made, lr=1e-12)).distil(data(), 1, inputs, context(tmp_path / "start"))
    assert np.isfinite(learned.images).all()
    assert np.abs(learned.images - start.images).max() > 0


@pytest.mark.campaign
@each_class
def test_building_imports_only_what_is_preloaded(cls: type[Architecture]) -> None:
    code = (
        "import importlib, sys\n"
        f"from {cls.__module__} import {cls.__name__} as Plugin\n"
        "assert 'torch' not in sys.modules and 'torchvision' not in sys.modules\n"
        "for name in Plugin.preload: importlib.import_module(name)\n"
        "before = set(sys.modules)\n"
        "Plugin(width=4).build((1, 28, 28), 3, 0)\n"
        "print(*(name for name in sorted(set(sys.modules) - before) if not name.startswith('bpcbench_torch')))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


@each_norm
@each_form
@each_class
def test_it_is_a_function_of_flat_parameters(cls: type[Architecture], form: Any, norm: Any) -> None:
    model = cls(width=4, form=form, norm=norm).build((1, 28, 28), 3, 0)
    flat, images = FlatNetwork(model), drawn(6, 1, 28, 28)
    torch.testing.assert_close(flat(flat.initial(), images), model.train()(images), rtol=1e-4, atol=1e-5)
    thetas = torch.stack([flat.initial(), 1.1 * flat.initial()])
    together = torch.func.vmap(lambda theta: flat(theta, images))(thetas)
    torch.testing.assert_close(together, torch.stack([flat(theta, images) for theta in thetas]), rtol=1e-3, atol=1e-4)


def test_statistics_for_predictions_are_those_of_the_coreset(tmp_path: Path) -> None:
    network = ResNet18(width=8, form="proper")
    predictive: Any = NetworkInference(steps=3).fit(coreset(), network, toy_inputs(), context(tmp_path))
    (model,) = predictive.models
    stem, norm = model.body[0], model.body[1]
    values = stem(torch.tensor(coreset().images)).transpose(0, 1).flatten(1)
    torch.testing.assert_close(norm.running_mean, values.mean(1), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(norm.running_var, values.var(1), rtol=1e-4, atol=1e-5)
    predictive.log_probs(100 * unseen_images())
    torch.testing.assert_close(norm.running_mean, values.mean(1), rtol=1e-4, atol=1e-5)


def test_wrong_options_are_refused_by_name() -> None:
    for name, value in (("width", 0.5), ("norm", "bm"), ("form", "propper")):
        with pytest.raises(OptionError, match=name):
            build(registry(), "network", Ref("resnet18-bn", {name: value}))
