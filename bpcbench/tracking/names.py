"""How runs are named and told apart: their kinds, their tags, and names that hold only what varies in a suite."""

from __future__ import annotations

import re

from bpcbench.store.address import digest
from bpcbench.store.manifest import CellRecord, Group, Manifest

KIND_TAG = "bpcbench.kind"
"""`suite` for an invocation, `summary` for a line of the table, `cell` for a cell."""
DIGEST_TAG = "bpcbench.digest"
"""The digest of the manifest; a cell that several manifests share has all of theirs, separated by spaces."""
CELL_TAG = "bpcbench.cell"
GROUP_TAG = "bpcbench.group"
ORDER_TAG = "bpcbench.order"
"""Sorts summaries as the table does: by data set, by ipc, the best first."""
RESULTS_TAG = "bpcbench.results"
PROCESS_TAG = "bpcbench.process"
PARENT_TAG = "mlflow.parentRunId"
NAME_TAG = "mlflow.runName"
NOTE_TAG = "mlflow.note.content"
TOLD_TAG = "bpcbench.told"
"""On the run of an invocation: a digest of the table and the texts that it shows."""
ATTACHED_TAG = "bpcbench.attached"
"""On the run of an invocation: a digest of what its page and its pictures were made from."""
FAILED = "failed."
"""The prefix of the tags that say why a cell failed."""
CURVE, USAGE, WITHIN = "trace", "usage", "within"
"""The first parts of the names of curves, of costs and of a block's own metrics: they sort after the headline ones."""

AXES = ("dataset", "ipc", "method", "inference", "network")


def place(group: Group) -> dict[str, str]:
    """Return the group's place in the grid, as texts."""
    return {axis: str(getattr(group, axis)) for axis in AXES}


def varying(manifest: Manifest) -> tuple[str, ...]:
    """Return the axes that the groups of a suite differ in; the method is always among them."""
    return tuple(
        axis for axis in AXES if axis == "method" or len({getattr(group, axis) for group in manifest.groups}) > 1
    )


def group_name(group: Group, axes: tuple[str, ...]) -> str:
    """Return a group in words, what differs most first: MLflow's column is narrow."""
    order = [axis for axis in ("method", "ipc", "dataset", "inference", "network") if axis in axes]
    return " ".join(f"ipc {group.ipc}" if axis == "ipc" else str(getattr(group, axis)) for axis in order)


def cell_name(cell: CellRecord, axes: tuple[str, ...]) -> str:
    """Return a cell in words: its group and its seeds."""
    order = f" order {cell.order}" if cell.order else ""
    return f"{group_name(cell.group, axes)}{order} seed {cell.distil_seed}.{cell.evaluate_seed}"


_OLDER = re.compile(r"^older [0-9a-f]{4}: ")


def dated(name: str, manifest_digest: str | None) -> str:
    """Return a run's name with a mark of the settings it was made with, if a digest is given, else without.

    The mark comes first, because MLflow cuts names off at their end.
    """
    plain = _OLDER.sub("", name)
    return plain if manifest_digest is None else f"older {manifest_digest[:4]}: {plain}"


def block_name(group: Group, axes: tuple[str, ...]) -> str:
    """Return the block of the table that a group is in, such as `digits ipc 10`; empty if there is one only."""
    parts = {"dataset": group.dataset, "ipc": f"ipc {group.ipc}"}
    return " ".join(part for axis, part in parts.items() if axis in axes)


def block_metric(block: str, metric: str) -> str:
    """Return the name of a metric that only the summaries of one block have: MLflow's charts have no other filter."""
    return f"{WITHIN}/{allowed(block)}/{allowed(metric)}" if block else allowed(metric)


def group_key(manifest_digest: str, group: Group) -> str:
    """Return what identifies the summary of a group of one manifest."""
    return digest([manifest_digest, group.label])


def allowed(name: str) -> str:
    """Return a metric's name with what MLflow refuses replaced."""
    return re.sub(r"[^\w\-./ :]", "_", name)
