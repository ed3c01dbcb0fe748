"""What is to do: the plan works back from the scores, and a stage runs only if something missing needs it."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from bpcbench.planning.likeness import Likeness, Timed, estimate, likeness
from bpcbench.planning.planner import PlannedStage, PlanStatus
from bpcbench.planning.sources import DECLARED
from bpcbench.planning.stages import Stage
from bpcbench.registry.discovery import Registry
from bpcbench.registry.source import code_hash
from bpcbench.store.store import Store


def stage_code(registry: Registry, stage: Stage) -> str:
    """Return a hash of the code behind a stage: every plugin that takes part, with what it imports.

    Data sets are left out: their content is part of the key.
    """
    specs = (spec for spec in stage.specs() if spec.kind != "dataset")
    return code_hash(registry, {registry.get(spec.kind, spec.name).cls for spec in specs})


def demand(
    registry: Registry,
    stages: Mapping[str, PlannedStage],
    wanted: Iterable[str],
    store: Store | None,
    recompute: Collection[str],
    expected: Mapping[str, Callable[[], int | None]],
) -> Iterable[PlannedStage]:
    """Return the stages behind `wanted`, inputs first, with their status and cost.

    A stage is to do if its result is missing and something asked for needs it. Upstream of a cached stage, whatever
    the store still has is listed too, so that a change of its code is seen; what was pruned there is not needed.
    `recompute` names plugins whose results are made again; `expected` gives sizes by family where there is no timing.
    Seconds of stages that were never timed are those of similar ones.
    """
    sizes: dict[str, int | None] = {}
    timings = store.timings() if store else {}
    alike = _by_group(store, timings) if store else {}
    guesses: dict[str, tuple[float, float] | None] = {}
    again = _downstream(stages, recompute)
    done: dict[str, PlannedStage | None] = {}
    stack = [(name, True) for name in wanted][::-1]
    while stack:
        name, needed = stack.pop()
        known = done.get(name)
        if known is not None or (name in done and not needed):
            continue
        planned = stages[name]
        status: PlanStatus = "to do"
        if name not in again and store is not None and all(store.has(a) for a in planned.stage.addresses):
            status = _status(registry, planned.stage, store)
        if status == "to do" and not needed:
            done[name] = None
            continue
        upstream = [(need, status == "to do") for need in planned.stage.needs]
        pending = [one for one in upstream if done.get(one[0]) is None and (one[1] or one[0] not in done)]
        if pending:
            stack += [(name, needed), *reversed(pending)]
            continue
        past = timings.get(planned.family, [])
        if not past and planned.family not in sizes:
            sizes[planned.family] = expected[planned.family]() if planned.family in expected else None
            like = likeness(planned, stages)
            guesses[planned.family] = estimate(like, alike.get(like.group, ())) if like else None
        seconds, size = guesses.get(planned.family) or (None, None)
        done[name] = replace(
            planned,
            status=status,
            again=name in again,
            seconds=statistics.median(seconds for seconds, _ in past) if past else seconds,
            bytes=statistics.median(size for _, size in past) if past else sizes[planned.family] or size,
            similar=not past and seconds is not None,
        )
    return [planned for planned in done.values() if planned is not None]


def without_data(
    stages: Iterable[PlannedStage], operations: Mapping[str, Callable[[], float | None]], sizes: Mapping[str, int]
) -> list[PlannedStage]:
    """Return stages, inputs first, with those on data that are not there marked `no data` and their costs computed.

    Costs are by formula: past timings are of other data. Equal formulas are computed once.
    """
    without: set[str] = set()
    marked = []
    for planned in stages:
        stage = planned.stage
        own = [getattr(stage, "data", None), *getattr(stage, "splits", ())]
        if any(one is not None and one.fingerprint == DECLARED for one in own) or without & set(stage.needs):
            without.add(planned.id)
            known = operations.get(planned.id)
            planned = replace(
                planned,
                status="no data",
                seconds=None,
                similar=False,
                bytes=planned.bytes if planned.kind == "prerequisite" else sizes.get(planned.id, planned.bytes),
                operations=known and known(),
            )
        marked.append(planned)
    return marked


def _by_group(store: Store, timings: Mapping[str, list[tuple[float, int]]]) -> dict[str, list[Timed]]:
    """Return what was timed by group, as far as the store describes it."""
    result: dict[str, list[Timed]] = {}
    for family, described in store.families().items():
        with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):
            like = Likeness.from_json(described)
            result.setdefault(like.group, []).append(Timed(like, timings.get(family, ())))
    return result


def note_families(store: Store, stages: Sequence[PlannedStage]) -> None:
    """Describe the families of stages that are to be run, so that their timings tell of others."""
    known = store.families()
    by_id = {planned.id: planned for planned in stages}
    new = {planned.family: planned for planned in stages if planned.status == "to do" and planned.family not in known}
    described = {family: likeness(planned, by_id) for family, planned in new.items()}
    store.note_families({family: like.to_json() for family, like in described.items() if like})


def _status(registry: Registry, stage: Stage, store: Store) -> PlanStatus:
    kept = store.meta(stage.addresses[0]).get("code")
    return "cached" if kept == stage_code(registry, stage) else "cached (code changed)"


def _downstream(stages: Mapping[str, PlannedStage], names: Collection[str]) -> set[str]:
    """Return the stages that the named plugins take part in, and everything that is made from them."""
    result: set[str] = set()
    for name, planned in stages.items() if names else ():
        # Stages are listed inputs first, so one pass reaches everything.
        stage = planned.stage
        if any(need in result for need in stage.needs) or any(spec.name in names for spec in stage.specs()):
            result.add(name)
    return result
