"""Coresets written for others: safetensors, npz or PNG, each with its recipe, a picture, its scores and how to load it.

A safetensors or npz export holds every bit of the coreset and its preprocessing; `bpcbench import` reads both. PNG
files are clipped to 8 bits, for looking at and for code that reads pictures only.
"""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bpcbench.coresets.preview import PREVIEW, PREVIEW_CLASSES, preview, to_bytes
from bpcbench.coresets.reading import EMBEDDED, read_coreset, transform_of
from bpcbench.errors import UserError
from bpcbench.figures import image_grid
from bpcbench.records import Array, Coreset, Transform
from bpcbench.store import folder
from bpcbench.store.manifest import PluginRecord
from bpcbench.store.store import STAGE, Artefact

Format = Literal["safetensors", "npz", "png"]
NPZ = "coreset.npz"
RECIPE = "bpcbench"
"""The array of an npz export that holds its recipe, as JSON."""
CARD = "README.md"
PICTURE = "preview.png"
_KEPT = ("kind", "key", "member", "label", "coreset", "stage", "source", "native")
"""What a description keeps when a coreset leaves its store: not the machine, the times or the threads."""


@dataclass(frozen=True)
class Score:
    """A number that a coreset reached somewhere: where, of which metric, the mean over seeds, and how many."""

    place: str
    metric: str
    value: str
    seeds: int


def export_coreset(
    artefact: Artefact,
    target: Path,
    own: tuple[PluginRecord, PluginRecord] | None = None,
    *,
    format: Format = "safetensors",  # noqa: A002
    scores: Sequence[Score] = (),
) -> None:
    """Write a coreset, its recipe and its preprocessing into a new folder that stands alone.

    `own` are the method's native inference and network, which a manifest knows; they join the recipe. `scores` are
    listed in its README.md. A PNG export has a folder per class.
    """
    coreset, transform = read_coreset(artefact), transform_of(artefact)
    meta = {key: artefact.meta[key] for key in _KEPT if key in artefact.meta}
    if own is not None:
        meta["native"] = {"inference": asdict(own[0]), "network": asdict(own[1])}
    write_folder(target, coreset, transform, meta, format=format, scores=scores)


def write_folder(
    target: Path,
    coreset: Coreset,
    transform: Transform,
    meta: Mapping[str, Any],
    *,
    format: Format = "safetensors",  # noqa: A002
    scores: Sequence[Score] = (),
) -> None:
    """Write a new folder, complete or not at all; `meta` is its description without the list of files."""
    if target.exists():
        raise UserError(f"{target} exists already")
    shown = preview(coreset, transform)
    arrays = {**coreset.arrays(), **{EMBEDDED + name: array for name, array in transform.arrays.items()}}
    beside = {
        PICTURE: image_grid(shown[PREVIEW], shown[PREVIEW_CLASSES]),
        CARD: card(coreset, meta, format, scores).encode(),
    }
    temporary = folder.temporary(target.parent)
    try:
        if format == "safetensors":
            folder.write(temporary, STAGE, meta, arrays | shown, {})
        else:
            temporary.mkdir(parents=True)
        if format == "npz":
            beside[NPZ] = _npz(arrays, meta)
        if format == "png":
            beside["recipe.json"] = (json.dumps(meta, indent=1, sort_keys=True) + "\n").encode()
            _write_pictures(temporary, coreset, transform)
        for name, content in beside.items():
            folder.write_durably(temporary / name, content)
        if not folder.publish(temporary, target):
            raise UserError(f"{target} exists already")
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _npz(arrays: Mapping[str, Array], meta: Mapping[str, Any]) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **{**arrays, RECIPE: np.array(json.dumps(meta, sort_keys=True))})  # type: ignore[arg-type]
    return buffer.getvalue()


def _write_pictures(root: Path, coreset: Coreset, transform: Transform) -> None:
    from PIL import Image

    shown = to_bytes(transform.invert(coreset.images))
    if shown.shape[1] not in (1, 3):
        raise UserError(f"PNG files hold images of 1 or 3 channels, and these have {shown.shape[1]}")
    wide, high = len(str(coreset.classes - 1)), len(str(len(coreset) - 1))
    for row, (image, number) in enumerate(zip(shown, coreset.class_ids, strict=True)):
        path = root / f"{int(number):0{wide}}" / f"{row:0{high}}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(image[0] if len(image) == 1 else image.transpose(1, 2, 0)).save(path)


def card(coreset: Coreset, meta: Mapping[str, Any], format: Format, scores: Sequence[Score] = ()) -> str:  # noqa: A002
    """Return the README of an exported coreset: what it is, how it is meant to be used, what it reached."""
    recipe = coreset.recipe
    shape = " x ".join(map(str, coreset.images.shape[1:]))
    counts = np.bincount(coreset.class_ids, minlength=coreset.classes)
    each = str(counts[0]) if len(set(counts.tolist())) == 1 else f"{counts.min()} to {counts.max()}"
    lines = [f"# {meta.get('label') or 'A coreset'}", "", f"![The images, clipped for display]({PICTURE})", ""]
    lines += [f"- {len(coreset)} images of {shape}, {coreset.classes} classes, {each} images per class"]
    lines += [f"- targets: {_CONVENTIONS[coreset.convention]}"]
    lines += ["- rows have weights"] * (coreset.weights is not None)
    lines += ["- mirrored copies of all rows are appended when it is used"] * bool(meta["coreset"].get("mirrored"))
    method = meta["stage"].get("method")
    lines += [f"- made by `{_reference(method)}`"] if method else []
    source = meta.get("source") or {}
    lines += [f"- imported from `{file}`, SHA-256 `{digest}`" for file, digest in source.get("files", {}).items()]
    lines += ["", "## Recipe", "", "The images are in the space that networks see, not clipped.", ""]
    if recipe.preprocessing is not None:
        lines += [
            f"- preprocessing: `{_plugin(recipe.preprocessing.plugin.plugin, recipe.preprocessing.plugin.options)}`"
        ]
    for name, ref in (("inference", recipe.inference), ("network", recipe.network)):
        lines += [f"- {name}: `{_plugin(ref.plugin, ref.options)}`"] if ref else []
    lines += [f"- {name}: {value:g}" for name, value in recipe.scalars.items()]
    lines += ["", "## Loading", "", *_LOADING[format]]
    if coreset.weights is not None and format != "png":
        lines += [
            "",
            "That leaves out the array `weights`, one number per image: a row of weight w counts like w rows.",
        ]
    if meta["coreset"].get("mirrored"):
        lines += ["", "That leaves out the mirrored copies: append every image flipped left to right, with its target."]
    if scores:
        lines += ["", "## Scores", "", "| evaluated as | metric | mean | seeds |", "|---|---|---|---|"]
        lines += [f"| {one.place} | {one.metric} | {one.value} | {one.seeds} |" for one in scores]
    return "\n".join(lines) + "\n"


_CONVENTIONS = {
    "class": "class numbers",
    "probabilities": "probabilities of the classes",
    "centred": "real numbers, such as one-hot minus 1/k",
}
_TENSORS = "torch.utils.data.TensorDataset(*(torch.tensor({0}[name]) for name in ('images', 'targets')))"
_LOADING = {
    "safetensors": [
        "```python",
        "import safetensors.numpy, torch",
        "data = " + _TENSORS.format("safetensors.numpy.load_file('arrays.safetensors')"),
        "```",
        "",
        "With its recipe: `bpcbench.load_coreset('.')`. The arrays `preprocessing.*` are its fitted preprocessing.",
    ],
    "npz": [
        "```python",
        "import numpy, torch",
        "data = " + _TENSORS.format(f"numpy.load('{NPZ}')"),
        "```",
        "",
        f"The array `{RECIPE}` is its recipe, as JSON. `bpcbench import {NPZ} --as NAME` reads everything.",
    ],
    "png": [
        "```python",
        "import torchvision",
        "data = torchvision.datasets.ImageFolder('.')",
        "```",
        "",
        "The pictures are clipped to 8 bits, and soft targets and weights are lost: other formats keep every bit.",
    ],
}


def _plugin(name: str, options: Mapping[str, Any]) -> str:
    return f"{name} {json.dumps(dict(options))}" if options else name


def _reference(description: Any) -> str:
    from bpcbench.planning.spec import Spec

    try:
        spec = Spec.from_json(description)
    except ValueError as error:
        raise UserError(f"the coreset's description is damaged: {error}") from None
    return _plugin(spec.name, spec.settings())
