"""Data sets whose files are converted once to memory-mapped arrays: the first use takes seconds, all others none.

A conversion is a folder `DATASET/SPLIT-IDENTITY` with `images.npy` (uint8, NCHW), `labels.npy` (int64) and `meta.json`;
`cache.py` says where. The identity is that of the source files (name, size, time of change), so a changed source is
converted anew. Whether files are the official ones is found out once, too, by their MD5 sums.
"""

from __future__ import annotations

import abc
import dataclasses
import hashlib
import json
import math
import shutil
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

from bpcbench.api import Dataset
from bpcbench.errors import UserError, unknown
from bpcbench.records import Array, Facts, Split
from bpcbench_data.bar import bar
from bpcbench_data.cache import digest, places, publish, remembered, state, sync

_FORMAT = 1
_IMAGES, _LABELS, _META = "images.npy", "labels.npy", "meta.json"
_ABANDONED = 24 * 3600
"""Seconds after which an unfinished conversion is taken for that of a killed process."""
_SLICE = 1 << 20

Chunk = tuple[Array, Array]
"""Some images (uint8, NCHW) and their labels, in the order of the split."""


class ConvertedDataset(Dataset):
    """A data set that says where its files are and how to read them; the rest is done here.

    Facts must be cheap and must raise MissingData if files are absent; they are official if `not self.differs(root)`.
    `chunks` must raise UserError for malformed content. A conversion that fails leaves nothing behind.
    """

    @abc.abstractmethod
    def sources(self, root: Path, split: str) -> Sequence[Path]:
        """Return the files, all of them present, that a split is read from."""

    @abc.abstractmethod
    def chunks(self, root: Path, split: str) -> Iterable[Chunk]:
        """Read a split from its files, part by part."""

    def state(self, root: Path, split: str) -> Any:
        """Return what changes, as JSON, whenever the sources change; by default their names, sizes and times."""
        return [[path.name, *state(path)] for path in self.sources(root, split)]

    def official(self, root: Path) -> Mapping[Path, Collection[str]]:
        """Return the MD5 sums that each file may have, if those of the official files are published."""
        return {}

    def differs(self, root: Path) -> str:
        """Return which files have not the official MD5 sum; computed once, and again when a file has changed."""
        files = self.official(root)
        if not files:
            return ""
        present = [[path.name, *state(path), *sums] for path, sums in files.items()]
        wrong = self.learned(root, "checksums", present, lambda: self._wrong(files))
        named = ", ".join(str(path) for path in files if path.name in wrong)
        return f"the MD5 checksum of {named} is not that of the official file" if named else ""

    def learned(self, root: Path, what: str, state: Any, find: Callable[[], Any]) -> Any:
        """Return what `find` finds out about the files, as JSON; it is asked once, and again for another `state`."""
        return remembered(self._folders(root), what, [_FORMAT, self.version, state], find)

    def fingerprint(self, root: Path, split: str) -> str:
        """Return the SHA-256 of shape, images and labels, computed when the split is converted."""
        return self._converted(root, split)[0]

    def load(self, root: Path, split: str) -> Split:
        """Return a split whose images are a read-only memory map."""
        return self._converted(root, split)[1]

    def _folders(self, root: Path) -> list[Path]:
        """Return the folders for what is derived, one for each setting of the options: none evicts another."""
        variant = f"-{digest(repr(self))[:8]}" if dataclasses.fields(self) else ""
        return [place / f"{self.name}{variant}" for place in places(root)]

    def _wrong(self, files: Mapping[Path, Collection[str]]) -> list[str]:
        with bar(sum(path.stat().st_size for path in files), f"{self.name}: checksums", "B") as progress:
            return [path.name for path, sums in files.items() if _md5(path, progress) not in sums]

    def _converted(self, root: Path, split: str) -> tuple[str, Split]:
        """Return the fingerprint and the content of the valid conversion, after making it if there is none."""
        facts = self.facts(root)
        if split not in facts.sizes:
            raise ValueError(f"data set {self.name}: {unknown('split', split, facts.sizes)}")
        name = f"{split}-{digest([_FORMAT, self.version, self.state(root, split)])}"
        folders = self._folders(root)
        for folder in folders:
            if (found := _opened(folder / name, facts, split)) is not None:
                return found
        failures = []
        for folder in folders:
            try:
                self._convert(root, split, facts, folder / name)
            except OSError as error:
                failures.append(f"{folder}: {error.strerror or error}")
                continue
            if (found := _opened(folder / name, facts, split)) is not None:
                return found
            failures.append(f"{folder}: what was written could not be read back")
        raise UserError(f"data set {self.name} cannot be converted, for nothing can be written: {'; '.join(failures)}")

    def _convert(self, root: Path, split: str, facts: Facts, target: Path) -> None:
        """Write the conversion beside its final place, then rename it: it is there completely or not at all."""
        shutil.rmtree(target, ignore_errors=True)  # a damaged one: the caller found none that is valid
        temporary = target.parent / f"tmp-{uuid.uuid4().hex}"
        try:
            temporary.mkdir(parents=True)
            shape = (facts.sizes[split], *facts.shape)
            where = f"data set {self.name}, split {split}"
            with bar(shape[0], f"{self.name}: converting {split}", "image") as progress:
                fingerprint = _write(temporary, shape, self.chunks(root, split), where, progress)
            files = {name: state(temporary / name) for name in (_IMAGES, _LABELS)}
            with (temporary / _META).open("wb") as stream:
                stream.write(json.dumps({"fingerprint": fingerprint, "files": files}).encode())
                sync(stream)
            publish(temporary, target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        _tidy(target, split)


def _md5(path: Path, progress: Callable[[int], object]) -> str:
    found = hashlib.md5(usedforsecurity=False)  # what the authors of the data sets published
    with path.open("rb") as stream:
        while part := stream.read(_SLICE):
            found.update(part)
            progress(len(part))
    return found.hexdigest()


def _opened(place: Path, facts: Facts, split: str) -> tuple[str, Split] | None:
    """Return a conversion's fingerprint and content without reading images, or None if it is not what was written."""
    try:
        meta = json.loads((place / _META).read_bytes())
        if any(state(place / name) != known for name, known in meta["files"].items()):
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


def _write(
    place: Path, shape: tuple[int, ...], chunks: Iterable[Chunk], where: str, progress: Callable[[int], object]
) -> str:
    """Write images and labels in one pass, chunk by chunk, and return their fingerprint."""
    found = hashlib.sha256(json.dumps(shape).encode())
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
            found.update(content)
            labels.append(np.asarray(classes, "<i8"))
            rows += len(classes)
            progress(len(classes))
        sync(stream)
    if rows != shape[0]:
        raise UserError(f"{where}: its files hold {rows} images and should hold {shape[0]}")
    joined = np.concatenate([*labels, np.empty(0, "<i8")])
    with (place / _LABELS).open("wb") as stream:
        np.save(stream, joined, allow_pickle=False)
        sync(stream)
    found.update(joined.data)
    return found.hexdigest()


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
