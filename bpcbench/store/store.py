"""The store: content-addressed folders that are committed atomically, checked, and never changed afterwards.

STORE/store.json                         schema version
STORE/stages/KIND/KEY/MEMBER/stage.json  what was made, from what, how long it took, checksums
                            arrays.safetensors, further files
STORE/scratch/...                        checkpoints and events of attempts that are under way
STORE/damaged/...                        what failed its checksum, set aside
STORE/verified.jsonl                     which files were verified in full, by identity; only a cache
STORE/locks, STORE/turns                 what is being made or done right now, by byte; empty
STORE/timings.jsonl                      seconds and bytes of past stages, for estimates; only a cache
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bpcbench.errors import StoreError
from bpcbench.records import Arrays
from bpcbench.store import folder
from bpcbench.store.address import Address
from bpcbench.store.locks import Busy, held

SCHEMA = 1
STAGE = "stage.json"
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
    """A folder of results. Any number of processes may use it at once."""

    root: Path
    messages: list[str] = field(default_factory=list)
    _verified: dict[str, list[int]] | None = None
    _meta: dict[Address, Mapping[str, Any]] = field(default_factory=dict)

    @classmethod
    def open(cls, root: Path, *, create: bool = True) -> Store:
        """Open a store, creating it if it is not there; refuse one of a newer schema or without write permission."""
        root = root.absolute()
        marker = root / "store.json"
        if marker.exists():
            try:
                schema = json.loads(marker.read_text())["schema"]
            except (ValueError, KeyError, TypeError, OSError) as error:
                raise StoreError(f"{marker}: cannot be read: {error}") from None
            if schema != SCHEMA:
                raise StoreError(f"{root} is a store of schema {schema}; this bpcbench reads schema {SCHEMA}")
            if create and not os.access(root, os.W_OK):
                raise StoreError(f"{root}: no write permission")
        elif create:
            check_writable(root)
            if root.exists() and any(root.iterdir()) and not (root / "stages").exists():
                raise StoreError(f"{root} is not empty and not a bpcbench store; choose another folder with --out")
            try:
                (root / "stages").mkdir(parents=True, exist_ok=True)
                temporary = root / f".store-{uuid.uuid4().hex}"
                temporary.write_text(json.dumps({"schema": SCHEMA}) + "\n")
                temporary.replace(marker)
            except OSError as error:
                raise StoreError(f"{root}: a store cannot be created: {error}") from None
        return cls(root)

    def path(self, address: Address) -> Path:
        """Return the folder of an address, committed or not."""
        return self.root / "stages" / address.kind / address.key / address.folder

    def has(self, address: Address) -> bool:
        """Say whether the member is there and undamaged; a damaged one is set aside and reported."""
        path = self.path(address)
        if not path.is_dir():
            return False
        problem = self._problem(address, path)
        if problem is None:
            return True
        self.set_aside(address, problem)
        return False

    def _problem(self, address: Address, path: Path) -> str | None:
        known = self._meta.get(address)
        problem = self._compare(address, path, known) if known else ""
        if problem is None:
            return None
        # Not read yet, or another process has removed and made it again since.
        try:
            self._meta[address] = meta = folder.read_meta(path, STAGE)
        except ValueError as error:
            return str(error)
        return self._compare(address, path, meta)

    def _compare(self, address: Address, path: Path, meta: Mapping[str, Any]) -> str | None:
        verified = self._load_verified()
        name = str(address)
        try:
            identity = [n for file in sorted(meta["files"]) for n in _identity(path / file)]
        except OSError as error:
            return f"a file is missing: {error}"
        if verified.get(name) == identity:
            return None
        problem = folder.verify(path, meta)
        if problem is None:
            self._note_verified(name, identity)
        return problem

    def _load_verified(self) -> dict[str, list[int]]:
        if self._verified is None:
            self._verified = {}
            for line in _lines(self.root / "verified.jsonl"):
                self._verified[str(line.get("a"))] = line.get("id", [])
        return self._verified

    def _note_verified(self, name: str, identity: list[int]) -> None:
        self._load_verified()[name] = identity
        _append(self.root / "verified.jsonl", {"a": name, "id": identity})

    def set_aside(self, address: Address, problem: str) -> None:
        """Move a damaged member out of the way and remember to say so."""
        self._meta.pop(address, None)
        target = self.root / "damaged" / f"{address.kind}-{address.key}-{address.folder}-{uuid.uuid4().hex[:8]}"
        target.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # another process was faster
            self.path(address).rename(target)
        self.messages.append(f"damaged: {address}: {problem}; set aside in {target}")

    def read(self, address: Address) -> Artefact:
        """Return a member; raise StoreError if it is absent or damaged."""
        noted = len(self.messages)
        if not self.has(address):
            reason = self.messages[-1] if len(self.messages) > noted else f"{address} is not in the store"
            raise StoreError(reason)
        path = self.path(address)
        return Artefact(address, path, self._meta[address], folder.LazyArrays(path / folder.ARRAYS))

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
        temporary = folder.temporary(self.root / "scratch" / "commit")
        body = {
            "schema": SCHEMA,
            "kind": address.kind,
            "key": address.key,
            "member": address.member,
            "committed": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            **meta,
        }
        try:
            folder.write(temporary, STAGE, body, arrays, files or {})
            identity = [
                n
                for file in sorted([*(files or {}), *([folder.ARRAYS] if arrays else [])])
                for n in _identity(temporary / file)
            ]
            won = folder.publish(temporary, self.path(address))
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        if won:
            self._note_verified(str(address), identity)
        return won

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
        return held(self.root / file, name, self.messages.append)

    def scratch(self, stage: str) -> Path:
        """Return the folder that holds all attempts at a stage."""
        return self.root / "scratch" / "stages" / stage.replace(":", "-").replace("/", ",")

    def discard_scratch(self, stage: str) -> None:
        """Remove all attempts at a stage; called by the lock's holder once the result is committed."""
        shutil.rmtree(self.scratch(stage), ignore_errors=True)
        self._sweep()

    def _sweep(self) -> None:
        """Remove what processes that were killed while they committed or removed something have left behind."""
        for left in (self.root / "scratch").glob("*/tmp-*"):
            with contextlib.suppress(OSError):
                if time.time() - left.stat().st_mtime > ABANDONED_SECONDS:
                    shutil.rmtree(left, ignore_errors=True)

    def prune_scratch(self, *, remove: bool) -> int:
        """Return the bytes of interrupted attempts and damaged members; remove them. Attempts under way stay."""
        freed = 0
        if remove:
            self._sweep()
        for path in _entries(self.root / "damaged"):
            freed += folder.size(path)
            if remove:
                shutil.rmtree(path, ignore_errors=True)
        for path in _entries(self.root / "scratch" / "stages"):
            known = len(self.messages)
            with contextlib.suppress(Busy), self._locked("locks", path.name):
                if len(self.messages) > known:
                    break  # without locks nobody knows what is under way
                freed += folder.size(path)
                if remove:
                    shutil.rmtree(path, ignore_errors=True)
        return freed

    def note_timing(self, family: str, seconds: float, size: int) -> None:
        """Remember what a stage cost, for estimates."""
        _append(self.root / "timings.jsonl", {"family": family, "seconds": seconds, "bytes": size})

    def timings(self) -> dict[str, list[tuple[float, int]]]:
        """Return seconds and bytes of past stages by family."""
        result: dict[str, list[tuple[float, int]]] = {}
        for line in _lines(self.root / "timings.jsonl"):
            with contextlib.suppress(KeyError, TypeError, ValueError):
                cost = (float(line["seconds"]), int(line["bytes"]))
                result.setdefault(line["family"], []).append(cost)
        return result

    def addresses(self) -> Iterator[Address]:
        """Yield every committed member, read from the folders."""
        for path in sorted((self.root / "stages").glob(f"*/*/*/{STAGE}")):
            with contextlib.suppress(ValueError):
                meta = folder.read_meta(path.parent, STAGE)
                yield Address(meta["kind"], meta["key"], meta["member"])

    def remove(self, address: Address) -> int:
        """Delete a member and return its size; it will be computed again when it is needed."""
        path = self.path(address)
        freed = folder.size(path)
        self._meta.pop(address, None)
        # Renamed first, so that a reader never sees half a member.
        doomed = folder.temporary(self.root / "scratch" / "removed")
        path.rename(doomed)
        shutil.rmtree(doomed)
        with contextlib.suppress(OSError):
            path.parent.rmdir()
        return freed


def _entries(place: Path) -> list[Path]:
    return sorted(place.iterdir()) if place.is_dir() else []


def check_writable(root: Path) -> None:
    """Raise StoreError unless `root` can be created and written; nothing is created."""
    existing = root
    # Not `exists`, which raises where a folder above may not be searched.
    while not os.access(existing, os.F_OK):
        existing = existing.parent
    if not existing.is_dir():
        raise StoreError(f"{existing} is a file; choose another folder with --out")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise StoreError(f"{root}: no write permission in {existing}")


def _identity(path: Path) -> tuple[int, int, int]:
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns, stat.st_ino


def _append(path: Path, line: Mapping[str, Any]) -> None:
    # These files are caches: losing a line costs a verification or an estimate, so a failure is not an error.
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, (json.dumps(line, separators=(",", ":")) + "\n").encode())
        finally:
            os.close(descriptor)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with contextlib.suppress(OSError), path.open(errors="replace") as stream:
        for text in stream:
            try:
                line = json.loads(text)
            except ValueError:
                continue
            if isinstance(line, dict):
                yield line
