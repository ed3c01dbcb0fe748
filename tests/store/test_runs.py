"""Run records: who ran what and when, what is still under way, and what failed."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from bpcbench.store import runs
from bpcbench.store.provenance import timestamp
from bpcbench.store.runs import FailureRecord, Journal, RunRecord, read_runs

FAILURE = FailureRecord("coreset:00", "dots ipc 1 pick seed 0", "ValueError: no", "logs/coreset-00.log")


def begin(place: Path, **changes: Any) -> Journal:
    fields: dict[str, Any] = {
        "command": "bpcbench run small",
        "overrides": ["ipc=[1]"],
        "request": "0123",
        "description": "Small.",
        "shown": ("right",),
        "stale": ["pick"],
    }
    return Journal.begin(place, **{**fields, **changes})


def write(place: Path, **fields: Any) -> RunRecord:
    record = replace(begin(place).record, **fields)
    (place / "runs" / f"{record.id}.json").write_text(json.dumps(asdict(record)))
    return record


def test_a_record_is_there_from_the_start_and_tells_how_it_ended(tmp_path: Path) -> None:
    journal = begin(tmp_path)
    (record,) = read_runs(tmp_path)
    assert record == journal.record
    assert (record.overrides, record.shown, record.stale, record.ended) == (("ipc=[1]",), ("right",), ("pick",), None)
    assert (record.process, record.host, record.alive) == (os.getpid(), socket.gethostname(), True)
    journal.end(exit_code=1, counts={"done": 3, "failed": 1}, failures=[FAILURE], scores="abc")
    (record,) = read_runs(tmp_path)
    assert record == journal.record
    assert (record.exit_code, record.counts, record.failures) == (1, {"done": 3, "failed": 1}, (FAILURE,))
    assert (record.alive, record.running, record.scores) == (False, (), "abc")
    assert record.ended is not None
    assert [path.suffix for path in (tmp_path / "runs").iterdir()] == [".json"]


def test_the_latest_run_is_the_one_that_started_last_whatever_the_files_say(tmp_path: Path) -> None:
    late = write(tmp_path, id="a-late", started="2026-02-01T00:00:00.000Z")
    early = write(tmp_path, id="z-early", started="2026-01-01T00:00:00.000Z")
    for path in (tmp_path / "runs").iterdir():
        if path.stem not in (late.id, early.id):
            path.unlink()
    os.utime(tmp_path / "runs" / "a-late.json", (0, 0))
    assert [record.id for record in read_runs(tmp_path)] == ["z-early", "a-late"]


def test_a_killed_run_is_not_alive(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    record = replace(begin(tmp_path).record, process=process.pid)
    assert record.alive
    process.kill()
    process.communicate()
    assert not record.alive


def test_a_run_elsewhere_is_alive_as_long_as_its_heart_beats(tmp_path: Path) -> None:
    elsewhere = replace(begin(tmp_path).record, host="another machine", process=1)
    assert elsewhere.alive
    silent = timestamp(time.time() - runs.SILENT_SECONDS - 1)
    assert not replace(elsewhere, heartbeat=silent).alive
    assert not replace(elsewhere, ended=silent).alive


def test_the_heartbeat_is_written_now_and_then_and_at_once_after_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr(runs.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(runs.time, "time", lambda: clock[0])
    journal = begin(tmp_path)
    clock[0] += 1
    journal.beat(["coreset:00"], [])
    assert read_runs(tmp_path)[0].running == ()
    clock[0] += runs.HEARTBEAT_SECONDS
    journal.beat(["coreset:00"], [])
    (record,) = read_runs(tmp_path)
    assert (record.running, record.heartbeat) == (("coreset:00",), timestamp(clock[0]))
    assert record.started == timestamp(1000.0)
    clock[0] += 1
    journal.beat(["coreset:01"], [FAILURE])
    (record,) = read_runs(tmp_path)
    assert (record.running, record.failures) == (("coreset:01",), (FAILURE,))


def test_unreadable_records_are_passed_over_and_unknown_fields_ignored(tmp_path: Path) -> None:
    good = begin(tmp_path).record
    path = tmp_path / "runs" / f"{good.id}.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "colour": "red"}))
    for name, text in {"half": "{", "list": "[]", "deep": "[" * 100_000, "empty": "{}"}.items():
        (tmp_path / "runs" / f"{name}.json").write_text(text)
    (tmp_path / "runs" / "folder.json").mkdir()
    (tmp_path / "runs" / "note.txt").write_text("mine")
    assert read_runs(tmp_path) == [good]
    assert read_runs(tmp_path / "nothing") == []


def test_a_full_disk_does_not_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(runs.folder, "write_durably", full)
    begin(tmp_path).end(exit_code=0, counts={}, failures=[])
    assert read_runs(tmp_path) == []
