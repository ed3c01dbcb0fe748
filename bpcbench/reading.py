"""Reading files that strangers may have written: regular files only, up to a size, never waiting."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

JSON_BYTES = 64_000_000
"""The largest JSON file that is read."""


@contextlib.contextmanager
def opened(path: Path, *, follow: bool = False) -> Iterator[BinaryIO]:
    """Open a regular file for reading; raise ValueError for a device, a pipe or a folder, OSError if it cannot be.

    A symbolic link is refused with ValueError unless `follow` is set. Opening never waits for a writer of a pipe.
    """
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | (0 if follow else getattr(os, "O_NOFOLLOW", 0))
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        if error.errno == errno.ELOOP and not follow:
            raise ValueError("it is a symbolic link") from None
        if error.errno == errno.ENXIO:
            raise ValueError("it is not a regular file") from None
        raise
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            raise ValueError("it is a directory" if stat.S_ISDIR(mode) else "it is not a regular file")
        with os.fdopen(descriptor, "rb", closefd=False) as stream:
            yield stream
    finally:
        os.close(descriptor)


def read_bounded(path: Path, limit: int = JSON_BYTES, *, follow: bool = False) -> bytes:
    """Return the content of a regular file of at most `limit` bytes; errors as in `opened`."""
    with opened(path, follow=follow) as stream:
        size = os.fstat(stream.fileno()).st_size
        # A buffer of the limit would be allocated for every small file.
        content = stream.read(size + 1) if size <= limit else b""
        # Some files of the system have no size, so the size alone proves nothing.
        if len(content) > size:
            content += stream.read(limit)
    if size > limit or len(content) > limit:
        raise ValueError(f"it is larger than {limit:,} bytes")
    return content


def parse_json(content: bytes | str) -> Any:
    """Parse JSON; raise ValueError for whatever is not, nesting without end included."""
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
