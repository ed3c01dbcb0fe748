"""A plugin's options: casting what a suite says to the declared types, and naming the result exactly.

OmegaConf does the casting, one option at a time, so that every mistake is found and none hides another.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bpcbench.api import Plugin
from bpcbench.errors import UserError, unknown
from bpcbench.plugins import Registered, Registry
from bpcbench.records import Ref


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


@functools.cache
def type_hints(cls: type[Any]) -> Mapping[str, Any]:
    """Return the resolved types of a plugin's options."""
    return typing.get_type_hints(cls)


def readable_type(hint: Any) -> str:
    """Return a type as people write it: `int`, `float or none`, `'a' | 'b'`."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return " | ".join(repr(arg) for arg in args)
    if type(None) in args:
        return " or ".join(readable_type(arg) for arg in args if arg is not type(None)) + " or none"
    if origin in (list, tuple):
        return f"list of {readable_type(args[0])}" if args else "list"
    if hint is type(None):
        return "none"
    return getattr(hint, "__name__", str(hint))


def build(registry: Registry, kind: str, ref: Ref, base: type[Plugin] | None = None) -> Plugin:
    """Return the plugin instance that `ref` describes, with nested references built; raise OptionError if not."""
    registered = registry.get(kind, ref.plugin)
    if base is not None and not issubclass(registered.cls, base):
        allowed = [name for name in registry.names(kind) if issubclass(registry.get(kind, name).cls, base)]
        raise UserError(f"{ref.plugin!r} is not a {base.__name__.lower()}; " + unknown("plugin", ref.plugin, allowed))
    problems: list[Problem] = []
    values = dict(_cast_all(registry, registered, ref.options, problems))
    if problems:
        raise OptionError(ref.plugin, problems)
    try:
        return registered.cls(**values)
    except (ValueError, TypeError) as error:
        raise OptionError(ref.plugin, [Problem((), str(error))]) from None


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
    for name in options:
        if name not in fields:
            problems.append(Problem((str(name),), unknown(f"option of {registered.cls.name}", name, fields)))
    hints = type_hints(registered.cls)
    for name, field in fields.items():
        kind = field.metadata.get("refers")
        value = options[name] if name in options else _default(field)
        if kind is None:
            if name in options:
                try:
                    yield name, cast(hints[name], value)
                except ValueError as error:
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
    """Return `value` as the declared type; raise ValueError that says what is allowed."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    if hint is str and not isinstance(value, str):
        # OmegaConf would turn 3 into '3' without a word; a number where a name belongs is a mistake.
        raise ValueError(f"expected str, got {value!r}")
    try:
        config = OmegaConf.structured(_holder(hint))
        config.value = value
        plain = OmegaConf.to_container(config)["value"]  # type: ignore[index,call-overload]
    except (OmegaConfBaseException, ValueError, TypeError):
        raise ValueError(f"expected {readable_type(hint)}, got {value!r}") from None
    if isinstance(plain, list) and typing.get_origin(hint) is tuple:
        return tuple(plain)
    return plain


def identity(registry: Registry, plugin: Plugin, *, name: str | None = None) -> dict[str, Any]:
    """Return what determines a plugin's results: `distribution:name`, version and options, nested plugins alike.

    Options marked `key=False`, and options at their `absent` value, are left out.
    """
    kind = kind_of(plugin)
    registered = registry.get(kind, name or plugin.name)
    options: dict[str, Any] = {}
    for field in dataclasses.fields(plugin):
        value = getattr(plugin, field.name)
        if not field.metadata.get("key", True):
            continue
        if "absent" in field.metadata and value == field.metadata["absent"]:
            continue
        options[field.name] = identity(registry, value) if isinstance(value, Plugin) else _plain(value)
    return {"plugin": f"{registered.distribution}:{plugin.name}", "version": plugin.version, "options": options}


def describe(plugin: Plugin) -> dict[str, Any]:
    """Return `{plugin: name, option: value, ...}` with every option, from which `as_ref` and `build` make it again."""
    result: dict[str, Any] = {"plugin": plugin.name}
    for field in dataclasses.fields(plugin):
        value = getattr(plugin, field.name)
        result[field.name] = describe(value) if isinstance(value, Plugin) else _plain(value)
    return result


def kind_of(plugin: Plugin) -> str:
    """Return `method`, `network`, ... of an instance."""
    from bpcbench.plugins import KINDS

    return next(kind for kind, base in KINDS.items() if isinstance(plugin, base))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


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
