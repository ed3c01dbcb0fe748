"""The cache of everything derived from a data set's files: its location and its atomic writes.

The cache is `.bpcbench` below the data root or, if that is not writable, a folder in the user's cache. It can be
recomputed from the files, so it may be deleted at any time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO


def places(root: Path) -> list[Path]:
    """Return the candidate cache folders: one below the data root, then one in the user's cache for that root."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return [root / ".bpcbench", cache / "bpcbench" / "converted" / digest(str(root.resolve()))]


def digest(content: Any) -> str:
    """Return a digest of 16 hexadecimal digits of a text or of any JSON value."""
    text = content if isinstance(content, str) else json.dumps(content)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def state(path: Path) -> list[int]:
    """Return a file's size and modification time."""
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]


def remembered(folders: Sequence[Path], what: str, state: Any, compute: Callable[[], Any]) -> Any:
    """Return the JSON value of `compute()`, cached for as long as `state` stays the same.

    The value is stored as `WHAT-DIGEST.json` in the first writable folder. If none is writable, it is recomputed every
    time.
    """
    name = f"{what}-{digest(state)}.json"
    for folder in folders:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            return json.loads((folder / name).read_bytes())["found"]
    value = compute()
    for folder in folders:
        with contextlib.suppress(OSError):
            _write(folder, name, {"found": value})
            for stale in folder.glob(f"{what}-*.json"):
                if stale.name != name:
                    stale.unlink(missing_ok=True)
            break
    return value


def _write(folder: Path, name: str, content: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f"{name}.{uuid.uuid4().hex}"
    try:
        with temporary.open("wb") as stream:
            stream.write(json.dumps(content).encode())
            sync(stream)
        temporary.replace(folder / name)
    finally:
        temporary.unlink(missing_ok=True)


def sync(stream: BinaryIO) -> None:
    """Flush a stream and sync it to disk."""
    stream.flush()
    os.fsync(stream.fileno())


def publish(source: Path, target: Path) -> None:
    """Rename a complete folder to its final name; if another process was faster, keep its equal folder."""
    sync_entries(source)
    try:
        source.rename(target)
    except OSError:
        if not target.exists():
            raise
        return
    sync_entries(target.parent)


def sync_entries(folder: Path) -> None:
    """Sync a folder's entries to disk, where the file system supports it."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
