"""Which stages cost about the same although their options differ, so that what was timed tells of what was not.

A stage that was timed is described by its kind, plugin, data set and number of images per class (its group), by its
options, and by how many steps it takes. An estimate is that of the stages of the same group that differ in the fewest
options, in seconds per step.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bpcbench.planning.planner import PlannedStage
from bpcbench.planning.spec import Spec
from bpcbench.planning.stages import CoresetStage, PredictStage, PrerequisiteStage, ScoreStage
from bpcbench.store.address import digest

_STEPS = ("steps", "iterations", "epochs")
"""Options that say how often something is done: seconds are proportional to them."""
_MOST = 20
"""How many of the nearest timings an estimate is the median of."""


@dataclass(frozen=True)
class Likeness:
    """What a stage's cost depends on: equal groups are compared, by options and seconds per step."""

    group: str
    options: Mapping[str, str]
    steps: float = 1.0

    def to_json(self) -> dict[str, Any]:
        """Return the description as JSON."""
        return {"group": self.group, "options": dict(self.options), "steps": self.steps}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Likeness:
        """Read what `to_json` returned; ValueError, TypeError or KeyError if it is something else."""
        steps = float(value["steps"])
        if not 0 < steps < math.inf:
            raise ValueError(f"not a number of steps: {steps}")
        return cls(str(value["group"]), {str(k): str(v) for k, v in dict(value["options"]).items()}, steps)

    def distance(self, other: Likeness) -> int:
        """Return in how many options two stages differ."""
        return sum(self.options.get(name) != other.options.get(name) for name in {*self.options, *other.options})


def likeness(planned: PlannedStage, stages: Mapping[str, PlannedStage]) -> Likeness | None:
    """Return what the cost of a stage depends on; `stages` are those it is made from. None if they are not known."""
    stage = planned.stage
    if isinstance(stage, PrerequisiteStage):
        group: list[Any] = [stage.plugin.name, stage.data.digest]
        return _of(stage.kind, group, stage.plugin)
    if isinstance(stage, CoresetStage):
        return _of(stage.kind, [stage.method.name, stage.data.digest, stage.ipc], stage.method)
    if isinstance(stage, PredictStage):
        made = stages.get(stage.coresets[0].stage)
        if made is None or not isinstance(made.stage, CoresetStage):
            return None
        size = [made.stage.data.digest, made.stage.ipc, len(stage.coresets)]
        group = [stage.inference.name, stage.network.name, *size, len(stage.splits)]
        method = {"coreset": made.stage.method.digest}
        return _of(stage.kind, group, stage.inference, stage.network, more=method)
    assert isinstance(stage, ScoreStage)
    made_from = stages.get(stage.predictions[0].address.stage) if stage.predictions else None
    splits = [one.digest for one in _splits(made_from)]
    return _of(stage.kind, [stage.evaluator.name, len(stage.predictions), splits], stage.evaluator)


def _splits(planned: PlannedStage | None) -> Iterator[Spec]:
    if planned is not None and isinstance(planned.stage, PredictStage):
        for split in planned.stage.splits:
            yield split.dataset


def _of(
    kind: str, group: Sequence[Any], plugin: Spec, *others: Spec, more: Mapping[str, str] | None = None
) -> Likeness:
    steps = 1.0
    options = dict(more or {})
    for spec in (plugin, *others):
        options |= {f"{spec.kind}.{name}": value for name, value in _flat(spec)}
    for name in _STEPS:
        value = plugin.options.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
            steps *= value
            del options[f"{plugin.kind}.{name}"]
    return Likeness(digest([kind, *group])[:16], options, steps)


def _flat(spec: Spec) -> Iterator[tuple[str, str]]:
    for name, value in {**spec.options, **spec.unkeyed}.items():
        if isinstance(value, Spec):
            yield name, value.name
            yield from ((f"{name}.{inner}", text) for inner, text in _flat(value))
        else:
            yield name, str(value)[:60]


@dataclass(frozen=True)
class Timed:
    """What stages of one family took: seconds and bytes of each, and what their cost depends on."""

    likeness: Likeness
    costs: Sequence[tuple[float, int]]


def estimate(wanted: Likeness, timed: Iterable[Timed]) -> tuple[float, float] | None:
    """Return the seconds and bytes that a stage takes, from timings of its group; None if there are none."""
    near = [(wanted.distance(one.likeness), abs(math.log(wanted.steps / one.likeness.steps)), one) for one in timed]
    near = [item for item in near if item[2].costs]
    if not near:
        return None
    near.sort(key=lambda item: item[:2])
    nearest = [one for distance, _, one in near if distance == near[0][0]]
    costs = [(seconds * wanted.steps / one.likeness.steps, size) for one in nearest for seconds, size in one.costs][
        :_MOST
    ]
    return statistics.median(seconds for seconds, _ in costs), statistics.median(size for _, size in costs)
