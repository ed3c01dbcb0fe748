"""Input that is too long, too large or of the wrong kind: one short message, exit code 2, nothing written."""

from __future__ import annotations

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
from bpcbench.errors import Mistake, Mistakes, UserError, shortened
from bpcbench.planning.cells import OTHER_ROWS, check_size
from bpcbench.registry.discovery import registry
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
