"""Print a table of the paper's cells on the fake device: peak of live bytes by method, and what was predicted.

    PYTHONPATH=.:plugins python tests/fake_device/paper_cells.py [METHOD ...]

Methods have the options of suites/paper, but three steps; data and what whitens them have the sizes of the data sets
and no content. Data that are not small are read from disk, as a prediction has it, and networks of a pool have been
updated, all of them, for which three steps are few. bpc-w, which these suites leave out, has its default options, their
network and `graphs: 0`; rcig is not in the paper's table of larger data sets.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

sys.path.append(str(Path(__file__).parents[1] / "importable"))

import fake_cuda

from bpcbench.records import Array, Facts, Inputs, Transform

MAIN, LARGE = "paper/main", "paper/large"
CELLS = [
    *((MAIN, name, ipc) for name in ("mnist", "fashion_mnist", "cifar10", "cifar100") for ipc in (1, 10, 50)),
    *((MAIN, "tiny_imagenet", ipc) for ipc in (1, 10)),
    *((LARGE, "imagenet64", ipc) for ipc in (1, 2)),
    *((LARGE, "imagewoof", ipc) for ipc in (1, 10)),
]
"""All cells of the paper's two tables: suite, data set, images per class."""
STEPS = 3
FEWER = {"search": False, "inner_steps": 2, "hvp_steps": 2, "pool_steps": 2}
"""Of rcig: its loops hold no more in their twentieth step than in the second."""


class Empty(Transform):
    """A fitted preprocessing whose images are zeros on the host; on the device it takes what any other takes."""

    def apply(self, images: Array) -> Array:
        """Return zeros."""
        return np.zeros(images.shape, np.float32)


class Peak(NamedTuple):
    """Gigabytes that were alive at the peak, and that were predicted."""

    seen: float
    predicted: float


class Cell(NamedTuple):
    """A suite's methods at one cell, by label, the data set and the preprocessing of all of them."""

    methods: Mapping[str, Any]
    dataset: Any
    preprocessing: Any


def cell(suite: str, dataset: str, ipc: int) -> Cell:
    """Return a cell."""
    from bpcbench.registry.discovery import load_registry
    from bpcbench.suite.files import load
    from bpcbench_bpc.wasserstein import Wasserstein

    loaded = load(load_registry(), suite, [])
    setting = loaded.settings[dataset, ipc]
    found = {label: choice.plugin for label, choice in setting.methods.items()}
    other = found["bpc-fkl"]
    found["bpc-w"] = Wasserstein(trajectories=other.trajectories, experts=other.experts, graphs=0)
    found.pop("random", None)
    assert {choice.preprocessing for choice in setting.methods.values()} == {"default"}
    return Cell(found, loaded.datasets[dataset], setting.preprocessing["default"])


def fitted(preprocessing: Any, facts: Facts) -> Transform:
    """Return a preprocessing with arrays of the sizes that `fit` returns."""
    channels = facts.shape[0]
    arrays = {"mean": np.zeros(channels), "std": np.ones(channels)}
    if preprocessing.name == "zca" and (channels > 1 or preprocessing.grey):
        block = math.prod(facts.shape) // math.prod(preprocessing.strides(facts.shape))
        arrays["centre"] = np.zeros(math.prod(facts.shape), np.float32)
        arrays["whiten"] = np.zeros((block, block), np.float32)
    return Empty(preprocessing, arrays)


@contextlib.contextmanager
def updated_pools() -> Iterator[None]:
    """Let every network of a new pool have its gradient and moments, and no network drawn weights: they take long."""
    import torch

    from bpcbench_torch import convnet
    from bpcbench_torch.pool import Pool

    plain = Pool.__init__

    def updated(self: Pool, *args: Any, **options: Any) -> None:
        plain(self, *args, **options)
        for model, optimizer in zip(self.models, self.optimizers, strict=True):
            for parameter in model.parameters():
                parameter.grad = torch.zeros_like(parameter)
            optimizer.step()

    with mock.patch.object(Pool, "__init__", updated), mock.patch.object(convnet, "initialise"):
        yield


def peak(method: Any, dataset: Any, preprocessing: Any, ipc: int) -> Peak | None:
    """Return the peak of a few steps of a method on data of a data set's size; None if the method skips the cell."""
    import fake_device_subjects as subjects
    import torch

    from bpcbench.records import Data, PrerequisiteOutput, Split
    from bpcbench_bpc.method import ROLE, TrajectoryMethod
    from bpcbench_bpc.trajectories import snapshot_name

    facts = dataset.declared()
    if method.skip(facts, ipc):
        return None
    count = facts.sizes["train"]
    # Pages that are never written to are not held.
    data = Data(facts, Split(np.zeros((count, *facts.shape), np.uint8), np.arange(count) % facts.classes))
    inputs = Inputs(fitted(preprocessing, facts))
    if isinstance(method, TrajectoryMethod):
        plan = method.trajectories
        size = plan.parameters(facts)
        arrays = {snapshot_name(epoch): np.zeros(size, np.float32) for epoch in plan.snapshots}
        inputs = replace(inputs, prerequisites={ROLE: PrerequisiteOutput(plan, "", {"000": arrays})})
    method = replace(method, steps=STEPS, **(FEWER if method.name == "rcig" else {}))
    # The thread that reads ahead pins memory too.
    pins = mock.patch.object(torch.Tensor, "pin_memory", lambda tensor: tensor.clone())
    with fake_cuda.fake_cuda() as ledger, pins, updated_pools(), tempfile.TemporaryDirectory() as folder:
        method.distil(data, ipc, inputs, subjects.Watched(ledger, Path(folder)))
    assert ledger.errors() == []
    most = max(counts.peak for counts in ledger.counts.values())
    return Peak(most / 1e9, (method.peak_bytes(facts, ipc) or float("nan")) / 1e9)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("methods", nargs="*", help="labels; none: all")
    parser.add_argument("--datasets", nargs="*", help="names; none: all")
    given = parser.parse_args()
    wanted = given.methods
    if reason := fake_cuda.missing():
        raise SystemExit(reason)
    fake_cuda.register()
    warnings.simplefilter("ignore")
    for suite, name, ipc in CELLS:
        if given.datasets and name not in given.datasets:
            continue
        found = cell(suite, name, ipc)
        for label in sorted(set(found.methods) & set(wanted or found.methods)):
            begin = time.monotonic()
            one = peak(found.methods[label], found.dataset, found.preprocessing, ipc)
            said = "skipped" if one is None else f"{one.seen:.2f} | {one.predicted:.2f}"
            print(f"| {name} | {ipc} | `{label}` | {said} |", flush=True)
            print(f"{time.monotonic() - begin:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
