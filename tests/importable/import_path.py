"""The PYTHONPATH of subprocesses."""

from __future__ import annotations

import os
from pathlib import Path


def with_folder(folder: Path | str) -> str:
    """Return a PYTHONPATH that begins with a folder and keeps what this process inherited."""
    inherited = os.environ.get("PYTHONPATH")
    return os.pathsep.join([str(folder), *([inherited] if inherited else [])])
