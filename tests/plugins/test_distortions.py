"""The distortions behind augmentation: identities, ranges, and agreement with kornia and torchvision."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bpcbench_torch.distortions import (
    DSA,
    Draws,
    FRePo,
    affine,
    brighten,
    compose,
    contrast,
    erase,
    flip,
    rotation,
    saturate,
    warp,
)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def batch(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.rand(shape or (5, 3, 12, 10), generator=generator(99), dtype=dtype)


IDENTITIES: dict[str, Callable[[Tensor], Tensor]] = {
    "rotate": lambda x: warp(x, rotation(torch.zeros(len(x)))),
    "affine": lambda x: warp(x, affine(torch.ones(len(x), 2), torch.zeros(len(x), 2))),
    "zeros": lambda x: warp(x, rotation(torch.zeros(len(x))), "zeros"),
    "flip": lambda x: flip(x, torch.zeros(len(x), dtype=torch.bool)),
    "erase": lambda x: erase(x, torch.zeros(len(x)), torch.zeros(len(x)), 0),
    "brighten": lambda x: brighten(x, torch.zeros(len(x))),
    "contrast": lambda x: contrast(x, torch.ones(len(x))),
    "saturate": lambda x: saturate(x, torch.ones(len(x))),
}


@pytest.mark.parametrize("name", IDENTITIES)
@pytest.mark.parametrize("shape", [(5, 3, 12, 10), (2, 1, 28, 28), (1, 3, 2, 2)])
def test_identity_parameters_change_nothing(name: str, shape: tuple[int, ...]) -> None:
    torch.testing.assert_close(IDENTITIES[name](batch(*shape)), batch(*shape), atol=1e-5, rtol=0)


def test_whole_pixel_shifts_are_exact_and_the_edge_is_replicated_or_zero() -> None:
    images = batch(1, 1, 4, 5)
    matrices = affine(torch.ones(1, 2), torch.tensor([[2.0, -1.0]]))  # x from the right, y from above
    padded = torch.nn.functional.pad(images, (0, 2, 1, 0), mode="replicate")
    torch.testing.assert_close(warp(images, matrices), padded[:, :, :4, 2:], atol=1e-5, rtol=0)
    zeros = torch.nn.functional.pad(images, (0, 2, 1, 0))
    torch.testing.assert_close(warp(images, matrices, "zeros"), zeros[:, :, :4, 2:], atol=1e-5, rtol=0)


@settings(max_examples=25, deadline=None)
@given(st.floats(-15, 15), st.floats(0.8, 1.25), st.floats(-2, 2))
def test_composed_matrices_are_one_warp_after_the_other(angle: float, zoom: float, shift: float) -> None:
    # Of a linear ramp, on which interpolation is exact away from the edges.
    ramp = (torch.arange(32)[:, None] * 2.0 + torch.arange(32)).expand(1, 1, 32, 32).double()
    turn = rotation(torch.tensor([angle])).double()
    move = affine(torch.tensor([[1 / zoom] * 2]), torch.tensor([[shift, -shift]])).double()
    joined, chained = warp(ramp, compose(turn, move)), warp(warp(ramp, turn), move)
    torch.testing.assert_close(joined[..., 11:21, 11:21], chained[..., 11:21, 11:21], atol=1e-3, rtol=0)


@pytest.fixture(scope="module")
def kornia():
    return pytest.importorskip("kornia")


ANGLES = torch.tensor([-15.0, 0.0, 7.5, 33.0, 90.0])


def test_rotation_is_kornias(kornia) -> None:
    for images in (batch(), batch(5, 1, 8, 8)):
        theirs = kornia.geometry.transform.rotate(images, ANGLES, padding_mode="border", align_corners=True)
        torch.testing.assert_close(warp(images, rotation(ANGLES)), theirs, atol=1e-4, rtol=0)


def test_zoom_and_shift_are_kornias(kornia) -> None:
    images = batch()
    zoom = torch.tensor([[0.8, 0.8], [1.25, 1.25], [1.0, 1.2], [0.9, 1.0], [1.0, 1.0]])
    theirs = kornia.geometry.transform.scale(images, zoom, padding_mode="border", align_corners=True)
    torch.testing.assert_close(warp(images, affine(1 / zoom, torch.zeros(5, 2))), theirs, atol=1e-4, rtol=0)
    shift = torch.tensor([[1.5, 0.0], [0.0, -2.25], [0.3, 0.3], [-3.0, 2.0], [0.0, 0.0]])
    theirs = kornia.geometry.transform.translate(images, shift, padding_mode="border", align_corners=True)
    torch.testing.assert_close(warp(images, affine(torch.ones(5, 2), -shift)), theirs, atol=1e-4, rtol=0)


def test_a_general_warp_is_kornias(kornia) -> None:
    images, source = batch(), generator(4)
    matrices = torch.eye(2, 3) + 0.2 * torch.randn(5, 2, 3, generator=source)
    middle = torch.tensor([[1, 0, 4.5], [0, 1, 5.5], [0, 0, 1]])
    whole = torch.cat([matrices, torch.tensor([0.0, 0, 1]).expand(5, 1, 3)], 1)
    forward = (middle @ torch.linalg.inv(whole) @ torch.linalg.inv(middle))[:, :2]
    for padding in ("border", "zeros"):
        theirs = kornia.geometry.transform.warp_affine(images, forward, (12, 10), "bilinear", padding, True)
        torch.testing.assert_close(warp(images, matrices, padding), theirs, atol=1e-4, rtol=0)  # type: ignore[arg-type]


def test_flip_and_colours_are_kornias(kornia) -> None:
    images = 0.4 + 0.2 * batch()  # far from 0 and 1, where kornia clips
    chosen = torch.tensor([True, False, True, True, False])
    theirs = torch.where(chosen[:, None, None, None], kornia.geometry.transform.hflip(images), images)
    assert torch.equal(flip(images, chosen), theirs)
    amount = torch.tensor([-0.2, 0.0, 0.1, 0.25, -0.25])
    torch.testing.assert_close(brighten(images, amount), kornia.enhance.adjust_brightness(images, amount))
    factor = torch.tensor([0.8, 1.0, 1.2, 0.5, 1.5])
    grey = images[:, :1]
    theirs = kornia.enhance.adjust_contrast_with_mean_subtraction(grey, factor)
    torch.testing.assert_close(contrast(grey, factor), theirs)


def test_colours_are_torchvisions_blends_and_erasing_is_its_erase() -> None:
    from bpcbench_torch.torchvision_compat import import_torchvision

    import_torchvision()
    from torchvision.transforms.v2 import functional

    images = 0.4 + 0.2 * batch(5, 1, 12, 10)
    for row, factor in enumerate([0.8, 1.0, 1.2, 0.5, 1.5]):
        theirs = functional.adjust_contrast(images[row], factor)
        torch.testing.assert_close(contrast(images, torch.full((5,), factor))[row], theirs)
    colour = batch()
    top, left = torch.tensor([0, 3, 9, 8, 5]), torch.tensor([0, 7, 2, 1, 5])
    ours = erase(colour, top, left, 3)
    for row in range(5):
        theirs = functional.erase(colour[row], int(top[row]), int(left[row]), 3, 3, torch.zeros(()))
        assert torch.equal(ours[row], theirs)


def test_contrast_and_saturation_keep_their_means_and_scale_the_rest() -> None:
    images, factor = batch(dtype=torch.float64), torch.tensor([0.8, 1.0, 1.2, 0.5, 2.0], dtype=torch.float64)
    for function, axes in ((contrast, (1, 2, 3)), (saturate, (1,))):
        result = function(images, factor)
        mean = images.mean(axes, keepdim=True)
        torch.testing.assert_close(result.mean(axes, keepdim=True), mean)
        torch.testing.assert_close(result - mean, factor[:, None, None, None] * (images - mean))
    torch.testing.assert_close(saturate(images[:, :1], factor), images[:, :1])


MANY = 20_000


def drawn(family: type[Draws], side: int = 32) -> Draws:
    return family(generator(7), torch.empty(MANY, 1, side, side))


def spans(values: Tensor, low: float, high: float) -> None:
    """Assert that values lie in [low, high], reach both ends, and have the mean of a uniform distribution."""
    assert low - 1e-5 <= values.min() <= low + 0.01 * (high - low)
    assert high - 0.01 * (high - low) <= values.max() <= high + 1e-5
    assert abs(values.mean() - (low + high) / 2) < 5 * (high - low) / math.sqrt(12 * len(values))


def test_frepos_ranges() -> None:
    draws = drawn(FRePo)
    matrices = draws.rotate()
    spans(torch.atan2(matrices[:, 1, 0], matrices[:, 0, 0]).rad2deg(), -15, 15)
    for axis in range(2):
        spans(draws.translate()[:, axis, 2], -4, 4)
    crop = draws.crop()
    zoom = 1 / crop[:, 0, 0]
    assert torch.equal(crop[:, 0, 0], crop[:, 1, 1])
    spans(zoom.log(), math.log(0.8), math.log(1.25))
    for axis in range(2):
        spans(crop[:, axis, 2] * zoom / (32 * (zoom - 1).abs() / 2), -1, 1)
    spans(draws.brightness(torch.zeros(MANY, 1, 1, 1)).ravel(), -0.25, 0.25)
    noise = draws.noise(torch.zeros(MANY, 1, 2, 2))
    assert abs(noise.std() - 0.1) < 1e-3
    mirrored = draws.flip(torch.arange(2.0).expand(MANY, 1, 1, 2))[:, 0, 0, 0]
    assert abs(mirrored.mean() - 0.5) < 0.02


def test_frepos_colours_change_brightness_contrast_and_saturation() -> None:
    source = torch.tensor([[0.0, 3.0], [1.0, -1.0], [2.0, 4.0]]).view(1, 3, 1, 2).expand(MANY, 3, 1, 2)
    result = drawn(FRePo).color(source)
    spans((result.mean((1, 2, 3)) - source.mean((1, 2, 3))), -0.25, 0.25)
    grey = result.mean(1)[:, 0]
    factor = (grey[:, 1] - grey[:, 0]) / (source.mean(1)[:, 0, 1] - source.mean(1)[:, 0, 0])
    spans(factor.log(), -0.25, 0.25)
    between = result[:, 2, 0, 0] - result[:, 0, 0, 0]
    spans((between / 2 / factor).log(), -0.25, 0.25)


@pytest.mark.parametrize("side", [8, 28, 32])
def test_frepos_cutout_is_one_square_of_a_quarter_wholly_inside(side: int) -> None:
    holes = FRePo(generator(), torch.empty(4000, 3, side, side)).cutout(torch.ones(4000, 3, side, side)) == 0
    assert (holes.sum((2, 3)) == (side // 4) ** 2).all()
    assert (holes.any(3).sum(2) == side // 4).all()
    reached = holes.any(0).any(0)
    assert reached.all(), "every pixel is hit by some square"


def test_dsas_ranges() -> None:
    draws = drawn(DSA)
    for axis in range(2):
        assert set(draws.crop()[:, axis, 2].tolist()) == set(range(-4, 5))
        spans(draws.scale()[:, axis, axis], 1 / 1.2, 1.2)
    holes = (draws.cutout(torch.ones(MANY, 1, 32, 32)) == 0).flatten(1).sum(1)
    assert (holes.max(), holes.min()) == (256, 64)
    source = torch.tensor([[0.0, 3.0], [1.0, -1.0], [2.0, 4.0]]).view(1, 3, 1, 2).expand(MANY, 3, 1, 2)
    result = draws.color(source)
    spans(result.mean((1, 2, 3)) - source.mean((1, 2, 3)), -0.5, 0.5)
    grey = result.mean(1)[:, 0]
    factor = (grey[:, 1] - grey[:, 0]) / (source.mean(1)[:, 0, 1] - source.mean(1)[:, 0, 0])
    spans(factor, 0.5, 1.5)
    spans((result[:, 2, 0, 0] - result[:, 0, 0, 0]) / 2 / factor, 0, 2)
