"""Bundles: predictions of one coreset that differ in their evaluation seed alone, all fitted by one of their stages.

The stage that leads makes the fits of all and stores each under its own key. The others come after it, find theirs and
predict with it. Whatever is missing then, because something failed or was interrupted, they make themselves. So engines
see one stage at a time as always, and no result depends on what became of another stage.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bpcbench.planning.planner import PlannedStage
from bpcbench.planning.stages import PredictStage, stage_from_json
from bpcbench.records import Task
from bpcbench.store.address import Address, digest

FIT = "fit"
"""The member of a prediction that holds the fitted predictive."""
_COMPANIONS = "together.json"


def fit_of(stage: PredictStage) -> Address:
    """Return where the fit of a prediction is stored."""
    return Address(stage.kind, stage.key, FIT)


@dataclass(frozen=True)
class Bundles:
    """Which stages of a run lead others: `followers` by the id of the leader, `leader` by that of a follower."""

    followers: Mapping[str, tuple[PlannedStage, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, stages: Iterable[PlannedStage], has: Callable[[Address], bool]) -> Bundles:
        """Return the bundles of stages that are to do; one whose fit exists needs no other."""
        alike: dict[str, list[PlannedStage]] = {}
        for planned in stages:
            stage = planned.stage
            if planned.together > 1 and isinstance(stage, PredictStage) and not has(fit_of(stage)):
                payload = {name: value for name, value in stage.payload().items() if name != "seed"}
                alike.setdefault(digest(payload), []).append(planned)
        found = {}
        for group in alike.values():
            size = group[0].together
            for start in range(0, len(group), size):
                first, *others = group[start : start + size]
                if others:
                    found[first.id] = tuple(others)
        return cls(found)

    @property
    def leader(self) -> dict[str, str]:
        """The id of the stage that makes the fit of a stage as well, by its id."""
        return {other.id: first for first, others in self.followers.items() for other in others}

    def along(self, planned: PlannedStage) -> tuple[Mapping[str, Any], ...]:
        """Return what a task says of the stages whose fits it makes as well."""
        return tuple(
            {"key": other.stage.key, "label": other.label, "stage": other.stage.to_json()}
            for other in self.followers.get(planned.id, ())
        )


@dataclass(frozen=True, eq=False)
class Companion:
    """A stage whose fit another one makes as well."""

    stage: PredictStage
    label: str


def companions(task: Task, has: Callable[[Address], bool]) -> list[Companion]:
    """Return the stages whose fits a task makes as well and that have none yet; raise ValueError if a key is wrong."""
    found = []
    for one in task.along:
        stage = stage_from_json(task.kind, task.body_version, str(one["key"]), dict(one["stage"]))
        assert isinstance(stage, PredictStage)
        if not has(fit_of(stage)) and not all(has(address) for address in stage.addresses):
            found.append(Companion(stage, str(one["label"])))
    return found


def keep_checkpoints_of(scratch: Path, others: Sequence[Companion]) -> None:
    """Remove the checkpoints of a stage that were written with other companions, for they hold other networks."""
    file = scratch / _COMPANIONS
    keys = [other.stage.key for other in others]
    try:
        before = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        before = []
    if before == keys:
        return
    for checkpoint in scratch.glob("*/checkpoint-*"):
        shutil.rmtree(checkpoint, ignore_errors=True)
    scratch.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(keys), encoding="utf-8")
