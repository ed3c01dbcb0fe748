"""store.json: what makes a folder a store, and of which schema."""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path

from bpcbench.errors import StoreError
from bpcbench.reading import parse_json, read_bounded
from bpcbench.store.layout import MARKER, SCHEMA, SCRATCH, STAGES


def schema_of(root: Path) -> int | None:
    """Return the schema of the store in a folder, None if there is none; raise StoreError if it is not ours."""
    marker = root / MARKER
    try:
        schema = parse_json(read_bounded(marker))["schema"]
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise StoreError(f"{marker}: cannot be read: {error}") from None
    if type(schema) is not int:
        raise StoreError(f"{marker}: cannot be read: its schema is {str(schema)[:40]!r}, not a number")
    if schema < SCHEMA:
        raise StoreError(
            f"{root} is a store of schema {schema}, made by an earlier bpcbench whose keys differ; "
            "keep it, and choose another folder with --out"
        )
    if schema > SCHEMA:
        raise StoreError(
            f"{root} is a store of schema {schema}, made by a later bpcbench; this one reads schema {SCHEMA}: "
            "upgrade it, or choose another folder with --out"
        )
    return schema


LEFT = {"logs", SCRATCH}
"""What processes that outlive a store which was removed may put in its place."""


def create(root: Path) -> None:
    """Make a folder a store; raise StoreError if it holds something else."""
    check_writable(root)
    others = {path.name for path in root.iterdir()} - LEFT if root.exists() else set()
    if others and STAGES not in others:
        raise StoreError(f"{root} is not empty and not a bpcbench store; choose another folder with --out")
    try:
        (root / STAGES).mkdir(parents=True, exist_ok=True)
        temporary = root / f".store-{uuid.uuid4().hex}"
        temporary.write_text(json.dumps({"schema": SCHEMA}) + "\n", encoding="utf-8")
        temporary.replace(root / MARKER)
    except OSError as error:
        raise StoreError(f"{root}: a store cannot be created: {error}") from None


def check_writable(root: Path) -> None:
    """Raise StoreError unless `root` can be created and written; nothing is created."""
    existing = root
    # Not `exists`, which raises where a folder above may not be searched.
    while not os.access(existing, os.F_OK):
        existing = existing.parent
    if not existing.is_dir():
        raise StoreError(f"{existing} is a file; choose another folder with --out")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise StoreError(f"{root}: no write permission in {existing}")
