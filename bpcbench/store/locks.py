"""Exclusive rights between processes: one byte of one file per name."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from bpcbench.errors import StoreError


class Busy(Exception):
    """Another process is working on that address."""


@contextlib.contextmanager
def held(file: Path, name: str, complain: Callable[[str], None]) -> Iterator[None]:
    """Hold the right to `name` among all that use the file; raise Busy if another process has it.

    Nothing is left behind and a dead process holds nothing. Closing a file drops all locks that the process has in it,
    so a process that holds one must not take another of the same file. A file system without locks is complained of; a
    store that cannot be written raises StoreError.
    """
    position = int(hashlib.sha256(name.encode()).hexdigest()[:15], 16)
    try:
        # Whoever made the store may have put a link or a pipe in its place.
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except OSError as error:
        raise StoreError(f"{file} cannot be opened for locking: {error.strerror}") from None
    try:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, position)
        except (BlockingIOError, PermissionError):
            raise Busy(name) from None
        except OSError:
            complain("this file system has no locks; simultaneous runs may repeat each other's work")
        yield
    finally:
        os.close(descriptor)
