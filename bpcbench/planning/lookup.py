"""The plugins of one plan: each reference is built once, each instance named and described once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bpcbench.api import Plugin
from bpcbench.records import Ref
from bpcbench.registry.discovery import Registry
from bpcbench.registry.options import build, describe, identity, plugins_within
from bpcbench.store.address import digest


@dataclass(frozen=True, eq=False)
class Known:
    """A plugin instance: the digest of its identity, from what it can be built again, and what it preloads."""

    plugin: Plugin
    digest: str
    description: Mapping[str, Any]
    preload: tuple[str, ...]


@dataclass
class Lookup:
    """Builds and looks up plugins, without doing so twice."""

    registry: Registry
    _built: dict[tuple[str, Ref], Any] = field(default_factory=dict)
    _known: dict[int, Known] = field(default_factory=dict)

    def build(self, kind: str, ref: Ref) -> Any:
        """Return the plugin that a reference means."""
        if (kind, ref) not in self._built:
            self._built[kind, ref] = build(self.registry, kind, ref)
        return self._built[kind, ref]

    def look(self, plugin: Plugin) -> Known:
        """Return what is known of an instance."""
        # By object, not by value: options may be unhashable; the record keeps the object, hence its id, alive.
        found = self._known.get(id(plugin))
        if found is None:
            preload = tuple(module for part in plugins_within(plugin) for module in part.preload)
            found = Known(plugin, digest(identity(self.registry, plugin)), describe(plugin), preload)
            self._known[id(plugin)] = found
        return found
