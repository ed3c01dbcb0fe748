"""Coresets outside a run: loaded from a store or an export, checked, and shown as pixels."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from toy_runs import Toy, flip

import bpcbench
from bpcbench.coresets.export import export_coreset
from bpcbench.coresets.reading import load_coreset, pixels
from bpcbench.data.splits import training_data
from bpcbench.errors import UserError
from bpcbench.planning.spec import Spec
from bpcbench.records import FINAL
from bpcbench.registry import discovery as plugins
from bpcbench.store import folder
from bpcbench.store.address import Address
from bpcbench.store.store import Store


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    """A store with the coresets of a loop in torch and of real images."""
    toy = Toy(tmp_path_factory.mktemp("coresets"))
    toy.write("{real: {plugin: toy-real}, learned: {plugin: toy-adam, steps: 6}}").run(jobs=0)
    return toy


@pytest.fixture
def copy(made: Toy, tmp_path: Path) -> Path:
    """A copy of that store, to be damaged."""
    return Path(shutil.copytree(made.out, tmp_path / "copy"))


@pytest.fixture(autouse=True)
def toys(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("BPCBENCH_PLUGINS", "bpcbench_toy")
    plugins.registry.cache_clear()
    yield
    plugins.registry.cache_clear()


def address(root: Path, plugin: str, member: str = FINAL) -> Address:
    store = Store.open(root, create=False)
    coresets = [a for a in store.addresses() if (a.kind, a.member) == ("coreset", member)]
    return next(a for a in coresets if Spec.from_json(store.meta(a)["stage"]["method"]).name == plugin)


def member(root: Path, plugin: str, name: str = FINAL) -> Path:
    return Store.open(root, create=False).path(address(root, plugin, name))


def real_pixels() -> np.ndarray:
    from bpcbench_toy import ToyData

    from bpcbench.running.seeding import derive

    data = training_data(ToyData(), Path("nowhere"), holdout=False)
    rows = bpcbench.per_class(data.labels, 2, derive("distil", 0))
    return data.train.images[rows] / 255


def test_load_from_a_store(made: Toy) -> None:
    coreset = bpcbench.load_coreset(member(made.out, "toy-adam"))
    assert coreset.images.shape == (4, 1, 4, 4)
    assert coreset.images.dtype == np.float32
    assert coreset.targets.tolist() == coreset.class_ids.tolist() == [0, 0, 1, 1]
    assert coreset.recipe.scalars.keys() == {"best"}
    assert coreset.recipe.preprocessing is not None
    assert coreset.recipe.preprocessing.plugin.plugin == "standardize"
    assert Address.parse(coreset.recipe.preprocessing.address).kind == "prerequisite"
    first = load_coreset(member(made.out, "toy-adam", "step-0"))
    np.testing.assert_array_equal(first.images, load_coreset(member(made.out, "toy-real")).images)
    assert not np.array_equal(first.images, coreset.images)


def test_export_stands_alone(copy: Path, tmp_path: Path) -> None:
    """Nothing of the store is needed to load an export, nor to see its pixels."""
    target = tmp_path / "exports" / "mine"
    where = address(copy, "toy-adam")
    export_coreset(Store.open(copy).read(where), target)
    original = load_coreset(member(copy, "toy-adam"))
    wanted = pixels(member(copy, "toy-adam"))
    shutil.rmtree(copy)
    found = load_coreset(target)
    for name in ("images", "targets", "class_ids"):
        np.testing.assert_array_equal(getattr(found, name), getattr(original, name))
    assert found.recipe == original.recipe
    np.testing.assert_array_equal(pixels(target), wanted)
    assert [path.name for path in target.parent.iterdir()] == ["mine"]


def test_an_export_overwrites_nothing(made: Toy, tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(UserError, match="exists already"):
        export_coreset(Store.open(made.out).read(address(made.out, "toy-real")), tmp_path / "taken")


def test_an_export_that_fails_leaves_nothing(made: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = address(made.out, "toy-real")
    real = folder.write_durably

    def full(path: Path, content: bytes) -> None:
        real(path, content[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folder, "write_durably", full)
    with pytest.raises(OSError, match="No space left"):
        export_coreset(Store.open(made.out).read(where), tmp_path / "mine")
    assert list(tmp_path.iterdir()) == []


def test_pixels_invert_the_preprocessing(made: Toy, tmp_path: Path) -> None:
    np.testing.assert_allclose(pixels(member(made.out, "toy-real")), real_pixels(), atol=1e-6)
    export_coreset(Store.open(made.out).read(address(made.out, "toy-real")), tmp_path / "mine")
    np.testing.assert_allclose(pixels(tmp_path / "mine"), real_pixels(), atol=1e-6)
    learned = pixels(member(made.out, "toy-adam"))
    assert learned.min() >= 0
    assert learned.max() <= 1


@pytest.mark.parametrize("exported", [False, True])
@pytest.mark.parametrize(
    ("file", "words"), [("arrays.safetensors", "does not match its checksum"), ("stage.json", "stage.json")]
)
def test_damage_is_refused(copy: Path, tmp_path: Path, exported: bool, file: str, words: str) -> None:
    path = member(copy, "toy-real")
    if exported:
        export_coreset(Store.open(copy).read(address(copy, "toy-real")), tmp_path / "mine")
        path = tmp_path / "mine"
    flip(path / file, 200)
    for read in (load_coreset, pixels):
        with pytest.raises(UserError, match=words):
            read(path)
    (path / file).unlink()
    with pytest.raises(UserError, match=r"cannot be read|there is no stage\.json"):
        load_coreset(path)


def test_what_is_no_coreset(made: Toy, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no coreset"):
        load_coreset(tmp_path / "nowhere")
    (path, *_) = (made.out / "stages" / "score").glob("*/final")
    with pytest.raises(UserError, match="holds a score, not a coreset"):
        load_coreset(path)


def test_pixels_need_the_preprocessing(copy: Path, tmp_path: Path) -> None:
    """A member that was copied out by hand loads, but says what is missing for its pixels."""
    alone = Path(shutil.copytree(member(copy, "toy-real"), tmp_path / "alone"))
    assert len(load_coreset(alone)) == 4
    with pytest.raises(UserError, match="lies in no store and was not exported"):
        pixels(alone)
