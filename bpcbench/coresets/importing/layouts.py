"""How the code of some papers saves its distilled sets: names, order of axes, space, labels, mirrored copies.

The facts come from that code. What differs from file to file can be overridden on the command line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from bpcbench.records import Ref

Order = Literal["nchw", "nhwc"]
LabelKind = Literal["class", "probabilities", "centred", "logits"]
Space = Callable[[str, int], Ref | None]
"""The preprocessing for a data set's name (maybe empty) and a number of channels, None if that is not enough."""

_CONSTANTS: Mapping[str, tuple[list[float], list[float]]] = {
    "mnist": ([0.1307], [0.3081]),
    "fashion_mnist": ([0.2861], [0.3530]),
    "svhn": ([0.4377, 0.4438, 0.4728], [0.1980, 0.2010, 0.1970]),
    "cifar10": ([0.4914, 0.4822, 0.4465], [0.2023, 0.1994, 0.2010]),
    "cifar100": ([0.5071, 0.4866, 0.4409], [0.2673, 0.2564, 0.2762]),
    "tiny_imagenet": ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
    "imagewoof": ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
}
"""The constants with which the code of DC and of what was built on it standardises."""


@dataclass(frozen=True)
class Layout:
    """One paper's files. `images` and `labels` are names of arrays, the first that exists counts."""

    images: tuple[str, ...]
    labels: tuple[str, ...]
    order: Order
    label_kind: LabelKind | None
    space: Space
    mirrored: Callable[[int], bool] = lambda channels: False


def _constants(dataset: str, channels: int) -> Ref | None:
    known = _CONSTANTS.get(dataset)
    return known and Ref("constants", {"mean": known[0], "std": known[1]})


def _frepo(dataset: str, channels: int) -> Ref:
    return Ref("zca") if channels == 3 else Ref("standardize")


def _kip(dataset: str, channels: int) -> Ref | None:
    if dataset == "svhn":
        return None  # normalised image by image before whitening, which cannot be undone
    return Ref("zca", {"centred": False}) if channels == 3 else Ref("standardize")


def _kornia(dataset: str, channels: int) -> Ref | None:
    if dataset in ("cifar10", "cifar100", "tiny_imagenet"):
        # Pixels in [0, 1] are whitened as they are: with ZCA that code leaves out the standardisation.
        return Ref("zca", {"absolute": True, "mean": [0.0] * channels, "std": [1.0] * channels})
    return _constants(dataset, channels)


_PROTOTYPES = ("ema_average/{}", "params/{}", "{}")


def _colour(channels: int) -> bool:
    return channels == 3


LAYOUTS: Mapping[str, Layout] = {
    "rcig": Layout(
        tuple(name.format("x_proto") for name in _PROTOTYPES),
        tuple(name.format("y_proto") for name in _PROTOTYPES),
        "nhwc",
        "centred",
        _frepo,
        _colour,
    ),
    "frepo": Layout(
        ("params/x_proto", "x_proto", "image"),
        ("params/y_proto", "y_proto", "label"),
        "nhwc",
        "centred",
        _frepo,
        _colour,
    ),
    "rfad": Layout(("images",), ("labels",), "nchw", "centred", _kip),
    "kip": Layout(("images",), ("labels",), "nhwc", "centred", _kip),
    "dc": Layout(("data/0/0", "images"), ("data/0/1", "labels"), "nchw", "class", _constants),
    "datm": Layout(("images_best", "images"), ("labels_best", "labels"), "nchw", "logits", _kornia),
}
