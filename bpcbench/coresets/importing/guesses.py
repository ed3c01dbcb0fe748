"""What a file does not say of itself: guessed where the numbers show it, asked for where they do not.

Each function returns its answer with the words that tell the user of it, or raises Unclear with the question.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bpcbench.coresets.importing.layouts import LabelKind, Order
from bpcbench.records import Array, Convention, Ref

_IMAGES = re.compile(r"(^|[/_.])(images?|x_proto|x|data|image_syn|imgs?)(_best|_syn)?$", re.I)
_LABELS = re.compile(r"(^|[/_.])(labels?|targets?|y_proto|y|label_syn)(_best|_syn)?$", re.I)
_CHANNELS = (1, 3)


class Unclear(ValueError):
    """Something that only the user can say; `option` is where."""

    def __init__(self, option: str, message: str) -> None:
        super().__init__(message)
        self.option = option


@dataclass(frozen=True, eq=False)
class Labels:
    """Targets with their convention and class numbers, and the number of classes."""

    targets: Array
    class_ids: Array
    classes: int
    convention: Convention


def listed(arrays: Mapping[str, Array], refused: Mapping[str, str] | None = None) -> str:
    """Return the arrays of a file in words."""
    lines = [f"{name or '(unnamed)'} {array.dtype} {list(array.shape)}" for name, array in arrays.items()]
    lines += [f"{name} ({reason})" for name, reason in (refused or {}).items()]
    return "; ".join(lines[:20]) + ("; ..." if len(lines) > 20 else "")


def pick(arrays: Mapping[str, Array], what: str, wanted: str | None, known: Sequence[str]) -> str | None:
    """Return the name of the array that holds the images or the labels: as told, as the layout says, or by its name."""
    if wanted is not None:
        if wanted not in arrays:
            raise Unclear(f"--{what}", f"there is no array {wanted!r} in it; it holds {listed(arrays)}")
        return wanted
    for name in known:
        if name in arrays:
            return name
    pattern, ranks = (_IMAGES, (4,)) if what == "images" else (_LABELS, (1, 2))
    named = [name for name, array in arrays.items() if pattern.search(name) and array.ndim in ranks]
    shaped = [name for name, array in arrays.items() if array.ndim in ranks and array.size > 1]
    for candidates in (named, shaped):
        if len(candidates) == 1:
            return candidates[0]
        if candidates:
            raise Unclear(f"--{what}", f"several arrays may be the {what}: {', '.join(candidates[:10])}")
    if what == "labels":
        return None
    raise Unclear(f"--{what}", f"no array has the four axes of images; it holds {listed(arrays)}")


def channels_first(images: Array, order: Order | None, shape: tuple[int, int, int] | None) -> tuple[Array, str]:
    """Return images as (n, c, h, w); `shape` is that of the data set, if it is known."""
    if images.ndim != 4 or not images.size:
        raise Unclear("--images", f"images have four axes, and these have the shape {list(images.shape)}")
    if order is None:
        first, last = images.shape[1] in _CHANNELS, images.shape[3] in _CHANNELS
        if shape is not None and first and last:
            first, last = images.shape[1:] == shape, (images.shape[3], *images.shape[1:3]) == shape
        if first == last:
            raise Unclear("--order", f"the shape {list(images.shape)} does not show which axis is the channels")
        order = "nchw" if first else "nhwc"
        words = f"axes: {order} (guessed from the shape {list(images.shape)})"
    else:
        words = f"axes: {order}"
    result = images if order == "nchw" else images.transpose(0, 3, 1, 2)
    return np.ascontiguousarray(result), words


def value_range(images: Array) -> tuple[Ref, str]:
    """Return the preprocessing of plain pixels, if that is what the values look like."""
    low, high = float(images.min()), float(images.max())
    shown = f"values from {low:.4g} to {high:.4g}"
    if images.dtype == np.uint8:
        return Ref("constants", {"mean": [0.0], "std": [1 / 255]}), "data range: 0-255 (they are bytes)"
    if images.dtype.kind in "iu" and low >= 0 and high <= 255:
        return Ref("constants", {"mean": [0.0], "std": [1 / 255]}), f"data range: 0-255 (guessed: integers, {shown})"
    if low >= 0 and high <= 1:
        return Ref("constants", {"mean": [0.0], "std": [1.0]}), f"data range: 0-1 (guessed: {shown})"
    if low >= 0 and 20 < high <= 255:
        return Ref("constants", {"mean": [0.0], "std": [1 / 255]}), f"data range: 0-255 (guessed: {shown})"
    raise Unclear(
        "--data-range",
        f"{shown} are not plain pixels. Say `0-1` or `0-255` if they are pixels that were not clipped; `normalised` "
        "with --mean and --std; or give the --preprocessing in whose space they are, such as '{plugin: zca}', with "
        "--data-set. --layout says it for the code of some papers",
    )


def labels_of(
    raw: Array | None, rows: int, kind: LabelKind | None, classes: int | None, ids: Array | None
) -> tuple[Labels, list[str]]:
    """Return what labels mean; `raw` None stands for rows in the order of the classes."""
    if raw is None:
        if classes is None:
            raise Unclear("--classes", "there are no labels in it; with the number of classes, rows are in their order")
        if rows % classes:
            raise Unclear(
                "--classes", f"{rows} rows without labels are not the same number for each of {classes} classes"
            )
        numbers = np.repeat(np.arange(classes, dtype=np.int64), rows // classes)
        return Labels(numbers, numbers, classes, "class"), [
            f"labels: none in the file; {rows // classes} rows per class in the order of the classes (guessed)"
        ]
    if raw.dtype.kind == "f" and not np.isfinite(raw).all():
        raise Unclear("--labels", "the labels hold NaN or infinite values")
    flat = raw.reshape(-1) if raw.ndim == 2 and raw.shape[1] == 1 else raw
    if flat.ndim not in (1, 2) or len(flat) != rows:
        raise Unclear("--labels", f"labels of shape {list(raw.shape)} do not fit {rows} images")
    if flat.ndim == 1:
        if kind not in (None, "class"):
            raise Unclear("--labels-as", f"labels with one axis are class numbers, not {kind}")
        return _class_numbers(flat, classes)
    if classes is not None and flat.shape[1] != classes:
        raise Unclear("--classes", f"labels have {flat.shape[1]} columns, but there are {classes} classes")
    words = f"labels: {kind}"
    if kind is None:
        kind = _kind(flat)
        words = f"labels: {_MEANINGS[kind]} (guessed)"
    classes = flat.shape[1]
    top = flat.argmax(1).astype(np.int64)
    if kind == "class":
        return Labels(top, top, classes, "class"), [words]
    targets = np.ascontiguousarray(flat, np.float32)
    if kind == "logits":
        # In float64, and rounded once.
        shifted = flat.astype(np.float64) - flat.max(1, keepdims=True)
        odds = np.exp(shifted)
        targets = (odds / odds.sum(1, keepdims=True)).astype(np.float32)
    if kind == "probabilities" and (targets.min() < 0 or np.abs(targets.sum(1) - 1).max() > 1e-3):
        raise Unclear(
            "--labels-as", "the rows of the labels are no probabilities: they are negative or do not sum to 1"
        )
    numbers, note = _rows_of_classes(top, classes, ids)
    convention: Convention = "centred" if kind == "centred" else "probabilities"
    return Labels(targets, numbers, classes, convention), [words, *note]


_MEANINGS = {
    "class": "one-hot rows, taken as class numbers",
    "probabilities": "probabilities, since rows sum to 1",
    "centred": "real numbers such as one-hot minus 1/k; say --labels-as logits if a softmax belongs around them",
}


def _kind(rows: Array) -> LabelKind:
    if ((rows == 0) | (rows == 1)).all() and (rows.sum(1) == 1).all():
        return "class"
    return "probabilities" if rows.min() >= 0 and np.abs(rows.sum(1) - 1).max() < 1e-3 else "centred"


def _class_numbers(flat: Array, classes: int | None) -> tuple[Labels, list[str]]:
    numbers = flat.astype(np.int64)
    if (numbers != flat).any() or numbers.min() < 0:
        raise Unclear("--labels", "labels with one axis are class numbers, and these are negative or not whole")
    most = int(numbers.max()) + 1
    if most > (classes or 100_000):
        raise Unclear("--classes", f"labels go up to {most - 1}, but there are {classes or 'at most 100000'} classes")
    words = [] if classes else [f"classes: {most} (guessed from the largest label)"]
    return Labels(numbers, numbers, classes or most, "class"), ["labels: class numbers", *words]


def _rows_of_classes(top: Array, classes: int, ids: Array | None) -> tuple[Array, list[str]]:
    """Return for which class each row was made; learned labels may be largest elsewhere."""
    if ids is not None:
        if ids.shape != top.shape or ids.dtype.kind not in "iu" or ids.min() < 0 or ids.max() >= classes:
            raise Unclear("--class-ids", f"they must be {len(top)} numbers from 0 to {classes - 1}")
        return ids.astype(np.int64), ["classes of the rows: as given"]
    counts = np.bincount(top, minlength=classes)
    if len(top) % classes or (counts == len(top) // classes).all():
        return top, []
    ordered = np.repeat(np.arange(classes, dtype=np.int64), len(top) // classes)
    agree = float((ordered == top).mean())
    if agree <= 0.5:
        return top, []
    return ordered, [f"classes of the rows: in order (guessed: {agree:.0%} of the largest labels agree)"]
