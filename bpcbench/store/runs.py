"""Run records: one small file per invocation beside the manifest it ran, with its progress and its failures.

Only the invocation that owns a record rewrites it, atomically. The latest run of a suite is the one that started last,
whatever the files' times are: copying a store changes those.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from bpcbench.forms import Rule, check
from bpcbench.reading import parse_json, read_bounded
from bpcbench.store import folder
from bpcbench.store.contents import Moment
from bpcbench.store.layout import RUNS
from bpcbench.store.provenance import timestamp

HEARTBEAT_SECONDS = 10.0
Process = Annotated[int, Rule("the number of a process", lambda value: 0 < value < 2**31)]
SILENT_SECONDS = 60.0
"""A run of another machine that has written nothing for so long is taken to be gone."""


@dataclass(frozen=True)
class FailureRecord:
    """A stage that failed: its id, its label, why, and the log that holds its output, relative to the store."""

    stage: str
    label: str
    message: str
    log: str
    out_of_memory: bool = False


@dataclass(frozen=True)
class RunRecord:
    """One invocation. `running` are the ids of the stages under way at the last heartbeat, `labels` what they are.

    `stale` names the plugins of which cached results were made by other code than at the time of the run. `scores` is
    a digest of all scores that were there at its end.
    """

    id: str
    command: str
    overrides: tuple[str, ...]
    request: str
    host: str
    process: Process
    started: Moment
    heartbeat: Moment
    ended: Moment | None = None
    exit_code: int | None = None
    description: str = ""
    shown: tuple[str, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    failures: tuple[FailureRecord, ...] = ()
    running: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    stale: tuple[str, ...] = ()
    scores: str = ""

    @property
    def alive(self) -> bool:
        """Whether the invocation is still under way, as far as can be told."""
        if self.ended is not None:
            return False
        if self.host == socket.gethostname():
            return _exists(self.process)
        return timestamp(time.time() - SILENT_SECONDS) < self.heartbeat


def read_runs(manifest: Path, note: Callable[[str], object] = lambda message: None) -> list[RunRecord]:
    """Return the run records beside a manifest, the earliest first; unreadable ones are passed over and noted."""
    records = []
    place = manifest / RUNS
    for path in _listed(place, note):
        if path.suffix == ".json":
            try:
                record = _decode(parse_json(read_bounded(path)))
                check(record, RunRecord)
                records.append(record)
            except FileNotFoundError:
                pass  # removed meanwhile
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                note(f"the run record {path} is passed over: {str(error).strip(' .')[:300]}")
    return sorted(records, key=lambda record: (record.started, record.id))


def last_failures(runs: Sequence[RunRecord]) -> dict[str, FailureRecord]:
    """Return by stage what failed in the latest run, and what ran out of memory in an earlier one.

    Out of memory is an answer that stands until the stage has a result or fails in another way: a run that was stopped
    before it came to the stage does not take it back.
    """
    found: dict[str, FailureRecord] = {}
    for run in runs:
        found = {name: failure for name, failure in found.items() if failure.out_of_memory}
        found |= {failure.stage: failure for failure in run.failures}
    return found


def _listed(place: Path, note: Callable[[str], object]) -> list[Path]:
    try:
        return sorted(place.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        note(f"the run records in {place} cannot be read: {error.strerror}")
        return []


class Journal:
    """Keeps the record of this invocation up to date."""

    def __init__(self, manifest: Path, record: RunRecord) -> None:
        self.path = manifest / RUNS / f"{record.id}.json"
        self.record = record
        self._written = 0.0

    @classmethod
    def begin(
        cls,
        manifest: Path,
        *,
        command: str,
        overrides: Sequence[str],
        request: str,
        description: str,
        shown: Sequence[str],
        stale: Sequence[str],
    ) -> Journal:
        """Start a record."""
        now = timestamp(time.time())
        journal = cls(
            manifest,
            RunRecord(
                id=f"{now.replace(':', '').replace('-', '')}-{uuid.uuid4().hex[:8]}",
                command=command,
                overrides=tuple(overrides),
                request=request,
                host=socket.gethostname(),
                process=os.getpid(),
                started=now,
                heartbeat=now,
                description=description,
                shown=tuple(shown),
                stale=tuple(stale),
            ),
        )
        journal._write()
        return journal

    def beat(
        self,
        running: Sequence[str],
        failures: Sequence[FailureRecord],
        labels: Mapping[str, str] | None = None,
    ) -> None:
        """Note what is under way; written at most every `HEARTBEAT_SECONDS`, or when something has failed."""
        failed = len(failures) != len(self.record.failures)
        due = time.monotonic() - self._written > HEARTBEAT_SECONDS
        if failed or due:
            now = timestamp(time.time())
            self.record = replace(
                self.record,
                heartbeat=now,
                running=tuple(running),
                failures=tuple(failures),
                labels=dict(labels or {}),
            )
            self._write()

    def end(
        self, *, exit_code: int, counts: Mapping[str, int], failures: Sequence[FailureRecord], scores: str = ""
    ) -> None:
        """Note how the run ended."""
        now = timestamp(time.time())
        self.record = replace(
            self.record,
            heartbeat=now,
            ended=now,
            exit_code=exit_code,
            counts=dict(counts),
            failures=tuple(failures),
            running=(),
            labels={},
            scores=scores,
        )
        self._write()

    def _write(self) -> None:
        self._written = time.monotonic()
        # A full disk must not end the run that the record is about.
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(exist_ok=True)  # not the manifest: a store that was removed stays so
            temporary = self.path.with_suffix(f".{os.getpid()}")
            folder.write_durably(temporary, (json.dumps(asdict(self.record), indent=1) + "\n").encode())
            temporary.replace(self.path)


def _decode(value: Mapping[str, Any]) -> RunRecord:
    known = {name: item for name, item in value.items() if name in RunRecord.__dataclass_fields__}
    for name in ("overrides", "running", "stale", "shown"):
        known[name] = tuple(map(str, known.get(name, ())))
    known["labels"] = {str(name): str(label) for name, label in dict(known.get("labels") or {}).items()}
    known["failures"] = tuple(map(_failure, known.get("failures", ())))
    return RunRecord(**known)


def _failure(item: Mapping[str, Any]) -> FailureRecord:
    texts = {name: str(item[name]) for name in ("stage", "label", "message", "log")}
    return FailureRecord(**texts, out_of_memory=item.get("out_of_memory") is True)


def _exists(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True
