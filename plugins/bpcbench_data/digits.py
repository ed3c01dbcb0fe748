"""The 8x8 handwritten digits that come with every scikit-learn installation: real data without a download."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import numpy as np

from bpcbench.api import Dataset
from bpcbench.errors import MissingData, unknown
from bpcbench.records import Array, Facts, Split

_SIZES = {"train": 1437, "test": 360}
_SPLIT_SEED = 20240601


@dataclass(frozen=True)
class Digits(Dataset):
    """1797 grey 8x8 images of handwritten digits, split 1437 / 360, stratified by class (Alpaydin & Kaynak, 1998).

    Values 0 ... 16 are stored as round(x * 255 / 16). The split is fixed and specific to this plugin.
    """

    name: ClassVar[str] = "digits"
    licence: ClassVar[str] = (
        "CC BY 4.0: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning "
        "Repository, 1998; its test part as shipped with scikit-learn (BSD-3-Clause)"
    )

    def facts(self, root: Path) -> Facts:
        """Return the facts, which are fixed; MissingData if scikit-learn's file is missing."""
        _file()
        return Facts(shape=(1, 8, 8), classes=10, sizes=_SIZES, class_names=tuple("0123456789"))

    def places(self, root: Path) -> Sequence[Path]:
        """Return scikit-learn's file, which is outside the data root."""
        return [_file()]

    def fingerprint(self, root: Path, split: str) -> str:
        """Return the SHA-256 of the split's images and labels."""
        return _fingerprint(_known(split))

    def load(self, root: Path, split: str) -> Split:
        """Return `train` or `test`, in the order of scikit-learn's file."""
        images, labels = _arrays(_known(split))
        # Copies, so that a caller who writes into them does not corrupt the cache.
        return Split(images.copy(), labels.copy())


def _known(split: str) -> str:
    if split not in _SIZES:
        raise ValueError(f"data set digits: {unknown('split', split, _SIZES)}")
    return split


def _file() -> Path:
    """Return scikit-learn's file without importing scikit-learn, which takes seconds."""
    # importlib.resources would import the package.
    spec = importlib.util.find_spec("sklearn")
    for place in (spec and spec.submodule_search_locations) or ():
        path = Path(place) / "datasets" / "data" / "digits.csv.gz"
        if path.is_file():
            return path
    raise MissingData(
        "data set digits reads sklearn/datasets/data/digits.csv.gz, which was not found: pip install scikit-learn"
    )


@lru_cache(maxsize=1)
def _table() -> Array:
    return np.loadtxt(_file(), delimiter=",", dtype=np.uint8)


def _test_rows(labels: Array) -> Array:
    """Return the sorted rows of the test split: class shares by largest remainder, rows by a fixed shuffle."""
    counts = np.bincount(labels)
    quotas = counts * _SIZES["test"]
    shares, remainders = np.divmod(quotas, len(labels))
    rest = _SIZES["test"] - shares.sum()
    shares[np.argsort(-remainders, kind="stable")[:rest]] += 1
    # NumPy guarantees that the raw words of a bit generator never change.
    order = np.argsort(np.random.PCG64(_SPLIT_SEED).random_raw(len(labels)), kind="stable")
    chosen = [order[labels[order] == label][:share] for label, share in enumerate(shares)]
    return np.sort(np.concatenate(chosen))


@lru_cache(maxsize=2)
def _arrays(split: str) -> tuple[Array, Array]:
    table = _table()
    labels = table[:, -1].astype(np.int64)
    test = np.zeros(len(labels), bool)
    test[_test_rows(labels)] = True
    rows = test if split == "test" else ~test
    grey = np.rint(table[rows, :-1] * (255 / 16)).astype(np.uint8)
    return grey.reshape(-1, 1, 8, 8), labels[rows]


@lru_cache(maxsize=2)
def _fingerprint(split: str) -> str:
    images, labels = _arrays(split)
    digest = hashlib.sha256(np.ascontiguousarray(images).tobytes())
    digest.update(labels.astype("<i8").tobytes())
    return digest.hexdigest()
