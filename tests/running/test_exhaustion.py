"""Out of memory: recognised, with what was asked for and what to try, a dash in the table, and counted by a plan."""

from __future__ import annotations

import errno
import gc
import signal
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import toys
from plain_stages import planned
from toys import TOYS, Pick

import bpcbench
from bpcbench import Session, cli
from bpcbench.registry.discovery import Registry
from bpcbench.running import exhaustion, worker
from bpcbench.running.exhaustion import OUT_OF_MEMORY, explained, kernel_kills, ran_out, release
from bpcbench.running.run import make_task
from bpcbench.store.runs import FailureRecord, RunRecord, last_failures


def cpu_error() -> RuntimeError:
    """What torch's own allocator says."""
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**58, dtype=torch.uint8)
    return caught.value


def test_what_counts_as_out_of_memory() -> None:
    assert ran_out(MemoryError())
    assert ran_out(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."))
    assert ran_out(cpu_error())
    assert ran_out(OSError(errno.ENOMEM, "Cannot allocate memory"))
    assert not ran_out(OSError(errno.ENOENT, "no such file"))
    assert not ran_out(RuntimeError("shapes do not match"))
    assert not ran_out(ValueError("out of memory"))


def test_the_message_says_how_much_and_what_to_try() -> None:
    said = explained(cpu_error(), "cpu", {"graphs": None, "chunk": 1, "steps": 3})
    assert said.startswith(f"{OUT_OF_MEMORY} on this machine: needs about 288230376.2 GB or more")
    assert said.endswith("; try `graphs: 0`, a smaller `chunk`")
    assert explained(MemoryError(), "cpu", {"graphs": 0}) == "out of memory on this machine"


@pytest.mark.parametrize(
    "said",
    [
        "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
        "cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate(handle)`",
        "cuFFT error: CUFFT_ALLOC_FAILED",
        "HIP out of memory. Tried to allocate 2.00 GiB.",
    ],
)
def test_libraries_that_allocate_by_themselves_are_understood(said: str) -> None:
    assert ran_out(RuntimeError(said))
    assert not ran_out(ValueError(said))
    compiling = ValueError("while compiling")
    compiling.__cause__ = RuntimeError(said)
    assert ran_out(compiling)
    assert not ran_out(RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED"))


def test_what_the_error_holds_is_given_back() -> None:
    kept: list[weakref.ref[Any]] = []

    def hungry() -> None:
        tensor = torch.ones(8)
        kept.append(weakref.ref(tensor))
        try:
            raise ValueError
        except ValueError:
            raise MemoryError from None

    try:
        hungry()
    except MemoryError as error:
        gc.collect()
        assert kept[0]() is not None
        release(error)
        assert kept[0]() is None


def test_the_kernels_kills_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "memory.events").write_text("low 0\noom 9\noom_kill 3\noom_group_kill 0\n")
    monkeypatch.setattr(exhaustion, "_cgroup_files", lambda: [tmp_path / "none", tmp_path / "memory.events"])
    assert kernel_kills() == 3


@pytest.mark.parametrize(
    ("before", "now", "code", "message", "exhausted"),
    [
        (3, 4, signal.SIGKILL, "out of memory on this machine: the worker was killed by the kernel", True),
        (3, 3, signal.SIGKILL, "the worker was killed by SIGKILL", False),
        (3, 4, signal.SIGTERM, "the worker was killed by SIGTERM", False),
        (None, None, signal.SIGKILL, "the worker was killed by SIGKILL (out of memory?)", False),
    ],
)
def test_a_kill_by_the_kernel_is_out_of_memory(
    before: int | None,
    now: int | None,
    code: int,
    message: str,
    exhausted: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker, "kernel_kills", lambda: now)
    task = make_task(planned("k"), tmp_path / "store", tmp_path, log=tmp_path / "log")
    ended = worker.death(task, -code, before)
    # Tried once more: others may have used most of the memory.
    assert (ended.message, ended.out_of_memory, ended.lost) == (message, exhausted, True)


def run_with(*failures: FailureRecord) -> RunRecord:
    fields: dict[str, Any] = dict.fromkeys(("id", "command", "request", "host", "started", "heartbeat"), "")
    return RunRecord(overrides=(), process=1, failures=failures, **fields)


def test_out_of_memory_stands_until_something_else_happens() -> None:
    hungry = FailureRecord("a", "a", "out of memory", "", True)
    wrong, other = FailureRecord("b", "b", "ValueError", ""), FailureRecord("a", "a", "ValueError", "")
    assert last_failures([run_with(hungry, wrong), run_with()]) == {"a": hungry}
    assert last_failures([run_with(hungry), run_with(wrong)]) == {"a": hungry, "b": wrong}
    assert last_failures([run_with(hungry), run_with(other)]) == {"a": other}
    assert last_failures([]) == {}


@dataclass(frozen=True)
class Hungry(Pick):
    """A method that needs too much, on the machine or on the device."""

    name = "hungry"
    where: str = "host"

    def distil(self, data: Any, ipc: int, inputs: Any, ctx: Any) -> bpcbench.Coreset:
        if self.where == "host":
            raise MemoryError("Unable to allocate 2.00 TiB for an array with shape (1, 2)")
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 91.00 GiB. GPU 0 has 40 GiB.")


@pytest.mark.parametrize(("where", "need"), [("host", "2199.0 GB"), ("device", "97.7 GB")])
def test_what_runs_out_of_memory_is_a_dash_and_stays_one(
    where: str,
    need: str,
    install: Callable[..., Registry],
    write_suite: Callable[..., str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    install(toys, Hungry)
    methods = f"methods: {{pick: null, hungry: {{where: {where}}}}}"
    suite = write_suite(TOYS.replace("methods: [pick]", methods))
    out = tmp_path / "out"
    session = Session(suite, ["ipc=[1]", "seeds=1"], out=out, inline=True, track=False, quiet=True)
    assert session.run().exit_code == 1
    said = f"out of memory on this machine: needs about {need} or more; try a smaller `chunk`"

    def shown() -> str:
        table = session.report()
        words = " ".join(table.split())  # notes are broken into lines
        assert f"{said}: dots ipc 1 hungry" in words
        assert "1 of 2 evaluations have no result (1 out of memory)" in words
        return next(line for line in table.splitlines() if line.startswith("hungry"))

    assert "—" in shown()
    words = [suite, "ipc=[1]", "seeds=1", "--out", str(out)]
    assert cli.main(["plan", *words]) == 0
    planned_as = capsys.readouterr().out
    assert f"1 stage to do ran out of memory when last run: dots ipc 1 hungry seed 0: {said}" in planned_as
    # A run that ends before it comes to the stage takes nothing back.
    session.execute(session.prepare(), track=False)
    assert "—" in shown()
    (exhausted,) = session.plan().exhausted().values()
    assert [one.kind for one in exhausted] == ["coreset"]
