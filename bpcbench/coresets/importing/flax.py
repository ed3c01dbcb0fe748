"""Flax checkpoints: msgpack, restricted to what flax writes, decoded without flax or msgpack.

Arrays are extensions of type 1, and NumPy scalars of type 3: a packed (shape, name of the type, bytes).
"""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

import numpy as np

from bpcbench.coresets.importing.contents import FILE_BYTES, Contents, flattened
from bpcbench.reading import read_bounded
from bpcbench.records import Array

_DEPTH = 32
_TYPES = frozenset(
    ("bool", "float16", "float32", "float64", *(f"{u}int{b}" for u in ("", "u") for b in (8, 16, 32, 64)))
)
_NUMBERS = {
    0xCA: ">f",
    0xCB: ">d",
    0xCC: ">B",
    0xCD: ">H",
    0xCE: ">I",
    0xCF: ">Q",
    0xD0: ">b",
    0xD1: ">h",
    0xD2: ">i",
    0xD3: ">q",
}
_LENGTHS = {
    **dict(zip((0xC4, 0xC5, 0xC6), ("bytes",) * 3, strict=True)),
    **dict(zip((0xC7, 0xC8, 0xC9), ("ext",) * 3, strict=True)),
    **dict(zip((0xD9, 0xDA, 0xDB), ("text",) * 3, strict=True)),
    **dict(zip((0xDC, 0xDD), ("list",) * 2, strict=True)),
    **dict(zip((0xDE, 0xDF), ("map",) * 2, strict=True)),
}
_WIDTHS = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xC7: 1, 0xC8: 2, 0xC9: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
_WIDTHS |= {0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4}


def read_flax(path: Path) -> Contents:
    """Return the arrays of a checkpoint, by their names joined with slashes."""
    return decoded(read_bounded(path, FILE_BYTES, follow=True))


def decoded(content: bytes) -> Contents:
    """Return the arrays in the bytes of a checkpoint; ValueError if they are anything else."""
    reader = _Reader(content)
    tree = reader.value(0)
    if reader.at != len(content):
        raise ValueError(f"{len(content) - reader.at:,} bytes follow its end")
    if isinstance(tree, dict) and "__msgpack_chunked_array__" in tree:
        raise ValueError("arrays in chunks are not supported")
    return flattened(tree, lambda item: item if isinstance(item, np.ndarray) else None)


class _Reader:
    """A cursor over bytes; lengths are compared with what is left before anything is made."""

    def __init__(self, content: bytes) -> None:
        self.content = memoryview(content)
        self.at = 0

    def take(self, count: int) -> memoryview:
        if count > len(self.content) - self.at:
            raise ValueError(f"it ends early: {count:,} bytes expected at byte {self.at:,}")
        self.at += count
        return self.content[self.at - count : self.at]

    def value(self, depth: int) -> Any:
        if depth > _DEPTH:
            raise ValueError("it is nested too deeply")
        (code,) = self.take(1)
        if code <= 0x7F:
            return code
        if code >= 0xE0:
            return code - 256
        if code <= 0x8F:
            return self.sized("map", code & 0x0F, depth)
        if code <= 0x9F:
            return self.sized("list", code & 0x0F, depth)
        if code <= 0xBF:
            return self.sized("text", code & 0x1F, depth)
        if code in (0xC0, 0xC2, 0xC3):
            return {0xC0: None, 0xC2: False, 0xC3: True}[code]
        if code in _NUMBERS:
            form = _NUMBERS[code]
            return struct.unpack(form, self.take(struct.calcsize(form)))[0]
        if 0xD4 <= code <= 0xD8:
            return self.sized("ext", 1 << (code - 0xD4), depth)
        if code not in _LENGTHS:
            raise ValueError(f"byte {code:#x} means nothing in msgpack")
        return self.sized(_LENGTHS[code], int.from_bytes(self.take(_WIDTHS[code]), "big"), depth)

    def sized(self, kind: str, count: int, depth: int) -> Any:
        if kind in ("map", "list"):
            # Every item takes a byte at least.
            if count > len(self.content) - self.at:
                raise ValueError(f"it ends early: {count:,} items expected at byte {self.at:,}")
            if kind == "list":
                return [self.value(depth + 1) for _ in range(count)]
            return {str(self.value(depth + 1)): self.value(depth + 1) for _ in range(count)}
        if kind == "ext":
            (code,) = self.take(1)
            return _array(bytes(self.take(count))) if code in (1, 3) else None
        content = bytes(self.take(count))
        return content.decode("utf-8", "replace") if kind == "text" else content


def _array(content: bytes) -> Array:
    match _Reader(content).value(0):
        case [list(shape), str(name), bytes(raw)]:
            pass
        case _:
            raise ValueError("an array in it is malformed")
    if not all(type(side) is int and side >= 0 for side in shape):
        raise ValueError("the shape of an array in it is malformed")
    short = name == "bfloat16"
    if not short and name not in _TYPES:
        raise ValueError(f"an array in it is of type {name[:30]!r}")
    dtype = np.dtype(np.uint16 if short else name).newbyteorder("<")
    if math.prod(shape) * dtype.itemsize != len(raw):
        raise ValueError(f"an array in it of shape {tuple(shape)} has {len(raw):,} bytes")
    array = np.frombuffer(raw, dtype).reshape(shape)
    if short:
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array
