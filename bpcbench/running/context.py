"""The context of a running plugin: seed, device, scratch, and `steps()` with progress, checkpoints and exact resume."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bpcbench.errors import NotFinite, Stopped, Superseded, UserError, shortened
from bpcbench.records import Coreset
from bpcbench.running import checkpoint
from bpcbench.running import state as tree
from bpcbench.running.checkpoint import Checkpoint
from bpcbench.running.numerics import synchronise
from bpcbench.store.leases import Lease

CHECKPOINT_SECONDS = 60.0
CHECKPOINT_VARIABLE = "BPCBENCH_CHECKPOINT_SECONDS"
MAX_POINTS = 1000
FLUSH_SECONDS = 0.5

Snapshot = Callable[[int, Coreset, float], None]


def checkpoint_interval() -> float:
    """Return the seconds between checkpoints; raise UserError if the environment does not hold such a number."""
    text = os.environ.get(CHECKPOINT_VARIABLE, str(CHECKPOINT_SECONDS))
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise UserError(f"{CHECKPOINT_VARIABLE}: expected a number of seconds, 0 or more, got {shortened(text)!r}")
    return seconds


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
        lease: Lease | None = None,
    ) -> None:
        self.seed = seed
        self.device = device
        self.precision = precision
        self.attempt = attempt
        self.stopping = False
        self.looping = False
        self._keep_snapshot = keep_snapshot
        self._lease = lease
        self._interval = checkpoint_interval()
        self._pause = min(self._interval, FLUSH_SECONDS)
        self._checkpoint: Checkpoint | None = checkpoint.newest(attempt.parent)
        self._resuming: dict[str, Any] = tree.unpack(self._checkpoint.state) if self._checkpoint else {}
        self._states: dict[str, Any] = {}
        self._loop = -1
        self._started = time.monotonic()
        self._cpu_started = time.process_time()
        self._elapsed_before = 0.0
        self._cpu_before = 0.0
        attempt.mkdir(parents=True, exist_ok=True)
        self._events = (attempt / checkpoint.EVENTS).open("a+b", buffering=0)
        self._curves = b""
        self._lost_points = False
        self._step = 0
        self._total = 0
        self._stride = 1
        self._last_point: dict[str, int] = {}
        self._what = ""
        self._snapshot_base = 0
        self._pending: list[tuple[int, str, Any]] = []
        self._last_flush = 0.0
        self._last_save = time.monotonic()
        self._save_cost = 0.0
        self.resumed_from: int | None = None

    @property
    def scratch(self) -> Path:
        """A private folder for temporary files."""
        path = self.attempt / "files"
        path.mkdir(parents=True, exist_ok=True)
        return path

    @property
    def elapsed(self) -> float:
        """Seconds spent on this stage, including interrupted attempts up to the checkpoint resumed from."""
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
        """Yield the remaining steps; see `bpcbench.api.Context.steps`."""
        if self.looping:
            raise RuntimeError(
                "ctx.steps() inside a loop of ctx.steps(): nested loops cannot be resumed, only consecutive ones"
            )
        if self._pending:
            # Left over from a loop that ended early; they belong to its name and its steps.
            self._flush(self._step + 1)
        self._loop += 1
        state = dict(state or {})
        self._total, self._what, self._step, self._last_point = total, what, 0, {}
        # One less, because the last step is always kept.
        self._stride = 1 if total <= MAX_POINTS else math.ceil(total / (MAX_POINTS - 1))
        # A trial: state that cannot be captured fails now, not at the first checkpoint.
        tree.capture(state)
        start = done = self._resume(state)
        self.looping = True
        try:
            # The count continues over all loops with snapshots, so that each snapshot has its own number.
            base = self._snapshot_base
            if start == 0 and base == 0:
                self._snapshot(0, snapshot)
            for step in range(start, total):
                self._step = step
                yield step
                done = step + 1
                if snapshot is not None and _on_grid(base + done):
                    self._snapshot(base + done, snapshot)
                now = time.monotonic()
                if self.stopping or now - self._last_flush > self._pause:
                    if self._lease is not None and self._lease.lost:
                        raise Superseded
                    self._flush(done)
                    if self.stopping or now - self._last_save > max(self._interval, 20 * self._save_cost):
                        self._save(done, state)
                    if self.stopping:
                        raise Stopped
            self._flush(total)
        finally:
            self.looping = False
            self._snapshot_base += done if snapshot is not None else 0
        # Checkpoints of later loops need it to skip this one.
        self._states[str(self._loop)] = _plain(tree.capture(state))

    def log(self, **metrics: Any) -> None:
        """Record scalars of the current step; see `bpcbench.api.Context.log`."""
        step = self._step
        for name, value in metrics.items():
            shape = getattr(value, "shape", ())
            if shape and math.prod(shape) != 1:
                raise ValueError(f"ctx.log takes scalars, but {name} has shape {tuple(shape)}")
            if hasattr(value, "detach") and not getattr(value, "is_cpu", True):
                # A plugin may change it in place before it is read; cloning does not synchronise the device.
                value = value.detach().clone()
            elif hasattr(value, "item"):
                value = value.item()
            self._pending.append((step, name, value))

    def close(self) -> None:
        """Write pending points; called when the stage's body has returned."""
        try:
            synchronise()
            self._flush(self._step + 1)
        finally:
            self._curves = self.curves()
            self._events.close()

    def curves(self) -> bytes:
        """Return the events of this stage so far."""
        if self._events.closed:
            return self._curves
        # By descriptor: without working locks, an attempt that finishes first removes the folder of this one.
        return os.pread(self._events.fileno(), self._events_size(), 0)

    def _events_size(self) -> int:
        return os.fstat(self._events.fileno()).st_size

    def _resume(self, state: Mapping[str, Any]) -> int:
        saved = self._checkpoint
        if saved is None:
            return 0
        kept = self._resuming
        if self._loop > saved.loop or str(self._loop) not in kept["loops"]:
            return 0
        loop = kept["loops"][str(self._loop)]
        try:
            tree.restore(state, tree.Packed(loop["arrays"], loop["skeleton"]))
        except Exception as error:
            hint = f"the checkpoint {saved.path} was written by other code ({error}); remove it to start over"
            raise ValueError(hint) from error
        tree.restore_globals(loop["globals"])
        if self._loop < saved.loop:
            return self._total
        self._states = {name: value for name, value in kept["loops"].items() if int(name) < self._loop}
        self._elapsed_before, self._cpu_before = saved.elapsed, saved.cpu
        self._started, self._cpu_started = time.monotonic(), time.process_time()
        self._last_point = kept["points"]
        self._adopt_events(saved)
        self.resumed_from = saved.step
        self._checkpoint, self._resuming = None, {}
        return saved.step

    def _adopt_events(self, saved: Checkpoint) -> None:
        self._events.close()
        mine = self.attempt / checkpoint.EVENTS
        theirs = saved.path.parent / checkpoint.EVENTS
        # Only curves: a stage does not fail because those of an earlier attempt cannot be read.
        with contextlib.suppress(OSError, shutil.SameFileError):
            shutil.copyfile(theirs, mine)
        self._events = mine.open("a+b", buffering=0)
        self._events.truncate(min(saved.events, self._events_size()))

    def may_write(self) -> None:
        """Raise Superseded if another process has taken the stage over."""
        if self._lease is not None and not self._lease.holds():
            raise Superseded

    def _save(self, step: int, state: Mapping[str, Any]) -> None:
        started = time.monotonic()
        self.may_write()
        loops = {**self._states, str(self._loop): _plain(tree.capture(state))}
        packed = tree.pack({"loops": loops, "points": self._last_point})
        try:
            checkpoint.save(
                self.attempt,
                loop=self._loop,
                step=step,
                total=self._total,
                elapsed=self.elapsed,
                cpu=self.cpu_seconds,
                events=self._events_size(),
                state=packed,
            )
        except OSError as error:
            # A full disk costs the chance to resume here, not the work done so far.
            _warn(f"checkpoint at step {step} not written: {error}")
        self._last_save = time.monotonic()
        self._save_cost = self._last_save - started

    def _snapshot(self, step: int, snapshot: Callable[[], Coreset] | None) -> None:
        if snapshot is None or self._keep_snapshot is None:
            return
        # First, so that no snapshot is kept of a step with a non-finite quantity.
        self._flush(step - self._snapshot_base)
        try:
            self._keep_snapshot(step, snapshot(), self.elapsed)
        except OSError as error:
            _warn(f"snapshot at step {step} not kept: {error}")

    def _flush(self, done: int) -> None:
        values = _as_floats([value for _, _, value in self._pending])
        points: dict[int, dict[str, float]] = {}
        for (step, name, _), value in zip(self._pending, values, strict=True):
            if not math.isfinite(value):
                self._pending.clear()
                where = f" of {self._what}" if self._what else ""
                raise NotFinite(f"{name} is {value} at step {step}{where}")
            last = self._last_point.get(name, -1)
            if step // self._stride > last // self._stride or last < step == self._total - 1:
                points.setdefault(step, {})[name] = value
                self._last_point[name] = step
        self._pending.clear()
        elapsed = round(self.elapsed, 3)
        lines = [{"t": elapsed, "what": self._what, "step": step, "m": values} for step, values in points.items()]
        lines.append({"t": elapsed, "what": self._what, "done": done, "total": self._total, "loop": self._loop})
        self._write("".join(json.dumps(line) + "\n" for line in lines).encode())
        self._last_flush = time.monotonic()

    def _write(self, lines: bytes) -> None:
        before = self._events_size()
        try:
            if self._events.write(lines) != len(lines):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            with contextlib.suppress(OSError):
                self._events.truncate(before)
            if not self._lost_points:
                _warn(f"curve points not written from step {self._step} on: {error}")
            self._lost_points = True


def _plain(packed: tree.Packed) -> dict[str, Any]:
    # Global generators too: draws between two loops must not depend on where the stage was resumed.
    return {"arrays": packed.arrays, "skeleton": packed.skeleton, "globals": tree.capture_globals()}


def _on_grid(step: int) -> bool:
    while step % 10 == 0 and step > 0:
        step //= 10
    return step in (1, 2, 5)


def _warn(text: str) -> None:
    # The log may be on the disk that is full.
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def _as_floats(values: list[Any]) -> list[float]:
    torch = sys.modules.get("torch")
    result = [math.nan] * len(values)
    alike: dict[Any, list[int]] = {}
    for index, value in enumerate(values):
        if torch is not None and isinstance(value, torch.Tensor):
            alike.setdefault((value.device, value.dtype, value.shape), []).append(index)
        else:
            result[index] = float(value)
    for (device, _, _), indices in alike.items():
        # One transfer for all: reading them one by one would synchronise the device each time.
        stacked = torch.stack([values[index] for index in indices])  # type: ignore[union-attr]
        wide = stacked.double() if device.type != "mps" else stacked.float()
        for index, number in zip(indices, wide.flatten().tolist(), strict=True):
            result[index] = number
    return result
