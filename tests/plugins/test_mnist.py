"""MNIST and Fashion-MNIST from idx files: small ones made here and, where BPCBENCH_DATA has them, the real ones."""

from __future__ import annotations

import gzip
import hashlib
import os
import struct
import subprocess
import sys
import timeit
from pathlib import Path

import numpy as np
import pytest

from bpcbench.errors import MissingData, UserError
from bpcbench.records import Array
from bpcbench.testing import DatasetConformance
from bpcbench_data import idx
from bpcbench_data.mnist import MNIST, FashionMNIST, IdxDataset

SMALL = {"train": 30, "test": 20}
PREFIX = {"train": "train", "test": "t10k"}
CLASSES = [MNIST, FashionMNIST]


def encoded(array: Array) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def made(split: str) -> tuple[Array, Array]:
    rng = np.random.default_rng(SMALL[split])
    return rng.integers(0, 256, (SMALL[split], 28, 28), np.uint8), (np.arange(SMALL[split]) % 10).astype(np.uint8)


def place(root: Path, dataset: type[IdxDataset] = MNIST, *, zipped: bool = False) -> Path:
    raw = root / dataset.folder / "raw"
    raw.mkdir(parents=True)
    for split, prefix in PREFIX.items():
        images, labels = made(split)
        for name, array in ((f"{prefix}-images-idx3-ubyte", images), (f"{prefix}-labels-idx1-ubyte", labels)):
            content = encoded(array)
            (raw / (f"{name}.gz" if zipped else name)).write_bytes(gzip.compress(content) if zipped else content)
    return raw


@pytest.fixture(params=[False, True], ids=["plain", "gz"])
def zipped(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(params=CLASSES, ids=lambda cls: cls.name)
def placed(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    place(tmp_path, request.param)
    request.cls.plugin, request.cls.root = request.param(), tmp_path


@pytest.mark.usefixtures("placed")
class TestIdxDataset(DatasetConformance):
    pass


@pytest.mark.parametrize("dataset", CLASSES)
def test_content_is_that_of_the_files(dataset: type[IdxDataset], zipped: bool, tmp_path: Path) -> None:
    place(tmp_path, dataset, zipped=zipped)
    for split in SMALL:
        images, labels = made(split)
        loaded = dataset().load(tmp_path, split)
        np.testing.assert_array_equal(loaded.images, images[:, None])
        np.testing.assert_array_equal(loaded.labels, labels)


def test_facts_come_from_headers_and_note_a_subset(tmp_path: Path, zipped: bool) -> None:
    place(tmp_path, zipped=zipped)
    facts = MNIST().facts(tmp_path)
    assert facts.shape == (1, 28, 28)
    assert facts.sizes == SMALL
    assert facts.marks == ("subset",)
    assert facts.class_names == tuple("0123456789")
    assert not list(tmp_path.rglob("*.npy"))


def test_plain_and_zipped_files_have_one_fingerprint(tmp_path: Path) -> None:
    prints = set()
    for zipped in (False, True):
        root = tmp_path / str(zipped)
        place(root, zipped=zipped)
        prints.add(MNIST().fingerprint(root, "train"))
    assert len(prints) == 1


@pytest.mark.parametrize("dataset", CLASSES)
def test_missing_files_are_named_with_the_place(dataset: type[IdxDataset], tmp_path: Path) -> None:
    with pytest.raises(MissingData) as caught:
        dataset().facts(tmp_path)
    message = str(caught.value)
    assert str(tmp_path / dataset.folder / "raw") in message
    assert all(
        f"{prefix}-{kind}-ubyte" in message for prefix in PREFIX.values() for kind in ("images-idx3", "labels-idx1")
    )
    raw = place(tmp_path, dataset)
    (raw / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(MissingData, match="t10k-labels") as caught:
        dataset().load(tmp_path, "train")
    assert "train-images" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("train-images-idx3-ubyte", b"", "begins with nothing"),
        ("train-images-idx3-ubyte", b"<!DOCTYPE html>", "begins with 3c21444f"),
        ("train-images-idx3-ubyte", encoded(made("train")[0])[:10], "ends within its header"),
        ("train-images-idx3-ubyte", encoded(made("train")[0])[:-1], "holds 23519"),
        ("train-images-idx3-ubyte", encoded(made("train")[0]) + b"x", "holds more"),
        ("train-images-idx3-ubyte", encoded(made("train")[0][:, :27]), "28x28"),
        ("train-labels-idx1-ubyte", encoded(made("train")[1][1:]), "30 images"),
        ("train-labels-idx1-ubyte", encoded(made("train")[1] + np.uint8(1)), "label 10"),
        ("train-images-idx3-ubyte", bytes([0, 0, 8, 3]) + struct.pack(">3I", 30, 28, 28), "truncated"),
        ("train-images-idx3-ubyte", bytes([0, 0, 13, 3]) + encoded(made("train")[0])[4:], "no idx header"),
    ],
)
def test_wrong_files_are_an_error_and_nothing_is_written(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    (place(tmp_path) / name).write_bytes(content)
    with pytest.raises(UserError, match=says) as caught:
        MNIST().load(tmp_path, "train")
    assert name in str(caught.value)
    assert not [*tmp_path.rglob("*.npy"), *tmp_path.rglob("tmp-*")]


@pytest.mark.parametrize("damage", ["cut", "checksum", "text", "bomb"])
def test_wrong_gzip_files_are_an_error(tmp_path: Path, damage: str) -> None:
    path = place(tmp_path, zipped=True) / "train-images-idx3-ubyte.gz"
    whole = path.read_bytes()
    huge = gzip.compress(bytes([0, 0, 8, 3]) + struct.pack(">3I", 2**32 - 1, 28, 28))
    content = {"cut": whole[:-2000], "checksum": whole[:-8] + bytes(8), "text": b"not gzip", "bomb": huge}[damage]
    path.write_bytes(content)
    with pytest.raises(UserError, match="train-images"):
        idx.read(path)


def test_importing_and_loading_needs_neither_torch_nor_torchvision(tmp_path: Path) -> None:
    place(tmp_path)
    code = f"""
import sys
from pathlib import Path
import bpcbench_data.plugin
from bpcbench_data.mnist import MNIST
MNIST().load(Path({str(tmp_path)!r}), "train")
assert not {{"torch", "torchvision", "sklearn"}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("dataset", CLASSES)
def test_checksums_are_those_of_torchvision(dataset: type[IdxDataset]) -> None:
    from bpcbench_torch.torchvision_compat import import_torchvision

    import_torchvision()
    from torchvision import datasets

    theirs = dict(getattr(datasets, dataset.folder).resources)
    assert {f"{name}.gz": sums[0] for name, sums in dataset.sums.items()} == theirs
    assert {one.path.rpartition("/")[2]: one.md5 for one in dataset.downloads} == theirs
    assert all(one.url.startswith(tuple(getattr(datasets, dataset.folder).mirrors)) for one in dataset.downloads)


@pytest.mark.parametrize("dataset", CLASSES)
def test_checksums_of_plain_files_are_those_of_what_the_official_archives_hold(dataset: type[IdxDataset]) -> None:
    raw = real(dataset) / dataset.folder / "raw"
    for name, (gzipped, plain) in dataset.sums.items():
        if not (raw / f"{name}.gz").is_file():
            pytest.skip(f"{name}.gz is not there")
        content = (raw / f"{name}.gz").read_bytes()
        assert hashlib.md5(content).hexdigest() == gzipped
        assert hashlib.md5(gzip.decompress(content)).hexdigest() == plain


def real(dataset: type[IdxDataset]) -> Path:
    root = Path(os.environ.get("BPCBENCH_DATA", "nowhere"))
    try:
        dataset().facts(root)
    except MissingData as error:
        pytest.skip(str(error))
    return root


@pytest.mark.parametrize("dataset", CLASSES)
def test_real_data_are_what_torchvision_reads(dataset: type[IdxDataset]) -> None:
    from bpcbench_torch.torchvision_compat import import_torchvision

    root = real(dataset)
    facts = dataset().facts(root)
    assert facts.sizes == {"train": 60_000, "test": 10_000}
    assert facts.marks == ()
    import_torchvision()
    from torchvision import datasets

    for split in facts.sizes:
        theirs = getattr(datasets, dataset.folder)(root, train=split == "train")
        ours = dataset().load(root, split)
        np.testing.assert_array_equal(ours.images[:, 0], theirs.data.numpy())
        np.testing.assert_array_equal(ours.labels, theirs.targets.numpy())
        if dataset is FashionMNIST:
            assert list(facts.class_names) == theirs.classes


@pytest.mark.parametrize("dataset", CLASSES)
def test_real_data_load_at_once_the_second_time(dataset: type[IdxDataset]) -> None:
    root = real(dataset)
    fingerprint = dataset().fingerprint(root, "train")
    assert min(timeit.repeat(lambda: dataset().load(root, "train"), number=1)) < 0.05
    split = dataset().load(root, "train")
    digest = hashlib.sha256(b"[60000, 1, 28, 28]" + split.images.tobytes())
    assert split.labels is not None
    digest.update(split.labels.astype("<i8").tobytes())
    assert digest.hexdigest() == fingerprint
