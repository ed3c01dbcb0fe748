"""The monitor hands on what running stages write, line by line, whatever state the file is in."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from plain_stages import planned
from toy_runs import until

from bpcbench.planning.planner import PlannedStage
from bpcbench.running.events import Monitor
from bpcbench.running.queue import Outcome

STAGE = planned("k")


class Ear:
    """A listener that remembers; with `broken` it fails at the first event."""

    def __init__(self, broken: bool = False) -> None:
        self.broken = broken
        self.heard: list[Any] = []

    def started(self, stage: PlannedStage) -> None:
        self.heard.append("started")

    def events(self, stage: PlannedStage, lines: Sequence[dict[str, Any]]) -> None:
        if self.broken:
            raise LookupError("no such thing")
        self.heard += [line["step"] for line in lines]

    def finished(self, stage: PlannedStage, outcome: Outcome) -> None:
        self.heard.append(outcome.status)


def line(step: int) -> bytes:
    return json.dumps({"step": step}).encode() + b"\n"


def test_follows_a_file(tmp_path: Path) -> None:
    """Half a line waits for its other half; a file that went back to a checkpoint is read again; nothing is lost."""
    ear, broken, said = Ear(), Ear(broken=True), []
    monitor = Monitor([broken, ear], said.append)
    monitor.start()
    try:
        monitor.started(STAGE, tmp_path)
        events = tmp_path / "events.jsonl"
        events.write_bytes(line(0) + line(1) + line(2)[:5])
        until(lambda: ear.heard == ["started", 0, 1], 5)
        with events.open("ab") as stream:
            stream.write(line(2)[5:] + b"nonsense\n" + line(3))
        until(lambda: ear.heard == ["started", 0, 1, 2, 3], 5)
        events.write_bytes(line(7))
        until(lambda: ear.heard[-1] == 7, 5)
        monitor.finished(STAGE, Outcome(STAGE.id, "done"))
        assert ear.heard == ["started", 0, 1, 2, 3, 7, "done"]
    finally:
        monitor.end()
    assert not monitor.is_alive()
    assert broken.heard == ["started"]
    assert said == ["Ear is disabled: LookupError: no such thing"]


def test_no_file_yet(tmp_path: Path) -> None:
    ear = Ear()
    monitor = Monitor([ear], print)
    monitor.start()
    monitor.started(STAGE, tmp_path / "nothing")
    monitor.finished(STAGE, Outcome(STAGE.id, "busy"))
    monitor.end()
    assert ear.heard == ["started"]
