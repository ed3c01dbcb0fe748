"""Seeds are functions of their axis, and the global generators follow them however torch is loaded."""

from __future__ import annotations

import random
import subprocess
import sys

import numpy as np
import torch

from bpcbench.running.seeding import derive, seed_globals


def test_derived_seeds_are_fixed() -> None:
    """They are part of what results mean: these numbers must never change."""
    assert [derive("distil", 0), derive("distil", 1), derive("evaluate", 0)] == [1811292175, 91373997, 828843107]
    seeds = [derive(axis, index) for axis in ("distil", "evaluate", "member") for index in range(200)]
    assert len(set(seeds)) == 600
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_global_generators() -> None:
    def draws(seed: int) -> tuple[float, float, float]:
        seed_globals(seed)
        return random.random(), float(np.random.normal()), float(torch.rand(()))

    assert draws(3) == draws(3)
    assert all(a != b for a, b in zip(draws(3), draws(4), strict=True))


def test_torch_is_seeded_when_it_is_imported_late() -> None:
    """Whether a stage is run where torch is already loaded must not matter."""
    late = "from bpcbench.running.seeding import seed_globals; seed_globals(1); seed_globals(7); import torch, sys\n"
    late += "assert not any('SeedTorch' in repr(f) for f in sys.meta_path); print(torch.rand(3).tolist())"
    found = subprocess.run([sys.executable, "-c", late], check=True, capture_output=True, text=True).stdout
    seed_globals(7)
    assert found.strip() == str(torch.rand(3).tolist())
