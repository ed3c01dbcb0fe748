"""CIFAR-10 from its pickles, without trusting them: small ones made here and, with BPCBENCH_DATA, the real ones."""

from __future__ import annotations

import hashlib
import os
import pickle
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bpcbench.errors import MissingData, UserError
from bpcbench.records import Array
from bpcbench.testing import DatasetConformance
from bpcbench_data import pickles
from bpcbench_data.cifar import CIFAR10, CIFAR100
from bpcbench_data.pickles import count_rows, read_pickle

COUNT = 10
NAMES = [f"class {number}" for number in range(10)]
FILES = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]


def made(number: int) -> tuple[Array, list[int]]:
    rng = np.random.default_rng(number)
    return rng.integers(0, 256, (COUNT, 3072), np.uint8), [(row + number) % 10 for row in range(COUNT)]


def python2(images: Array, labels: list[int]) -> bytes:
    """Return a batch as Python 2's cPickle wrote it: byte strings everywhere."""

    def text(word: bytes) -> bytes:
        return b"U" + bytes([len(word)]) + word

    def number(value: int) -> bytes:
        return b"J" + value.to_bytes(4, "little", signed=True)

    raw = images.tobytes()
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01"
        + number(images.shape[0])
        + number(images.shape[1])
        + b"\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T"
        + len(raw).to_bytes(4, "little")
        + raw
        + b"tb"
    )
    listed = b"](" + b"".join(number(label) for label in labels) + b"e"
    return b"\x80\x02}(" + text(b"labels") + listed + text(b"data") + array + b"u."


def place(root: Path) -> Path:
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    for number, name in enumerate(FILES):
        (folder / name).write_bytes(python2(*made(number)))
    meta = {b"num_cases_per_batch": COUNT, b"label_names": [name.encode() for name in NAMES], b"num_vis": 3072}
    (folder / "batches.meta").write_bytes(pickle.dumps(meta, 3))
    return folder


@pytest.fixture
def placed(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    place(tmp_path)
    request.cls.root = tmp_path


@pytest.mark.usefixtures("placed")
class TestCIFAR10(DatasetConformance):
    plugin = CIFAR10()


def test_content_is_that_of_the_files_in_order(tmp_path: Path) -> None:
    place(tmp_path)
    facts = CIFAR10().facts(tmp_path)
    assert facts.shape == (3, 32, 32)
    assert facts.class_names == tuple(NAMES)
    assert facts.marks == ("subset",)
    for split, numbers in (("train", range(5)), ("test", [5])):
        batches = [made(number) for number in numbers]
        loaded = CIFAR10().load(tmp_path, split)
        np.testing.assert_array_equal(
            loaded.images, np.concatenate([images for images, _ in batches]).reshape(-1, 3, 32, 32)
        )
        assert loaded.labels is not None
        assert loaded.labels.tolist() == [label for _, labels in batches for label in labels]


@pytest.mark.parametrize("protocol", [3, 4])
@pytest.mark.parametrize("order", ["C", "F"])
def test_files_saved_again_by_python_3_are_read_too(tmp_path: Path, protocol: int, order: Any) -> None:
    images, labels = made(0)
    path = tmp_path / "batch"
    path.write_bytes(pickle.dumps({"data": np.asarray(images, order=order), "labels": labels}, protocol))
    content = read_pickle(path)
    np.testing.assert_array_equal(content["data"], images)
    assert content["labels"] == labels


def test_missing_files_are_named_with_the_place(tmp_path: Path) -> None:
    with pytest.raises(MissingData, match=r"data_batch_1.*test_batch"):
        CIFAR10().facts(tmp_path)
    folder = place(tmp_path)
    (folder / "data_batch_3").unlink()
    with pytest.raises(MissingData, match="needs data_batch_3, looked for in") as caught:
        CIFAR10().facts(tmp_path)
    assert str(folder) in str(caught.value)


class Calls:
    """Pickles to a call of a function."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.reduced = (function, arguments)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.reduced


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("name", ["test_batch", "batches.meta"])
def test_a_malicious_pickle_runs_nothing(tmp_path: Path, name: str, protocol: int) -> None:
    folder, sign = place(tmp_path), tmp_path / "owned"
    for bad in (
        Calls(os.system, f"touch {sign}"),
        Calls(os.mkdir, str(sign)),
        Calls(exec, f"open({str(sign)!r}, 'w')"),
    ):
        for content in (bad, {"data": bad, "labels": [], "num_cases_per_batch": bad}):
            (folder / name).write_bytes(pickle.dumps(content, protocol))
            with pytest.raises(UserError, match="which no data file needs") as caught:
                read_pickle(folder / name)
            assert name in str(caught.value)
            with pytest.raises(UserError, match=name):
                CIFAR10().load(tmp_path, "test")
    assert not sign.exists()
    assert not [*tmp_path.rglob("*.npy"), *tmp_path.rglob("tmp-*")]


@pytest.mark.parametrize(
    "names",
    [
        "numpy\nload",
        "numpy\nfromfile",
        "builtins\ngetattr",
        "numpy\nndarray.tofile",
        "numpy._core.multiarray\nfromstring",
    ],
)
def test_other_names_are_refused_even_in_numpy(tmp_path: Path, names: str) -> None:
    path = tmp_path / "batch"
    path.write_bytes(b"\x80\x02c" + names.encode() + b"\n.")
    with pytest.raises(UserError, match="it asks for"):
        read_pickle(path)
    # The same name by the opcode of protocol 4, which may have dots in it.
    words = [b"\x8c" + bytes([len(word)]) + word.encode() for word in names.split("\n")]
    path.write_bytes(b"\x80\x04" + b"".join(words) + b"\x93.")
    with pytest.raises(UserError, match="it asks for"):
        read_pickle(path)


def test_stand_ins_cannot_be_changed_by_a_pickle(tmp_path: Path) -> None:
    path = tmp_path / "batch"
    # BUILD on an admitted class, with a state that would set attributes of the class.
    path.write_bytes(b"\x80\x02cnumpy\nndarray\nN}U\x05arrayK\x01s\x86b.")
    with pytest.raises(UserError):
        read_pickle(path)
    assert pickles._Bytes.array is None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda good: good[: len(good) // 2], "cannot be read"),
        (lambda good: b"", "cannot be read"),
        (lambda good: b"<html>", "cannot be read"),
        (lambda good: pickle.dumps([made(0)[0]], 3), "holds a list"),
        (lambda good: pickle.dumps({"labels": [1] * COUNT}, 3), "no array with rows of 3072"),
        (lambda good: python2(made(0)[0][:, :-1], made(0)[1]), "no array with rows of 3072"),
        (lambda good: pickle.dumps({"data": np.zeros((COUNT, 3072)), "labels": [1] * COUNT}, 3), "unsigned bytes"),
        (lambda good: python2(made(0)[0], [-1] * COUNT), "integers from 0 to 9"),
        (lambda good: python2(made(0)[0], [10] * COUNT), "integers from 0 to 9"),
        (lambda good: python2(made(0)[0], [1] * (COUNT - 1)), "9 labels"),
    ],
)
def test_wrong_files_are_an_error_and_nothing_is_written(
    tmp_path: Path, change: Callable[[bytes], bytes], says: str
) -> None:
    path = place(tmp_path) / "data_batch_2"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(UserError, match=says):
        CIFAR10().load(tmp_path, "train")
    assert not [*tmp_path.rglob("*.npy"), *tmp_path.rglob("tmp-*")]


@pytest.mark.parametrize("meta", [{}, {"label_names": ["x"]}, {"label_names": 10}])
def test_a_wrong_meta_file_is_an_error(tmp_path: Path, meta: dict[str, object]) -> None:
    (place(tmp_path) / "batches.meta").write_bytes(pickle.dumps(meta, 3))
    with pytest.raises(UserError, match=r"batches\.meta"):
        CIFAR10().facts(tmp_path)


@pytest.mark.parametrize("protocol", range(5))
@pytest.mark.parametrize("first", ["data", "labels"])
def test_rows_are_counted_without_reading_them(tmp_path: Path, protocol: int, first: str) -> None:
    content: dict[str, Any] = {"data": np.zeros((7, 3072), np.uint8), "labels": [5, 3072] * 2000, "pair": (1, 2)}
    path = tmp_path / "batch"
    path.write_bytes(pickle.dumps({first: content[first], **content}, protocol))
    assert count_rows(path, 3072) == 7
    if protocol > 2 and first == "data":
        path.write_bytes(path.read_bytes()[:200])
        assert count_rows(path, 3072) == 7


@pytest.mark.timeout(60)
def test_counting_is_linear_in_the_labels_that_come_first(tmp_path: Path) -> None:
    path = tmp_path / "batch"
    path.write_bytes(pickle.dumps({"labels": [1] * 100_000, "data": np.zeros((2, 3072), np.uint8)}, 3))
    assert count_rows(path, 3072) == 2


def test_arrays_of_other_numbers_are_left_out_and_objects_refused(tmp_path: Path) -> None:
    path = tmp_path / "batch"
    path.write_bytes(pickle.dumps({"mean": np.zeros(3), "data": np.ones((1, 2), np.uint8)}, 3))
    content = read_pickle(path)
    assert content["mean"] is None
    assert content["data"].tolist() == [[1, 1]]
    path.write_bytes(pickle.dumps({"data": np.array([{}])}, 3))
    with pytest.raises(UserError, match="not of numbers"):
        read_pickle(path)


def place100(root: Path, counts: tuple[int, int] = (200, 100)) -> Path:
    folder = root / "cifar-100-python"
    folder.mkdir(parents=True)
    for seed, (name, count) in enumerate(zip(("train", "test"), counts, strict=True)):
        images = np.random.default_rng(seed).integers(0, 256, (count, 3072), np.uint8)
        fine = [(7 * row) % 100 for row in range(count)]
        content = {b"filenames": [], b"fine_labels": fine, b"coarse_labels": [0] * count, b"data": images}
        (folder / name).write_bytes(pickle.dumps(content, 3))
    names = [f"fine {number}".encode() for number in range(100)]
    (folder / "meta").write_bytes(pickle.dumps({b"fine_label_names": names, b"coarse_label_names": [b"x"] * 20}, 3))
    return folder


@pytest.fixture
def placed100(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    place100(tmp_path)
    request.cls.root = tmp_path


@pytest.mark.usefixtures("placed100")
class TestCIFAR100(DatasetConformance):
    plugin = CIFAR100()


def test_cifar100_has_the_fine_labels(tmp_path: Path) -> None:
    folder = place100(tmp_path)
    facts = CIFAR100().facts(tmp_path)
    assert facts.sizes == {"train": 200, "test": 100}
    assert facts.class_names[99] == "fine 99"
    assert facts.marks == ("subset",)
    assert str(folder / "train") in CIFAR100().differs(tmp_path)
    split = CIFAR100().load(tmp_path, "test")
    expected = np.random.default_rng(1).integers(0, 256, (100, 3072), np.uint8).reshape(-1, 3, 32, 32)
    np.testing.assert_array_equal(split.images, expected)
    assert split.labels is not None
    assert split.labels.tolist() == [(7 * row) % 100 for row in range(100)]


def test_one_changed_byte_is_noticed_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = place(tmp_path)
    sums = {name: hashlib.md5((folder / name).read_bytes()).hexdigest() for name in CIFAR10.sums}
    monkeypatch.setattr(CIFAR10, "sums", sums)
    assert CIFAR10().facts(tmp_path).marks == ()
    assert CIFAR10().differs(tmp_path) == ""
    before = CIFAR10().fingerprint(tmp_path, "train")
    whole = bytearray((folder / "data_batch_3").read_bytes())
    whole[-100] ^= 1
    (folder / "data_batch_3").write_bytes(bytes(whole))
    assert CIFAR10().facts(tmp_path).marks == ("subset",)
    assert str(folder / "data_batch_3") in CIFAR10().differs(tmp_path)
    assert "data_batch_2" not in CIFAR10().differs(tmp_path)
    assert CIFAR10().fingerprint(tmp_path, "train") != before


@pytest.mark.parametrize("dataset", [CIFAR10, CIFAR100])
def test_checksums_are_those_of_torchvision(dataset: type[CIFAR10] | type[CIFAR100]) -> None:
    from bpcbench_torch.torchvision_compat import import_torchvision

    import_torchvision()
    from torchvision import datasets

    theirs = getattr(datasets, dataset.__name__)
    listed = dict([*theirs.train_list, *theirs.test_list])
    assert dataset.sums == {**listed, theirs.meta["filename"]: theirs.meta["md5"]}
    assert [(one.url, one.md5, one.path) for one in dataset.downloads] == [
        (theirs.url, theirs.tgz_md5, theirs.base_folder)
    ]


def test_real_data_are_what_torchvision_reads_and_load_at_once() -> None:
    from bpcbench_torch.torchvision_compat import import_torchvision

    root = Path(os.environ.get("BPCBENCH_DATA", "nowhere"))
    try:
        facts = CIFAR10().facts(root)
    except MissingData as error:
        pytest.skip(str(error))
    assert facts.sizes == {"train": 50_000, "test": 10_000}
    assert facts.marks == ()
    import_torchvision()
    from torchvision import datasets

    for split in facts.sizes:
        theirs = datasets.CIFAR10(root, train=split == "train")
        ours = CIFAR10().load(root, split)
        assert min(timeit.repeat(lambda split=split: CIFAR10().load(root, split), number=1)) < 0.05  # type: ignore[misc]
        np.testing.assert_array_equal(ours.images, theirs.data.transpose(0, 3, 1, 2))
        assert ours.labels is not None
        assert ours.labels.tolist() == theirs.targets
        assert list(facts.class_names) == theirs.classes
