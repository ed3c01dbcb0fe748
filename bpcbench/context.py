"""What a running plugin may use: seed, device, scratch, and `steps()` with progress, checkpoints and exact resume."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bpcbench import checkpoint, tree
from bpcbench.checkpoint import Checkpoint
from bpcbench.errors import NotFinite, Stopped
from bpcbench.records import Coreset

CHECKPOINT_SECONDS = 60.0
CHECKPOINT_VARIABLE = "BPCBENCH_CHECKPOINT_SECONDS"
MAX_POINTS = 1000
FLUSH_SECONDS = 0.5

Snapshot = Callable[[int, Coreset, float], None]


class StageContext:
    """The Context of one attempt at one stage. It implements `bpcbench.api.Context`."""

    def __init__(
        self,
        *,
        seed: int,
        device: str = "cpu",
        precision: str = "float32",
        attempt: Path,
        keep_snapshot: Snapshot | None = None,
    ) -> None:
        self.seed = seed
        self.device = device
        self.precision = precision
        self.attempt = attempt
        self.stopping = False
        self.looping = False
        self._keep_snapshot = keep_snapshot
        self._interval = float(os.environ.get(CHECKPOINT_VARIABLE, CHECKPOINT_SECONDS))
        self._found: Checkpoint | None = checkpoint.newest(attempt.parent)
        self._states: dict[str, Any] = {}
        self._loop = -1
        self._started = time.monotonic()
        self._cpu_started = time.process_time()
        self._elapsed_before = 0.0
        self._cpu_before = 0.0
        attempt.mkdir(parents=True, exist_ok=True)
        self._events = (attempt / checkpoint.EVENTS).open("ab")
        self._step = 0
        self._total = 0
        self._stride = 1
        self._what = ""
        self._pending: list[tuple[int, str, Any]] = []
        self._last_flush = 0.0
        self._last_save = time.monotonic()
        self._save_cost = 0.0
        self.resumed_from: int | None = None

    @property
    def scratch(self) -> Path:
        """A private folder for temporary files."""
        path = self.attempt / "files"
        path.mkdir(exist_ok=True)
        return path

    @property
    def elapsed(self) -> float:
        """Seconds spent on this stage, those of interrupted attempts included as far as their work was kept."""
        return self._elapsed_before + time.monotonic() - self._started

    @property
    def cpu_seconds(self) -> float:
        """CPU seconds of this process spent on the stage, counted like `elapsed`."""
        return self._cpu_before + time.process_time() - self._cpu_started

    def steps(
        self,
        total: int,
        *,
        state: Mapping[str, Any] | None = None,
        snapshot: Callable[[], Coreset] | None = None,
        what: str = "",
    ) -> Iterator[int]:
        """Yield the steps still to do; see `bpcbench.api.Context.steps`."""
        self._loop += 1
        state = dict(state or {})
        self._total, self._what = total, what
        self._stride = max(1, math.ceil(total / MAX_POINTS))
        start = self._resume(state)
        self.looping = True
        try:
            if start == 0:
                self._snapshot(0, snapshot)
            for step in range(start, total):
                self._step = step
                yield step
                done = step + 1
                if snapshot is not None and _on_grid(done):
                    self._snapshot(done, snapshot)
                now = time.monotonic()
                if self.stopping or now - self._last_flush > FLUSH_SECONDS:
                    self._flush(done)
                    if self.stopping or now - self._last_save > max(self._interval, 20 * self._save_cost):
                        self._save(done, state)
                    if self.stopping:
                        raise Stopped
            self._flush(total)
        finally:
            self.looping = False
        # Later loops' checkpoints must be able to skip this one.
        self._states[str(self._loop)] = _plain(tree.capture(state))

    def log(self, **metrics: Any) -> None:
        """Note scalars of the current step; see `bpcbench.api.Context.log`."""
        step = self._step
        for name, value in metrics.items():
            detach = getattr(value, "detach", None)
            self._pending.append((step, name, detach() if detach is not None else value))

    def close(self) -> None:
        """Write what is pending; called when the stage's body has returned."""
        self._flush(self._step + 1)
        self._events.close()

    def curves(self) -> bytes:
        """Return the events of this stage so far."""
        if not self._events.closed:
            self._events.flush()
        return (self.attempt / checkpoint.EVENTS).read_bytes()

    def _resume(self, state: Mapping[str, Any]) -> int:
        found = self._found
        if found is None:
            return 0
        kept = tree.unpack(found.state)
        if self._loop > found.loop or str(self._loop) not in kept["loops"]:
            return 0
        loop = kept["loops"][str(self._loop)]
        tree.restore(state, tree.Packed(loop["arrays"], loop["skeleton"]))
        tree.restore_globals(loop["globals"])
        if self._loop < found.loop:
            return self._total
        self._states = {name: value for name, value in kept["loops"].items() if int(name) < self._loop}
        self._elapsed_before, self._cpu_before = found.elapsed, found.cpu
        self._started, self._cpu_started = time.monotonic(), time.process_time()
        self._adopt_events(found)
        self.resumed_from = found.step
        self._found = None
        return found.step

    def _adopt_events(self, found: Checkpoint) -> None:
        self._events.close()
        mine = self.attempt / checkpoint.EVENTS
        theirs = found.path.parent / checkpoint.EVENTS
        if theirs.exists() and theirs != mine:
            shutil.copyfile(theirs, mine)
        self._events = mine.open("ab")
        self._events.truncate(found.events)

    def _save(self, step: int, state: Mapping[str, Any]) -> None:
        started = time.monotonic()
        loops = {**self._states, str(self._loop): _plain(tree.capture(state))}
        packed = tree.pack({"loops": loops})
        try:
            checkpoint.save(
                self.attempt,
                loop=self._loop,
                step=step,
                total=self._total,
                elapsed=self.elapsed,
                cpu=self.cpu_seconds,
                events=self._events.tell(),
                state=packed,
            )
        except OSError as error:
            # A full disk costs the chance to resume here, not the work done so far.
            print(f"checkpoint at step {step} not written: {error}", file=sys.stderr)
        self._last_save = time.monotonic()
        self._save_cost = self._last_save - started

    def _snapshot(self, step: int, snapshot: Callable[[], Coreset] | None) -> None:
        if snapshot is not None and self._keep_snapshot is not None:
            self._keep_snapshot(step, snapshot(), self.elapsed)

    def _flush(self, done: int) -> None:
        values = _as_floats([value for _, _, value in self._pending])
        points: dict[int, dict[str, float]] = {}
        for (step, name, _), value in zip(self._pending, values, strict=True):
            if not math.isfinite(value):
                self._pending.clear()
                where = f" of {self._what}" if self._what else ""
                raise NotFinite(f"{name} is {value} at step {step}{where}")
            if step % self._stride == 0 or step == self._total - 1:
                points.setdefault(step, {})[name] = value
        self._pending.clear()
        elapsed = round(self.elapsed, 3)
        lines = [{"t": elapsed, "what": self._what, "step": step, "m": values} for step, values in points.items()]
        lines.append({"t": elapsed, "what": self._what, "done": done, "total": self._total, "loop": self._loop})
        self._events.write("".join(json.dumps(line) + "\n" for line in lines).encode())
        self._events.flush()
        self._last_flush = time.monotonic()


def _plain(packed: tree.Packed) -> dict[str, Any]:
    # The global generators too: what a plugin draws between two loops must not depend on where it was resumed.
    return {"arrays": packed.arrays, "skeleton": packed.skeleton, "globals": tree.capture_globals()}


def _on_grid(step: int) -> bool:
    while step % 10 == 0 and step > 0:
        step //= 10
    return step in (1, 2, 5)


def _as_floats(values: list[Any]) -> list[float]:
    torch = sys.modules.get("torch")
    tensors = [v for v in values if torch is not None and isinstance(v, torch.Tensor)]
    if torch is None or not tensors:
        return [float(value) for value in values]
    # One transfer for all of them: reading them one by one would wait for the device each time.
    moved = iter(torch.stack([t.reshape(()).float() for t in tensors]).tolist())
    return [next(moved) if isinstance(v, torch.Tensor) else float(v) for v in values]
