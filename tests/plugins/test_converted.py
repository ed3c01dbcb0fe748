"""Conversion to memory maps: once, completely or not at all, and again when something changed."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import sys
import time
import timeit
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from bpcbench.api import option
from bpcbench.errors import UserError
from bpcbench.records import Facts
from bpcbench.testing import DatasetConformance
from bpcbench_data import bar as progress
from bpcbench_data import converted
from bpcbench_data.converted import Chunk, ConvertedDataset

SHAPE = (1, 2, 3)
SIZES = {"train": 8, "test": 4}


@dataclass(frozen=True)
class Plain(ConvertedDataset):
    """Files of bytes, six of them an image; the label is the first byte modulo 2."""

    name: ClassVar[str] = "plain"
    reads: ClassVar[list[str]] = []

    def facts(self, root: Path) -> Facts:
        return Facts(shape=SHAPE, classes=2, sizes=SIZES)

    def sources(self, root: Path, split: str) -> Sequence[Path]:
        return [root / split]

    def chunks(self, root: Path, split: str) -> Iterator[Chunk]:
        self.reads.append(split)
        content = np.frombuffer((root / split).read_bytes(), np.uint8)
        if len(content) % 6:
            raise UserError("a broken image")
        for part in np.array_split(content.reshape(-1, *SHAPE), 3):
            yield part, part[:, 0, 0, 0] % 2


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(Plain, "reads", [])
    made = tmp_path / "data"
    made.mkdir()
    for split, size in SIZES.items():
        (made / split).write_bytes(content(size))
    return made


def content(size: int, seed: int = 0) -> bytes:
    images = np.random.default_rng(seed).integers(0, 256, (size, 6), np.uint8)
    images[:, 0] = np.arange(size)
    return images.tobytes()


def folder(root: Path, split: str = "train") -> Path:
    (found,) = (root / ".bpcbench" / "plain").glob(f"{split}-*")
    return found


@pytest.fixture
def conformant(root: Path, request: pytest.FixtureRequest) -> None:
    request.cls.root = root


@pytest.mark.usefixtures("conformant")
class TestPlain(DatasetConformance):
    plugin = Plain()


def test_content_is_that_of_the_chunks_and_a_read_only_memory_map(root: Path) -> None:
    split = Plain().load(root, "train")
    assert isinstance(split.images, np.memmap)
    assert not split.images.flags.writeable
    np.testing.assert_array_equal(split.images, np.frombuffer(content(8), np.uint8).reshape(8, *SHAPE))
    assert split.labels is not None
    assert split.labels.dtype == np.int64
    assert split.labels.tolist() == [0, 1] * 4


def test_sources_are_read_once_and_later_loads_are_quick(root: Path) -> None:
    Plain().fingerprint(root, "train")
    assert min(timeit.repeat(lambda: Plain().load(root, "train"), number=1)) < 0.05
    Plain().fingerprint(root, "train")
    assert Plain.reads == ["train"]


def test_the_fingerprint_is_of_content_not_of_files(root: Path) -> None:
    before = {split: Plain().fingerprint(root, split) for split in SIZES}
    assert before["train"] != before["test"]
    os.utime(root / "train", ns=(1, 1))
    assert Plain().fingerprint(root, "train") == before["train"]
    assert Plain.reads == ["train", "test", "train"]
    (root / "train").write_bytes(content(8, seed=1))
    assert Plain().fingerprint(root, "train") != before["train"]


def test_a_changed_source_is_converted_anew_and_the_old_conversion_removed(root: Path) -> None:
    old = Plain().load(root, "train").images
    kept = old.copy()
    first = folder(root)
    (root / "train").write_bytes(content(8, seed=1))
    new = Plain().load(root, "train").images
    assert not np.array_equal(new, kept)
    np.testing.assert_array_equal(old, kept)
    assert folder(root) != first


def test_another_version_of_the_reader_is_another_conversion(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Plain().load(root, "train")
    monkeypatch.setattr(Plain, "version", 2)
    Plain().load(root, "train")
    assert Plain.reads == ["train", "train"]


@pytest.mark.parametrize("name", ["images.npy", "labels.npy", "meta.json"])
@pytest.mark.parametrize("damage", ["truncate", "remove", "overwrite"])
def test_a_damaged_conversion_is_redone(root: Path, name: str, damage: str) -> None:
    before = Plain().fingerprint(root, "train")
    path = folder(root) / name
    intact = path.read_bytes()
    if damage == "truncate":
        path.write_bytes(intact[:-1])
    elif damage == "remove":
        path.unlink()
    else:
        path.write_bytes(bytes(len(intact)))
    np.testing.assert_array_equal(Plain().load(root, "train").images.ravel(), np.frombuffer(content(8), np.uint8))
    assert Plain().fingerprint(root, "train") == before
    assert Plain.reads == ["train", "train"]


@pytest.mark.parametrize("bad", [b"12345", content(7), content(9), b""], ids=["broken", "few", "many", "empty"])
def test_wrong_sources_are_an_error_and_leave_nothing(root: Path, bad: bytes) -> None:
    (root / "train").write_bytes(bad)
    with pytest.raises(UserError):
        Plain().load(root, "train")
    assert {path.name for path in root.rglob("*") if path.is_file()} == set(SIZES)
    assert not list(root.glob(".bpcbench/plain/*"))


def test_where_the_root_cannot_be_written_the_users_cache_is_used(root: Path, tmp_path: Path) -> None:
    (root / ".bpcbench").write_text("a file where the folder should be")
    assert len(Plain().load(root, "train")) == 8
    assert list((tmp_path / "cache").rglob("images.npy"))
    Plain().load(root, "train")
    assert Plain.reads == ["train"]


def test_where_nothing_can_be_written_both_places_are_named(root: Path, tmp_path: Path) -> None:
    (root / ".bpcbench").write_text("")
    (tmp_path / "cache").write_text("")
    with pytest.raises(UserError, match="no cache folder can be used") as caught:
        Plain().load(root, "train")
    assert str(root / ".bpcbench") in str(caught.value)
    assert str(tmp_path / "cache") in str(caught.value)


def test_a_full_disk_leaves_nothing_behind(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(stream: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(converted, "sync", full)
    with pytest.raises(UserError, match="No space left"):
        Plain().load(root, "train")
    assert not [*root.rglob("*.npy"), *(tmp_path / "cache").rglob("*.npy")]


def test_leftovers_of_killed_processes_are_removed_in_the_end(root: Path) -> None:
    place = root / ".bpcbench" / "plain"
    for name in ("tmp-old", "tmp-new"):
        (place / name).mkdir(parents=True)
    os.utime(place / "tmp-old", (1, 1))
    Plain().load(root, "train")
    assert {path.name for path in place.glob("tmp-*")} == {"tmp-new"}


def _fingerprint(root: Path) -> str:
    return Plain().fingerprint(root, "train")


def test_processes_may_race(root: Path) -> None:
    with multiprocessing.get_context("fork").Pool(4) as pool:
        assert len(set(pool.map(_fingerprint, [root] * 16, chunksize=1))) == 1
    assert folder(root).is_dir()
    assert not list((root / ".bpcbench" / "plain").glob("tmp-*"))


@dataclass(frozen=True)
class Cropped(Plain):
    """With an option that changes what is converted."""

    name: ClassVar[str] = "cropped"
    shade: int = option(0, "added to every pixel")

    def chunks(self, root: Path, split: str) -> Iterator[Chunk]:
        for images, labels in super().chunks(root, split):
            yield images + np.uint8(self.shade), labels


def test_every_setting_of_the_options_has_its_conversion(root: Path) -> None:
    dark, light = Cropped(), Cropped(shade=3)
    np.testing.assert_array_equal(dark.load(root, "train").images + np.uint8(3), light.load(root, "train").images)
    assert dark.fingerprint(root, "train") != light.fingerprint(root, "train")
    dark.load(root, "train")
    assert Plain.reads == ["train", "train"]


@dataclass(frozen=True)
class Published(Plain):
    """With MD5 sums of its files."""

    name: ClassVar[str] = "published"
    asked: ClassVar[list[str]] = []

    def facts(self, root: Path) -> Facts:
        return replace(super().facts(root), official=not self.differs(root))

    def official(self, root: Path) -> dict[Path, tuple[str, ...]]:
        return {root / split: (hashlib.md5(content(size)).hexdigest(), "another") for split, size in SIZES.items()}

    def _wrong(self, files: Mapping[Path, Collection[str]]) -> list[str]:
        self.asked.append("md5")
        return super()._wrong(files)


def test_checksums_are_computed_once_for_each_state_of_the_files(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Published, "asked", [])
    for _ in range(2):
        assert Published().differs(root) == ""
        assert Published().facts(root).official
    assert Published.asked == ["md5"]
    (root / "test").write_bytes(content(4, seed=1))
    assert not Published().facts(root).official
    assert str(root / "test") in Published().differs(root)
    assert str(root / "train") not in Published().differs(root)
    assert Published.asked == ["md5", "md5"]
    assert len(list((root / ".bpcbench" / "published").glob("checksums-*.json"))) == 1
    moved = root.rename(root.parent / "moved")
    assert str(moved / "test") in Published().differs(moved)
    assert Published.asked == ["md5", "md5"]


def test_what_cannot_be_kept_is_found_out_every_time(root: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(Published, "asked", [])
    (root / ".bpcbench").write_text("")
    (tmp_path / "cache").write_text("")
    assert [Published().differs(root) for _ in range(2)] == ["", ""]
    assert len(Published.asked) == 2


@pytest.mark.parametrize("damage", [b"", b"[]", b'{"found": '])
def test_a_damaged_record_is_made_anew(root: Path, damage: bytes) -> None:
    assert Published().differs(root) == ""
    (record,) = (root / ".bpcbench" / "published").glob("checksums-*.json")
    record.write_bytes(damage)
    assert Published().differs(root) == ""
    assert record.read_bytes() != damage


def test_a_bar_is_shown_on_a_terminal_and_in_a_log_only_if_it_takes_long(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with progress.bar(3, "quick", "image") as step:
        step(3)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(progress, "PATIENCE", 0.05)
    with progress.bar(3, "slow", "image") as step:
        time.sleep(0.1)
        step(3)
    assert "slow" in capsys.readouterr().err
    monkeypatch.setattr(progress, "PATIENCE", 99.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress.bar(3, "watched", "image") as step:
        step(3)
    assert "watched" in capsys.readouterr().err


def test_an_unknown_split_is_refused_with_a_suggestion(root: Path) -> None:
    with pytest.raises(ValueError, match="did you mean 'train'"):
        Plain().load(root, "trian")
