"""Tiny ImageNet, Imagewoof and one's own folders: small trees made here, and parts of the real ones where they are."""

from __future__ import annotations

import os
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from bpcbench.errors import MissingData, UserError
from bpcbench.testing import DatasetConformance
from bpcbench_data import imagewoof as woof
from bpcbench_data import pictures, tiny_imagenet
from bpcbench_data.image_folder import ImageFolder
from bpcbench_data.imagewoof import Imagewoof
from bpcbench_data.pictures import decode
from bpcbench_data.tiny_imagenet import TinyImageNet

WNIDS = ["n02", "n01", "n03"]


def picture(seed: int, size: tuple[int, int] = (64, 64), mode: str = "RGB") -> Image.Image:
    """Return a smooth picture, so that JPEG keeps most of it."""
    rng = np.random.default_rng(seed)
    return Image.fromarray(rng.integers(0, 256, (4, 4, 3), np.uint8)).resize(size, 2).convert(mode)


def save(path: Path, seed: int, **more: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    picture(seed, **more).save(path)


def clean(root: Path) -> bool:
    return not [*root.rglob("*.npy"), *root.rglob("tmp-*")]


# Tiny ImageNet


def place_tiny(root: Path) -> Path:
    folder = root / "tiny-imagenet-200"
    for number, wnid in enumerate(WNIDS):
        for row in range(4):
            mode = "L" if row == 2 else "RGB"
            save(folder / "train" / wnid / "images" / f"{wnid}_{row}.JPEG", 10 * number + row, mode=mode)
        (folder / "train" / wnid / f"{wnid}_boxes.txt").write_text("")
    lines = []
    for row in range(5):
        save(folder / "val" / "images" / f"val_{row}.JPEG", 100 + row)
        lines.append(f"val_{row}.JPEG\t{WNIDS[row % 3]}\t0\t0\t62\t62\n")
    (folder / "val" / "val_annotations.txt").write_text("".join(lines))
    (folder / "wnids.txt").write_text("\n".join(WNIDS) + "\n")
    (folder / "words.txt").write_text("n01\tfrog, small one\nn02\tcat\nn99\tnone\n")
    return folder


@pytest.fixture
def tiny(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    place_tiny(tmp_path)
    if request.cls:
        request.cls.root = tmp_path
    return tmp_path


@pytest.mark.usefixtures("tiny")
class TestTinyImageNet(DatasetConformance):
    plugin = TinyImageNet()


def test_tiny_imagenet_is_read_class_by_class_and_grey_becomes_colour(tiny: Path) -> None:
    facts = TinyImageNet().facts(tiny)
    assert facts.sizes == {"train": 12, "test": 5}
    assert facts.class_names == ("frog", "cat", "n03")
    train, test = TinyImageNet().load(tiny, "train"), TinyImageNet().load(tiny, "test")
    assert train.labels is not None
    assert test.labels is not None
    assert train.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert test.labels.tolist() == [1, 0, 2, 1, 0]
    folder = tiny / "tiny-imagenet-200"
    for row, wnid in ((0, "n01"), (6, "n02")):
        with Image.open(folder / "train" / wnid / "images" / f"{wnid}_{row % 4}.JPEG") as opened:
            expected = np.asarray(opened.convert("RGB")).transpose(2, 0, 1)
        np.testing.assert_array_equal(train.images[row], expected)
    assert (train.images[6][0] == train.images[6][1]).all()
    with Image.open(folder / "val" / "images" / "val_3.JPEG") as opened:
        np.testing.assert_array_equal(test.images[3], np.asarray(opened).transpose(2, 0, 1))


def test_tiny_imagenet_is_official_by_its_counts(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert TinyImageNet().facts(tiny).marks == ("subset",)
    assert "wnids.txt lists 3 classes, not 200" in TinyImageNet().differs(tiny)
    monkeypatch.setattr(tiny_imagenet, "_CLASSES", 3)
    monkeypatch.setattr(tiny_imagenet, "_TESTS", 5)
    assert "n01 does not have 500 pictures" in TinyImageNet().differs(tiny)
    monkeypatch.setattr(tiny_imagenet, "_PER_CLASS", 4)
    monkeypatch.setattr(TinyImageNet, "version", 2)
    assert TinyImageNet().differs(tiny) == ""
    assert TinyImageNet().facts(tiny).marks == ()
    (tiny / "tiny-imagenet-200" / "train" / "n02" / "images" / "n02_1.JPEG").unlink()
    assert "n02 does not have 4 pictures" in TinyImageNet().differs(tiny)
    save(tiny / "tiny-imagenet-200" / "train" / "n02" / "images" / "n02_1.JPEG", 1)
    (tiny / "tiny-imagenet-200" / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn01\n")
    assert "val has 1 pictures, not 5" in TinyImageNet().differs(tiny)


def test_tiny_imagenet_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(MissingData, match=r"needs tiny-imagenet-200/wnids\.txt"):
        TinyImageNet().facts(tmp_path)
    folder = place_tiny(tmp_path)
    (folder / "wnids.txt").write_text("n01\nn02\nn03\nn77\n")
    with pytest.raises(MissingData, match="train/n77/images"):
        TinyImageNet().facts(tmp_path)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda folder: cut(folder / "train/n02/images/n02_3.JPEG"), r"n02_3\.JPEG cannot be read"),
        (lambda folder: save(folder / "train/n02/images/n02_3.JPEG", 0, size=(64, 32)), "64x32 pixels, not 64x64"),
        (lambda folder: (folder / "wnids.txt").write_text("n01\n"), "at least two"),
        (lambda folder: (folder / "wnids.txt").write_text("n01\nn01\n"), "each once"),
        (lambda folder: (folder / "wnids.txt").write_bytes(b"\xff\xfe"), r"wnids\.txt cannot be read"),
        (lambda folder: (folder / "val/val_annotations.txt").write_text("val_0.JPEG\tn55\n"), "names no class"),
        (lambda folder: (folder / "val/val_annotations.txt").write_text("../../x.JPEG\tn01\n"), "names no class"),
        (lambda folder: (folder / "val/val_annotations.txt").write_text("val_0.JPEG\n"), "names no class"),
    ],
)
def test_wrong_files_of_tiny_imagenet_are_an_error(tiny: Path, change: Callable[[Path], None], says: str) -> None:
    change(tiny / "tiny-imagenet-200")
    with pytest.raises(UserError, match=says):
        TinyImageNet().load(tiny, "train")
    assert clean(tiny)


def cut(path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])


# Imagewoof


def place_woof(root: Path, name: str = "imagewoof2") -> Path:
    for number, wnid in enumerate(woof._BREEDS):
        for part, count in (("train", 3), ("val", 2)):
            for row in range(count):
                size = [(150, 200), (200, 150), (133, 133)][row]
                save(root / name / part / wnid / f"{row}.JPEG", 10 * number + row, size=size)
    return root / name


@pytest.fixture
def dogs(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    place_woof(tmp_path)
    if request.cls:
        request.cls.root = tmp_path
    return tmp_path


@pytest.mark.usefixtures("dogs")
class TestImagewoof(DatasetConformance):
    plugin = Imagewoof(size=32)


@pytest.mark.parametrize("size", [64, 133])
def test_imagewoof_is_resized_as_torchvision_does(dogs: Path, size: int) -> None:
    from bpcbench_torch.torchvision_compat import import_torchvision

    import_torchvision()
    from torchvision import datasets, transforms

    shape = transforms.Compose([transforms.Resize(size), transforms.CenterCrop(size)])
    for split, part in (("train", "train"), ("test", "val")):
        theirs = datasets.ImageFolder(dogs / "imagewoof2" / part, shape)
        ours = Imagewoof(size=size).load(dogs, split)
        assert ours.labels is not None
        assert ours.labels.tolist() == theirs.targets
        for row in range(4):
            np.testing.assert_array_equal(ours.images[row], np.asarray(theirs[row][0]).transpose(2, 0, 1))


def test_imagewoof_is_official_by_its_counts(dogs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = Imagewoof().facts(dogs)
    assert (facts.shape, facts.classes, facts.marks) == ((3, 128, 128), 10, ("subset",))
    assert facts.class_names[0] == "Shih-Tzu"
    assert f"{dogs / 'imagewoof2' / 'train'} has 30 pictures, not 9,025" in Imagewoof().differs(dogs)
    monkeypatch.setattr(woof, "_SIZES", {"train": 30, "test": 20})
    assert Imagewoof().facts(dogs).marks == ()
    (dogs / "imagewoof2" / "val" / "n02115641" / "0.JPEG").unlink()
    assert "val has 19 pictures, not 20" in Imagewoof().differs(dogs)


def test_imagewoof_of_two_sizes_do_not_evict_each_other(dogs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = Imagewoof(size=8), Imagewoof(size=16)
    prints = [small.fingerprint(dogs, "test"), large.fingerprint(dogs, "test")]
    monkeypatch.setattr(pictures, "decode", None)
    monkeypatch.setattr(woof, "decode", None)
    assert prints == [small.fingerprint(dogs, "test"), large.fingerprint(dogs, "test")]
    assert large.load(dogs, "test").images.shape == (20, 3, 16, 16)


def test_imagewoof_says_what_is_missing_or_wrong(tmp_path: Path) -> None:
    with pytest.raises(MissingData, match="imagewoof2-320"):
        Imagewoof().facts(tmp_path)
    folder = place_woof(tmp_path, "imagewoof")
    cut(folder / "train" / "n02086240" / "1.JPEG")
    with pytest.raises(UserError, match=r"1\.JPEG cannot be read"):
        Imagewoof().load(tmp_path, "train")
    assert clean(tmp_path)
    for path in (folder / "val" / "n02115641").iterdir():
        path.unlink()
    (folder / "val" / "n02115641").rmdir()
    with pytest.raises(MissingData, match="imagewoof/val/n02115641"):
        Imagewoof().facts(tmp_path)
    with pytest.raises(ValueError, match="size must lie"):
        Imagewoof(size=1)


# One's own folder


def place_folder(folder: Path, parts: tuple[str, ...] = ("",), classes: tuple[str, ...] = ("ant", "bee")) -> Path:
    modes = ["RGB", "L", "RGBA", "P", "1", "CMYK"]
    for start, part in enumerate(parts):
        for number, name in enumerate(classes):
            for row in range(10):
                mode = modes[row % 6]
                suffix = "jpg" if mode == "CMYK" else "png"
                size = (20 + row, 33 - row)
                save(folder / part / name / f"{row}.{suffix}", 100 * start + 20 * number + row, size=size, mode=mode)
    return folder


@pytest.fixture
def own(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    place_folder(tmp_path / "mine")
    if request.cls:
        request.cls.root = tmp_path
    return tmp_path


@pytest.mark.usefixtures("own")
class TestFolder(DatasetConformance):
    plugin = ImageFolder(path="mine", size=16)


@pytest.mark.parametrize("test", ["test", "val"])
@pytest.mark.parametrize("grey", [False, True])
def test_parts_of_a_folder_are_its_splits(tmp_path: Path, test: str, grey: bool) -> None:
    from bpcbench_torch.torchvision_compat import import_torchvision

    import_torchvision()
    from torchvision import datasets, transforms

    folder = place_folder(tmp_path / "mine", ("train", test))
    mine = ImageFolder(path=str(folder), size=16, grey=grey)
    facts = mine.facts(tmp_path)
    assert (facts.sizes, facts.class_names, facts.marks) == ({"train": 20, "test": 20}, ("ant", "bee"), ())
    shape = transforms.Compose([transforms.Resize(16), transforms.CenterCrop(16)])
    for split, part in (("train", "train"), ("test", test)):
        theirs = datasets.ImageFolder(folder / part, loader=lambda path: Image.open(path))
        ours = mine.load(tmp_path, split)
        assert ours.labels is not None
        assert ours.labels.tolist() == theirs.targets
        for image, (opened, _) in zip(ours.images, theirs, strict=True):
            expected = np.asarray(shape(opened.convert("L" if grey else "RGB")))
            np.testing.assert_array_equal(image, expected[None] if grey else expected.transpose(2, 0, 1))


def test_a_folder_without_a_test_part_is_split_by_the_seed(own: Path) -> None:
    def splits(**more: Any) -> tuple[set[bytes], set[bytes]]:
        mine = ImageFolder(path="mine", size=16, **more)
        found = []
        for split in ("train", "test"):
            loaded = mine.load(own, split)
            assert loaded.labels is not None
            assert len(set(np.bincount(loaded.labels))) == 1
            found.append({image.tobytes() for image in loaded.images})
        return found[0], found[1]

    train, test = splits()
    assert (len(train), len(test)) == (16, 4)
    assert not train & test
    assert splits(seed=1)[1] != test
    assert len(splits(test_fraction=0.5)[1]) == 10
    place_folder(own / "other", ("train",))
    assert ImageFolder(path="other").facts(own).sizes == {"train": 16, "test": 4}


def test_where_a_folder_lies_is_not_part_of_its_key(own: Path) -> None:
    from bpcbench.planning.spec import Spec

    place_folder(own / "copy")
    first, second = ImageFolder(path="mine", size=16), ImageFolder(path=str(own / "copy"), size=16)
    assert Spec.of(first).digest == Spec.of(second).digest
    assert Spec.of(first).settings()["path"] == "mine"
    assert first.fingerprint(own, "train") == second.fingerprint(own, "train")


def test_a_changed_picture_is_noticed(own: Path) -> None:
    mine = ImageFolder(path="mine", size=16)
    before = mine.fingerprint(own, "train")
    save(own / "mine" / "ant" / "new.png", 77)
    assert mine.facts(own).sizes == {"train": 17, "test": 4}
    (own / "mine" / "ant" / "new.png").unlink()
    assert mine.fingerprint(own, "train") == before
    (own / "mine" / "ant" / "notes.txt").write_text("no picture")
    (own / "mine" / ".hidden").mkdir()
    (own / "mine" / "ant" / "._0.png").write_text("of another system")
    (own / "mine" / "cover.png").write_bytes((own / "mine" / "ant" / "0.png").read_bytes())
    assert mine.fingerprint(own, "train") == before


def test_folders_may_be_nested_and_lead_back(own: Path) -> None:
    save(own / "mine" / "ant" / "more" / "deep.webp", 5)
    (own / "mine" / "ant" / "more" / "loop").symlink_to(own / "mine")
    assert ImageFolder(path="mine").facts(own).sizes == {"train": 17, "test": 4}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda folder: [path.unlink() for path in (folder / "bee").iterdir()], "bee has no pictures"),
        (lambda folder: (folder / "bee").rename(folder.parent / "gone"), "at least two folders"),
        (lambda folder: (folder / "bee").rename(folder / "test"), "but no folder train"),
        (lambda folder: cut(folder / "bee" / "3.png"), r"3\.png cannot be read"),
        (lambda folder: (folder / "bee" / "3.png").write_bytes(b""), r"3\.png cannot be read"),
        (lambda folder: Image.new("I;16", (9, 9)).save(folder / "bee" / "3.png"), "more than eight bits"),
        (lambda folder: place_folder(folder, ("train", "test"), ("ant", "bee", "cow")[::2]), None),
    ],
)
def test_wrong_folders_are_an_error_and_nothing_is_written(
    own: Path, change: Callable[[Path], None], says: str | None
) -> None:
    change(own / "mine")
    mine = ImageFolder(path="mine", test_fraction=0.1)
    if says is None:
        assert mine.facts(own).class_names == ("ant", "cow")
        place_folder(own / "mine", ("test",), ("dog",))
        says = "has the classes dog, which train does not have"
    with pytest.raises(UserError, match=says):
        [mine.load(own, split) for split in ("train", "test")]
    assert clean(own) or "cannot be read" in says or "bits" in says
    assert not list(own.rglob("tmp-*"))


def test_what_is_not_there_or_makes_no_sense_is_said(own: Path) -> None:
    with pytest.raises(MissingData, match="needs its option `path`"):
        ImageFolder().facts(own)
    with pytest.raises(MissingData, match="of its option `path` does not exist"):
        ImageFolder(path="nowhere").facts(own)
    for wrong in ({"size": 0}, {"test_fraction": 1.0}, {"test_fraction": 0.0}, {"seed": -1}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            ImageFolder(path="mine", **wrong)  # type: ignore[arg-type]
    for path in sorted((own / "mine" / "bee").iterdir())[1:]:
        path.unlink()
    assert ImageFolder(path="mine").facts(own).sizes["train"] == 9
    save(own / "mine" / "bee" / "second.png", 1)
    with pytest.raises(UserError, match="class bee has no picture left to train on"):
        ImageFolder(path="mine", test_fraction=0.9).facts(own)


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize(
    ("width", "height", "scaled", "left", "top"),
    [(50, 30, (26, 16), 5, 0), (31, 47, (16, 24), 0, 4), (16, 21, (16, 21), 0, 2), (9, 9, (16, 16), 0, 0)],
)
def test_the_shorter_side_is_scaled_and_the_centre_cut_out(
    tmp_path: Path, mode: Any, width: int, height: int, scaled: tuple[int, int], left: int, top: int
) -> None:
    made = picture(3, (width, height), mode)
    made.save(tmp_path / "a.png")
    resized = np.asarray(made.resize(scaled, Image.Resampling.BILINEAR))[top : top + 16, left : left + 16]
    expected = resized[None] if mode == "L" else resized.transpose(2, 0, 1)
    np.testing.assert_array_equal(decode(str(tmp_path / "a.png"), mode, 16), expected)


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "P", "1", "LA"])
def test_modes_are_converted_as_pillow_does(tmp_path: Path, mode: str) -> None:
    made = picture(1, (9, 7)).convert(mode)
    made.save(tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as opened:
        expected = np.asarray(opened.convert("RGB")).transpose(2, 0, 1)
    np.testing.assert_array_equal(decode(str(tmp_path / "a.png"), "RGB"), expected)
    assert decode(str(tmp_path / "a.png"), "L").shape == (1, 7, 9)


def real(dataset: Any) -> Path:
    root = Path(os.environ.get("BPCBENCH_DATA", "nowhere"))
    try:
        dataset.facts(root)
    except MissingData as error:
        pytest.skip(str(error))
    return root


@pytest.mark.parametrize("dataset", [TinyImageNet(), Imagewoof()], ids=lambda one: one.name)
def test_real_pictures_are_read_and_then_load_at_once(dataset: Any) -> None:
    root = real(dataset)
    facts = dataset.facts(root)
    for split, size in facts.sizes.items():
        loaded = dataset.load(root, split)
        assert loaded.images.shape == (size, *facts.shape)
        assert set(np.unique(loaded.labels)) == set(range(facts.classes))
    assert min(timeit.repeat(lambda: dataset.load(root, "train"), number=1)) < 0.5
