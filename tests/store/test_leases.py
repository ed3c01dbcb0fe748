"""Leases: one holder at a time, the dead and the silent are overtaken, and who was overtaken knows it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from bpcbench.store import leases
from bpcbench.store.locks import Busy

HOLD = """
import sys
from pathlib import Path
from bpcbench.store import leases
lease = leases.acquire(Path(sys.argv[1]), float(sys.argv[2]))
print("held", flush=True)
sys.stdin.read()
print(lease.holds(), flush=True)
"""


def hold(folder: Path, seconds: float) -> subprocess.Popen[str]:
    """Start a process that holds the lease until its standard input is closed."""
    command = [sys.executable, "-c", HOLD, str(folder), str(seconds)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def silence(folder: Path) -> None:
    """Make the newest lease look as if it had not been renewed for long."""
    newest = max(folder.glob("lease-*"))
    os.utime(newest, (time.time() - 1000, time.time() - 1000))


def foreign(folder: Path) -> None:
    """Pretend that a machine nobody can look into has made the lease."""
    newest = max(folder.glob("lease-*"))
    newest.write_text('{"token": "x", "machine": "elsewhere", "pid": 1, "began": "1"}')


def test_the_living_keep_it_and_the_dead_do_not(tmp_path: Path) -> None:
    process = hold(tmp_path, 60)
    with pytest.raises(Busy):
        leases.acquire(tmp_path, 60)
    assert leases.living(tmp_path, 60)
    process.kill()
    process.wait()
    begin = time.monotonic()
    lease = leases.acquire(tmp_path, 60)
    assert time.monotonic() - begin < 5, "nobody waits for a process that is known to be dead"
    assert lease.holds()
    lease.release()
    assert list(tmp_path.iterdir()) == []


def test_a_silent_machine_is_overtaken_and_notices(tmp_path: Path) -> None:
    first = leases.acquire(tmp_path, 60)
    foreign(tmp_path)
    with pytest.raises(Busy):
        leases.acquire(tmp_path, 60)
    silence(tmp_path)
    second = leases.acquire(tmp_path, 60)
    assert (second.holds(), first.holds()) == (True, False)
    first.release()
    assert second.holds(), "the loser removes nothing"
    second.release()
    third = leases.acquire(tmp_path, 60)
    assert not first.holds(), "what is lost stays lost, though the number is used again"
    third.release()


def test_it_is_renewed_while_it_is_held(tmp_path: Path) -> None:
    lease = leases.acquire(tmp_path, 0.4)
    silence(tmp_path)
    end = time.monotonic() + 10
    while time.time() - (tmp_path / "lease-000001").stat().st_mtime > 100:
        assert time.monotonic() < end
        time.sleep(0.01)
    (tmp_path / "lease-000002").touch()
    while not lease.lost:
        assert time.monotonic() < end
        time.sleep(0.01)
    lease.release()
    assert (tmp_path / "lease-000002").exists()


def test_one_of_many_takes_over(tmp_path: Path) -> None:
    leases.acquire(tmp_path, 60)
    foreign(tmp_path)
    silence(tmp_path)
    held: list[leases.Lease] = []
    barrier = threading.Barrier(8)

    def take() -> None:
        barrier.wait()
        with contextlib.suppress(Busy):
            held.append(leases.acquire(tmp_path, 60))

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Threads share a process, whose own lease never blocks it: what counts is that only one still holds.
    assert len([lease for lease in held if lease.holds()]) == 1
    for lease in held:
        lease.release()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"token": 1}', b'{"pid": -1}', b"\xff"])
def test_an_unreadable_lease_counts_until_it_is_old(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "lease-000007").write_bytes(content)
    with pytest.raises(Busy):
        leases.acquire(tmp_path, 60)
    silence(tmp_path)
    lease = leases.acquire(tmp_path, 60)
    assert (tmp_path / "lease-000008").exists()
    lease.release()
    assert list(tmp_path.iterdir()) == []
