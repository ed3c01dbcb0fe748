"""A disk that fills up anywhere in a run: a sentence, nothing half-written, and with more room the same results."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from toy_runs import Toy

from bpcbench.store.verification import verify

pytestmark = pytest.mark.campaign
METHODS = "{a: {plugin: toy-loop, steps: 20}, toy-real: {}}"
KILOBYTES = (4, 60, 120, 180)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A disk of a few kilobytes, in memory; it takes the rights of root."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", str(place)], capture_output=True)
    if mounted.returncode:
        pytest.skip("no disk can be mounted here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def resize(disk: Path, size: str) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", str(disk)], check=True)


@pytest.mark.timeout(900)
def test_a_run_on_a_disk_that_fills_up(small: Path, tmp_path: Path) -> None:
    """The same store with a little more room each time, as somebody does who deletes too little."""
    toy = Toy(tmp_path / "toy").write(METHODS)
    toy.out = small / "store"
    codes = []
    for size in KILOBYTES:
        resize(small, f"{size}k")
        codes.append(toy.start(jobs=1, pace=0.001).wait(120))
        assert toy.all_gone(20)
        assert "Traceback" not in toy.output(), toy.output()
        if (toy.out / "store.json").exists():
            assert codes[-1] in (0, 1), "something was begun"
            assert [str(finding) for finding in verify(toy.out)] == []
    assert set(codes) <= {0, 1, 2}
    assert 1 in codes or 2 in codes, "no disk was full"
    assert "No space left on device" in toy.output()
    resize(small, "100m")
    toy.run(jobs=1)
    alone = Toy(tmp_path / "alone").write(METHODS)
    alone.run()
    assert toy.results() == alone.results()
    assert toy.scratch("*") == []
