"""Scores run in one long-lived worker process, many per process: they are small, and starting one costs more."""

from __future__ import annotations

import threading
import time
from multiprocessing.connection import wait

from bpcbench.records import Status, Task
from bpcbench.running.queue import Outcome, Work
from bpcbench.running.worker import Worker, note


class Scorer(threading.Thread):
    """A thread that takes ready scores and has a worker process make them; a worker that dies fails one score."""

    def __init__(self, work: Work, preload: tuple[str, ...]) -> None:
        super().__init__(name="scorer", daemon=True)
        self.work = work
        self.preload = preload
        self.worker: Worker | None = None
        self.error: BaseException | None = None

    def run(self) -> None:
        """Score until nothing is left that could still become ready."""
        try:
            while self.work.scores_left():
                task = self.work.take(lambda task: True, scores=True)
                if task is None:
                    time.sleep(0.02)
                else:
                    self.work.finish(self._score(task))
        except BaseException as error:
            self.error = error
        finally:
            if self.worker is not None:
                self.worker.close()

    def _score(self, task: Task) -> Outcome:
        if self.worker is not None and not self.worker.process.is_alive():
            # It died of something that the score before it left behind; this one is not to blame.
            self.worker.close(kill=True)
            self.worker = None
        if self.worker is None:
            try:
                self.worker = Worker(self.preload)
            except (OSError, EOFError) as error:
                return Outcome(task.id, "failed", message=f"no worker could be started: {error!r}")
        worker = self.worker
        worker.send(task)
        begin = time.monotonic()
        while True:
            wait(worker.ready(), 0.2)
            outcome = worker.result()
            ended = not worker.process.is_alive()
            if outcome is None:
                late = worker.late()
                if late or self.work.stopping:
                    ended = True
                    status: Status = "failed" if late else "stopped"
                    message = f"it took longer than its timeout of {task.timeout:g} s" if late else "stopped"
                    note(task, message)
                    outcome = Outcome(task.id, status, time.monotonic() - begin, message)
            if outcome is not None:
                if ended:
                    worker.close(kill=True)
                    self.worker = None
                return outcome
