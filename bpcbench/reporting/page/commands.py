"""The command that makes one line of one block of a table again."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from bpcbench.store.invocations import Invocation
from bpcbench.store.manifest import Group, Manifest

_AXES = (("datasets", "dataset"), ("methods", "method"), ("inferences", "inference"), ("networks", "network"))
_PYTHON = "bpcbench.run("
_CONDITIONAL = ("cases", "exclude", "tune")
_PLAIN = re.compile(r"[\w+-]+")


def run_command(invocation: Invocation) -> str:
    """Return the command of the latest run, or one that repeats it where another command started the run."""
    verb = "tune" if invocation.purpose == "tune" else "run"
    for run in reversed(invocation.runs):
        # A suite without a file was run from Python, and no command repeats it.
        if run.command.startswith((f"bpcbench {verb} ", _PYTHON)):
            return run.command
    return shlex.join(["bpcbench", verb, invocation.source, *invocation.overrides])


def line_command(invocation: Invocation, group: Group) -> str:
    """Return the command that runs one group of cells: that of the latest run, narrowed where a suite allows it.

    A suite whose keys depend on its axes (`cases`, `exclude`, `tune`) is repeated as a whole: without a label that it
    refers to it might not be valid.
    """
    manifest = invocation.manifest
    command = run_command(invocation)
    if command.startswith(_PYTHON) or any(manifest.document.get(key) for key in _CONDITIONAL):
        return command
    return " ".join((command, *map(shlex.quote, _narrowing(manifest, group))))


def _narrowing(manifest: Manifest, group: Group) -> Iterator[str]:
    if len({other.ipc for other in manifest.groups}) > 1:
        yield f"ipc=[{group.ipc}]"
    for key, axis in _AXES:
        written = manifest.document.get(key)
        mine = str(getattr(group, axis))
        yield from _without(key, written, mine)


def _without(key: str, written: Any, mine: str) -> Iterator[str]:
    """Yield the overrides that leave only one label of an axis, as far as it is written label by label."""
    if isinstance(written, Mapping) and mine in written:
        others = [str(label) for label in written if label != mine]
        yield from (f"{key}.{label}=false" for label in others if _PLAIN.fullmatch(label))
    elif isinstance(written, list) and len(written) > 1 and mine in written:
        yield f"{key}=[{json.dumps(mine) if not _PLAIN.fullmatch(mine) else mine}]"
