"""A line with the time that passes, for work of a command that cannot say how far it is."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import TextIO

from bpcbench.streams import plain
from bpcbench.text import clock

DELAY_SECONDS = 2.0
REFRESH_SECONDS = 1.0


@contextlib.contextmanager
def waiting(what: str, stream: TextIO | None = None) -> Iterator[None]:
    """Show what is done and for how long, on a terminal only, from the third second on; leave nothing behind."""
    stream = stream or sys.stderr
    if not stream.isatty():
        yield
        return
    over = threading.Event()
    shown = threading.Thread(target=_show, args=(what, stream, over), name="waiting", daemon=True)
    shown.start()
    try:
        yield
    finally:
        over.set()
        shown.join()


def _show(what: str, stream: TextIO, over: threading.Event) -> None:
    begin, pause, size = time.monotonic(), DELAY_SECONDS, 0
    while not over.wait(pause):
        pause = REFRESH_SECONDS
        passed = f" {clock(time.monotonic() - begin)}"
        line = plain(what)[: _columns(stream) - len(passed) - 1] + passed
        stream.write(f"\r{line}")
        stream.flush()
        size = len(line)
    if size:
        # Streams of commands let a carriage return through, and no escape sequence.
        for part in (f"\r{' ' * size}", "\r"):
            stream.write(part)
        stream.flush()


def _columns(stream: TextIO) -> int:
    try:
        return max(20, os.get_terminal_size(stream.fileno()).columns)
    except (OSError, ValueError):
        return 80
