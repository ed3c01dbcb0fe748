"""Bundles: predictions of one coreset that differ in their evaluation seed alone, all fitted by one of their stages.

The stage that leads makes the fits of all and stores each under its own key. The others come after it, find theirs and
predict with it. Whatever is missing then, because something failed or was interrupted, they make themselves. So engines
see one stage at a time as always, and no result depends on what became of another stage.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bpcbench.planning.planner import PlannedStage
from bpcbench.planning.stages import PredictStage, stage_from_json
from bpcbench.records import FIT, Task
from bpcbench.store.address import Address, digest

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

    def without(self, leader: str) -> Bundles:
        """Return the others: the stage with that id makes its own fit alone."""
        return Bundles({first: others for first, others in self.followers.items() if first != leader})

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
    """Return the stages whose fits a task makes as well and that have none yet.

    One whose key is another when it is derived again is left out: that is its own failure.
    """
    found = []
    for one in task.along:
        try:
            stage = stage_from_json(task.kind, task.body_version, str(one["key"]), dict(one["stage"]))
        except ValueError:
            continue
        assert isinstance(stage, PredictStage)
        if not has(fit_of(stage)) and not all(has(address) for address in stage.addresses):
            found.append(Companion(stage, str(one["label"])))
    return found


def joined(scratch: Path, others: Sequence[Companion]) -> list[Companion]:
    """Return the companions that a stage is fitted with, of those it may have: all or none.

    There are none where `part` was called, or where checkpoints of the stage alone are. Checkpoints that were written
    with other companions hold other networks and are removed.
    """
    noted = _noted(scratch)
    if noted is None and (not others or any(_checkpoints(scratch))):
        return []
    if noted is not None and noted.get("alone"):
        return []
    keys = [other.stage.key for other in others]
    if noted is None or noted.get("companions") != keys:
        _start_over(scratch, {"companions": keys} if keys else None)
    return list(others)


def part(scratch: Path) -> None:
    """Note that a stage is fitted alone from now on, also when it is resumed."""
    _start_over(scratch, {"alone": True})


def _noted(scratch: Path) -> Mapping[str, Any] | None:
    """Return with whom the checkpoints of a stage were written; None if it was always alone."""
    try:
        noted = json.loads((scratch / _COMPANIONS).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        return {}
    return noted if isinstance(noted, dict) else {}


def _checkpoints(scratch: Path) -> Iterator[Path]:
    return scratch.glob("*/checkpoint-*")


def _start_over(scratch: Path, note: Mapping[str, Any] | None) -> None:
    # First, so that no checkpoint is ever taken for one of others.
    for checkpoint in _checkpoints(scratch):
        shutil.rmtree(checkpoint, ignore_errors=True)
    if note is None:
        (scratch / _COMPANIONS).unlink(missing_ok=True)
        return
    scratch.mkdir(parents=True, exist_ok=True)
    (scratch / _COMPANIONS).write_text(json.dumps(note), encoding="utf-8")
