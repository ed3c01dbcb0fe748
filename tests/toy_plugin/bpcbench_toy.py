"""Plugins for tests of the machinery: tiny, countable, able to fail in every way. No torch unless a stage needs it.

BPCBENCH_TEST_COUNT names a file that gets a line for everything that is really executed; BPCBENCH_TEST_PACE slows
every step down without changing its result.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

import bpcbench

BPCBENCH_API = 1
SIZES = {"train": 24, "test": 30, "shifted": 10}

if os.environ.get("BPCBENCH_TEST_NO_LOCKS"):

    def _no_locks(*arguments: Any) -> None:
        raise OSError(37, "No locks available")

    fcntl.lockf = _no_locks

if pace_of_clock := float(os.environ.get("BPCBENCH_TEST_CLOCK", 0)):
    _began, _time = time.time(), time.time

    def _strange_clock() -> float:
        return _began + pace_of_clock * (_time() - _began)

    time.time = _strange_clock


def count(*words: object) -> None:
    """Note that something was executed."""
    if path := os.environ.get("BPCBENCH_TEST_COUNT"):
        with Path(path).open("a") as stream:
            stream.write(" ".join(map(str, words)) + "\n")


def pace() -> None:
    """Take as long as a test wants a step to take."""
    time.sleep(float(os.environ.get("BPCBENCH_TEST_PACE", 0)))


@dataclass(frozen=True)
class ToyData(bpcbench.Dataset):
    """Two classes of 4x4 noise around two grey levels."""

    name: ClassVar[str] = "toy-data"

    def facts(self, root):
        return bpcbench.Facts(shape=(1, 4, 4), classes=2, sizes=SIZES)

    def fingerprint(self, root, split):
        return f"{split}-1"

    def load(self, root, split):
        rng = np.random.default_rng(list(SIZES).index(split))
        labels = np.arange(SIZES[split]) % 2
        levels = rng.integers(0, 160, (len(labels), 1, 4, 4)) + 60 * labels[:, None, None, None]
        return bpcbench.Split(levels.astype(np.uint8), labels)


@dataclass(frozen=True)
class ToyMeans(bpcbench.Prerequisite):
    """Class means found by a slow, checkpointed running average."""

    name: ClassVar[str] = "toy-means"
    steps: int = 40

    def make(self, data, inputs, ctx, member):
        images = inputs.transform.apply(data.train.images)
        rng = np.random.default_rng(ctx.seed)
        means = np.zeros((2, *data.facts.shape), np.float32)
        count("prerequisite", member)
        fresh = True
        for step in ctx.steps(self.steps, state={"means": means, "rng": rng}, what="means"):
            if fresh:
                count("from", "prerequisite", 0, step)
                fresh = False
            rows = rng.permutation(len(images))[:8]
            for c in range(2):
                chosen = images[rows][data.labels[rows] == c]
                if len(chosen):
                    means[c] += (chosen.mean(0) - means[c]) / (step + 1)
            pace()
        return {"means": means}


def real(data, inputs, ipc, seed):
    """Return a coreset of real images."""
    rows = bpcbench.per_class(data.labels, ipc, seed)
    images = inputs.transform.apply(data.train.images[rows])
    return bpcbench.Coreset(images=images, targets=data.labels[rows], class_ids=data.labels[rows], classes=2)


@dataclass(frozen=True)
class ToyReal(bpcbench.Method):
    """Real images, at once, but for `wait` seconds."""

    name: ClassVar[str] = "toy-real"
    resources: ClassVar[bpcbench.Resources] = bpcbench.Resources()
    wait: float = 0.0

    def distil(self, data, ipc, inputs, ctx):
        count("coreset", ctx.seed)
        time.sleep(self.wait)
        return real(data, inputs, ipc, ctx.seed)


@dataclass(frozen=True)
class ToyParent(bpcbench.Method):
    """Leaves processes behind: a child, one in another session, an orphan, and a fork of itself."""

    name: ClassVar[str] = "toy-parent"
    resources: ClassVar[bpcbench.Resources] = bpcbench.Resources()
    wait: float = 0.0

    def distil(self, data, ipc, inputs, ctx):
        children = [subprocess.Popen(["sleep", "600"]), subprocess.Popen(["sleep", "600"], start_new_session=True)]
        subprocess.run(["sh", "-c", "sleep 600 & sleep 600 &"], check=True)
        forked = os.fork()
        if forked == 0:
            time.sleep(600)
            os._exit(0)
        count("left", forked, *(child.pid for child in children))
        time.sleep(self.wait)
        return real(data, inputs, ipc, ctx.seed)


@dataclass(frozen=True)
class ToyAdam(bpcbench.Method):
    """Two checkpointed loops with Adam, torch and NumPy generators, and draws from every global generator."""

    name: ClassVar[str] = "toy-adam"
    preload: ClassVar[tuple[str, ...]] = ("torch", "torch._dynamo")
    resources: ClassVar[bpcbench.Resources] = bpcbench.Resources()
    steps: int = 120
    lr: float = 0.05

    def prerequisites(self, facts, ipc):
        return {"means": bpcbench.Need(bpcbench.Ref("toy-means"))}

    def distil(self, data, ipc, inputs, ctx):
        import torch

        count("coreset", self.lr)
        count("worker", self.lr, os.getpid())
        start = real(data, inputs, ipc, ctx.seed)
        target = torch.tensor(inputs["means"].members["final"]["means"])[torch.tensor(start.targets)]
        images = torch.tensor(start.images).requires_grad_()
        ours, theirs = torch.Generator().manual_seed(ctx.seed), np.random.default_rng(ctx.seed)
        trace = {"seen": [], "best": float("inf")}
        for loop in range(2):
            # Between loops too: a resumed run must draw what an uninterrupted one draws.
            shift = float(np.random.normal() + random.gauss(0, 1) + torch.randn(()))
            optimizer = torch.optim.Adam([images], self.lr)
            state = {"images": images, "adam": optimizer, "ours": ours, "theirs": theirs, "trace": trace}
            fresh, snapshot = True, functools.partial(self._coreset, images, start)
            for step in ctx.steps(self.steps, state=state, snapshot=snapshot, what=str(loop)):
                if fresh:
                    count("from", "coreset", loop, step)
                    fresh = False
                noise = torch.randn(images.shape, generator=ours) + float(theirs.normal()) + float(np.random.normal())
                noise = noise + torch.rand(()) + random.random() + 0.1 * shift
                loss = ((images - target + 0.1 * noise) ** 2).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                trace["best"] = min(trace["best"], float(loss.detach()))
                trace["seen"] = [*trace["seen"][-4:], step]
                ctx.log(loss=loss, best=trace["best"])
                pace()
        return self._coreset(images, start, trace["best"])

    def _coreset(self, images, start, best=0.0):
        now = images.detach().numpy().copy()
        return bpcbench.Coreset(
            images=now,
            targets=start.targets,
            class_ids=start.class_ids,
            classes=2,
            recipe=bpcbench.Recipe(scalars={"best": best}),
        )


@dataclass(frozen=True)
class ToyLoop(bpcbench.Method):
    """A checkpointed loop in NumPy alone."""

    name: ClassVar[str] = "toy-loop"
    resources: ClassVar[bpcbench.Resources] = bpcbench.Resources()
    steps: int = 30

    def distil(self, data, ipc, inputs, ctx):
        count("coreset", self.steps)
        count("worker", self.steps, os.getpid())
        start = real(data, inputs, ipc, ctx.seed)
        images, rng = start.images.copy(), np.random.default_rng(ctx.seed)
        fresh = True
        for step in ctx.steps(self.steps, state={"images": images, "rng": rng}):
            if fresh:
                count("from", "coreset", 0, step)
                fresh = False
            images += rng.normal(0, 0.01, images.shape).astype(np.float32) + np.float32(np.random.normal(0, 0.01))
            ctx.log(level=float(images.mean()))
            pace()
        return bpcbench.Coreset(images=images, targets=start.targets, class_ids=start.class_ids, classes=2)


@dataclass(frozen=True)
class ToyBad(bpcbench.Method):
    """Ends in the way that `how` says, once the file BPCBENCH_TEST_COUNT says it began."""

    name: ClassVar[str] = "toy-bad"
    resources: ClassVar[bpcbench.Resources] = bpcbench.Resources()
    how: str = "raise"

    def distil(self, data, ipc, inputs, ctx):
        count("bad", self.how, os.getpid())
        print(f"about to {self.how}", flush=True)
        getattr(self, "_" + self.how)(ctx)
        return real(data, inputs, ipc, ctx.seed)

    def _raise(self, ctx):
        raise LookupError("nothing of the kind")

    def _exit(self, ctx):
        os._exit(3)

    def _sysexit(self, ctx):
        sys.exit("bye")

    def _segfault(self, ctx):
        ctypes.string_at(0)

    def _kill(self, ctx):
        os.kill(os.getpid(), signal.SIGKILL)

    def _memory(self, ctx):
        raise MemoryError

    def _sleep(self, ctx):
        time.sleep(1000)

    def _deaf(self, ctx):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(1000)

    def _hold(self, ctx):
        # Holds the interpreter lock: no Python thread or handler runs meanwhile.
        sum(range(10**12))

    def _nan(self, ctx):
        for step in ctx.steps(10):
            ctx.log(loss=float("nan") if step == 7 else 1.0)


@dataclass(frozen=True)
class ToyNet(bpcbench.Network):
    """No network at all."""

    name: ClassVar[str] = "toy-net"
    framework: ClassVar[str] = "numpy"

    def build(self, shape, classes, seed):
        return None


class _Nearest(bpcbench.Predictive):
    def __init__(self, means, keep):
        self.means, self.keep = means, keep

    def log_probs(self, images):
        distance = ((images[:, None] - self.means[None]) ** 2).mean((2, 3, 4))
        logits = -distance.astype(np.float64)
        return (logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)).astype(np.float32)

    def arrays(self):
        return {"means": self.means} if self.keep else None


@dataclass(frozen=True)
class ToyNearest(bpcbench.Inference):
    """Nearest class mean; its fit is kept unless `keep` is false."""

    name: ClassVar[str] = "toy-nearest"
    resources: ClassVar[bpcbench.Resources] = bpcbench.Resources()
    keep: bool = True

    def fit(self, coreset, network, inputs, ctx):
        count("fit", ctx.seed)
        means = np.stack([coreset.images[coreset.targets == c].mean(0) for c in range(2)])
        return _Nearest(means, self.keep)

    def restore(self, arrays, coreset, network, inputs, ctx):
        count("restore", ctx.seed)
        return _Nearest(arrays["means"], True)


@dataclass(frozen=True)
class ToyTogether(ToyNearest):
    """The same after a loop of `steps`, for several seeds at once if asked; `broken` says how that fails."""

    name: ClassVar[str] = "toy-together"
    together: int = bpcbench.option(1, absent=1)
    steps: int = 1
    broken: str = ""

    def seeds_together(self):
        return self.together

    def fit(self, coreset, network, inputs, ctx):
        for step in ctx.steps(self.steps, state={}):
            count("alone", step, ctx.seed)
            pace()
        if self.broken == "all":
            raise ValueError("no fit is possible")
        return super().fit(coreset, network, inputs, ctx)

    def fit_together(self, coreset, network, inputs, ctx, seeds):
        state = {f"seed.{index}": np.array([seed], np.uint64) for index, seed in enumerate(seeds)}
        for step in ctx.steps(self.steps, state=state):
            count("step", step, len(seeds))
            if self.broken == "stopping":
                os.kill(os.getpid(), signal.SIGTERM)
                raise ValueError("not while stopping")
            pace()
        count("together", *seeds)
        if self.broken == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.broken == "hang":
            time.sleep(600)
        if self.broken:
            raise ValueError("not these seeds")
        means = np.stack([coreset.images[coreset.targets == c].mean(0) for c in range(2)])
        return [_Nearest(means + 0.01 * (seed % 7), self.keep) for seed in seeds]


@dataclass(frozen=True)
class ToyShifted(bpcbench.Evaluator):
    """The mean log-likelihood on another split; also says which process it was scored in."""

    name: ClassVar[str] = "toy-shifted"
    crash_above: float = 10.0
    split: str = "shifted"

    def splits(self, facts):
        return (bpcbench.SplitRef(self.split),)

    def metrics(self):
        return [bpcbench.Metric(name, None) for name in ("shifted", "pid", "draw")]

    def score(self, predictions, inputs):
        (predicted,) = predictions.values()
        value = float(predicted.log_probs[np.arange(len(predicted.labels)), predicted.labels].mean())
        count("score", os.getpid(), value)
        if value > self.crash_above:
            os._exit(9)
        return bpcbench.Scores({"shifted": value, "pid": float(os.getpid()), "draw": float(np.random.normal())})


@bpcbench.hookimpl
def bpcbench_datasets():
    return [ToyData]


@bpcbench.hookimpl
def bpcbench_prerequisites():
    return [ToyMeans]


@bpcbench.hookimpl
def bpcbench_methods():
    return [ToyReal, ToyParent, ToyAdam, ToyLoop, ToyBad]


@bpcbench.hookimpl
def bpcbench_networks():
    return [ToyNet]


@bpcbench.hookimpl
def bpcbench_inferences():
    return [ToyNearest, ToyTogether]


@bpcbench.hookimpl
def bpcbench_evaluators():
    return [ToyShifted]
