"""Augmentation strategies: per image, from the generator alone, differentiable, shape and device kept."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
import torch
from torch import Tensor

from bpcbench_torch.augmentation import OPERATIONS, STRATEGIES, Augmentation
from bpcbench_torch.distortions import DSA, FRePo, compose, warp
from bpcbench_torch.strategy import strategy

SINGLE = [*OPERATIONS["frepo"], *(f"dsa:{name}" for name in OPERATIONS["dsa"])]
EVERY = [
    *(pytest.param(Augmentation(name), id=name) for name in SINGLE),
    *(pytest.param(Augmentation(name, "all"), id=f"{name} all") for name in STRATEGIES if name != "none"),
]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def batch(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.rand(shape or (5, 3, 12, 10), generator=generator(99), dtype=dtype)


def same(count: int = 6, *shape: int) -> Tensor:
    """Return one image several times."""
    return batch(1, *(shape or (3, 12, 12))).repeat(count, 1, 1, 1)


def test_named_strategies_are_the_papers() -> None:
    assert Augmentation("paper-grey").operations == ("noise", "brightness", "crop", "rotate", "translate", "cutout")
    assert Augmentation("paper-rgb").operations == ("flip", "noise", "color", "crop", "rotate", "translate", "cutout")
    assert Augmentation("dsa").operations == ("color", "crop", "cutout", "flip", "scale", "rotate")
    assert "flip" not in Augmentation("frepo-grey").operations
    assert Augmentation("none").operations == Augmentation().operations == ()
    assert {Augmentation(name).family for name in STRATEGIES if name.startswith("dsa")} == {"dsa"}
    for family, draws in {"frepo": FRePo, "dsa": DSA}.items():
        assert all(callable(getattr(draws, name)) for name in OPERATIONS[family])
        assert draws.geometry <= set(OPERATIONS[family])


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("flip_cutuot", "did you mean 'cutout'"),
        ("scale", "unknown operation 'scale'"),
        ("dsa:noise", "noise"),
        ("_", "''"),
    ],
)
def test_unknown_operations_are_refused_with_a_suggestion(wrong: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Augmentation(wrong)
    with pytest.raises(ValueError, match="mode"):
        Augmentation("flip", mode="some")  # type: ignore[arg-type]


def test_strategies_are_checked_without_torch() -> None:
    code = """
import sys
from bpcbench_torch.augmentation import Augmentation
Augmentation("dsa")
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("augmentation", EVERY)
@pytest.mark.parametrize("channels", [1, 3])
def test_shape_type_and_layout_stay(augmentation: Augmentation, channels: int) -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        images = batch(4, channels, 8, 11, dtype=torch.float32).to(dtype)
        kept = images.clone()
        result = augmentation(images, generator())
        assert (result.shape, result.dtype) == (images.shape, dtype)
        assert result.isfinite().all()
        assert torch.equal(images, kept)


@pytest.mark.parametrize("augmentation", EVERY)
def test_two_images_of_a_batch_get_different_parameters(augmentation: Augmentation) -> None:
    result = augmentation(same(40), generator())
    assert len({image.numpy().tobytes() for image in result}) >= (2 if "flip" in augmentation.strategy else 20)


@pytest.mark.parametrize("augmentation", EVERY)
def test_draws_come_from_the_generator_alone(augmentation: Augmentation) -> None:
    images = same(10)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = augmentation(images, generator(5))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert torch.equal(augmentation(images, generator(5)), first)
    assert not torch.equal(augmentation(images, generator(6)), first)
    moving = generator(5)
    assert not torch.equal(augmentation(images, moving), augmentation(images, moving))


@pytest.mark.parametrize("augmentation", EVERY)
def test_gradients_are_those_of_finite_differences(augmentation: Augmentation) -> None:
    images = batch(2, 3, 5, 4, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: augmentation(x, generator(3)), images)


def test_one_mode_draws_each_operation_equally_often() -> None:
    names = ("brightness", "cutout", "noise")
    augmentation = Augmentation("_".join(names))
    images, source = torch.ones(1, 1, 8, 8), generator()
    counts = dict.fromkeys(names, 0)
    for _ in range(600):
        result = augmentation(images, source)
        name = "cutout" if (result == 0).any() else "brightness" if result.std() < 1e-6 else "noise"
        counts[name] += 1
    assert all(abs(count - 200) < 4 * math.sqrt(600 * 2 / 9) for count in counts.values())


def test_a_chooser_draws_the_operation_and_nothing_else() -> None:
    augmentation = Augmentation("paper-rgb")
    images = same(4)
    chosen = {augmentation(images, generator(1), chooser=generator(seed)).numpy().tobytes() for seed in range(60)}
    assert len(chosen) == 7
    untouched, chooser = generator(1), generator(2)
    Augmentation("flip", "all")(images, untouched, chooser=chooser)
    assert torch.equal(chooser.get_state(), generator(2).get_state())


def test_none_returns_the_images() -> None:
    images = batch()
    assert Augmentation("none")(images, generator()) is images


@pytest.mark.parametrize("augmentation", EVERY)
def test_nothing_is_made_on_another_device_than_that_of_the_images(augmentation: Augmentation) -> None:
    # A tensor with dimensions on the CPU would not combine with one on `meta`.
    result = augmentation(torch.empty(4, 3, 8, 8, device="meta"), generator())
    assert result.device.type == "meta"
    assert result.shape == (4, 3, 8, 8)


def test_all_mode_chains_in_order_with_one_interpolation() -> None:
    images = batch(3, 3, 16, 16)
    draws = FRePo(generator(2), images)
    expected = draws.noise(images)
    expected = warp(expected, compose(draws.rotate(), draws.translate()))
    expected = draws.cutout(expected)
    assert torch.equal(Augmentation("noise_rotate_translate_cutout", "all")(images, generator(2)), expected)


def test_a_suite_reaches_all_operations_by_a_suffix() -> None:
    assert strategy("paper", 3) == Augmentation("paper-rgb", "one")
    assert strategy("paper-all", 3) == Augmentation("paper-rgb", "all")
    assert strategy("paper-all", 1) == Augmentation("paper-grey", "all")
    assert strategy("flip_cutout-all", 3) == Augmentation("flip_cutout", "all")
    quiet = strategy("paper-all-quiet", 3)
    assert quiet.mode == "all"
    assert quiet.operations == tuple(name for name in Augmentation("paper-rgb").operations if name != "noise")
    # Chained, cutout erases something in every call; drawn, in half of them.
    images = torch.ones(1, 3, 12, 12)
    erased = [bool((strategy("flip_cutout-all", 3)(images, generator(seed)) == 0).any()) for seed in range(20)]
    assert all(erased)
    assert not all(bool((strategy("flip_cutout", 3)(images, generator(seed)) == 0).any()) for seed in range(20))
