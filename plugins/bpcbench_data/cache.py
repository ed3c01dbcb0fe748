"""Where that is kept which is derived from a data set's files, and how it is written: completely or not at all.

It lies in `.bpcbench` below the data root or, where nothing can be written there, in the user's cache. All of it can be
made again from the files; it may be deleted at any time.
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
    """Return where derived things may lie: below the data root, else in the user's cache under a name for that root."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return [root / ".bpcbench", cache / "bpcbench" / "converted" / digest(str(root.resolve()))]


def digest(content: Any) -> str:
    """Return 16 letters that tell this text, or anything that JSON can hold, from every other."""
    text = content if isinstance(content, str) else json.dumps(content)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def state(path: Path) -> list[int]:
    """Return size and time of change: whoever writes into a file changes them."""
    found = path.stat()
    return [found.st_size, found.st_mtime_ns]


def remembered(folders: Sequence[Path], what: str, state: Any, find: Callable[[], Any]) -> Any:
    """Return what `find` finds out, as JSON holds it, asking it only once for each `state`.

    The answer is kept as `WHAT-DIGEST.json` in the first of the folders that can be written; where none can, `find` is
    asked every time.
    """
    name = f"{what}-{digest(state)}.json"
    for folder in folders:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            return json.loads((folder / name).read_bytes())["found"]
    found = find()
    for folder in folders:
        with contextlib.suppress(OSError):
            _keep(folder, name, {"found": found})
            for former in folder.glob(f"{what}-*.json"):
                if former.name != name:
                    former.unlink(missing_ok=True)
            break
    return found


def _keep(folder: Path, name: str, content: Any) -> None:
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
    """Make what was written durable."""
    stream.flush()
    os.fsync(stream.fileno())


def publish(source: Path, target: Path) -> None:
    """Rename a complete folder; where another process was first, its folder, which is the same, stays."""
    sync_entries(source)
    try:
        source.rename(target)
    except OSError:
        if not target.exists():
            raise
        return
    sync_entries(target.parent)


def sync_entries(folder: Path) -> None:
    """Make the names in a folder durable, on file systems that can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
