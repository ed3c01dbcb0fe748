"""NumPy's npy and npz: headers are checked before anything is allocated, and objects are refused."""

from __future__ import annotations

import math
import zipfile
import zlib
from pathlib import Path
from typing import IO

import numpy as np

from bpcbench.coresets.importing.contents import FILE_BYTES, Contents
from bpcbench.reading import opened
from bpcbench.records import Array

_HEADER = 10_000
_TEXT = 10_000_000


def read_npy(path: Path) -> Contents:
    """Return the only array of an npy file, without a name."""
    with opened(path, follow=True) as stream:
        value = _array(stream)
    return Contents({"": value}) if isinstance(value, np.ndarray) else Contents({}, text={"": value})


def read_npz(path: Path) -> Contents:
    """Return the arrays of an npz file; those of unusable types are among the refused."""
    arrays: dict[str, Array] = {}
    refused: dict[str, str] = {}
    text: dict[str, str] = {}
    with opened(path, follow=True) as file:
        try:
            with zipfile.ZipFile(file) as archive:
                entries = [entry for entry in archive.infolist() if entry.filename.endswith(".npy")]
                total = sum(entry.file_size for entry in entries)
                if total > FILE_BYTES:
                    raise ValueError(f"it unpacks to {total:,} bytes, more than the {FILE_BYTES:,} that are read")
                for entry in entries:
                    name = entry.filename.removesuffix(".npy")
                    with archive.open(entry) as stream:
                        try:
                            value = _array(stream)
                        except ValueError as error:
                            refused[name] = str(error)
                            continue
                    if isinstance(value, np.ndarray):
                        arrays[name] = value
                    else:
                        text[name] = value
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError, zlib.error) as error:
            raise ValueError(f"it is damaged: {error}") from None
    if not arrays and not refused and not text:
        raise ValueError("it holds no arrays")
    return Contents(arrays, refused, text)


def _array(stream: IO[bytes]) -> Array | str:
    """Return an array of numbers, or a single text."""
    try:
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        if version not in ((1, 0), (2, 0)):
            raise ValueError(f"npy version {version} is not known")
        shape, fortran, dtype = read(stream, max_header_size=_HEADER)
    except Exception as error:
        # NumPy parses headers as Python literals and raises whatever the tokenizer and the parser do.
        raise ValueError(f"its header is malformed: {type(error).__name__}") from None
    if dtype.hasobject:
        raise ValueError("it holds Python objects (pickle), which are never opened")
    if any(side < 0 for side in shape):
        raise ValueError(f"its shape is {shape}")
    size = math.prod(shape) * dtype.itemsize
    single = dtype.kind == "U" and shape == () and size <= _TEXT
    if not single and dtype.kind not in "biuf":
        raise ValueError(f"its type, {dtype}, is not a number")
    if size > FILE_BYTES:
        raise ValueError(f"its shape, {shape}, needs {size:,} bytes, more than the {FILE_BYTES:,} that are read")
    content = _exactly(stream, size)
    array = np.frombuffer(content, dtype).reshape(shape, order="F" if fortran else "C")
    return str(array[()]) if single else array


def _exactly(stream: IO[bytes], size: int) -> bytes:
    """Read so many bytes in blocks: a header may promise more than there is."""
    parts = []
    left = size
    while left:
        block = stream.read(min(left, 1 << 24))
        if not block:
            raise ValueError(f"it ends {left:,} bytes too early")
        parts.append(block)
        left -= len(block)
    return b"".join(parts)
