"""The digits data set: scikit-learn's images, exactly, under a frozen stratified split."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bpcbench.errors import MissingData
from bpcbench.records import Array
from bpcbench_data.digits import Digits

ROOT = Path("nowhere")
FROZEN = {
    "train": "b8508233613190e17ba462327a99d679fe6a9d0a393bd6772994d47c14892e2f",
    "test": "339b26701520ff23f1ca4cff3a4be24ceab609209142c9dda0623a8c4dcce2ad",
}
PLUGIN_MODULES = [
    *(f"bpcbench_data.{name}" for name in ("digits", "plugin")),
    *(f"bpcbench_torch.{name}" for name in ("networks", "preprocessing", "inferences", "plugin")),
    *(f"bpcbench_baselines.{name}" for name in ("selection", "random_choice", "herding", "kmeans", "whole", "plugin")),
]


def labels(split: str) -> Array:
    loaded = Digits().load(ROOT, split).labels
    assert loaded is not None
    return loaded


def test_facts_match_what_is_loaded() -> None:
    facts = Digits().facts(ROOT)
    for split, size in facts.sizes.items():
        loaded = Digits().load(ROOT, split)
        assert loaded.images.shape == (size, *facts.shape)
        assert loaded.images.dtype == np.uint8
        assert labels(split).dtype == np.int64
        assert set(labels(split).tolist()) == set(range(facts.classes))


def test_the_two_splits_are_scikit_learns_digits_scaled_to_bytes() -> None:
    from sklearn.datasets import load_digits

    raw = load_digits()
    expected = sorted(
        (tuple(round(value * 255 / 16) for value in row), int(label))
        for row, label in zip(raw.data.tolist(), raw.target, strict=True)
    )
    got = sorted(
        (tuple(image.ravel().tolist()), int(label))
        for split in ("train", "test")
        for image, label in zip(Digits().load(ROOT, split).images, labels(split), strict=True)
    )
    assert got == expected


def test_the_split_is_stratified() -> None:
    train, test = (np.bincount(labels(split)) for split in ("train", "test"))
    shares = (train + test) * 360 / 1797
    assert np.abs(test - shares).max() < 1
    assert (train.sum(), test.sum()) == (1437, 360)


@pytest.mark.parametrize("split", FROZEN)
def test_the_split_is_frozen(split: str) -> None:
    assert Digits().fingerprint(ROOT, split) == FROZEN[split]


def test_a_caller_cannot_change_what_the_next_one_gets() -> None:
    Digits().load(ROOT, "test").images[:] = 0
    assert Digits().load(ROOT, "test").images.any()


def test_an_unknown_split_is_refused_with_a_suggestion() -> None:
    with pytest.raises(ValueError, match="did you mean 'train'"):
        Digits().load(ROOT, "trian")


def test_without_scikit_learn_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingData, match="pip install scikit-learn"):
        Digits().facts(ROOT)


def test_importing_plugins_and_loading_digits_imports_neither_torch_nor_scikit_learn() -> None:
    code = f"""
import importlib, sys
for name in {PLUGIN_MODULES!r}:
    importlib.import_module(name)
    bad = {{"torch", "sklearn", "torchvision"}} & set(sys.modules)
    assert not bad, (name, bad)
from bpcbench_data.digits import Digits
Digits().facts(None), Digits().fingerprint(None, "train"), Digits().load(None, "test")
assert not {{"torch", "sklearn"}} & set(sys.modules), "digits"
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
