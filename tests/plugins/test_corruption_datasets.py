"""Generated splits: known without being made, made once, and predicted in the space of the coreset."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import toys
import yaml

import bpcbench
from bpcbench import Session, metrics, option
from bpcbench.data.splits import load_split, training_data
from bpcbench.errors import UserError
from bpcbench.planning.stages import PredictStage
from bpcbench.records import Facts, Split
from bpcbench.registry.discovery import Registry
from bpcbench.running.predictions import read_predictions
from bpcbench_data.corrupted import SPLITS, Corrupted
from bpcbench_data.corruptions import corrupted
from bpcbench_data.digits import Digits
from bpcbench_torch.zca import ZCA


@dataclass(frozen=True)
class Watched(bpcbench.Dataset):
    """Colourful noise; every time it is loaded, a line is added to a file."""

    name: ClassVar[str] = "watched"
    channels: int = option(3, "of an image")
    content: int = option(0, "another test split")

    def facts(self, root: Path) -> Facts:
        sizes = {"train": 6, "test": 30}
        return Facts(shape=(self.channels, 12, 10), classes=3, sizes=sizes, class_names=("a", "b", "c"), notes=("toy",))

    def fingerprint(self, root: Path, split: str) -> str:
        return f"{split} {self.channels} {self.content}"

    def load(self, root: Path, split: str) -> Split:
        with (root / "loads").open("a") as stream:
            stream.write(f"{split}\n")
        shape = (30, self.channels, 12, 10)
        images = np.random.default_rng(self.content).integers(0, 256, shape, dtype=np.uint8)
        return Split(images, np.arange(30) % 3)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def loads(root: Path) -> int:
    return len((root / "loads").read_text().splitlines()) if (root / "loads").exists() else 0


def test_facts_are_those_of_the_base_and_say_that_it_is_generated(tmp_path):
    facts = Corrupted(Watched()).facts(tmp_path)
    assert facts.shape == (3, 12, 10)
    assert facts.class_names == ("a", "b", "c")
    assert facts.notes == ("toy", "generated")
    assert len(facts.sizes) == 35
    assert set(facts.sizes.values()) == {30}
    assert "train" not in facts.sizes
    assert loads(tmp_path) == 0


def test_a_fingerprint_needs_no_image_and_names_all_that_matters(tmp_path):
    found = {Corrupted(Watched()).fingerprint(tmp_path, split) for split in SPLITS}
    others = {
        data.fingerprint(tmp_path, "snow-1")
        for data in (Corrupted(Watched(), 1), Corrupted(Watched(content=1)), Corrupted(Watched()))
    }
    assert len(found) == 35
    assert len(others) == 3
    assert len(others & found) == 1
    assert loads(tmp_path) == 0
    assert not list(tmp_path.rglob("*.npy"))


@pytest.mark.parametrize("channels", [1, 3])
def test_images_are_generated_once_and_labels_stay(tmp_path, channels):
    data = Corrupted(Watched(channels=channels))
    clean = data.base.load(tmp_path, "test")
    for split in ("snow-3", "jpeg_compression-5"):
        before = loads(tmp_path)
        first, again = load_split(data, tmp_path, split), load_split(data, tmp_path, split)
        assert loads(tmp_path) == before + 1
        kind, _, severity = split.rpartition("-")
        wanted = np.concatenate(list(corrupted(clean.images, kind, int(severity), 0)))
        np.testing.assert_array_equal(first.images, wanted)
        np.testing.assert_array_equal(again.images, wanted)
        np.testing.assert_array_equal(first.labels, clean.labels)
        assert not first.images.flags.writeable


def test_settings_do_not_evict_each_other(tmp_path):
    settings = [Corrupted(Watched(), seed) for seed in (0, 1)] + [Corrupted(Watched(content=1))]
    first = [np.array(data.load(tmp_path, "motion_blur-2").images) for data in settings]
    before = loads(tmp_path)
    for data, images in zip(settings, first, strict=True):
        np.testing.assert_array_equal(data.load(tmp_path, "motion_blur-2").images, images)
    assert loads(tmp_path) == before
    assert len({images.tobytes() for images in first}) == 3


@dataclass(frozen=True)
class Slow(Watched):
    """Takes its time, so that others come while it is at work."""

    name: ClassVar[str] = "slow"

    def load(self, root: Path, split: str) -> Split:
        time.sleep(0.3)
        return super().load(root, split)


def _sum(root: Path) -> int:
    return int(Corrupted(Slow()).load(root, "zoom_blur-4").images.sum())


def test_one_process_generates_while_others_wait(tmp_path):
    with multiprocessing.get_context("fork").Pool(4) as pool:
        assert len(set(pool.map(_sum, [tmp_path] * 8, chunksize=1))) == 1
    assert loads(tmp_path) == 1


def test_without_a_place_below_the_root_the_users_cache_is_used(tmp_path, cache):
    (tmp_path / ".bpcbench").write_text("a file where the folder should be")
    data = Corrupted(Watched())
    assert len(data.load(tmp_path, "snow-1")) == len(data.load(tmp_path, "snow-1")) == 30
    assert loads(tmp_path) == 1
    assert list(cache.rglob("images.npy"))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda root: Corrupted(Watched(channels=2)).facts(root), "images of 2 channels cannot be corrupted"),
        (lambda root: Corrupted(Corrupted(Watched())).facts(root), "corrupted has no test split to corrupt"),
        (lambda root: Corrupted(Watched(), -1), "seed must be at least 0"),
        (lambda root: Corrupted(Watched()).load(root, "snwo-1"), "unknown split 'snwo-1'; did you mean 'snow-1'"),
        (lambda root: Corrupted(Watched()).fingerprint(root, "test"), "unknown split 'test'"),
    ],
)
def test_what_cannot_be_done(tmp_path, make, message):
    with pytest.raises((ValueError, UserError), match=message):
        make(tmp_path)


@dataclass(frozen=True)
class Probe(bpcbench.Inference):
    """Says of an image what its first pixel is in network space, as the log-odds of two classes."""

    name: ClassVar[str] = "probe"
    resources: ClassVar[bpcbench.Resources] = bpcbench.Resources()

    def fit(self, coreset: Any, network: Any, inputs: Any, ctx: Any) -> bpcbench.Predictive:
        return Odds()


class Odds(bpcbench.Predictive):
    def log_probs(self, images: Any) -> Any:
        odds = np.stack([images[:, 0, 0, 0], np.zeros(len(images), np.float32)], 1)
        return odds - np.logaddexp.reduce(odds, axis=1, keepdims=True)


SUITE = """
name: shifted
description: corrupted dots
protocol: 1
datasets: [dots]
ipc: [2]
methods: [pick]
inferences: [probe]
networks: [line]
evaluators: {corruption: {types: [snow, pixelate], severities: [2, 5]}}
metrics: [clean/acc, snow/acc, pixelate-5/nll, corrupted/acc, corrupted/acc_drop]
"""


@pytest.mark.parametrize("preprocessing", ["scale", {"default": {"plugin": "zca", "grey": True}}])
def test_corrupted_images_go_through_the_preprocessing_of_the_coreset(
    install: Callable[..., Registry], write_suite: Callable[..., str], tmp_path: Path, preprocessing: Any
) -> None:
    install(toys, Probe)
    suite = write_suite(yaml.safe_dump(yaml.safe_load(SUITE) | {"preprocessing": preprocessing}))
    (tmp_path / "data").mkdir()
    where = {"out": tmp_path / "out", "data": str(tmp_path / "data")}
    session = Session(suite, **where)
    (stage,) = [planned.stage for planned in session.plan().stages if planned.stage.kind == "predict"]
    result = bpcbench.run(suite, **where, track=False, inline=True, quiet=True)
    assert result.exit_code == 0
    store = session.store
    assert store is not None
    assert len(stage.members) == 5
    dots = toys.Dots()
    train = training_data(dots, tmp_path / "data", holdout=False)
    plugin = toys.Scale() if preprocessing == "scale" else ZCA(grey=True)
    arrays = plugin.fit(train, None)
    by_split = {}
    for address in stage.addresses:
        name = address.member.partition("~")[0]
        found = read_predictions(store.read(address))
        by_split[name.partition("/")[2]] = found
        data, split = (dots, "test") if name == "dots/test" else (Corrupted(dots), name.partition("/")[2])
        images = data.load(tmp_path / "data", split).images
        pixel = plugin.apply(np.asarray(images), arrays)[:, 0, 0, 0]
        np.testing.assert_allclose(found.log_probs[:, 0] - found.log_probs[:, 1], pixel, rtol=1e-4, atol=1e-4)
    rows = {row.metric: row for row in session.rows()}
    snow = [metrics.accuracy(by_split[f"snow-{s}"].log_probs, by_split[f"snow-{s}"].labels) for s in (2, 5)]
    assert rows["snow/acc"].value == pytest.approx(np.mean(snow))
    assert {row.notes for row in rows.values()} == {("toy", "corrupted: toy", "corrupted: generated")}


def test_an_option_of_the_base_reaches_the_corrupted_images(
    install: Callable[..., Registry], write_suite: Callable[..., str], tmp_path: Path
) -> None:
    install(toys, Probe)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "noise").write_bytes(b"some")
    suite = write_suite(SUITE.replace("[dots]", "{dots: {file: noise}}") + "preprocessing: scale\n")
    plan = Session(suite, out=tmp_path / "out", data=str(tmp_path / "data")).plan()
    (stage,) = [planned.stage for planned in plan.stages if planned.stage.kind == "predict"]
    assert isinstance(stage, PredictStage)
    bases = [split.dataset.settings().get("base") for split in stage.splits]
    assert bases == [None, *[{"plugin": "dots", "file": "noise"}] * 4]
    assert not list((tmp_path / "data").rglob("*.npy"))


def test_digits_need_no_download(tmp_path):
    data = Corrupted(Digits())
    split = load_split(data, tmp_path, "gaussian_blur-5")
    assert split.images.shape == (360, 1, 8, 8)
    np.testing.assert_array_equal(split.labels, Digits().load(tmp_path, "test").labels)


@pytest.mark.skipif("BPCBENCH_DATA" not in os.environ, reason="real data sets are not here")
@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
def test_grey_data_sets_are_known_without_generation(name, registry, tmp_path):
    root = Path(os.environ["BPCBENCH_DATA"])
    folder = {"mnist": "MNIST", "fashion_mnist": "FashionMNIST"}[name]
    if not (root / folder).exists():
        pytest.skip(f"{folder} is not here")
    data = Corrupted(registry.get("dataset", name).cls())
    assert data.facts(root).sizes["snow-3"] == 10_000
    begin = time.process_time()
    assert len({data.fingerprint(root, split) for split in SPLITS}) == 35
    assert time.process_time() - begin < 2
