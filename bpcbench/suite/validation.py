"""From a document to a Suite: every key, type, name and option is checked, and all mistakes are reported together."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

from bpcbench.api import Engine, Evaluator, Preprocessing
from bpcbench.errors import Mistake, Mistakes, UserError, unknown
from bpcbench.records import Ref
from bpcbench.registry.discovery import Registry
from bpcbench.registry.options import OptionError, build
from bpcbench.suite.cases import Case, read_cases, read_exclude
from bpcbench.suite.document import Document, KeyPath
from bpcbench.suite.model import AXES, KEYS, NATIVE, PROTOCOLS, MethodChoice, Setting, Suite


def metric_names(evaluators: Iterable[Evaluator]) -> set[str]:
    """Return the names of the metrics that evaluators declare."""
    return {metric.name for evaluator in evaluators for metric in evaluator.metrics()}


def validate(registry: Registry, doc: Document, file: Path = Path("suite")) -> Suite:
    """Return the Suite that a document describes, or raise Mistakes; one without a name is called like its file."""
    return _Validator(registry, doc).suite(file)


class _Validator:
    def __init__(self, registry: Registry, doc: Document) -> None:
        self.registry = registry
        self.doc = doc
        self.mistakes: dict[tuple[KeyPath, str], Mistake] = {}
        self.build = functools.cache(self._build)

    def mistake(self, path: KeyPath, message: str) -> None:
        place = self.doc.place(path)
        found = Mistake(".".join(path), message, place.line if place else None, place.file if place else None)
        self.mistakes.setdefault((path, message), found)

    def suite(self, file: Path) -> Suite:
        values = self.doc.values
        for key in values:
            if key not in KEYS:
                self.mistake((key,), unknown("key", key, KEYS))
        axes = {axis: self._axis(axis) for axis in AXES}
        if "preprocessing" not in values:
            axes["preprocessing"] = {"default": {"plugin": "standardize"}}
        if "evaluators" not in values:
            axes["evaluators"] = {"classification": {}}
        for axis in ("inferences", "networks"):
            if axis not in values:
                axes[axis] = {NATIVE: {}}
        ipc = self._ipc(values.get("ipc"))
        datasets = {k: self._plugin(("datasets", k), "dataset", v) for k, v in axes["datasets"].items()}
        evaluators = {k: self._plugin(("evaluators", k), "evaluator", v) for k, v in axes["evaluators"].items()}
        for axis in ("datasets", "methods", "evaluators", "inferences", "networks"):
            if not axes[axis] and not any(path[0] == axis for path, _ in self.mistakes):
                self.mistake((axis,), "empty: at least one is needed")
        known = {axis: self.registry.names(kind) for axis, kind in AXES.items()}
        cases = read_cases(values.get("cases"), axes, known, self.mistake)
        settings = {
            (label, count): self._setting(axes, [c for c in cases if c.matches(label, count)])
            for label in axes["datasets"]
            for count in ipc
        }
        if not settings:
            self._setting(axes, [])  # There is no cell, but what is wrong with the plugins is to be said all the same.
        seeds = self._seeds(values.get("seeds", {"distil": 1, "evaluate": 1}))
        protocol = self._protocol(values)
        simple = self._simple(values)
        exclude = read_exclude(values.get("exclude"), axes, known, self.mistake)
        engine = self._engine(values.get("engine", "local"))
        self._known_metrics(simple.get("metrics", ()), [e for e in evaluators.values() if e is not None])
        if self.mistakes:
            raise Mistakes(str(file), self.mistakes.values())
        return Suite(
            name=str(values.get("name") or file.stem),
            description=str(values.get("description") or ""),
            protocol=protocol,
            datasets=cast(Any, datasets),
            ipc=ipc,
            settings=settings,
            evaluators=cast(Any, evaluators),
            distil_seeds=seeds[0],
            evaluate_seeds=seeds[1],
            exclude=exclude,
            engine=engine,
            source=values,
            **simple,
        )

    def _axis(self, axis: str) -> dict[str, dict[str, Any]]:
        raw = self.doc.values.get(axis)
        if raw is None:
            if axis in self.doc.values or axis in ("datasets", "methods"):
                self.mistake((axis,), "missing: a list of names, or a mapping of labels to options")
            return {}
        if axis == "preprocessing" and isinstance(raw, str):
            raw = {"default": {"plugin": raw}}
        if isinstance(raw, str):
            raw = [raw]
        if isinstance(raw, list) and all(isinstance(item, str) for item in raw):
            raw = dict.fromkeys(raw)
        if not isinstance(raw, Mapping):
            self.mistake((axis,), f"expected a list of names or a mapping of labels to options, got {raw!r}")
            return {}
        result = {}
        for label, options in raw.items():
            if options is False:
                continue
            if isinstance(options, str):
                options = {"plugin": options}
            if set(label) & set("/@: ,="):
                self.mistake((axis, label), "a label must not contain / @ : , = or spaces")
            elif options is not None and not isinstance(options, Mapping):
                self.mistake((axis, label), f"expected a mapping of options, got {options!r}")
            else:
                result[label] = dict(options or {})
        return result

    def _build(self, kind: str, ref_text: str, base: Any) -> Any:
        name, options = json.loads(ref_text)
        return build(self.registry, kind, Ref(name, options), base)

    def _plugin(
        self,
        path: KeyPath,
        kind: str,
        options: Mapping[str, Any],
        base: Any = None,
        origins: Mapping[str, KeyPath] | None = None,
    ) -> Any:
        options, origins = dict(options), origins or {}
        name = options.pop("plugin", path[-1])
        if not isinstance(name, str):
            self.mistake((*path, "plugin"), f"expected a plugin's name, got {name!r}")
            return None
        try:
            return self.build(kind, json.dumps([name, options], default=str), base)
        except OptionError as error:
            for problem in error.problems:
                where = origins.get(problem.path[0]) if problem.path else None
                self.mistake(where or (*path, *problem.path), problem.message)
        except UserError as error:
            written = (*path, "plugin")
            self.mistake(origins.get("plugin") or (written if written in self.doc.places else path), str(error))
        return None

    def _setting(self, axes: Mapping[str, Mapping[str, dict[str, Any]]], cases: list[Case]) -> Setting:
        chosen: dict[str, dict[str, Any]] = {}
        reserved: dict[str, str] = {}
        for axis in ("methods", "preprocessing", "inferences", "networks"):
            chosen[axis] = {}
            for label, base_options in axes[axis].items():
                options = dict(base_options)
                origins: dict[str, KeyPath] = {}
                for case in cases:
                    for option, (value, origin) in case.options.get((axis, label), {}).items():
                        options[option], origins[option] = value, origin
                if label == NATIVE and axis in ("inferences", "networks") and not options:
                    chosen[axis][label] = None
                    continue
                if axis == "methods":
                    wanted = options.pop("preprocessing", "default")
                    if wanted not in axes["preprocessing"]:
                        message = unknown("preprocessing", wanted, axes["preprocessing"])
                        self.mistake(origins.get("preprocessing") or (axis, label, "preprocessing"), message)
                    reserved[label] = wanted
                base = Preprocessing if axis == "preprocessing" else None
                chosen[axis][label] = self._plugin((axis, label), AXES[axis], options, base, origins)
        methods = {label: MethodChoice(plugin, reserved[label]) for label, plugin in chosen["methods"].items()}
        return Setting(methods, chosen["preprocessing"], chosen["inferences"], chosen["networks"])

    def _ipc(self, raw: Any) -> tuple[int, ...]:
        values = raw if isinstance(raw, list) else [raw]
        good = [v for v in values if isinstance(v, int) and not isinstance(v, bool) and v > 0]
        if raw is None:
            self.mistake(("ipc",), "missing: a list of images per class, such as [1, 10]")
        elif len(good) != len(values) or not good:
            self.mistake(("ipc",), f"expected a non-empty list of integers above 0, got {raw!r}")
        return tuple(sorted(set(good)))

    def _seeds(self, raw: Any) -> tuple[int, int]:
        if isinstance(raw, int) and not isinstance(raw, bool):
            raw = {"distil": raw, "evaluate": raw}
        if not isinstance(raw, Mapping):
            self.mistake(("seeds",), f"expected {{distil: n, evaluate: m}}, got {raw!r}")
            return 1, 1
        for key in raw:
            if key not in ("distil", "evaluate"):
                self.mistake(("seeds", key), unknown("seed axis", key, ("distil", "evaluate")))
        result = []
        for key in ("distil", "evaluate"):
            value = raw.get(key, 1)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                self.mistake(("seeds", key), f"expected an integer above 0, got {value!r}")
                value = 1
            result.append(value)
        return result[0], result[1]

    def _protocol(self, values: Mapping[str, Any]) -> int:
        protocol = values.get("protocol")
        if type(protocol) is not int or protocol not in PROTOCOLS:
            allowed = ", ".join(map(str, PROTOCOLS))
            what = "missing" if "protocol" not in values else f"unknown version {protocol!r}"
            self.mistake(("protocol",), f"{what} (allowed: {allowed})")
            return PROTOCOLS[-1]
        return protocol

    def _engine(self, raw: Any) -> Engine | None:
        if isinstance(raw, str):
            raw = {"plugin": raw}
        if not isinstance(raw, Mapping) or "plugin" not in raw:
            self.mistake(("engine",), f"expected an engine's name or a mapping with `plugin`, got {raw!r}")
            return None
        return cast("Engine | None", self._plugin(("engine",), "engine", raw))

    def _simple(self, values: Mapping[str, Any]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key, good, what in (
            ("split", lambda v: v in ("test", "validation"), "test or validation"),
            ("examples", lambda v: v is None or _positive(v), "an integer above 0, or null for all images"),
            ("threads", lambda v: _positive(v), "an integer above 0"),
            ("precision", lambda v: isinstance(v, str), "a word such as float32"),
            ("device", lambda v: isinstance(v, str), "a word such as auto, cpu or cuda"),
            ("name", lambda v: isinstance(v, str) and v and "/" not in v, "a word without /"),
            ("description", lambda v: isinstance(v, str), "text"),
        ):
            if key in values and not good(values[key]):
                self.mistake((key,), f"expected {what}, got {values[key]!r}")
            elif key in values and key not in ("name", "description"):
                result[key] = values[key]
        if values.get("timeout") is not None:
            result["timeout"] = self._seconds(values["timeout"])
        if "tuned" in values:
            result["tried"] = self._tried(values["tuned"])
        if "metrics" in values:
            metrics = values["metrics"]
            if not isinstance(metrics, list) or not metrics or not all(isinstance(m, str) for m in metrics):
                self.mistake(("metrics",), f"expected a list of metric names, got {metrics!r}")
            else:
                result["metrics"] = tuple(metrics)
        return result

    def _known_metrics(self, wanted: tuple[str, ...], evaluators: list[Evaluator]) -> None:
        known = metric_names(evaluators)
        for metric in wanted if evaluators else ():
            if metric not in known:
                self.mistake(("metrics",), unknown("metric", metric, known))

    def _tried(self, raw: Any) -> dict[str, int]:
        result = {}
        for method, record in raw.items() if isinstance(raw, Mapping) else ():
            trials = record.get("trials") if isinstance(record, Mapping) else None
            if not isinstance(trials, int):
                self.mistake(("tuned", method), "expected a record with `trials`, as `bpcbench tune` writes it")
            else:
                result[method] = trials
        return result

    def _seconds(self, raw: Any) -> float | None:
        unit = {"s": 1, "m": 60, "h": 3600, "d": 86400}
        try:
            seconds = float(raw[:-1]) * unit[raw[-1]] if isinstance(raw, str) else float(raw)
        except (ValueError, KeyError, TypeError, IndexError):
            seconds = -1
        if isinstance(raw, bool) or not 0 < seconds < float("inf"):
            self.mistake(("timeout",), f"expected seconds above 0, or a text such as 30m or 2h, got {raw!r}")
            return None
        return seconds


def _positive(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
