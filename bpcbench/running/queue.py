"""The queue of a run: which stages are ready, under way, waiting for others or skipped."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from bpcbench.planning.planner import PlannedStage
from bpcbench.records import Ended, Resources, Status


@dataclass(frozen=True)
class Outcome:
    """How an attempt at the stage with that id ended."""

    stage: str
    status: Status
    seconds: float = 0.0
    message: str = ""
    messages: tuple[str, ...] = ()
    out_of_memory: bool = False

    def ended(self, attempt: str) -> Ended:
        """Return the end of the attempt with that name."""
        return Ended(attempt, self.status, self.message, self.seconds, self.messages, out_of_memory=self.out_of_memory)


@dataclass(frozen=True)
class ResourceClass:
    """Stages that a pool has room for, or not, alike."""

    score: bool
    resources: Resources

    @classmethod
    def of(cls, planned: PlannedStage) -> ResourceClass:
        """Return the class of a stage."""
        return cls(planned.kind == "score", planned.resources)


class Queue:
    """The stages of a plan that are to do, handed out as they become ready, in the order in which they do.

    A stage is waiting, ready, delayed, under way or over. `after` names, by the id of a stage, one that it waits for
    without needing it: when that is over, however it ended, the other is as ready as it would be without. Ready stages
    are kept by class of resources, so that looking for the next one costs the number of classes, not the number of
    stages. Safe to use from several threads; `changed` is notified when stages become ready or are over.
    """

    def __init__(self, stages: Sequence[PlannedStage], after: Mapping[str, str] | None = None) -> None:
        after = after or {}
        self.changed = threading.Condition(threading.RLock())
        self._stages = {planned.id: planned for planned in stages}
        self._order = itertools.count()
        self._ready: dict[ResourceClass, deque[tuple[int, PlannedStage]]] = {}
        self._delayed: list[tuple[float, int, PlannedStage]] = []
        self._waiting: set[str] = set(self._stages)
        self._left = Counter(planned.kind == "score" for planned in self._stages.values())
        self._blocking: dict[str, int] = {}
        self._dependants: dict[str, list[str]] = {}
        self._followers: dict[str, list[str]] = {}
        for planned in self._stages.values():
            needs = [need for need in planned.stage.needs if need in self._stages]
            first = after.get(planned.id)
            self._blocking[planned.id] = len(needs) + (first in self._stages)
            for need in needs:
                self._dependants.setdefault(need, []).append(planned.id)
            if first in self._stages:
                self._followers.setdefault(first, []).append(planned.id)
            if not self._blocking[planned.id]:
                self._make_ready(planned)

    def _make_ready(self, planned: PlannedStage) -> None:
        self._waiting.discard(planned.id)
        self._ready.setdefault(ResourceClass.of(planned), deque()).append((next(self._order), planned))

    def left(self, scores: Collection[bool]) -> bool:
        """Say whether a score, or a stage that is none, is not over yet: waiting, ready, delayed or under way."""
        with self.changed:
            return any(self._left[score] > 0 for score in scores)

    def first(
        self, scores: Collection[bool], now: float, without: Collection[ResourceClass] = ()
    ) -> PlannedStage | None:
        """Return the stage that has been ready longest, of classes other than `without`, or None. It stays ready."""
        with self.changed:
            while self._delayed and self._delayed[0][0] <= now:
                self._make_ready(heapq.heappop(self._delayed)[2])
            heads = [
                stages[0]
                for group, stages in self._ready.items()
                if stages and group.score in scores and group not in without
            ]
            return min(heads)[1] if heads else None

    def next_due(self, scores: Collection[bool]) -> float | None:
        """Return when the earliest delayed stage becomes ready, or None."""
        with self.changed:
            return min((due for due, _, planned in self._delayed if (planned.kind == "score") in scores), default=None)

    def take(self, planned: PlannedStage) -> None:
        """Note that the stage that `first` returned is under way."""
        with self.changed:
            group = self._ready[ResourceClass.of(planned)]
            if group[0][1] is not planned:
                raise ValueError(f"{planned.id} is not the first of its class")
            group.popleft()

    def adopt(self, stage: str) -> PlannedStage | None:
        """Note that a stage is under way already; return None if it is not one that waits or is ready."""
        with self.changed:
            planned = self._stages.get(stage)
            if planned is None:
                return None
            if stage in self._waiting:
                self._waiting.discard(stage)
                return planned
            group = self._ready.get(ResourceClass.of(planned), deque())
            entry = next((entry for entry in group if entry[1] is planned), None)
            if entry is None:
                return None
            group.remove(entry)
            return planned

    def put_back(self, planned: PlannedStage, due: float) -> None:
        """Note that a stage is under way no more and becomes ready again at a time of the monotonic clock."""
        with self.changed:
            heapq.heappush(self._delayed, (due, next(self._order), planned))
            self.changed.notify_all()

    def finish(self, planned: PlannedStage, status: Status) -> list[PlannedStage]:
        """Note that a stage is over; return the dependants that are skipped with it because it failed."""
        with self.changed:
            self._left[planned.kind == "score"] -= 1
            skipped: list[PlannedStage] = []
            if status in ("done", "cached"):
                self._unblock(self._dependants.get(planned.id, ()))
            elif status == "failed":
                skipped = list(self._skip_dependants(planned.id))
            if status in ("done", "cached", "failed"):
                self._unblock(self._followers.get(planned.id, ()))
            self.changed.notify_all()
            return skipped

    def _unblock(self, names: Iterable[str]) -> None:
        for name in names:
            self._blocking[name] -= 1
            if self._blocking[name] == 0 and name in self._waiting:
                self._make_ready(self._stages[name])

    def _skip_dependants(self, failed: str) -> Iterator[PlannedStage]:
        for name in self._dependants.get(failed, ()):
            if name in self._waiting:
                self._waiting.discard(name)
                planned = self._stages[name]
                self._left[planned.kind == "score"] -= 1
                yield planned
                yield from self._skip_dependants(name)
