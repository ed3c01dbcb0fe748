"""`bpcbench data`, and that data which are not the official ones are used on request only, and marked everywhere."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import toys
import yaml
from file_server import Site, serving
from toys import TOYS, Dots

import bpcbench
from bpcbench import Download, Facts, MissingData, Session
from bpcbench.cli import main
from bpcbench.commands import suite as suite_commands
from bpcbench.records import Array
from bpcbench.registry.discovery import Registry
from bpcbench.testing import DatasetConformance

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Return a function that runs a command in this process: exit code, output, errors."""

    def run(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(list(words))
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def idx(array: Array) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape) + array.tobytes()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A data folder with an MNIST that nobody published, and a damaged Fashion-MNIST."""
    for folder in ("MNIST", "FashionMNIST"):
        raw = tmp_path / "data" / folder / "raw"
        raw.mkdir(parents=True)
        for prefix, count in (("train", 30), ("t10k", 20)):
            images = np.random.default_rng(count).integers(0, 256, (count, 28, 28), np.uint8)
            (raw / f"{prefix}-images-idx3-ubyte").write_bytes(idx(images))
            (raw / f"{prefix}-labels-idx1-ubyte").write_bytes(idx((np.arange(count) % 10).astype(np.uint8)))
    (raw / "train-labels-idx1-ubyte").write_bytes(b"<html>")
    return tmp_path / "data"


def test_the_list_says_what_is_there_and_where(root: Path, command: Command) -> None:
    code, out, _ = command("data", "list", "--json", "--data", str(root))
    assert code == 0
    found = {one["name"]: one for one in json.loads(out)}
    assert set(found) >= {"digits", "mnist", "fashion_mnist", "cifar10", "cifar100", "svhn", "tiny_imagenet"}
    assert set(found) >= {"imagewoof", "imagenet64", "folder"}
    assert all(one["licence"] not in ("", "unknown") for one in found.values() if one["name"] != "stripes")
    assert found["digits"]["status"] == "present"
    assert found["digits"]["bytes"] > 1000
    assert found["mnist"]["status"] == "not official"
    assert found["mnist"]["where"] == [str(root / "MNIST" / "raw")]
    assert found["mnist"]["bytes"] == sum(file.stat().st_size for file in (root / "MNIST" / "raw").iterdir())
    assert str(root / "MNIST" / "raw" / "train-images-idx3-ubyte") in found["mnist"]["says"]
    assert found["fashion_mnist"]["status"] == "not readable"
    assert "train-labels-idx1-ubyte" in found["fashion_mnist"]["says"]
    assert found["svhn"]["status"] == "missing"
    assert found["svhn"]["where"] == [str(root / "svhn" / f"{split}_32x32.mat") for split in ("train", "test")]
    assert not list(root.rglob("*.npy"))
    code, out, _ = command("data", "list", "--data", str(root))
    assert code == 0
    assert f"looked for in {root}" in out
    assert "`bpcbench data get svhn` fetches it" in out
    for one in found.values():
        assert one["licence"] in out
        assert one["says"] in out


def test_the_list_imports_no_framework(root: Path) -> None:
    code = (
        f"import sys\nfrom bpcbench.cli import main\nmain(['data', 'list', '--data', {str(root)!r}])\n"
        "print(sorted({'torch', 'torchvision', 'mlflow', 'sklearn', 'pandas', 'scipy'} & set(sys.modules)), "
        "file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


@dataclass(frozen=True)
class Parcel(Dots):
    """Somebody's data set, of a file and an archive."""

    name: ClassVar[str] = "parcel"
    licence: ClassVar[str] = "CC0"

    def facts(self, root: Path) -> Facts:
        for name in ("parcel/file.bin", "bundle/inner.txt"):
            if not (root / name).is_file():
                raise MissingData(f"data set parcel needs {name} in {root}")
        official = (root / "parcel/file.bin").read_bytes() == b"content"
        return Facts(shape=(1, 4, 4), classes=2, sizes={"train": 40, "test": 20}, official=official)

    def differs(self, root: Path) -> str:
        return f"{root / 'parcel/file.bin'} is another"

    def places(self, root: Path) -> list[Path]:
        return [root / "parcel", root / "bundle"]


def bundle() -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("bundle/inner.txt", "inner")
    return made.getvalue()


@pytest.fixture
def site(install: Callable[..., Registry], monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A server for the files of `parcel`, which is installed."""
    with serving() as made:
        made.files = {"/file.bin": b"content", "/bundle.zip": bundle()}
        sums = {name: hashlib.md5(content).hexdigest() for name, content in made.files.items()}
        wanted = (
            Download(f"{made.url}/file.bin", "parcel/file.bin", md5=sums["/file.bin"]),
            Download(f"{made.url}/bundle.zip", "bundle", unpack=True, md5=sums["/bundle.zip"]),
        )
        monkeypatch.setattr(Parcel, "downloads", wanted, raising=False)
        install(Parcel)
        yield made


def test_anybodys_data_set_can_be_fetched(site: Site, command: Command, tmp_path: Path) -> None:
    code, out, err = command("data", "get", "parcel", "--data", str(tmp_path))
    assert code == 0, err
    assert "licence: CC0" in out
    assert "parcel is present: 1x4x4, 2 classes, 40 train, 20 test" in out
    assert (tmp_path / "parcel" / "file.bin").read_bytes() == b"content"
    assert (tmp_path / "bundle" / "inner.txt").read_text() == "inner"
    site.asked.clear()
    assert command("data", "get", "parcel", "--data", str(tmp_path))[0] == 0
    assert not site.asked
    (tmp_path / "parcel" / "file.bin").unlink()
    (tmp_path / "bundle" / "inner.txt").unlink()
    code, _, err = command("data", "get", "parcel", "--data", str(tmp_path))
    assert code == 2
    assert "bundle exists already; move it away" in err


@pytest.mark.parametrize("fault", ["404", "checksum", "unreachable"])
def test_what_cannot_be_fetched_is_said_with_what_to_place_where(
    site: Site, command: Command, tmp_path: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if fault == "404":
        del site.files["/bundle.zip"]
    elif fault == "checksum":
        site.files["/bundle.zip"] += b"x"
    else:
        first, second = Parcel.downloads
        gone = Download("http://127.0.0.1:9/bundle.zip", "bundle", unpack=True, md5=second.md5)
        monkeypatch.setattr(Parcel, "downloads", (first, gone))
    code, _, err = command("data", "get", "parcel", "--data", str(tmp_path))
    assert code == 2
    (message,) = [line for line in err.splitlines() if line.startswith("bpcbench: ")]
    says = {"404": "HTTP status 404", "checksum": "is not the official file", "unreachable": "cannot be reached"}
    assert says[fault] in message
    assert f"unpack it as {tmp_path / 'bundle'}" in err
    assert "parcel/file.bin" not in err.partition("By hand")[2]
    assert "Traceback" not in err
    assert not (tmp_path / "bundle").exists()


def test_what_is_there_is_not_replaced(site: Site, command: Command, tmp_path: Path) -> None:
    assert command("data", "get", "parcel", "--data", str(tmp_path))[0] == 0
    (tmp_path / "parcel" / "file.bin").write_bytes(b"mine")
    code, _, err = command("data", "get", "parcel", "--data", str(tmp_path))
    assert code == 2
    assert "exists, but is not official" in err
    assert (tmp_path / "parcel" / "file.bin").read_bytes() == b"mine"


def test_data_sets_without_a_download_say_what_to_do(command: Command, tmp_path: Path) -> None:
    code, _, err = command("data", "get", "imagenet64", "--data", str(tmp_path))
    assert code == 2
    assert "has no public download" in err
    assert "https://image-net.org/download-images" in err
    code, _, err = command("data", "get", "cifar01", "--data", str(tmp_path))
    assert code == 2
    assert "did you mean 'cifar10'" in err
    assert command("data", "get", "digits", "--data", str(tmp_path))[0] == 0


def test_every_declared_download_is_of_one_file_or_folder_that_the_data_set_reads(registry: Registry) -> None:
    for name in registry.names("dataset"):
        cls: Any = registry.get("dataset", name).cls
        places = [str(path) for path in cls().places(Path("/root"))] if cls.downloads else []
        for one in cls.downloads:
            assert any(str(Path("/root") / one.path).startswith(place) for place in places), one


def test_real_archives_are_unpacked_to_what_is_read(
    site: Site, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The archive of CIFAR-100, in its layout: it comes, is unpacked, and is then what the data set reads."""
    import pickle

    from bpcbench_data.cifar import CIFAR100

    parts = {
        "train": {"fine_labels": list(range(100)), "data": np.zeros((100, 3072), np.uint8)},
        "test": {"fine_labels": [0, 1], "data": np.zeros((2, 3072), np.uint8)},
        "meta": {"fine_label_names": [str(number) for number in range(100)]},
    }
    packed = io.BytesIO()
    contents = {name: pickle.dumps(part, 3) for name, part in parts.items()}
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, content in contents.items():
            info = tarfile.TarInfo(f"cifar-100-python/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    site.files["/cifar.tar.gz"] = packed.getvalue()
    md5 = hashlib.md5(packed.getvalue()).hexdigest()
    monkeypatch.setattr(
        CIFAR100, "downloads", (Download(f"{site.url}/cifar.tar.gz", "cifar-100-python", unpack=True, md5=md5),)
    )
    code, _, err = command("data", "get", "cifar100", "--data", str(tmp_path))
    assert code == 2
    assert "was downloaded, but is not official: the MD5 checksum of" in err
    monkeypatch.setattr(
        CIFAR100, "sums", {name: hashlib.md5(content).hexdigest() for name, content in contents.items()}
    )
    assert command("data", "get", "cifar100", "--data", str(tmp_path))[0] == 0
    assert len(CIFAR100().load(tmp_path, "train")) == 100


def test_the_data_set_of_the_documentation_works(
    install: Callable[..., Registry], command: Command, tmp_path: Path
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "datasets.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.S)
    made: dict[str, Any] = {"__name__": "waves"}
    exec(code, made)
    install(made["Waves"])
    assert "data set waves needs train.npz" in command("data", "list", "--data", str(tmp_path))[1]
    (tmp_path / "waves").mkdir()
    for split in ("train", "test"):
        images = np.random.default_rng(0).integers(0, 256, (6, 1, 8, 8), np.uint8)
        np.savez(tmp_path / "waves" / f"{split}.npz", images=images, labels=np.arange(6) % 2)
    test: Any = DatasetConformance()
    test.plugin, test.root = made["Waves"](), tmp_path
    test.test_splits()
    test.test_every_class_in_train()
    code, out, _ = command("data", "list", "--json", "--data", str(tmp_path))
    (found,) = [one for one in json.loads(out) if one["name"] == "waves"]
    assert (found["status"], found["licence"]) == ("not official", "CC0")
    assert str(tmp_path / "waves" / "train.npz") in found["says"]


# Data that are not the official ones


@dataclass(frozen=True)
class Part(Dots):
    """Dots of which the official number is not there."""

    name: ClassVar[str] = "part"

    def facts(self, root: Path) -> Facts:
        return Facts(shape=(1, 4, 4), classes=2, sizes={"train": 40, "test": 20}, official=False)

    def differs(self, root: Path) -> str:
        return f"{root}/part.bin is short"


@dataclass(frozen=True)
class Abroad(toys.Elsewhere):
    """Asks for a split of `part`."""

    name: ClassVar[str] = "abroad"

    def splits(self, facts: Any) -> list[bpcbench.SplitRef]:
        return [bpcbench.SplitRef(), bpcbench.SplitRef("test", bpcbench.Ref("part"))]


@pytest.fixture
def suite(
    install: Callable[..., Registry], write_suite: Callable[..., str], tmp_path: Path
) -> Callable[..., list[str]]:
    """Return a function that writes the toy suite and returns the words that follow a command."""

    def write(**keys: Any) -> list[str]:
        install(toys, Part, Abroad)
        small = {"ipc": [1], "seeds": {"distil": 1, "evaluate": 1}, "metrics": ["right"]}
        file = write_suite(yaml.safe_dump(yaml.safe_load(TOYS) | small | keys))
        return [file, "--out", str(tmp_path / "store"), "--data", str(tmp_path)]

    return write


OWN, OTHER = {"datasets": ["part"]}, {"evaluators": ["right", "abroad"]}


@pytest.mark.parametrize(
    ("words", "keys"),
    [
        (["run", "--in-process", "--no-mlflow"], OWN),
        (["run", "--in-process", "--no-mlflow"], OTHER),
        (["plan"], OWN),
        (["plan", "--skip-missing"], OTHER),
        (["tune"], OWN),  # while tuning no other test split is predicted
    ],
)
def test_every_command_that_plans_refuses_them(
    suite: Callable[..., list[str]], command: Command, tmp_path: Path, words: list[str], keys: dict[str, Any]
) -> None:
    tuned = {"tune": {"objective": "right", "trials": 2, "space": {"pick": {"rate": [0.1, 0.2]}}}}
    code, _, err = command(words[0], *suite(**keys, **tuned if words == ["tune"] else {}), *words[1:])
    assert code == 2
    assert "data set part is not the official one" in err
    assert f"{tmp_path}/part.bin is short" in err
    assert "--unverified" in err
    assert not (tmp_path / "store").exists()


def test_with_the_flag_they_are_used_and_marked_in_every_table(
    suite: Callable[..., list[str]], command: Command, tmp_path: Path
) -> None:
    words = suite(datasets=["part", "dots"])
    code, out, err = command("run", *words, "--unverified", "--in-process", "--no-mlflow", "--quiet")
    assert code == 0, err
    assert "Marked subset: part." in out
    stored = words[:3]  # a report needs the store only
    for form in ("text", "md", "latex", "json"):
        code, out, _ = command("report", *stored, "--format", form)
        assert code == 0
        assert "Marked subset: part." in out
    _, out, _ = command("report", *stored, "--format", "csv")
    assert {row["dataset"]: row["notes"] for row in csv.DictReader(io.StringIO(out))} == {
        "part": "subset",
        "dots": "toy",
    }
    frame = bpcbench.results(words[0], out=tmp_path / "store")
    assert set(frame.notes[frame.dataset == "part"]) == {"subset"}


def test_another_data_set_of_an_evaluator_is_marked_by_name(suite: Callable[..., list[str]], command: Command) -> None:
    words = suite(evaluators=["right", "abroad"])
    code, out, err = command("run", *words, "--unverified", "--in-process", "--no-mlflow", "--quiet")
    assert code == 0, err
    assert "part: subset" in out


def test_tuning_takes_the_flag_and_says_so(
    suite: Callable[..., list[str]], command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suite_commands, "Session", partial(Session, inline=True))
    space = {"objective": "right", "trials": 2, "space": {"pick": {"rate": [0.1, 0.2]}}}
    code, out, err = command("tune", *suite(datasets=["part"], tune=space), "--unverified", "--quiet")
    assert code == 0, err
    assert "--unverified" in out.splitlines()[0]


def test_a_real_data_set_with_a_wrong_file_is_refused_by_name(root: Path, command: Command, tmp_path: Path) -> None:
    words = ["run", "quickstart", "datasets=[mnist]", "--out", str(tmp_path / "store"), "--data", str(root)]
    code, _, err = command(*words)
    assert code == 2
    assert "data set mnist is not the official one: the MD5 checksum of " in err
    assert str(root / "MNIST" / "raw" / "train-images-idx3-ubyte") in err
    assert not list(root.rglob("*.npy"))
    assert command("plan", *words[1:], "--unverified")[0] == 0
