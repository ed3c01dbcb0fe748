"""Leases: who of several processes, perhaps on several machines, may write; one that falls silent loses it.

A lease is a file `lease-N` in a folder. Whoever creates the highest N holds it and renews its modification time; one
that has not been renewed for a while, or whose process is known to be dead, is overtaken by `lease-N+1`. To create a
file that must not exist is atomic on any shared file system, locks or not. No clocks are compared: ages are differences
of times that the file system itself has given.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import socket
import threading
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path

from bpcbench.reading import parse_json, read_bounded
from bpcbench.store.locks import Busy

LEASE_SECONDS = 60.0
LEASE_VARIABLE = "BPCBENCH_LEASE_SECONDS"
"""How long a holder may be silent before others take its place."""
_NAME = re.compile(r"lease-(\d{6})")


def lease_seconds() -> float:
    """Return how long a holder may be silent."""
    return float(os.environ.get(LEASE_VARIABLE, LEASE_SECONDS))


@dataclass(frozen=True)
class Holder:
    """Who holds a lease; `machine` and `began` tell whether its process can be looked up from here, and is the same."""

    token: str
    machine: str
    pid: int
    began: str

    @classmethod
    def here(cls) -> Holder:
        """Return a new holder in this process."""
        return cls(uuid.uuid4().hex, _machine(), os.getpid(), _began(os.getpid()) or "")

    @property
    def dead(self) -> bool:
        """Whether it is known that the process is gone."""
        return self.machine == _machine() and _began(self.pid) != self.began


class Lease:
    """A lease that this process holds, renewed by a thread of its own until `release`."""

    def __init__(self, folder: Path, number: int, holder: Holder, seconds: float) -> None:
        self.lost = False
        """Whether the thread has found that another process has taken over."""
        self._folder, self._number, self._holder, self._seconds = folder, number, holder, seconds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)
        self._thread.start()

    def holds(self) -> bool:
        """Look whether this process still is the one that may write; no once, no for ever."""
        if not self.lost and (
            _path(self._folder, self._number + 1).exists() or _read(_path(self._folder, self._number)) != self._holder
        ):
            self.lost = True
        return not self.lost

    def release(self) -> None:
        """Give the lease up: others need not wait."""
        self._over.set()
        self._thread.join()
        if self.holds():
            for number in _numbers(self._folder):
                with contextlib.suppress(OSError):
                    _path(self._folder, number).unlink()

    def _renew(self) -> None:
        while not self._over.wait(self._seconds / 4):
            # A file system that does not answer for a while is not yet a reason to give up.
            with contextlib.suppress(OSError):
                if not self.holds():
                    return
                os.utime(_path(self._folder, self._number))


def acquire(folder: Path, seconds: float | None = None) -> Lease:
    """Take the lease of a folder, which is created; raise Busy if another process holds it and is not silent."""
    seconds = lease_seconds() if seconds is None else seconds
    folder.mkdir(parents=True, exist_ok=True)
    # Looked up once: whoever takes over meanwhile has the number that would be this one's.
    numbers = _numbers(folder)
    if numbers and not _silent(folder, numbers[-1], seconds):
        raise Busy(str(folder))
    holder, number = Holder.here(), max(numbers, default=0) + 1
    try:
        descriptor = os.open(_path(folder, number), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    except FileExistsError:
        raise Busy(str(folder)) from None
    with os.fdopen(descriptor, "w") as stream:
        json.dump(asdict(holder), stream)
    return Lease(folder, number, holder, seconds)


def living(folder: Path, seconds: float | None = None) -> bool:
    """Say whether another process holds the lease of a folder and is not silent."""
    return bool(_numbers(folder)) and not expired(folder, seconds)


def expired(folder: Path, seconds: float | None = None) -> bool:
    """Say whether there is a lease whose holder is dead, or has been silent for too long."""
    numbers = _numbers(folder)
    return bool(numbers) and _silent(folder, numbers[-1], lease_seconds() if seconds is None else seconds)


def _silent(folder: Path, number: int, seconds: float) -> bool:
    file = _path(folder, number)
    holder = _read(file)
    if holder is not None and (holder.dead or (holder.machine, holder.pid) == (_machine(), os.getpid())):
        return True
    try:
        return _now(folder) - file.stat().st_mtime > seconds
    except OSError:
        # Released meanwhile, or the folder cannot be written: then nobody takes over.
        return False


def _now(folder: Path) -> float:
    """Return the time of the machine that keeps the files."""
    probe = folder / f"clock-{uuid.uuid4().hex}"
    try:
        probe.touch()
        return probe.stat().st_mtime
    finally:
        probe.unlink(missing_ok=True)


def _numbers(folder: Path) -> list[int]:
    try:
        names = [path.name for path in folder.iterdir()]
    except OSError:
        return []
    return sorted(int(found[1]) for name in names if (found := _NAME.fullmatch(name)))


def _path(folder: Path, number: int) -> Path:
    return folder / f"lease-{number:06d}"


def _read(file: Path) -> Holder | None:
    """Return what a lease says of its holder; None if it is gone, or just being written."""
    try:
        found = Holder(**parse_json(read_bounded(file)))
    except (OSError, ValueError, TypeError):
        return None
    return found if isinstance(found.pid, int) and found.pid > 0 else None


@functools.cache
def _machine() -> str:
    """Return what tells this machine, since it was started, from others; containers count as machines."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    with contextlib.suppress(OSError):
        parts.append(os.readlink("/proc/self/ns/pid"))  # noqa: PTH115
    return " ".join(parts)


def _began(pid: int) -> str | None:
    """Return when a process of this machine began, as far as the system tells; None if there is none such."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return None
    except OSError:
        return ""
    else:
        return None if state in "ZX" else fields[18]
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except OSError:
        pass
    return ""
