"""What is to do: the plan works back from the scores, and a stage counts only if something missing needs it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bpcbench.registry.discovery import Registry
from bpcbench.registry.source import source_hash
from bpcbench.running.queue import Stage
from bpcbench.store.store import Store

_KIND_OF = {"prerequisite": "prerequisite", "coreset": "method", "predict": "inference", "score": "evaluator"}


@dataclass(frozen=True)
class Planned:
    """A stage and whether it is `cached`, `cached (code changed)` or `to do`, with its cost if that is known."""

    stage: Stage
    status: str
    again: bool = False
    """Whether it is to be made anew although it may be there: what it left must go first."""
    seconds: float | None = None
    bytes: float | None = None


def demand(
    registry: Registry,
    stages: Mapping[str, Stage],
    wanted: Iterable[str],
    store: Store | None,
    recompute: set[str],
    expected: Mapping[str, Callable[[], int | None]],
) -> Iterable[Planned]:
    """Return the stages that are asked for, inputs first, with their status.

    `wanted` are the ids of the stages asked for; `recompute` names plugins whose results are made again; `expected`
    gives sizes by family, which count where there is no experience.
    """
    sizes: dict[str, int | None] = {}
    timings = store.timings() if store else {}
    again = _downstream(stages, recompute)
    done: dict[str, Planned] = {}
    stack = list(wanted)[::-1]
    while stack:
        name = stack.pop()
        if name in done:
            continue
        stage = stages[name]
        status = "to do" if name in again or store is None else _status(registry, stage, store)
        pending = [need for need in stage.needs if need not in done] if status == "to do" else []
        if pending:
            stack += [name, *reversed(pending)]
            continue
        past = timings.get(stage.family, [])
        if not past and stage.family not in sizes:
            sizes[stage.family] = expected[stage.family]() if stage.family in expected else None
        done[name] = Planned(
            stage,
            status,
            name in again,
            statistics.median(seconds for seconds, _ in past) if past else None,
            statistics.median(size for _, size in past) if past else sizes[stage.family],
        )
    return done.values()


def _status(registry: Registry, stage: Stage, store: Store) -> str:
    if not all(store.has(address) for address in stage.addresses):
        return "to do"
    known = store.meta(stage.addresses[0]).get("source")
    now = source_hash(registry, _KIND_OF[stage.kind], stage.plugin)
    return "cached" if known == now else "cached (code changed)"


def _downstream(stages: Mapping[str, Stage], names: set[str]) -> set[str]:
    """Return the stages that the named plugins take part in, and everything that is made from them."""
    result: set[str] = set()
    for stage in stages.values() if names else ():
        # Stages are listed inputs first, so one pass reaches everything.
        if any(need in result for need in stage.needs) or not names.isdisjoint(_plugins(stage.body)):
            result.add(stage.id)
    return result


def _plugins(value: Any) -> Iterator[str]:
    """Yield the names of the plugins in a stage's body; a method's native ones take no part in its coreset."""
    if isinstance(value, Mapping):
        if isinstance(value.get("plugin"), str):
            yield value["plugin"]
        for key, item in value.items():
            if key != "native":
                yield from _plugins(item)
    elif isinstance(value, list):
        for item in value:
            yield from _plugins(item)
