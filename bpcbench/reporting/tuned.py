"""The outcome of tuning: the best setting of every data set and ipc as a preset, and all trials as CSV or as a table.

The preset is a suite to extend. It holds settings and, for each method, how many were tried by which objective; the
trials themselves are a file of their own, one line per method, data set, ipc and trial.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import yaml

from bpcbench.errors import UserError
from bpcbench.reporting.plain import plain
from bpcbench.reporting.rows import Row


class Trial(Protocol):
    """One setting of one method; `label` is the method's label in the suite of all trials."""

    @property
    def method(self) -> str:
        """The method that is tuned."""

    @property
    def number(self) -> int:
        """1 for the suite's own setting, then 2, 3, ..."""

    @property
    def setting(self) -> Mapping[str, Any]:
        """The options that the trial sets."""

    @property
    def label(self) -> str:
        """The `method` of its rows."""


@dataclass(frozen=True)
class Outcome:
    """The value of the objective that one trial reached for one data set and ipc."""

    method: str
    dataset: str
    ipc: int
    trial: int
    value: float
    best: bool
    setting: Mapping[str, Any]


@dataclass(frozen=True)
class Tuned:
    """All outcomes of a tuning run: in the order of the suite, and from best to worst within a data set and ipc."""

    objective: str
    trials: Mapping[str, int]
    """The number of settings tried, by method."""
    outcomes: tuple[Outcome, ...]

    def preset(self, command: str, record: str = "") -> str:
        """Return the best settings as a suite to extend, in YAML; `record` is the file of the trials beside it.

        Raise UserError if no trial has a finite objective.
        """
        if not self.outcomes:
            raise UserError(f"no trial has a finite {self.objective}; there is nothing to choose from")
        lines = [f"# Written by `{command}`: the best settings on the validation split.", "tuned:"]
        for method in sorted({outcome.method for outcome in self.outcomes}):
            tuned = {"trials": self.trials[method], "objective": f"validation {self.objective}"}
            lines.append(f"  {_flow(method)}: {_flow({**tuned, 'record': record} if record else tuned)}")
        best: dict[tuple[str, int], list[str]] = {}
        for outcome in self.outcomes:
            for option, value in outcome.setting.items() if outcome.best else ():
                line = f"      {_flow(f'methods.{outcome.method}.{option}')}: {_flow(value)}"
                best.setdefault((outcome.dataset, outcome.ipc), []).append(line)
        lines.append("cases:" if best else "cases: []")
        for (dataset, ipc), settings in best.items():
            lines += [f"  - when: {_flow({'dataset': dataset, 'ipc': ipc})}", "    set:", *settings]
        return "\n".join(lines) + "\n"

    def csv(self) -> str:
        """Return all trials as CSV, with a column `set.OPTION` per option, empty where a trial does not set it."""
        options = list(dict.fromkeys(option for outcome in self.outcomes for option in outcome.setting))
        headings = ["method", "dataset", "ipc", "trial", "objective", "value", "best", *(f"set.{o}" for o in options)]
        lines = [
            [
                outcome.method,
                outcome.dataset,
                str(outcome.ipc),
                str(outcome.trial),
                self.objective,
                str(round(outcome.value, 5)),
                "true" if outcome.best else "false",
                *(_text(outcome.setting[option]) if option in outcome.setting else "" for option in options),
            ]
            for outcome in sorted(self.outcomes, key=lambda outcome: (outcome.method, outcome.dataset, outcome.ipc))
        ]
        return plain(headings, lines, "csv")

    def table(self) -> str:
        """Return all trials as a table for a terminal."""
        lines = [
            [
                outcome.dataset,
                str(outcome.ipc),
                outcome.method,
                str(outcome.trial),
                f"{outcome.value:.5g}",
                "best" if outcome.best else "",
                ", ".join(f"{name} {_text(value)}" for name, value in outcome.setting.items()) or "the suite's own",
            ]
            for outcome in self.outcomes
        ]
        return plain(["dataset", "ipc", "method", "trial", f"validation {self.objective}", "", "setting"], lines)


def choose(rows: Iterable[Row], trials: Sequence[Trial], objective: str) -> Tuned:
    """Return the outcomes of the trials that have a finite objective; of equally good ones the first row is best."""
    by_label = {trial.label: trial for trial in trials}
    scored: dict[tuple[str, int, str], list[tuple[float, Trial]]] = {}
    higher = False
    for row in rows:
        if row.metric == objective and row.method in by_label and math.isfinite(row.value):
            higher = bool(row.higher_is_better)
            trial = by_label[row.method]
            scored.setdefault((row.dataset, row.ipc, trial.method), []).append((row.value, trial))
    outcomes = []
    for (dataset, ipc, method), values in scored.items():
        values.sort(key=lambda pair: -pair[0] if higher else pair[0])
        outcomes += [
            Outcome(method, dataset, ipc, trial.number, value, rank == 0, dict(trial.setting))
            for rank, (value, trial) in enumerate(values)
        ]
    return Tuned(objective, dict(Counter(trial.method for trial in trials)), tuple(outcomes))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _flow(value: Any) -> str:
    """Return a value as YAML on one line."""
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=math.inf)
    return text.removesuffix("\n").removesuffix("\n...")
