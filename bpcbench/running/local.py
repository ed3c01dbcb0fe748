"""The pool of the engine `local`, which scores use too: worker processes of this machine."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import wait

from bpcbench.errors import reason
from bpcbench.records import Ended, RunInfo, Started, Task
from bpcbench.running.worker import Worker


@dataclass(frozen=True)
class _Running:
    worker: Worker
    task: Task
    gpu: int | None
    since: float


class LocalPool:
    """Worker processes of this machine. With `reuse`, a process that has answered gets the next task."""

    def __init__(
        self,
        run: RunInfo,
        slots: int,
        gpus: Sequence[str] = (),
        shares: Mapping[str, float] | None = None,
        *,
        reuse: bool = False,
    ) -> None:
        self.slots = slots
        self._preload = run.preload
        self._reuse = reuse
        self._gpus = tuple(gpus)
        self._shares = dict(shares or {})
        self._free = [1.0] * len(self._gpus)
        self._running: dict[str, _Running] = {}
        self._idle: list[Worker] = []
        self._failed: list[Ended] = []

    def adopt(self) -> Collection[Task]:
        """Return nothing: workers die with their parent."""
        return ()

    def submit(self, task: Task) -> bool:
        """Start a worker, or use an idle one. A stage without a share of a GPU sees none, and computes on the CPU."""
        gpu = None
        if self._wants_gpu(task):
            share = self._share(task)
            named = task.device.partition(":")[2]
            candidates = [int(named)] if named else range(len(self._free))
            gpu = next((i for i in candidates if self._free[i] >= share - 1e-9), None)
            if gpu is None:
                return False
        if len(self._running) >= self.slots:
            return False
        if gpu is not None:
            # The worker sees one GPU, which is number 0 there.
            task = replace(task, visible=self._gpus[gpu], device=task.device.partition(":")[0])
        elif _may_use_gpu(task):
            task = replace(task, visible="", device="cpu")
        try:
            worker = self._worker()
        except (OSError, EOFError, MemoryError) as error:
            self._failed.append(Ended(task.attempt, "failed", f"no worker could be started: {_why(error)}"))
            return True
        if gpu is not None:
            self._free[gpu] -= self._share(task)
        worker.send(task)
        self._running[task.attempt] = _Running(worker, task, gpu, time.monotonic())
        return True

    def _wants_gpu(self, task: Task) -> bool:
        if not self._share(task) or not _may_use_gpu(task):
            return False
        return int(task.device.partition(":")[2] or 0) < len(self._free)

    def _share(self, task: Task) -> float:
        return self._shares.get(task.plugin, min(task.resources.gpus, 1.0))

    def _worker(self) -> Worker:
        while self._idle:
            worker = self._idle.pop()
            if worker.process.is_alive():
                return worker
            # It died of something that the task before left behind; the next one is not to blame.
            worker.close(kill=True)
        return Worker(self._preload)

    def wait(self, seconds: float) -> Iterator[Started | Ended]:
        """Yield what the workers answer."""
        if self._failed:
            yield from self._failed
            self._failed.clear()
            return
        wait([item for one in self._running.values() for item in one.worker.ready()], seconds)
        for one in list(self._running.values()):
            for event in one.worker.events():
                if isinstance(event, Ended):
                    self._release(one)
                    event = replace(event, seconds=event.seconds or time.monotonic() - one.since)
                yield event

    def _release(self, one: _Running) -> None:
        del self._running[one.task.attempt]
        if one.gpu is not None:
            self._free[one.gpu] += self._share(one.task)
        if self._reuse and one.worker.process.is_alive():
            self._idle.append(one.worker)
        else:
            one.worker.close()

    def stop(self, attempts: Collection[str]) -> None:
        """Send SIGTERM."""
        for one in self._of(attempts):
            one.worker.terminate()

    def kill(self, attempts: Collection[str]) -> None:
        """Send SIGKILL."""
        for one in self._of(attempts):
            one.worker.kill()

    def _of(self, attempts: Collection[str]) -> list[_Running]:
        return [self._running[attempt] for attempt in attempts if attempt in self._running]

    def close(self) -> None:
        """End all workers."""
        for one in self._running.values():
            one.worker.close(kill=True)
        for worker in self._idle:
            worker.close()


def _may_use_gpu(task: Task) -> bool:
    return task.device.startswith(("auto", "cuda"))


def _why(error: Exception) -> str:
    """Return why no process could be started, in words."""
    if isinstance(error, MemoryError):
        return "there is no memory left"
    if isinstance(error, OSError) and error.strerror:
        return reason(error)
    # The connection to the fork server was closed by its end.
    return "the process that starts workers has ended, as it does when memory is short (ulimit -v, a container's limit)"
