"""`store merge` takes what is sound, keeps ours, and only reads the other store."""

from __future__ import annotations

import json
import os
import shutil
from collections import namedtuple
from pathlib import Path

import pytest
from stored import forge, manifest, put, record, snapshot
from toy_runs import flip

from bpcbench.cli import main
from bpcbench.errors import StoreError
from bpcbench.store import folder
from bpcbench.store.address import Address
from bpcbench.store.merge import Merged, merge
from bpcbench.store.store import Store
from bpcbench.store.verification import verify


@pytest.fixture
def ours(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "ours")


@pytest.fixture
def theirs(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "theirs")


def merged(ours: Store, theirs: Store, **more: bool) -> Merged:
    """Merge and check that the other store was only read."""
    before = snapshot(theirs.root)
    result = merge(Store.open(ours.root), Store.open(theirs.root, create=False, read_only=True), **more)
    assert snapshot(theirs.root) == before
    return result


def chain(store: Store, name: str = "a", value: float = 1.0) -> tuple[Address, Address, Address, Address]:
    """Commit a preprocessing, a coreset, its predictions and their score."""
    first = put(store, "prerequisite", name, value=value)
    coreset = put(store, "coreset", name, [first], value=value)
    predictions = put(store, "predict", name, [coreset, first], "digits/test~1", value=value)
    return first, coreset, predictions, put(store, "score", name, [predictions], value=value, metrics={"acc": value})


def test_everything_is_taken_once(ours: Store, theirs: Store) -> None:
    mine, members = put(ours, name="mine"), chain(theirs)
    theirs.note_timing("f", 1.5, 10)
    theirs.note_timing("f", 1.5, 10)
    ours.note_timing("f", 1.5, 10)
    record(manifest(theirs.root, "a suite, odd ~ name", "1" * 32), heartbeat="1", end=None)
    result = merged(ours, theirs)
    assert result.taken == tuple(sorted(members, key=lambda a: (a.kind, a.key)))
    assert (result.present, result.conflicts, result.derived, result.damaged) == (0, (), (), ())
    assert (result.manifests, result.records, result.timings) == (1, 1, 1)
    assert set(ours.addresses()) == {mine, *members}
    for where in members:
        for file in ("stage.json", folder.ARRAYS):
            assert (ours.path(where) / file).read_bytes() == (theirs.path(where) / file).read_bytes()
    assert list(verify(ours.root)) == []
    assert ours.timings() == {"f": [(1.5, 10)] * 2}
    assert snapshot(ours.root / "suites").keys() == snapshot(theirs.root / "suites").keys()
    assert not list((ours.root / "scratch").rglob("tmp-*"))

    before = snapshot(ours.root)
    again = merged(ours, theirs)
    assert (again.taken, again.present, again.manifests, again.records, again.timings) == ((), 4, 0, 0, 0)
    assert snapshot(ours.root) == before


def test_only_what_is_listed_is_copied(ours: Store, theirs: Store) -> None:
    where = put(theirs)
    (theirs.path(where) / "malware.sh").write_text("rm -rf /")
    assert merged(ours, theirs).taken == (where,)
    assert sorted(path.name for path in ours.path(where).iterdir()) == [folder.ARRAYS, "stage.json"]


def test_equal_results_of_two_machines_are_no_conflict(ours: Store, theirs: Store) -> None:
    for store, host in ((ours, "a"), (theirs, "b")):
        put(store, seconds=len(host), environment={"host": host}, files={"curves.jsonl": host.encode()})
        put(store, "score", "s", metrics={"acc": 0.5}, seconds=len(host))
    result = merged(ours, theirs)
    assert (result.taken, result.present, result.conflicts) == ((), 2, ())


def test_a_conflict_keeps_ours_and_stops_what_is_derived(ours: Store, theirs: Store) -> None:
    first, coreset, _, score = chain(theirs)
    put(theirs, "coreset", "a", [first], "step-10")
    used = put(theirs, "predict", "step", [Address("coreset", coreset.key, "step-10")])
    other = chain(theirs, "other")
    kept = put(ours, "prerequisite", "a"), put(ours, "coreset", "a", [first], value=2.0)
    record(manifest(theirs.root))
    result = merged(ours, theirs)
    assert result.conflicts == (coreset,)
    assert set(result.taken) == set(other)
    assert {a.kind for a in result.derived} == {"coreset", "predict", "score"}
    assert used in result.derived, "made from a snapshot of the same computation"
    assert score in result.derived
    assert len(result.derived) == 4
    assert result.present == 1
    assert result.manifests == 1, "cells without scores show as missing"
    assert set(ours.addresses()) == {*kept, *other}
    assert ours.read(coreset).arrays["x"][0] == 2.0
    again = merged(ours, theirs)
    assert (again.taken, again.conflicts, again.derived) == ((), result.conflicts, result.derived)


def test_metrics_alone_can_be_in_conflict(ours: Store, theirs: Store) -> None:
    put(ours, "score", "s", metrics={"acc": 0.5})
    where = put(theirs, "score", "s", metrics={"acc": 0.6})
    assert merged(ours, theirs).conflicts == (where,)


def test_a_conflict_passes_through_members_that_are_equal(ours: Store, theirs: Store) -> None:
    first = put(theirs, "prerequisite")
    put(ours, "prerequisite", value=2.0)
    for store in (ours, theirs):
        coreset = put(store, "coreset", "a", [first])
    predictions = put(theirs, "predict", "a", [coreset])
    result = merged(ours, theirs)
    assert (result.taken, result.present, result.derived) == ((), 1, (predictions,))


def test_members_of_a_prerequisite_are_independent(ours: Store, theirs: Store) -> None:
    put(ours, "prerequisite", member="001", value=2.0)
    one, two = (put(theirs, "prerequisite", member=member) for member in ("001", "002"))
    result = merged(ours, theirs)
    assert (result.taken, result.conflicts, result.derived) == ((two,), (one,), ())


def test_damaged_members_are_named_and_left(ours: Store, theirs: Store) -> None:
    good = put(theirs, name="good")
    bad = [put(theirs, name=f"bad {i}") for i in range(7)]
    flip(theirs.path(bad[0]) / folder.ARRAYS)
    (theirs.path(bad[1]) / "stage.json").write_text("{")
    forge(theirs, bad[2], stage={"name": "something else"})
    forge(theirs, bad[3], key="0" * 32)
    (theirs.path(bad[4]) / folder.ARRAYS).unlink()
    os.mkfifo(theirs.path(bad[4]) / folder.ARRAYS)
    forge(theirs, bad[5], inputs=["nonsense"])
    shutil.rmtree(theirs.path(bad[6]))
    theirs.path(bad[6]).symlink_to(theirs.path(good))
    broken = manifest(theirs.root, "broken")
    (broken / "suite.json").write_text("{")
    record(manifest(theirs.root, "whole"), "r").write_text("[]")
    result = merged(ours, theirs)
    assert result.taken == (good,)
    assert len(result.damaged) == len(bad) + 2
    told = "\n".join(map(str, result.damaged))
    for where in bad[:6]:
        assert str(where) in told
    assert str(theirs.path(bad[6])) in told
    assert result.conflicts == ()
    assert list(ours.addresses()) == [good]
    assert [path.name for path in (ours.root / "suites").iterdir()] == ["whole"]
    assert list(verify(ours.root)) == []
    assert not list((ours.root / "scratch").rglob("tmp-*"))


def test_damage_is_not_a_conflict(ours: Store, theirs: Store) -> None:
    put(ours, value=1.0)
    where = put(theirs, value=2.0)
    flip(theirs.path(where) / folder.ARRAYS)
    result = merged(ours, theirs)
    assert (result.conflicts, len(result.damaged)) == ((), 1)


def test_a_merge_repairs_our_damage(ours: Store, theirs: Store) -> None:
    where = put(ours)
    put(theirs)
    flip(ours.path(where) / folder.ARRAYS)
    assert merged(ours, theirs).taken == (where,)
    assert ours.has(where)


def test_an_interrupted_merge_is_continued(ours: Store, theirs: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    members = chain(theirs)
    manifest(theirs.root)
    real, copied = folder.copy, []

    def interrupt(source: Path, target: Path, *rest: object) -> None:
        real(source, target, *rest)  # type: ignore[arg-type]
        copied.append(source)
        if len(copied) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(folder, "copy", interrupt)
    with pytest.raises(KeyboardInterrupt):
        merged(ours, theirs)
    monkeypatch.undo()
    assert len(list(ours.addresses())) == 2
    assert list(verify(ours.root)) == []
    assert not list((ours.root / "scratch").rglob("tmp-*"))
    result = merged(ours, theirs)
    assert (len(result.taken), result.present, result.manifests) == (2, 2, 1)
    assert set(ours.addresses()) == set(members)


def test_a_full_disk_is_one_message(ours: Store, theirs: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    chain(theirs)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folder, "copy", full)
    with pytest.raises(StoreError, match=r"No space left on device; merge again to go on"):
        merged(ours, theirs)
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(1, 1, 1))
    with pytest.raises(StoreError, match=r"needs .* only 1 B are free"):
        merged(ours, theirs)
    assert list(ours.addresses()) == []


def test_manifests_and_records(ours: Store, theirs: Store) -> None:
    """Manifests never change; of a run's record the later one stays."""
    mine, yours = manifest(ours.root, order=1), manifest(theirs.root, order=2)
    for name, before, after in (
        ("ended", {"heartbeat": "1", "ended": None}, {"heartbeat": "1", "ended": "2"}),
        ("later", {"heartbeat": "1"}, {"heartbeat": "2"}),
        ("same", {"heartbeat": "1"}, {"heartbeat": "1"}),
    ):
        record(mine, name, **before)
        record(yours, name, **after)
        record(mine, f"our-{name}", **after)
        record(yours, f"our-{name}", **before)
    record(yours, "new", heartbeat="1")
    (yours / "runs" / ".tmp").write_text("half")
    assert merged(ours, theirs).records == 3
    assert json.loads((mine / "suite.json").read_text())["order"] == 1
    for name in ("ended", "later", "new", "same"):
        assert (mine / "runs" / f"{name}.json").read_bytes() == (yours / "runs" / f"{name}.json").read_bytes()
    assert json.loads((mine / "runs" / "our-ended.json").read_text())["ended"] == "2"
    assert not (mine / "runs" / ".tmp").exists()
    assert merged(ours, theirs).records == 0


def test_half_a_manifest_is_completed(ours: Store, theirs: Store) -> None:
    mine, _ = manifest(ours.root), manifest(theirs.root, order=2)
    (mine / "suite.json").unlink()
    (mine / "cells.jsonl").write_text("")
    assert merged(ours, theirs).manifests == 1
    assert json.loads((mine / "suite.json").read_text())["order"] == 2
    assert (mine / "cells.jsonl").read_text().count("\n") == 2


def test_nothing_is_written_through_our_links(ours: Store, theirs: Store, tmp_path: Path) -> None:
    manifest(theirs.root)
    (tmp_path / "elsewhere").mkdir()
    (ours.root / "suites").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="symbolic link"):
        merged(ours, theirs)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_command(ours: Store, theirs: Store, tmp_path: Path, capsys) -> None:
    chain(theirs)
    third = Store.open(tmp_path / "third")
    chain(third, "b")
    fresh = tmp_path / "fresh"
    words = ["store", "merge", str(theirs.root), str(third.root), "--out", str(fresh)]
    assert main([*words, "--dry-run"]) == 0
    assert not fresh.exists()
    output = capsys.readouterr().out
    assert output.count("would take    4 members") == 2
    assert main(words) == 0
    output = capsys.readouterr().out
    assert output.count("taken         4 members") == 2
    assert "conflicts     0" in output
    assert main(words) == 0
    assert capsys.readouterr().out.count("already here  4 members") == 2
    assert len(list(Store.open(fresh).addresses())) == 8

    where = put(ours, "prerequisite", "a", value=2.0)
    before = snapshot(ours.root)
    words = ["store", "merge", str(theirs.root), "--out", str(ours.root)]
    assert main([*words, "--dry-run"]) == 1
    assert snapshot(ours.root) == before
    assert main(words) == 1
    output = capsys.readouterr().out
    assert output.count(f"conflict: {where} has other content in {theirs.root}; ours is kept") == 2
    assert output.count("conflicts     1; 3 members derived from them are not taken") == 2


def test_wrong_input(ours: Store, theirs: Store, tmp_path: Path, capsys) -> None:
    (tmp_path / "link").symlink_to(ours.root)
    old = Store.open(tmp_path / "old").root
    (old / "store.json").write_text('{"schema": 1}')
    fresh = tmp_path / "fresh"
    for other, out, message in (
        (tmp_path / "nothing", fresh, "is not a store"),
        (tmp_path, fresh, "is not a store"),
        (tmp_path / "link", ours.root, "are the same store"),
        (old, fresh, "made by an earlier bpcbench whose keys differ"),
        (theirs.root, old, "made by an earlier bpcbench whose keys differ"),
    ):
        for more in ([], ["--dry-run"]):
            assert main(["store", "merge", str(theirs.root), str(other), "--out", str(out), *more]) == 2
            error = capsys.readouterr().err
            assert message in error
            assert error.count("\n") == 1
    assert not fresh.exists()
    assert json.loads((old / "store.json").read_text()) == {"schema": 1}
