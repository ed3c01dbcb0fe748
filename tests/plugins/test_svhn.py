"""SVHN from MATLAB files: small synthetic ones made here, read by torchvision, too, where it can."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from bpcbench.errors import MissingData, UserError
from bpcbench.records import Array
from bpcbench.testing import DatasetConformance
from bpcbench_data.svhn import SVHN

COUNTS = {"train": 40, "test": 20}


def made(split: str) -> tuple[Array, Array]:
    """Return synthetic images in the order of the files, and labels from 1 to 10."""
    rng = np.random.default_rng(COUNTS[split])
    count = COUNTS[split]
    return rng.integers(0, 256, (32, 32, 3, count), np.uint8), (np.arange(count, dtype=np.uint8) % 10 + 1)[:, None]


def place(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for split in COUNTS:
        images, labels = made(split)
        savemat(folder / f"{split}_32x32.mat", {"X": images, "y": labels}, do_compression=True)
    return folder


@pytest.fixture
def placed(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    place(tmp_path / "svhn")
    request.cls.root = tmp_path


@pytest.mark.usefixtures("placed")
class TestSVHN(DatasetConformance):
    plugin = SVHN()


@pytest.mark.parametrize("folder", ["svhn", "SVHN", "."])
def test_content_is_what_torchvision_reads(tmp_path: Path, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from bpcbench_torch.torchvision_compat import import_torchvision

    import_torchvision()
    from torchvision import datasets

    monkeypatch.setattr(datasets.SVHN, "_check_integrity", lambda self: True)
    place(tmp_path / folder)
    facts = SVHN().facts(tmp_path)
    assert facts.sizes == COUNTS
    assert facts.marks == ("subset",)
    for split in COUNTS:
        theirs = datasets.SVHN(tmp_path / folder, split)
        ours = SVHN().load(tmp_path, split)
        np.testing.assert_array_equal(ours.images, theirs.data)
        np.testing.assert_array_equal(ours.labels, theirs.labels)
        assert ours.labels is not None
        assert ours.labels[9] == 0


def test_addresses_and_checksums_are_those_of_torchvision() -> None:
    from bpcbench_torch.torchvision_compat import import_torchvision

    import_torchvision()
    from torchvision import datasets

    theirs = {(url, f"svhn/{file}", md5) for url, file, md5 in datasets.SVHN.split_list.values() if "extra" not in file}
    assert {(one.url, one.path, one.md5) for one in SVHN.downloads} == theirs


def test_the_file_that_differs_is_named(tmp_path: Path) -> None:
    place(tmp_path / "svhn")
    assert str(tmp_path / "svhn" / "train_32x32.mat") in SVHN().differs(tmp_path)


def test_missing_files_are_named_with_the_place(tmp_path: Path) -> None:
    with pytest.raises(MissingData, match=r"needs train_32x32.mat and test_32x32.mat, looked for in .*svhn"):
        SVHN().facts(tmp_path)
    (place(tmp_path) / "test_32x32.mat").unlink()
    with pytest.raises(MissingData, match=r"needs test_32x32.mat, looked"):
        SVHN().facts(tmp_path)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda x, y: {"X": x}, "must hold"),
        (lambda x, y: {"X": x[:, :16], "y": y}, "must hold"),
        (lambda x, y: {"X": x, "y": y - 1}, "from 1 to 10"),
        (lambda x, y: {"X": x, "y": y + 1}, "from 1 to 10"),
        (lambda x, y: {"X": x, "y": y + 0.5}, "from 1 to 10"),
        (lambda x, y: {"X": x, "y": y[1:]}, "39 labels"),
        (lambda x, y: {"X": x.astype(float), "y": y}, "float64"),
    ],
)
def test_wrong_files_are_an_error_and_nothing_is_written(tmp_path: Path, change: object, says: str) -> None:
    path = place(tmp_path) / "train_32x32.mat"
    savemat(path, change(*made("train")))  # type: ignore[operator]
    with pytest.raises(UserError, match=says) as caught:
        SVHN().load(tmp_path, "train")
    assert str(path) in str(caught.value)
    assert not [*tmp_path.rglob("*.npy"), *tmp_path.rglob("tmp-*")]


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
def test_a_truncated_file_is_an_error(tmp_path: Path, share: float) -> None:
    path = place(tmp_path) / "train_32x32.mat"
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(UserError, match=r"train_32x32\.mat"):
        SVHN().load(tmp_path, "train")
    assert not [*tmp_path.rglob("*.npy"), *tmp_path.rglob("tmp-*")]
