"""The pictures below a folder with their sizes and modification times, to detect changes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bpcbench_data.cache import digest
from bpcbench_data.pictures import is_picture

File = tuple[str, int, int]
"""A file's path below the folder, its size and its modification time."""


@dataclass(frozen=True, eq=False)
class Tree:
    """The modification times of all folders below `folder`, the sorted pictures, and a digest of them."""

    folder: str
    folders: Mapping[str, int]
    files: Sequence[File]
    state: str

    def folders_in(self, below: str) -> list[str]:
        """Return the sorted names of the folders directly inside `below`, which is "" or "NAME/"."""
        inside = (path.removeprefix(below) for path in self.folders if path.startswith(below))
        return sorted(path for path in inside if path and "/" not in path)


_known: dict[str, Tree] = {}


def tree(folder: Path) -> Tree:
    """Return the pictures below a folder; hidden files and folders are skipped.

    The result is cached within a process until a file is added, removed or renamed, because scanning a large folder is
    slow. A file that is overwritten in place is noticed by the next process only.
    """
    place = str(folder)
    known = _known.get(place)
    if known is None or not _unchanged(known):
        known = _known[place] = _scan(place)
    return known


def _unchanged(known: Tree) -> bool:
    try:
        return all(Path(known.folder, path).stat().st_mtime_ns == time for path, time in known.folders.items())
    except OSError:
        return False


def _scan(place: str) -> Tree:
    folders: dict[str, int] = {}
    files: list[File] = []
    seen: set[tuple[int, int]] = set()
    waiting = [""]
    while waiting:
        below = waiting.pop()
        status = Path(place, below).stat()
        if (status.st_dev, status.st_ino) in seen:  # a symbolic link to a folder above
            continue
        seen.add((status.st_dev, status.st_ino))
        folders[below] = status.st_mtime_ns
        with os.scandir(f"{place}/{below}") as entries:
            for entry in entries:
                path = f"{below}/{entry.name}" if below else entry.name
                if entry.is_dir() and not entry.name.startswith("."):
                    waiting.append(path)
                elif is_picture(entry.name) and entry.is_file():
                    state = entry.stat()
                    files.append((path, state.st_size, state.st_mtime_ns))
    files.sort()
    return Tree(place, folders, files, digest(files))
