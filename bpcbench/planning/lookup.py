"""The plugins of one plan: each reference is built once, each instance described once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bpcbench.api import Plugin
from bpcbench.planning.spec import Spec
from bpcbench.records import Ref
from bpcbench.registry.discovery import Registry
from bpcbench.registry.options import build, plugins_within, ready


@dataclass(frozen=True, eq=False)
class Described:
    """A plugin instance, its spec, and the modules that it and the plugins among its options preload."""

    plugin: Plugin
    spec: Spec
    preload: tuple[str, ...]


@dataclass
class Lookup:
    """Builds and describes plugins, each once."""

    registry: Registry
    _built: dict[tuple[str, Ref], Any] = field(default_factory=dict)
    # By object, not by value: options may be unhashable. The values keep the objects, hence their ids, alive.
    _ready: dict[int, tuple[Plugin, Plugin]] = field(default_factory=dict)
    _described: dict[int, Described] = field(default_factory=dict)

    def build(self, kind: str, wanted: Ref | Plugin) -> Any:
        """Return the plugin that is wanted: a reference is built; an instance gets its open references built."""
        if isinstance(wanted, Plugin):
            if id(wanted) not in self._ready:
                self._ready[id(wanted)] = (wanted, ready(self.registry, wanted))
            return self._ready[id(wanted)][1]
        if (kind, wanted) not in self._built:
            self._built[kind, wanted] = build(self.registry, kind, wanted)
        return self._built[kind, wanted]

    def describe(self, plugin: Plugin) -> Described:
        """Return the description of an instance."""
        described = self._described.get(id(plugin))
        if described is None:
            preload = tuple(module for part in plugins_within(plugin) for module in part.preload)
            described = self._described[id(plugin)] = Described(plugin, Spec.of(plugin), preload)
        return described

    def spec(self, plugin: Plugin) -> Spec:
        """Return the spec of an instance."""
        return self.describe(plugin).spec
