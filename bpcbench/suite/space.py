"""What `bpcbench tune` tries: a declared space, a fixed number of trials, and the suite of all trials.

Tuning is outside the plan. It turns a suite into another one, whose methods are the trials and whose split is
`validation`, and runs that one.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bpcbench.errors import Mistake, Mistakes, UserError, unknown
from bpcbench.suite.document import Document
from bpcbench.suite.keys import KEYS
from bpcbench.suite.model import NATIVE

MAX_OPTIONS = 3


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
    inference: Mapping[str, str] = field(default_factory=dict)
    """The inference that evaluates a method's trials, by method; the native one for methods that are not listed."""


def declared(doc: Document) -> Tuning:
    """Read `tune:`; raise Mistakes unless it declares a space of one to three options for every method it names."""
    raw = doc.values.get("tune")
    mistakes: list[Mistake] = []

    def mistake(path: tuple[str, ...], message: str) -> None:
        place = doc.place(path)
        mistakes.append(Mistake(".".join(path), message, *((place.line, place.file) if place else ())))

    if not isinstance(raw, Mapping) or not isinstance(raw.get("space"), Mapping) or not raw["space"]:
        raise UserError("the suite has nothing to tune; add `tune: {trials: 8, space: {METHOD: {OPTION: [values]}}}`")
    allowed = KEYS["tune"].schema["properties"]
    for key in raw:
        if key not in allowed:
            mistake(("tune", key), unknown("key", key, allowed))
    if doc.values.get("split") == "test":
        mistake(("split",), "tuning on the test split is not allowed; remove `split`")
    count = raw.get("trials", 8)
    if not isinstance(count, int) or isinstance(count, bool) or count < 2:
        mistake(("tune", "trials"), f"expected an integer above 1, got {count!r}")
        count = 2
    trials: list[Trial] = []
    methods = doc.values.get("methods")
    for method, space in raw["space"].items():
        path = ("tune", "space", method)
        if space is False or (isinstance(methods, Mapping) and methods.get(method, True) is False):
            continue  # excluded here, or together with its method
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
        raise UserError("tune.space: every method is excluded")
    return Tuning(tuple(trials), str(raw.get("objective", "nll")), dict(under))


def _is_space(values: Any) -> bool:
    if isinstance(values, Mapping):
        low, high = values.get("low"), values.get("high")
        numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in (low, high))
        return numbers and 0 < low < high if values.get("log") else numbers and low < high  # type: ignore[operator]
    return isinstance(values, list) and len(values) > 0


def _settings(space: Mapping[str, Any], count: int, seed: Any) -> list[dict[str, Any]]:
    """Return the suite's own setting and random draws without repetition: `count` of them if the space has so many."""
    draws = random.Random(f"{seed}:{sorted(space)}")  # noqa: S311 - not for cryptography
    settings: list[dict[str, Any]] = [{}]
    for _ in range(100 * count):
        if len(settings) == count:
            break
        setting = {name: _draw(values, draws) for name, values in space.items()}
        if setting not in settings:
            settings.append(setting)
    return settings


def _draw(values: Any, draws: random.Random) -> Any:
    if isinstance(values, list):
        return draws.choice(values)
    low, high = float(values["low"]), float(values["high"])
    if values.get("log"):
        return float(f"{math.exp(draws.uniform(math.log(low), math.log(high))):.3g}")
    return float(f"{draws.uniform(low, high):.3g}")


def trial_document(doc: Document, tuning: Tuning, name: str) -> Document:
    """Return the suite of all trials on the validation split: each has one coreset, evaluated once by one inference."""
    values = {key: value for key, value in doc.values.items() if key not in ("tune", "exclude", "extends")}
    methods = values.get("methods") or {}
    if isinstance(methods, list):
        methods = dict.fromkeys(methods)
    chosen = {}
    for trial in tuning.trials:
        if trial.method not in methods:
            raise UserError(f"tune.space.{trial.method}: the suite has no method with this label")
        own = methods[trial.method] or {}
        own = {"plugin": own} if isinstance(own, str) else own
        chosen[trial.label] = {"plugin": trial.method, **own, **trial.setting}
    cases = [{"when": case["when"], "set": dict(_retarget(case["set"], tuning))} for case in values.get("cases") or []]
    inferences = values.get("inferences") or {}
    inferences = dict.fromkeys(inferences) if isinstance(inferences, list) else inferences
    evaluated_by = {trial.label: tuning.inference.get(trial.method, NATIVE) for trial in tuning.trials}
    used = list(dict.fromkeys(evaluated_by.values()))
    values |= {
        "name": f"{name}-tune",
        "split": "validation",
        "seeds": {"distil": 1, "evaluate": 1},
        "inferences": {label: inferences.get(label) for label in used},
        "networks": {NATIVE: None},
        "exclude": [
            {"method": label, "inference": [other for other in used if other != inference]}
            for label, inference in evaluated_by.items()
            if len(used) > 1
        ],
        "methods": chosen,
        "cases": cases,
    }
    return Document(values, dict(doc.places), doc.left_out, doc.notes)


def _retarget(assignments: Mapping[str, Any], tuning: Tuning) -> list[tuple[str, Any]]:
    """Return what a case sets, applied to the trials of its methods, except the options that a trial sets itself."""
    result = []
    for key, value in assignments.items():
        axis, label, option = key.split(".", 2)
        if axis == "preprocessing" or (axis == "inferences" and label in tuning.inference.values()):
            result.append((key, value))
        affected = [t for t in tuning.trials if axis == "methods" and t.method == label and option not in t.setting]
        result += [(f"methods.{trial.label}.{option}", value) for trial in affected]
    return result
