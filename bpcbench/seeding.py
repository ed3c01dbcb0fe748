"""Seeds: derived from named axes only, so that all methods meet the same draws and differences are paired."""

from __future__ import annotations

import hashlib
import random
import sys

import numpy as np


def derive(axis: str, index: int | str) -> int:
    """Return the seed of one position on an axis (`distil`, `evaluate`, `member`), in 0 ... 2**31 - 1."""
    return int(hashlib.sha256(f"{axis}:{index}".encode()).hexdigest()[:8], 16) & 0x7FFFFFFF


def seed_globals(seed: int) -> None:
    """Seed the global generators of Python, NumPy and, if loaded, torch."""
    random.seed(seed)
    np.random.seed(seed)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(seed)
