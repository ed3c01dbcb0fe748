"""Coresets read from a store or a folder that was exported or imported; a damaged or forged one is refused."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import numpy as np

from bpcbench.coresets.preview import PREVIEW, PREVIEW_CLASSES, preview
from bpcbench.errors import BpcbenchError, UserError
from bpcbench.figures import image_grid
from bpcbench.planning.spec import Spec
from bpcbench.records import Array, Arrays, Convention, Coreset, FittedRef, Recipe, Ref, StoredCoreset, Transform
from bpcbench.registry.discovery import registry
from bpcbench.store import folder
from bpcbench.store.address import Address, digest, keyed
from bpcbench.store.store import STAGE, Artefact, Store

EMBEDDED = "preprocessing."
"""Prefix of the preprocessing's arrays in a coreset that stands alone."""
ROWS = ("images", "targets", "class_ids", "weights")
"""The arrays of a coreset itself."""


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turn whatever a forged or damaged folder may cause into one sentence."""
    from safetensors import SafetensorError

    try:
        yield
    except BpcbenchError:
        raise
    except (SafetensorError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError, OSError) as error:
        raise UserError(f"{path} does not hold a readable coreset: {_words(error)}") from None
    except (MemoryError, RecursionError):
        raise UserError(f"{path} does not hold a readable coreset: it is too large") from None


def _words(error: Exception) -> str:
    text = str(error)[:300]
    return f"{text} is missing" if isinstance(error, KeyError) else text or type(error).__name__


def read_coreset(artefact: Artefact) -> Coreset:
    """Return the coreset that a committed member, or a folder that stands alone, holds."""
    with _readable(artefact.folder):
        found = Coreset.restore(artefact.arrays, artefact.meta["coreset"], recipe_of(artefact.meta))
        check_coreset(found)
        return found


def check_coreset(coreset: Coreset) -> None:
    """Raise ValueError for content that no inference could use, such as NaN or class numbers out of range."""
    if coreset.convention not in get_args(Convention):
        raise ValueError(f"its targets are of an unknown convention, {coreset.convention!r}")
    if not len(coreset):
        raise ValueError("it has no images")
    if coreset.classes < 1:
        raise ValueError(f"it has {coreset.classes} classes")
    for name, array in coreset.arrays().items():
        if array.dtype.kind not in "iuf":
            raise ValueError(f"its {name} are of type {array.dtype}")
        if not np.isfinite(array).all():
            raise ValueError(f"its {name} hold NaN or infinite values")
    numbers = [coreset.class_ids, *([coreset.targets] if coreset.convention == "class" else [])]
    for array in numbers:
        if array.dtype.kind not in "iu" or array.min() < 0 or array.max() >= coreset.classes:
            raise ValueError(f"its class numbers do not lie in 0 ... {coreset.classes - 1}")
    if coreset.weights is not None and coreset.weights.min() < 0:
        raise ValueError("its weights are negative")


def recipe_of(meta: Mapping[str, Any]) -> Recipe:
    """Return the references of a coreset's recipe from its description."""
    fitted = meta["stage"]["transform"]
    native = meta.get("native") or {}
    return Recipe(
        preprocessing=FittedRef(_ref(fitted), str(fitted["address"])),
        network=Ref(native["network"]["name"], native["network"]["options"]) if native else None,
        inference=Ref(native["inference"]["name"], native["inference"]["options"]) if native else None,
    )


def _ref(description: Mapping[str, Any]) -> Ref:
    spec = Spec.from_json(description)
    return Ref(spec.name, spec.settings())


def load_coreset(path: str | Path) -> Coreset:
    """Return the coreset in a folder: exported, imported, or a member of a store. Every checksum is verified.

    In a notebook it shows its pixels, if its preprocessing is at hand.
    """
    artefact = open_folder(Path(path))
    found = read_coreset(artefact)
    with contextlib.suppress(BpcbenchError, ValueError):
        found = pictured(found, transform_of(artefact))
    return found


def pictured(coreset: Coreset, transform: Transform) -> Coreset:
    """Return the same coreset, which notebooks show as the pixels that its own preprocessing gives back."""
    made = dataclasses.replace(coreset)
    object.__setattr__(made, "_picture", functools.partial(_picture, coreset, transform))
    return made


def _picture(coreset: Coreset, transform: Transform) -> bytes:
    shown = preview(coreset, transform)
    return image_grid(shown[PREVIEW], shown[PREVIEW_CLASSES])


def load_transform(path: str | Path) -> Transform:
    """Return the fitted preprocessing in whose space the images of the coreset in a folder are."""
    return transform_of(open_folder(Path(path)))


def describe_coreset(path: str | Path) -> StoredCoreset:
    """Return what is known of the coreset in a folder without reading its images, whose checksum is not verified."""
    path = Path(path)
    meta = _meta(path)
    with _readable(path):
        from safetensors import safe_open

        with safe_open(path / folder.ARRAYS, framework="numpy") as file:
            _, *shape = file.get_slice("images").get_shape()
            ids = file.get_tensor("class_ids")
            weighted = "weights" in file.keys()  # noqa: SIM118 - not a mapping
        coreset = meta["coreset"]
        classes = int(coreset["classes"])
        if len(shape) != 3 or ids.ndim != 1 or ids.dtype.kind not in "iu" or not 0 < classes <= 10**6:
            raise ValueError("its images, class numbers or classes are malformed")
        if len(ids) and (ids.min() < 0 or ids.max() >= classes):
            raise ValueError(f"its class numbers do not lie in 0 ... {classes - 1}")
        if coreset["convention"] not in get_args(Convention):
            raise ValueError(f"its targets are of an unknown convention, {coreset['convention']!r}")
        return StoredCoreset(
            path=path,
            digest=content_digest(meta),
            shape=(int(shape[0]), int(shape[1]), int(shape[2])),
            classes=classes,
            counts=tuple(int(count) for count in np.bincount(ids, minlength=classes)),
            convention=coreset["convention"],
            weighted=weighted,
            mirrored=bool(coreset.get("mirrored", False)),
        )


def content_digest(meta: Mapping[str, Any]) -> str:
    """Return the digest of what determines results: arrays, conventions, recipe; not where it comes from."""
    parts = [meta["files"][folder.ARRAYS]["sha256"], meta["coreset"], meta["stage"]["transform"]]
    return digest(keyed(parts))


def pixels(path: str | Path) -> Array:
    """Return a coreset's images as pixels in [0, 1], clipped, by inverting its own preprocessing."""
    artefact = open_folder(Path(path))
    images = transform_of(artefact).invert(read_coreset(artefact).images)
    return np.clip(images, 0.0, 1.0)


def transform_of(artefact: Artefact) -> Transform:
    """Return the preprocessing of a coreset, embedded or from the store it lies in."""
    with _readable(artefact.folder):
        fitted: Mapping[str, Any] = artefact.meta["stage"]["transform"]
        plugin = Spec.from_json(fitted).build(registry())
        arrays = embedded_arrays(artefact)
        if not arrays:
            store = Store.open(_store_root(artefact.folder), create=False)
            arrays = dict(store.read(Address.parse(fitted["address"])).arrays)
        return Transform(plugin, arrays, str(fitted["address"]))


def embedded_arrays(artefact: Artefact) -> Arrays:
    """Return the arrays of the preprocessing that lie with the coreset, none if there are none."""
    names = [name for name in artefact.arrays if name.startswith(EMBEDDED)]
    return {name.removeprefix(EMBEDDED): artefact.arrays[name] for name in names}


def _meta(path: Path) -> dict[str, Any]:
    if not (path / STAGE).is_file():
        raise UserError(f"{path} holds no coreset: there is no {STAGE} in it")
    try:
        meta = folder.read_meta(path, STAGE)
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None
    if "coreset" not in meta:
        raise UserError(f"{path} holds a {meta.get('kind', 'folder')}, not a coreset")
    with _readable(path):
        content_digest(meta)
    return meta


def open_folder(path: Path) -> Artefact:
    """Return a coreset's description and arrays; raise UserError unless every checksum matches."""
    meta = _meta(path)
    problem = folder.verify(path, meta)
    if problem is not None:
        raise UserError(f"{path}: {problem}")
    with _readable(path):
        address = Address(meta["kind"], str(meta["key"]), str(meta["member"]))
        return Artefact(address, path, meta, folder.LazyArrays(path / folder.ARRAYS))


def _store_root(path: Path) -> Path:
    for parent in path.absolute().parents:
        if (parent / "store.json").is_file():
            return parent
    raise UserError(f"{path} lies in no store and was not exported, so its preprocessing is not at hand")
