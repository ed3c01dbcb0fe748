"""Precision and determinism: what torch is told for a stage."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from bpcbench.running import numerics
from bpcbench.running.usage import Usage


@pytest.fixture(autouse=True)
def switches_restored() -> Iterator[None]:
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark
    yield
    matmul.allow_tf32, cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark = before
    numerics.settle("float32", "cpu")


@pytest.mark.parametrize(("precision", "allowed"), [("float32", False), ("tf32", True), ("bf16", False)])
def test_float32_means_float32_on_cuda(precision: str, allowed: bool) -> None:
    torch.backends.cudnn.allow_tf32 = True  # torch's default
    numerics.settle(precision, "cuda")
    assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == (allowed, allowed)


def test_the_cpu_is_left_alone() -> None:
    before = torch.backends.cudnn.allow_tf32
    numerics.settle("float32", "cpu")
    assert torch.backends.cudnn.allow_tf32 == before
    assert not torch.are_deterministic_algorithms_enabled()


def test_deterministic_turns_on_what_torch_offers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    numerics.settle("float32+deterministic", "cpu")
    assert torch.are_deterministic_algorithms_enabled()
    assert torch.backends.cudnn.deterministic
    assert not torch.backends.cudnn.benchmark
    import os

    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


def test_plugins_see_a_precision_they_know() -> None:
    assert [numerics.of_plugins(text) for text in ("float32", "tf32", "bf16", "tf32+deterministic")] == [
        "float32",
        "float32",
        "bf16",
        "float32",
    ]


def test_what_one_stage_turned_on_another_does_not_have() -> None:
    torch.backends.cudnn.benchmark = True
    numerics.settle("float32+deterministic", "cpu")
    numerics.settle("tf32+deterministic", "cuda")
    numerics.settle("float32", "cuda")
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.backends.cudnn.benchmark
    assert not torch.backends.cudnn.deterministic
    assert not torch.backends.cudnn.allow_tf32


def test_what_the_user_has_turned_on_stays() -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        numerics.settle("float32+deterministic", "cpu")
        numerics.settle("float32", "cpu")
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_stage_that_never_started_cuda_ran_on_the_cpu() -> None:
    found = Usage()
    assert found.device("cuda") == "cpu"
    assert found.device("cpu") == "cpu"
    assert list(found.described()) == ["peak_memory_bytes"]
