"""The idx format of MNIST and its relatives, plain or gzipped: unsigned bytes only, every header checked.

A file is two zero bytes, the type (8: unsigned byte), the number of dimensions, the dimensions as big-endian 32-bit
numbers, and the bytes in C order (http://yann.lecun.com/exdb/mnist).
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from bpcbench.errors import UserError
from bpcbench.records import Array

_UNSIGNED_BYTE = 8
_DEFLATE_LIMIT = 1032
"""The largest compression factor of DEFLATE, which bounds the content of a gzipped file."""


def find(folder: Path, name: str) -> Path | None:
    """Return the plain file if it exists, else the gzipped one, else None."""
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    return None


def shape(path: Path) -> tuple[int, ...]:
    """Return the dimensions declared in the header; UserError if this is not an idx file."""
    with _opened(path) as stream:
        return _header(path, stream)


def read(path: Path) -> Array:
    """Return the whole content as uint8; UserError if its length differs from the header."""
    with _opened(path) as stream:
        dimensions = _header(path, stream)
        wanted = math.prod(dimensions)
        factor = _DEFLATE_LIMIT if _gzipped(path) else 1
        if wanted > factor * path.stat().st_size:
            raise _damaged(path, f"its header promises {wanted} bytes, more than the file can hold: it is truncated")
        # One extra byte detects files that are too long, and makes gzip verify its checksum.
        content = stream.read(wanted + 1)
    if len(content) != wanted:
        length = f"{len(content)}" if len(content) < wanted else "more"
        raise _damaged(path, f"its header promises {wanted} bytes, but it holds {length}")
    return np.frombuffer(content, np.uint8).reshape(dimensions)


def _gzipped(path: Path) -> bool:
    return path.suffix == ".gz"


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file, and turn read errors into UserError."""
    try:
        with cast(BinaryIO, gzip.open(path)) if _gzipped(path) else path.open("rb") as stream:
            yield stream
    except (OSError, EOFError, zlib.error) as error:
        raise _damaged(path, str(error)) from None


def _header(path: Path, stream: BinaryIO) -> tuple[int, ...]:
    start = stream.read(4)
    if len(start) < 4 or start[:3] != bytes([0, 0, _UNSIGNED_BYTE]) or start[3] == 0:
        raise _damaged(path, f"it begins with {start.hex() or 'nothing'}, which is no idx header for unsigned bytes")
    dimensions = stream.read(4 * start[3])
    if len(dimensions) < 4 * start[3]:
        raise _damaged(path, "it ends within its header")
    return struct.unpack(f">{start[3]}I", dimensions)


def _damaged(path: Path, why: str) -> UserError:
    return UserError(f"{path} cannot be read: {why}. Replace it with a fresh copy.")
