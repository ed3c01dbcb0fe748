"""One process for stage after stage on a GPU: which workers get another task, and that nothing of a stage stays behind.

GPUs are simulated: the processes are real, and told by CUDA_VISIBLE_DEVICES which one they would see.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from plain_stages import planned
from toy_runs import Toy

from bpcbench.records import Ended, RunInfo, Status, Task
from bpcbench.running import local, nvml, usage
from bpcbench.running.engines import Local
from bpcbench.running.local import LocalPool
from bpcbench.running.run import make_task
from bpcbench.running.usage import Usage

Submit = Callable[..., "Answering"]


class Answering:
    """A worker that answers when it is told to; `pid` is the number of the process."""

    made: list[Answering]

    def __init__(self, preload: tuple[str, ...] = ()) -> None:
        self.process = SimpleNamespace(pid=len(self.made), is_alive=lambda: self.alive)
        self.alive, self.closed, self.answer, self.seen = True, False, None, []
        self.made.append(self)

    def send(self, task: Task) -> None:
        self.task = task
        self.seen.append(task.visible)

    def ready(self) -> list[Any]:
        return []

    def events(self) -> Iterator[Ended]:
        if self.answer is not None:
            yield Ended(self.task.attempt, self.answer)
            self.answer = None

    def close(self, *, kill: bool = False) -> None:
        self.closed = True


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., tuple[LocalPool, Submit]]:
    """Return a function that opens an engine on GPUs 3 and 5, and one that submits a stage to it."""
    monkeypatch.setattr(local, "Worker", Answering)
    monkeypatch.setattr(local, "descendants", lambda pid: ())
    monkeypatch.setattr(Answering, "made", [], raising=False)
    monkeypatch.setattr("bpcbench.running.gpus.visible_gpus", lambda: ("3", "5"))

    def opened(**options: Any) -> tuple[LocalPool, Submit]:
        pool: Any = Local(jobs=9, **options).open(RunInfo(store=tmp_path, run="r"))

        def submit(gpus: float = 1.0, device: str = "auto") -> Answering:
            task = replace(make_task(planned("k", gpus=gpus), tmp_path, tmp_path, log=tmp_path / "log"), device=device)
            assert pool.submit(task)
            found: Answering = pool._running[task.attempt].worker
            return found

        return pool, submit

    return opened


def finish(pool: LocalPool, worker: Answering, status: Status = "done") -> None:
    worker.answer = status  # type: ignore[assignment]
    assert [event.status for event in pool.wait(0) if isinstance(event, Ended)] == [status]


def test_a_gpu_keeps_its_process(start: Any) -> None:
    pool, submit = start()
    first, second = submit(), submit()
    finish(pool, second)
    finish(pool, first, "cached")
    # A process that has started CUDA cannot see another GPU.
    assert [submit(), submit()] == [first, second]
    assert (first.seen, second.seen) == (["3", "3"], ["5", "5"])


def test_stages_that_share_a_gpu_have_a_process_each(start: Any) -> None:
    pool, submit = start(overrides={"p": {"gpus": 0.5}})
    first, second = submit(), submit()
    assert (first.seen, second.seen) == (["3"], ["3"])
    finish(pool, first)
    assert submit() is first
    assert first is not second


def test_stages_without_a_gpu_have_a_process_of_their_own(start: Any) -> None:
    pool, submit = start()
    worker = submit()
    finish(pool, worker)
    other = submit(gpus=0.0)
    assert other is not worker
    finish(pool, other)
    assert other.closed
    assert not worker.closed


@pytest.mark.parametrize("status", ["failed", "stopped", "busy"])
def test_a_process_whose_stage_did_not_end_well_is_not_used_again(start: Any, status: Status) -> None:
    # An error of CUDA stays in the process.
    pool, submit = start()
    worker = submit()
    finish(pool, worker, status)
    assert worker.closed
    assert submit() is not worker


def test_a_process_that_leaves_others_behind_ends_with_them(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pool, submit = start()
    monkeypatch.setattr(local, "descendants", lambda pid: (12345,))
    worker = submit()
    finish(pool, worker)
    assert worker.closed


def test_one_that_died_meanwhile_is_replaced(start: Any) -> None:
    pool, submit = start()
    worker = submit()
    finish(pool, worker)
    worker.alive = False
    assert submit() is not worker
    assert worker.closed


def test_a_suite_may_have_it_always_or_never(start: Any) -> None:
    pool, submit = start(reuse="never")
    worker = submit()
    finish(pool, worker)
    assert worker.closed
    pool, submit = start(reuse="always")
    worker = submit(device="cpu")
    finish(pool, worker)
    assert submit(device="cpu") is worker
    assert submit(device="auto") is not worker


def test_at_the_end_they_are_closed(start: Any) -> None:
    pool, submit = start()
    worker = submit()
    finish(pool, worker)
    pool.close()
    assert worker.closed


@pytest.mark.campaign
def test_results_do_not_depend_on_it(tmp_path: Path) -> None:
    results, processes = [], []
    for reuse in ("always", "never"):
        toy = Toy(tmp_path / reuse)
        # Other options, so that one stage would notice the draws and loops of another.
        methods = "{one: {plugin: toy-adam, steps: 15, lr: 0.1}, two: {plugin: toy-adam, steps: 15, lr: 0.2}}"
        toy.write(methods, f"engine: {{plugin: local, reuse: {reuse}}}", "seeds: 1").run(jobs=1)
        results.append(toy.results())
        processes.append({pid for _, pid in toy.counted("worker")})
    assert results[0] == results[1]
    assert [len(found) for found in processes] == [1, 2]


class Cuda:
    """What torch tells of a GPU of NVIDIA."""

    def __init__(self) -> None:
        self.started, self.count, self.peak, self.emptied = True, 7, 900, 0

    def is_initialized(self) -> bool:
        return self.started

    def memory_stats(self) -> dict[str, int]:
        return {"allocation.all.allocated": self.count}

    def allocate(self, size: int) -> None:
        self.count, self.peak = self.count + 1, max(self.peak, size)

    def reset_peak_memory_stats(self) -> None:
        self.peak = 0

    def max_memory_allocated(self) -> int:
        return self.peak

    def empty_cache(self) -> None:
        self.emptied += 1

    def current_device(self) -> int:
        return 0

    def get_device_properties(self, index: int) -> Any:
        return SimpleNamespace(name="A100", total_memory=40 * 2**30, major=8, minor=0, uuid="aa11")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    """Pretend that this process has computed on a GPU before."""
    found = Cuda()
    matmul, cudnn = SimpleNamespace(allow_tf32=False), SimpleNamespace(allow_tf32=False, version=lambda: 90100)
    torch = SimpleNamespace(
        cuda=found,
        version=SimpleNamespace(cuda="12.6", hip=None),
        backends=SimpleNamespace(cuda=SimpleNamespace(matmul=matmul), cudnn=cudnn),
        are_deterministic_algorithms_enabled=lambda: False,
    )
    monkeypatch.setitem(usage.sys.modules, "torch", torch)
    return found


def test_a_stage_after_one_on_a_gpu_is_not_taken_for_another(cuda: Cuda) -> None:
    found = Usage()
    assert found.device("cuda") == "cpu"
    assert "accelerator" not in found.described()
    assert "peak_device_bytes" not in found.described()
    cuda.allocate(100)
    assert found.device("cuda") == "cuda"
    assert found.device("cpu") == "cpu"


def test_peaks_are_those_of_the_stage(cuda: Cuda) -> None:
    first = Usage()
    cuda.allocate(500)
    assert first.described()["peak_device_bytes"] == 500
    second = Usage()
    cuda.allocate(20)
    assert second.described()["peak_device_bytes"] == 20


def test_unused_memory_is_given_back(cuda: Cuda) -> None:
    usage.free()
    assert cuda.emptied == 1
    cuda.started = False
    usage.free()
    assert cuda.emptied == 1


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="only Linux can reset the peak")
def test_the_peak_of_the_host_is_that_of_the_stage() -> None:
    large = bytearray(200_000_000)
    del large
    before = Usage().described()["peak_memory_bytes"]
    found = Usage()
    more = bytearray(100_000_000)
    assert 50e6 < found.described()["peak_memory_bytes"] - before < 150e6
    del more


class Nvml:
    """The library of NVIDIA, with two GPUs."""

    def __init__(self) -> None:
        self.joules = {0: 5000.0, 1: 100.0}
        self.open = 0

    def nvmlInit(self) -> None:  # noqa: N802
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def nvmlSystemGetDriverVersion(self) -> bytes:  # noqa: N802
        return b"570.86.15"

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:  # noqa: N802
        return ("GPU-aa11", "GPU-bb22")[handle]

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:  # noqa: N802
        return SimpleNamespace(total=(handle + 1) * 2**30)

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: int) -> int:  # noqa: N802
        if handle == 1:
            raise RuntimeError("Not Supported")
        return int(1000 * self.joules[handle])


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Nvml:
    found = Nvml()
    monkeypatch.setitem(nvml.importlib.sys.modules, "pynvml", found)  # type: ignore[attr-defined]
    monkeypatch.setattr(nvml.importlib.util, "find_spec", lambda name: name)
    return found


def test_the_library_tells_count_driver_memory_and_energy(library: Nvml) -> None:
    assert (nvml.count(), nvml.driver()) == (2, "570.86.15")
    assert nvml.memory() == {"0": 2**30, "GPU-aa11": 2**30, "1": 2**31, "GPU-bb22": 2**31}
    assert nvml.energy() == {"GPU-aa11": 5000.0}
    assert library.open == 0


def test_a_library_without_a_driver_tells_nothing(library: Nvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "nvmlInit", lambda: 1 // 0)
    assert (nvml.count(), nvml.driver(), nvml.memory(), nvml.energy()) == (None, None, {}, {})


def test_energy_is_that_of_the_gpu_in_use_while_the_stage_ran(cuda: Cuda, library: Nvml) -> None:
    found = Usage()
    found.expect("cuda")
    cuda.allocate(1)
    library.joules[0] += 321.5
    described = found.described()
    assert described["device_joules"] == 321.5
    # Where /proc has no file, as on WSL2, the library knows the driver.
    if not Path("/proc/driver/nvidia/version").exists():
        assert described["accelerator"]["driver"] == "570.86.15"
    unexpected = Usage()
    cuda.allocate(1)
    assert "device_joules" not in unexpected.described()
