"""The named arrays of a file or folder of any supported format, read within limits and without pickle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from bpcbench.errors import UserError
from bpcbench.reading import opened
from bpcbench.records import Array

FILE_BYTES = 2_000_000_000
"""The largest file that is read, and the most that all arrays of a file may hold."""
FORMATS = "npz, npy, safetensors, pt, a flax checkpoint (msgpack), or a folder with a folder of PNG files per class"
_DEPTH = 16
_ITEMS = 10_000


@dataclass(frozen=True, eq=False)
class Contents:
    """Arrays by name, what could not be used and why, and the digest of every file that was read.

    Names inside nested containers are joined by slashes. `text` holds texts that stand among arrays.
    """

    arrays: Mapping[str, Array]
    refused: Mapping[str, str] = field(default_factory=dict)
    text: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)


def read_contents(paths: Sequence[Path]) -> Contents:
    """Return the arrays of all files; an unnamed one is named by its file. UserError if one cannot be read."""
    arrays: dict[str, Array] = {}
    refused: dict[str, str] = {}
    text: dict[str, str] = {}
    files: dict[str, str] = {}
    for path in paths:
        one = _read(path)
        # Two files of one array each, such as images_best.pt and labels_best.pt, are told apart by their names.
        prefix = "" if len(paths) == 1 else f"{path.stem}/"
        for name, array in one.arrays.items():
            arrays[(prefix + name).rstrip("/") or path.stem] = array
        refused |= {(prefix + name).rstrip("/") or path.stem: reason for name, reason in one.refused.items()}
        text |= one.text
        files |= one.files
    return Contents(arrays, refused, text, files)


def _read(path: Path) -> Contents:
    from bpcbench.coresets.importing import flax, numpy_files, pictures, tensors

    try:
        if path.is_dir():
            return pictures.read(path)
        with opened(path, follow=True) as stream:
            start = stream.read(16)
            stream.seek(0, 2)
            size = stream.tell()
        if size > FILE_BYTES:
            raise ValueError(f"it has {size:,} bytes, more than the {FILE_BYTES:,} that are read")
        if start.startswith(b"\x93NUMPY"):
            found = numpy_files.read_npy(path)
        elif start.startswith(b"PK\x03\x04"):
            found = tensors.read_torch(path) if tensors.is_torch(path) else numpy_files.read_npz(path)
        elif start[8:9] == b"{" and int.from_bytes(start[:8], "little") <= size:
            found = tensors.read_safetensors(path)
        elif path.suffix in (".pt", ".pth"):
            found = tensors.read_torch(path)
        elif len(start) > 1 and start[0] == 0x80 and start[1] in range(2, 6):
            raise ValueError("it is a pickle, which is never opened: it could run any code")
        elif start and (start[0] in range(0x81, 0x90) or start[0] in (0xDE, 0xDF)):
            found = flax.read_flax(path)
        else:
            raise ValueError(f"its format is not known (allowed: {FORMATS})")
        return Contents(found.arrays, found.refused, found.text, {path.name: _digest(path)})
    except UserError:
        raise
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file") from None
    except (MemoryError, RecursionError):
        raise UserError(f"{path} cannot be read: it is too large or nested too deeply") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from None
    except (ArithmeticError, LookupError, TypeError, ValueError, EOFError) as error:
        raise UserError(f"{path} cannot be read: {str(error)[:300] or type(error).__name__}") from None


def flattened(tree: Any, convert: Any) -> Contents:
    """Return the leaves of nested mappings and lists that `convert` makes arrays of; it returns None for others.

    `convert` raises ValueError with the reason why an array cannot be used.
    """
    arrays: dict[str, Array] = {}
    refused: dict[str, str] = {}

    def walk(item: Any, names: tuple[str, ...]) -> None:
        if len(names) > _DEPTH or len(arrays) + len(refused) > _ITEMS:
            raise ValueError("it is nested too deeply or has too many arrays")
        if isinstance(item, Mapping):
            for key, value in item.items():
                walk(value, (*names, str(key)))
        elif isinstance(item, list | tuple):
            for index, value in enumerate(item[:_ITEMS]):
                walk(value, (*names, str(index)))
        else:
            try:
                array = convert(item)
            except ValueError as error:
                refused["/".join(names)] = str(error)
            else:
                if array is not None:
                    arrays["/".join(names)] = array

    walk(tree, ())
    return Contents(arrays, refused)


def _digest(path: Path) -> str:
    digest = sha256()
    with opened(path, follow=True) as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
