"""Choosing settings on the validation split: a declared space, a fixed number of trials, a preset that says so.

Tuning is outside the plan. It turns a suite into another one, whose methods are the trials, runs that with
`split: validation`, and writes the best setting of every data set and ipc as a preset that suites extend.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from bpcbench.errors import Mistake, Mistakes, UserError, unknown
from bpcbench.reporting import Row
from bpcbench.suite.document import Document
from bpcbench.suite.model import NATIVE

MAX_OPTIONS = 3
KEYS = {"trials", "seed", "objective", "space", "inference"}


@dataclass(frozen=True)
class Trial:
    """One setting of one method; number 1 is the suite's own and sets nothing."""

    method: str
    number: int
    setting: Mapping[str, Any]

    @property
    def label(self) -> str:
        """The trial as the label of a method."""
        return f"{self.method}-trial-{self.number}"


@dataclass(frozen=True)
class Tuning:
    """What `tune:` in a suite declares."""

    trials: tuple[Trial, ...]
    objective: str
    count: int
    inference: Mapping[str, str] = field(default_factory=dict)
    """The label of the inference under which a method's trials are judged; its native one if it is not here."""


def declared(doc: Document) -> Tuning:
    """Read `tune:`; raise Mistakes unless it declares a space of at most three options for methods of the suite."""
    raw = doc.values.get("tune")
    mistakes: list[Mistake] = []

    def mistake(path: tuple[str, ...], message: str) -> None:
        place = doc.place(path)
        mistakes.append(Mistake(".".join(path), message, *((place.line, place.file) if place else ())))

    if not isinstance(raw, Mapping) or not isinstance(raw.get("space"), Mapping) or not raw["space"]:
        raise UserError("the suite has nothing to tune: `tune: {trials: 8, space: {METHOD: {OPTION: [values]}}}`")
    for key in set(raw) - KEYS:
        mistake(("tune", key), f"unknown key {key!r} (allowed: {', '.join(sorted(KEYS))})")
    if doc.values.get("split") == "test":
        mistake(("split",), "tuning on the test split is not allowed; leave `split` out")
    count = raw.get("trials", 8)
    if not isinstance(count, int) or isinstance(count, bool) or count < 2:
        mistake(("tune", "trials"), f"expected an integer above 1, got {count!r}")
        count = 2
    trials: list[Trial] = []
    methods = doc.values.get("methods")
    for method, space in raw["space"].items():
        path = ("tune", "space", method)
        if space is False or (isinstance(methods, Mapping) and methods.get(method, True) is False):
            continue  # left out, as everywhere in a suite, or with its method
        if not isinstance(space, Mapping) or not 1 <= len(space) <= MAX_OPTIONS:
            mistake(path, f"expected 1 to {MAX_OPTIONS} options with their values")
            continue
        good = {name: values for name, values in space.items() if _is_space(values)}
        for name in space.keys() - good.keys():
            mistake((*path, name), "expected a list of values, or {low: a, high: b, log: true}")
        trials += [
            Trial(method, i + 1, setting) for i, setting in enumerate(_settings(good, count, raw.get("seed", 0)))
        ]
    under = raw.get("inference") or {}
    labels = [NATIVE, *(doc.values.get("inferences") or ())]
    if not isinstance(under, Mapping):
        mistake(("tune", "inference"), "expected {METHOD: INFERENCE}")
        under = {}
    for method, label in under.items():
        if method not in raw["space"]:
            mistake(("tune", "inference", method), unknown("method of the space", method, raw["space"]))
        if label not in labels:
            mistake(("tune", "inference", method), unknown("inference of the suite", label, labels))
    if mistakes:
        raise Mistakes("tune", mistakes)
    if not trials:
        raise UserError("tune.space: every method is left out")
    return Tuning(tuple(trials), str(raw.get("objective", "nll")), count, dict(under))


def _is_space(values: Any) -> bool:
    if isinstance(values, Mapping):
        low, high = values.get("low"), values.get("high")
        numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in (low, high))
        return numbers and 0 < low < high if values.get("log") else numbers and low < high  # type: ignore[operator]
    return isinstance(values, list) and len(values) > 0


def _settings(space: Mapping[str, Any], count: int, seed: Any) -> list[dict[str, Any]]:
    """Return `count` settings: the suite's own first, then random draws, none twice if the space is large enough."""
    draws = random.Random(f"{seed}:{sorted(space)}")  # noqa: S311 - not for cryptography
    found: list[dict[str, Any]] = [{}]
    for _ in range(100 * count):
        if len(found) == count:
            break
        setting = {name: _draw(values, draws) for name, values in space.items()}
        if setting not in found:
            found.append(setting)
    return found


def _draw(values: Any, draws: random.Random) -> Any:
    if isinstance(values, list):
        return draws.choice(values)
    low, high = float(values["low"]), float(values["high"])
    if values.get("log"):
        return float(f"{math.exp(draws.uniform(math.log(low), math.log(high))):.3g}")
    return float(f"{draws.uniform(low, high):.3g}")


def trial_document(doc: Document, tuning: Tuning, name: str) -> Document:
    """Return the suite of all trials: one coreset, one evaluation, one inference each, validation split."""
    values = {key: value for key, value in doc.values.items() if key not in ("tune", "exclude", "extends")}
    methods = values.get("methods") or {}
    if isinstance(methods, list):
        methods = dict.fromkeys(methods)
    chosen = {}
    for trial in tuning.trials:
        if trial.method not in methods:
            raise UserError(f"tune.space.{trial.method}: the suite has no method of that label")
        own = methods[trial.method] or {}
        own = {"plugin": own} if isinstance(own, str) else own
        chosen[trial.label] = {"plugin": trial.method, **own, **trial.setting}
    cases = [{"when": case["when"], "set": dict(_retarget(case["set"], tuning))} for case in values.get("cases") or []]
    inferences = values.get("inferences") or {}
    inferences = dict.fromkeys(inferences) if isinstance(inferences, list) else inferences
    judges = {trial.label: tuning.inference.get(trial.method, NATIVE) for trial in tuning.trials}
    used = list(dict.fromkeys(judges.values()))
    values |= {
        "name": f"{name}-tune",
        "split": "validation",
        "seeds": {"distil": 1, "evaluate": 1},
        "inferences": {label: inferences.get(label) for label in used},
        "networks": {NATIVE: None},
        "exclude": [
            {"method": label, "inference": [other for other in used if other != judge]}
            for label, judge in judges.items()
            if len(used) > 1
        ],
        "methods": chosen,
        "cases": cases,
    }
    return Document(values, dict(doc.places))


def _retarget(assignments: Mapping[str, Any], tuning: Tuning) -> list[tuple[str, Any]]:
    """Return what a case sets, for the trials of the methods it speaks of; a trial's own setting comes first."""
    result = []
    for key, value in assignments.items():
        axis, label, option = key.split(".", 2)
        if axis == "preprocessing" or (axis == "inferences" and label in tuning.inference.values()):
            result.append((key, value))
        mine = [t for t in tuning.trials if axis == "methods" and t.method == label and option not in t.setting]
        result += [(f"methods.{trial.label}.{option}", value) for trial in mine]
    return result


def choose(rows: Sequence[Row], tuning: Tuning) -> list[dict[str, Any]]:
    """Return, for every data set, ipc and method, all trials with their objective, the best first."""
    by_label = {trial.label: trial for trial in tuning.trials}
    found: dict[tuple[str, int, str], list[tuple[float, Trial]]] = {}
    higher = False
    for row in rows:
        if row.metric == tuning.objective and row.method in by_label and math.isfinite(row.value):
            higher = bool(row.higher_is_better)
            trial = by_label[row.method]
            found.setdefault((row.dataset, row.ipc, trial.method), []).append((row.value, trial))
    result = []
    for (dataset, ipc, method), scored in sorted(found.items()):
        scored.sort(key=lambda pair: -pair[0] if higher else pair[0])
        tried = [{"trial": t.number, tuning.objective: round(v, 5), "setting": dict(t.setting)} for v, t in scored]
        result.append({"dataset": dataset, "ipc": ipc, "method": method, "tried": tried})
    if not result:
        raise UserError(f"no trial has a finite {tuning.objective}; nothing can be chosen")
    return result


def preset(chosen: Sequence[Mapping[str, Any]], tuning: Tuning, command: str) -> str:
    """Return the preset as YAML: the best settings as cases, and a record of everything that was tried."""
    cases = [
        {
            "when": {"dataset": item["dataset"], "ipc": item["ipc"]},
            "set": {f"methods.{item['method']}.{name}": value for name, value in item["tried"][0]["setting"].items()},
        }
        for item in chosen
        if item["tried"][0]["setting"]
    ]
    methods = sorted({item["method"] for item in chosen})
    record = {
        method: {
            "trials": tuning.count,
            "objective": f"validation {tuning.objective}",
            "results": [
                {k: v for k, v in item.items() if k != "method"} for item in chosen if item["method"] == method
            ],
        }
        for method in methods
    }
    body = yaml.safe_dump({"cases": cases, "tuned": record}, sort_keys=False, width=120)
    return f"# Written by `{command}`: settings chosen on the validation split.\n{body}"
