"""One committed folder: `arrays.safetensors` and a JSON file that describes and checks it. No pickle anywhere."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bpcbench.records import Array, Arrays

ARRAYS = "arrays.safetensors"


def write(folder: Path, name: str, meta: Mapping[str, Any], arrays: Arrays, files: Mapping[str, bytes]) -> None:
    """Write arrays, further files and `name` (JSON with their checksums and its own) into a new folder, durably."""
    from safetensors.numpy import save

    folder.mkdir(parents=True)
    contents = dict(files)
    if arrays:
        contents[ARRAYS] = save({key: _storable(key, value) for key, value in arrays.items()})
    listed = {}
    for file, content in contents.items():
        write_durably(folder / file, content)
        listed[file] = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    # As it will be read: JSON turns keys into strings, which changes their order and with it the checksum.
    body = json.loads(json.dumps({**meta, "files": listed}))
    body["checksum"] = checksum(body)
    write_durably(folder / name, (json.dumps(body, indent=1, sort_keys=True) + "\n").encode())
    sync_folder(folder)


def storable(array: Array) -> bool:
    """Say whether the format has the array's type: booleans, integers, and floats that are not extended."""
    return array.dtype.kind in "biufc" and array.dtype.itemsize <= 8


def _storable(name: str, value: Any) -> Array:
    array: Array = np.asarray(value, order="C")
    if not storable(array):
        raise TypeError(f"array {name!r} is of type {array.dtype}, which cannot be stored")
    return array


def checksum(body: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a JSON body without its own `checksum`."""
    plain = {key: value for key, value in body.items() if key != "checksum"}
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def read_meta(folder: Path, name: str) -> dict[str, Any]:
    """Return the JSON of a folder; raise ValueError if it is not what was written."""
    try:
        body = json.loads((folder / name).read_bytes())
    except (OSError, ValueError) as error:
        raise ValueError(f"{name} cannot be read: {error}") from None
    if not isinstance(body, dict) or body.get("checksum") != checksum(body):
        raise ValueError(f"{name} is damaged: its checksum does not match")
    return body


def verify(folder: Path, meta: Mapping[str, Any]) -> str | None:
    """Compare every file with its checksum; return what is wrong, or None."""
    for file, expected in meta["files"].items():
        path = folder / file
        try:
            if path.stat().st_size != expected["bytes"]:
                return f"{file} has {path.stat().st_size} bytes instead of {expected['bytes']}"
            if _sha256(path) != expected["sha256"]:
                return f"{file} does not match its checksum"
        except OSError as error:
            return f"{file} cannot be read: {error}"
    return None


def _sha256(path: Path) -> str:
    result = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            result.update(block)
    return result.hexdigest()


class LazyArrays(Mapping[str, Array]):
    """The arrays of a safetensors file, each read from the memory-mapped file when asked for."""

    def __init__(self, path: Path) -> None:
        from safetensors import safe_open

        self._names: list[str] = []
        self._file: Any = None
        if path.exists():
            self._file = safe_open(path, framework="numpy")
            self._names = list(self._file.keys())

    def __getitem__(self, name: str) -> Array:
        if name not in self._names:
            raise KeyError(name)
        result: Array = self._file.get_tensor(name)
        return result

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def publish(source: Path, target: Path) -> bool:
    """Rename a finished folder into place; the first one wins. Return False if another was there already."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        source.rename(target)
    except OSError:
        if not target.exists():
            raise
        shutil.rmtree(source, ignore_errors=True)
        return False
    sync_folder(target.parent)
    return True


def temporary(parent: Path) -> Path:
    """Return a new name for a folder that will be published from `parent`."""
    parent.mkdir(parents=True, exist_ok=True)
    return parent / f"tmp-{uuid.uuid4().hex}"


def size(folder: Path) -> int:
    """Return the bytes of all files below a folder; those that vanish meanwhile do not count."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size if path.is_file() else 0
    return total


def write_durably(path: Path, content: bytes) -> None:
    """Write a file and force it to disk."""
    with path.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


def sync_folder(path: Path) -> None:
    """Make a folder's entries durable, where the platform can."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError:
        pass
    finally:
        os.close(descriptor)
