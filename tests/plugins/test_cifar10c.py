"""CIFAR-10-C: released files, what is generated without them, and which of the two a table says it was."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from bpcbench.data.splits import load_split
from bpcbench.errors import MissingData, UserError
from bpcbench_data.cifar import CIFAR10
from bpcbench_data.cifar10c import CIFAR10C, TYPES
from bpcbench_data.corrupted import Corrupted
from bpcbench_data.corruptions import CORRUPTIONS, corrupted
from bpcbench_evaluators.corruption import PAPER, RELEASED

N = 12


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def clean(root: Path) -> np.ndarray:
    """Write a small CIFAR-10 in its official layout and return its test images."""
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (N, 3072), dtype=np.uint8)
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        content = {b"data": images, b"labels": [int(i % 10) for i in range(N)]}
        (folder / name).write_bytes(pickle.dumps(content))
    names = [b"plane", b"car", b"bird", b"cat", b"deer", b"dog", b"frog", b"horse", b"ship", b"truck"]
    (folder / "batches.meta").write_bytes(pickle.dumps({b"num_cases_per_batch": N, b"label_names": names}))
    return images.reshape(N, 3, 32, 32)


def release(root: Path, *kinds: str, labels: bool = True, seed: int = 0) -> dict[str, np.ndarray]:
    """Write files in the layout of the release: five severities one after the other, colours last."""
    folder = root / "CIFAR-10-C"
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    made = {kind: rng.integers(0, 256, (5 * N, 32, 32, 3), dtype=np.uint8) for kind in kinds}
    for kind, images in made.items():
        np.save(folder / f"{kind}.npy", images)
    if labels:
        np.save(folder / "labels.npy", np.tile(np.arange(N) % 10, 5).astype(np.uint8))
    return made


def test_types_and_severities_are_those_of_the_release():
    assert len(TYPES) == len(set(TYPES)) == 19
    assert set(CORRUPTIONS) <= set(TYPES)
    assert tuple(CORRUPTIONS) == PAPER
    assert {*PAPER, *RELEASED} == set(TYPES)


def test_released_files_are_read_as_slices(tmp_path):
    made = release(tmp_path, *TYPES)
    data = CIFAR10C()
    facts = data.facts(tmp_path)
    assert len(facts.sizes) == 95
    assert facts.marks == ("subset",)
    for kind in ("snow", "saturate"):
        for severity in range(1, 6):
            split = load_split(data, tmp_path, f"{kind}-{severity}")
            wanted = made[kind][(severity - 1) * N : severity * N]
            np.testing.assert_array_equal(split.images, wanted.transpose(0, 3, 1, 2))
            np.testing.assert_array_equal(split.labels, np.arange(N) % 10)
    base = split.images
    while base.base is not None and not isinstance(base, np.memmap):
        base = base.base
    assert isinstance(base, np.memmap)


def test_fingerprints_follow_the_content_and_are_found_once(tmp_path, monkeypatch):
    release(tmp_path, "snow", "fog")
    data = CIFAR10C()
    before = {split: data.fingerprint(tmp_path, split) for split in data.facts(tmp_path).sizes}
    assert len(set(before.values())) == 10
    images = np.load(tmp_path / "CIFAR-10-C" / "snow.npy")
    images[2 * N + 3, 4, 5, 1] ^= 1
    np.save(tmp_path / "CIFAR-10-C" / "snow.npy", images)
    os.utime(tmp_path / "CIFAR-10-C" / "snow.npy", ns=(1, 1))
    after = {split: data.fingerprint(tmp_path, split) for split in before}
    assert {split for split in before if before[split] != after[split]} == {"snow-3"}
    monkeypatch.setattr("bpcbench_data.cifar10c._digests", lambda *_: pytest.fail("read again"))
    assert after == {split: data.fingerprint(tmp_path, split) for split in before}


def test_without_files_the_seven_are_generated(tmp_path):
    images = clean(tmp_path)
    data = CIFAR10C(seed=3)
    facts = data.facts(tmp_path)
    assert {split.rpartition("-")[0] for split in facts.sizes} == set(CORRUPTIONS)
    assert facts.marks == ("subset", "generated")
    assert facts.class_names[0] == "plane"
    split = load_split(data, tmp_path, "snow-4")
    np.testing.assert_array_equal(split.images, np.concatenate(list(corrupted(images, "snow", 4, 3))))
    same = Corrupted(CIFAR10(), 3)
    assert data.fingerprint(tmp_path, "snow-4") == same.fingerprint(tmp_path, "snow-4")
    assert data.fingerprint(tmp_path, "snow-4") != CIFAR10C().fingerprint(tmp_path, "snow-4")


def test_some_released_and_some_generated_is_said(tmp_path):
    images = clean(tmp_path)
    made = release(tmp_path, *[kind for kind in TYPES if kind not in ("snow", "pixelate", "fog")])
    data = CIFAR10C()
    facts = data.facts(tmp_path)
    assert facts.marks == ("subset", "generated: snow, pixelate")
    assert "fog-1" not in facts.sizes
    assert len(facts.sizes) == 5 * 18
    np.testing.assert_array_equal(
        data.load(tmp_path, "pixelate-1").images, np.concatenate(list(corrupted(images, "pixelate", 1)))
    )
    np.testing.assert_array_equal(data.load(tmp_path, "frost-1").images[0, 2], made["frost"][0, ..., 2])


def test_nothing_there_is_missing_data(tmp_path):
    with pytest.raises(MissingData, match=r"labels.npy and one file per type.*CIFAR-10-C.*cifar-10-python.tar.gz"):
        CIFAR10C().facts(tmp_path)
    release(tmp_path, "snow", labels=False)
    with pytest.raises(MissingData, match=r"holds snow, but not labels.npy"):
        CIFAR10C().facts(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("snow", np.zeros((5 * N, 3, 32, 32), np.uint8), r"should hold uint8 \(5 n, 32, 32, 3\)"),
        ("snow", np.zeros((5 * N, 32, 32, 3), np.float32), "holds float32"),
        ("snow", np.zeros((5 * N - 5, 32, 32, 3), np.uint8), "55 images, but .* 60 labels"),
        ("labels", np.full(5 * N, 10, np.uint8), "holds the label 10"),
        ("labels", np.zeros(7, np.uint8), r"holds uint8 \(7,\)"),
        ("labels", np.array(0, np.uint8), r"holds uint8 \(\)"),
    ],
)
def test_wrong_files_are_refused(tmp_path, name, content, message):
    release(tmp_path, "snow")
    np.save(tmp_path / "CIFAR-10-C" / f"{name}.npy", content)
    with pytest.raises(UserError, match=message):
        CIFAR10C().load(tmp_path, "snow-1")


def test_what_is_no_array_is_refused(tmp_path):
    release(tmp_path, "snow")
    path = tmp_path / "CIFAR-10-C" / "snow.npy"
    for content in (b"", b"nonsense", path.read_bytes()[:5000], pickle.dumps([1])):
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"snow.npy"):
            CIFAR10C().load(tmp_path, "snow-1")


def test_types_that_are_asked_for_and_not_there_are_missing_data(tmp_path):
    clean(tmp_path)
    assert len(CIFAR10C(types=["snow"]).facts(tmp_path).sizes) == 35
    with pytest.raises(MissingData, match=r"needs fog.npy, frost.npy of the release, looked for in .*CIFAR-10-C"):
        CIFAR10C(types=["fog", "snow", "frost"]).facts(tmp_path)
    release(tmp_path, "fog", "frost")
    assert len(CIFAR10C(types=["fog", "snow", "frost"]).facts(tmp_path).sizes) == 45
    with pytest.raises(ValueError, match="unknown type of corruption 'fgo'; did you mean 'fog'"):
        CIFAR10C(types=["fgo"])


def test_unknown_splits_and_seeds(tmp_path):
    clean(tmp_path)
    with pytest.raises(ValueError, match="unknown split 'fog-1'"):
        CIFAR10C().load(tmp_path, "fog-1")
    with pytest.raises(ValueError, match="seed must be at least 0"):
        CIFAR10C(seed=-1)
