"""A store that two people of one group write."""

from __future__ import annotations

import os
import shutil
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy  # noqa: F401 - another user may not read where it is installed

from bpcbench.store import leases
from bpcbench.store.address import Address
from bpcbench.store.store import Store

GROUP, ANN, BOB = 54321, 54322, 54323
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")


@pytest.fixture
def shared() -> Iterator[Path]:
    # Not tmp_path, which lies in a folder that only its owner may enter.
    folder = Path(tempfile.mkdtemp(prefix="bpcbench-group-"))
    os.chown(folder, 0, GROUP)
    folder.chmod(0o2775)
    yield folder
    shutil.rmtree(folder)


def as_user(user: int, action: Callable[[], None]) -> bool:
    """Do something as another user of the group, in a process of its own; say whether it went well."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setgroups([])
            os.setgid(GROUP)
            os.setuid(user)
            os.umask(0o002)
            action()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def address(number: int) -> Address:
    return Address("prerequisite", f"{number:032x}", "final")


def work(root: Path, number: int) -> None:
    store = Store.open(root)
    with store.lock(f"coreset:{number}"):
        lease = leases.acquire(store.scratch(f"coreset:{number}"))
        assert store.commit(address(number), {}, {"x": np.zeros(3)})
        lease.release()
        store.discard_scratch(f"coreset:{number}")
    store.note_timing("family", 1.0, 1)
    assert not store.messages


def test_two_users_share_a_store(shared: Path) -> None:
    root = shared / "store"
    assert as_user(ANN, lambda: work(root, 1))
    assert as_user(BOB, lambda: work(root, 2))

    def tidy() -> None:
        store = Store.open(root)
        assert store.has(address(1))
        assert store.remove(address(1)) > 0
        store.prune_scratch(remove=True)

    assert as_user(BOB, tidy), "what Ann has made"
    assert sum(len(group) for group in Store.open(root).timings().values()) == 2


def test_without_the_umask_the_other_is_told(shared: Path, capfd: pytest.CaptureFixture[str]) -> None:
    root = shared / "store"

    def narrow() -> None:
        os.umask(0o022)
        work(root, 1)

    assert as_user(ANN, narrow)
    assert not as_user(BOB, lambda: work(root, 2))
    assert "StoreError" in capfd.readouterr().err
