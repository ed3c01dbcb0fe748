"""`bpcbench import`: layouts, guesses and questions, spaces, doubts, round trips, and the method `file` in a suite."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import bpcbench
from bpcbench.cli import main
from bpcbench.coresets.importing.guesses import Unclear, channels_first, labels_of, value_range
from bpcbench.coresets.reading import describe_coreset, load_coreset, load_transform, pixels
from bpcbench.data.classes import of_classes
from bpcbench.data.splits import training_data
from bpcbench.errors import UserError
from bpcbench.records import Data, Ref
from bpcbench.registry.discovery import registry
from bpcbench.registry.options import build
from bpcbench.store import folder
from bpcbench.store.store import STAGE
from bpcbench_torch.torchvision_compat import import_torchvision


@pytest.fixture(scope="module")
def digits() -> Data:
    return training_data(build(registry(), "dataset", Ref("digits")), Path("nowhere"), holdout=False)  # type: ignore[arg-type]


@pytest.fixture
def real(digits: Data) -> tuple[np.ndarray, np.ndarray]:
    """Two real images per class, in the order of the classes, as pixels from 0 to 1."""
    rows = np.concatenate([np.flatnonzero(digits.labels == c)[:2] for c in range(10)])
    return (digits.train.images[rows] / 255).astype(np.float32), digits.labels[rows]


def bring(*words: object) -> int:
    return main(["import", *map(str, words)])


def test_pixels_are_recognised_and_said(real: Any, tmp_path: Path, capsys: Any) -> None:
    images, labels = real
    np.savez(tmp_path / "theirs.npz", images=images, labels=labels)
    assert bring(tmp_path / "theirs.npz", "--as", "theirs", "--data-set", "digits", "--out", tmp_path / "out") == 0
    shown = capsys.readouterr()
    assert "data range: 0-1 (guessed" in shown.out
    assert "axes: nchw (guessed" in shown.out
    assert "channel 0: 0 to" in shown.out
    assert "linear probe" in shown.out
    assert "warning" not in shown.err
    target = tmp_path / "out" / "imported" / "theirs"
    assert (target / "preview.png").read_bytes().startswith(b"\x89PNG")
    coreset = load_coreset(target)
    np.testing.assert_array_equal(coreset.images, images)
    np.testing.assert_array_equal(coreset.targets, labels)
    np.testing.assert_array_equal(pixels(target), images)
    stored = describe_coreset(target)
    assert (stored.ipc, stored.classes, stored.shape, stored.convention) == (2, 10, (1, 8, 8), "class")
    assert f"digest: {stored.digest}" in shown.out
    assert bring(tmp_path / "theirs.npz", "--as", "theirs", "--out", tmp_path / "out") == 2
    assert "exists already" in capsys.readouterr().err


def test_what_cannot_be_guessed_is_asked_for_in_one_message(real: Any, tmp_path: Path, capsys: Any) -> None:
    np.savez(tmp_path / "a.npz", images=real[0] * 4 - 2, other=real[0])
    assert bring(tmp_path / "a.npz", "--as", "a", "--images", "images", "--out", tmp_path / "out") == 2
    error = capsys.readouterr().err
    assert "--data-range: values from -2" in error
    assert "--classes: there are no labels" in error
    assert "Traceback" not in error
    assert not (tmp_path / "out").exists()
    np.savez(tmp_path / "b.npz", one=real[0], two=real[0])
    assert bring(tmp_path / "b.npz", "--as", "b", "--classes", 10, "--out", tmp_path / "out") == 2
    assert "--images: several arrays may be the images" in capsys.readouterr().err
    command = (tmp_path / "a.npz", "--as", "a", "--images", "images", "--classes", 10, "--out", tmp_path / "out")
    assert bring(*command, "--preprocessing", "{plugin: zca, grey: true}") == 2
    assert "--data-set: zca is fitted to training data" in capsys.readouterr().err
    assert bring(*command, "--mean", "0.5", "--std", "0.25") == 0
    np.testing.assert_allclose(pixels(tmp_path / "out/imported/a"), real[0], atol=1e-6)
    for wrong in (["--layout", "rcgi"], ["--preprocessing", "{plugin: zcaa}"], ["--preprocessing", "{{"]):
        assert bring(tmp_path / "a.npz", "--as", "b", "--images", "images", "--classes", 10, *wrong) == 2
    assert bring(tmp_path / "a.npz", "--as", "../b") == 2
    assert "Traceback" not in capsys.readouterr().err


def test_zca_space_is_mapped_back(real: Any, digits: Data, tmp_path: Path) -> None:
    """Images in a whitened space of another recipe come out as the pixels they were made of."""
    plugin: Any = build(registry(), "preprocessing", Ref("zca", {"grey": True, "centred": False}))
    arrays = plugin.fit(digits, None)
    np.savez(tmp_path / "a.npz", images=plugin.apply_float(real[0], arrays), labels=real[1])
    recipe = "{plugin: zca, grey: true, centred: false}"
    assert (
        bring(
            tmp_path / "a.npz", "--as", "a", "--preprocessing", recipe, "--data-set", "digits", "--to", tmp_path / "b"
        )
        == 0
    )
    np.testing.assert_allclose(pixels(tmp_path / "b"), real[0], atol=1e-4)


@pytest.mark.parametrize("name", ["standardize", "zca", "constants"])
def test_float_pixels_map_like_bytes_and_back(name: str, digits: Data) -> None:
    options = {"zca": {"grey": True}, "constants": {"mean": [0.3], "std": [0.2]}}.get(name, {})
    plugin: Any = build(registry(), "preprocessing", Ref(name, options))
    arrays = plugin.fit(digits, None)
    some = digits.train.images[:20]
    mapped = plugin.apply_float(some / 255.0, arrays)
    assert mapped.dtype == np.float32
    np.testing.assert_allclose(mapped, plugin.apply(some, arrays), atol=1e-4)
    wild = np.random.default_rng(0).normal(size=some.shape) * 3
    np.testing.assert_allclose(plugin.invert(plugin.apply_float(wild, arrays), arrays), wild, atol=1e-3)


def test_wrong_guesses_show(real: Any, tmp_path: Path, capsys: Any) -> None:
    """A wrong range shows in the channels beside training data, shuffled labels in the probe."""
    images, labels = real
    np.savez(tmp_path / "a.npz", images=images * 255, labels=labels)
    command = (tmp_path / "a.npz", "--as", "a", "--data-set", "digits")
    assert bring(*command, "--data-range", "0-1", "--to", tmp_path / "b") == 0
    assert "the data range or the preprocessing may be wrong" in capsys.readouterr().err
    assert bring(*command, "--to", tmp_path / "c") == 0
    shown = capsys.readouterr()
    assert "0-255 (guessed" in shown.out
    assert "warning" not in shown.err
    np.savez(tmp_path / "d.npz", images=images, labels=(labels + 1) % 10)
    assert bring(tmp_path / "d.npz", "--as", "d", "--data-set", "digits", "--to", tmp_path / "e") == 0
    assert "no better than chance" in capsys.readouterr().err
    np.savez(tmp_path / "f.npz", images=images[:, :, :7], labels=labels)
    assert bring(tmp_path / "f.npz", "--as", "f", "--data-set", "digits", "--to", tmp_path / "g") == 2
    assert "1x7x8" in capsys.readouterr().err


def test_values_that_are_not_finite_are_refused(real: Any, tmp_path: Path, capsys: Any) -> None:
    images = real[0].copy()
    images[3, 0, 0, 0] = np.nan
    np.savez(tmp_path / "a.npz", images=images, labels=real[1])
    assert bring(tmp_path / "a.npz", "--as", "a", "--to", tmp_path / "b") == 2
    assert "NaN" in capsys.readouterr().err
    assert not (tmp_path / "b").exists()


def test_guesses_of_axes_ranges_and_labels() -> None:
    with pytest.raises(Unclear, match="which axis"):
        channels_first(np.zeros((2, 3, 8, 3)), None, None)
    assert channels_first(np.zeros((2, 3, 8, 1)), None, (1, 3, 8))[0].shape == (2, 1, 3, 8)
    assert value_range(np.zeros((1, 1, 1, 1), np.uint8))[0].options["std"] == [1 / 255]
    one_hot = np.eye(3)[[0, 1, 2]]
    assert labels_of(one_hot, 3, None, None, None)[0].convention == "class"
    assert labels_of(one_hot * 0.7 + 0.1, 3, None, None, None)[0].convention == "probabilities"
    assert labels_of(one_hot - 1 / 3, 3, None, None, None)[0].convention == "centred"
    learned = np.eye(2)[[0, 0, 1, 0]] * 3 - 0.5
    found, words = labels_of(learned, 4, None, None, None)
    assert found.class_ids.tolist() == [0, 0, 1, 1]
    assert "in order (guessed" in words[-1]
    assert labels_of(None, 4, None, 2, None)[0].targets.tolist() == [0, 0, 1, 1]
    for raw in (np.array([0.5, 1, 2]), np.array([-1, 1, 2]), np.zeros((2, 3))):
        with pytest.raises(Unclear):
            labels_of(raw, 3, None, None, None)


@pytest.mark.parametrize("kind", ["safetensors", "npz"])
def test_round_trips_keep_every_bit(kind: str, real: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images = (real[0] * 5 - 2).astype(np.float32)
    soft = rng.normal(size=(20, 10)).astype(np.float32)
    np.savez(tmp_path / "a.npz", images=images, labels=soft, class_ids=real[1], weights=np.arange(20) / 7)
    assert bring(tmp_path / "a.npz", "--as", "a", "--mean", 0.4, "--std", 0.2, "--mirror", "--to", tmp_path / "a") == 0
    assert main(["export", str(tmp_path / "a"), str(tmp_path / "b"), "--format", kind]) == 0
    source = tmp_path / "b" / "coreset.npz" if kind == "npz" else tmp_path / "b"
    assert bring(source, "--as", "c", "--to", tmp_path / "c") == 0
    assert main(["export", str(tmp_path / "c"), str(tmp_path / "d")]) == 0
    first, last = load_coreset(tmp_path / "a"), load_coreset(tmp_path / "d")
    assert first.weights is not None
    np.testing.assert_array_equal(first.images, images)
    np.testing.assert_array_equal(first.targets, soft)
    for name, array in first.arrays().items():
        assert array.tobytes() == last.arrays()[name].tobytes()
    assert first.recipe == last.recipe
    one, two = describe_coreset(tmp_path / "a"), describe_coreset(tmp_path / "d")
    assert (one.digest, one.mirrored, one.weighted) == (two.digest, True, True)
    assert load_transform(tmp_path / "d").same_space(load_transform(tmp_path / "a"))


def test_pictures_of_an_export_come_back(real: Any, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=np.rint(real[0] * 255).astype(np.uint8), labels=real[1])
    assert bring(tmp_path / "a.npz", "--as", "a", "--to", tmp_path / "a") == 0
    assert main(["export", str(tmp_path / "a"), str(tmp_path / "b"), "--format", "png"]) == 0
    (tmp_path / "b" / "preview.png").unlink()
    assert bring(tmp_path / "b", "--as", "c", "--to", tmp_path / "c") == 0
    np.testing.assert_array_equal(load_coreset(tmp_path / "c").images, load_coreset(tmp_path / "a").images)


def test_the_card_loads_what_it_describes(real: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez(tmp_path / "a.npz", images=real[0], labels=real[1])
    assert bring(tmp_path / "a.npz", "--as", "digits-by-hand", "--to", tmp_path / "a") == 0
    for kind in ("safetensors", "npz"):
        assert main(["export", str(tmp_path / "a"), str(tmp_path / kind), "--format", kind]) == 0
        monkeypatch.chdir(tmp_path / kind)
        card = Path("README.md").read_text()
        assert card.startswith("# digits-by-hand")
        assert "20 images of 1 x 8 x 8, 10 classes, 2 images per class" in card
        names: dict[str, Any] = {}
        exec(card.split("```python\n")[1].split("```")[0], names)
        image, label = names["data"][3]
        assert isinstance(names["data"], torch.utils.data.Dataset)
        np.testing.assert_array_equal(image, real[0][3])
        assert label == real[1][3]
        assert "leaves out" not in card


def test_the_card_of_pictures_loads_them(real: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import_torchvision()
    shades = np.rint(real[0] * 255).astype(np.uint8)
    np.savez(tmp_path / "a.npz", images=shades, labels=real[1])
    assert bring(tmp_path / "a.npz", "--as", "a", "--to", tmp_path / "a") == 0
    assert main(["export", str(tmp_path / "a"), str(tmp_path / "png"), "--format", "png"]) == 0
    monkeypatch.chdir(tmp_path / "png")
    names: dict[str, Any] = {}
    exec(Path("README.md").read_text().split("```python\n")[1].split("```")[0], names)
    data = names["data"]
    assert [label for _, label in data] == real[1].tolist()
    assert data.classes == [str(number) for number in range(10)]
    for (picture, _), image in zip(data, shades, strict=True):
        np.testing.assert_array_equal(np.asarray(picture)[..., 0], image[0])


@pytest.mark.parametrize("kind", ["safetensors", "npz", "png"])
def test_the_card_says_what_its_line_leaves_out(kind: str, real: Any, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=real[0], labels=real[1], weights=np.arange(20) / 7)
    assert bring(tmp_path / "a.npz", "--as", "a", "--mirror", "--to", tmp_path / "a") == 0
    assert main(["export", str(tmp_path / "a"), str(tmp_path / "b"), "--format", kind]) == 0
    loading = (tmp_path / "b" / "README.md").read_text().partition("## Loading")[2]
    assert ("leaves out the array `weights`" in loading) == (kind != "png")
    assert ("weights are lost" in loading) == (kind == "png")
    assert "leaves out the mirrored copies" in loading


SUITE = """
protocol: 1
datasets: [digits]
ipc: [2, 3]
methods: {theirs: {plugin: file, path: PATH}}
preprocessing: {default: SPACE}
inferences: {network: {steps: 100, lr: 0.01}}
networks: {conv-nn: {width: 8}}
seeds: {evaluate: 2}
"""


@pytest.mark.parametrize("space", ["standardize", "{plugin: zca, grey: true}", "constants"])
def test_the_method_file_in_a_suite(space: str, real: Any, tmp_path: Path, capsys: Any) -> None:
    np.savez(tmp_path / "a.npz", images=real[0], labels=real[1])
    assert bring(tmp_path / "a.npz", "--as", "a", "--data-set", "digits", "--to", tmp_path / "a") == 0
    suite = tmp_path / "s.yaml"
    suite.write_text(SUITE.replace("PATH", str(tmp_path / "a")).replace("SPACE", space))
    session = bpcbench.Session(str(suite), out=tmp_path / "out", inline=True, track=False, quiet=True)
    plan = session.plan()
    assert {cell.skipped for cell in plan.cells if cell.at.ipc == 3} == {
        "images per class: 2 in the file, 3 in the suite"
    }
    assert session.run().exit_code == 0
    rows = [row for row in session.rows() if row.metric == "acc"]
    assert max(row.value for row in rows) > 0.4
    assert {row.notes for row in rows} == {("imported",)}
    store = session.store
    assert store is not None
    (address,) = [a for a in store.addresses() if a.kind == "coreset"]
    np.testing.assert_allclose(pixels(store.path(address)), real[0], atol=1e-4)
    assert main(["export", str(address), str(tmp_path / "back"), "--out", str(tmp_path / "out")]) == 0
    card = (tmp_path / "back" / "README.md").read_text()
    (line,) = [line for line in card.partition("## Scores")[2].splitlines() if "| acc % |" in line]
    place, _, value, seeds = (part.strip() for part in line.strip("|").split("|"))
    assert place == "digits / network / conv-nn"
    assert float(value) == pytest.approx(100 * np.mean([row.value for row in rows]), abs=0.06)
    assert int(seeds) == len(rows) == 2


def test_the_digest_decides_the_key(real: Any, tmp_path: Path) -> None:
    from bpcbench.planning.spec import Spec

    def made(name: str, images: np.ndarray) -> Path:
        np.savez(tmp_path / f"{name}.npz", images=images, labels=real[1])
        assert bring(tmp_path / f"{name}.npz", "--as", name, "--to", tmp_path / name) == 0
        return tmp_path / name

    def spec(path: Path, **options: Any) -> Spec:
        return Spec.of(build(registry(), "method", Ref("file", {"path": str(path), **options})))

    one, other = made("one", real[0]), made("other", real[0] * 0.5)
    copied = Path(shutil.copytree(one, tmp_path / "copied"))
    assert spec(one).digest == spec(copied).digest != spec(other).digest
    digest = describe_coreset(one).digest
    assert spec(one, digest=digest).digest == spec(one).digest
    with pytest.raises(UserError, match=f"digest {digest}, not"):
        spec(one, digest="0" * 32)
    with pytest.raises(UserError, match="holds no coreset"):
        spec(tmp_path / "nowhere")


def test_mirrored_copies_are_appended(real: Any, digits: Data, tmp_path: Path) -> None:
    from bpcbench.records import Inputs
    from bpcbench_baselines.file import File

    np.savez(tmp_path / "a.npz", images=real[0], labels=real[1])
    assert bring(tmp_path / "a.npz", "--as", "a", "--mirror", "--to", tmp_path / "a") == 0
    inputs = Inputs(load_transform(tmp_path / "a"))
    coreset = File(path=str(tmp_path / "a")).distil(digits, 2, inputs, None)  # type: ignore[arg-type]
    np.testing.assert_array_equal(coreset.images, np.concatenate([real[0], real[0][..., ::-1]]))
    assert coreset.targets.tolist() == [*real[1], *real[1]]
    assert len(File(path=str(tmp_path / "a"), mirror=False).distil(digits, 2, inputs, None)) == 20  # type: ignore[arg-type]
    assert File(path=str(tmp_path / "a")).skip(digits.facts, 2) is None
    part = File(path=str(tmp_path / "a")).distil(of_classes(digits, (3, 8)), 2, inputs, None)  # type: ignore[arg-type]
    np.testing.assert_array_equal(part.images, coreset.images[np.isin(coreset.class_ids, (3, 8))])
    assert set(part.class_ids.tolist()) == {3, 8}


def test_evaluate_without_a_suite(real: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez(tmp_path / "a.npz", images=real[0], labels=real[1])
    assert bring(tmp_path / "a.npz", "--as", "a", "--to", tmp_path / "a") == 0
    before = sorted(tmp_path.rglob("*"))
    options: dict[str, Any] = {
        "data": "digits",
        "inference": {"plugin": "network", "steps": 100, "lr": 0.01},
        "network": {"plugin": "conv-nn", "width": 8},
        "preprocessing": "standardize",
    }
    folder_metrics = bpcbench.evaluate(tmp_path / "a", **options)
    mine = bpcbench.Coreset(images=real[0], targets=real[1], classes=10)
    assert bpcbench.evaluate(mine, pixels=True, **options) == pytest.approx(folder_metrics, abs=1e-3)
    assert folder_metrics["acc"] > 0.4
    assert sorted(tmp_path.rglob("*")) == before
    with pytest.raises(UserError, match="of 10 classes"):
        bpcbench.evaluate(bpcbench.Coreset(images=real[0][:, :, :4], targets=real[1], classes=10), **options)
    with pytest.raises(UserError, match="unknown inference"):
        bpcbench.evaluate(mine, data="digits", inference="nettwork")


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("forged")
    images = np.random.default_rng(0).random((4, 1, 4, 4)).astype(np.float32)
    np.savez(root / "a.npz", images=images, labels=[0, 0, 1, 1])
    assert bring(root / "a.npz", "--as", "a", "--to", root / "a") == 0
    return root / "a"


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=3,
)
PLACES = [
    ("coreset",),
    ("coreset", "classes"),
    ("coreset", "convention"),
    ("coreset", "scalars"),
    ("stage",),
    ("stage", "transform"),
    ("stage", "transform", "$plugin"),
    ("stage", "transform", "$plugin", "options"),
    ("stage", "transform", "$plugin", "name"),
    ("stage", "transform", "address"),
    ("kind",),
    ("key",),
    ("native",),
    ("files",),
]


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.sampled_from(PLACES), value=values, remove=st.booleans())
def test_forged_descriptions_give_a_sentence(
    place: tuple[str, ...], value: Any, remove: bool, exported: Path, tmp_path: Path
) -> None:
    """A description with a valid checksum may say anything."""
    target = tmp_path / "forged"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(exported, target)
    meta = json.loads((target / STAGE).read_text())
    inner = meta
    for name in place[:-1]:
        inner = inner[name]
    if remove:
        inner.pop(place[-1], None)
    else:
        inner[place[-1]] = value
    meta["checksum"] = folder.checksum(meta)
    (target / STAGE).write_text(json.dumps(meta))
    for read in (load_coreset, load_transform, describe_coreset, pixels):
        with contextlib.suppress(bpcbench.BpcbenchError):
            read(target)


def test_forged_arrays_give_a_sentence(exported: Path, tmp_path: Path) -> None:
    good = dict(load_coreset(exported).arrays())
    meta = json.loads((exported / STAGE).read_text())
    description = {name: value for name, value in meta.items() if name not in ("files", "checksum")}
    wrong: list[dict[str, Any]] = [
        {"targets": np.array([0, 0, 1, 7])},
        {"targets": np.array([0.0, 0, 1, 1])},
        {"class_ids": np.array([0, -1, 1, 1])},
        {"images": np.full((4, 1, 4, 4), np.nan, np.float32)},
        {"images": np.zeros((4, 16), np.float32)},
        {"images": np.zeros((4, 1, 4, 4), np.float64)},
        {"weights": np.array([1, 1, 1, -1], np.float32)},
        {"weights": np.ones(3, np.float32)},
    ]
    for number, change in enumerate(wrong):
        folder.write(tmp_path / str(number), STAGE, description, {**good, **change}, {})
        with pytest.raises(UserError, match="does not hold a readable coreset"):
            load_coreset(tmp_path / str(number))
    for name in ("images", "targets", "class_ids"):
        folder.write(tmp_path / name, STAGE, description, {k: v for k, v in good.items() if k != name}, {})
        with pytest.raises(UserError, match="does not hold a readable coreset"):
            load_coreset(tmp_path / name)
