"""The pool of the engine `local`, which scores use too: worker processes of this machine."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from typing import Literal

from bpcbench.errors import reason
from bpcbench.records import Ended, RunInfo, Started, Task
from bpcbench.running.processes import descendants
from bpcbench.running.worker import Worker


@dataclass(frozen=True)
class _Running:
    worker: Worker
    task: Task
    gpu: int | None
    since: float


Reuse = Literal["gpus", "always", "never"]


class LocalPool:
    """Worker processes of this machine.

    Which get another task when they have answered is what `reuse` says: those that see a GPU, whose start takes
    seconds, all or none. One whose stage failed, or has left processes behind, never does. A process sees the same GPU
    all its life.
    """

    def __init__(
        self,
        run: RunInfo,
        slots: int,
        gpus: Sequence[str] = (),
        shares: Mapping[str, float] | None = None,
        *,
        reuse: Reuse = "never",
    ) -> None:
        self.slots = slots
        self._preload = run.preload
        self._reuse = reuse
        self._gpus = tuple(gpus)
        self._shares = dict(shares or {})
        self._free = [1.0] * len(self._gpus)
        self._running: dict[str, _Running] = {}
        self._idle: list[tuple[str | None, Worker]] = []
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
            worker = self._worker(task.visible)
        except (OSError, EOFError, MemoryError) as error:
            # A server that was killed is nobody's fault; the next worker starts another one.
            lost = isinstance(error, EOFError | ConnectionError)
            self._failed.append(Ended(task.attempt, "failed", f"no worker could be started: {_why(error)}", lost=lost))
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

    def _worker(self, visible: str | None) -> Worker:
        for entry in [entry for entry in reversed(self._idle) if entry[0] == visible]:
            self._idle.remove(entry)
            worker = entry[1]
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
                    self._release(one, event)
                    event = replace(event, seconds=event.seconds or time.monotonic() - one.since)
                yield event

    def _release(self, one: _Running, ended: Ended) -> None:
        del self._running[one.task.attempt]
        if one.gpu is not None:
            self._free[one.gpu] += self._share(one.task)
        if self._is_fit(one, ended):
            self._idle.append((one.task.visible, one.worker))
        else:
            one.worker.close()

    def _is_fit(self, one: _Running, ended: Ended) -> bool:
        """Return whether a worker may get another task."""
        wanted = self._reuse == "always" or (self._reuse == "gpus" and one.gpu is not None)
        if not wanted or not one.worker.process.is_alive():
            return False
        # A score is the harness's own work in NumPy, and takes less than looking for processes.
        return one.task.kind == "score" or (
            ended.status in ("done", "cached") and not descendants(one.worker.process.pid)
        )

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
        for _, worker in self._idle:
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
