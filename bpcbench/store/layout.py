"""Where things lie in a store. A place is named by its folders, not by what is written in them; links do not count."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bpcbench.errors import StoreError
from bpcbench.store import folder
from bpcbench.store.address import KEY_LENGTH, KINDS, Address
from bpcbench.store.contents import wrong_content

SCHEMA = 2
MARKER = "store.json"
STAGES = "stages"
STAGE = "stage.json"
SCRATCH = "scratch"
DAMAGED = "damaged"
SUITES = "suites"
SUITE = "suite.json"
CELLS = "cells.jsonl"
RUNS = "runs"


@dataclass(frozen=True)
class Stray:
    """Something in a store that does not belong where it lies."""

    path: Path
    problem: str

    def __str__(self) -> str:
        # Names are shown escaped: strangers choose them.
        return f"{str(self.path)!r} {self.problem}"


def member_path(root: Path, address: Address) -> Path:
    """Return the folder of an address; raise StoreError for one that is not proper, which might lie anywhere."""
    if not address.proper:
        expected = f"KIND:KEY@MEMBER with a KIND of {', '.join(KINDS)} and a KEY of {KEY_LENGTH} hexadecimal digits"
        raise StoreError(f"{str(address)!r} is not an address: expected {expected}")
    return root.joinpath(STAGES, address.kind, address.key, address.folder)


def obstacle(root: Path, path: Path) -> str | None:
    """Return what keeps `path` from being a folder below `root`: a link or a file in its place or above it."""
    # Texts, not paths: every look at a member asks this.
    text, end = os.fspath(path), len(os.fspath(root))
    while end < len(text):
        end = text.find(os.sep, end + 1) % (len(text) + 1)  # the end of the text where nothing is found
        current = text[:end]
        try:
            mode = os.lstat(current).st_mode
        except FileNotFoundError:
            return None
        except OSError as error:
            return f"{current} cannot be read: {error.strerror}"
        if stat.S_ISLNK(mode):
            return f"{current} is a symbolic link, which a store does not follow"
        if not stat.S_ISDIR(mode):
            return f"{current} is not a folder"
    return None


def describe(root: Path, address: Address) -> Mapping[str, Any]:
    """Return a member's stage.json; raise ValueError if it is damaged or does not describe the place it lies in."""
    meta = folder.read_meta(member_path(root, address), STAGE)
    stated = (meta.get("kind"), meta.get("key"), meta.get("member"))
    if stated != (address.kind, address.key, address.member):
        raise ValueError(f"its {STAGE} describes another member: {str(stated)[:200]}")
    if meta.get("schema") != SCHEMA:
        raise ValueError(f"its {STAGE} has schema {str(meta.get('schema'))[:20]} instead of {SCHEMA}")
    if wrong := wrong_content(address.kind, meta):
        raise ValueError(f"its {STAGE} is malformed: {wrong}")
    return meta


def members(root: Path) -> Iterator[Address | Stray]:
    """Yield the address of every member's folder, in order, and whatever does not belong among them; reads no file."""
    for kind in _folders(root, root / STAGES):
        if isinstance(kind, Stray):
            yield kind
        elif kind.name not in KINDS:
            yield Stray(kind, f"is not named for a kind of stage ({', '.join(KINDS)})")
        else:
            for key in _folders(root, kind):
                yield from [key] if isinstance(key, Stray) else _members(root, key)


def _members(root: Path, key: Path) -> Iterator[Address | Stray]:
    if not Address(key.parent.name, key.name, "final").proper:
        yield Stray(key, f"is not named for a key ({KEY_LENGTH} hexadecimal digits)")
        return
    for member in _folders(root, key):
        if isinstance(member, Stray):
            yield member
            continue
        address = Address(key.parent.name, key.name, member.name.replace(",", "/"))
        yield address if address.proper else Stray(member, "is not named for a member")


def manifests(root: Path) -> Iterator[Path | Stray]:
    """Yield the folder of every manifest, in order, and whatever does not belong among them; reads no file."""
    for name in _folders(root, root / SUITES):
        yield from [name] if isinstance(name, Stray) else _folders(root, name)


def runs(root: Path, manifest: Path) -> Iterator[Path | Stray]:
    """Yield the run records of a manifest, in order, and whatever does not belong among them; reads no file."""
    for entry in _entries(root, manifest / RUNS):
        if isinstance(entry, Stray):
            yield entry
        elif entry.name.endswith(".json") and not entry.name.startswith("."):
            path = Path(entry.path)
            yield path if entry.is_file(follow_symlinks=False) else Stray(path, "is not a regular file")


def _folders(root: Path, place: Path) -> Iterator[Path | Stray]:
    for entry in _entries(root, place):
        if isinstance(entry, Stray):
            yield entry
        elif entry.is_symlink():
            yield Stray(place / entry.name, "is a symbolic link")
        elif entry.is_dir(follow_symlinks=False):
            yield place / entry.name
        elif not entry.name.startswith("."):  # desktops and file servers leave hidden files behind
            yield Stray(place / entry.name, "is not a folder")


def _entries(root: Path, place: Path) -> Iterator[os.DirEntry[str] | Stray]:
    problem = obstacle(root, place)
    if problem is not None:
        yield Stray(place, "is a symbolic link" if place.is_symlink() else "cannot be listed as a folder")
        return
    try:
        with os.scandir(place) as scan:
            entries = sorted(scan, key=lambda entry: entry.name)
    except FileNotFoundError:
        return
    except OSError as error:
        yield Stray(place, f"cannot be listed: {error.strerror}")
        return
    yield from entries
