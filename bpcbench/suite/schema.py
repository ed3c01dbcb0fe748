"""A JSON schema of suites, so that an editor completes keys and options and marks mistakes while one types."""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any

from bpcbench.api import Plugin, Preprocessing
from bpcbench.registry.discovery import Registry
from bpcbench.registry.options import type_hints
from bpcbench.suite.model import AXES, KEYS, NATIVE, PROTOCOLS

_COUNT = {"type": "integer", "minimum": 1}


def suite_schema(registry: Registry) -> dict[str, Any]:
    """Return the schema of a suite for the plugins that are installed."""
    properties: dict[str, Any] = {
        "name": {"type": "string", "pattern": "^[^/]+$"},
        "description": {"type": "string"},
        "protocol": {"enum": list(PROTOCOLS)},
        "extends": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
        "ipc": {"anyOf": [_COUNT, {"type": "array", "items": _COUNT, "minItems": 1}]},
        "seeds": {"anyOf": [_COUNT, _record({"distil": _COUNT, "evaluate": _COUNT})]},
        "split": {"enum": ["test", "validation"]},
        "examples": {"type": ["integer", "null"], "minimum": 1},
        "cases": {"type": "array", "items": _record({"when": {"type": "object"}, "set": {"type": "object"}})},
        "exclude": {"type": "array", "items": {"type": "object"}},
        "threads": _COUNT,
        "precision": {"type": "string"},
        "device": {"type": "string"},
        "timeout": {"anyOf": [{"type": ["number", "null"]}, {"type": "string", "pattern": "^[0-9.]+[smhd]$"}]},
        "engine": _choice(registry, "engine", registry.names("engine")),
        "metrics": {"type": "array", "items": {"type": "string"}, "minItems": 1},
    }
    properties["tune"] = _record(
        {
            "trials": {"type": "integer", "minimum": 2},
            "seed": {"type": "integer"},
            "objective": {"type": "string"},
            "inference": {"type": "object", "additionalProperties": {"type": "string"}},
            "space": {"type": "object", "additionalProperties": {"type": "object"}},
        }
    )
    properties["tuned"] = {"type": "object"}
    for axis, kind in AXES.items():
        properties[axis] = _axis(registry, axis, kind)
    for key, text in KEYS.items():
        properties[key]["description"] = text
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "bpcbench suite",
        **_record(properties),
    }


def _record(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}


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
    return {
        "anyOf": [
            {"enum": listed},
            {"type": "array", "items": {"enum": listed}},
            {
                "type": "object",
                "properties": {k: {"anyOf": [v, other]} for k, v in own.items()},
                "additionalProperties": other,
            },
        ]
    }


def _choice(registry: Registry, kind: str, names: list[str]) -> dict[str, Any]:
    return {"anyOf": [{"enum": names}, *(_options(registry, kind, name, {}, named=True) for name in names)]}


def _options(registry: Registry, kind: str, name: str, extra: dict[str, Any], *, named: bool = False) -> dict[str, Any]:
    cls: type[Plugin] = registry.get(kind, name).cls
    hints = type_hints(cls)
    properties: dict[str, Any] = {"plugin": {"const": name}, **extra}
    for field in dataclasses.fields(cls):
        refers = field.metadata.get("refers")
        schema = {"type": ["string", "object", "null"]} if refers else _type(hints[field.name])
        properties[field.name] = {**schema, "description": field.metadata.get("help", "")}
    return {**_record(properties), **({"required": ["plugin"]} if named else {})}


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
