"""The store keeps what it is given, notices damage, and is safe to share."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from stored import snapshot
from toy_runs import flip, until

from bpcbench.cli import main
from bpcbench.errors import StoreError
from bpcbench.store import folder
from bpcbench.store.address import Address
from bpcbench.store.locks import Busy
from bpcbench.store.store import Store

ADDRESS = Address("prerequisite", "a" * 32, "final")
ARRAYS = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "scalar": np.float64(3.5),
    "empty": np.zeros((0, 3), np.int64),
    "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "strided": np.arange(10)[::3],
    "flag": np.array([True, False]),
}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store")


def commit(store: Store, value: float = 1.0, address: Address = ADDRESS) -> bool:
    return store.commit(address, {"note": value}, {"x": np.full(1000, value)})


def test_reads_what_was_committed(store: Store) -> None:
    assert not store.has(ADDRESS)
    assert store.commit(ADDRESS, {"body": {10: "ten", 2: [1, None, float("inf")]}}, ARRAYS, {"more.txt": b"text"})
    for reader in (store, Store.open(store.root)):
        found = reader.read(ADDRESS)
        assert found.meta["body"] == {"10": "ten", "2": [1, None, float("inf")]}
        assert (found.folder / "more.txt").read_bytes() == b"text"
        assert set(found.arrays) == set(ARRAYS)
        for name, array in ARRAYS.items():
            assert found.arrays[name].dtype == np.asarray(array).dtype
            assert found.arrays[name].shape == np.shape(array)
            np.testing.assert_array_equal(found.arrays[name], array)
        with pytest.raises(KeyError):
            found.arrays["other"]
    assert not list((store.root / "scratch").rglob("tmp-*"))


def test_no_arrays(store: Store) -> None:
    store.commit(ADDRESS, {}, {})
    assert dict(Store.open(store.root).read(ADDRESS).arrays) == {}


def test_a_type_without_a_form_is_named(store: Store) -> None:
    with pytest.raises(TypeError, match="'names' is of type <U1"):
        store.commit(ADDRESS, {}, {"names": np.array(["a"])})
    assert not store.has(ADDRESS)
    assert not list((store.root / "scratch").rglob("tmp-*"))


def test_first_commit_wins(store: Store) -> None:
    assert commit(store, 1.0)
    assert not commit(store, 2.0)
    assert store.read(ADDRESS).arrays["x"][0] == 1.0


def test_many_commit_at_once(store: Store) -> None:
    """Threads and processes: one wins, all see the winner's, nothing is left over."""
    won: list[float] = []
    begin = threading.Barrier(8)

    def work(value: float) -> None:
        begin.wait()
        if commit(Store(store.root), value):
            won.append(value)

    threads = [threading.Thread(target=work, args=(float(i),)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [store.read(ADDRESS).arrays["x"][0]] == won

    other = Address("prerequisite", "b" * 32, "final")
    with multiprocessing.get_context("fork").Pool(4) as pool:
        results = pool.starmap(commit, [(Store(store.root), float(i), other) for i in range(12)], chunksize=1)
    assert sum(results) == 1
    assert store.read(other).arrays["x"][0] == results.index(True)
    assert not list((store.root / "scratch").rglob("tmp-*"))


def _flip_array(path: Path) -> None:
    flip(path / folder.ARRAYS)


def _truncate(path: Path) -> None:
    os.truncate(path / folder.ARRAYS, 100)


def _lose(path: Path) -> None:
    (path / folder.ARRAYS).unlink()


def _flip_meta(path: Path) -> None:
    text = (path / "stage.json").read_text()
    (path / "stage.json").write_text(text.replace('"note": 1.0', '"note": 2.0'))


def _break_meta(path: Path) -> None:
    (path / "stage.json").write_text("{")


def _lose_meta(path: Path) -> None:
    (path / "stage.json").unlink()


@pytest.mark.parametrize("damage", [_flip_array, _truncate, _lose, _flip_meta, _break_meta, _lose_meta])
def test_damage_is_set_aside_and_said(store: Store, damage) -> None:
    commit(store)
    damage(store.path(ADDRESS))
    reader = Store.open(store.root)
    assert not reader.has(ADDRESS)
    assert not store.path(ADDRESS).exists()
    assert len(list((store.root / "damaged").iterdir())) == 1
    assert str(ADDRESS) in reader.messages[0]
    assert "set aside" in reader.messages[0]
    assert not reader.has(ADDRESS)
    assert len(reader.messages) == 1
    assert commit(reader, 3.0)
    assert reader.read(ADDRESS).arrays["x"][0] == 3.0


def test_read_says_why(store: Store) -> None:
    commit(store)
    store.messages.append("something else")
    with pytest.raises(StoreError, match=r"predict.* is not in the store"):
        store.read(Address("predict", "c" * 32, "final"))
    flip(store.path(ADDRESS) / folder.ARRAYS)
    with pytest.raises(StoreError, match="does not match its checksum"):
        store.read(ADDRESS)


def test_verified_once_then_by_identity(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(store)
    (store.root / "verified.jsonl").unlink()
    verified: list[Path] = []
    real = folder.check
    monkeypatch.setattr(folder, "check", lambda path, meta: verified.append(path) or real(path, meta))
    for _ in range(3):
        assert Store.open(store.root).has(ADDRESS)
    assert len(verified) == 1
    # Another time or another inode, and its content is looked at again.
    os.utime(store.path(ADDRESS) / folder.ARRAYS, ns=(1, 1))
    assert Store.open(store.root).has(ADDRESS)
    assert len(verified) == 2


@pytest.mark.parametrize("garbage", [b"\xff\xfe\n", b"{}\n", b'{"a": 1}\n', b"[1]\n", b'{"a":"x","id":[1,'])
def test_a_broken_cache_costs_nothing(store: Store, garbage: bytes) -> None:
    commit(store)
    store.note_timing("f", 1.5, 10)
    for name in ("verified.jsonl", "timings.jsonl"):
        path = store.root / name
        path.write_bytes(garbage + path.read_bytes())
    reader = Store.open(store.root)
    assert reader.has(ADDRESS)
    assert reader.timings() in ({"f": [(1.5, 10)]}, {})


def test_made_again_elsewhere(store: Store) -> None:
    """A member that another process removed and made anew is not taken for a damaged one."""
    commit(store, 1.0)
    assert store.read(ADDRESS).arrays["x"][0] == 1.0
    other = Store.open(store.root)
    other.remove(ADDRESS)
    commit(other, 2.0)
    assert store.has(ADDRESS)
    assert store.read(ADDRESS).meta["note"] == 2.0


def test_list_and_remove(store: Store) -> None:
    commit(store)
    step = Address("predict", "d" * 32, "digits/test~1")
    commit(store, address=step)
    (store.path(step).parent / "broken").mkdir()
    (store.path(step).parent / "broken" / "stage.json").write_text("{")
    assert set(store.addresses()) == {ADDRESS, step}
    assert store.remove(ADDRESS) > 8000
    assert not store.has(ADDRESS)
    assert not store.path(ADDRESS).parent.exists()
    assert not list((store.root / "scratch").rglob("tmp-*"))


def test_remains_of_killed_commits_go(store: Store) -> None:
    old, new = (folder.temporary(store.root / "scratch" / "commit") for _ in range(2))
    old.mkdir()
    new.mkdir()
    os.utime(old, (0, 0))
    store.discard_scratch("any")
    assert new.exists()
    assert not old.exists()


def test_refuses_other_folders(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(StoreError, match="not empty and not a bpcbench store"):
        Store.open(tmp_path)
    with pytest.raises(StoreError, match="is a file"):
        Store.open(tmp_path / "thesis.tex")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '{"schema": 1}',
            "schema 1, made by an earlier bpcbench whose keys differ; keep it, and choose another folder",
        ),
        ('{"schema": 3}', "schema 3, made by a later bpcbench"),
        ('{"schema": true}', "cannot be read"),
        ('{"schema": "2"}', "cannot be read"),
        ("{}", "cannot be read"),
        ("nonsense", "cannot be read"),
        ("[" * 100_000, "nested too deeply"),
        ("[]", "cannot be read"),
    ],
)
@pytest.mark.parametrize("create", [True, False])
def test_refuses_other_and_broken_stores(store: Store, text: str, message: str, create: bool) -> None:
    (store.root / "store.json").write_text(text)
    before = snapshot(store.root)
    with pytest.raises(StoreError, match=message):
        Store.open(store.root, create=create)
    assert snapshot(store.root) == before


HOLD = """
import os, subprocess, sys, time
from pathlib import Path
from bpcbench.store.store import Store
with Store.open(Path(sys.argv[1])).lock("stage"):
    child = subprocess.Popen(["sleep", "100"], close_fds=False)
    forked = os.fork() or time.sleep(100)
    print(child.pid, forked, flush=True)
    time.sleep(100)
"""


def test_lock_dies_with_its_holder_alone(store: Store) -> None:
    """Busy while held; free after kill -9 of the holder, although its children live on; others are not affected."""
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(store.root)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    children = [int(word) for word in holder.stdout.readline().split()]
    try:
        with pytest.raises(Busy), store.lock("stage"):
            pass
        with store.lock("another stage"):
            pass
        holder.kill()
        holder.wait()

        def free() -> bool:
            try:
                with store.lock("stage"):
                    return True
            except Busy:
                return False

        until(free, 5)
        for child in children:
            os.kill(child, 0)
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)


def test_pruning_leaves_what_is_under_way(store: Store, capsys) -> None:
    busy, idle = "prerequisite:ab@0/a-b,c:d", "coreset:12"
    for stage in (busy, idle):
        attempt = store.scratch(stage) / "one"
        attempt.mkdir(parents=True)
        (attempt / "checkpoint").write_bytes(b"12345")
    hold = HOLD.replace('"stage"', repr(busy))
    holder = subprocess.Popen([sys.executable, "-c", hold, str(store.root)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    children = [int(word) for word in holder.stdout.readline().split()]
    words = ["store", "prune", "--scratch", "--out", str(store.root)]
    try:
        for extra, verb, left in (([], "would prune", [True, True]), (["--yes"], "pruned", [True, False])):
            assert main([*words, *extra]) == 0
            output = capsys.readouterr().out
            assert output.startswith(verb)
            assert "damaged: 5 B" in output
            assert [store.scratch(stage).exists() for stage in (busy, idle)] == left
    finally:
        holder.kill()
        holder.wait()
        for child in children:
            os.kill(child, signal.SIGKILL)
    until(lambda: store.prune_scratch(remove=True) == 5, 5)
    assert not store.scratch(busy).exists()


def test_taking_turns_keeps_the_lock_of_a_stage(store: Store) -> None:
    """Closing a file drops every lock that a process has in it."""
    probe = "import sys; from pathlib import Path; from bpcbench.store.store import Store\n"
    probe += "with Store.open(Path(sys.argv[1])).lock('coreset:1'): pass"
    with store.lock("coreset:1"):
        with store.turn("mlflow"):
            pass
        tried = subprocess.run([sys.executable, "-c", probe, str(store.root)], capture_output=True, text=True)
    assert "Busy" in tried.stderr


def test_next_run_makes_damaged_results_again(toy) -> None:
    toy.write("[toy-real]").run(jobs=0)
    before = toy.results()
    (score,) = (toy.out / "stages" / "score").glob("*/*")
    (coreset,) = (toy.out / "stages" / "coreset").glob("*/final")
    time.sleep(0.01)
    flip(coreset / folder.ARRAYS)
    (score / "stage.json").write_text("{")
    output = toy.run(jobs=0)
    assert output.count("damaged: score:") == 1
    assert len(toy.counted("coreset")) == 1, "nothing that was asked for needs the coreset"
    (prediction,) = (toy.out / "stages" / "predict").glob("*/toy-data*")
    os.truncate(prediction / folder.ARRAYS, 10)
    (score / "stage.json").unlink()
    output = toy.run(jobs=0)
    for kind in ("score:", "predict:", "coreset:"):
        assert f"damaged: {kind}" in output
    assert len(toy.counted("coreset")) == 2
    assert toy.results() == before
    assert json.loads((toy.out / "store.json").read_text()) == {"schema": 2}
