"""Data sets whose files are converted once to memory-mapped arrays; later uses start at once.

A conversion is a folder `DATASET/SPLIT-IDENTITY` with `images.npy` (uint8, NCHW), `labels.npy` (int64) and `meta.json`,
in the folder that `cache.py` chooses. The identity is a digest of the source files' names, sizes and modification
times, so a changed source is converted again. MD5 sums are also checked once and cached.
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
"""Seconds after which an unfinished conversion counts as abandoned by a killed process."""
_SLICE = 1 << 20

Chunk = tuple[Array, Array]
"""Some images (uint8, NCHW) and their labels, in the order of the split."""


class ConvertedDataset(Dataset):
    """Base of data sets that are converted: a subclass locates its files and reads them.

    `facts` must be cheap, must raise MissingData if files are missing, and are official if `not self.differs(root)`.
    `chunks` must raise UserError for invalid content. A failed conversion leaves nothing behind.
    """

    @abc.abstractmethod
    def sources(self, root: Path, split: str) -> Sequence[Path]:
        """Return the files that a split is read from; all of them exist."""

    @abc.abstractmethod
    def chunks(self, root: Path, split: str) -> Iterable[Chunk]:
        """Read a split from its files, chunk by chunk."""

    def state(self, root: Path, split: str) -> Any:
        """Return a JSON value that changes with the sources; by default their names, sizes and modification times."""
        return [[path.name, *state(path)] for path in self.sources(root, split)]

    def official(self, root: Path) -> Mapping[Path, Collection[str]]:
        """Return the accepted MD5 sums of each file; empty if none are published."""
        return {}

    def differs(self, root: Path) -> str:
        """Name the files whose MD5 sum is not the official one; the result is cached until a file changes."""
        files = self.official(root)
        if not files:
            return ""
        present = [[path.name, *state(path), *sums] for path, sums in files.items()]
        wrong = self.learned(root, "checksums", present, lambda: self._wrong(files))
        named = ", ".join(str(path) for path in files if path.name in wrong)
        return f"the MD5 checksum of {named} is not that of the official file" if named else ""

    def learned(self, root: Path, what: str, state: Any, compute: Callable[[], Any]) -> Any:
        """Return the JSON value of `compute()`, cached for as long as `state` stays the same."""
        return remembered(self._folders(root), what, [_FORMAT, self.version, state], compute)

    def fingerprint(self, root: Path, split: str) -> str:
        """Return the SHA-256 of shape, images and labels, computed when the split is converted."""
        return self._converted(root, split)[0]

    def load(self, root: Path, split: str) -> Split:
        """Return a split whose images are a read-only memory map."""
        return self._converted(root, split)[1]

    def _folders(self, root: Path) -> list[Path]:
        """Return the cache folders of these options; other options have other folders, so none evicts another."""
        variant = f"-{digest(repr(self))[:8]}" if dataclasses.fields(self) else ""
        return [place / f"{self.name}{variant}" for place in places(root)]

    def _wrong(self, files: Mapping[Path, Collection[str]]) -> list[str]:
        with bar(sum(path.stat().st_size for path in files), f"{self.name}: checksums", "B") as progress:
            return [path.name for path, sums in files.items() if _md5(path, progress) not in sums]

    def _converted(self, root: Path, split: str) -> tuple[str, Split]:
        """Return the fingerprint and the content of a valid conversion; convert first if there is none."""
        facts = self.facts(root)
        if split not in facts.sizes:
            raise ValueError(f"data set {self.name}: {unknown('split', split, facts.sizes)}")
        name = f"{split}-{digest([_FORMAT, self.version, self.state(root, split)])}"
        folders = self._folders(root)
        for folder in folders:
            if (opened := _opened(folder / name, facts, split)) is not None:
                return opened
        failures = []
        for folder in folders:
            try:
                self._convert(root, split, facts, folder / name)
            except OSError as error:
                failures.append(f"{folder}: {error.strerror or error}")
                continue
            if (opened := _opened(folder / name, facts, split)) is not None:
                return opened
            failures.append(f"{folder}: what was written could not be read back")
        raise UserError(
            f"data set {self.name} cannot be converted because no cache folder can be used: {'; '.join(failures)}"
        )

    def _convert(self, root: Path, split: str, facts: Facts, target: Path) -> None:
        """Write the conversion to a temporary folder, then rename it, so that it is complete or absent."""
        shutil.rmtree(target, ignore_errors=True)  # damaged: the caller has already looked for a valid one
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
    checksum = hashlib.md5(usedforsecurity=False)  # the sum that data set authors publish
    with path.open("rb") as stream:
        while part := stream.read(_SLICE):
            checksum.update(part)
            progress(len(part))
    return checksum.hexdigest()


def _opened(place: Path, facts: Facts, split: str) -> tuple[str, Split] | None:
    """Return a conversion's fingerprint and content without reading images, or None if it is invalid."""
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
    fingerprint = hashlib.sha256(json.dumps(shape).encode())
    labels: list[Array] = []
    rows = 0
    # A stream reports a full disk as an error; a memory map would kill the process.
    with (place / _IMAGES).open("wb") as stream:
        npy.write_array_header_1_0(stream, {"descr": "|u1", "fortran_order": False, "shape": shape})
        for images, classes in chunks:
            if images.dtype != np.uint8 or images.shape != (len(classes), *shape[1:]):
                raise UserError(f"{where}: {len(classes)} labels for {images.dtype} images {images.shape}")
            content = np.ascontiguousarray(images).data
            stream.write(content)
            fingerprint.update(content)
            labels.append(np.asarray(classes, "<i8"))
            rows += len(classes)
            progress(len(classes))
        sync(stream)
    if rows != shape[0]:
        raise UserError(f"{where}: its files hold {rows} images but should hold {shape[0]}")
    joined = np.concatenate([*labels, np.empty(0, "<i8")])
    with (place / _LABELS).open("wb") as stream:
        np.save(stream, joined, allow_pickle=False)
        sync(stream)
    fingerprint.update(joined.data)
    return fingerprint.hexdigest()


def _tidy(target: Path, split: str) -> None:
    """Remove stale conversions and the leftovers of killed processes."""
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
