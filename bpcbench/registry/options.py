"""A plugin's options: cast the values of a suite to the declared types, and describe the result exactly.

OmegaConf does the casting, one option at a time, so that all mistakes are reported together.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import math
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from bpcbench.api import Plugin
from bpcbench.errors import UserError, unknown
from bpcbench.records import Ref
from bpcbench.registry.discovery import Registered, Registry


@dataclass(frozen=True)
class Problem:
    """Something wrong with one option; `path` is relative to the plugin's mapping."""

    path: tuple[str, ...]
    message: str


class OptionError(UserError):
    """A plugin cannot be built from these options."""

    def __init__(self, what: str, problems: list[Problem]) -> None:
        self.problems = problems
        super().__init__("; ".join(f"{what}.{'.'.join(p.path)}: {p.message}" for p in problems))


def type_hints(cls: Any) -> Mapping[str, Any]:
    """Return the resolved types of a plugin's options."""
    return _type_hints(cls)


@functools.cache
def _type_hints(cls: Any) -> Mapping[str, Any]:
    return typing.get_type_hints(cls)


def readable_type(hint: Any) -> str:
    """Return a readable name of a type: `int`, `float or null`, `'a' | 'b'`."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return " | ".join(repr(arg) for arg in args)
    if type(None) in args:
        return " or ".join(readable_type(arg) for arg in args if arg is not type(None)) + " or null"
    if origin is tuple and Ellipsis not in args:
        return f"[{', '.join(map(readable_type, args))}]"
    if origin in (list, tuple):
        return f"list of {readable_type(args[0])}" if args else "list"
    return getattr(hint, "__name__", str(hint))


def build(registry: Registry, kind: str, ref: Ref, base: type[Plugin] | None = None) -> Plugin:
    """Return the plugin instance that `ref` describes, with nested references built, or raise OptionError."""
    registered = registry.get(kind, ref.plugin)
    if base is not None and not issubclass(registered.cls, base):
        allowed = [name for name in registry.names(kind) if issubclass(registry.get(kind, name).cls, base)]
        raise UserError(f"{ref.plugin!r} is not a {base.__name__.lower()} (allowed: {', '.join(allowed)})")
    problems: list[Problem] = []
    values = dict(_cast_all(registry, registered, ref.options, problems))
    if problems:
        raise OptionError(ref.plugin, problems)
    try:
        return registered.cls(**values)
    except Exception as error:
        message = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise OptionError(ref.plugin, [Problem((), message)]) from None


def ready(registry: Registry, plugin: Plugin) -> Plugin:
    """Return the plugin as the harness hands it to a stage: references are built, values have their declared types."""
    hints = type_hints(type(plugin))
    options: dict[str, Any] = {}
    for field in dataclasses.fields(plugin):
        value = getattr(plugin, field.name)
        if isinstance(value, Ref):
            options[field.name] = build(registry, field.metadata["refers"], value)
        elif isinstance(value, Plugin):
            options[field.name] = ready(registry, value)
        elif "refers" not in field.metadata:
            # A float written as 1 must have the same key as the 1.0 that a worker builds.
            with contextlib.suppress(ValueError):
                options[field.name] = cast(hints[field.name], value)
    return dataclasses.replace(plugin, **options)


def as_ref(value: Any) -> Ref:
    """Read a name, a mapping with `plugin` and options, or a Ref."""
    if isinstance(value, Ref):
        return value
    if isinstance(value, str):
        return Ref(value)
    if isinstance(value, Mapping) and isinstance(value.get("plugin"), str):
        return Ref(value["plugin"], {k: v for k, v in value.items() if k != "plugin"})
    raise UserError(f"expected a plugin's name or a mapping with `plugin`, got {value!r}")


def _cast_all(
    registry: Registry, registered: Registered, options: Mapping[str, Any], problems: list[Problem]
) -> Iterator[tuple[str, Any]]:
    fields = {field.name: field for field in dataclasses.fields(registered.cls)}
    what = f"option of {registered.cls.name}"
    problems += [Problem((name,), unknown(what, name, fields)) for name in options if name not in fields]
    hints = type_hints(registered.cls)
    for name, field in fields.items():
        kind = field.metadata.get("refers")
        value = options[name] if name in options else _default(field)
        default = _default(field)
        if isinstance(value, Mapping) and "plugin" not in value and isinstance(default, Ref):
            # Options without a name are those of the plugin that is the default.
            value = Ref(default.plugin, {**default.options, **value})
        if kind is None:
            # Defaults too: a float written as 1 must have the same key as the suite's 1.0.
            try:
                yield name, cast(hints[name], value)
            except ValueError as error:
                if name in options:
                    problems.append(Problem((name,), str(error)))
            continue
        if value is None or isinstance(value, Plugin):
            yield name, value
            continue
        try:
            yield name, build(registry, kind, as_ref(value))
        except OptionError as error:
            problems += [Problem((name, *problem.path), problem.message) for problem in error.problems]
        except UserError as error:
            problems.append(Problem((name,), str(error)))


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default


@functools.cache
def _holder(hint: Any) -> Any:
    return dataclasses.make_dataclass("Option", [("value", hint)])


def cast(hint: Any, value: Any) -> Any:
    """Return `value` as the declared type; raise ValueError naming what is allowed."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    kinds = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    if type(value) in _SCALARS and type(value) in kinds and _faithful(value, value):
        return value  # A shortcut: OmegaConf takes a third of a millisecond for the same answer.
    try:
        config = OmegaConf.structured(_holder(hint))
        OmegaConf.update(config, "value", value, merge=False)
        plain = OmegaConf.to_container(config)["value"]  # type: ignore[index,call-overload]
    except (OmegaConfBaseException, ValueError, TypeError):
        plain = _REFUSED
    if plain is _REFUSED or not _faithful(value, plain):
        raise ValueError(f"expected {readable_type(hint)}, got {value!r}")
    return plain


_REFUSED = object()
_SCALARS = (int, float, bool, str, type(None))


def _faithful(before: Any, after: Any) -> bool:
    """Return whether a cast kept the meaning: OmegaConf turns 3 into '3', 5 into True, and accepts ??? and ${}."""
    if isinstance(after, Mapping):
        return all(map(_faithful, before.values(), after.values()))
    if isinstance(after, list | tuple):
        return all(map(_faithful, before, after))
    if isinstance(after, str):
        return isinstance(before, str) and after != "???" and "${" not in after
    if isinstance(after, bool):
        return isinstance(before, bool)
    return not isinstance(after, float) or math.isfinite(after)


def describe(plugin: Plugin) -> dict[str, Any]:
    """Return `{plugin: name, option: value, ...}` with every option; `as_ref` and `build` invert it."""
    result: dict[str, Any] = {"plugin": plugin.name}
    for field in dataclasses.fields(plugin):
        value = getattr(plugin, field.name)
        result[field.name] = describe(value) if isinstance(value, Plugin) else plain(value)
    return result


def plain(value: Any) -> Any:
    """Return an option's value as JSON: tuples become lists, paths become text."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return str(value) if isinstance(value, PurePath) else value


def plugins_within(plugin: Plugin) -> Iterator[Plugin]:
    """Yield the plugin and every plugin its options refer to."""
    yield plugin
    for field in dataclasses.fields(plugin):
        value = getattr(plugin, field.name)
        if isinstance(value, Plugin):
            yield from plugins_within(value)


def documentation(cls: type[Plugin]) -> list[tuple[str, str, str, str]]:
    """Return (name, type, default, help) of every option of a plugin class."""
    hints = type_hints(cls)
    rows = []
    for field in dataclasses.fields(cls):
        default = _default(field)
        kind = field.metadata.get("refers")
        shown = f"{default.plugin} {dict(default.options) or ''}".strip() if isinstance(default, Ref) else repr(default)
        rows.append((field.name, kind or readable_type(hints[field.name]), shown, field.metadata.get("help", "")))
    return rows


def summary(cls: type[Plugin]) -> str:
    """Return the first line of a plugin's own docstring."""
    doc = cls.__dict__.get("__doc__") or ""
    if doc.startswith(f"{cls.__name__}("):
        return ""
    return inspect.cleandoc(doc).splitlines()[0] if doc else ""
