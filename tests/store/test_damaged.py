"""Whatever a file of a store holds, every view reports the rest in a sentence; none ends in a traceback.

Files are replaced by other values of every type, with their checksums made valid again: a checksum proves that a file
is as it was written, not that its writer knew what belongs in it.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import random
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import toys
from safetensors.numpy import load_file, save_file

import bpcbench
from bpcbench import Session
from bpcbench.cli import main
from bpcbench.errors import BpcbenchError
from bpcbench.store import folder
from bpcbench.store.manifest import read_manifest
from bpcbench.store.runs import read_runs

SAMPLE = 12
FUZZ = int(os.environ.get("BPCBENCH_FUZZ", "250"))
SUITE = """
protocol: 1
datasets: [dots]
ipc: [1, 2]
methods: [pick, walker]
preprocessing: scale
inferences: [centroid]
networks: [line]
evaluators: [right, drawn]
seeds: {distil: 1, evaluate: 2}
metrics: [right]
"""
VALUES: list[Any] = [
    None, True, -1, 0, 1.5, 10**30, float("nan"), "", "text", "a\x1b[2Jb", [], [7], [[]], {}, {"a": 1}, "9" * 3000,
]  # fmt: skip
ABSENT = object()
KEY = "KEY"


@dataclass(frozen=True)
class Walker(toys.Pick):
    """Has a prerequisite, curves and snapshots."""

    name: ClassVar[str] = "walker"
    steps: int = 4

    def prerequisites(self, facts: Any, ipc: int) -> Any:
        return {"mean": bpcbench.Need(bpcbench.Ref("means"), ("000",))}

    def distil(self, data: Any, ipc: int, inputs: Any, ctx: Any) -> bpcbench.Coreset:
        start = super().distil(data, ipc, inputs, ctx)
        images = start.images.copy()

        def made() -> bpcbench.Coreset:
            return bpcbench.Coreset(images=images.copy(), targets=start.targets, class_ids=start.class_ids, classes=2)

        for _ in ctx.steps(self.steps, state={"images": images}, snapshot=made):
            images += 0.01
            ctx.log(**{"level": float(images.mean()), "cost/level MB": 1.0})
        return made()


@dataclass(frozen=True)
class Drawn(toys.Right):
    """Has a figure of every kind."""

    name: ClassVar[str] = "drawn"

    def metrics(self) -> Any:
        return [bpcbench.Metric("drawn", "lower")]

    def score(self, predictions: Any, inputs: Any) -> bpcbench.Scores:
        from bpcbench import figures

        series = figures.Series([0.0, 0.5, 1.0], [0.0, 0.7, 1.0])
        drawn = {
            "curve": figures.Curves("t", "x", "y", {"s": series}),
            "bar": figures.Bars("t", ["a"], {"s": [1.0]}),
            "matrix": figures.Matrix("t", ["a"], ["b"], [[1.0]]),
            "bins": figures.Reliability([0.0, 0.5, 1.0], [3, 4], [0.2, 0.8], [0.3, 0.7]),
        }
        return bpcbench.Scores({"drawn": 1.0}, drawn)


@dataclass(frozen=True)
class Damage:
    """One file and what is done to it."""

    file: str
    what: str
    do: Callable[[Path], None]

    def __str__(self) -> str:
        return f"{self.file}: {self.what}"


@pytest.fixture
def whole(install: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a small store, in which everything that a store keeps occurs."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    install(toys, Walker, Drawn)
    monkeypatch.chdir(tmp_path)
    Path("toys.yaml").write_text(SUITE)
    for words in (["seeds=1"], []):
        with contextlib.redirect_stderr(io.StringIO()):
            Session("toys.yaml", words, out="whole", inline=True, track=False, quiet=True).run()
    (tmp_path / "whole" / "logs").mkdir(exist_ok=True)
    return tmp_path / "whole"


def paths(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the place of every value in JSON: the whole, its parts and theirs."""
    yield place
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, part in parts:
        yield from paths(part, (*place, name))


def replaced(value: Any, place: tuple[Any, ...], new: Any) -> Any:
    if not place:
        return new
    copy = json.loads(json.dumps(value))
    *way, last = place
    inner = copy
    for name in way:
        inner = inner[name]
    if new is ABSENT:
        del inner[last]
    else:
        inner[last] = new
    return copy


def sign(member: Path, body: Any) -> None:
    """Write a stage.json with valid checksums of itself and of the files beside it."""
    if isinstance(body, dict):
        files = body.get("files")
        for name in files if isinstance(files, dict) else ():
            with contextlib.suppress(OSError, ValueError, TypeError):
                content = (member / name).read_bytes()
                files[name] |= {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
        body["checksum"] = folder.checksum(body)
    (member / "stage.json").write_text(json.dumps(body))


def json_damage(root: Path, path: Path) -> Iterator[Damage]:
    """Yield every replacement of every value of a JSON file, or of a line of it."""
    name, lines = str(path.relative_to(root)), path.suffix == ".jsonl"
    bodies = [json.loads(line) for line in path.read_text().splitlines()] if lines else [json.loads(path.read_text())]
    for number, body in enumerate(bodies[:2]):
        for place in paths(body):
            for value in [*VALUES, *([ABSENT] if place else [])]:

                def do(copy: Path, number: int = number, place: Any = place, value: Any = value) -> None:
                    new = replaced(bodies[number], place, value)
                    if path.name == "stage.json":
                        return sign((copy / name).parent, new)
                    texts = [json.dumps(new if n == number else old) for n, old in enumerate(bodies)]
                    (copy / name).write_text("\n".join(texts) + "\n" * lines)
                    if path.name == "curves.jsonl":
                        member = (copy / name).parent
                        sign(member, json.loads((member / "stage.json").read_text()))
                    return None

                shown = "absent" if value is ABSENT else repr(value)[:30]
                yield Damage(name, f"{number}.{'.'.join(map(str, place))} = {shown}", do)


def array_damage(root: Path, path: Path) -> Iterator[Damage]:
    """Yield arrays of other shapes and types, each with valid checksums."""
    name = str(path.relative_to(root))
    arrays = load_file(path)
    wrong: dict[str, Callable[[Any], Any]] = {
        "scalar": lambda a: np.zeros((), a.dtype),
        "empty": lambda a: a[:0],
        "flat": lambda a: a.reshape(-1),
        "longer": lambda a: np.concatenate([a, a]) if a.ndim else a.reshape(1),
        "half": lambda a: a.astype(np.float16),
        "text": lambda a: np.frombuffer(b"abcd" * 4, np.uint8),
        "bool": lambda a: a.astype(bool),
        "huge": lambda a: np.full(a.shape, 1e30, np.float32),
        "negative": lambda a: -np.ones(a.shape, np.int64),
        "nan": lambda a: np.full(a.shape, np.nan, np.float32),
        "large": lambda a: np.full(a.shape, 2**62, np.int64),
        "other": lambda a: np.zeros((3, 7, 5, 9), np.uint8),
    }
    for array in arrays:
        for what, change in {**wrong, "absent": lambda a: None}.items():

            def do(copy: Path, array: str = array, change: Callable[[Any], Any] = change) -> None:
                new = change(arrays[array])
                rest = {key: value for key, value in arrays.items() if key != array}
                member = (copy / name).parent
                save_file({**rest, **({} if new is None else {array: np.ascontiguousarray(new)})}, copy / name)
                sign(member, json.loads((member / "stage.json").read_text()))

            yield Damage(name, f"{array} {what}", do)


def _nothing(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def _folder(path: Path) -> None:
    path.unlink()
    (path / "inside").mkdir(parents=True)


def _renamed(path: Path) -> None:
    path.parent.rename(path.parent.with_name(path.parent.name + ".bak"))


def _renamed_key(path: Path) -> None:
    path.parent.parent.rename(path.parent.parent.with_name(path.parent.parent.name + ".bak"))


def file_damage(root: Path, path: Path) -> Iterator[Damage]:
    """Yield what may become of a whole file."""
    name = str(path.relative_to(root))
    changes: dict[str, Callable[[Path], Any]] = {
        "removed": _nothing,
        "a folder": _folder,
        "empty": lambda file: file.write_bytes(b""),
        "no text": lambda file: file.write_bytes(b"\xff\xfe\x00" * 9),
        "cut": lambda file: file.write_bytes(file.read_bytes()[: file.stat().st_size // 2]),
        "deep": lambda file: file.write_text("[" * 50_000),
        "a link": lambda file: (file.unlink(), file.symlink_to("/dev/zero")),
        "a pipe": lambda file: (file.unlink(), os.mkfifo(file)),
    }
    if path.name == "stage.json":
        changes |= {"its folder renamed": _renamed, "its key renamed": _renamed_key}
    for what, change in changes.items():
        yield Damage(name, what, lambda copy, change=change: change(copy / name))


def damages(root: Path) -> list[Damage]:
    """Return all that is done to the files of a store, one of each sort of file."""
    found: list[Damage] = []
    sorts: set[str] = set()
    for path in sorted(root.rglob("*")):
        sort = re.sub(r"[0-9a-f]{12,}|\d{8}T.*", "*", str(path.relative_to(root)))
        if not path.is_file() or (sort in sorts and not (path.name == "stage.json" and "score" in path.parts)):
            continue
        sorts.add(sort)
        found += file_damage(root, path)
        if path.suffix in (".json", ".jsonl"):
            found += json_damage(root, path)
        elif path.name == folder.ARRAYS:
            found += array_damage(root, path)
    return found


def commands(store: str) -> list[list[str]]:
    """Return what a person may ask of a store, MLflow apart; KEY stands for a coreset's."""
    suite = ["report", "toys.yaml"]
    return [
        ["plan", "toys.yaml"],
        suite,
        [*suite, "--costs"],
        [*suite, "--against", "pick"],
        [*suite, "--format", "html", "--output", "page.html"],
        [*suite, "--format", "json"],
        ["status"],
        ["status", "--json"],
        ["logs", "coreset", "walker"],
        ["store", "list"],
        ["store", "verify"],
        ["compare", f"{store}:toys", "whole:toys"],
        ["leaderboard", f"one={store}:toys", "two=whole:toys", "--output", "board.html"],
        ["figure", "toys.yaml", "--output", "figures"],
        ["doctor"],
        ["export", KEY, "exported"],
        ["export", KEY, "exported", "--format", "png"],
    ]


class Trial:
    """Commands on damaged stores, and what was wrong with their answers."""

    def __init__(self) -> None:
        self.count = 0
        self.wrong: list[str] = []

    def ask(self, damage: Damage, words: list[str]) -> str:
        out, err = io.StringIO(), io.StringIO()
        self.count += 1
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = main(words)
        except BaseException as error:
            place = error.__traceback__
            while place is not None and place.tb_next is not None:
                place = place.tb_next
            where = f"{Path(place.tb_frame.f_code.co_filename).name}:{place.tb_lineno}" if place else ""
            self.wrong.append(f"{' '.join(words[:4])} | {damage} | {type(error).__name__}: {str(error)[:90]} | {where}")
            return ""
        text = out.getvalue() + err.getvalue()
        if code not in (0, 1, 2) or "Traceback" in text or "\x1b" in text:
            self.wrong.append(f"{' '.join(words[:4])} | {damage} | exit code {code}: {text[-200:]!r}")
        return text

    def load(self, damage: Damage, member: Path) -> None:
        self.count += 1
        try:
            bpcbench.load_coreset(member)
        except BpcbenchError:
            pass
        except BaseException as error:
            self.wrong.append(f"load_coreset | {damage} | {error!r:.150}")

    def run(self, whole: Path, damage: Damage, asked: list[list[str]]) -> None:
        copy = whole.with_name("copy")
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(whole, copy)
        key = next(path.parent.parent.name for path in sorted(whole.glob("stages/coreset/*/final/stage.json")))
        damage.do(copy)
        shutil.rmtree("exported", ignore_errors=True)
        for words in asked:
            words = [key if word == KEY else word for word in words]
            self.ask(damage, [*words, *(["--out", "copy"] if words[0] != "leaderboard" else [])])
        if "coreset" in damage.file:
            self.load(damage, (copy / damage.file).parent)


def test_a_sample_of_damage_gives_no_traceback(whole: Path) -> None:
    every = damages(whole)
    assert len(every) > 3000
    trial, chance = Trial(), random.Random(0)
    for damage in chance.sample(every, SAMPLE):
        trial.run(whole, damage, [chance.choice(commands("copy"))])
    assert trial.wrong == []


def score_of(root: Path, method: str) -> Path:
    """Return the folder of a score of a method with one image per class."""
    for path in sorted(root.glob("stages/score/*/final/stage.json")):
        meta = json.loads(path.read_text())
        if f"ipc 1 {method}" in meta["label"] and meta["label"].endswith("right"):
            return path.parent
    raise AssertionError(method)


def rows(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[list[str], str]:
    capsys.readouterr()
    assert main(["report", "toys.yaml", "--format", "csv", "--out", *words]) == 0
    captured = capsys.readouterr()
    return captured.out.splitlines(), captured.err


@pytest.mark.parametrize("read_only", [False, True], ids=["writable", "read-only"])
@pytest.mark.parametrize("value", [["text"], {"right": "much"}, None], ids=["list", "text", "nothing"])
def test_the_rest_is_reported(
    value: Any, read_only: bool, whole: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before, said = rows(capsys, "whole")
    assert "damaged" not in said
    member = score_of(whole, "walker")
    body = json.loads((member / "stage.json").read_text())
    sign(member, {**body, "metrics": value})
    if read_only:
        # Root may write everywhere; a store that refuses every change is what others see.
        monkeypatch.setattr(os, "access", lambda *_: False)
        monkeypatch.setattr(Path, "rename", lambda *_: (_ for _ in ()).throw(OSError(30, "Read-only file system")))
    after, said = rows(capsys, "whole")
    assert f"damaged: score:{member.parent.name}@final: its stage.json is malformed: `metrics" in said
    assert ("not set aside: [Errno 30]" if read_only else "; set aside in") in said
    assert [line for line in before if ",2," in line[:9]] == [line for line in after if ",2," in line[:9]]
    # What is compared is averaged over the same evaluation seeds, so both methods are left with the other one.
    assert [re.search(r",(0 1|0|1),[\d.]+,toy$", line)[1] for line in after if ",1," in line[:9]] == ["1", "1"]
    if read_only:
        for words in (["plan", "toys.yaml"], ["status"], ["doctor"], ["store", "list"]):
            assert main([*words, "--out", "whole"]) in (0, 1)
        captured = capsys.readouterr()
        assert "no write permission: it can be read" in captured.out
        assert "is malformed" in captured.out + captured.err


def test_a_manifest_or_run_record_that_is_damaged_is_named(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = sorted((whole / "suites" / "toys").iterdir())
    (record,) = (first / "runs").glob("*.json")
    record.write_text(json.dumps({**json.loads(record.read_text()), "heartbeat": 7}))
    (second / "cells.jsonl").write_text('[0, 0, 0, [99], "x", 0]\n')
    assert main(["status", "--out", "whole"]) == 0
    captured = capsys.readouterr()
    assert f"the run record {record} is passed over: heartbeat is not a text" in captured.err
    assert f"{second}: the manifest cannot be read" in captured.err
    assert "evaluations done" in captured.out, "the other one is shown"
    assert [run.id for run in read_runs(first)] == []
    assert read_manifest(first).name == "toys"


@pytest.mark.campaign
def test_mlflow_gets_the_rest(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, second = sorted((whole / "suites" / "toys").iterdir())
    (second / "cells.jsonl").write_text("[0]")
    assert main(["sync", "--out", "whole"]) == 0
    captured = capsys.readouterr()
    assert "cells added" in captured.out
    assert "the manifest cannot be read" in captured.err
    trial, chance = Trial(), random.Random(1)
    for damage in chance.sample(damages(whole), max(1, FUZZ // 50)):
        trial.run(whole, damage, [["sync"]])
    assert trial.wrong == []


@pytest.mark.campaign
@pytest.mark.timeout(3600)
def test_damage_gives_no_traceback(whole: Path) -> None:
    every = damages(whole)
    trial, chance = Trial(), random.Random(FUZZ)
    chosen = every if len(every) <= FUZZ else chance.sample(every, FUZZ)
    for damage in chosen:
        asked = commands("copy")
        trial.run(whole, damage, asked if len(every) <= FUZZ else chance.sample(asked, 5))
    print(f"{len(chosen)} damaged stores, {trial.count} commands, {len(trial.wrong)} wrong")
    assert trial.wrong == []
