"""Commands about what a store keeps: list, prune, merge, verify."""

from __future__ import annotations

import argparse
import calendar
import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from tqdm import tqdm

from bpcbench.errors import UserError
from bpcbench.store import folder
from bpcbench.store.address import Address
from bpcbench.store.marker import schema_of
from bpcbench.store.merge import Merged
from bpcbench.store.merge import merge as merge_stores
from bpcbench.store.store import Store
from bpcbench.store.verification import verify as verify_store
from bpcbench.text import spell_bytes, to_stderr

T = TypeVar("T")


@dataclass(frozen=True)
class _Listed:
    address: str
    label: str
    committed: str
    seconds: Any
    bytes: int


def existing(out: str | Path, *, read_only: bool = False) -> Store:
    """Open the store in a folder; raise UserError if there is none."""
    root = Path(out)
    if schema_of(root) is None:
        raise UserError(f"{root} is not a store; run a suite first, or name one with --out")
    return Store.open(root, create=False, read_only=read_only)


def listing(arguments: argparse.Namespace) -> int:
    """List the members of a store."""
    store = existing(arguments.out, read_only=True)
    items = [
        _Listed(
            address=str(address),
            label=_printable(meta.get("label", "")),
            committed=_printable(meta.get("committed", "")),
            seconds=meta.get("seconds"),
            bytes=folder.size(store.path(address)),
        )
        for address, meta in _chosen(store, arguments)
    ]
    _print_notes(store)
    if arguments.json:
        print(json.dumps([asdict(item) for item in items], indent=1))
        return 0
    for item in items:
        print(f"{item.address}  {item.committed}  {spell_bytes(item.bytes):>9}  {item.label}")
    print(f"{len(items)} members, {spell_bytes(sum(item.bytes for item in items))}")
    return 0


def prune(arguments: argparse.Namespace) -> int:
    """Delete members, interrupted attempts and damaged members of a store."""
    by_member = arguments.kind is not None or arguments.older is not None
    if not by_member and not arguments.scratch:
        raise UserError("say what to prune: --kind, --older and/or --scratch")
    store = existing(arguments.out)
    chosen = [address for address, _ in _chosen(store, arguments)] if by_member else []
    total = sum(folder.size(store.path(address)) for address in chosen)
    scratch = store.prune_scratch(remove=arguments.yes) if arguments.scratch else 0
    for address in chosen if arguments.yes else ():
        store.remove(address)
    _print_notes(store)
    verb = "pruned" if arguments.yes else "would prune (repeat with --yes)"
    print(f"{verb}: {len(chosen)} members, {spell_bytes(total)}; scratch and damaged: {spell_bytes(scratch)}")
    return 0


def _chosen(store: Store, arguments: argparse.Namespace) -> Iterator[tuple[Address, Mapping[str, Any]]]:
    for address, meta in store.listing():
        if arguments.kind in (None, address.kind) and (
            arguments.older is None or _age(store, address, meta) > arguments.older
        ):
            yield address, meta


def _age(store: Store, address: Address, meta: Mapping[str, Any]) -> float:
    """Return the days since a member was committed, by its own account: copies change the times of files."""
    try:
        committed = calendar.timegm(time.strptime(str(meta.get("committed")), "%Y-%m-%dT%H:%M:%SZ"))
    except ValueError:
        store.messages.append(f"{address} does not tell when it was committed; kept")
        return 0.0
    return (time.time() - committed) / 86400


def merge(arguments: argparse.Namespace) -> int:
    """Bring what other stores hold into this one."""
    root, others = Path(arguments.out), [_other(text, Path(arguments.out)) for text in arguments.others]
    if arguments.dry_run:
        schema_of(root)
        ours = Store(root.absolute(), read_only=True)
    else:
        ours = Store.open(root)
    clean = True
    for other in others:
        merged = merge_stores(ours, other, dry_run=arguments.dry_run, watch=_bar)
        _print_merged(other.root, merged, dry_run=arguments.dry_run)
        clean = clean and not (merged.conflicts or merged.damaged)
    _print_notes(ours)
    return 0 if clean else 1


def _other(text: str, ours: Path) -> Store:
    root = Path(text)
    if schema_of(root) is None:
        raise UserError(f"{root} is not a store: it has no store.json")
    if ours.exists() and root.samefile(ours):
        raise UserError(f"{root} and {ours} are the same store")
    return Store.open(root, create=False, read_only=True)


def _print_merged(other: Path, merged: Merged, *, dry_run: bool) -> None:
    for address in merged.conflicts:
        print(f"conflict: {address} has other content in {other}; ours is kept")
    for finding in merged.damaged:
        print(f"damaged: {_printable(finding)}; not taken")
    print(f"{other}{': with --dry-run nothing is written' if dry_run else ''}")
    print(
        f"  {'would take' if dry_run else 'taken':<13} {len(merged.taken):,} members, {spell_bytes(merged.taken_bytes)}"
    )
    print(f"  {'already here':<13} {merged.present:,} members")
    derived = f"; {len(merged.derived):,} members derived from them are not taken" if merged.derived else ""
    print(f"  {'conflicts':<13} {len(merged.conflicts):,}{derived}")
    print(f"  {'damaged':<13} {len(merged.damaged):,}")
    print(f"  {'manifests':<13} {merged.manifests:,}")
    print(f"  {'run records':<13} {merged.records:,}")
    print(f"  {'timings':<13} {merged.timings:,}")


def verify(arguments: argparse.Namespace) -> int:
    """Derive every key of a store again and compare every checksum."""
    store = existing(arguments.out, read_only=not arguments.set_aside)
    count = 0
    for finding in verify_store(store.root, _bar):
        count += 1
        damaged = finding.damaged if arguments.set_aside else None
        line = store.set_aside(damaged, finding.problem) if damaged else str(finding)
        tqdm.write(_printable(line), file=sys.stdout)
    print(f"{store.root}: {f'{count:,} problems' if count != 1 else '1 problem'}" if count else f"{store.root}: intact")
    return 1 if count else 0


def _bar(items: Sequence[T], what: str) -> Iterable[T]:
    return tqdm(items, desc=what, unit="", file=sys.stderr, disable=None, leave=False, dynamic_ncols=True)


def _print_notes(store: Store) -> None:
    for message in store.messages:
        to_stderr(f"note: {_printable(message)}")


def _printable(value: object) -> str:
    """Return text on one line of bounded length: a stranger's store must not steer the terminal or flood it."""
    return "".join(c if c.isprintable() else "?" for c in str(value)[:2000])
