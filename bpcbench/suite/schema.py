"""A JSON schema of suites, with which editors complete keys and options and mark mistakes."""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any

from bpcbench.api import Plugin, Preprocessing
from bpcbench.registry.discovery import Registry
from bpcbench.registry.options import type_hints
from bpcbench.suite.keys import KEYS, Key, Schema, record
from bpcbench.suite.model import NATIVE


def suite_schema(registry: Registry) -> dict[str, Any]:
    """Return the schema of a suite for the plugins that are installed."""
    properties = {name: {**_value(registry, name, key), "description": key.help} for name, key in KEYS.items()}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "bpcbench suite",
        **record(properties),
    }


def _value(registry: Registry, name: str, key: Key) -> Schema:
    if not key.kind:
        return key.schema
    return _axis(registry, name, key.kind) if key.labels else _choice(registry, key.kind)


def _axis(registry: Registry, axis: str, kind: str) -> dict[str, Any]:
    names = [
        name
        for name in registry.names(kind)
        if axis != "preprocessing" or issubclass(registry.get(kind, name).cls, Preprocessing)
    ]
    listed = [*names, NATIVE] if axis in ("inferences", "networks") else names
    extra = {"preprocessing": {"type": "string"}} if axis == "methods" else {}
    nothing = {"enum": [None, False]}
    own: dict[str, Any] = {name: {"anyOf": [nothing, _options(registry, kind, name, extra)]} for name in names}
    other = {"anyOf": [nothing, {"enum": names}, *(_options(registry, kind, n, extra, named=True) for n in names)]}
    if NATIVE in listed:
        own[NATIVE] = nothing
    alone = [_options(registry, kind, n, extra, named=True) for n in names] if axis == "preprocessing" else []
    return {
        "anyOf": [
            *alone,
            {"enum": listed},
            {"type": "array", "items": {"enum": listed}},
            {
                "type": "object",
                "properties": {k: {"anyOf": [v, other]} for k, v in own.items()},
                "additionalProperties": other,
            },
        ]
    }


def _choice(registry: Registry, kind: str) -> dict[str, Any]:
    names = registry.names(kind)
    return {"anyOf": [{"enum": names}, *(_options(registry, kind, name, {}, named=True) for name in names)]}


def _options(registry: Registry, kind: str, name: str, extra: dict[str, Any], *, named: bool = False) -> dict[str, Any]:
    cls: type[Plugin] = registry.get(kind, name).cls
    hints = type_hints(cls)
    properties: dict[str, Any] = {"plugin": {"const": name}, **extra}
    for field in dataclasses.fields(cls):
        refers = field.metadata.get("refers")
        schema = {"type": ["string", "object", "null"]} if refers else _type(hints[field.name])
        properties[field.name] = {**schema, "description": field.metadata.get("help", "")}
    return {**record(properties), **({"required": ["plugin"]} if named else {})}


def _type(hint: Any) -> dict[str, Any]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return {"enum": list(arguments)}
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_type(argument) for argument in arguments]}
    if origin in (list, tuple):
        return {"type": "array", "items": _type(arguments[0])} if arguments else {"type": "array"}
    simple = {int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null"}
    if hint in simple:
        return {"type": simple[hint]}
    return {"type": "object"} if origin is dict or hint is dict else {}
