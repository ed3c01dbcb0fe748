"""The store: content-addressed folders that are committed atomically, checked, and never changed afterwards.

STORE/store.json                         schema version
STORE/stages/KIND/KEY/MEMBER/stage.json  what was made, from what, how long it took, checksums
                            arrays.safetensors, further files
STORE/suites/NAME/DIGEST/...             manifests, and a record of every run in runs/
STORE/scratch/...                        checkpoints and events of attempts that are under way
STORE/damaged/...                        what failed its checksum, set aside
STORE/verified.jsonl                     which files were verified in full, by identity; only a cache
STORE/locks, STORE/turns                 what is being made or done right now, by byte; empty
STORE/timings.jsonl                      seconds and bytes of past stages, for estimates; only a cache

A store may come from a stranger: places are named by their folders alone, links below STORE are not followed.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import stat
import time
import uuid
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bpcbench.errors import StoreError
from bpcbench.records import Arrays
from bpcbench.store import caches, folder, layout, leases
from bpcbench.store.address import Address
from bpcbench.store.layout import DAMAGED, SCHEMA, SCRATCH
from bpcbench.store.layout import STAGE as STAGE
from bpcbench.store.locks import Busy, held
from bpcbench.store.marker import check_writable as check_writable
from bpcbench.store.marker import create as create_store
from bpcbench.store.marker import schema_of

ABANDONED_SECONDS = 86400.0
"""How old an unfinished commit must be to be taken for the remains of a process that was killed."""


@dataclass(frozen=True, eq=False)
class Artefact:
    """A committed member: its description and its arrays, read on access."""

    address: Address
    folder: Path
    meta: Mapping[str, Any]
    arrays: Arrays


@dataclass
class Store:
    """A folder of results. Any number of processes may use it at once; `read_only` promises to change nothing in it."""

    root: Path
    messages: list[str] = field(default_factory=list)
    read_only: bool = False
    _verified: dict[str, list[int]] | None = None
    _meta: dict[Address, Mapping[str, Any]] = field(default_factory=dict)

    @classmethod
    def open(cls, root: Path, *, create: bool = True, read_only: bool = False) -> Store:
        """Open a store, creating it if it does not exist; refuse one of another schema.

        Without `create` a store needs no write permission, and what needs it does without or raises StoreError.
        """
        root = root.absolute()
        if schema_of(root) is not None:
            if create and not os.access(root, os.W_OK):
                raise StoreError(f"{root}: no write permission")
        elif create:
            create_store(root)
        return cls(root, read_only=read_only)

    def require(self) -> None:
        """Raise StoreError if the store was removed while it was used: what follows it must not look like a store."""
        if not (self.root / layout.MARKER).exists():
            raise StoreError(f"the store {self.root} was removed while it was used")

    def path(self, address: Address) -> Path:
        """Return the folder of an address, committed or not."""
        return layout.member_path(self.root, address)

    def has(self, address: Address) -> bool:
        """Tell whether the member exists and is undamaged; a damaged one is set aside and reported, if possible."""
        return self._fault(address) is None

    def _fault(self, address: Address) -> str | None:
        """Return why a member cannot be used, or None; whatever is wrong beyond its absence is noted."""
        path = self.path(address)
        try:
            mode = os.lstat(path).st_mode
        except (FileNotFoundError, NotADirectoryError):
            return f"{address} is not in the store"
        except OSError as error:
            return self.note(f"{address} cannot be read: {error.strerror}")
        if problem := layout.obstacle(self.root, path.parent):
            return self.note(f"{address} is passed over: {problem}")
        try:
            if not stat.S_ISDIR(mode):
                raise ValueError("it is a symbolic link" if stat.S_ISLNK(mode) else "it is not a folder")
            self._check(address, path)
        except folder.Unreadable as error:
            return self.note(f"{address}: {error}")
        except ValueError as error:
            return self.set_aside(address, str(error))
        return None

    def note(self, message: str) -> str:
        """Add a message, once, and return it."""
        if message not in self.messages:
            self.messages.append(message)
        return message

    def _check(self, address: Address, path: Path) -> None:
        known = self._meta.get(address)
        if known is not None:
            with contextlib.suppress(ValueError):
                return self._compare(address, path, known)
        # Not read yet, or another process has removed and recomputed it since.
        self._meta[address] = meta = layout.describe(self.root, address)
        return self._compare(address, path, meta)

    def _compare(self, address: Address, path: Path, meta: Mapping[str, Any]) -> None:
        name = str(address)
        identity = _identities(path, meta["files"])
        if self._load_verified().get(name) != identity:
            folder.check(path, meta)
            self._note_verified(name, identity)

    def _load_verified(self) -> dict[str, list[int]]:
        if self._verified is None:
            self._verified = caches.verified(self.root / caches.VERIFIED)
        return self._verified

    def _note_verified(self, name: str, identity: list[int]) -> None:
        self._load_verified()[name] = identity
        self._append(caches.VERIFIED, {"a": name, "id": identity})

    def _append(self, cache: str, *lines: Mapping[str, Any]) -> None:
        if not self.read_only:
            caches.append(self.root / cache, lines)

    def set_aside(self, address: Address, problem: str) -> str:
        """Move a damaged member out of the way, if the store can be written; note what was done and return it."""
        path = self.path(address)
        self._meta.pop(address, None)
        # Shortened, because the name of a folder is limited and that of a member may be near the limit.
        name = f"{address.kind}-{address.key}-{address.folder[:60]}-{uuid.uuid4().hex[:8]}"
        try:
            target = self._writable(self.root / DAMAGED) / name
            self._writable(path.parent)
            target.parent.mkdir(parents=True, exist_ok=True)
            path.rename(target)
            done = f"set aside in {target}"
        except FileNotFoundError:
            done = "another process has set it aside"
        except (OSError, StoreError) as error:
            done = f"not set aside: {error}"
        return self.note(f"damaged: {address}: {problem}; {done}")

    def _writable(self, place: Path) -> Path:
        """Return a folder of the store, existing or not; raise StoreError if nothing may be changed in it."""
        if self.read_only:
            raise StoreError(f"{self.root} is open for reading only")
        if problem := layout.obstacle(self.root, place):
            raise StoreError(problem)
        return place

    def read(self, address: Address) -> Artefact:
        """Return a member; raise StoreError if it is absent or damaged."""
        fault = self._fault(address)
        if fault is not None:
            raise StoreError(fault)
        path, meta = self.path(address), self._meta[address]
        try:
            # Arrays that are not listed were never verified.
            arrays = folder.LazyArrays(path / folder.ARRAYS if folder.ARRAYS in meta["files"] else None)
        except ValueError as error:
            raise StoreError(f"{address}: {error}") from None
        return Artefact(address, path, meta, arrays)

    def meta(self, address: Address) -> Mapping[str, Any]:
        """Return a member's stage.json."""
        return self.read(address).meta

    def commit(
        self,
        address: Address,
        meta: Mapping[str, Any],
        arrays: Arrays,
        files: Mapping[str, bytes] | None = None,
    ) -> bool:
        """Keep a result. Everything is on disk before it becomes visible; the first commit wins."""
        body = {
            "committed": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            **meta,
            "schema": SCHEMA,
            "kind": address.kind,
            "key": address.key,
            "member": address.member,
        }
        with self._temporary(address) as temporary:
            folder.write(temporary, STAGE, body, arrays, files or {})
            return self._publish(address, temporary, [*(files or {}), *([folder.ARRAYS] if arrays else [])])

    def receive(self, address: Address, source: Path, meta: Mapping[str, Any]) -> bool:
        """Keep a copy of the member that `source` holds and `meta` describes, verified and written as by `commit`.

        ValueError says what is wrong with the source.
        """
        with self._temporary(address) as temporary:
            folder.copy(source, temporary, STAGE, meta)
            return self._publish(address, temporary, meta["files"])

    @contextlib.contextmanager
    def _temporary(self, address: Address) -> Iterator[Path]:
        self._writable(self.path(address).parent)
        self.require()
        temporary = folder.temporary(self._writable(self.root / SCRATCH / "commit"))
        try:
            yield temporary
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise

    def _publish(self, address: Address, temporary: Path, files: Collection[str]) -> bool:
        identity, target = _identities(temporary, files), self.path(address)
        if target.is_symlink() or (target.exists() and not target.is_dir()):
            self.set_aside(address, "it is not a folder")
        won = folder.publish(temporary, target)
        if won:
            self._note_verified(str(address), identity)
        return won

    def write_file(self, path: Path, content: bytes) -> None:
        """Write a file of the store that is no member, durably and at once."""
        self._writable(path.parent)
        folder.replace(path, content, folder.temporary(self._writable(self.root / SCRATCH / "commit")))

    def lock(self, stage: str) -> AbstractContextManager[None]:
        """Hold the exclusive right to make a stage; raise Busy if another process has it.

        Where the file system has no locks work may be done twice but, since the first commit wins, never wrongly.
        """
        return self._locked("locks", self.scratch(stage).name)

    def turn(self, name: str) -> AbstractContextManager[None]:
        """Hold the exclusive right to do something that is no stage; raise Busy if another process has it."""
        # A file of its own: closing it must not drop the lock of the stage that the process may be making.
        return self._locked("turns", name)

    def _locked(self, file: str, name: str) -> AbstractContextManager[None]:
        self._writable(self.root)
        return held(self.root / file, name, self.messages.append)

    def scratch(self, stage: str) -> Path:
        """Return the folder that holds all attempts at a stage."""
        name = stage.replace(":", "-").replace("/", ",")
        if name in ("", ".", ".."):
            raise StoreError(f"{stage!r} is not the name of a stage")
        return self.root / SCRATCH / "stages" / name

    def discard_scratch(self, stage: str) -> None:
        """Remove all attempts at a stage; called by the lock's holder once the result is committed."""
        folder.delete(self._writable(self.scratch(stage).parent) / self.scratch(stage).name)
        self._sweep()

    def _sweep(self) -> None:
        """Remove what processes that were killed while they committed or removed something have left behind."""
        for place in self._entries(SCRATCH):
            for left in self._entries(SCRATCH, place.name):
                with contextlib.suppress(OSError):
                    age = time.time() - os.lstat(left).st_mtime
                    if left.name.startswith("tmp-") and age > ABANDONED_SECONDS:
                        folder.delete(left)

    def _entries(self, *place: str) -> list[Path]:
        """Return what lies in a folder of the store; nothing if it is reached by a link."""
        path = self.root.joinpath(*place)
        return sorted(path.iterdir()) if path.is_dir() and layout.obstacle(self.root, path) is None else []

    def prune_scratch(self, *, remove: bool) -> int:
        """Return the bytes of interrupted attempts and damaged members; remove them. Attempts under way stay."""
        freed = 0
        if remove:
            self._writable(self.root)
            self._sweep()
        for path in self._entries(DAMAGED):
            freed += folder.size(path)
            if remove:
                folder.delete(path)
        for path in self._entries(SCRATCH, "stages"):
            known = len(self.messages)
            with contextlib.suppress(Busy), self._locked("locks", path.name):
                if len(self.messages) > known:
                    break  # without locks nobody knows what is under way
                if leases.living(path):
                    continue  # on a machine whose locks are not seen here
                freed += folder.size(path)
                if remove:
                    folder.delete(path)
        return freed

    def note_timing(self, family: str, seconds: float, size: int) -> None:
        """Remember what a stage cost, for estimates."""
        self.note_timings([(family, seconds, size)])

    def note_timings(self, costs: Collection[tuple[str, float, int]]) -> None:
        """Remember what stages cost: family, seconds and bytes of each."""
        self._append(caches.TIMINGS, *({"family": f, "seconds": s, "bytes": b} for f, s, b in costs))

    def note_families(self, described: Mapping[str, Mapping[str, Any]]) -> None:
        """Remember what the cost of a family of stages depends on."""
        if described:
            self._append(caches.TIMINGS, *({"family": family, "like": like} for family, like in described.items()))

    def families(self) -> dict[str, Mapping[str, Any]]:
        """Return what was remembered of families of stages."""
        lines = caches.read(self.root / caches.TIMINGS)
        return {str(line.get("family")): line["like"] for line in lines if isinstance(line.get("like"), dict)}

    def timings(self) -> dict[str, list[tuple[float, int]]]:
        """Return seconds and bytes of past stages by family."""
        result: dict[str, list[tuple[float, int]]] = {}
        for line in caches.read(self.root / caches.TIMINGS):
            with contextlib.suppress(KeyError, TypeError, ValueError, OverflowError):
                cost = (float(line["seconds"]), int(line["bytes"]))
                if math.isfinite(cost[0]):
                    result.setdefault(str(line["family"]), []).append(cost)
        return result

    def listing(self) -> Iterator[tuple[Address, Mapping[str, Any]]]:
        """Yield every committed member and its stage.json, without verifying its files.

        Folders that are named for no member, or hold another one than they are named for, are passed over and noted.
        """
        for item in layout.members(self.root):
            if isinstance(item, layout.Stray):
                self.note(f"passed over: {item}")
                continue
            try:
                yield item, layout.describe(self.root, item)
            except ValueError as error:
                self.note(f"passed over: {item}: {error}")

    def addresses(self) -> Iterator[Address]:
        """Yield every committed member, named by its folders; see `listing`."""
        return (address for address, _ in self.listing())

    def remove(self, address: Address) -> int:
        """Delete a member, or the link in its place, and return its size; it is recomputed when it is needed."""
        path = self.path(address)
        self._writable(path.parent)
        freed = folder.size(path)
        self._meta.pop(address, None)
        try:
            # Renamed first, so that a reader never sees half a member.
            doomed = folder.temporary(self._writable(self.root / SCRATCH / "removed"))
            path.rename(doomed)
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise StoreError(f"{address} cannot be removed: {error}") from None
        folder.delete(doomed)
        with contextlib.suppress(OSError):
            path.parent.rmdir()
        return freed


def _identities(path: Path, files: Collection[str]) -> list[int]:
    """Return what identifies the state of files; raise ValueError if one is missing or not a regular file."""
    result: list[int] = []
    place = os.fspath(path)
    for file in sorted(files):
        try:
            status = os.lstat(f"{place}/{file}")
        except (FileNotFoundError, NotADirectoryError):
            raise ValueError(f"{file} is missing") from None
        except OSError as error:
            raise folder.Unreadable(f"{file} cannot be read: {error.strerror}") from None
        if not stat.S_ISREG(status.st_mode):
            raise ValueError(f"{file} is not a regular file")
        result += (status.st_size, status.st_mtime_ns, status.st_ino)
    return result
