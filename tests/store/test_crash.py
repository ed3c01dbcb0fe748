"""Whatever a process was doing when it died or the disk was full, everything in the store is there or not there."""

from __future__ import annotations

import errno
import os
import resource
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bpcbench.errors import BpcbenchError
from bpcbench.store import folder
from bpcbench.store.address import Address
from bpcbench.store.store import Store
from bpcbench.store.verification import verify

pytestmark = pytest.mark.campaign
CALLS = ("fsync", "rename", "replace", "unlink", "mkdir", "rmdir", "write")
KEYS = [f"{number:032x}" for number in range(3)]
OLD, NEW = (Address("prerequisite", key, "final") for key in KEYS[:2])
ARRAYS = {"images": np.arange(5000, dtype=np.float32), "targets": np.arange(10)}
FILES = {"curves.jsonl": b"{}\n" * 500}
DIED, REFUSED = 9, 3


def commit(store: Store, address: Address = NEW) -> None:
    store.commit(address, {"stage": {}, "seconds": 1.0}, ARRAYS, FILES)


def commit_again(store: Store) -> None:
    store.commit(OLD, {"stage": {}, "seconds": 2.0}, {"images": np.zeros(3)})


def receive(store: Store) -> None:
    other = Store.open(store.root.parent / "other")
    commit(other)
    store.receive(NEW, other.path(NEW), other.meta(NEW))


def remove(store: Store) -> None:
    store.remove(OLD)


def set_aside(store: Store) -> None:
    store.set_aside(OLD, "as a test")


def write_file(store: Store) -> None:
    store.write_file(store.root / "logs" / "note.json", b"{}")


OPERATIONS: list[Callable[[Store], None]] = [commit, commit_again, receive, remove, set_aside, write_file]


def in_child(work: Callable[[], None]) -> int:
    """Do something in a forked process, and return its exit code: 0, or 3 where the system refused something."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except (OSError, BpcbenchError):
            code = REFUSED
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def interrupted(operation: Callable[[Store], None], root: Path, at: int, *, after: bool, full: bool) -> None:
    """Run an operation whose `at`-th call of the system fails: the process dies, or the disk is full from there on."""
    count = 0

    def faulty(call: Callable[..., Any], name: str, *arguments: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        frees = name in ("unlink", "rmdir")
        if full and count > at and not frees:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if not full and count > at and not after:
            os._exit(DIED)
        result = call(*arguments, **options)
        if not full and count > at:
            os._exit(DIED)
        return result

    for name in CALLS:
        setattr(os, name, partial(faulty, getattr(os, name), name))
    real = Path.open

    def opened(path: Path, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        if "r" in mode:
            return real(path, mode, *arguments, **options)
        return _Stream(faulty(partial(real, path, mode), "open", *arguments, **options), faulty)

    Path.open = opened  # type: ignore[assignment,method-assign]
    operation(Store.open(root, create=False))


class _Stream:
    """A file whose writes may fail in the middle: the first half is on the disk."""

    def __init__(self, below: Any, faulty: Callable[..., Any]) -> None:
        self.below, self.faulty = below, faulty

    def write(self, content: bytes) -> int:
        half = len(content) // 2
        self.below.write(content[:half])
        self.below.flush()
        return half + int(self.faulty(self.below.write, "write", content[half:]))

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.below.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.below, name)


def check(root: Path) -> None:
    """Every member that the store lists is whole, and what was interrupted can be done again."""
    store = Store.open(root)
    found = dict(store.listing())
    assert set(found) <= {OLD, NEW}
    for address in found:
        if address == NEW:
            np.testing.assert_array_equal(store.read(address).arrays["images"], ARRAYS["images"])
        assert store.has(address)
    # The key of these members is not derived from a stage; everything else about them must be right.
    problems = [str(finding) for finding in verify(root) if "its key was derived" not in str(finding)]
    assert problems == []
    assert store.messages == []
    for address in (OLD, NEW):
        if not store.has(address):
            commit(store, address)
        assert store.has(address)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    store = Store.open(tmp_path / "store")
    commit(store, OLD)
    return store.root


@pytest.mark.parametrize("how", ["before", "after", "full"])
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.__name__)
def test_every_moment(operation: Callable[[Store], None], how: str, tmp_path: Path) -> None:
    faults = 0
    for at in range(200):
        place = tmp_path / str(at) / "store"
        commit(Store.open(place), OLD)
        code = in_child(partial(interrupted, operation, place, at, after=how == "after", full=how == "full"))
        check(place)
        if code == 0 and how != "full":
            break
        assert code in ((DIED,) if how != "full" else (0, REFUSED))
        faults += 1
        if how == "full" and at >= 25:
            break
    print(f"{operation.__name__}, {how}: {faults} faults")
    assert faults > 0


@pytest.mark.parametrize("limit", [0, 1, 100, 1000, 4096, 10_000, 20_000, 30_000])
def test_a_disk_that_fills_up_while_a_file_is_written(limit: int, root: Path) -> None:
    def work() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        commit(Store.open(root, create=False))

    code = in_child(work)
    assert code in (0, REFUSED)
    assert (limit >= 20_500) == (code == 0)
    assert list((root / "scratch").glob("*/tmp-*")) == [], "what a full disk has refused takes no room"
    check(root)


def test_an_operation_that_was_not_interrupted_calls_the_system(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The faults above lie where files become durable: without these calls there would be nothing to interrupt."""
    called = []

    def noted(call: Callable[..., Any], name: str, *words: Any, **options: Any) -> Any:
        called.append(name)
        return call(*words, **options)

    for name in CALLS:
        monkeypatch.setattr(os, name, partial(noted, getattr(os, name), name))
    commit(Store.open(root))
    assert called.count("fsync") >= 4
    assert called.index("rename") > called.index("fsync")
    assert folder.ARRAYS in {path.name for path in Store(root).path(NEW).iterdir()}
