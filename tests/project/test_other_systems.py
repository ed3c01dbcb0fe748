"""What Linux alone offers is never needed: without it, as on macOS, the questions are still answered."""

from __future__ import annotations

import os
import platform
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bpcbench.running.device import peak_memory, resolve_device, usable_cpus
from bpcbench.running.gpus import visible_gpus
from bpcbench.store import provenance


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A system without CPU affinity, without the module `resource` and without /proc."""
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setitem(sys.modules, "resource", None)  # an import of it fails
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    read_text, is_dir = Path.read_text, Path.is_dir

    def read(self: Path, *arguments: Any, **more: Any) -> str:
        if self.parts[:2] == ("/", "proc"):
            raise FileNotFoundError(2, "No such file or directory", str(self))
        return read_text(self, *arguments, **more)

    monkeypatch.setattr(Path, "read_text", read)
    monkeypatch.setattr(Path, "is_dir", lambda self: self.parts[:2] != ("/", "proc") and is_dir(self))
    provenance.machine.cache_clear()
    yield
    provenance.machine.cache_clear()


def test_the_machine_is_described_without_linux(elsewhere: None) -> None:
    assert usable_cpus() == os.cpu_count()
    assert peak_memory() is None
    assert visible_gpus() == ()
    described = provenance.machine()
    assert described["processor"] == (platform.processor() or platform.machine()) != ""
    assert (described["cpus"], described["system"]) == (os.cpu_count(), platform.platform())


def test_memory_is_in_bytes_on_either_system(monkeypatch: pytest.MonkeyPatch) -> None:
    resource = pytest.importorskip("resource")

    class Usage:
        ru_maxrss = 5000

    monkeypatch.setattr(resource, "getrusage", lambda who: Usage)
    monkeypatch.setattr(sys, "platform", "linux")
    assert peak_memory() == 5000 * 1024
    monkeypatch.setattr(sys, "platform", "darwin")
    assert peak_memory() == 5000


def test_an_unknown_number_of_cpus_is_one(elsewhere: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert usable_cpus() == 1


def test_auto_is_cuda_or_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = types.SimpleNamespace(
        cuda=types.SimpleNamespace(is_available=lambda: False),
        backends=types.SimpleNamespace(mps=types.SimpleNamespace(is_available=lambda: True)),
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert resolve_device("auto") == "cpu"
    assert resolve_device("mps") == "mps"
    torch.cuda.is_available = lambda: True
    assert resolve_device("auto") == "cuda"
