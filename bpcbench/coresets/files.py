"""Coresets outside a run: read from a store or an exported folder, shown as pixels, and exported with their recipe."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from bpcbench.errors import UserError
from bpcbench.planning.spec import Spec
from bpcbench.records import Array, Coreset, FittedRef, Recipe, Ref, Transform
from bpcbench.registry.discovery import registry
from bpcbench.store import folder
from bpcbench.store.address import Address
from bpcbench.store.manifest import PluginRecord
from bpcbench.store.store import STAGE, Artefact, Store

EMBEDDED = "preprocessing."
"""Prefix of the preprocessing's arrays in an exported coreset."""


PREVIEW = "preview"
PREVIEW_CLASSES = "preview_classes"
PREVIEW_IMAGES = 100
"""A preview shows at most so many images, the first of every class."""


def preview(coreset: Coreset, transform: Transform) -> dict[str, Array]:
    """Return the arrays from which a coreset can be drawn without its preprocessing: uint8 pixels and class numbers."""
    rows = np.arange(len(coreset))
    if len(rows) > PREVIEW_IMAGES:
        classes = np.unique(coreset.class_ids)[:PREVIEW_IMAGES]
        each = PREVIEW_IMAGES // len(classes)
        rows = np.concatenate([np.flatnonzero(coreset.class_ids == c)[:each] for c in classes])
    pixels = np.nan_to_num(transform.invert(np.asarray(coreset.images)[rows]))
    shown = np.rint(np.clip(pixels, 0.0, 1.0) * 255.0).astype(np.uint8)
    return {PREVIEW: shown, PREVIEW_CLASSES: np.asarray(coreset.class_ids)[rows].astype(np.int64)}


def read_coreset(artefact: Artefact) -> Coreset:
    """Return the coreset that a committed member, or an exported folder, holds."""
    try:
        return Coreset.restore(artefact.arrays, artefact.meta["coreset"], _recipe(artefact))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{artefact.folder} does not hold a readable coreset: {error!r}") from None


def _recipe(artefact: Artefact) -> Recipe:
    fitted = artefact.meta["stage"]["transform"]
    native = artefact.meta.get("native") or {}
    return Recipe(
        preprocessing=FittedRef(_ref(fitted), fitted["address"]),
        network=Ref(native["network"]["name"], native["network"]["options"]) if native else None,
        inference=Ref(native["inference"]["name"], native["inference"]["options"]) if native else None,
    )


def _ref(description: Mapping[str, Any]) -> Ref:
    spec = Spec.from_json(description)
    return Ref(spec.name, spec.settings())


def load_coreset(path: str | Path) -> Coreset:
    """Return the coreset in a folder: an exported one, or a member of a store. Every checksum is verified."""
    return read_coreset(_open(Path(path)))


def pixels(path: str | Path) -> Array:
    """Return a coreset's images as pixels in [0, 1], clipped, by inverting its own preprocessing."""
    artefact = _open(Path(path))
    images = transform_of(artefact).invert(artefact.arrays["images"])
    return np.clip(images, 0.0, 1.0)


def transform_of(artefact: Artefact) -> Transform:
    """Return the preprocessing of a coreset, from its export or from the store it lies in."""
    fitted: Mapping[str, Any] = artefact.meta["stage"]["transform"]
    plugin = Spec.from_json(fitted).build(registry())
    embedded = {
        name.removeprefix(EMBEDDED): artefact.arrays[name] for name in artefact.arrays if name.startswith(EMBEDDED)
    }
    if not embedded:
        store = Store.open(_store_root(artefact.folder), create=False)
        embedded = dict(store.read(Address.parse(fitted["address"])).arrays)
    return Transform(plugin, embedded, fitted["address"])


def export_coreset(
    store: Store, address: Address, target: Path, own: tuple[PluginRecord, PluginRecord] | None = None
) -> None:
    """Write a coreset, its recipe and its preprocessing into a new folder that `load_coreset` reads anywhere.

    `own` are the method's native inference and network, which a manifest knows; they join the recipe.
    """
    if target.exists():
        raise UserError(f"{target} exists already")
    artefact = store.read(address)
    transform = transform_of(artefact)
    arrays = {name: artefact.arrays[name] for name in artefact.arrays}
    arrays |= {EMBEDDED + name: array for name, array in transform.arrays.items()}
    meta = {key: value for key, value in artefact.meta.items() if key not in ("files", "checksum")}
    if own is not None:
        meta["native"] = {"inference": asdict(own[0]), "network": asdict(own[1])}
    temporary = folder.temporary(target.parent)
    try:
        folder.write(temporary, STAGE, meta, arrays, {})
        folder.publish(temporary, target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _open(path: Path) -> Artefact:
    if not (path / STAGE).is_file():
        raise UserError(f"{path} holds no coreset: there is no {STAGE} in it")
    try:
        meta = folder.read_meta(path, STAGE)
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None
    problem = folder.verify(path, meta)
    if problem is not None:
        raise UserError(f"{path}: {problem}")
    if "coreset" not in meta:
        raise UserError(f"{path} holds a {meta.get('kind', 'folder')}, not a coreset")
    address = Address(meta["kind"], meta["key"], meta["member"])
    return Artefact(address, path, meta, folder.LazyArrays(path / folder.ARRAYS))


def _store_root(path: Path) -> Path:
    for parent in path.absolute().parents:
        if (parent / "store.json").is_file():
            return parent
    raise UserError(f"{path} lies in no store and was not exported, so its preprocessing is not at hand")
