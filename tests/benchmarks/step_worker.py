"""A process that takes steps of VBPC when told to: `python step_worker.py CASE VARIANT`, with counts on standard input.

CASE is JSON. It answers every count with a line of JSON: CPU seconds of all its threads per step, the losses of these
steps, and the peak of its memory above what it was before the first step, in MB. `jax` takes the steps of `jax_step`;
all other variants run the method itself, `bpcbench_vbpc.method.VBPC.distil`, in a context that waits. `kernels` also
tells what the kernels of its network took.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from bpcbench.records import Data, Facts, Inputs, Split, Transform
from bpcbench_torch.networks import ConvBN
from bpcbench_torch.preprocessing import Standardize
from bpcbench_vbpc.method import VBPC


@dataclass(frozen=True)
class Case:
    """Sizes of a step; there are ten classes, and `rows` images in the coreset."""

    shape: tuple[int, int, int]
    width: int
    rows: int
    batch: int = 256

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(self.shape))

    def __str__(self) -> str:
        channels, height, width = self.shape
        return f"{height}x{width}x{channels}, width {self.width}, n^ {self.rows}, batch {self.batch}"

    def method(self) -> VBPC:
        """Return the method; no network is replaced while it is timed."""
        network = ConvBN(width=self.width)
        return VBPC(steps=10**6, batch=self.batch, network=network, pool=3, updates=10**6, augmentation="none")

    def data(self, count: int = 4096) -> tuple[Data, Inputs]:
        """Return random images, and their standardisation."""
        rng = np.random.default_rng(0)
        images = rng.integers(0, 256, (count, *self.shape), dtype=np.uint8)
        data = Data(
            Facts(shape=self.shape, classes=10, sizes={"train": count}), Split(images, rng.permutation(count) % 10)
        )
        plugin = Standardize()
        return data, Inputs(Transform(plugin, plugin.fit(data, None)))  # type: ignore[arg-type]


VARIANTS: dict[str, tuple[dict[str, Any], str]] = {
    "eager": ({}, "float32"),
    "kernels": ({}, "float32"),
    "naive": ({"naive": True}, "float32"),
    "compile": ({"compile": True}, "float32"),
    "eager bf16": ({}, "bf16"),
    "compile bf16": ({"compile": True}, "bf16"),
}
"""Options of the method, and the precision of the suite."""
PROCESS = Path("/proc/self")


def counts() -> Iterator[int]:
    """Yield how many steps to take, as long as somebody asks."""
    for line in sys.stdin:
        yield int(line)


def megabytes(quantity: str) -> float:
    """Return VmRSS, or VmHWM, its high-water mark; 0 where there is no such thing."""
    if not PROCESS.exists():
        return 0.0
    lines = (PROCESS / "status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(quantity))


def forget_peak() -> float:
    """Set the high-water mark to the present, and return that."""
    if PROCESS.exists():
        (PROCESS / "clear_refs").write_text("5")
    return megabytes("VmRSS")


def answer(seconds: float, losses: list[float], before: float, kernels: dict[str, float] | None = None) -> None:
    """Print the result of some steps."""
    peak, count = megabytes("VmHWM") - before, max(1, len(losses))
    found = {"seconds": seconds / count, "losses": losses, "megabytes": peak}
    found["kernels"] = {name: taken / count for name, taken in (kernels or {}).items()}
    print(json.dumps(found), flush=True)


@dataclass
class Waiting:
    """A context whose loop goes on when it is told to."""

    precision: str
    seed: int = 0
    device: str = "cpu"
    scratch: Path = Path()
    losses: list[Any] = field(default_factory=list)
    kernels: dict[str, float] = field(default_factory=dict)
    """CPU seconds since the last answer, by sort; filled in by `kernels_timed`."""

    def steps(self, total: int, **more: Any) -> Iterator[int]:
        step, before = 0, forget_peak()
        for count in counts():
            begin = time.process_time()
            yield from range(step, step + count)
            seconds = time.process_time() - begin
            step += count
            answer(seconds, [float(loss) for loss in self.losses], before, self.kernels)
            self.losses.clear()
            self.kernels.clear()

    def log(self, **values: Any) -> None:
        self.losses.append(values["loss"].detach())


def run_torch(case: Case, variant: str) -> None:
    options, precision = VARIANTS[variant]
    data, inputs = case.data()
    method = replace(case.method(), **options)
    context = Waiting(precision)
    with kernels_timed(context.kernels) if variant == "kernels" else contextlib.nullcontext():
        method.distil(data, case.rows // 10, inputs, context)


SORTS = {
    "convolution": ("convolution", "mkldnn_convolution"),
    "other": ("native_batch_norm", "_native_batch_norm", "_batch_norm", "relu", "threshold_backward", "avg_pool2d"),
}
"""How the names of kernels begin, by sort: those of a network's layers and their gradients."""


@contextlib.contextmanager
def kernels_timed(into: dict[str, float]) -> Iterator[None]:
    """Add the CPU seconds of every kernel of a network that is called here."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Timed(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = func.name().removeprefix("aten::")
            sort = next((sort for sort, starts in SORTS.items() if name.startswith(starts)), None)
            begin = time.process_time()
            found = func(*args, **(kwargs or {}))
            if sort is not None:
                into[sort] = into.get(sort, 0.0) + time.process_time() - begin
            return found

    with Timed():
        yield


def run_jax(case: Case) -> None:
    """Take the same steps: from the same networks, images and labels, with the same draws."""
    import jax
    import jax.numpy as jnp
    import jax_step

    from bpcbench_torch.batches import Batches
    from bpcbench_torch.distillation import initial_images
    from bpcbench_torch.pool import Pool

    method, (data, inputs) = case.method(), case.data()
    images, classes = initial_images(method, data, case.rows // 10, inputs, 0)
    targets = np.eye(10, dtype=np.float32)[classes] - np.float32(0.1)
    values = {"images": jnp.asarray(images.transpose(0, 2, 3, 1)), "targets": jnp.asarray(targets)}
    learned = {"values": values, "adam": jax_step.adam_state(values)}
    sizes = {"size": method.pool, "updates": method.updates}
    pool = Pool(method.network, case.shape, 10, **sizes, lr=method.pool_lr, seed=0, device="cpu")
    networks = []
    for model in pool.models:
        parameters, statistics = jax_step.from_torch(model)
        network = {"parameters": parameters, "statistics": statistics, "adam": jax_step.adam_state(parameters)}
        networks.append(network)
    order = Batches(data, inputs.transform, size=case.batch, seed=1, device="cpu")
    resident = jnp.asarray(inputs.transform.apply(data.train.images).transpose(0, 2, 3, 1))
    labels = jnp.asarray(data.labels.astype(np.int32))
    done, before = 0, forget_peak()
    for count in counts():
        begin, losses = time.process_time(), []
        for _ in range(count):
            pool.draw()
            rows = jnp.asarray(order.rows().numpy())
            rate = method.lr * (0.5 + 0.5 * math.cos(math.pi * done / method.steps))
            learned, networks[pool.current], loss = jax_step.step(
                learned, networks[pool.current], resident, labels, rows, rate
            )
            losses.append(loss)
            done += 1
        jax.block_until_ready((learned, networks))
        seconds = time.process_time() - begin
        answer(seconds, [float(loss) for loss in losses], before)


class Worker:
    """The other end: a process with one thread that takes steps of a case."""

    def __init__(self, case: Case, variant: str, **environment: str) -> None:
        command = [sys.executable, "-W", "ignore", __file__, json.dumps(asdict(case)), variant]
        settings = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu", **environment}
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, env=settings, stdin=pipe, stdout=pipe, text=True)

    def take(self, count: int) -> dict[str, Any]:
        """Take so many steps and return what they cost."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(count, file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        assert line, "the process has ended"
        return json.loads(line)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.communicate()


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)
    chosen = Case(**json.loads(sys.argv[1]))
    run_jax(chosen) if sys.argv[2] == "jax" else run_torch(chosen, sys.argv[2])
