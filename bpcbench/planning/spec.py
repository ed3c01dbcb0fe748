"""A configured plugin as plain data: what determines its results, and from what any process builds it again."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from bpcbench.api import Plugin
from bpcbench.errors import PluginError
from bpcbench.records import Ref
from bpcbench.registry.discovery import Registry, kind_of
from bpcbench.registry.options import build, plain
from bpcbench.store.address import PLUGIN, UNKEYED, digest, keyed


@dataclass(frozen=True, eq=False)
class Spec:
    """A plugin by kind, import package, name and version, with its options.

    `options` determine results; `unkeyed` ones do not (they are marked `key=False`, or have their `absent` value). An
    option that is a plugin holds a Spec. The package is the top-level import package of the class, so that a plugin
    keeps its identity when it is packaged.
    """

    kind: str
    package: str
    name: str
    version: int
    options: Mapping[str, Any]
    unkeyed: Mapping[str, Any]

    @classmethod
    def of(cls, plugin: Plugin) -> Spec:
        """Return the spec of an instance."""
        options: dict[str, Any] = {}
        unkeyed: dict[str, Any] = {}
        for field in dataclasses.fields(plugin):
            value = getattr(plugin, field.name)
            absent = "absent" in field.metadata and value == field.metadata["absent"]
            group = options if field.metadata.get("key", True) and not absent else unkeyed
            group[field.name] = cls.of(value) if isinstance(value, Plugin) else plain(value)
        package = type(plugin).__module__.partition(".")[0]
        return cls(kind_of(plugin), package, plugin.name, plugin.version, options, unkeyed)

    @cached_property
    def digest(self) -> str:
        """The digest with which the plugin enters keys."""
        return digest(keyed(self._fields()))

    def to_json(self) -> dict[str, Any]:
        """Return the spec as JSON, marked as a plugin."""
        return {PLUGIN: self._fields()}

    def _fields(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "package": self.package,
            "name": self.name,
            "version": self.version,
            "options": {name: _to_json(value) for name, value in self.options.items()},
            UNKEYED: {name: _to_json(value) for name, value in self.unkeyed.items()},
        }

    @classmethod
    def from_json(cls, value: Any) -> Spec:
        """Read what `to_json` returned; raise ValueError if it is something else."""
        try:
            fields = value[PLUGIN]
            return cls(
                str(fields["kind"]),
                str(fields["package"]),
                str(fields["name"]),
                int(fields["version"]),
                {name: _from_json(item) for name, item in fields["options"].items()},
                {name: _from_json(item) for name, item in fields[UNKEYED].items()},
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not the description of a plugin: {error!r}") from None

    def settings(self) -> dict[str, Any]:
        """Return all options as a suite writes them: a nested plugin is `{plugin: NAME, OPTION: value}`."""
        every = {**self.options, **self.unkeyed}
        return {name: value.reference() if isinstance(value, Spec) else value for name, value in every.items()}

    def reference(self) -> dict[str, Any]:
        """Return the plugin as a suite writes it."""
        return {"plugin": self.name, **self.settings()}

    def build(self, registry: Registry) -> Any:
        """Return the plugin; raise PluginError if this installation has another one under that name.

        Whatever would give other results counts: another version, package, set of options or default.
        """
        plugin = build(registry, self.kind, Ref(self.name, self.settings()))
        here = Spec.of(plugin)
        if here.digest != self.digest:
            raise PluginError(
                f"{self.kind} {self.name} was planned as {self._title()}, and this installation has {here._title()}"
                f"{_difference(self, here)}; plan again, or install the same versions everywhere"
            )
        return plugin

    def _title(self) -> str:
        return f"{self.package}:{self.name} version {self.version}"

    def walk(self) -> Iterator[Spec]:
        """Yield this spec and every spec among its options."""
        yield self
        for value in (*self.options.values(), *self.unkeyed.values()):
            if isinstance(value, Spec):
                yield from value.walk()


def _difference(planned: Spec, here: Spec) -> str:
    one, two = (
        {name: digest(keyed(_to_json(value))) for name, value in spec.options.items()} for spec in (planned, here)
    )
    names = sorted(name for name in {*one, *two} if one.get(name) != two.get(name))
    return f" (options that differ: {', '.join(names)})" if names else ""


def _to_json(value: Any) -> Any:
    return value.to_json() if isinstance(value, Spec) else value


def _from_json(value: Any) -> Any:
    return Spec.from_json(value) if isinstance(value, dict) and PLUGIN in value else value
