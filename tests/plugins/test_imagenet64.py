"""Downsampled ImageNet from pickles and .npz files: small ones made here."""

from __future__ import annotations

import pickle
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bpcbench.errors import MissingData, UserError
from bpcbench.records import Array
from bpcbench.testing import DatasetConformance
from bpcbench_data import imagenet64
from bpcbench_data.imagenet64 import ImageNet64

PER_FILE = 100
NAMES = [*(f"train_data_batch_{number}" for number in range(1, 11)), "val_data"]
FORMS = ["pickle", "npz"]


def made(number: int, count: int = PER_FILE) -> tuple[Array, Array]:
    """Return rows of pixels, and labels from 1 to 1000 of which ten files have them all."""
    images = np.random.default_rng(number).integers(0, 256, (count, 12288), np.uint8)
    return images, (number * PER_FILE + np.arange(count)) % 1000 + 1


def write(path: Path, form: str, images: Array, labels: Any) -> Path:
    mean = images.mean(0)
    if form == "pickle":
        listed = labels.tolist() if isinstance(labels, np.ndarray) else labels
        path.write_bytes(pickle.dumps({"data": images, "labels": listed, "mean": mean}, 3))
        return path
    save = np.savez if form == "npz" else np.savez_compressed
    save(path.with_suffix(".npz"), data=images, labels=labels, mean=mean)
    return path.with_suffix(".npz")


def place(root: Path, form: str = "pickle", count: int = PER_FILE) -> Path:
    folder = root / "imagenet64"
    folder.mkdir(parents=True)
    for number, name in enumerate(NAMES):
        write(folder / name, form, *made(number, count))
    return folder


@pytest.fixture(params=FORMS)
def placed(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    place(tmp_path, request.param)
    request.cls.root = tmp_path


@pytest.mark.usefixtures("placed")
class TestImageNet64(DatasetConformance):
    plugin = ImageNet64()


@pytest.mark.parametrize("form", FORMS)
def test_content_is_that_of_the_files_in_order(tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imagenet64, "_CHUNK", 33)
    place(tmp_path, form)
    facts = ImageNet64().facts(tmp_path)
    assert (facts.shape, facts.classes, facts.sizes) == ((3, 64, 64), 1000, {"train": 1000, "test": 100})
    for split, numbers in (("train", range(10)), ("test", [10])):
        loaded = ImageNet64().load(tmp_path, split)
        assert isinstance(loaded.images, np.memmap)
        batches = [made(number) for number in numbers]
        np.testing.assert_array_equal(
            loaded.images, np.concatenate([images for images, _ in batches]).reshape(-1, 3, 64, 64)
        )
        np.testing.assert_array_equal(loaded.labels, np.concatenate([labels for _, labels in batches]) - 1)


def test_a_pickle_and_an_npz_file_have_one_fingerprint(tmp_path: Path) -> None:
    prints = set()
    for form in (*FORMS, "zipped"):
        place(tmp_path / form, form, 3)
        prints.add(ImageNet64().fingerprint(tmp_path / form, "train"))
    assert len(prints) == 1


def test_a_wrong_number_of_images_is_a_subset_and_the_official_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = place(tmp_path, count=2)
    assert ImageNet64().facts(tmp_path).marks == ("subset",)
    says = ImageNet64().differs(tmp_path)
    assert str(folder / "train_data_batch_1") in says
    assert "20 images, not 1,281,167" in says
    monkeypatch.setattr(imagenet64, "_SIZES", {"train": 20, "test": 2})
    assert ImageNet64().facts(tmp_path).marks == ()
    assert ImageNet64().differs(tmp_path) == ""


def test_folders_for_the_parts_are_looked_into(tmp_path: Path) -> None:
    folder = place(tmp_path, count=2)
    for part in ("train", "val"):
        (folder / part).mkdir()
    for name in NAMES:
        (folder / name).rename(folder / ("val" if name == "val_data" else "train") / name)
    assert ImageNet64().facts(tmp_path).sizes == {"train": 20, "test": 2}


def test_missing_files_are_named_with_the_place(tmp_path: Path) -> None:
    with pytest.raises(MissingData, match=r"needs train_data_batch_1, .*image-net\.org"):
        ImageNet64().facts(tmp_path)
    (place(tmp_path, count=1) / "train_data_batch_7").unlink()
    with pytest.raises(MissingData, match=r"needs train_data_batch_7 .*looked for in .*imagenet64"):
        ImageNet64().facts(tmp_path)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda images, labels: (images, labels - 1), "from 0 to"),
        (lambda images, labels: (images, labels + 1000), "not within 1"),
        (lambda images, labels: (images, labels[1:]), "images"),
        (lambda images, labels: (images, labels / 2), "labels"),
        (lambda images, labels: (images[:, 1:], labels), "12288"),
        (lambda images, labels: (images.astype(np.int16), labels), "unsigned bytes"),
    ],
)
def test_wrong_files_are_an_error_and_nothing_is_written(
    tmp_path: Path, form: str, change: Callable[..., tuple[Array, Array]], says: str
) -> None:
    path = write(place(tmp_path, form, 3) / NAMES[0], form, *change(*made(0, 3)))
    with pytest.raises(UserError, match=says) as caught:
        ImageNet64().load(tmp_path, "train")
    assert str(path) in str(caught.value)
    assert not [*tmp_path.rglob("*.npy"), *tmp_path.rglob("tmp-*")]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("share", [0.0, 0.3, 0.95])
def test_a_truncated_file_is_an_error(tmp_path: Path, form: str, share: float) -> None:
    path = write(place(tmp_path, form, 3) / NAMES[0], form, *made(0, 3))
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(UserError, match=path.name):
        ImageNet64().load(tmp_path, "train")
    assert not [*tmp_path.rglob("*.npy"), *tmp_path.rglob("tmp-*")]


def test_a_malicious_pickle_runs_nothing(tmp_path: Path) -> None:
    path = place(tmp_path, count=1) / NAMES[0]
    sign = tmp_path / "owned"
    images, labels = made(0, 1)
    call = b"cos\nmkdir\n(U" + bytes([len(str(sign))]) + str(sign).encode() + b"tR"
    good = pickle.dumps({"data": images, "labels": labels.tolist()}, 2)
    path.write_bytes(b"\x80\x02" + call + b"0" + good[2:])
    with pytest.raises(UserError, match="which no data file needs"):
        ImageNet64().load(tmp_path, "train")
    assert not sign.exists()


@pytest.mark.parametrize(("form", "files"), [("pickle", 2.5), ("npz", 0.6)])
def test_memory_is_that_of_one_file_and_not_of_all(
    tmp_path: Path, form: str, files: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(imagenet64, "_CHUNK", 32)
    place(tmp_path, form, 400)
    ImageNet64().facts(tmp_path)
    tracemalloc.start()
    try:
        ImageNet64().load(tmp_path, "train")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < files * 400 * 12288
