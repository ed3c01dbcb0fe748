"""Several evaluation seeds fitted together on the fake device: no step waits, and what is launched per seed falls."""

from __future__ import annotations

from pathlib import Path

import fake_cuda
import pytest

if reason := fake_cuda.missing():
    pytest.skip(reason, allow_module_level=True)

import fake_device_subjects as subjects
from fake_device_subjects import NET, STEPS, Watched

from bpcbench.api import Inference
from bpcbench_torch.samplers import SGHMCInference
from bpcbench_vbpc.inference import VariationalInference

pytestmark = pytest.mark.fakedevice

SEEDS = 5
CHAINS = {"samples": 2, "burn": 6, "thin": 1}
CASES: dict[str, tuple[Inference, float]] = {
    "vi": (VariationalInference(steps=STEPS, together=SEEDS), 2.0),
    "vi, no augmentation": (VariationalInference(steps=STEPS, together=SEEDS, augmentation="none"), 3.0),
    "sghmc": (SGHMCInference(**CHAINS, together=SEEDS), 5.0),
    "sghmc, batched": (SGHMCInference(**CHAINS, together=SEEDS, batched=True), 4.0),
}
"""Inferences, and how many times fewer launches a seed takes at least."""


def per_step(ledger: fake_cuda.Ledger) -> float:
    """Return the launches per step so far, after looking whether any step waits, and begin to count anew."""
    counts = ledger.counts["step"]
    assert [wait for wait in counts.waits if "chains.py:keep" not in wait] == []
    assert ledger.errors() == []
    found = counts.launches / ledger.steps
    ledger.counts.clear()
    ledger.steps = 0
    return found


@pytest.mark.parametrize("name", CASES)
def test_a_seed_takes_fewer_launches(ledger, tmp_path: Path, name: str) -> None:
    inference, at_least = CASES[name]
    given = subjects.coreset(), NET, subjects.inputs()
    inference.fit(*given, Watched(ledger, tmp_path / "alone"))
    alone = per_step(ledger)
    seeds = list(range(SEEDS))
    fits = inference.fit_together(*given, Watched(ledger, tmp_path / "together"), seeds)
    together = per_step(ledger) / SEEDS
    print(f"{name}: per step and seed {alone:.0f} launches alone, {together:.1f} if {SEEDS} are fitted together")
    assert len(fits) == SEEDS
    assert all(fit.predict(given[0].images[:7]).log_probs.shape[-2:] == (7, 10) for fit in fits)
    assert alone / together >= at_least
