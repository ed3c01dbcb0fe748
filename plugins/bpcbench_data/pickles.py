"""A safe reader of pickled dicts of plain values and byte arrays, the format of CIFAR and downsampled ImageNet."""

from __future__ import annotations

import pickle
import pickletools
from pathlib import Path
from typing import Any

import numpy as np

from bpcbench.errors import UserError
from bpcbench.records import Array

_BYTE = "u1"
_NUMBERS = (_BYTE, "i1", "i2", "i4", "i8", "u2", "u4", "u8", "f2", "f4", "f8")
_INTEGERS = {"INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4"}
_TUPLES = {"TUPLE", "TUPLE2"}


def read_pickle(path: Path) -> dict[str, Any]:
    """Return a pickled dict of numbers, strings, lists and byte arrays; UserError for anything else.

    The file cannot import or call any code. It may name only three classes of NumPy, which are replaced by `_Bytes` and
    `_Type`, and these accept only arrays of numbers. Arrays of other types than unsigned bytes become None.
    """
    try:
        with path.open("rb") as stream:
            content = _Restricted(stream, encoding="bytes").load()
    except Exception as error:  # a damaged pickle may raise anything
        raise _damaged(path, str(error)) from None
    if not isinstance(content, dict):
        raise UserError(f"{path} holds a {type(content).__name__}, not a dict")
    return {text(key): value.array if isinstance(value, _Bytes) else value for key, value in content.items()}


def count_rows(path: Path, width: int) -> int:
    """Return the row count of the array whose rows have length `width`; the array itself is not read."""
    numbers: list[int] = []
    try:
        with path.open("rb") as stream:
            for opcode, argument, _ in pickletools.genops(stream):
                if opcode.name in _TUPLES and numbers[-1:] == [width] and len(numbers) > 1 and numbers[-2] >= 0:
                    return numbers[-2]
                numbers = [*numbers[-1:], int(str(argument))] if opcode.name in _INTEGERS else []
    except Exception as error:
        raise _damaged(path, str(error)) from None
    raise _damaged(path, f"it has no array with rows of {width} bytes")


def text(word: object) -> str:
    """Return a string that Python 2 or 3 pickled."""
    return word.decode("utf-8", "replace") if isinstance(word, bytes) else str(word)


def _damaged(path: Path, why: str) -> UserError:
    return UserError(f"{path} cannot be read: {why}. Replace it with a fresh copy.")


class _Type:
    """Stand-in for `numpy.dtype`; raises for anything but a numeric type."""

    def __init__(self, code: object, *flags: object) -> None:
        self.code = text(code)
        if self.code not in _NUMBERS:
            raise pickle.UnpicklingError(f"it holds an array of type {code!r}, not of numbers")

    def __setstate__(self, state: object) -> None:
        """Ignore byte order and alignment, which do not matter for bytes."""


class _Bytes:
    """Stand-in for `numpy.ndarray` and for the function that creates an empty array to be filled by its state."""

    array: Array | None = None

    def __init__(self, *arguments: object) -> None:
        """Ignore the arguments: there is only one kind of array."""

    def __setstate__(self, state: tuple[int, tuple[int, ...], _Type, bool, bytes]) -> None:
        """Set the array from (version, shape, type, Fortran order, content) if it holds unsigned bytes."""
        _, shape, kind, fortran, content = state
        if not isinstance(kind, _Type) or not isinstance(content, bytes):
            raise pickle.UnpicklingError("it holds an array of an unknown form")
        if kind.code == _BYTE:
            self.array = np.frombuffer(content, np.uint8).reshape(shape, order="F" if fortran else "C")


_ADMITTED: dict[tuple[str, str], type] = {
    ("numpy", "ndarray"): _Bytes,
    ("numpy", "dtype"): _Type,
    ("numpy.core.multiarray", "_reconstruct"): _Bytes,
    ("numpy._core.multiarray", "_reconstruct"): _Bytes,
}


class _Restricted(pickle.Unpickler):
    """An unpickler that resolves only the names an array needs."""

    def find_class(self, module: str, name: str) -> type:
        """Return the stand-in of an admitted name; raise for any other."""
        if (module, name) not in _ADMITTED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no data file needs")
        return _ADMITTED[module, name]
