"""Coresets outside a run: read from a store or an exported folder, shown as pixels, and exported with their recipe."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bpcbench.errors import UserError
from bpcbench.records import Array, Coreset, Recipe, Transform
from bpcbench.registry.discovery import registry
from bpcbench.registry.options import as_ref, build
from bpcbench.store import folder
from bpcbench.store.address import Address
from bpcbench.store.store import STAGE, Artefact, Store

EMBEDDED = "preprocessing."
"""Prefix of the preprocessing's arrays in an exported coreset."""


def read_coreset(artefact: Artefact) -> Coreset:
    """Return the coreset that a committed member holds."""
    about = artefact.meta["coreset"]
    return Coreset(
        images=artefact.arrays["images"],
        targets=artefact.arrays["targets"],
        class_ids=artefact.arrays["class_ids"],
        classes=about["classes"],
        convention=about["convention"],
        recipe=Recipe(**about["recipe"]),
    )


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
    description: Mapping[str, Any] = artefact.meta["coreset"]["recipe"]["preprocessing"]
    plugin: Any = build(registry(), "prerequisite", as_ref(description["plugin"]))
    embedded = {
        name.removeprefix(EMBEDDED): artefact.arrays[name] for name in artefact.arrays if name.startswith(EMBEDDED)
    }
    if not embedded:
        store = Store.open(_store_root(artefact.folder), create=False)
        embedded = dict(store.read(Address.parse(description["address"])).arrays)
    return Transform(plugin, embedded, description["address"])


def export_coreset(store: Store, address: Address, target: Path) -> None:
    """Write a coreset, its recipe and its preprocessing into a new folder that `load_coreset` reads anywhere."""
    if target.exists():
        raise UserError(f"{target} exists already")
    artefact = store.read(address)
    transform = transform_of(artefact)
    arrays = {name: artefact.arrays[name] for name in artefact.arrays}
    arrays |= {EMBEDDED + name: array for name, array in transform.arrays.items()}
    meta = {key: value for key, value in artefact.meta.items() if key not in ("files", "checksum")}
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
