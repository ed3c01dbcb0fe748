"""The forms of values that were read: whether they have the types that the code relies on, as annotations say it.

A checksum proves that a file is as it was written, not that whoever wrote it knew what belongs in it.
"""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

_LARGEST = 2**63
_NAMES: Mapping[Any, str] = {str: "a text", bool: "true or false", int: "a whole number", float: "a number"}
_Check = Callable[[Any, set[int]], "str | None"]
"""Returns where and what is wrong, or None; the set holds the records that were checked before, by identity."""


@dataclass(frozen=True)
class Rule:
    """What a value must be beyond its type; stands in `Annotated`."""

    words: str
    holds: Callable[[Any], bool]


def misfit(value: object, form: Any) -> str | None:
    """Return what about a value does not have the form, such as `seconds is not a number`, or None.

    A form is a type, `Any`, `Literal`, a union, a list, tuple or Mapping of forms, a dataclass, a TypedDict, or
    `Annotated` with a `Rule`. JSON's lists stand for tuples too. Numbers are no booleans and have 64 bits.
    """
    return _check(form)(value, set())


def check(value: object, form: Any) -> None:
    """Raise ValueError unless a value has the form."""
    if wrong := misfit(value, form):
        raise ValueError(wrong)


@functools.cache
def _check(form: Any) -> _Check:
    """Return the function that compares a value with a form; made once per form."""
    origin, arguments = get_origin(form), get_args(form)
    if form is Any or form is object:
        return lambda value, seen: None
    if form is None or form is type(None):
        return _simple("empty", lambda value: value is None)
    if form is str or form is bool:
        return _simple(_NAMES[form], lambda value: isinstance(value, form))
    if form is int:
        return _simple(_NAMES[int], lambda value: type(value) is int and -_LARGEST <= value < _LARGEST)
    if form is float:
        return _simple(_NAMES[float], _is_number)
    if origin is Annotated:
        return _ruled(_check(arguments[0]), [rule for rule in arguments[1:] if isinstance(rule, Rule)])
    if origin is Literal:
        return _simple(f"one of {', '.join(map(str, arguments))}", lambda value: value in arguments)
    if origin in (Union, types.UnionType):
        return _union([_check(argument) for argument in arguments])
    if origin in (tuple, list, Sequence):
        if origin is tuple and (not arguments or arguments[-1] is not Ellipsis):
            return _row([_check(argument) for argument in arguments])
        return _rows(_check(arguments[0]))
    if origin is not None and issubclass(origin, Mapping):
        return _mapping(*(_check(argument) for argument in arguments))
    if is_typeddict(form):
        return _object(form)
    if dataclasses.is_dataclass(form):
        return _record(form)
    raise TypeError(f"{form!r} is no form")


def _is_number(value: object) -> bool:
    return type(value) is float or (type(value) is int and -_LARGEST <= value < _LARGEST)


def _simple(words: str, holds: Callable[[Any], bool]) -> _Check:
    return lambda value, seen: None if _safely(holds, value) else f" is not {words}"


def _safely(holds: Callable[[Any], bool], value: object) -> bool:
    try:
        return holds(value)
    except (TypeError, ValueError, ArithmeticError):
        return False


def _ruled(inner: _Check, rules: list[Rule]) -> _Check:
    def check(value: Any, seen: set[int]) -> str | None:
        if wrong := inner(value, seen):
            return wrong
        return next((f" is not {rule.words}" for rule in rules if not _safely(rule.holds, value)), None)

    return check


def _union(choices: list[_Check]) -> _Check:
    def check(value: Any, seen: set[int]) -> str | None:
        first = None
        for choice in choices:
            wrong = choice(value, seen)
            if wrong is None:
                return None
            first = first or wrong
        return first

    return check


def _rows(inner: _Check) -> _Check:
    def check(value: Any, seen: set[int]) -> str | None:
        if not isinstance(value, list | tuple):
            return " is not a list"
        for number, item in enumerate(value):
            if wrong := inner(item, seen):
                return f"[{number}]{wrong}"
        return None

    return check


def _row(inner: list[_Check]) -> _Check:
    def check(value: Any, seen: set[int]) -> str | None:
        if not isinstance(value, list | tuple) or len(value) != len(inner):
            return f" is not a list of {len(inner)}"
        wrong = (f"[{n}]{found}" for n, item in enumerate(value) if (found := inner[n](item, seen)))
        return next(wrong, None)

    return check


def _mapping(names: _Check, values: _Check) -> _Check:
    def check(value: Any, seen: set[int]) -> str | None:
        if not isinstance(value, Mapping):
            return " is not an object"
        for name, item in value.items():
            if names(name, seen) or (wrong := values(item, seen)):
                return f".{str(name)[:60]}{names(name, seen) or wrong}"
        return None

    return check


def _object(form: Any) -> _Check:
    hints = get_type_hints(form, include_extras=True)
    checks = {name: _check(hint) for name, hint in hints.items()}

    def check(value: Any, seen: set[int]) -> str | None:
        if not isinstance(value, Mapping):
            return " is not an object"
        for name, inner in checks.items():
            if name in value:
                if wrong := inner(value[name], seen):
                    return f".{name}{wrong}"
            elif name in form.__required_keys__:
                return f".{name} is missing"
        return None

    return check


def _record(form: Any) -> _Check:
    hints = get_type_hints(form, include_extras=True)
    checks = {field.name: _check(hints[field.name]) for field in dataclasses.fields(form)}

    def check(value: Any, seen: set[int]) -> str | None:
        if id(value) in seen:
            return None
        if not isinstance(value, form):
            return f" is not a {form.__name__}"
        for name, inner in checks.items():
            if wrong := inner(getattr(value, name), seen):
                return f".{name}{wrong}"
        seen.add(id(value))
        return None

    return check
