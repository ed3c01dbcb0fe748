"""From a document to a Suite: all keys, types, names and options are checked, and all mistakes reported together."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

from bpcbench.api import Engine, Evaluator, Plugin, Preprocessing
from bpcbench.errors import Mistake, Mistakes, UserError, did_you_mean, unknown
from bpcbench.records import Ref
from bpcbench.registry.discovery import Registry
from bpcbench.registry.options import OptionError, build
from bpcbench.suite.cases import Case, read_cases, read_exclude
from bpcbench.suite.document import Document, KeyPath
from bpcbench.suite.keys import AXES, KEYS, NAME_LENGTH, PROTOCOLS, is_name
from bpcbench.suite.model import NATIVE, MethodChoice, Setting, Suite

_DEFAULT_BASES: Mapping[str, type[Plugin]] = {"preprocessing": Preprocessing, "evaluators": Evaluator}
"""The axes that have a default plugin, and the class of such a plugin."""


def metric_names(evaluators: Iterable[Evaluator]) -> set[str]:
    """Return the names of the metrics that evaluators declare."""
    return {metric.name for evaluator in evaluators for metric in evaluator.metrics()}


def validate(registry: Registry, doc: Document, file: Path = Path("suite")) -> Suite:
    """Return the Suite that a document describes, or raise Mistakes; its default name is that of the file."""
    return _Validator(registry, doc).suite(file)


class _Validator:
    def __init__(self, registry: Registry, doc: Document) -> None:
        self.registry = registry
        self.doc = doc
        self.mistakes: dict[tuple[KeyPath, str], Mistake] = {}
        self.defaults: dict[str, dict[str, dict[str, Any]]] = {}
        self.build = functools.cache(self._build)

    def mistake(self, path: KeyPath, message: str) -> None:
        place = self.doc.place(path)
        located = Mistake(".".join(path), message, place.line if place else None, place.file if place else None)
        self.mistakes.setdefault((path, message), located)

    def suite(self, file: Path) -> Suite:
        values = self.doc.values
        for name in values:
            if name not in KEYS:
                self.mistake((name,), unknown("key", name, KEYS))
        fields = self._plain_keys()
        axes = {axis: self._axis(axis) for axis in AXES}
        datasets = {k: self._plugin(("datasets", k), "dataset", v) for k, v in axes["datasets"].items()}
        evaluators = {k: self._plugin(("evaluators", k), "evaluator", v) for k, v in axes["evaluators"].items()}
        for axis in ("datasets", "methods", "evaluators", "inferences", "networks"):
            if not axes[axis] and not any(path[0] == axis for path, _ in self.mistakes):
                self.mistake((axis,), "empty: at least one is needed")
        known = {axis: {*self.registry.names(kind), *self.doc.left_out.get(axis, ())} for axis, kind in AXES.items()}
        cases = read_cases(values.get("cases"), axes, known, self.mistake)
        settings = {
            (label, count): self._setting(axes, [c for c in cases if c.matches(label, count)])
            for label in axes["datasets"]
            for count in fields.get("ipc", ())
        }
        if not settings:
            self._setting(axes, [])  # without a cell, the options of the plugins are still checked
        exclude = read_exclude(values.get("exclude"), axes, known, self.mistake)
        engine = self._engine(values.get("engine", "local"))
        built = [e for e in evaluators.values() if e is not None]
        self._known_metrics(fields.get("metrics", ()), built)
        if "metrics" not in fields and not set(Suite.metrics) & metric_names(built):
            # None of the usual metrics: those of the suite's own evaluators, as they declare them.
            declared = tuple(dict.fromkeys(metric.name for e in built for metric in e.metrics()))
            fields["metrics"] = declared or Suite.metrics
        for label, evaluator in evaluators.items():
            if evaluator is not None and evaluator.uses_tasks and fields.get("tasks") is None:
                self.mistake(
                    ("evaluators", label), "it scores class-incremental learning: add the key tasks, such as {steps: 5}"
                )
        if self.mistakes:
            raise Mistakes(str(file), self.mistakes.values())
        fields = {"name": file.stem, "protocol": PROTOCOLS[-1], **fields}
        return Suite(
            datasets=cast(Any, datasets),
            settings=settings,
            evaluators=cast(Any, evaluators),
            exclude=exclude,
            engine=engine,
            # Kept with results: another version or another set of plugins may have other defaults.
            source={**values, **self.defaults, "protocol": fields["protocol"]},
            notes=self.doc.notes,
            **fields,
        )

    def _plain_keys(self) -> dict[str, Any]:
        """Return the values that the readers of the table return, by field of `Suite`; absent keys have no field."""
        result: dict[str, Any] = {}
        for name, key in KEYS.items():
            value = self.doc.values.get(name)
            if key.required and value is None:
                self.mistake((name,), f"missing: {key.required}")
            elif key.read and name in self.doc.values:
                read = key.read(value, functools.partial(self._below, name))
                fields = key.fields or (name,)
                result |= zip(fields, read if len(fields) > 1 else (read,), strict=True)
        return result

    def _reported(self, path: KeyPath) -> bool:
        return any(path == reported for reported, _ in self.mistakes)

    def _below(self, name: str, path: KeyPath, message: str) -> None:
        self.mistake((name, *path), message)

    def _axis(self, axis: str) -> dict[str, dict[str, Any]]:
        raw = self.doc.values.get(axis)
        if raw is None:
            return self._absent(axis)
        if axis == "preprocessing" and isinstance(raw, str):
            raw = {"default": {"plugin": raw}}
        elif axis == "preprocessing" and isinstance(raw, Mapping) and isinstance(raw.get("plugin"), str):
            raw = {"default": dict(raw)}
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
            if set(label) & set("/@: ,=") or not is_name(label):
                self.mistake(
                    (axis, label), f"a label is a word without / @ : , = or spaces, {NAME_LENGTH} bytes at most"
                )
            elif options is not None and not isinstance(options, Mapping):
                self.mistake((axis, label), f"expected a mapping of options, got {options!r}")
            else:
                result[label] = dict(options or {})
        return result

    def _absent(self, axis: str) -> dict[str, dict[str, Any]]:
        """Return the labels of an axis whose key is absent or has no value."""
        if KEYS[axis].required:
            return {}  # reported with the other keys that every suite needs
        if axis in self.doc.values:
            self.mistake((axis,), "missing: a list of names, or a mapping of labels to options")
            return {}
        if axis in _DEFAULT_BASES:
            name = self._default(axis, _DEFAULT_BASES[axis])
            if name is None:
                return {}
            self.defaults[axis] = {"default" if axis == "preprocessing" else name: {"plugin": name}}
            return self.defaults[axis]
        return {NATIVE: {}}

    def _default(self, axis: str, base: type[Plugin]) -> str | None:
        """Return the name of the plugin that is the default of an axis; report a mistake if none or several are."""
        what, registered = base.__name__.lower(), self.registry.classes
        names = [n for n in self.registry.names(AXES[axis]) if issubclass(registered[AXES[axis], n].cls, base)]
        # Not inherited: a subclass of a default plugin is another plugin.
        defaults = [n for n in names if vars(registered[AXES[axis], n].cls).get("default") is True]
        if len(defaults) == 1:
            return defaults[0]
        if defaults:
            reason, allowed = f"{len(defaults)} installed plugins are the default {what}", defaults
        else:
            reason, allowed = f"no installed plugin is the default {what}", names
        message = f"missing: {reason}; name one (allowed: {', '.join(allowed) or '(none)'})"
        for broken in () if defaults else self.registry.broken():
            message += f"\n    note: plugin {broken.name!r} of {broken.distribution} did not load: {broken.error}"
        self.mistake((axis,), message)
        return None

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
            message = str(error)
            if written not in self.doc.places and len(path) == 2:
                # A new name in a list of labels may be a label of the suite, mistyped.
                message += did_you_mean(name, {*self.doc.left_out.get(path[0], ())} - {*self.registry.names(kind)})
            self.mistake(origins.get("plugin") or (written if written in self.doc.places else path), message)
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
                    if not isinstance(wanted, str):
                        message = f"expected a label of `preprocessing`, got {wanted!r}"
                        self.mistake(origins.get("preprocessing") or (axis, label, "preprocessing"), message)
                    elif wanted not in axes["preprocessing"] and not self._reported(("preprocessing",)):
                        message = unknown("preprocessing", wanted, axes["preprocessing"])
                        self.mistake(origins.get("preprocessing") or (axis, label, "preprocessing"), message)
                    reserved[label] = wanted
                base = Preprocessing if axis == "preprocessing" else None
                chosen[axis][label] = self._plugin((axis, label), AXES[axis], options, base, origins)
        methods = {label: MethodChoice(plugin, reserved[label]) for label, plugin in chosen["methods"].items()}
        return Setting(methods, chosen["preprocessing"], chosen["inferences"], chosen["networks"])

    def _engine(self, raw: Any) -> Engine | None:
        if isinstance(raw, str):
            raw = {"plugin": raw}
        if not isinstance(raw, Mapping) or "plugin" not in raw:
            self.mistake(("engine",), f"expected an engine's name or a mapping with `plugin`, got {raw!r}")
            return None
        return cast("Engine | None", self._plugin(("engine",), "engine", raw))

    def _known_metrics(self, wanted: tuple[str, ...], evaluators: list[Evaluator]) -> None:
        known = metric_names(evaluators)
        for metric in wanted if evaluators else ():
            if metric not in known:
                self.mistake(("metrics",), unknown("metric", metric, known))
