"""Where data sets are looked for."""

from __future__ import annotations

import os
from pathlib import Path

DATA_VARIABLE = "BPCBENCH_DATA"


def data_root(inputs: str | None = None) -> Path:
    """Return where data sets are looked for: the argument, else BPCBENCH_DATA, else ~/.cache/bpcbench/data.

    A `~name` that is nobody's home is a folder of that name.
    """
    path = Path(inputs or os.environ.get(DATA_VARIABLE) or Path.home() / ".cache" / "bpcbench" / "data")
    try:
        return path.expanduser()
    except RuntimeError:
        return path
