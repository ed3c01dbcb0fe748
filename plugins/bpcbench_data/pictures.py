"""Data sets of picture files (JPEG, PNG, ...): Pillow decodes them, torchvision resizes and crops them."""

from __future__ import annotations

import abc
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from bpcbench.errors import UserError
from bpcbench.records import Array
from bpcbench_data.converted import Chunk, ConvertedDataset

if TYPE_CHECKING:
    from PIL.Image import Image

Mode = Literal["RGB", "L"]
"""Colour or grey, as Pillow names them."""

SUFFIXES = (".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
_CHUNK = 512
_THREADS = 4
_DEEP = ("I", "F")


class PictureDataset(ConvertedDataset):
    """Base of data sets of picture files: a subclass lists the files and decodes one of them."""

    @abc.abstractmethod
    def listed(self, root: Path, split: str) -> tuple[Sequence[str], Sequence[int]]:
        """Return the files and the labels of a split, in order."""

    @abc.abstractmethod
    def picture(self, path: str) -> Array:
        """Return one picture, decoded and resized, as uint8 CHW."""

    def chunks(self, root: Path, split: str) -> Iterator[Chunk]:
        """Yield the pictures in listed order, decoded by a few threads."""
        paths, labels = self.listed(root, split)
        with ThreadPoolExecutor(_THREADS, "pictures") as pool:
            for start in range(0, len(paths), _CHUNK):
                images = np.stack([*pool.map(self.picture, paths[start : start + _CHUNK])])
                yield images, np.asarray(labels[start : start + _CHUNK], np.int64)


def decode(path: str, mode: Mode, size: int | None = None) -> Array:
    """Return a picture as uint8 CHW; UserError if it is damaged or has more than eight bits per channel.

    With `size`, torchvision scales the shorter side to it (bilinear, antialiased) and cuts out the centre square.
    Transparency is dropped.
    """
    from PIL import Image as pillow  # noqa: N813

    try:
        with pillow.open(path) as opened:
            if opened.mode.startswith(_DEEP):
                raise ValueError(f"it has mode {opened.mode}, more than eight bits per channel; convert it first")
            picture = opened.convert("RGBA").convert(mode) if opened.mode == "P" else opened.convert(mode)
            if size is not None:
                picture = _square(picture, size)
    except Exception as error:  # a damaged picture may raise anything
        raise UserError(f"{path} cannot be read: {error}. Replace or remove it.") from None
    array: Array = np.asarray(picture)
    return array[None] if mode == "L" else np.ascontiguousarray(array.transpose(2, 0, 1))


def _square(picture: Image, size: int) -> Image:
    from bpcbench_torch.torchvision_compat import import_torchvision

    functional = import_torchvision().transforms.functional
    square: Image = functional.center_crop(functional.resize(picture, size), size)
    return square


def pictures_below(folder: str) -> list[str]:
    """Return the pictures in a folder and its subfolders, sorted within each folder; hidden files are skipped."""
    paths = []
    for place, folders, names in os.walk(folder, followlinks=True):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        paths += [f"{place}{os.sep}{name}" for name in sorted(names) if is_picture(name)]
    return paths


def is_picture(name: str) -> bool:
    """Return whether a file name is that of a picture."""
    return name.lower().endswith(SUFFIXES) and not name.startswith(".")


def changed(folder: Path) -> list[object]:
    """Return a value that changes when a folder gains, loses or renames files, or when a list file is edited."""
    return [folder.name, folder.stat().st_mtime_ns]
