"""Input that is too long, too large or of the wrong kind: one short message, exit code 2, nothing written."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import toys
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from toys import TOYS

import bpcbench
from bpcbench import Session
from bpcbench.cli import main
from bpcbench.commands.suite import suite_session
from bpcbench.errors import Mistake, Mistakes, UserError, shortened
from bpcbench.planning.cells import OTHER_ROWS, check_size
from bpcbench.registry.discovery import registry
from bpcbench.store import folder as folders
from bpcbench.suite.files import read
from bpcbench.suite.validation import validate


@dataclass(frozen=True)
class Generous(toys.Pick):
    """Returns more rows than asked for."""

    name: ClassVar[str] = "generous"

    def distil(self, data: Any, ipc: int, inputs: Any, ctx: Any) -> bpcbench.Coreset:
        return super().distil(data, 3 * ipc, inputs, ctx)


@dataclass(frozen=True)
class Declared(Generous):
    """Says that it returns more rows than asked for."""

    name: ClassVar[str] = "declared"

    def rows_per_class(self, ipc: int) -> int | None:
        return None


@dataclass(frozen=True)
class Lopsided(toys.Pick):
    """Knows one class only, and one that does not exist."""

    name: ClassVar[str] = "lopsided"
    other: int = bpcbench.option(0, "the class of every second row")

    def distil(self, data: Any, ipc: int, inputs: Any, ctx: Any) -> bpcbench.Coreset:
        right = super().distil(data, ipc, inputs, ctx)
        ids = np.where(np.arange(len(right)) % 2, self.other, right.class_ids)
        return bpcbench.Coreset(images=right.images, targets=right.targets, class_ids=ids, classes=2)


@pytest.fixture(autouse=True)
def _plugins(install: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    install(toys, Generous, Declared, Lopsided)
    monkeypatch.chdir(tmp_path)
    Path("toys.yaml").write_text(TOYS)
    yield
    assert [path.name for path in tmp_path.iterdir()] == ["toys.yaml"]


LONG = "a" * 5000


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["methods.pick.preprocessing=[x]"], "methods.pick.preprocessing: expected a label of `preprocessing`"),
        (
            [".".join(["a"] * 2000) + "=1"],
            "a key of 2,000 parts: nothing in a suite is nested more than 30 levels deep",
        ),
        ([f"name={LONG}"], "name: expected a word without /, 120 bytes at most"),
        (['name="a\\0b"'], "name: expected a word without /"),
        ([f"methods={{{'x' * 121}: pick}}"], "a label is a word without"),
        ([f"extends={LONG}"], "extends: what a suite extends is read with its file; write it there"),
        (["seeds=1000000000"], "is above the limit of 100,000"),
        (["--max-cells", "3"], "a grid of 8 cells (2 ipc x 2 seeds.distil x 2 seeds.evaluate) is above the limit of 3"),
        (["--out", LONG], "File name too long"),
    ],
)
def test_one_short_message(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("run", "plan") if "--out" not in words else ("run",):
        assert main([command, "toys.yaml", *words, *(["--no-mlflow"] if command == "run" else [])]) == 2
        out, error = capsys.readouterr()
        assert out == ""
        assert message in error
        assert len(error) < 3500


def test_many_mistakes_are_counted_and_the_first_are_shown() -> None:
    many = Mistakes("suite.yaml", [Mistake("methods", "x" * 100_000)] * 3000)
    assert str(many).startswith("suite.yaml: 3,000 mistakes\n")
    assert str(many).endswith("\n  ... and 2,980 more")
    assert len(str(many)) < 50_000
    assert len(many.mistakes) == 3000


@given(st.text(), st.integers(10, 200))
def test_shortened_text_keeps_both_ends(text: str, length: int) -> None:
    short = shortened(text, length)
    assert len(short) <= length
    if len(text) <= length:
        assert short == text
    else:
        assert text.startswith(short.partition(" ... ")[0][:3])


def test_the_interval_of_checkpoints_is_a_number(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for wrong in ("abc", "nan", "-1", "inf"):
        monkeypatch.setenv("BPCBENCH_CHECKPOINT_SECONDS", wrong)
        assert main(["run", "toys.yaml", "--no-mlflow"]) == 2
        assert f"expected a number of seconds, 0 or more, got {wrong!r}" in capsys.readouterr().err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_outputs_that_cannot_be_written(tmp_path_factory: Any, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path_factory.mktemp("store"))
    assert main(["run", "toys.yaml", "--no-mlflow", "--in-process", "--quiet", "--out", out]) == 0
    capsys.readouterr()
    for form in ("text", "md", "latex", "csv", "json", "html"):
        assert main(["report", "toys.yaml", "--out", out, "--format", form, "--output", "/dev/full"]) == 2
        assert capsys.readouterr().err.splitlines()[-1].endswith("cannot be written: No space left on device")
    assert main(["report", "toys.yaml", "--out", out, "--output", LONG]) == 2
    assert "File name too long" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["z" * 100_000],
        ["run", "toys.yaml", "--" + "z" * 100_000],
        ["run", "toys.yaml", "--jobs", "z" * 100_000],
        ["report", "toys.yaml", "--format", "z" * 100_000],
        ["list", "z" * 100_000],
        ["data", "z" * 100_000],
    ],
    ids=lambda words: " ".join(words)[:20],
)
def test_words_that_no_command_takes(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(words)
    out, error = capsys.readouterr()
    assert out == ""
    assert "zzz ... zz" in error
    assert len(error) < 5000


def test_names_of_nothing(tmp_path_factory: Any, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path_factory.mktemp("store"))
    assert main(["run", "toys.yaml", "--no-mlflow", "--in-process", "--quiet", "--out", out]) == 0
    capsys.readouterr()
    for words in (
        ["logs", "z" * 100_000],
        ["logs", *["z" * 9] * 10_000],
        ["status", "z" * 100_000],
        ["ui", "z" * 100_000],
        ["sync", "z" * 100_000],
        ["report", "z" * 100_000],
        ["report", "z" * 100_000 + ".yaml"],
        ["compare", "z" * 100_000, "toys"],
        ["leaderboard", "z" * 100_000],
        ["export", "z" * 100_000, "target"],
        ["store", "merge", "z" * 100_000],
        ["report", "toys.yaml", "--metrics", "z" * 100_000],
        ["report", "toys.yaml", "--against", "z" * 100_000],
    ):
        assert main([*words, "--out", out]) == 2, words[:2]
        text = "".join(capsys.readouterr())
        assert len(text) < 3000, (words[:2], len(text))
    for words in (["show", "z" * 100_000], ["check", "z" * 100_000], ["data", "get", "z" * 100_000]):
        assert main(words) == 2
        assert len("".join(capsys.readouterr())) < 3000, words[0]


@dataclass(frozen=True)
class Still(toys.Pick):
    """Keeps snapshots."""

    name: ClassVar[str] = "still"
    steps: int = 3

    def distil(self, data: Any, ipc: int, inputs: Any, ctx: Any) -> bpcbench.Coreset:
        made = super().distil(data, ipc, inputs, ctx)
        for _ in ctx.steps(self.steps, state={"images": made.images}, snapshot=lambda: made):
            pass
        return made


TUNED = "tune={trials: 2, objective: right, space: {pick: {rate: [0.1, 0.2]}}}"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_what_fails_after_the_work_is_no_wrong_input(
    tmp_path_factory: Any, install: Callable[..., Any], capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    """Exit code 2 where nothing was started, 1 where something was."""
    install(toys, Still)
    folder = tmp_path_factory.mktemp("outputs")
    store, full = folder / "store", Path("/dev/full")
    words = ["toys.yaml", "methods=[still]", "ipc=[1]", "seeds=1", "metrics=[right]", "--out", str(store)]
    for command, option in (("anytime", "--pictures"), ("figure", "--output")):
        assert main([command, *words, option, "/dev/full/x"]) == 2
        assert f"{option} /dev/full/x: it is a file, or below one" in capsys.readouterr().err
    assert not store.exists()

    def in_process(arguments: Any) -> Session:
        session = suite_session(arguments)
        session.inline, session.track = True, False
        return session

    for module in ("curves", "suite"):
        monkeypatch.setattr(f"bpcbench.commands.{module}.suite_session", in_process)
    monkeypatch.setattr("bpcbench.reporting.anytime.pictures", lambda *_: {"curve": None})
    monkeypatch.setattr("bpcbench.figures.draw", lambda _: "x" * 100_000)
    (folder / "pictures").mkdir()
    (folder / "pictures" / "curve.svg").symlink_to(full)
    assert main(["anytime", *words, "--pictures", str(folder / "pictures"), "--quiet"]) == 1
    assert capsys.readouterr().err.splitlines()[-1].endswith("No space left on device")

    for name in ("preset.yaml", "records/preset.csv"):
        place = folder / name.replace("/", "-").replace("records", "r")
        place.mkdir()
        (place / "records").mkdir()
        (place / name).symlink_to(full)
        tuned = ["tune", "toys.yaml", TUNED, "ipc=[1]", "--out", str(folder / "tuned"), "--quiet"]
        assert main([*tuned, "--output", str(place / "preset.yaml")]) == 1
        assert "cannot be written: No space left on device" in capsys.readouterr().err

    key = next(path.parent.name for path in store.glob("stages/coreset/*/final"))
    target = ["export", key, "--out", str(store)]
    assert main([*target, "/dev/full/x"]) == 2
    assert "it is a file, or below one" in capsys.readouterr().err
    monkeypatch.setattr(folders, "write_durably", _full)
    assert main([*target, str(folder / "exported")]) == 1
    assert capsys.readouterr().err == "bpcbench: No space left on device\n"
    assert not (folder / "exported").exists()


def _full(*_: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_grid_is_counted_not_made() -> None:
    found = registry()
    document, path = read(found, "toys.yaml", ["seeds={distil: 1000000, evaluate: 1000000}"])
    suite = validate(found, document, path)
    with pytest.raises(UserError, match=r"2,000,000,000,000 cells .* --max-cells 2000000000000"):
        check_size(suite)
    check_size(suite, 2_000_000_000_000)


def test_images_per_class_are_a_contract(tmp_path_factory: Any, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path_factory.mktemp("store"))
    words = ["run", "toys.yaml", "methods=[generous, declared, lopsided]", "ipc=[2]", "--no-mlflow", "--in-process"]
    assert main([*words, "--out", out, "seeds=1"]) == 1
    table, error = capsys.readouterr()
    assert "generous returned 6 rows of class 0 instead of 2, and other numbers for 1 more classes" in error
    assert "lopsided returned" in error
    assert OTHER_ROWS in table
    assert main([*words, "--out", out, "seeds=1", "methods.lopsided.other=7"]) == 1
    assert "lopsided returned class numbers from 0 to 7 of 2 classes" in capsys.readouterr().err


def test_a_table_without_the_usual_metrics_shows_those_of_its_evaluators(tmp_path_factory: Any) -> None:
    session = Session("toys.yaml", ["seeds=1"], out=tmp_path_factory.mktemp("store"), inline=True, track=False)
    session.run()
    assert "right" in session.report()


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
NAMES = """
name datasets ipc methods methods.pick methods.pick.preprocessing methods.pick.plugin preprocessing inferences networks
evaluators seeds seeds.distil split examples cases exclude threads precision device timeout engine metrics tune tuned
extends tasks
"""
KEYS = st.sampled_from(NAMES.split())
FUZZ = int(os.environ.get("BPCBENCH_FUZZ", "60"))


@settings(max_examples=FUZZ, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.dictionaries(KEYS, VALUES, min_size=1, max_size=3))
def test_any_values_in_a_suite_give_a_plan_or_a_message(changes: dict[str, Any]) -> None:
    words = [f"{key}={json.dumps(value)}" for key, value in changes.items()]
    assert main(["plan", "toys.yaml", "--max-cells", "1000", *words]) in (0, 2)
