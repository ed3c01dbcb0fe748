"""Files and words of others, changed at random: a result or a message, never a traceback, in bounded time and memory.

A sound input of every kind is cut, flipped, doubled and spiced with what parsers trip over. BPCBENCH_FUZZ says how many
inputs are tried in all; hypothesis makes what fails as small as it can.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import pickle
import resource
import shutil
import tarfile
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toys
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save
from toys import TOYS

import bpcbench
from bpcbench import Session
from bpcbench.cli import main
from bpcbench.data.download import _unpack
from bpcbench.errors import BpcbenchError
from bpcbench_data import cifar10c, idx, pickles, svhn

pytestmark = [pytest.mark.campaign, pytest.mark.timeout(7200)]
FUZZ = int(os.environ.get("BPCBENCH_FUZZ", "600"))
SECONDS = 20.0
"""The longest that one input may take; almost all take milliseconds, but machines may be busy."""
MEGABYTES = 600
"""How much all inputs of a kind may add to the largest memory of this process."""
TOKENS = [
    b"\x00", b"\xff" * 8, b"\x7f\xff\xff\xff", b"\x80\x00\x00\x00", b"-1", b"1e999", b"nan", b"9" * 40, b"[" * 200,
    b"{" * 200, b"&a [*a]", b"<<: *x", b"!!python/object/apply:os.system [ls]", b"\x1b[2J", b"../../..", b"/dev/zero",
    "\u202e\u2028".encode(), b"%s%n", b"\r\n", b"null", b"cos\nsystem\n(S'ls'\ntR.",
]  # fmt: skip
EDITS = st.lists(
    st.tuples(
        st.sampled_from(["flip", "cut", "insert", "double", "remove", "overwrite"]),
        st.floats(0, 1),
        st.binary(max_size=6) | st.sampled_from(TOKENS),
    ),
    min_size=1,
    max_size=4,
)


def fuzzed(share: float) -> Callable[[Any], Any]:
    """Return the settings of a test that gets a share of all inputs."""
    return settings(
        max_examples=max(10, round(FUZZ * share)), deadline=None, suppress_health_check=list(HealthCheck), database=None
    )


def changed(content: bytes, edits: list[tuple[str, float, bytes]]) -> bytes:
    for how, where, what in edits:
        at = round(where * len(content))
        if how == "flip" and content:
            bit = 1 << (at % 8)
            at = min(at, len(content) - 1)
            content = content[:at] + bytes([content[at] ^ bit]) + content[at + 1 :]
        elif how == "cut":
            content = content[:at]
        elif how == "double":
            content = content[:at] + content[max(0, at - 50) :]
        elif how == "remove":
            content = content[:at] + content[at + 1 + len(what) :]
        else:
            content = content[:at] + what + content[at + (len(what) if how == "overwrite" else 0) :]
    return content


class Answers:
    """How inputs were answered, how long the slowest took, and how much memory all of them added."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.slowest = 0.0
        self._before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    @contextlib.contextmanager
    def timed(self) -> Iterator[None]:
        begin = time.monotonic()
        yield
        seconds = time.monotonic() - begin
        self.slowest = max(self.slowest, seconds)
        assert seconds < SECONDS

    def command(self, *words: str) -> str:
        """Run a command; whatever it prints has no traceback and no control characters."""
        out, err = io.StringIO(), io.StringIO()
        with self.timed(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code = main(list(words))
            except SystemExit as left:  # words that the parser does not take
                code = int(left.code or 0)
        text = out.getvalue() + err.getvalue()
        assert code in (0, 1, 2), text
        assert "Traceback" not in text
        assert "\x1b" not in text
        assert len(err.getvalue()) < 40_000
        self.counts[f"exit code {code}"] += 1
        return text

    def call(self, function: Callable[..., object], *arguments: object) -> None:
        """Call a reader, which returns something or raises one of our own errors."""
        with self.timed():
            try:
                function(*arguments)
                self.counts["read"] += 1
            except BpcbenchError:
                self.counts["refused"] += 1

    def megabytes(self) -> float:
        return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - self._before) / 1024


@pytest.fixture
def answers(request: pytest.FixtureRequest) -> Iterator[Answers]:
    made = Answers()
    yield made
    counted = ", ".join(f"{count} {what}" for what, count in sorted(made.counts.items()))
    print(
        f"\n{request.node.name}: {made.counts.total()} inputs ({counted}); slowest {made.slowest:.2f} s, "
        f"memory +{made.megabytes():.0f} MB"
    )
    assert made.megabytes() < MEGABYTES


@pytest.fixture
def here(install: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    install(toys)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    Path("toys.yaml").write_text(TOYS)
    return tmp_path


FULL = (
    TOYS
    + """
name: full
metrics: [right]
cases:
  - when: {ipc: [1]}
    set: {methods.pick.rate: 0.2}
exclude: [{method: pick, ipc: 2}]
threads: 1
timeout: 10
"""
)


@fuzzed(0.2)
@example(b"\xef\xbb\xbf" + TOYS.encode())
@given(st.binary(max_size=200) | EDITS.map(lambda edits: changed(FULL.encode(), edits)))
def _suites(answers: Answers, content: bytes) -> None:
    Path("fuzzed.yaml").write_bytes(content)
    answers.command("plan", "fuzzed.yaml", "--max-cells", "1000")


def test_suites(answers: Answers, here: Path) -> None:
    _suites(answers)


KEYS = ("name", "datasets", "ipc", "methods", "methods.pick", "methods.pick.rate", "seeds", "cases", "extends", "tune")
SOUND = ["1", "[1]", "2", "{}", "null", "pick", "[pick]", "0.5", "dots", "[dots, blobs]", "{distil: 1}"]
WORDS = st.one_of(
    st.tuples(st.sampled_from(KEYS), st.sampled_from(SOUND)).map("=".join),
    st.sampled_from(["seeds=1", "ipc=[1]", "methods.pick.rate=0.3", "methods=[pick]"]),
    st.text(max_size=40),
    st.tuples(st.sampled_from(KEYS), st.text(max_size=30)).map("=".join),
    st.tuples(st.sampled_from(KEYS), st.sampled_from(TOKENS)).map(lambda p: f"{p[0]}={p[1].decode('latin-1')}"),
    st.tuples(st.text(max_size=20), st.text(max_size=20)).map("=".join),
)


@fuzzed(0.15)
@given(st.lists(WORDS, min_size=1, max_size=3))
def _overrides(answers: Answers, words: list[str]) -> None:
    # Surrogates are what a shell passes for bytes that are no UTF-8.
    answers.command("plan", "toys.yaml", "--max-cells", "1000", *(w for w in words if w not in ("-h", "--help")))


def test_overrides(answers: Answers, here: Path) -> None:
    _overrides(answers)


@fuzzed(0.25)
@given(st.data(), EDITS)
def _stores(answers: Answers, data: Any, edits: list[tuple[str, float, bytes]]) -> None:
    shutil.rmtree("copy", ignore_errors=True)
    shutil.copytree("whole", "copy")
    names = sorted(str(path.relative_to("copy")) for path in Path("copy").rglob("*") if path.is_file())
    file = Path("copy") / data.draw(st.sampled_from(names))
    file.write_bytes(changed(file.read_bytes(), edits))
    words = data.draw(
        st.sampled_from(
            [
                ["report", "toys.yaml"],
                ["plan", "toys.yaml"],
                ["status"],
                ["store", "list"],
                ["store", "verify"],
                ["doctor"],
            ]
        )
    )
    answers.command(*words, "--out", "copy")
    if "coreset" in str(file):
        answers.call(bpcbench.load_coreset, file.parent)


def test_stores(answers: Answers, here: Path) -> None:
    """Manifests, run records, stage.json, arrays, caches, markers: any file of a store."""
    Session("toys.yaml", ["seeds=1", "ipc=[1]"], out="whole", inline=True, track=False, quiet=True).run()
    _stores(answers)


def _npz(**arrays: Any) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def _npy(array: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def _pt(**arrays: Any) -> bytes:
    import torch

    buffer = io.BytesIO()
    torch.save({name: torch.tensor(array) for name, array in arrays.items()}, buffer)
    return buffer.getvalue()


def _images() -> dict[str, Any]:
    chance = np.random.default_rng(0)
    return {"images": chance.random((4, 1, 6, 6), np.float32), "labels": np.arange(4) % 2}


IMPORTS = {
    "a.npz": _npz(**_images()),
    "a.npy": _npy(_images()["images"]),
    "a.safetensors": save(_images()),
    "a.pt": _pt(**_images()),
    "a.msgpack": b"\x82\xa6images\x94\xcb?\xf0\x00\x00\x00\x00\x00\x00\x01\x02\x03\xa6labels\x94\x00\x01\x00\x01",
}


@fuzzed(0.15)
@example("a.pt", [("flip", 0.0, b""), ("insert", 0.75, b"\x00")])
@given(st.sampled_from(sorted(IMPORTS)), EDITS)
def _imports(answers: Answers, name: str, edits: list[tuple[str, float, bytes]]) -> None:
    Path(name).write_bytes(changed(IMPORTS[name], edits))
    shutil.rmtree("made", ignore_errors=True)
    answers.command("import", name, "--as", "made", "--to", "made", "--classes", "2", "--data-range", "0-1")
    Path(name).unlink()


def test_imports(answers: Answers, here: Path) -> None:
    _imports(answers)


def _cifar() -> bytes:
    rows = np.random.default_rng(0).integers(0, 256, (5, 3072)).astype(np.uint8)
    return pickle.dumps({"data": rows, "labels": [0, 1, 2, 3, 4]}, 3)


def _mat() -> bytes:
    from scipy.io import savemat

    buffer = io.BytesIO()
    savemat(buffer, {"X": np.zeros((32, 32, 3, 4), np.uint8), "y": np.ones((4, 1), np.uint8)}, do_compression=True)
    return buffer.getvalue()


IDX = b"\x00\x00\x08\x03" + b"".join(n.to_bytes(4, "big") for n in (3, 5, 5)) + bytes(range(75))
READERS: dict[str, tuple[bytes, Callable[[Path], object]]] = {
    "train-images-idx3-ubyte": (IDX, idx.read),
    "train-images-idx3-ubyte.gz": (gzip.compress(IDX), idx.read),
    "shape-idx3-ubyte.gz": (gzip.compress(IDX), idx.shape),
    "data_batch_1": (_cifar(), pickles.read_pickle),
    "data_batch_2": (_cifar(), lambda path: pickles.count_rows(path, 3072)),
    "train_32x32.mat": (_mat(), svhn._read),
    "test_32x32.mat": (_mat(), svhn._count),
    "fog.npy": (_npy(np.zeros((50, 4, 4, 3), np.uint8)), lambda path: cifar10c._array(path, (4, 4, 3))),
}


@fuzzed(0.15)
@given(st.sampled_from(sorted(READERS)), EDITS)
def _data_files(answers: Answers, name: str, edits: list[tuple[str, float, bytes]]) -> None:
    content, reader = READERS[name]
    path = Path(name)
    path.write_bytes(changed(content, edits))
    answers.call(reader, path)


def test_data_files(answers: Answers, here: Path) -> None:
    for name, (content, reader) in READERS.items():
        Path(name).write_bytes(content)
        reader(Path(name))
    _data_files(answers)


def _archives() -> dict[str, bytes]:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("wanted/a.txt", "a" * 500)
        archive.writestr("wanted/b/c.txt", "c")
    tarred = io.BytesIO()
    with tarfile.open(fileobj=tarred, mode="w:gz") as tar:
        member = tarfile.TarInfo("wanted/a.txt")
        member.size = 500
        tar.addfile(member, io.BytesIO(b"a" * 500))
    return {"a.zip": packed.getvalue(), "a.tgz": tarred.getvalue(), "a.tar": gzip.decompress(tarred.getvalue())}


ARCHIVES = _archives()


@fuzzed(0.1)
@given(st.sampled_from(sorted(ARCHIVES)), EDITS)
def _unpacked(answers: Answers, name: str, edits: list[tuple[str, float, bytes]]) -> None:
    place = Path("root")
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    archive = place / name
    archive.write_bytes(changed(ARCHIVES[name], edits))
    answers.call(_unpack, archive, place / "wanted", place)
    assert {path.name for path in place.iterdir()} <= {name, "wanted"}
    assert {path.name for path in Path.cwd().iterdir()} == {"root", "toys.yaml"}


def test_archives(answers: Answers, here: Path) -> None:
    _unpacked(answers)


def test_what_is_counted_is_what_was_asked_for(here: Path, answers: Answers) -> None:
    """The answers themselves: a refusal, a result, and what must never happen."""
    answers.command("plan", "toys.yaml")
    answers.command("plan", "nothing.yaml")
    Path("bad").write_text(json.dumps({}))
    answers.call(idx.read, Path("bad"))
    assert answers.counts == {"exit code 0": 1, "exit code 2": 1, "refused": 1}
    with pytest.raises(ZeroDivisionError):
        answers.call(lambda: 1 / 0)
