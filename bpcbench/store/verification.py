"""Whether a store is what it claims to be: every key derived again, every checksum compared. Nothing is changed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from bpcbench.reading import parse_json, read_bounded
from bpcbench.store import folder, layout
from bpcbench.store.address import SCHEME, Address, stage_key
from bpcbench.store.layout import CELLS, SUITE, Stray

T = TypeVar("T")


class Watch(Protocol):
    """Shows how far a long loop is."""

    def __call__(self, items: Sequence[T], what: str) -> Iterable[T]:
        """Return the items, one by one; `what` names the work."""


def unwatched(items: Sequence[T], what: str) -> Iterable[T]:
    """Show nothing."""
    return items


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with a store."""

    place: str
    """An address, or a path in quotes."""
    problem: str
    damaged: Address | None = None
    """The member that is better set aside."""

    def __str__(self) -> str:
        return f"{self.place}: {self.problem}"


def verify(root: Path, watch: Watch = unwatched) -> Iterator[Finding]:
    """Yield whatever is wrong with the members and manifests of a store."""
    for item in watch(list(layout.members(root)), "members"):
        if isinstance(item, Stray):
            yield stray(item)
            continue
        try:
            meta = layout.describe(root, item)
            check_description(item, meta)
            check_files(root, item, meta)
        except folder.Unreadable as error:
            yield Finding(str(item), str(error))
        except ValueError as error:
            if layout.member_path(root, item).exists():  # or another process has removed it meanwhile
                yield Finding(str(item), str(error), item)
    for place in watch(list(layout.manifests(root)), "manifests"):
        yield from [stray(place)] if isinstance(place, Stray) else _manifest(root, place)


def stray(item: Stray) -> Finding:
    """Return the finding that a stray file or folder is."""
    return Finding(repr(str(item.path)), item.problem)


def check_description(address: Address, meta: Mapping[str, Any]) -> tuple[Address, ...]:
    """Return the inputs of a member; raise ValueError if its key cannot be derived again or an input is misnamed."""
    scheme, version = meta.get("scheme"), meta.get("body_version")
    if type(scheme) is not int or scheme != SCHEME:
        raise ValueError(f"its key was derived by scheme {str(scheme)[:20]}, of which only {SCHEME} is known")
    if type(version) is not int or not isinstance(meta.get("stage"), dict):
        raise ValueError("its key cannot be derived again: `stage` or `body_version` is missing")
    try:
        derived = stage_key(address.kind, version, meta["stage"], scheme)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"its key cannot be derived again: {error}") from None
    if derived != address.key:
        raise ValueError(f"its description has the key {derived}: the description was changed, or the folder renamed")
    return tuple(_inputs(meta.get("inputs")))


def _inputs(listed: object) -> Iterator[Address]:
    if not isinstance(listed, list):
        raise ValueError("its `inputs` are not a list")
    for text in listed:
        try:
            address = Address.parse(text)
        except (ValueError, AttributeError, TypeError):
            address = None
        if address is None or not address.proper:
            raise ValueError(f"its input {str(text)[:100]!r} is not an address")
        yield address


def check_files(root: Path, address: Address, meta: Mapping[str, Any]) -> None:
    """Raise ValueError unless every file of a member matches its checksum and its arrays can be opened."""
    path = layout.member_path(root, address)
    folder.check(path, meta)
    if folder.ARRAYS in meta["files"]:
        folder.LazyArrays(path / folder.ARRAYS)


def manifest_files(manifest: Path) -> dict[str, bytes]:
    """Return the two files of a manifest, in the order to write them; raise ValueError if one cannot be read."""
    cells = _read(manifest / CELLS)
    for number, line in enumerate(cells.splitlines(), 1):
        _parsed(line, f"{CELLS}, line {number}", list)
    suite = _read(manifest / SUITE)
    if type(_parsed(suite, SUITE, dict).get("schema")) is not int:
        raise ValueError(f"{SUITE} names no schema")
    return {CELLS: cells, SUITE: suite}


def run_record(path: Path) -> tuple[bytes, dict[str, Any]]:
    """Return a run record as it is written and as it is read; raise ValueError if it cannot be read."""
    content = _read(path)
    return content, _parsed(content, path.name, dict)


def _manifest(root: Path, manifest: Path) -> Iterator[Finding]:
    try:
        manifest_files(manifest)
    except ValueError as error:
        yield Finding(repr(str(manifest)), str(error))
    for path in layout.runs(root, manifest):
        try:
            if isinstance(path, Stray):
                yield stray(path)
            else:
                run_record(path)
        except ValueError as error:
            yield Finding(repr(str(path)), str(error))


def _read(path: Path) -> bytes:
    try:
        return read_bounded(path)
    except OSError as error:
        raise ValueError(f"{path.name} cannot be read: {os.strerror(error.errno or 0)}") from None
    except ValueError as error:
        raise ValueError(f"{path.name} cannot be read: {error}") from None


def _parsed(content: bytes, what: str, kind: type[T]) -> T:
    try:
        value = parse_json(content)
    except ValueError as error:
        raise ValueError(f"{what} is not JSON: {error}") from None
    if not isinstance(value, kind):
        raise ValueError(f"{what} is not a JSON {'object' if kind is dict else 'array'}")
    return value
