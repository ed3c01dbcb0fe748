"""Manifests survive writing and reading, are named by their content, and stay readable."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bpcbench.errors import StoreError
from bpcbench.store.address import Address, digest
from bpcbench.store.manifest import (
    CellRecord,
    DatasetRecord,
    Group,
    Manifest,
    MetricRecord,
    PluginRecord,
    PublishedRecord,
    manifest_folders,
    read_manifest,
    suite_folder,
    write_manifest,
)

GOLDEN = Path(__file__).parent / "golden"


def plugin(name: str, **options: Any) -> PluginRecord:
    return PluginRecord("plugins_of_tests", name, 1, options)


def group(**changes: Any) -> Group:
    fields: dict[str, Any] = {
        "dataset": "dots",
        "ipc": 1,
        "method": "pick",
        "inference": "native",
        "network": "line",
        "plugins": {"method": plugin("pick", steps=2, net={"plugin": "line", "width": 3})},
        "native_inference": True,
        "notes": ("toy",),
        "own": (plugin("centroid", heat=2.0), plugin("line", width=4)),
        "published": (PublishedRecord("A paper", "right", 0.5, None, ("50.0", "")),),
    }
    return Group(**{**fields, **changes})


def key(*parts: object) -> str:
    return digest(list(parts))


def cell(of: Group, distil: int = 0, evaluate: int = 0, step: int | None = None, **changes: Any) -> CellRecord:
    place = (of.label, distil, evaluate, step)
    fields: dict[str, Any] = {
        "coresets": (
            Address("coreset", key("coreset", of.label, distil), "final" if step is None else f"step-{step}"),
        ),
        "predict": key("predict", *place),
        "splits": ("dots/test~12345678",),
        "scores": {"right": Address("score", key("score", *place), "final")},
    }
    return CellRecord(of, distil, evaluate, step=step, **{**fields, **changes})


def small(**changes: Any) -> Manifest:
    one, other = group(), group(method="everything", own=None, published=(), native_inference=False)
    skipped = CellRecord(other, 0, 0, skipped="everything has no native inference; name one")
    fields: dict[str, Any] = {
        "name": "small",
        "source": "small.yaml",
        "purpose": "run",
        "request": "0123456789abcdef",
        "description": "Two groups.",
        "protocol": 1,
        "split": "test",
        "shown": ("right",),
        "document": {"datasets": ["dots"], "ipc": [1]},
        "versions": {"python": "3.11.7"},
        "metrics": (MetricRecord("right", "right", "higher", "percent", "accuracy"),),
        "datasets": (
            DatasetRecord(
                "dots",
                plugin("dots", file=""),
                (1, 4, 4),
                2,
                {"train": 40, "test": 20},
                ("a", "b"),
                True,
                "f",
                ("toy",),
            ),
        ),
        "groups": (one, other),
        "cells": (cell(one), cell(one, 1), cell(one, 0, 0, 5), skipped),
        "tried": {"pick": 3},
        "publications": {"A paper": "Its protocol differs."},
        "seeds": (2, 1),
    }
    return Manifest(**{**fields, **changes})


NAMES = st.text(min_size=1, max_size=12)
NUMBERS = st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False))
OPTIONS = st.dictionaries(
    NAMES,
    st.recursive(
        st.one_of(NUMBERS, st.booleans(), st.integers(), st.text(max_size=5)),
        lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(NAMES, inner, max_size=2)),
        max_leaves=4,
    ),
    max_size=2,
)
PLUGINS = st.builds(PluginRecord, NAMES, NAMES, st.integers(1, 9), OPTIONS)
TEXTS = st.lists(st.text(max_size=8), max_size=2).map(tuple)
PUBLISHED = st.builds(
    PublishedRecord, NAMES, NAMES, NUMBERS, NUMBERS, st.tuples(st.text(max_size=5), st.text(max_size=5))
)
GROUPS = st.builds(
    Group, NAMES, st.integers(1, 99), NAMES, NAMES, NAMES,
    plugins=st.dictionaries(st.sampled_from(["dataset", "method", "network"]), PLUGINS),
    native_inference=st.booleans(), native_network=st.booleans(), ranked=st.booleans(), notes=TEXTS,
    own=st.one_of(st.none(), st.tuples(PLUGINS, PLUGINS)), published=st.lists(PUBLISHED, max_size=2).map(tuple),
)  # fmt: skip
KEYS = st.text("0123456789abcdef", min_size=32, max_size=32)
ADDRESSES = st.builds(Address, st.just("coreset"), KEYS, st.sampled_from(["final", "step-10"]))
SCORES = st.dictionaries(NAMES, KEYS.map(lambda text: Address("score", text, "final")), max_size=3)


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    groups = tuple(draw(st.lists(GROUPS, min_size=1, max_size=3)))
    seeds, steps = st.integers(0, 99), st.one_of(st.none(), st.integers(0, 10**6))
    cells = []
    for _ in range(draw(st.integers(0, 5))):
        chosen, distil, evaluate, step = draw(st.tuples(st.sampled_from(range(len(groups))), seeds, seeds, steps))
        if draw(st.booleans()):
            skipped = draw(NAMES)
            cells.append(CellRecord(groups[chosen], distil, evaluate, skipped=skipped, step=step))
        else:
            coresets, splits = tuple(draw(st.lists(ADDRESSES, max_size=2))), draw(TEXTS)
            made = (coresets, draw(KEYS), splits, draw(SCORES))
            cells.append(CellRecord(groups[chosen], distil, evaluate, *made, step=step))
    return small(name=draw(NAMES), groups=groups, cells=tuple(cells), document=draw(OPTIONS), shown=draw(TEXTS))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(manifests())
def test_whatever_is_written_is_read_again(manifest: Manifest) -> None:
    with tempfile.TemporaryDirectory() as root:
        place = write_manifest(Path(root), manifest)
        again = read_manifest(place)
        assert asdict(again) == asdict(manifest)
        assert again.digest == manifest.digest == place.name
        assert place.parent.parent == Path(root) / "suites"
        assert list(manifest_folders(Path(root))) == [place]


def test_cells_share_their_group(tmp_path: Path) -> None:
    again = read_manifest(write_manifest(tmp_path, small()))
    assert again.cells[0].group is again.cells[1].group is again.groups[0]
    assert [one.key for one in again.cells] == [one.key for one in small().cells]
    assert len({one.key for one in again.cells}) == 4


def test_the_same_content_is_the_same_folder_and_is_not_written_again(tmp_path: Path) -> None:
    place = write_manifest(tmp_path, small())
    before = (place / "suite.json").stat()
    assert write_manifest(tmp_path, small()) == place
    after = (place / "suite.json").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    assert not list((tmp_path / "scratch" / "commit").iterdir())


PRESENTATION: dict[str, Any] = {
    "description": "Other words.",
    "shown": ("nll",),
    "source": "/elsewhere/small.yaml",
    "versions": {"python": "3.12.0"},
}
CONTENT: dict[str, Any] = {
    "name": "other",
    "purpose": "anytime",
    "protocol": 2,
    "split": "validation",
    "metrics": (),
    "datasets": (),
    "tried": {},
    "seeds": (3, 1),
}


@pytest.mark.parametrize("name", PRESENTATION)
def test_presentation_is_not_part_of_the_digest(name: str) -> None:
    assert small(**{name: PRESENTATION[name]}).digest == small().digest


@pytest.mark.parametrize("name", CONTENT)
def test_content_is_part_of_the_digest(name: str) -> None:
    assert small(**{name: CONTENT[name]}).digest != small().digest


def test_cells_and_groups_are_part_of_the_digest() -> None:
    manifest = small()
    more = replace(manifest, groups=(*manifest.groups, group(ipc=2)))
    fewer = replace(manifest, cells=manifest.cells[:2])
    other = replace(manifest, cells=(replace(manifest.cells[0], predict="f" * 32), *manifest.cells[1:]))
    assert len({one.digest for one in (manifest, more, fewer, other)}) == 4


def edit(place: Path, **changes: Any) -> None:
    head = json.loads((place / "suite.json").read_text())
    (place / "suite.json").write_text(json.dumps({**head, **changes}))


def test_an_unknown_schema_is_refused_in_a_sentence(tmp_path: Path) -> None:
    place = write_manifest(tmp_path, small())
    edit(place, schema=2)
    with pytest.raises(StoreError) as caught:
        read_manifest(place)
    assert str(caught.value) == f"{place / 'suite.json'} has schema 2; this bpcbench reads schema 1"


def test_fields_of_a_later_version_are_ignored(tmp_path: Path) -> None:
    place = write_manifest(tmp_path, small())
    head = json.loads((place / "suite.json").read_text())

    def extended(value: Any) -> Any:
        if isinstance(value, list):
            return [extended(item) for item in value]
        return {**value, "colour": "red"} if isinstance(value, dict) else value

    records = {name: extended(head[name]) for name in ("plugins", "metrics", "datasets", "groups")}
    edit(place, mood="good", **records)
    assert asdict(read_manifest(place)) == asdict(small())


@pytest.mark.parametrize(
    "damage",
    [
        lambda place: (place / "suite.json").write_text("[]"),
        lambda place: (place / "suite.json").write_text('{"schema": 1}'),
        lambda place: (place / "suite.json").write_text("[" * 100_000),
        lambda place: (place / "cells.jsonl").write_text("[9,0,0,0]\n"),
        lambda place: (place / "cells.jsonl").write_text("{}\n"),
        lambda place: (place / "cells.jsonl").write_text("half"),
        lambda place: (place / "cells.jsonl").unlink(),
    ],
)
def test_a_damaged_manifest_is_one_message(tmp_path: Path, damage: Any) -> None:
    place = write_manifest(tmp_path, small())
    damage(place)
    with pytest.raises(StoreError, match="the manifest cannot be read"):
        read_manifest(place)


def test_schema_1_stays_readable(tmp_path: Path) -> None:
    """The files in `golden` were written by the first version of the schema and never change."""
    assert asdict(read_manifest(GOLDEN)) == asdict(small())
    assert read_manifest(GOLDEN).digest == "7153787b5436"
    # What this version writes is still the same text.
    place = write_manifest(tmp_path, small())
    for name in ("suite.json", "cells.jsonl"):
        assert (place / name).read_text() == (GOLDEN / name).read_text()


def test_ten_thousand_cells_take_less_than_a_megabyte(tmp_path: Path) -> None:
    groups = tuple(group(ipc=ipc, method=f"method-{number}") for ipc in range(10) for number in range(10))
    seeds = [(distil, evaluate) for distil in range(10) for evaluate in range(10)]
    cells = tuple(cell(one, distil, evaluate) for one in groups for distil, evaluate in seeds)
    assert len(cells) == 10_000
    place = write_manifest(tmp_path, small(groups=groups, cells=cells))
    assert sum(path.stat().st_size for path in place.iterdir()) < 1_000_000
    assert len(read_manifest(place).cells) == 10_000


@pytest.mark.parametrize(
    "name", ["..", ".", "a/b", ".hidden", "con\0trol", "ü" * 200, "x" * 300, "paper/main", "a b+c"]
)
def test_every_name_of_a_suite_is_a_folder_of_its_own(tmp_path: Path, name: str) -> None:
    folder = suite_folder(name)
    assert "/" not in folder
    assert not folder.startswith(".")
    assert len(folder.encode()) <= 255
    assert folder != suite_folder(f"{name}x")
    place = write_manifest(tmp_path, small(name=name))
    assert place.parent.parent == tmp_path / "suites"
    assert read_manifest(place).name == name


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from bpcbench.store import folder

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folder, "publish", full)
    with pytest.raises(OSError, match="No space left"):
        write_manifest(tmp_path, small())
    assert not (tmp_path / "suites").exists()
    assert not list((tmp_path / "scratch" / "commit").iterdir())


def test_copies_are_read_where_they_lie(tmp_path: Path) -> None:
    place = write_manifest(tmp_path / "one", small())
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    found: Mapping[str, Any] = asdict(read_manifest(tmp_path / "two" / place.relative_to(tmp_path / "one")))
    assert found == asdict(small())
