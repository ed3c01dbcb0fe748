"""Rows of a memory map: they read like an array, and only what is asked for is read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bpcbench
from bpcbench.data.classes import of_classes
from bpcbench.data.rows import Rows, chosen
from bpcbench.data.splits import VALIDATION, evaluated_split, load_split, training_data
from bpcbench.records import Array, Data, Facts, Split, Transform
from bpcbench_torch.batches import Batches
from bpcbench_torch.preprocessing import Standardize
from bpcbench_torch.zca import ZCA

ODD = np.arange(1, 60, 2)


@pytest.fixture
def mapped(tmp_path: Path) -> Array:
    np.save(tmp_path / "a.npy", np.random.default_rng(0).integers(0, 256, (60, 2, 4, 4), np.uint8))
    return np.load(tmp_path / "a.npy", mmap_mode="r")


@pytest.mark.parametrize(
    "index",
    [
        0,
        -1,
        np.int64(3),
        slice(2, 20, 3),
        slice(0),
        [5, 1, 1],
        np.array([4, 2]),
        np.arange(30) % 3 == 0,
        (slice(3, 9), 1),
        (slice(None), slice(0, 1), 2),
        (4, 1, 2, 3),
        (np.array([3, 3, 0]), slice(None), 1),
        (slice(None), np.array([1, 0])),
        (np.array([1, 2]), np.array([1, 0])),
        (Ellipsis, 0),
        None,
        np.array([[1, 2], [3, 4]]),
    ],
    ids=str,
)
def test_an_index_finds_what_it_finds_in_an_array(mapped: Array, index: Any) -> None:
    found = chosen(mapped, ODD)[index]
    np.testing.assert_array_equal(found, np.asarray(mapped)[ODD][index])
    assert type(found) in (np.ndarray, np.uint8)


def test_everything_else_is_done_on_a_copy(mapped: Array) -> None:
    lazy, plain = chosen(mapped, ODD), np.asarray(mapped)[ODD]
    assert isinstance(lazy, Rows)
    assert (len(lazy), lazy.shape, lazy.dtype, lazy.ndim, lazy.nbytes) == (30, plain.shape, plain.dtype, 4, 960)
    np.testing.assert_array_equal(lazy / 255, plain / 255)
    np.testing.assert_array_equal(lazy.mean(0), plain.mean(0))
    np.testing.assert_array_equal(lazy.astype(np.float32), plain.astype(np.float32))
    np.testing.assert_array_equal(np.stack(list(lazy)), plain)
    np.testing.assert_array_equal(np.concatenate([lazy, lazy]), np.concatenate([plain, plain]))
    np.testing.assert_array_equal(torch.as_tensor(np.asarray(lazy)), plain)
    assert lazy.tobytes() == plain.tobytes()
    with pytest.raises(IndexError):
        lazy[30]
    with pytest.raises(AttributeError):
        _ = lazy.nothing
    assert type(chosen(np.array(mapped), ODD)) is np.ndarray


def test_rows_of_rows_are_rows(mapped: Array) -> None:
    again = chosen(chosen(mapped, ODD), np.array([0, 2]))
    assert isinstance(again, Rows)
    assert again.base is mapped
    np.testing.assert_array_equal(again, mapped[[1, 5]])


@dataclass(frozen=True)
class Large(bpcbench.Dataset):
    """Images in a memory map."""

    name = "large"

    def facts(self, root: Path) -> Facts:
        return Facts(shape=(2, 4, 4), classes=3, sizes={"train": 60})

    def fingerprint(self, root: Path, split: str) -> str:
        return split

    def load(self, root: Path, split: str) -> Split:
        return Split(np.load(root / "a.npy", mmap_mode="r"), np.arange(60) % 3)


@pytest.fixture
def most_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count how many images each access reads."""
    counts: list[int] = []
    found = Rows.__getitem__

    def counted(self: Rows, index: Any) -> Any:
        result = found(self, index)
        counts.append(len(result))
        return result

    monkeypatch.setattr(Rows, "__getitem__", counted)
    monkeypatch.setattr(Rows, "__array__", lambda self, dtype=None, copy=None: pytest.fail("everything was read"))
    return counts


def test_what_is_not_held_out_of_a_memory_map_is_never_copied(
    mapped: Array, tmp_path: Path, most_read: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = training_data(Large(), tmp_path, holdout=True)
    assert isinstance(kept.train.images, Rows)
    monkeypatch.setattr("bpcbench_torch.preprocessing._CHUNK", 16)
    monkeypatch.setattr("bpcbench_torch.zca._CHUNK", 16)
    transform = Transform(ZCA(), ZCA().fit(kept, None))  # type: ignore[arg-type]  # it needs no context
    Standardize(spread="images").fit(kept, None)  # type: ignore[arg-type]
    batches = Batches(kept, transform, size=7, seed=0, device="cpu", resident_bytes=0)
    images, labels = batches.next()
    assert (len(images), len(labels)) == (7, 7)
    assert max(most_read) <= 16
    order = np.sort(batches.order[:7].numpy())
    expected = transform.apply(mapped[kept.train.images.rows[order]])
    np.testing.assert_allclose(images, expected, rtol=1e-5, atol=1e-5)


def test_other_parts_are_lazy_too(mapped: Array, tmp_path: Path, most_read: list[int]) -> None:
    held = evaluated_split(Large(), tmp_path, VALIDATION, 3)
    some = load_split(Large(), tmp_path, "train", examples=9)
    two = of_classes(training_data(Large(), tmp_path, holdout=True), [0, 2])
    assert [type(one) for one in (held.images, some.images, two.train.images)] == [Rows] * 3
    assert most_read == []
    assert (len(held), len(some), two.present) == (6, 9, (0, 2))


def test_images_in_memory_stay_arrays() -> None:
    data = Data(
        Facts(shape=(1, 1, 1), classes=2, sizes={"train": 4}), Split(np.zeros((4, 1, 1, 1), np.uint8), np.arange(4) % 2)
    )
    assert type(of_classes(data, [1]).train.images) is np.ndarray
