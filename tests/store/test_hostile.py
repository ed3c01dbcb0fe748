"""A store from a stranger: nothing in it reaches outside, hangs, or ends in a traceback."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from import_path import with_folder
from stored import address, forge, put, snapshot
from toy_runs import flip

from bpcbench.cli import main
from bpcbench.errors import StoreError, UserError
from bpcbench.reading import parse_json, read_bounded
from bpcbench.store import caches, folder
from bpcbench.store.address import Address
from bpcbench.store.locks import Busy
from bpcbench.store.store import Store
from bpcbench.suite import document

KEY = "0" * 32
IMPROPER = [
    Address("coreset", "../../../other/stages/coreset/" + KEY, "final"),
    Address("../..", KEY, "final"),
    Address("coreset", KEY, ".."),
    Address("coreset", KEY, "a/../../b"),
    Address("coreset", KEY, "/etc"),
    Address("coreset", KEY, ""),
    Address("coreset", KEY, "a,b"),
    Address("coreset", KEY.upper().replace("0", "A"), "final"),
    Address("other", KEY, "final"),
]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store")


@pytest.fixture
def outside(tmp_path: Path) -> Store:
    """Another store, of which nothing may be changed."""
    made = Store.open(tmp_path / "other")
    put(made, name="outside")
    return made


@pytest.mark.parametrize("wrong", IMPROPER, ids=str)
def test_improper_addresses_are_refused(store: Store, wrong: Address) -> None:
    before = snapshot(store.root.parent)
    calls = [
        lambda: store.path(wrong),
        lambda: store.has(wrong),
        lambda: store.read(wrong),
        lambda: store.remove(wrong),
        lambda: store.set_aside(wrong, "it is wrong"),
        lambda: store.commit(wrong, {}, {"x": np.zeros(1)}),
        lambda: store.receive(wrong, store.root, {"files": {}}),
    ]
    for call in calls:
        with pytest.raises(StoreError, match="is not an address"):
            call()
    assert snapshot(store.root.parent) == before


def test_a_forged_address_deletes_and_moves_nothing_elsewhere(store: Store, outside: Store, capsys) -> None:
    (victim,) = outside.addresses()
    for name, forged in (("a", f"../../../other/stages/coreset/{victim.key}"), ("b", victim.key), ("c", KEY)):
        forge(store, put(store, name=name), key=forged)
    forge(store, put(store, name="d"), kind="../../other/stages/coreset")
    forge(store, put(store, name="e"), member="../x")
    forge(store, put(store, name="f"), kind=["coreset"])
    honest = put(store, name="honest")
    before = snapshot(outside.root)
    assert list(store.addresses()) == [honest]
    assert len(store.messages) == 6
    assert all("describes another member" in message for message in store.messages)
    words = ["--out", str(store.root)]
    assert main(["store", "list", *words]) == 0
    assert main(["store", "prune", "--kind", "coreset", "--yes", *words]) == 0
    output = capsys.readouterr()
    assert "pruned: 1 members" in output.out
    assert output.err.count("describes another member") == 12
    assert snapshot(outside.root) == before
    assert list(outside.addresses()) == [victim]


def test_folders_that_are_not_members_are_passed_over(store: Store) -> None:
    kept = put(store, member="digits/test~1")
    place = store.path(kept)
    assert place.name == "digits,test~1"
    shutil.copytree(place, place.with_name("digits,test~1.bak"))
    shutil.copytree(place, place.with_name("digits test"))
    shutil.copytree(place.parent, place.parent.with_name(place.parent.name + ".bak"))
    shutil.copytree(place.parent, place.parent.parent.with_name("coresets") / place.parent.name)
    (place.parent / "empty").mkdir()
    (place.parent / "folder" / "stage.json").mkdir(parents=True)
    (place.parent / "notes.txt").write_text("mine")
    (place.parent / ".DS_Store").write_text("")
    (store.root / "stages" / "file").write_text("")
    assert list(store.addresses()) == [kept]
    assert len(store.messages) == 8
    assert list(store.addresses()) == [kept]
    assert len(store.messages) == 8, "each is told once"
    assert main(["store", "list", "--out", str(store.root)]) == 0
    assert place.with_name("digits,test~1.bak").exists(), "listing moves nothing"


@pytest.mark.parametrize("what", ["file", "folder-for-json", "folder-for-arrays", "link", "dangling", "linked-json"])
def test_something_else_in_the_place_of_a_member(store: Store, outside: Store, what: str) -> None:
    (victim,) = outside.addresses()
    where = put(store, name="outside", value=2.0)
    path, target = store.path(where), outside.path(victim)
    if what == "folder-for-json":
        (path / "stage.json").unlink()
        (path / "stage.json").mkdir()
    elif what == "folder-for-arrays":
        (path / folder.ARRAYS).unlink()
        (path / folder.ARRAYS).mkdir()
    elif what == "linked-json":
        for file in path.iterdir():
            file.unlink()
            file.symlink_to(target / file.name)
    else:
        shutil.rmtree(path)
        if what == "file":
            path.write_text("text")
        else:
            path.symlink_to(target if what == "link" else target / "nowhere")
    before = snapshot(outside.root)
    reader = Store.open(store.root)
    assert not reader.has(where)
    assert "set aside" in reader.messages[0]
    with pytest.raises(StoreError, match="not in the store"):
        reader.read(where)
    put(reader, name="outside", value=3.0)
    assert reader.read(where).arrays["x"][0] == 3.0
    assert reader.prune_scratch(remove=True) >= 0
    assert not list((store.root / "damaged").iterdir())
    assert snapshot(outside.root) == before


def test_a_commit_in_the_place_of_a_link_replaces_the_link_only(store: Store, outside: Store) -> None:
    (victim,) = outside.addresses()
    path = store.path(victim)
    path.parent.mkdir(parents=True)
    path.symlink_to(outside.path(victim))
    before = snapshot(outside.root)
    put(store, name="outside", value=5.0)
    assert store.read(victim).arrays["x"][0] == 5.0
    assert snapshot(outside.root) == before


def test_removing_a_linked_member_removes_the_link(store: Store, outside: Store) -> None:
    (victim,) = outside.addresses()
    path = store.path(victim)
    path.parent.mkdir(parents=True)
    path.symlink_to(outside.path(victim))
    before = snapshot(outside.root)
    assert store.remove(victim) == 0
    assert not path.is_symlink()
    assert snapshot(outside.root) == before
    assert store.remove(victim) == 0, "nothing to remove"


@pytest.mark.parametrize("level", ["stages", "stages/coreset", "stages/coreset/KEY"])
def test_linked_folders_are_not_entered(store: Store, outside: Store, level: str, capsys) -> None:
    (victim,) = outside.addresses()
    level = level.replace("KEY", victim.key)
    link = store.root / level
    link.parent.mkdir(parents=True, exist_ok=True)
    if link.is_dir():
        link.rmdir()
    link.symlink_to(outside.root / level)
    before = snapshot(outside.root)
    assert list(store.addresses()) == []
    assert not store.has(victim)
    assert any("symbolic link" in message for message in store.messages)
    for call in (
        lambda: store.remove(victim),
        lambda: store.commit(victim, {}, {"x": np.zeros(1)}),
        lambda: store.commit(Address("coreset", victim.key, "new"), {}, {}),
    ):
        with pytest.raises(StoreError, match="symbolic link"):
            call()
    assert "not set aside" in store.set_aside(victim, "it is wrong")
    assert main(["store", "prune", "--kind", "coreset", "--scratch", "--yes", "--out", str(store.root)]) == 0
    assert "0 members" in capsys.readouterr().out
    assert snapshot(outside.root) == before


@pytest.mark.parametrize("name", ["scratch", "scratch/stages", "scratch/commit", "scratch/removed", "damaged"])
def test_linked_scratch_loses_nothing_elsewhere(store: Store, tmp_path: Path, name: str) -> None:
    where = put(store)
    precious = tmp_path / "precious"
    (precious / "tmp-1" / "stage").mkdir(parents=True)
    (precious / "stages" / "coreset-1").mkdir(parents=True)
    (precious / "commit" / "tmp-2").mkdir(parents=True)
    (precious / "coreset-1").mkdir()
    for path in precious.rglob("*"):
        os.utime(path, (0, 0))
    shutil.rmtree(store.root / name, ignore_errors=True)
    (store.root / name).parent.mkdir(exist_ok=True)
    (store.root / name).symlink_to(precious)
    before = snapshot(precious)
    with contextlib.suppress(StoreError):
        store.discard_scratch("coreset:1")
    store.prune_scratch(remove=True)
    with contextlib.suppress(StoreError):
        put(store, name="b")
    flip(store.path(where) / folder.ARRAYS)
    assert not Store.open(store.root).has(where)
    with contextlib.suppress(StoreError):
        store.remove(where)
    assert snapshot(precious) == before


def test_caches_and_locks_are_not_written_through_links(store: Store, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("precious")
    for name in ("verified.jsonl", "timings.jsonl", "locks", "turns"):
        (store.root / name).unlink(missing_ok=True)
        (store.root / name).symlink_to(precious if name != "turns" else tmp_path / "new")
    where = put(store)
    store.note_timing("f", 1.0, 1)
    assert Store.open(store.root).has(where)
    assert store.timings() == {}
    for context in (store.lock("coreset:1"), store.turn("doctor")):
        with pytest.raises(StoreError, match="cannot be opened for locking"), context:
            pass
    assert precious.read_text() == "precious"
    assert not (tmp_path / "new").exists()


def test_a_file_outside_is_not_part_of_a_member(store: Store, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    listed = {"sha256": "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b", "bytes": 6}
    for i, name in enumerate(("../../../../../secret", "/etc/passwd", "..", "", "a\\b", "a\0b", "\ud800", "n" * 101)):
        where = put(store, name=str(i))
        forge(store, where, files={name: listed})
        with pytest.raises(StoreError, match="list of files is malformed"):
            store.read(where)
    for i, entry in enumerate(({**listed, "bytes": -1}, {**listed, "bytes": True}, {"bytes": 6}, [], None)):
        where = put(store, name=f"entry {i}")
        forge(store, where, files={"secret": entry})
        assert not store.has(where)
    where = put(store, name="none")
    forge(store, where, files=[])
    assert not store.has(where)


def test_arrays_that_are_not_listed_are_not_read(store: Store) -> None:
    where = put(store)
    forge(store, where, files={})
    assert dict(store.read(where).arrays) == {}


def test_arrays_that_are_none_give_one_message(store: Store) -> None:
    where = address("prerequisite")
    store.commit(where, {}, {}, {folder.ARRAYS: b"\xff" * 100})
    with pytest.raises(StoreError, match=r"arrays.safetensors cannot be read"):
        store.read(where)


@pytest.mark.parametrize("name", ["stage.json", folder.ARRAYS])
def test_a_pipe_does_not_hang(store: Store, name: str) -> None:
    where = put(store)
    (store.path(where) / name).unlink()
    os.mkfifo(store.path(where) / name)
    begin = time.monotonic()
    assert not Store.open(store.root).has(where)
    assert time.monotonic() - begin < 5


def test_pipes_and_devices_in_the_place_of_files(store: Store) -> None:
    where = put(store)
    for name in ("verified.jsonl", "timings.jsonl"):
        (store.root / name).unlink(missing_ok=True)
        os.mkfifo(store.root / name)
    store.note_timing("f", 1.0, 1)
    assert store.timings() == {}
    assert Store.open(store.root).has(where)
    (store.root / "store.json").unlink()
    os.mkfifo(store.root / "store.json")
    with pytest.raises(StoreError, match="not a regular file"):
        Store.open(store.root)
    (store.root / "store.json").unlink()
    (store.root / "store.json").symlink_to("/dev/zero")
    with pytest.raises(StoreError, match="symbolic link"):
        Store.open(store.root)


def test_reads_are_bounded(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_bounded(path, 5) == b"12345"
    with pytest.raises(ValueError, match="larger than 4 bytes"):
        read_bounded(path, 4)
    for special, message in (("/dev/zero", "not a regular file"), (tmp_path, "is a directory")):
        with pytest.raises(ValueError, match=message):
            read_bounded(Path(special), 5)
    (tmp_path / "link").symlink_to(path)
    assert read_bounded(tmp_path / "link", 5, follow=True) == b"12345"
    with pytest.raises(ValueError, match="symbolic link"):
        read_bounded(tmp_path / "link", 5)
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_json("[" * 100_000)
    where = put(store)
    with (store.path(where) / "stage.json").open("r+b") as stream:
        stream.truncate(200_000_000)  # sparse
    with pytest.raises(StoreError, match="larger than 64,000,000 bytes"):
        Store.open(store.root).read(where)


def test_the_end_of_a_huge_cache_is_used(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(100):
        store.note_timing(f"f{i}", 1.0, i)
    monkeypatch.setattr(caches, "JSON_BYTES", 500)
    families = list(store.timings())
    assert 5 < len(families) < 20
    assert families[-1] == "f99"


@pytest.mark.parametrize("how", ["/dev/zero", "fifo", "extends"])
def test_a_suite_is_a_regular_file(tmp_path: Path, how: str) -> None:
    name = how
    if how == "fifo":
        name = str(tmp_path / "suite.yaml")
        os.mkfifo(name)
    elif how == "extends":
        name = str(tmp_path / "suite.yaml")
        Path(name).write_text("extends: /dev/zero\n")
    command = [sys.executable, "-m", "bpcbench", "plan", name]
    environment = {**os.environ, "PYTHONPATH": with_folder(Path(__file__).parents[2])}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1
    assert "not a regular file" in done.stderr


def test_a_linked_suite_is_read(tmp_path: Path) -> None:
    (tmp_path / "real.yaml").write_text("name: x\n")
    (tmp_path / "link.yaml").symlink_to("real.yaml")
    assert document.read(tmp_path / "link.yaml").values == {"name": "x"}
    with pytest.raises(UserError, match="is a directory"):
        document.read(tmp_path)


def test_text_of_strangers_does_not_steer_the_terminal(store: Store, capsys) -> None:
    put(store, label="\x1b[2Jgone\nsecond line \ud800", device="\x07")
    (store.root / "stages" / "\x1b[31mred").mkdir()
    assert main(["store", "list", "--out", str(store.root)]) == 0
    output = capsys.readouterr()
    assert "?[2Jgone?second line ?" in output.out
    assert "\x1b" not in output.out + output.err
    assert "red" in output.err


def test_what_a_stage_says_of_itself_cannot_replace_its_address(store: Store) -> None:
    where = put(store, key="f" * 32, kind="score", member="x", schema=9)
    meta = store.meta(where)
    assert (meta["kind"], meta["key"], meta["member"], meta["schema"]) == (where.kind, where.key, where.member, 2)


def test_age_is_counted_from_the_commit(store: Store, capsys) -> None:
    old = put(store, name="old", committed="2020-01-01T00:00:00Z")
    new = put(store, name="new")
    odd = put(store, name="odd", committed="long ago")
    for where in (old, new, odd):
        seconds = time.time() - (86400 * 30 if where == new else 0)
        os.utime(store.path(where) / "stage.json", (seconds, seconds))
    assert main(["store", "prune", "--older", "7", "--yes", "--out", str(store.root)]) == 0
    output = capsys.readouterr()
    assert "pruned: 1 members" in output.out
    assert f"{odd}: its stage.json is malformed: `committed` is not a time" in output.err
    assert set(store.addresses()) == {new}
    assert store.path(odd).is_dir(), "what is not understood is not removed"


@contextlib.contextmanager
def unprivileged() -> Iterator[None]:
    """Act as a user who may write nothing; root may write everything."""
    if os.geteuid() != 0:
        yield
        return
    os.setresuid(65534, 65534, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)


@pytest.fixture
def frozen() -> Iterator[tuple[Path, Address, Address]]:
    """A store without write permission, an intact member and a damaged one."""
    parent = Path(tempfile.mkdtemp())
    parent.chmod(0o755)
    store = Store.open(parent / "store")
    good, bad = put(store, name="good"), put(store, name="bad")
    flip(store.path(bad) / folder.ARRAYS)
    (store.root / "verified.jsonl").unlink()
    folders = [store.root, *(path for path in store.root.rglob("*") if path.is_dir())]
    for path in folders:
        path.chmod(0o555)
    yield store.root, good, bad
    for path in folders:
        path.chmod(0o755)
    shutil.rmtree(parent)


def test_a_store_without_write_permission_is_read(frozen: tuple[Path, Address, Address], capsys) -> None:
    root, good, bad = frozen
    before = snapshot(root)
    with unprivileged():
        with pytest.raises(StoreError, match="no write permission"):
            Store.open(root)
        store = Store.open(root, create=False)
        assert store.read(good).arrays["x"][0] == 1.0
        assert not store.has(bad)
        assert not store.has(bad)
        assert len(store.messages) == 1
        assert "does not match its checksum; not set aside" in store.messages[0]
        with pytest.raises(StoreError, match="does not match its checksum"):
            store.read(bad)
        store.note_timing("f", 1.0, 1)
        with pytest.raises(StoreError, match="cannot be removed"):
            store.remove(good)
        with pytest.raises(StoreError, match="cannot be opened for locking"), store.lock("coreset:1"):
            pass
        assert main(["store", "list", "--out", str(root)]) == 0
        assert main(["store", "verify", "--out", str(root)]) == 1
        assert main(["store", "verify", "--set-aside", "--out", str(root)]) == 1
        assert main(["store", "prune", "--kind", "coreset", "--yes", "--out", str(root)]) == 2
    assert str(good) in capsys.readouterr().out
    assert snapshot(root) == before


def test_a_store_without_write_permission_is_merged(frozen: tuple[Path, Address, Address], capsys) -> None:
    root, good, bad = frozen
    before = snapshot(root)
    ours = root.with_name("ours")
    root.parent.chmod(0o777)
    with unprivileged():
        assert main(["store", "merge", str(root), "--out", str(ours)]) == 1
    root.parent.chmod(0o755)
    output = capsys.readouterr().out
    assert f"damaged: {bad}: arrays.safetensors does not match its checksum; not taken" in output
    assert list(Store.open(ours).addresses()) == [good]
    assert snapshot(root) == before


def test_what_may_not_be_read_is_not_taken_for_damaged(frozen: tuple[Path, Address, Address]) -> None:
    root, good, _ = frozen
    store = Store.open(root, create=False)
    for file in ("stage.json", folder.ARRAYS):
        (store.path(good) / file).chmod(0)
        for path in (root, store.path(good).parent):
            path.chmod(0o777)
        with unprivileged():
            reader = Store.open(root, create=False)
            assert not reader.has(good)
            assert f"{file} cannot be read: Permission denied" in reader.messages[0]
            assert "set aside" not in reader.messages[0]
        (store.path(good) / file).chmod(0o644)
    assert store.has(good)


def test_a_store_open_for_reading_only_is_not_changed(store: Store) -> None:
    good, bad = put(store, name="good"), put(store, name="bad")
    flip(store.path(bad) / folder.ARRAYS)
    before = snapshot(store.root)
    reader = Store.open(store.root, create=False, read_only=True)
    assert reader.has(good)
    assert not reader.has(bad)
    reader.note_timing("f", 1.0, 1)
    for call in (
        lambda: reader.remove(good),
        lambda: reader.commit(address(name="new"), {}, {}),
        lambda: reader.prune_scratch(remove=True),
        lambda: reader.discard_scratch("coreset:1"),
        lambda: reader.lock("coreset:1").__enter__(),
        lambda: reader.write_file(store.root / "suites" / "x", b""),
    ):
        with pytest.raises(StoreError, match="reading only"):
            call()
    assert snapshot(store.root) == before


def test_locks_still_exclude(store: Store) -> None:
    probe = (
        "import sys; from pathlib import Path; from bpcbench.store.store import Store\n"
        "with Store.open(Path(sys.argv[1])).lock('s'): pass"
    )
    environment = {**os.environ, "PYTHONPATH": with_folder(Path(__file__).parents[2])}
    with store.lock("s"):
        command = [sys.executable, "-c", probe, str(store.root)]
        tried = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert Busy.__name__ in tried.stderr
    assert json.loads((store.root / "store.json").read_text()) == {"schema": 2}
