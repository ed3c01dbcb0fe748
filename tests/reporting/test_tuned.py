"""The outcome of tuning: which trial wins, and what the preset, the CSV file and the table say of it."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass, field
from typing import Any

import pytest
import yaml

from bpcbench.errors import UserError
from bpcbench.reporting.rows import Row
from bpcbench.reporting.tuned import Outcome, Tuned, choose


@dataclass(frozen=True)
class Try:
    method: str
    number: int
    setting: dict[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return f"{self.method}:{self.number}"


def row(trial: Try, value: float, *, ipc: int = 1, metric: str = "nll", higher: bool | None = False) -> Row:
    return Row("d", ipc, trial.label, "i", "n", "c", 0, 0, "e", metric, value, higher)


OWN, FAST, SLOW = Try("a", 1), Try("a", 2, {"lr": 0.5}), Try("a", 3, {"lr": 1e-7, "mode": "x: y"})


def winners(tuned: Tuned) -> dict[tuple[str, int], int]:
    return {(outcome.method, outcome.ipc): outcome.trial for outcome in tuned.outcomes if outcome.best}


def test_the_lowest_wins_unless_higher_is_better_and_only_by_the_objective() -> None:
    rows = [row(OWN, 3), row(FAST, 1), row(SLOW, 2), row(OWN, 9, metric="acc", higher=True)]
    assert winners(choose(rows, [OWN, FAST, SLOW], "nll")) == {("a", 1): 2}
    better = [row(OWN, 0.3, metric="acc", higher=True), row(FAST, 0.1, metric="acc", higher=True)]
    assert winners(choose(better, [OWN, FAST], "acc")) == {("a", 1): 1}


def test_every_ipc_has_its_own_winner_and_what_is_not_finite_does_not_count() -> None:
    rows = [row(OWN, 3), row(FAST, 4), row(OWN, 3, ipc=10), row(FAST, 1, ipc=10), row(SLOW, math.nan, ipc=10)]
    tuned = choose(rows, [OWN, FAST, SLOW], "nll")
    assert winners(tuned) == {("a", 1): 1, ("a", 10): 2}
    assert len(tuned.outcomes) == 4
    assert tuned.trials == {"a": 3}  # also those that diverged were tried


def test_the_preset_has_one_case_per_data_set_and_ipc_with_all_methods() -> None:
    other = Try("b", 2, {"k": 3})
    rows = [row(FAST, 1), row(other, 1), row(SLOW, 1, ipc=10), row(OWN, 5), row(Try("b", 1), 0.5, ipc=10)]
    text = choose(rows, [OWN, FAST, SLOW, Try("b", 1), other], "nll").preset("bpcbench tune s", "records/p.csv")
    assert text.splitlines()[0] == "# Written by `bpcbench tune s`: the best settings on the validation split."
    assert yaml.safe_load(text) == {
        "tuned": {
            "a": {"trials": 3, "objective": "validation nll", "record": "records/p.csv"},
            "b": {"trials": 2, "objective": "validation nll", "record": "records/p.csv"},
        },
        "cases": [
            {"when": {"dataset": "d", "ipc": 1}, "set": {"methods.a.lr": 0.5, "methods.b.k": 3}},
            {"when": {"dataset": "d", "ipc": 10}, "set": {"methods.a.lr": 1e-7, "methods.a.mode": "x: y"}},
        ],
    }


def test_where_the_suites_own_setting_wins_the_preset_sets_nothing() -> None:
    preset = yaml.safe_load(choose([row(OWN, 1), row(FAST, 2)], [OWN, FAST], "nll").preset("c"))
    assert preset == {"tuned": {"a": {"trials": 2, "objective": "validation nll"}}, "cases": []}


def test_without_a_finite_objective_there_is_no_preset() -> None:
    with pytest.raises(UserError, match="no trial has a finite nll"):
        choose([row(OWN, math.inf)], [OWN], "nll").preset("c")


def test_the_csv_has_a_column_per_option_and_is_empty_where_a_trial_sets_none() -> None:
    outcomes = (
        Outcome("b", "d", 1, 2, 0.1234567, True, {"k": [1, 2]}),
        Outcome("a", "d", 1, 3, 1.0, True, {"lr": 1e-7, "mode": "x, y"}),
        Outcome("a", "d", 1, 1, 2.0, False, {}),
    )
    lines = list(csv.DictReader(io.StringIO(Tuned("nll", {"a": 3, "b": 2}, outcomes).csv())))
    assert [list(line.values()) for line in lines] == [
        ["a", "d", "1", "3", "nll", "1.0", "true", "", "1e-07", "x, y"],
        ["a", "d", "1", "1", "nll", "2.0", "false", "", "", ""],
        ["b", "d", "1", "2", "nll", "0.12346", "true", "[1, 2]", "", ""],
    ]
    assert list(lines[0])[7:] == ["set.k", "set.lr", "set.mode"]


def test_the_table_names_every_trial_and_the_best() -> None:
    table = choose([row(OWN, 2), row(FAST, 1)], [OWN, FAST], "nll").table().splitlines()
    assert table[0].split() == ["dataset", "ipc", "method", "trial", "validation", "nll", "setting"]
    assert table[2].split() == ["d", "1", "a", "2", "1", "best", "lr", "0.5"]
    assert table[3].split() == ["d", "1", "a", "1", "2", "the", "suite's", "own"]
