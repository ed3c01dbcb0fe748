"""Files of JSON lines that only save time: what cannot be read or written is done without."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bpcbench.reading import JSON_BYTES, opened, parse_json

VERIFIED = "verified.jsonl"
TIMINGS = "timings.jsonl"


def append(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """Add lines to a regular file, in one write; a failure is not an error."""
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    with contextlib.suppress(OSError):
        descriptor = os.open(path, flags, 0o666)
        try:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects among the lines of a regular file, of its last 64 MB if it is larger."""
    with contextlib.suppress(OSError, ValueError), opened(path) as stream:
        size = os.fstat(stream.fileno()).st_size
        if size > JSON_BYTES:
            stream.seek(size - JSON_BYTES)
            stream.readline(JSON_BYTES)
        yield from _objects(stream.read(JSON_BYTES))


def _objects(content: bytes) -> Iterator[dict[str, Any]]:
    for text in content.split(b"\n"):
        line = None
        with contextlib.suppress(ValueError):
            line = parse_json(text.decode(errors="replace"))
        if isinstance(line, dict):
            yield line


@dataclass
class _Known:
    """What was read of a file of verified members, up to a position and a time of its last change."""

    file: tuple[int, int] = (0, 0)
    position: int = 0
    changed: int = 0
    identities: dict[str, list[int]] = field(default_factory=dict)


_KNOWN: dict[str, _Known] = {}
_READING = threading.Lock()


def verified(path: Path) -> dict[str, list[int]]:
    """Return the identities of verified members by name, shared by all who ask in this process.

    A process that executes thousands of stages opens the store for each: only lines that are new are read.
    """
    with _READING:
        known = _KNOWN.setdefault(str(path), _Known())
        with contextlib.suppress(OSError, ValueError), opened(path) as stream:
            status = os.fstat(stream.fileno())
            file, size = (status.st_dev, status.st_ino), status.st_size
            rewritten = size < known.position or (size == known.position and status.st_mtime_ns != known.changed)
            if file != known.file or rewritten or size - known.position > JSON_BYTES:
                known = _KNOWN[str(path)] = _Known(file, max(0, size - JSON_BYTES))
            stream.seek(known.position)
            # A line that another process is writing is read next time.
            content, newline, _ = stream.read(JSON_BYTES).rpartition(b"\n")
            known.position += len(content + newline)
            known.changed = status.st_mtime_ns
            known.identities.update((str(line.get("a")), line.get("id", [])) for line in _objects(content))
            return known.identities
        _KNOWN.pop(str(path), None)
        return {}
