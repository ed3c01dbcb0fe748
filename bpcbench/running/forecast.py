"""How long a run still takes: seconds expected of every stage, refined by those that end and by what runs."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from bpcbench.planning.planner import PlannedStage
from bpcbench.records import Status

_RECENT = 20
"""How many finished stages of a family are remembered: a machine may become slower or faster."""


@dataclass
class _Running:
    stage: PlannedStage
    since: float
    loop: int = 0
    base: tuple[float, int] = (0.0, 0)
    """Seconds and steps at which the present loop was first seen; zero for the first, until its first step is over."""
    seconds: float = 0.0
    done: int = 0
    total: int = 0


class Forecast:
    """Estimates for one run. Before anything ends they are those of the plan, from what the store remembers.

    Times are of the monotonic clock. A stage counts from when it is handed to a worker to when it is over, so that
    what it costs to start workers is part of what is learned.
    """

    def __init__(self, stages: Sequence[PlannedStage], now: float) -> None:
        # By group, because a run may have many thousand stages and is asked every second.
        self._waiting = Counter(map(_group, stages))
        self._example = {_group(planned): planned for planned in stages}
        self._begin: float | None = None
        self._running: dict[str, _Running] = {}
        self._took: dict[tuple[str, ...], list[float]] = {}
        self._busy = 0.0

    def started(self, stage: PlannedStage, now: float) -> None:
        """Note a stage that was handed to a worker."""
        self._begin = now if self._begin is None else self._begin
        if stage.id not in self._running:
            self._waiting[_group(stage)] -= 1
        self._running[stage.id] = _Running(stage, now)

    def progressed(self, stage: PlannedStage, done: int, total: int, seconds: float, loop: int) -> None:
        """Note how far a stage is: steps of its loop, and seconds since it began, interrupted attempts included."""
        one = self._running.get(stage.id)
        if one is not None:
            if loop != one.loop or (done == 1 and one.done < 1):
                # The first step may compile: it tells nothing of the others.
                one.loop, one.base = loop, (seconds, done)
            one.seconds, one.done, one.total = seconds, done, total

    def finished(self, stage: PlannedStage, status: Status, now: float) -> None:
        """Note a stage that is over, or stopped."""
        one = self._running.pop(stage.id, None)
        if one is None or status == "stopped":
            # Never started, or to be done another time.
            self._waiting[_group(stage)] += 1 if one else -1
        else:
            self._busy += now - one.since
            if status == "done":
                for group in _groups(stage):
                    self._took[group] = [*self._took.get(group, ())[-_RECENT + 1 :], now - one.since]

    def expected(self, stage: PlannedStage) -> float | None:
        """Return the seconds that a stage takes: as stages of this run did, else as the plan says."""
        family, *wider = _groups(stage)
        if family in self._took:
            return statistics.median(self._took[family])
        if stage.seconds is not None:
            return stage.seconds
        return next((statistics.mean(self._took[group]) for group in wider if group in self._took), None)

    def stage_left(self, stage: PlannedStage, now: float) -> float | None:
        """Return the seconds that a running stage still takes, or None if nobody can tell."""
        one = self._running.get(stage.id)
        if one is None:
            return self.expected(stage)
        steps, seconds = one.done - one.base[1], one.seconds - one.base[0]
        if one.total and steps > 0 and seconds > 0:
            return seconds / steps * (one.total - one.done)
        expected = self.expected(stage)
        return None if expected is None else max(0.0, expected - (now - one.since))

    def left(self, now: float) -> float | None:
        """Return the seconds until everything is over, or None as long as nothing is known of any stage."""
        each = [(self.stage_left(one.stage, now), 1) for one in self._running.values()]
        each += [(self.expected(self._example[group]), count) for group, count in self._waiting.items() if count > 0]
        known = [(seconds, count) for seconds, count in each if seconds is not None]
        seen, unseen = sum(count for _, count in known), sum(count for _, count in each)
        unseen -= seen
        # What nobody has seen yet is taken to be like what is over; if nothing is, like what is known.
        over = [seconds for group, took in self._took.items() if len(group) == 2 for seconds in took]
        if self._begin is None or (unseen and not seen and not over):
            return None
        total = sum(seconds * count for seconds, count in known)
        total += unseen * (statistics.median(over) if over else total / max(1, seen))
        busy = self._busy + sum(now - one.since for one in self._running.values())
        elapsed = now - self._begin
        at_a_time = busy / elapsed if elapsed > 0 and busy > 0 else max(1, len(self._running))
        return total / at_a_time


def _group(stage: PlannedStage) -> tuple[str, str, str]:
    return stage.family, stage.kind, stage.plugin


def _groups(stage: PlannedStage) -> tuple[tuple[str, ...], ...]:
    """Return the groups that a stage belongs to, the one of stages most like it first."""
    return (stage.family,), (stage.kind, stage.plugin), (stage.kind,)
