"""Progress display while a suite runs: bars with an ETA on a terminal, plain lines in a log file."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any, TextIO

from tqdm import tqdm

from bpcbench.planning.planner import PlannedStage
from bpcbench.running.queue import Outcome
from bpcbench.text import spell

QUIET_SECONDS = 30.0
"""Without a terminal: the interval between progress lines of a running stage."""


class Progress:
    """A Listener that shows the whole suite and every running stage. `quiet` shows failures only."""

    def __init__(self, total: int, *, quiet: bool = False, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stderr
        self.quiet = quiet
        self.terminal = self.stream.isatty() and not quiet
        self.total = total
        self.done = 0
        self.begin = time.monotonic()
        self._bars: dict[str, tqdm[Any]] = {}
        self._last_line: dict[str, float] = {}
        self._all: tqdm[Any] | None = None
        if self.terminal:
            self._all = tqdm(total=total, desc="suite", unit="stage", file=self.stream, position=0, smoothing=0.1)

    def say(self, text: str) -> None:
        """Print a line without disturbing the bars."""
        if self.terminal:
            tqdm.write(text, file=self.stream)
        else:
            print(text, file=self.stream, flush=True)

    def started(self, stage: PlannedStage) -> None:
        """Record when a stage started."""
        self._last_line[stage.id] = time.monotonic()

    def events(self, stage: PlannedStage, lines: Sequence[dict[str, Any]]) -> None:
        """Show the progress of a stage."""
        latest = next((line for line in reversed(lines) if line.get("total")), None)
        if latest is None or self.quiet:
            return
        if self.terminal:
            bar = self._bars.get(stage.id)
            if bar is None:
                position = 1 + next(i for i in range(100) if i + 1 not in {-b.pos for b in self._bars.values()})
                bar = tqdm(file=self.stream, leave=False, position=position, unit="step", dynamic_ncols=True)
                self._bars[stage.id] = bar
            bar.set_description_str(f"{stage.kind} {stage.label} {latest['what']}".strip(), refresh=False)
            bar.total, bar.n = latest["total"], latest["done"]
            bar.refresh()
        elif time.monotonic() - self._last_line.get(stage.id, 0.0) > QUIET_SECONDS:
            self._last_line[stage.id] = time.monotonic()
            left = latest["t"] / max(latest["done"], 1) * (latest["total"] - latest["done"])
            self.say(
                f"  ... {stage.kind} {stage.label}: step {latest['done']:,} of {latest['total']:,}, "
                f"about {spell(left)} left"
            )

    def finished(self, stage: PlannedStage, outcome: Outcome) -> None:
        """Count a stage and print its outcome."""
        self.done += 1
        bar = self._bars.pop(stage.id, None)
        if bar is not None:
            bar.close()
        if self._all is not None:
            self._all.update()
        for message in outcome.messages:
            self.say(f"note: {message}")
        if outcome.status in ("failed", "skipped"):
            self.say(f"{outcome.status}: {stage.kind} {stage.label}: {outcome.message}")
        elif not self.terminal and not self.quiet and stage.kind != "score":
            elapsed = time.monotonic() - self.begin
            left = spell(elapsed / self.done * (self.total - self.done))
            self.say(
                f"[{self.done}/{self.total}] {outcome.status}: {stage.kind} {stage.label} "
                f"({spell(outcome.seconds)}; about {left} left)"
            )

    def close(self) -> None:
        """Remove the bars."""
        for bar in self._bars.values():
            bar.close()
        if self._all is not None:
            self._all.close()
