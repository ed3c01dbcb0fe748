"""Members and manifests for tests of the store, made without running anything."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from bpcbench.store import folder
from bpcbench.store.address import SCHEME, Address, stage_key
from bpcbench.store.store import Store


def description(name: str, inputs: Iterable[Address] = ()) -> dict[str, Any]:
    return {"name": name, "inputs": [str(source) for source in inputs], "unkeyed": {"note": "not in the key"}}


def address(kind: str = "coreset", name: str = "a", inputs: Iterable[Address] = (), member: str = "final") -> Address:
    return Address(kind, stage_key(kind, 1, description(name, inputs)), member)


def _contents(kind: str, extra: dict[str, Any]) -> dict[str, Any]:
    """Return what a stage.json of a kind must hold."""
    if kind == "score":
        metrics = extra.get("metrics", {})
        return {"metrics": {}, "directions": dict.fromkeys(metrics), "units": dict.fromkeys(metrics, "")}
    return {"coreset": {"bytes": 400, "classes": 2, "convention": "class"}} if kind == "coreset" else {}


def put(
    store: Store,
    kind: str = "coreset",
    name: str = "a",
    inputs: Iterable[Address] = (),
    member: str = "final",
    value: float = 1.0,
    files: dict[str, bytes] | None = None,
    **extra: Any,
) -> Address:
    """Commit a member as a run would and return its address; only `kind`, `name` and `inputs` are in its key."""
    where = address(kind, name, inputs, member)
    meta = {
        "label": name,
        "body_version": 1,
        "scheme": SCHEME,
        "stage": description(name, inputs),
        "inputs": [str(source) for source in inputs],
        **_contents(kind, extra),
        **extra,
    }
    assert store.commit(where, meta, {"x": np.full(100, value)}, files)
    return where


def manifest(root: Path, name: str = "suite", digest: str = "0" * 32, **suite: Any) -> Path:
    place = root / "suites" / name / digest
    place.mkdir(parents=True, exist_ok=True)
    (place / "cells.jsonl").write_text("[0,0,0,0]\n[1,0,0,0]\n")
    (place / "suite.json").write_text(json.dumps({"schema": 1, "name": name, **suite}))
    return place


def record(place: Path, name: str = "20260101T000000Z-1", **fields: Any) -> Path:
    (place / "runs").mkdir(exist_ok=True)
    path = place / "runs" / f"{name}.json"
    path.write_text(json.dumps(fields))
    return path


def forge(store: Store, where: Address, **changes: Any) -> None:
    """Rewrite a member's stage.json with other values and a valid checksum; None removes a value."""
    path = store.path(where) / "stage.json"
    body = {**json.loads(path.read_text()), **changes}
    body = {key: value for key, value in body.items() if value is not None}
    body["checksum"] = folder.checksum(body)
    path.write_text(json.dumps(body))


def snapshot(root: Path) -> dict[str, tuple[int, int, bytes | None]]:
    """Return every file and folder below a folder with its mode, time and content."""
    result = {}
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else None
        result[str(path.relative_to(root))] = (status.st_mode, status.st_mtime_ns, content)
    return result
