"""Bringing what another store holds into ours. The other store is only read, and nothing of it is taken on trust."""

from __future__ import annotations

import json
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bpcbench.errors import StoreError
from bpcbench.store import layout, verification
from bpcbench.store.address import Address
from bpcbench.store.curves import CURVES
from bpcbench.store.layout import CELLS, RUNS, SUITE, SUITES, Stray
from bpcbench.store.store import Store
from bpcbench.store.verification import Finding, Watch, unwatched
from bpcbench.text import spell_bytes


@dataclass(frozen=True)
class Merged:
    """What a merge did, or would do."""

    taken: tuple[Address, ...]
    taken_bytes: int
    present: int
    conflicts: tuple[Address, ...]
    """Members that both stores have, with different content; ours are kept."""
    derived: tuple[Address, ...]
    """Members that were not taken because they depend on the other store's side of a conflict."""
    damaged: tuple[Finding, ...]
    manifests: int
    records: int
    timings: int


@dataclass
class _Survey:
    """The members of the other store, compared with ours."""

    absent: dict[Address, int] = field(default_factory=dict)
    """Those that ours lacks, and their bytes."""
    inputs: dict[Address, tuple[Address, ...]] = field(default_factory=dict)
    conflicts: list[Address] = field(default_factory=list)
    damaged: list[Finding] = field(default_factory=list)
    present: int = 0


def merge(ours: Store, theirs: Store, *, dry_run: bool = False, watch: Watch = unwatched) -> Merged:
    """Bring the members, manifests, run records and timings of `theirs` into `ours`; both must be open.

    Running it again changes nothing more. With `dry_run` nothing is written; `ours` should then be read-only.
    """
    survey = _compare(ours, theirs, watch)
    tainted = _derived(survey)
    wanted = {address: size for address, size in survey.absent.items() if address not in tainted}
    _check_space(ours.root, sum(wanted.values()))
    taken = []
    for address in watch(list(wanted), "checking" if dry_run else "copying"):
        try:
            meta = layout.describe(theirs.root, address)
            verification.check_description(address, meta)
            if dry_run:
                verification.check_files(theirs.root, address, meta)
            elif not ours.receive(address, layout.member_path(theirs.root, address), meta):
                survey.present += 1  # another process was faster
                continue
        except ValueError as error:
            survey.damaged.append(Finding(str(address), str(error)))
            continue
        except OSError as error:
            raise StoreError(f"{ours.root}: {address} cannot be written: {error}; merge again to go on") from None
        taken.append(address)
    manifests, records = _merge_manifests(ours, theirs, survey.damaged, dry_run=dry_run)
    return Merged(
        taken=tuple(taken),
        taken_bytes=sum(wanted[address] for address in taken),
        present=survey.present,
        conflicts=tuple(survey.conflicts),
        derived=tuple(sorted(tainted & set(survey.absent))),
        damaged=tuple(survey.damaged),
        manifests=manifests,
        records=records,
        timings=_merge_timings(ours, theirs, dry_run=dry_run),
    )


def _compare(ours: Store, theirs: Store, watch: Watch) -> _Survey:
    survey = _Survey()
    for item in watch(list(layout.members(theirs.root)), "comparing"):
        if isinstance(item, Stray):
            survey.damaged.append(verification.stray(item))
            continue
        try:
            meta = layout.describe(theirs.root, item)
            inputs = verification.check_description(item, meta)
            if not ours.has(item):
                survey.absent[item] = sum(entry["bytes"] for entry in meta["files"].values())
            elif _content(meta) == _content(layout.describe(ours.root, item)):
                survey.present += 1
            else:
                verification.check_files(theirs.root, item, meta)
                survey.conflicts.append(item)
        except ValueError as error:
            survey.damaged.append(Finding(str(item), str(error)))
        else:
            survey.inputs[item] = inputs
    return survey


def _content(meta: Mapping[str, Any]) -> str:
    """Return what must be equal for two members to be the same result: not the times, the host or the versions."""
    # Curves hold times, and so differ between equal results.
    files = {name: entry["sha256"] for name, entry in meta["files"].items() if name != CURVES}
    return json.dumps([files, meta.get("metrics")], sort_keys=True)


def _derived(survey: _Survey) -> set[Address]:
    """Return the conflicts and all that depends on them.

    The members of one coreset or prediction come from one computation, so a conflict of one concerns those that we
    lack of the others too. Members of a prerequisite are made one by one.
    """
    users: dict[Address, list[Address]] = defaultdict(list)
    for address, inputs in survey.inputs.items():
        for source in inputs:
            users[source].append(address)
    siblings: dict[tuple[str, str], list[Address]] = defaultdict(list)
    for address in survey.absent:
        if address.kind != "prerequisite":
            siblings[address.kind, address.key].append(address)
    tainted: set[Address] = set()
    queue = list(survey.conflicts)
    while queue:
        address = queue.pop()
        if address not in tainted:
            tainted.add(address)
            queue += users[address] + siblings[address.kind, address.key]
    return tainted


def _check_space(root: Path, needed: int) -> None:
    existing = next(path for path in (root, *root.parents) if path.is_dir())
    free = shutil.disk_usage(existing).free
    if needed > free:
        raise StoreError(f"{root}: the merge needs {spell_bytes(needed)}, but only {spell_bytes(free)} are free")


def _merge_manifests(ours: Store, theirs: Store, damaged: list[Finding], *, dry_run: bool) -> tuple[int, int]:
    """Bring manifests that ours lacks and run records that are newer; return the numbers of both."""
    manifests = records = 0
    for place in layout.manifests(theirs.root):
        if isinstance(place, Stray):
            damaged.append(verification.stray(place))
            continue
        target = ours.root / SUITES / place.parent.name / place.name
        try:
            files = verification.manifest_files(place)
        except ValueError as error:
            damaged.append(Finding(repr(str(place)), str(error)))
            continue
        if not all((target / name).is_file() for name in (CELLS, SUITE)):
            manifests += 1
            for name, content in files.items() if not dry_run else ():
                _write(ours, target / name, content)
        for path in layout.runs(theirs.root, place):
            records += _merge_record(ours, path, target / RUNS, damaged, dry_run=dry_run)
    return manifests, records


def _merge_record(ours: Store, path: Path | Stray, folder: Path, damaged: list[Finding], *, dry_run: bool) -> int:
    if isinstance(path, Stray):
        damaged.append(verification.stray(path))
        return 0
    try:
        content, record = verification.run_record(path)
    except ValueError as error:
        damaged.append(Finding(repr(str(path)), str(error)))
        return 0
    try:
        _, known = verification.run_record(folder / path.name)
    except ValueError:
        known = {}
    if known and _progress(record) <= _progress(known):
        return 0
    if not dry_run:
        _write(ours, folder / path.name, content)
    return 1


def _progress(record: Mapping[str, Any]) -> tuple[bool, str]:
    """Return how far a run was when its record was written; only its own process writes it, so more is newer."""
    return record.get("ended") is not None, str(record.get("heartbeat") or "")


def _write(ours: Store, path: Path, content: bytes) -> None:
    try:
        ours.write_file(path, content)
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error}; merge again to go on") from None


def _merge_timings(ours: Store, theirs: Store, *, dry_run: bool) -> int:
    """Add the timings that ours lacks. Equal ones are counted, so that a second merge adds none."""
    missing = _timings(theirs) - _timings(ours)
    if not dry_run:
        known = ours.families()
        ours.note_families({family: like for family, like in theirs.families().items() if family not in known})
    if missing and not dry_run:
        ours.note_timings(list(missing.elements()))
    return missing.total()


def _timings(store: Store) -> Counter[tuple[str, float, int]]:
    costs: Iterable[tuple[str, list[tuple[float, int]]]] = store.timings().items()
    return Counter((family, seconds, size) for family, listed in costs for seconds, size in listed)
