"""The keys of a suite: one table with the help line, the reader and the JSON schema of each.

Validation, the schema and the messages are derived from the table. A key with a plain value needs an entry here and a
field of the same name in `Suite`. Keys that name plugins or depend on other keys are read in `validation`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bpcbench.errors import unknown
from bpcbench.suite.document import KeyPath
from bpcbench.suite.tasks import ORDER_SCHEMA, Tasks

PROTOCOLS = (1,)
"""The versions of the comparison rules, the current one last."""

Report = Callable[[KeyPath, str], None]
"""Takes the path of a mistake and its message."""
Reader = Callable[[Any, Report], Any]
"""Takes the value of a key and where to report mistakes, by paths relative to the key; returns the value to keep."""
Schema = Mapping[str, Any]

DEVICES = ("auto", "cpu", "cuda", "mps", "xpu", "hpu", "npu", "xla")
"""The devices that torch knows, some of them with a package of their maker."""
PRECISIONS = ("float32", "tf32", "bf16")
_DEVICE = rf"auto|cpu|({'|'.join(DEVICES[2:])})(:[0-9]+)?"
NAME_LENGTH = 120
"""The most bytes that a name may have: it becomes part of the names of folders."""

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True)
class Key:
    """One key of a suite."""

    help: str
    read: Reader | None = None
    """None: the key is read elsewhere, together with the keys or plugins it depends on."""
    schema: Schema = field(default_factory=dict)
    """The JSON schema of the value; that of a key with a `kind` is derived from the installed plugins."""
    required: str = ""
    """What is expected, for a key that every suite needs."""
    kind: str = ""
    """The kind of plugin that the value names."""
    labels: bool = False
    """Whether the value maps labels to plugins of the kind, instead of naming one plugin."""
    fields: tuple[str, ...] = ()
    """The fields of `Suite` that take the value, where there are several or the one is not called like the key."""


def record(properties: Mapping[str, Any], required: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the JSON schema of a mapping that has these keys only."""
    schema = {"type": "object", "properties": dict(properties), "additionalProperties": False}
    return {**schema, "required": list(required)} if required else schema


def is_count(value: Any) -> bool:
    """Return whether a value is an integer above 0; a truth value is not."""
    return type(value) is int and value > 0


def is_name(value: Any) -> bool:
    """Return whether a value can name a suite or a label, and so a folder: printable, not too long, without a slash."""
    return (
        isinstance(value, str)
        and value.isprintable()
        and "/" not in value
        and value not in ("", ".", "..")
        and len(value.encode()) <= NAME_LENGTH
    )


def _expect(good: Callable[[Any], bool], what: str) -> Reader:
    def read(value: Any, report: Report) -> Any:
        if not good(value):
            report((), f"expected {what}, got {value!r}")
        return value

    return read


def _ipc(raw: Any, report: Report) -> tuple[int, ...]:
    values = raw if isinstance(raw, list) else [raw]
    counts = {value for value in values if is_count(value)}
    if not values or not all(map(is_count, values)):
        report((), f"expected a non-empty list of integers above 0, got {raw!r}")
    return tuple(sorted(counts))


def _seeds(raw: Any, report: Report) -> tuple[int, int]:
    axes = ("distil", "evaluate")
    if type(raw) is int:
        raw = dict.fromkeys(axes, raw)
    if not isinstance(raw, Mapping):
        report((), f"expected {{distil: n, evaluate: m}}, got {raw!r}")
        return 1, 1
    for key in raw:
        if key not in axes:
            report((key,), unknown("seed axis", key, axes))
    for key in axes:
        if not is_count(raw.get(key, 1)):
            report((key,), f"expected an integer above 0, got {raw[key]!r}")
    return raw.get("distil", 1), raw.get("evaluate", 1)


def _tasks(raw: Any, report: Report) -> Tasks | None:
    if raw is None:
        return None
    allowed = ("steps", "order", "orders")
    if not isinstance(raw, Mapping) or "steps" not in raw:
        report((), f"expected {{steps: n, order: m}} or {{steps: n, orders: [m, ...]}}, got {raw!r}")
    for key in raw if isinstance(raw, Mapping) else ():
        if key not in allowed:
            report((key,), unknown("key", key, allowed))
    if not isinstance(raw, Mapping) or "steps" not in raw:
        return None
    steps, key = raw["steps"], "orders" if "orders" in raw else "order"
    if {"order", "orders"} <= set(raw):
        report(("orders",), "order and orders exclude each other")
    elif isinstance(raw.get("order"), list):
        report(("order",), f"expected one order; several are written orders: {raw['order']!r}")
        return None
    orders = raw.get(key, 0)
    for name, made in (("steps", lambda: Tasks(steps)), (key, lambda: Tasks(2, _listed(orders)))):
        try:
            made()
        except ValueError as error:
            report((name,), str(error))
            return None
    return Tasks(steps, _listed(orders))


def _listed(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, list) else (value,)


def _protocol(raw: Any, report: Report) -> Any:
    if type(raw) is not int or raw not in PROTOCOLS:
        report((), f"unknown version {raw!r} (allowed: {', '.join(map(str, PROTOCOLS))})")
    return raw


def _device(raw: Any, report: Report) -> Any:
    if not isinstance(raw, str):
        report((), f"expected a word such as auto, cpu or cuda, got {raw!r}")
    elif not re.fullmatch(_DEVICE, raw):
        name = raw.partition(":")[0]
        report((), f"{unknown('device', name, DEVICES)}; a number may follow, as in cuda:1")
    return raw


def _precision(raw: Any, report: Report) -> Any:
    if not isinstance(raw, str):
        report((), f"expected a word such as float32, got {raw!r}")
    elif raw not in PRECISIONS:
        report((), unknown("precision", raw, PRECISIONS))
    return raw


def _seconds(raw: Any, report: Report) -> float | None:
    if raw is None:
        return None
    try:
        seconds = float(raw[:-1]) * _UNITS[raw[-1]] if isinstance(raw, str) else float(raw)
    except (ValueError, KeyError, TypeError, IndexError):
        seconds = -1
    if isinstance(raw, bool) or not 0 < seconds < float("inf"):
        report((), f"expected seconds above 0, or a duration such as 30m or 2h, got {raw!r}")
    return seconds


def _metrics(raw: Any, report: Report) -> tuple[str, ...]:
    if not isinstance(raw, list) or not raw or not all(isinstance(metric, str) for metric in raw):
        report((), f"expected a list of metric names, got {raw!r}")
        return ()
    return tuple(raw)


def _trials(raw: Any, report: Report) -> dict[str, int]:
    """Return the number of settings tried for each method."""
    if not isinstance(raw, Mapping):
        report((), f"expected {{METHOD: {{trials: n}}}}, as `bpcbench tune` writes it, got {raw!r}")
        return {}
    result = {}
    for method, tuned in raw.items():
        if not isinstance(tuned, Mapping) or not is_count(tuned.get("trials")):
            report((method,), "expected a mapping with the number of `trials`, as `bpcbench tune` writes it")
            continue
        for key in tuned:
            if key not in _TUNED:
                report((method, key), unknown("key", key, _TUNED))
        result[method] = tuned["trials"]
    return result


_TEXT = {"type": "string"}
_COUNT = {"type": "integer", "minimum": 1}
_TUNED = {"trials": _COUNT, "objective": _TEXT, "record": _TEXT}

KEYS: Mapping[str, Key] = {
    "name": Key(
        "the experiment's name; default: the name of the file",
        _expect(is_name, f"a word without /, {NAME_LENGTH} bytes at most"),
        {"type": "string", "pattern": "^[^/]+$", "maxLength": NAME_LENGTH},
    ),
    "description": Key("one line for people", _expect(lambda v: isinstance(v, str), "text"), _TEXT),
    "protocol": Key(
        "version of the comparison rules (docs/protocol.md); default: the current one",
        _protocol,
        {"enum": list(PROTOCOLS)},
    ),
    "extends": Key(
        "a suite, or several, to start from",
        schema={"anyOf": [_TEXT, {"type": "array", "items": _TEXT}]},
    ),
    "datasets": Key(
        "labels of data sets, with options",
        kind="dataset",
        labels=True,
        required="a list of names, or a mapping of labels to options",
    ),
    "ipc": Key(
        "images per class, a list of integers",
        _ipc,
        {"anyOf": [_COUNT, {"type": "array", "items": _COUNT, "minItems": 1}]},
        required="a list of images per class, such as [1, 10]",
    ),
    "methods": Key(
        "labels of methods, with options",
        kind="method",
        labels=True,
        required="a list of names, or a mapping of labels to options",
    ),
    "preprocessing": Key(
        "labels of preprocessings; `default` is used by every method that names no other",
        kind="preprocessing",
        labels=True,
    ),
    "inferences": Key(
        "labels of inferences, with options; `native` is each method's own", kind="inference", labels=True
    ),
    "networks": Key(
        "labels of evaluation networks, with options; `native` is each method's own", kind="network", labels=True
    ),
    "evaluators": Key("labels of evaluators, with options", kind="evaluator", labels=True),
    "seeds": Key(
        "{distil: n, evaluate: m}: coresets per cell, evaluations per coreset",
        _seeds,
        {"anyOf": [_COUNT, record({"distil": _COUNT, "evaluate": _COUNT})]},
        fields=("distil_seeds", "evaluate_seeds"),
    ),
    "tasks": Key(
        "{steps: n, order: m} or {steps: n, orders: [m, ...]}: the classes come in n steps, a coreset each; m is the "
        "seed of a permutation, or natural; null: all classes at once",
        _tasks,
        {
            "anyOf": [
                {"type": "null"},
                {
                    **record(
                        {
                            "steps": {"type": "integer", "minimum": 2},
                            "order": ORDER_SCHEMA,
                            "orders": {"anyOf": [ORDER_SCHEMA, {"type": "array", "items": ORDER_SCHEMA}]},
                        },
                        required=("steps",),
                    ),
                    "not": {"required": ["order", "orders"]},
                },
            ]
        },
    ),
    "split": Key(
        "test, or validation (a tenth of train, held out)",
        _expect(lambda v: v in ("test", "validation"), "test or validation"),
        {"enum": ["test", "validation"]},
    ),
    "examples": Key(
        "evaluate a fixed stratified subset of this many images of every split; null: all images",
        _expect(lambda v: v is None or is_count(v), "an integer above 0, or null for all images"),
        {"type": ["integer", "null"], "minimum": 1},
    ),
    "cases": Key(
        "list of {when: {dataset, ipc}, set: {KEY: value}}: options for some cells only",
        schema={"type": "array", "items": record({"when": {"type": "object"}, "set": {"type": "object"}})},
    ),
    "exclude": Key(
        "list of {dataset, ipc, method, inference, network} patterns of cells to leave out",
        schema={"type": "array", "items": {"type": "object"}},
    ),
    "threads": Key(
        "CPU threads per stage; they can change results, so they never depend on --jobs",
        _expect(is_count, "an integer above 0"),
        _COUNT,
    ),
    "precision": Key(
        "float32, tf32 (float32 with faster, rougher products on NVIDIA GPUs) or bf16 (features under autocast)",
        _precision,
        {"enum": list(PRECISIONS)},
    ),
    "deterministic": Key(
        "use only algorithms of torch that give equal bits in every run; an operation without one fails",
        _expect(lambda v: isinstance(v, bool), "true or false"),
        {"type": "boolean"},
    ),
    "device": Key("auto, cpu, cuda, cuda:1, ...", _device, {"type": "string", "pattern": f"^({_DEVICE})$"}),
    "timeout": Key(
        "limit per stage: seconds, or a duration such as 30m or 2h; null: no limit",
        _seconds,
        {"anyOf": [{"type": ["number", "null"]}, {"type": "string", "pattern": "^[0-9.]+[smhd]$"}]},
    ),
    "engine": Key("how stages are run: a name, or a mapping with `plugin` and options", kind="engine"),
    "metrics": Key(
        "the metrics that the table shows, in order",
        _metrics,
        {"type": "array", "items": _TEXT, "minItems": 1},
    ),
    "tune": Key(
        "{trials, seed, objective, inference: {METHOD: LABEL}, space: {METHOD: {OPTION: values}}}: "
        "what `bpcbench tune` tries",
        schema=record(
            {
                "trials": {"type": "integer", "minimum": 2},
                "seed": {"type": "integer"},
                "objective": _TEXT,
                "inference": {"type": "object", "additionalProperties": _TEXT},
                "space": {"type": "object", "additionalProperties": {"type": "object"}},
            }
        ),
    ),
    "tuned": Key(
        "{METHOD: {trials, objective, record}}, written by `bpcbench tune`; tables print the number of trials",
        _trials,
        {"type": "object", "additionalProperties": record(_TUNED, required=("trials",))},
        fields=("tried",),
    ),
}

AXES: Mapping[str, str] = {name: key.kind for name, key in KEYS.items() if key.labels}
"""The keys whose labels stand for plugins, and the kind of each."""
