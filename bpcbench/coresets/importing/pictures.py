"""A folder with a folder of PNG files per class: class numbers follow the folders' names."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import numpy as np

from bpcbench.coresets.importing.contents import Contents
from bpcbench.errors import UserError
from bpcbench.reading import read_bounded
from bpcbench.records import Array

_PICTURE_BYTES = 50_000_000
_SIDE = 4096
_PICTURES = 100_000


def read(root: Path) -> Contents:
    """Return `images` (n, c, h, w) in uint8 and `labels`; folders whose names are all numbers are sorted as such."""
    folders = [path for path in root.iterdir() if path.is_dir()]
    numbered = all(path.name.isdecimal() for path in folders)
    folders.sort(key=lambda path: (int(path.name) if numbered else 0, path.name))
    images: list[Array] = []
    labels: list[int] = []
    digest = sha256()
    for label, folder in enumerate(folders):
        files = sorted(path for path in folder.iterdir() if path.suffix.lower() == ".png")
        if len(images) + len(files) > _PICTURES:
            raise UserError(f"{root} holds more than {_PICTURES:,} pictures")
        for path in files:
            content = _content(path)
            digest.update(content)
            images.append(_decoded(path, content))
            labels.append(int(folder.name) if numbered else label)
    if not images:
        raise UserError(f"{root} holds no PNG files in folders, one folder per class")
    shapes = {image.shape for image in images}
    if len(shapes) > 1:
        raise UserError(f"{root}: the pictures are of different sizes or channels: {sorted(shapes)[:4]}")
    names = {f"{root.name}/": digest.hexdigest()}
    return Contents({"images": np.stack(images), "labels": np.asarray(labels, np.int64)}, files=names)


def _content(path: Path) -> bytes:
    try:
        return read_bounded(path, _PICTURE_BYTES, follow=True)
    except ValueError as error:
        raise UserError(f"{path} cannot be read: {error}") from None


def _decoded(path: Path, content: bytes) -> Array:
    import io

    from PIL import Image

    try:
        with Image.open(io.BytesIO(content), formats=("PNG",)) as picture:
            if max(picture.size) > _SIDE:
                raise ValueError(f"its size is {picture.size}")
            if picture.mode.startswith(("I", "F")):
                raise ValueError("it has more than eight bits per channel")
            pixels = np.asarray(picture.convert("L" if picture.mode in ("1", "L", "LA") else "RGB"))
    except Exception as error:
        raise UserError(f"{path} is no readable PNG file: {str(error)[:200] or type(error).__name__}") from None
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
