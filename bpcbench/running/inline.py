"""The pool of the engine `inline`: this very process."""

from __future__ import annotations

import pdb  # noqa: T100 - `--pdb` is a feature
import time
import traceback
from collections.abc import Collection, Iterator

from bpcbench.errors import Stopped
from bpcbench.records import Ended, RunInfo, Started, Task
from bpcbench.running.bodies import attempt, execute
from bpcbench.running.context import StageContext
from bpcbench.running.queue import Outcome


class InlinePool:
    """Executes one task at a time, in the thread that calls `wait`."""

    slots = 1

    def __init__(self, run: RunInfo) -> None:
        self._debug = run.debug
        self._task: Task | None = None
        self._contexts: list[StageContext] = []
        self._executing = False
        self._stopped = False

    def adopt(self) -> Collection[Task]:
        """Return nothing."""
        return ()

    def submit(self, task: Task) -> bool:
        """Keep the task for `wait`."""
        if self._task is not None:
            return False
        self._task, self._stopped = task, False
        return True

    def wait(self, seconds: float) -> Iterator[Started | Ended]:
        """Execute the task that was submitted."""
        task = self._task
        if task is None:
            time.sleep(seconds)
            return
        yield Started(task.attempt)
        outcome = Outcome(task.id, "stopped", message="stopped")
        try:
            self._executing = True
            if not self._stopped:
                outcome = self._execute(task)
        except Stopped:
            pass
        finally:
            self._executing = False
            self._task = None
            self._contexts.clear()
        yield outcome.ended(task.attempt)

    def _execute(self, task: Task) -> Outcome:
        if not self._debug:
            return execute(task, self._contexts.append)
        try:
            return attempt(task, self._contexts.append)
        except Exception as error:
            traceback.print_exc()
            pdb.post_mortem(error.__traceback__)
            return Outcome(task.id, "failed", message=f"{type(error).__name__}: {error}")

    def stop(self, attempts: Collection[str]) -> None:
        """End the stage after its current step, or right here if it is in no loop."""
        if self._task is None or self._task.attempt not in attempts or self._stopped:
            return
        self._stopped = True
        if self._contexts and self._contexts[-1].looping:
            self._contexts[-1].stopping = True
        elif self._executing:
            raise Stopped

    def kill(self, attempts: Collection[str]) -> None:
        """Do nothing: this process cannot be killed without the run."""

    def close(self) -> None:
        """Release nothing."""
