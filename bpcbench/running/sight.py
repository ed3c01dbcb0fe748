"""What a worker sees where an engine puts it: versions, plugins, devices, the store and the data; for `doctor`.

A task of the kind `examination` makes a worker write this down instead of working on a stage.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from bpcbench.records import Task
from bpcbench.registry.discovery import registry
from bpcbench.running.device import usable_cpus
from bpcbench.store import provenance

SLOW_CLOCK_SECONDS = 60.0


@dataclass(frozen=True)
class Sight:
    """What one process sees. `seen` is the content of a file that another machine has just written into the store."""

    host: str
    python: str
    versions: dict[str, str]
    plugins: dict[str, str]
    cpus: int
    gpus: tuple[str, ...]
    hidden: str | None
    data: bool
    seen: str
    time: float


def sight_file(task: Task) -> Path:
    """Return where the worker of such a task writes what it sees."""
    return task.store / "scratch" / "doctor" / f"{task.attempt}.json"


def question_file(task: Task) -> Path:
    """Return the file that the worker is to read."""
    return sight_file(task).with_suffix(".txt")


def look(task: Task, *, devices: bool = True) -> Sight:
    """Return what this process sees."""
    try:
        seen = question_file(task).read_text()
    except OSError as error:
        seen = str(error)
    return Sight(
        host=socket.gethostname(),
        python=sys.executable,
        versions=dict(provenance.versions()),
        plugins={
            plugin.name: f"{plugin.distribution} {plugin.version}".strip()
            + (f": not loaded: {plugin.error}" if plugin.error else "")
            for plugin in registry().plugins
        },
        cpus=usable_cpus(),
        gpus=_gpus() if devices else (),
        hidden=os.environ.get("CUDA_VISIBLE_DEVICES"),
        data=task.data.is_dir(),
        seen=seen,
        time=time.time(),
    )


def answer(task: Task) -> None:
    """Write down what this process sees."""
    file = sight_file(task)
    temporary = file.with_suffix(".tmp")
    temporary.write_text(json.dumps(asdict(look(task))))
    temporary.replace(file)


def read_sight(task: Task) -> Sight | None:
    """Return what the worker wrote; None if nothing of it can be seen from here."""
    try:
        plain = json.loads(sight_file(task).read_text())
        return Sight(**{**plain, "gpus": tuple(plain["gpus"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def differences(here: Sight, there: Sight, *, gpus: float) -> Iterator[str]:
    """Yield what a user would get wrong: each a sentence that says what to do."""
    if there.seen != here.seen:
        yield f"{there.host} does not see what was just written into the store: {there.seen}"
    for name, version in here.versions.items():
        if (found := there.versions.get(name)) != version:
            yield f"{name} is {found or 'not installed'} on {there.host}, {version} here: use one environment for both"
    for name, found in here.plugins.items():
        if there.plugins.get(name) != found:
            other = there.plugins.get(name, "not installed")
            yield f"plugin {name} is {other!r} on {there.host}, {found!r} here: install the same packages on the nodes"
    if here.data and not there.data:
        yield f"the data folder is not on {there.host}: set --data to a folder that the nodes see, or stage it there"
    if gpus and not there.gpus:
        yield f"torch sees no GPU on {there.host}, though one was asked for (CUDA_VISIBLE_DEVICES is {there.hidden!r})"
    if abs(there.time - here.time) > SLOW_CLOCK_SECONDS:
        yield f"the clock of {there.host} is off by {there.time - here.time:+.0f} s"


def _gpus() -> tuple[str, ...]:
    try:
        torch = importlib.import_module("torch")
        return tuple(str(torch.cuda.get_device_name(index)) for index in range(torch.cuda.device_count()))
    except Exception:
        return ()
