"""`store verify` finds what checksums alone do not, and changes nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from stored import description, forge, manifest, put, record, snapshot
from toy_runs import flip

from bpcbench.cli import main
from bpcbench.store import folder
from bpcbench.store.address import Address, stage_key
from bpcbench.store.store import Store
from bpcbench.store.verification import verify


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store in which nothing is wrong."""
    made = Store.open(tmp_path / "store")
    coreset = put(made)
    predictions = put(made, "predict", "p", [coreset], "digits/test~1", files={"curves.jsonl": b"{}\n"})
    put(made, "score", "s", [predictions], metrics={"acc": 0.5, "odd": "nan"})
    record(manifest(made.root), end=None)
    return made


def test_nothing_is_wrong(store: Store, capsys) -> None:
    before = snapshot(store.root)
    assert list(verify(store.root)) == []
    assert main(["store", "verify", "--out", str(store.root)]) == 0
    assert capsys.readouterr().out == f"{store.root}: intact\n"
    assert snapshot(store.root) == before


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda s, a: forge(s, a, stage={**description("a"), "seed": 7}), "its description has the key"),
        (lambda s, a: forge(s, a, body_version=2), "its description has the key"),
        (lambda s, a: forge(s, a, body_version=True), "cannot be derived again"),
        (lambda s, a: forge(s, a, stage=None), "cannot be derived again"),
        (lambda s, a: forge(s, a, stage={"name": float("nan")}), "cannot be derived again"),
        (lambda s, a: forge(s, a, scheme=1), "derived by scheme 1"),
        (lambda s, a: forge(s, a, scheme=None), "derived by scheme None"),
        (lambda s, a: forge(s, a, schema=1), "has schema 1 instead of 2"),
        (lambda s, a: forge(s, a, inputs=["coreset:../x@final"]), "is not an address"),
        (lambda s, a: forge(s, a, inputs=[7]), "`inputs[0]` is not a text"),
        (lambda s, a: forge(s, a, inputs=None), "are not a list"),
        (lambda s, a: forge(s, a, key="0" * 32), "describes another member"),
        (lambda s, a: flip(s.path(a) / folder.ARRAYS), "does not match its checksum"),
        (lambda s, a: os.truncate(s.path(a) / folder.ARRAYS, 3), "has 3 bytes instead of"),
        (lambda s, a: (s.path(a) / folder.ARRAYS).unlink(), "cannot be read: No such file"),
        (lambda s, a: (s.path(a) / "stage.json").write_text("[" * 100_000), "nested too deeply"),
    ],
)
def test_finds_what_is_wrong_with_a_member(
    store: Store, capsys, damage: Callable[[Store, Address], None], problem: str
) -> None:
    where = Address("coreset", stage_key("coreset", 1, description("a")), "final")
    damage(store, where)
    before = snapshot(store.root)
    (finding,) = verify(store.root)
    assert finding.damaged == where
    assert finding.place == str(where)
    assert problem in finding.problem
    assert main(["store", "verify", "--out", str(store.root)]) == 1
    assert capsys.readouterr().out == f"{finding}\n{store.root}: 1 problem\n"
    assert snapshot(store.root) == before, "nothing is changed unless asked for"
    assert main(["store", "verify", "--set-aside", "--out", str(store.root)]) == 1
    assert "set aside in" in capsys.readouterr().out
    assert not store.path(where).exists()
    assert main(["store", "verify", "--out", str(store.root)]) == 0


def test_the_cache_of_verified_files_is_not_believed(store: Store) -> None:
    where = next(a for a in store.addresses() if a.kind == "coreset")
    path = store.path(where) / folder.ARRAYS
    before = path.stat()
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert Store.open(store.root).has(where), "same size, time and inode"
    assert [finding.damaged for finding in verify(store.root)] == [where]


def test_parts_outside_the_key_may_differ(store: Store) -> None:
    where = next(a for a in store.addresses() if a.kind == "coreset")
    forge(store, where, stage={**description("a"), "unkeyed": {"note": "another"}}, label="another")
    assert list(verify(store.root)) == []


def test_arrays_with_a_valid_checksum_must_open(store: Store) -> None:
    where = Address("prerequisite", stage_key("prerequisite", 1, description("b")), "final")
    meta = {"stage": description("b"), "body_version": 1, "scheme": 2, "inputs": []}
    store.commit(where, meta, {}, {folder.ARRAYS: b"\xff" * 100})
    (finding,) = verify(store.root)
    assert "arrays.safetensors cannot be read" in finding.problem


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda place: (place / "suite.json").write_text("{"), "suite.json is not JSON"),
        (lambda place: (place / "suite.json").write_text("{}"), "suite.json names no schema"),
        (lambda place: (place / "suite.json").unlink(), "suite.json cannot be read"),
        (lambda place: (place / "cells.jsonl").write_text("[]\n{}\n"), "cells.jsonl, line 2 is not a JSON array"),
        (lambda place: (place / "cells.jsonl").unlink(), "cells.jsonl cannot be read"),
        (lambda place: os.mkfifo(place / "runs" / "x.json"), "is not a regular file"),
        (lambda place: (place / "runs" / "x.json").write_text("no"), "x.json is not JSON"),
        (lambda place: (place / "runs" / "x.json").symlink_to("/dev/zero"), "is not a regular file"),
        (lambda place: (place.parent / "link").symlink_to(place), "is a symbolic link"),
        (lambda place: os.truncate(place / "cells.jsonl", 100_000_000), "larger than 64,000,000 bytes"),
    ],
)
def test_finds_what_is_wrong_with_a_manifest(
    store: Store, capsys, damage: Callable[[Path], None], problem: str
) -> None:
    damage(manifest(store.root))
    (finding,) = verify(store.root)
    assert problem in str(finding)
    before = snapshot(store.root)
    assert main(["store", "verify", "--set-aside", "--out", str(store.root)]) == 1
    assert snapshot(store.root) == before, "only members are set aside"
    capsys.readouterr()


def test_strays_are_told(store: Store, capsys) -> None:
    where = next(a for a in store.addresses() if a.kind == "coreset")
    store.path(where).rename(store.path(where).with_name("final copy"))
    (store.root / "stages" / "notes").write_text("")
    assert main(["store", "verify", "--out", str(store.root)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert "final copy': is not named for a member" in lines[0]
    assert "notes': is not a folder" in lines[1]


def test_not_a_store(tmp_path: Path, capsys) -> None:
    assert main(["store", "verify", "--out", str(tmp_path)]) == 2
    assert "is not a store" in capsys.readouterr().err
