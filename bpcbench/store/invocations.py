"""The invocations that a store remembers: its manifests with their run records, found by name, request or overrides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypedDict

from bpcbench.errors import StoreError, UserError, did_you_mean
from bpcbench.forms import check
from bpcbench.reading import parse_json, read_bounded
from bpcbench.store.layout import SUITE
from bpcbench.store.manifest import SCHEMA, Manifest, Purpose, manifest_folders, read_manifest
from bpcbench.store.runs import RunRecord, read_runs
from bpcbench.store.store import Store


@dataclass(frozen=True, eq=False)
class Invocation:
    """A resolved suite in a store, and the times it was run; `source` is the suite as the user named it."""

    path: Path
    name: str
    source: str
    purpose: Purpose
    request: str
    runs: tuple[RunRecord, ...]

    @cached_property
    def manifest(self) -> Manifest:
        """The manifest, read on access."""
        return read_manifest(self.path)

    @property
    def latest(self) -> str:
        """When the latest run started; empty if no run record is there."""
        return self.runs[-1].started if self.runs else ""

    @property
    def requests(self) -> frozenset[str]:
        """The digests of all requests that led here."""
        return frozenset((self.request, *(run.request for run in self.runs)))

    @property
    def overrides(self) -> tuple[str, ...]:
        """The overrides of the latest run."""
        return self.runs[-1].overrides if self.runs else ()

    @property
    def title(self) -> str:
        """The invocation in words: the suite, its overrides, and when it last ran."""
        words = " ".join((self.source, *self.overrides))
        return f"{words} ({self.latest[:19].replace('T', ' ')} UTC)" if self.latest else words


class _Head(TypedDict):
    schema: int
    name: str
    source: str
    purpose: Purpose
    request: str


def readable(store: Store, found: Sequence[Invocation]) -> list[Invocation]:
    """Return the invocations whose manifests can be read in full; the others are noted in the store's messages."""
    whole = []
    for one in found:
        try:
            _ = one.manifest
        except StoreError as error:
            store.note(f"passed over: {error}")
        else:
            whole.append(one)
    return whole


def invocations(store: Store, *purposes: Purpose) -> list[Invocation]:
    """Return the invocations of a store, the latest first; a manifest that cannot be read is noted in its messages."""
    found = []
    for path in manifest_folders(store.root):
        try:
            head = parse_json(read_bounded(path / SUITE))
            check(head, _Head)
            if head["schema"] != SCHEMA:
                raise ValueError(f"its schema is {head['schema']}, and this bpcbench reads {SCHEMA}")
            if not purposes or head["purpose"] in purposes:
                name, source, request = str(head["name"]), str(head["source"]), str(head["request"])
                found.append(
                    Invocation(path, name, source, head["purpose"], request, tuple(read_runs(path, store.note)))
                )
        except (OSError, ValueError) as error:
            store.note(f"the manifest in {path} is passed over: {str(error).strip(' .')[:300]}")
    return sorted(found, key=lambda one: (one.latest, one.path.name), reverse=True)


def find_invocation(
    store: Store,
    wanted: str | None,
    overrides: Sequence[str] = (),
    *,
    name: str | None = None,
    request: str | None = None,
    exact: bool = False,
    purposes: Sequence[Purpose] = ("run", "tune"),
) -> Invocation:
    """Return the latest invocation of a suite; raise UserError, naming those that exist, if there is none.

    `wanted` is the suite as named now, `name` its own name if it could be read, and `request` the digest of its
    content with the overrides. With overrides, or if `exact`, the request must be equal; overrides spelled alike do
    too, for a store on a machine without the suite's file.
    """
    every = invocations(store, *purposes)
    mine = [one for one in every if wanted is None or wanted in (one.name, one.source) or name == one.name]
    if not mine:
        known = sorted({one.name for one in every})
        listed = f" (it has: {', '.join(known)})" if known else ""
        raise UserError(f"the store {store.root} has no results of {wanted!r}{did_you_mean(wanted, known)}{listed}")
    if not overrides and not exact:
        return mine[0]
    same = [one for one in mine if request in one.requests]
    spelled = [one for one in mine if any(set(run.overrides) == set(overrides) for run in one.runs)]
    matching = same or (spelled if overrides else [])
    if not matching:
        listed = "\n".join(f"  {one.title}" for one in mine)
        raise UserError(f"{' '.join((wanted or '', *overrides))} was not run in {store.root}; there are\n{listed}")
    return matching[0]
