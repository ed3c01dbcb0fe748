"""Planned stages without plugins, for tests of what only looks at ids, needs and resources."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from bpcbench.planning.planner import PlannedStage
from bpcbench.planning.spec import Spec
from bpcbench.planning.stages import Stage
from bpcbench.records import Resources
from bpcbench.store.address import Address, digest

MADE = {"coreset": {"bytes": 0, "classes": 2, "convention": "class"}}
"""What the stage.json of a coreset says at least."""


def key_of(name: str) -> str:
    """Return the key of the stage with that name."""
    return digest(name)


@dataclass(frozen=True, eq=False)
class PlainCoreset(Stage):
    """A stage with a name and the names of the coresets that it needs."""

    kind: ClassVar[str] = "coreset"
    body_version: ClassVar[int] = 1

    name: str
    coresets: tuple[str, ...] = ()

    @property
    def key(self) -> str:  # type: ignore[override]
        return key_of(self.name)

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name}

    def payload(self) -> dict[str, Any]:
        return {"name": self.name}

    def inputs(self) -> tuple[Address, ...]:
        return tuple(Address("coreset", key_of(name), "final") for name in self.coresets)

    def specs(self) -> Iterator[Spec]:
        return iter(())


@dataclass(frozen=True, eq=False)
class PlainScore(PlainCoreset):
    """The same as a score."""

    kind: ClassVar[str] = "score"


def planned(name: str, *needs: str, score: bool = False, gpus: float = 0.0) -> PlannedStage:
    """Return a stage that is to do."""
    stage = (PlainScore if score else PlainCoreset)(name, needs)
    return PlannedStage(stage, label=name, plugin="p", family="f", resources=Resources(gpus=gpus), preload=())
