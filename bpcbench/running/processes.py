"""Trees of processes: what a worker starts ends with it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36


def lead() -> None:
    """Make this process the head of its own session and, on Linux, the parent of every orphan below it.

    Its children can then be found and ended with it, even those that detached themselves.
    """
    with contextlib.suppress(OSError):  # it leads a group already
        os.setsid()
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_tree(pid: int, also: tuple[int, ...] = ()) -> None:
    """Kill a process, its group, its descendants and the processes in `also`; those that are gone do not matter."""
    victims = {pid, *descendants(pid), *also} - {os.getpid(), 0, 1}
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)
    for victim in victims:
        with contextlib.suppress(OSError):
            os.kill(victim, signal.SIGKILL)


def descendants(pid: int) -> tuple[int, ...]:
    """Return the children of a process, their children and so on; only Linux says which they are."""
    children: dict[int, list[int]] = {}
    for child, parent in _parents():
        children.setdefault(parent, []).append(child)
    found: list[int] = []
    waiting = [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return tuple(found)


def _parents() -> Iterator[tuple[int, int]]:
    with contextlib.suppress(OSError):
        for entry in os.scandir("/proc"):
            if entry.name.isdigit():
                # It may end meanwhile. The name, in parentheses, may hold anything.
                with contextlib.suppress(OSError, ValueError, IndexError):
                    status = Path(entry.path, "stat").read_bytes().rpartition(b")")[2].split()
                    yield int(entry.name), int(status[1])
