"""An engine whose attempts survive the process that started them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import bpcbench

BPCBENCH_API = 1


@dataclass
class DetachedPool:
    """Each attempt has a task file and a file with the number of its process."""

    folder: Path
    slots: int
    running: dict[str, int] = field(default_factory=dict)
    children: list[subprocess.Popen[bytes]] = field(default_factory=list)
    news: list[bpcbench.Started | bpcbench.Ended] = field(default_factory=list)

    def adopt(self) -> Iterable[bpcbench.Task]:
        for file in self.folder.glob("*.pid"):
            task = bpcbench.Task.from_json(json.loads(file.with_suffix(".json").read_text()))
            self.running[task.attempt] = int(file.read_text())
            self.news.append(bpcbench.Started(task.attempt))
            yield task

    def submit(self, task: bpcbench.Task) -> bool:
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / f"{task.attempt}.json"
        file.write_text(json.dumps(task.to_json()))
        command = [sys.executable, "-m", "bpcbench.running.worker", str(file)]
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
        file.with_suffix(".pid").write_text(str(child.pid))
        self.children.append(child)
        self.running[task.attempt] = child.pid
        self.news.append(bpcbench.Started(task.attempt))
        return True

    def wait(self, seconds: float) -> Iterable[bpcbench.Started | bpcbench.Ended]:
        end = time.monotonic() + seconds
        while not self.news and time.monotonic() < end:
            for attempt, pid in list(self.running.items()):
                if self._gone(pid):
                    del self.running[attempt]
                    for file in self.folder.glob(f"{attempt}.*"):
                        file.unlink()
                    self.news.append(bpcbench.Ended(attempt))
            time.sleep(0.01)
        news, self.news = self.news, []
        return news

    def _gone(self, pid: int) -> bool:
        for child in self.children:
            child.poll()
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        return False

    def stop(self, attempts: Collection[str]) -> None:
        for attempt in attempts:
            os.kill(self.running[attempt], signal.SIGTERM)

    def kill(self, attempts: Collection[str]) -> None:
        for attempt in attempts:
            os.kill(self.running[attempt], signal.SIGKILL)

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class Detached(bpcbench.Engine):
    """Processes that outlive the run."""

    name: ClassVar[str] = "detached"
    detached: ClassVar[bool] = True

    def open(self, run: bpcbench.RunInfo) -> bpcbench.Pool:
        return DetachedPool(run.folder(self.name), self.jobs or 1)


@dataclass(frozen=True)
class Leaving(Detached):
    """The same, but it does not say so."""

    detached: ClassVar[bool] = False
