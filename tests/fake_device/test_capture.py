"""Regions on the fake device: what they save, and that each way in which one would not be safe to capture is found."""

from __future__ import annotations

from pathlib import Path

import fake_cuda
import pytest

if reason := fake_cuda.missing():
    pytest.skip(reason, allow_module_level=True)

import fake_device_subjects as subjects
import torch
from fake_device_subjects import NET, PLAN, Watched

from bpcbench_bpc.contrastive import Contrastive
from bpcbench_bpc.forward_kl import ForwardKL
from bpcbench_bpc.function_space import FunctionSpace
from bpcbench_bpc.reverse_kl import ReverseKL
from bpcbench_bpc.wasserstein import Wasserstein
from bpcbench_torch.capture import Regions
from bpcbench_torch.samplers import HMCInference

pytestmark = pytest.mark.fakedevice

TRAJECTORY = {"trajectories": PLAN, "experts": 1, "max_start": 1}
DEFAULTS = {
    "bpc-rkl": ReverseKL(**TRAJECTORY),
    "bpc-fkl": ForwardKL(**TRAJECTORY),
    "bpc-w": Wasserstein(**TRAJECTORY),
    "bpc-w graphs 0": Wasserstein(**TRAJECTORY, graphs=0),
    "bpc-cd": Contrastive(**TRAJECTORY),
    "fbpc": FunctionSpace(**TRAJECTORY, points=3),
}
WITHOUT = {"bpc-rkl": 3240, "bpc-fkl": 3928, "bpc-w": 11645, "bpc-w graphs 0": 14525, "bpc-cd": 523, "fbpc": 1463}
"""Launches per iteration at default options before there were regions and draws were computed together."""
HMC_WITHOUT = 2286
"""Those of a trajectory of three chains."""


def safe(ledger: fake_cuda.Ledger) -> None:
    """Check that all that was captured may be."""
    print(ledger.summary("step"))
    assert ledger.errors() == []
    assert list(ledger.counts["step"].waits) == []
    assert ledger.counts["step"].replays > 0


@pytest.mark.parametrize("name", DEFAULTS)
def test_an_iteration_takes_a_fifth_of_the_launches(ledger, tmp_path: Path, name: str) -> None:
    subjects.distil(DEFAULTS[name], Watched(ledger, tmp_path))
    safe(ledger)
    assert ledger.counts["step"].launches / ledger.steps <= WITHOUT[name] / 5


def test_a_trajectory_of_hmc_takes_a_fifth_of_the_launches(ledger, tmp_path: Path) -> None:
    inference = HMCInference(chains=3, samples=4, burn=2)
    inference.fit(subjects.coreset(), NET, subjects.inputs(), Watched(ledger, tmp_path))
    assert ledger.errors() == []
    assert ledger.counts["step"].replays == ledger.steps
    assert ledger.counts["step"].launches / ledger.steps <= HMC_WITHOUT / 5


def test_nothing_is_captured_where_it_is_turned_off(ledger, tmp_path: Path) -> None:
    subjects.distil(Wasserstein(**TRAJECTORY, inner_steps=3, capture=False), Watched(ledger, tmp_path))
    assert ledger.counts["step"].replays == 0


def planted(what) -> None:
    """Replay a region twice that does something else beside."""
    generator = torch.Generator("cuda")
    regions = Regions("cuda", generators=[generator])
    for _ in range(2):
        regions("planted", lambda x: (x + what(x),), [torch.zeros(3, device="cuda")])


@pytest.mark.parametrize(
    ("what", "said"),
    [
        (lambda x: x.sum().item(), "a wait"),
        (lambda x: torch.linalg.inv(torch.eye(3, device="cuda"))[0], "a wait"),
        (lambda x: torch.zeros(3).to("cuda", non_blocking=True), "a copy"),
        (lambda x: x.to("cpu", non_blocking=True).to("cuda", non_blocking=True), "a copy"),
        (lambda x: torch.zeros(3).pin_memory().to("cuda", non_blocking=True), "memory of the host"),
        (lambda x: torch.rand(3, generator=torch.Generator()).sum() * x, "a generator of cpu"),
        (lambda x: torch.rand(3, generator=torch.Generator("cuda"), device="cuda"), "a generator of cuda"),
    ],
    ids=["item", "linalg", "from the host", "to the host", "pinned", "generator of the host", "another generator"],
)
def test_a_region_that_is_not_safe_is_found(ledger, what, said: str) -> None:
    ledger.phase = "step"
    planted(what)
    with pytest.raises(AssertionError):
        safe(ledger)
    assert any(f"a captured region has {said}" in error for error in ledger.errors())


def test_memory_that_is_freed_before_a_replay_is_found(ledger) -> None:
    held = [torch.zeros(3, device="cuda")]
    regions = Regions("cuda")
    regions("planted", lambda x: (x + held[0],), [torch.zeros(3, device="cuda")])
    assert ledger.errors() == []
    held[0] = torch.zeros(3, device="cuda")
    regions("planted", lambda x: (x + held[0],), [torch.zeros(3, device="cuda")])
    assert [error.split(" at ")[0] for error in ledger.errors()] == ["a captured region reads memory that was freed"]


def test_a_region_that_is_safe_passes(ledger) -> None:
    ledger.phase = "step"
    planted(lambda x: x)
    safe(ledger)
    # Of each call the zeros, their copy to the input and the replay, and one more copy to record with.
    assert (ledger.counts["step"].launches, ledger.counts["step"].captured) == (2 * 3 + 1, 2)


def test_graphs_read_the_same_inputs(ledger) -> None:
    regions, large = Regions("cuda"), torch.zeros(10**6, device="cuda")
    for key in range(5):
        regions(key, lambda x: (x.sum(),), [large])
    # What is given, and one copy of it.
    assert 8e6 <= max(counts.peak for counts in ledger.counts.values()) < 9e6


def test_what_a_graph_returns_is_no_input_of_others(ledger) -> None:
    ledger.phase = "step"
    Regions("cuda")("same", lambda x: (x,), [torch.zeros(3, device="cuda")])
    assert ledger.counts["step"].captured == 1


def test_the_pool_of_graphs_is_memory_that_is_not_given_back(ledger) -> None:
    regions = Regions("cuda")
    regions("large", lambda x: (x.expand(10**6, 3).exp().sum(0),), [torch.zeros(3, device="cuda")])
    ledger.phase = "afterwards"
    torch.zeros(10, device="cuda")
    assert ledger.counts["afterwards"].peak > 12e6
