"""One committed folder: `arrays.safetensors` and a JSON file that describes and checks it. No pickle anywhere."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import stat
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bpcbench.reading import opened, parse_json, read_bounded
from bpcbench.records import Array, Arrays

ARRAYS = "arrays.safetensors"
_FILE = re.compile(r"[A-Za-z0-9_.+~-]{1,100}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class Unreadable(ValueError):
    """The system refuses to read a file, which says nothing about its content."""


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
    _write_meta(folder / name, body)
    sync_folder(folder)


def _write_meta(path: Path, body: Mapping[str, Any]) -> None:
    write_durably(path, (json.dumps(body, indent=1, sort_keys=True) + "\n").encode())


def copy(source: Path, folder: Path, name: str, meta: Mapping[str, Any]) -> None:
    """Copy the files that `meta` lists, and `meta` itself as `name`, into a new folder, durably.

    Every file is verified on the way; ValueError says what is wrong with the source. Nothing else is copied.
    """
    folder.mkdir(parents=True)
    for file, expected in meta["files"].items():
        with (folder / file).open("xb") as stream:
            _check_file(source / file, expected, stream.write)
            stream.flush()
            os.fsync(stream.fileno())
    if ARRAYS in meta["files"]:
        LazyArrays(folder / ARRAYS)
    _write_meta(folder / name, meta)
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
        body = parse_json(read_bounded(folder / name))
        intact = isinstance(body, dict) and body.get("checksum") == checksum(body)
    except OSError as error:
        raise _unreadable(name, error) from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name} cannot be read: {error}") from None
    if not intact:
        raise ValueError(f"{name} is damaged: its checksum does not match")
    if not _lists_files(body.get("files")):
        raise ValueError(f"{name} is damaged: its list of files is malformed")
    return dict(body)


def _lists_files(files: object) -> bool:
    """Tell whether each name is that of a file inside the folder, and each entry has a checksum and a size."""
    return isinstance(files, dict) and all(
        _FILE.fullmatch(file)
        and file not in (".", "..")
        and isinstance(entry, dict)
        and isinstance(entry.get("sha256"), str)
        and _SHA256.fullmatch(entry["sha256"])
        and type(entry.get("bytes")) is int
        and entry["bytes"] >= 0
        for file, entry in files.items()
    )


def _unreadable(file: str, error: OSError) -> ValueError:
    damaged = isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError)
    return (ValueError if damaged else Unreadable)(f"{file} cannot be read: {error.strerror or error}")


def verify(folder: Path, meta: Mapping[str, Any]) -> str | None:
    """Compare every file with its checksum; return what is wrong, or None."""
    try:
        check(folder, meta)
    except ValueError as error:
        return str(error)
    return None


def check(folder: Path, meta: Mapping[str, Any]) -> None:
    """Compare every file with its checksum; raise ValueError, or Unreadable, for the first that does not match."""
    for file, expected in meta["files"].items():
        _check_file(folder / file, expected, lambda _: None)


def _check_file(path: Path, expected: Mapping[str, Any], use: Callable[[bytes], object]) -> None:
    """Hash a file and hand its blocks to `use`; errors of `use` are its own."""
    digest = hashlib.sha256()
    for block in _blocks(path, expected["bytes"]):
        digest.update(block)
        use(block)
    if digest.hexdigest() != expected["sha256"]:
        raise ValueError(f"{path.name} does not match its checksum")


def _blocks(path: Path, size: int) -> Iterator[bytes]:
    try:
        with opened(path) as stream:
            actual = os.fstat(stream.fileno()).st_size
            # Not beyond its size: someone may be appending to it.
            while actual == size and size > 0 and (block := stream.read(min(size, 1 << 20))):
                size, actual = size - len(block), actual - len(block)
                yield block
    except OSError as error:
        raise _unreadable(path.name, error) from None
    except ValueError as error:
        raise ValueError(f"{path.name} cannot be read: {error}") from None
    if actual != size:
        raise ValueError(f"{path.name} has {actual} bytes instead of {size}")


class LazyArrays(Mapping[str, Array]):
    """The arrays of a safetensors file, each read from the memory-mapped file when asked for; none without a file."""

    def __init__(self, path: Path | None) -> None:
        from safetensors import SafetensorError, safe_open

        self._names: list[str] = []
        self._file: Any = None
        if path is not None and path.exists():
            try:
                self._file = safe_open(path, framework="numpy")
            except SafetensorError as error:
                raise ValueError(f"{path.name} cannot be read: {error}") from None
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
    """Return the bytes of all files below a folder; links, and files that vanish meanwhile, do not count."""
    total = 0
    for place, _, files in os.walk(folder) if not folder.is_symlink() else ():
        for file in files:
            with contextlib.suppress(FileNotFoundError):
                status = os.lstat(Path(place, file))
                total += status.st_size if stat.S_ISREG(status.st_mode) else 0
    return total


def delete(path: Path) -> None:
    """Delete a folder, or the file or link in its place, as far as that is possible; links are not followed."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def replace(path: Path, content: bytes, temporary: Path) -> None:
    """Write a file durably, first as `temporary`; readers see the old content or the new, never a part."""
    try:
        write_durably(temporary, content)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


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
