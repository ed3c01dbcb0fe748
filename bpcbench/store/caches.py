"""Files of JSON lines that only save time: what cannot be read or written is done without."""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
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
        for text in stream.read(JSON_BYTES).split(b"\n"):
            line = None
            with contextlib.suppress(ValueError):
                line = parse_json(text.decode(errors="replace"))
            if isinstance(line, dict):
                yield line
