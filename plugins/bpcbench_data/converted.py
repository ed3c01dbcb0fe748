"""Data sets whose files are converted once to memory-mapped arrays: the first use takes seconds, all others none.

A conversion is a folder `DATASET/SPLIT-IDENTITY` with `images.npy` (uint8, NCHW), `labels.npy` (int64) and `meta.json`.
The identity is that of the source files (name, size, time of change), so a changed source is converted anew. It lies
in `.bpcbench` below the data root or, where nothing can be written there, in the user's cache.
"""

from __future__ import annotations

import abc
import contextlib
import hashlib
import json
import math
import os
import shutil
import time
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.lib import format as npy

from bpcbench.api import Dataset
from bpcbench.errors import UserError, unknown
from bpcbench.records import Array, Facts, Split

_FORMAT = 1
_IMAGES, _LABELS, _META = "images.npy", "labels.npy", "meta.json"
_ABANDONED = 24 * 3600
"""Seconds after which an unfinished conversion is taken for that of a killed process."""

Chunk = tuple[Array, Array]
"""Some images (uint8, NCHW) and their labels, in the order of the split."""


class ConvertedDataset(Dataset):
    """A data set that says where its files are and how to read them; the rest is done here.

    Facts must be cheap and must raise MissingData if files are absent. `chunks` must raise UserError for content that
    is not as it should be. Nothing is left behind by a conversion that fails.
    """

    @abc.abstractmethod
    def sources(self, root: Path, split: str) -> Sequence[Path]:
        """Return the files, all of them present, that a split is read from."""

    @abc.abstractmethod
    def chunks(self, root: Path, split: str) -> Iterable[Chunk]:
        """Read a split from its files, part by part."""

    def fingerprint(self, root: Path, split: str) -> str:
        """Return the SHA-256 of shape, images and labels, computed when the split is converted."""
        return self._converted(root, split)[0]

    def load(self, root: Path, split: str) -> Split:
        """Return a split whose images are a read-only memory map."""
        return self._converted(root, split)[1]

    def _converted(self, root: Path, split: str) -> tuple[str, Split]:
        """Return the fingerprint and the content of the valid conversion, after making it if there is none."""
        facts = self.facts(root)
        if split not in facts.sizes:
            raise ValueError(f"data set {self.name}: {unknown('split', split, facts.sizes)}")
        name = f"{split}-{self._identity(root, split)}"
        places = [place / self.name for place in _places(root)]
        for place in places:
            if (found := _opened(place / name, facts, split)) is not None:
                return found
        failures = []
        for place in places:
            try:
                self._convert(root, split, facts, place / name)
            except OSError as error:
                failures.append(f"{place}: {error.strerror or error}")
                continue
            if (found := _opened(place / name, facts, split)) is not None:
                return found
            failures.append(f"{place}: what was written could not be read back")
        raise UserError(f"data set {self.name} cannot be converted, for nothing can be written: {'; '.join(failures)}")

    def _identity(self, root: Path, split: str) -> str:
        """Return what tells this state of the source files, read in this way, from every other."""
        files = [[path.name, path.stat().st_size, path.stat().st_mtime_ns] for path in self.sources(root, split)]
        return hashlib.sha256(json.dumps([_FORMAT, self.version, files]).encode()).hexdigest()[:16]

    def _convert(self, root: Path, split: str, facts: Facts, target: Path) -> None:
        """Write the conversion beside its final place, then rename it: it is there completely or not at all."""
        shutil.rmtree(target, ignore_errors=True)  # a damaged one: the caller found none that is valid
        temporary = target.parent / f"tmp-{uuid.uuid4().hex}"
        try:
            temporary.mkdir(parents=True)
            shape = (facts.sizes[split], *facts.shape)
            where = f"data set {self.name}, split {split}"
            fingerprint = _write(temporary, shape, self.chunks(root, split), where)
            files = {name: _state(temporary / name) for name in (_IMAGES, _LABELS)}
            with (temporary / _META).open("wb") as stream:
                stream.write(json.dumps({"fingerprint": fingerprint, "files": files}).encode())
                _sync(stream)
            _sync_entries(temporary)
            _publish(temporary, target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        _tidy(target, split)


def _places(root: Path) -> list[Path]:
    """Return where conversions may lie: below the data root, else in the user's cache under a name for that root."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    tag = hashlib.sha256(str(root.resolve()).encode()).hexdigest()[:16]
    return [root / ".bpcbench", cache / "bpcbench" / "converted" / tag]


def _opened(place: Path, facts: Facts, split: str) -> tuple[str, Split] | None:
    """Return a conversion's fingerprint and content without reading images, or None if it is not what was written."""
    try:
        meta = json.loads((place / _META).read_bytes())
        if any(_state(place / name) != state for name, state in meta["files"].items()):
            return None
        images = np.load(place / _IMAGES, mmap_mode="r", allow_pickle=False)
        labels = np.load(place / _LABELS, allow_pickle=False)
        fingerprint = str(meta["fingerprint"])
    except (AttributeError, KeyError, OSError, TypeError, ValueError):
        return None
    size = facts.sizes[split]
    if images.shape != (size, *facts.shape) or labels.shape != (size,):
        return None
    return fingerprint, Split(images, labels)


def _state(path: Path) -> list[int]:
    """Return size and time of change: whoever writes into a file changes them."""
    return [path.stat().st_size, path.stat().st_mtime_ns]


def _write(place: Path, shape: tuple[int, ...], chunks: Iterable[Chunk], where: str) -> str:
    """Write images and labels in one pass, chunk by chunk, and return their fingerprint."""
    digest = hashlib.sha256(json.dumps(shape).encode())
    labels: list[Array] = []
    rows = 0
    # Written as a stream: a full disk is then an error, while in a memory map it would be the end of the process.
    with (place / _IMAGES).open("wb") as stream:
        npy.write_array_header_1_0(stream, {"descr": "|u1", "fortran_order": False, "shape": shape})
        for images, classes in chunks:
            if images.dtype != np.uint8 or images.shape != (len(classes), *shape[1:]):
                raise UserError(f"{where}: {len(classes)} labels for {images.dtype} images {images.shape}")
            content = np.ascontiguousarray(images).data
            stream.write(content)
            digest.update(content)
            labels.append(np.asarray(classes, "<i8"))
            rows += len(classes)
        _sync(stream)
    if rows != shape[0]:
        raise UserError(f"{where}: its files hold {rows} images and should hold {shape[0]}")
    joined = np.concatenate([*labels, np.empty(0, "<i8")])
    with (place / _LABELS).open("wb") as stream:
        np.save(stream, joined, allow_pickle=False)
        _sync(stream)
    digest.update(joined.data)
    return digest.hexdigest()


def _sync(stream: BinaryIO) -> None:
    stream.flush()
    os.fsync(stream.fileno())


def _publish(source: Path, target: Path) -> None:
    """Rename a complete folder; where another process was first, its folder, which is the same, stays."""
    try:
        source.rename(target)
    except OSError:
        if not target.exists():
            raise
        return
    _sync_entries(target.parent)


def _sync_entries(folder: Path) -> None:
    """Make the names in a folder durable, on file systems that can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _tidy(target: Path, split: str) -> None:
    """Remove conversions of former states of the files, and what killed processes left."""
    limit = time.time() - _ABANDONED
    for path in target.parent.iterdir():
        stale = path.name.rpartition("-")[0] == split and path != target
        if stale or (path.name.startswith("tmp-") and _changed(path) < limit):
            shutil.rmtree(path, ignore_errors=True)


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return math.inf
