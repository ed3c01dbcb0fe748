"""What `--layout` says of files, colour and grey: each space against a formula that shares no code with the plugins."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flax_files import packed
from scipy.linalg import fractional_matrix_power

from bpcbench.coresets.importing import layouts as module
from bpcbench.coresets.importing.conversion import Request, import_coreset
from bpcbench.coresets.importing.layouts import LAYOUTS
from bpcbench.coresets.reading import load_transform
from bpcbench.records import Data, Facts, Inputs, Split
from bpcbench.registry.discovery import registry
from bpcbench.registry.options import build
from bpcbench_baselines.file import File

CLASSES = 10
SIDE = 4


def photographs(channels: int) -> Data:
    """Return images whose neighbours and channels are correlated, more of them than an image has numbers."""
    rng = np.random.default_rng(0)
    rough = rng.normal(size=(600, channels, SIDE + 1, SIDE + 1))
    smooth = rough[..., :-1, :-1] + rough[..., 1:, :-1] + rough[..., :-1, 1:] + rough[..., 1:, 1:]
    smooth = smooth + smooth.mean(1, keepdims=True)
    images = np.clip(120 + 25 * smooth * np.arange(1, channels + 1)[:, None, None] / channels, 0, 255).astype(np.uint8)
    labels = np.arange(600) % CLASSES
    facts = Facts(shape=images.shape[1:], classes=CLASSES, sizes={"train": 600, "test": 600})
    return Data(facts, Split(images, labels))


def standardised(pixels: np.ndarray, training: np.ndarray) -> np.ndarray:
    mean, std = (getattr(training, name)(axis=(0, 2, 3), keepdims=True) for name in ("mean", "std"))
    return (pixels - mean) / std


def whitened(pixels: np.ndarray, training: np.ndarray, *, centred: bool) -> np.ndarray:
    """Return (x - mu) (C + 0.1 tr(C)/d I)^(-1/2) of standardised images; mu is 0 unless `centred`."""
    seen = standardised(training, training).reshape(len(training), -1)
    centre = seen.mean(0) if centred else np.zeros(seen.shape[1])
    covariance = (seen - centre).T @ (seen - centre) / len(seen)
    ridge = 0.1 * np.trace(covariance) / len(covariance)
    matrix = fractional_matrix_power(covariance + ridge * np.eye(len(covariance)), -0.5)
    flat = standardised(pixels, training).reshape(len(pixels), -1) - centre
    return (flat @ matrix).reshape(pixels.shape)


def by_kornia(pixels: np.ndarray, training: np.ndarray) -> np.ndarray:
    """Return what kornia makes of pixels in [0, 1]; it divides by N instead of N - 1, so that this can be exact."""
    from kornia.enhance import ZCAWhitening

    fitted = ZCAWhitening(eps=0.1, unbiased=False).fit(torch.tensor(training))
    return np.asarray(fitted(torch.tensor(pixels)))


def shifted(mean: list[float], std: list[float]) -> Callable[..., np.ndarray]:
    def space(pixels: np.ndarray, training: np.ndarray) -> np.ndarray:
        return (pixels - np.reshape(mean, (1, -1, 1, 1))) / np.reshape(std, (1, -1, 1, 1))

    return space


def centred(pixels: np.ndarray, training: np.ndarray) -> np.ndarray:
    return whitened(pixels, training, centred=True)


def uncentred(pixels: np.ndarray, training: np.ndarray) -> np.ndarray:
    return whitened(pixels, training, centred=False)


def files(layout: str, images: np.ndarray, labels: np.ndarray, where: Path) -> list[Path]:
    """Write images and labels as the code of a paper does."""
    images = images.astype(np.float32)
    learned = (np.eye(CLASSES)[labels] - 0.1).astype(np.float32)
    last = np.ascontiguousarray(images.transpose(0, 2, 3, 1))
    one = where / f"{layout}.file"
    if layout == "rcig":
        one.write_bytes(packed({"params": {"x_proto": last * 0}, "ema_average": {"x_proto": last, "y_proto": learned}}))
    elif layout == "frepo":
        one.write_bytes(packed({"params": {"x_proto": last, "y_proto": learned}}))
    elif layout in ("rfad", "kip"):
        one = where / f"{layout}.npz"
        np.savez(one, images=images if layout == "rfad" else last, labels=learned, k=3.0, jit=1e-3)
    elif layout == "dc":
        one = where / "dc.pt"
        torch.save({"data": [[torch.tensor(images), torch.tensor(labels)]], "accs_all_exps": {"ConvNet": [0.5]}}, one)
    else:
        one, other = where / "images_best.pt", where / "labels_best.pt"
        torch.save(torch.tensor(images), one)
        torch.save(torch.tensor(learned * 9), other)
        return [one, other]
    return [one]


CIFAR10 = shifted([0.4914, 0.4822, 0.4465], [0.2023, 0.1994, 0.2010])
CIFAR100 = shifted([0.5071, 0.4866, 0.4409], [0.2673, 0.2564, 0.2762])
MNIST = shifted([0.1307], [0.3081])
CASES: list[tuple[str, str, int, Callable[..., np.ndarray]]] = [
    ("rcig", "cifar10", 3, centred),
    ("rcig", "mnist", 1, standardised),
    ("frepo", "cifar100", 3, centred),
    ("frepo", "mnist", 1, standardised),
    ("rfad", "cifar10", 3, uncentred),
    ("rfad", "mnist", 1, standardised),
    ("kip", "cifar100", 3, uncentred),
    ("kip", "fashion_mnist", 1, standardised),
    ("dc", "cifar10", 3, CIFAR10),
    ("dc", "cifar100", 3, CIFAR100),
    ("dc", "mnist", 1, MNIST),
    ("datm", "cifar10", 3, by_kornia),
    ("datm", "cifar100", 3, by_kornia),
    ("datm", "tiny_imagenet", 3, by_kornia),
]


@pytest.mark.parametrize(
    ("layout", "dataset", "channels", "space"), CASES, ids=[f"{case[0]}-{case[1]}" for case in CASES]
)
def test_files_of_a_layout_are_the_images_they_were_made_of(
    layout: str, dataset: str, channels: int, space: Callable[..., np.ndarray], tmp_path: Path
) -> None:
    """Nothing is said but the layout and the data set: axes, labels, space and mirrored copies follow from them."""
    data = photographs(channels)
    training = data.train.images / 255.0
    # Two of each class, in the order of the classes.
    rows = np.concatenate([np.flatnonzero(data.labels == c)[:2] for c in range(CLASSES)])
    real, labels = training[rows], data.labels[rows]
    theirs = space(real, training)
    request = Request(tuple(files(layout, theirs, labels, tmp_path)), layout=layout, dataset=dataset)
    found = import_coreset(request, registry(), data, lambda plugin, data: plugin.fit(data, None))  # type: ignore[arg-type]
    np.testing.assert_allclose(found.coreset.images, theirs, atol=1e-6)
    np.testing.assert_allclose(found.transform.invert(found.coreset.images), real, atol=2e-4)
    np.testing.assert_array_equal(found.coreset.class_ids, labels)
    assert found.coreset.convention == {"dc": "class", "datm": "probabilities"}.get(layout, "centred")
    if layout == "datm":
        odds = np.exp(9.0 * np.eye(CLASSES)[labels])
        np.testing.assert_allclose(found.coreset.targets, odds / odds.sum(1, keepdims=True), atol=1e-5)

    found.write(tmp_path / "made")
    used: Any = File(path=str(tmp_path / "made")).distil(data, 2, Inputs(load_transform(tmp_path / "made")), None)  # type: ignore[arg-type]
    mirrored = layout in ("rcig", "frepo") and channels == 3
    assert len(used) == len(rows) * (2 if mirrored else 1)
    if mirrored:
        np.testing.assert_array_equal(used.images[len(rows) :], found.coreset.images[..., ::-1])
        np.testing.assert_array_equal(used.targets[len(rows) :], found.coreset.targets)


@pytest.mark.parametrize("dataset", ["cifar10", "cifar100"])
def test_datms_space_is_kornias_of_raw_pixels(dataset: str) -> None:
    data = photographs(3)
    space = LAYOUTS["datm"].space(dataset, 3)
    assert space is not None
    plugin: Any = build(registry(), "preprocessing", space)
    arrays = plugin.fit(data, None)
    pixels = data.train.images / 255.0
    np.testing.assert_allclose(plugin.apply(data.train.images, arrays), by_kornia(pixels, pixels), atol=1e-4)


def test_layouts_know_their_spaces() -> None:
    assert LAYOUTS["dc"].space("unheard-of", 3) is None
    assert LAYOUTS["rfad"].space("svhn", 3) is None, "its normalisation image by image cannot be undone"
    assert set(module._CONSTANTS) <= set(registry().names("dataset"))
    for layout in LAYOUTS.values():
        for dataset in ("cifar10", "mnist", "tiny_imagenet"):
            space = layout.space(dataset, 1 if dataset == "mnist" else 3)
            assert space is not None
            build(registry(), "preprocessing", space)


def test_without_zca_datms_pixels_are_normalised_with_given_numbers(tmp_path: Path) -> None:
    """Its code then uses the constants of CIFAR-10 for CIFAR-100 too: what the user says wins over the layout."""
    data = photographs(3)
    pixels = data.train.images[:20] / 255.0
    theirs = CIFAR10(pixels, pixels)
    made = files("datm", theirs, data.labels[:20], tmp_path)
    given = {"mean": (0.4914, 0.4822, 0.4465), "std": (0.2023, 0.1994, 0.2010)}
    request = Request(tuple(made), layout="datm", dataset="cifar100", **given)  # type: ignore[arg-type]
    found = import_coreset(request, registry(), data, lambda plugin, data: plugin.fit(data, None))  # type: ignore[arg-type]
    np.testing.assert_allclose(found.transform.invert(found.coreset.images), pixels, atol=1e-5)
