"""Progress display while a suite runs: bars with an ETA on a terminal, plain lines in a log file."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from tqdm import tqdm

from bpcbench.planning.planner import PlannedStage
from bpcbench.running.forecast import Forecast
from bpcbench.running.queue import Outcome
from bpcbench.text import clock, spell

QUIET_SECONDS = 30.0
"""Without a terminal: the interval between progress lines of a running stage."""
REFRESH_SECONDS = 1.0
SILENT_SECONDS = 2.0
"""On a terminal: how long a stage may run without a bar."""
_SHORTEST, _LONGEST = 6, 40
"""Characters of a bar: a text that leaves no room for the shortest is shown without."""


@dataclass
class _Shown:
    """A stage under way: since when, and what it last said of itself."""

    stage: PlannedStage
    since: float
    what: str = ""
    done: int = 0
    total: int = 0
    bar: tqdm[Any] | None = None


class Progress:
    """A Listener that shows the whole suite and every running stage. `quiet` shows failures only."""

    def __init__(self, stages: Sequence[PlannedStage], *, quiet: bool = False, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stderr
        self.quiet = quiet
        self.terminal = self.stream.isatty() and not quiet
        self.total = len(stages)
        self.done = 0
        self.forecast = Forecast(stages, time.monotonic())
        self._running: dict[str, _Shown] = {}
        self._last_line: dict[str, float] = {}
        self._all: tqdm[Any] | None = None
        self._footer: tqdm[Any] | None = None
        self._lock = threading.RLock()
        self._closed = threading.Event()
        if self.terminal:
            self._all = self._bar(0, self.total)
            threading.Thread(target=self._keep_fresh, name="progress", daemon=True).start()
            self._draw()

    def say(self, text: str) -> None:
        """Print a line without disturbing the bars."""
        if self.terminal:
            with self._lock:
                tqdm.write(text, file=self.stream)
        else:
            print(text, file=self.stream, flush=True)

    def say_below(self, text: str) -> None:
        """Print a line that stays below the bars until they are gone."""
        if not self.terminal or self._closed.is_set():
            self.say(text)
            return
        with self._lock:
            taken = [-shown.bar.pos for shown in self._running.values() if shown.bar is not None]
            self._footer = self._bar(1 + max(taken, default=0), 1)
            self._footer.bar_format = _literal(text[: self._width()])
            self._footer.refresh()

    def started(self, stage: PlannedStage) -> None:
        """Record when a stage started."""
        now = time.monotonic()
        with self._lock:
            self._last_line[stage.id] = now
            self._running[stage.id] = _Shown(stage, now)
            self.forecast.started(stage, now)

    def events(self, stage: PlannedStage, lines: Sequence[dict[str, Any]]) -> None:
        """Show the progress of a stage."""
        for line in lines:
            if line.get("total"):
                self.forecast.progressed(stage, line["done"], line["total"], line["t"], line.get("loop", 0))
        latest = next((line for line in reversed(lines) if line.get("total")), None)
        if latest is None or self.quiet:
            return
        with self._lock:
            shown = self._running.setdefault(stage.id, _Shown(stage, time.monotonic()))
            shown.what, shown.done, shown.total = latest["what"], latest["done"], latest["total"]
            if self.terminal:
                self._draw()
        if not self.terminal and time.monotonic() - self._last_line.get(stage.id, 0.0) > QUIET_SECONDS:
            self._last_line[stage.id] = time.monotonic()
            left = _left(self.forecast.stage_left(stage, time.monotonic()))
            self.say(f"  ... {stage.kind} {stage.label}: step {latest['done']:,} of {latest['total']:,}, {left}")

    def finished(self, stage: PlannedStage, outcome: Outcome) -> None:
        """Count a stage and print its outcome; one that was stopped is not done."""
        now = time.monotonic()
        with self._lock:
            shown = self._running.pop(stage.id, None)
            if shown is not None and shown.bar is not None:
                shown.bar.close()
            over = outcome.status != "stopped"
            self.done += over
            self.forecast.finished(stage, outcome.status, now)
            if self.terminal:
                self._draw()
        for message in outcome.messages:
            self.say(f"note: {message}")
        if outcome.status in ("failed", "skipped"):
            self.say(f"{outcome.status}: {stage.kind} {stage.label}: {outcome.message}")
        elif not self.terminal and not self.quiet and stage.kind != "score":
            left = f"; {_left(self.forecast.left(now))}" if over else ""
            took = spell(outcome.seconds)
            self.say(f"[{self.done}/{self.total}] {outcome.status}: {stage.kind} {stage.label} ({took}{left})")

    def close(self) -> None:
        """Remove the bars of stages; that of the suite stays, as far as it has come."""
        self._closed.set()
        with self._lock:
            bars = [shown.bar for shown in self._running.values()]
            for bar in (*bars, self._footer, self._all):
                if bar is not None:
                    bar.leave = bar is self._all
                    bar.close()
            self._running.clear()
            self._all = self._footer = None

    def _keep_fresh(self) -> None:
        while not self._closed.wait(REFRESH_SECONDS):
            with self._lock:
                if not self._closed.is_set():
                    self._draw()

    def _draw(self) -> None:
        """Bring all bars up to date, and give one to every stage that has something to show or takes long."""
        now, width = time.monotonic(), self._width()
        if self._all is not None:
            left = self.forecast.left(now) if self.done < self.total else None
            tails = [f" {self.done:,}/{self.total:,} stages", f" {self.done}/{self.total}"]
            if left is not None:
                tails = [f"{tails[0]}, {_left(left)}", f"{tails[1]} {clock(left)}"]
            _update(self._all, "suite", "", tails, self.done, self.total, width)
        for shown in self._running.values():
            if shown.bar is None and not shown.total and now - shown.since < SILENT_SECONDS:
                continue
            if shown.bar is None:
                taken = {-other.bar.pos for other in self._running.values() if other.bar is not None}
                shown.bar = self._bar(next(i for i in range(1, len(taken) + 2) if i not in taken), 1)
            label = f"{shown.stage.kind} {shown.stage.label}"
            if not shown.total:
                passed = now - shown.since
                _update(shown.bar, label, "", [f" {spell(passed)} so far", f" {clock(passed)}"], 0, 0, width)
                continue
            seconds = self.forecast.stage_left(shown.stage, now)
            steps, part = f" {shown.done:,}/{shown.total:,} steps", f" {100 * shown.done // shown.total}%"
            tails = [f"{steps}, {_left(seconds)}", f"{part} {clock(seconds)}"]
            _update(shown.bar, label, shown.what, tails, shown.done, shown.total, width)

    def _bar(self, position: int, total: int) -> tqdm[Any]:
        return tqdm(total=total, file=self.stream, leave=False, position=position, bar_format=" ")

    def _width(self) -> int:
        """Return the columns of the terminal that a bar may fill: not the last ones, where a terminal echoes ^C."""
        try:
            columns = os.get_terminal_size(self.stream.fileno()).columns
        except (OSError, ValueError):
            columns = 80
        return max(20, columns - 3)


def _update(bar: tqdm[Any], label: str, what: str, tails: Sequence[str], done: int, total: int, width: int) -> None:
    """Show the label, a bar and the longest tail with which everything fits; without a bar if there is no room."""
    labels = [f"{label} {what}", label] if what else [label]
    fitting = [(text, tail) for tail in tails for text in labels if len(text) + len(tail) + 3 + _SHORTEST <= width]
    bar.n, bar.total, bar.ncols = done, total or None, width + 1
    if fitting and total:
        text, tail = fitting[0]
        room = min(_LONGEST, width - len(text) - len(tail) - 3)
        bar.bar_format = f"{_literal(text)} |{{bar:{room}}}|{_literal(tail)}"
    else:
        tail = next((tail for tail in tails if len(label) + len(tail) <= width), tails[-1])
        bar.bar_format = _literal(_shortened(label, width - len(tail)) + tail)
    bar.refresh()


def _left(seconds: float | None) -> str:
    return "time left unknown" if seconds is None else f"about {spell(seconds)} left"


def _shortened(text: str, size: int) -> str:
    """Return a text with its middle left out if it is too long: its start and its end tell most."""
    if len(text) <= size:
        return text
    head = max(0, (size - 2) // 2)
    return f"{text[:head]}..{text[len(text) - max(0, size - 2 - head) :]}"


def _literal(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")
