"""A line with the time that passes, for work of a command that cannot say how far it is."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from typing import TextIO

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
    begin, pause = time.monotonic(), DELAY_SECONDS
    while not over.wait(pause):
        pause = REFRESH_SECONDS
        stream.write(f"\r{what} {clock(time.monotonic() - begin)}")
        stream.flush()
    if pause == REFRESH_SECONDS:
        stream.write("\r\x1b[K")
        stream.flush()
