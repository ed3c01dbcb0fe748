"""Seeds: derived from named axes only, so that all methods get the same draws and differences are paired."""

from __future__ import annotations

import hashlib
import importlib.util
import random
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import numpy as np


def derive(axis: str, index: int | str) -> int:
    """Return the seed of one position on an axis (`distil`, `evaluate`, `member`), in 0 ... 2**31 - 1."""
    return int(hashlib.sha256(f"{axis}:{index}".encode()).hexdigest()[:8], 16) & 0x7FFFFFFF


def seed_globals(seed: int) -> None:
    """Seed the global generators of Python, NumPy and torch; torch is seeded on import if it is not loaded yet."""
    random.seed(seed)
    np.random.seed(seed)
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _SeedTorch)]
    if torch := sys.modules.get("torch"):
        torch.manual_seed(seed)
    else:
        sys.meta_path.insert(0, _SeedTorch(seed))


class _SeedTorch:
    """Seeds torch when a plugin imports it: draws must not depend on whether another plugin preloads it."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of torch from the finders after this one."""
        if name != "torch" or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            load = loader.exec_module

            def load_and_seed(module: Any) -> None:
                load(module)
                module.manual_seed(self.seed)

            loader.exec_module = load_and_seed
        return spec
