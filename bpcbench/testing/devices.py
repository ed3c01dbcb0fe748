"""Whether a plugin computes where it is told to: on an accelerator if there is one, else on an imitation of one.

The imitation is torch's device `meta`, whose tensors have a shape and no values. Mixing them with tensors of the CPU is
an error there as it is on a GPU. Where code asks for values, it gets noise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import SkipTest

import numpy as np

from bpcbench.api import Plugin
from bpcbench.running.context import StageContext
from bpcbench.running.seeding import seed_globals
from bpcbench.testing.plugins import uses_torch

_STEPS = 2
_TAUGHT = (
    "it does not compute on the device that it is given: {error}. Create tensors with `device=ctx.device`, move "
    "modules with `.to(ctx.device)`, and bring results back with `.cpu()`"
)
_MISPLACED = ("is not on the expected device", "on the same device", "different from other tensors", "becomes an array")


class _FewSteps(StageContext):
    """A context whose loops end after two steps, without checkpoints."""

    def steps(self, total: int, **more: Any) -> Iterator[int]:
        """Yield the first steps."""
        yield from range(min(total, _STEPS))

    def log(self, **metrics: Any) -> None:
        """Ignore the values, which nobody knows."""


def on_its_device(plugin: Plugin, run: Callable[[StageContext], Any], folder: Path) -> None:
    """Assert that `run` computes on the device of its context; skip, with a reason, where that cannot be told."""
    if not uses_torch(plugin):
        raise SkipTest("neither its module nor `preload` names torch, so it is taken not to use a device")
    import torch

    if torch.cuda.is_available():
        _tried(lambda: run(StageContext(seed=0, device="cuda", attempt=folder / "cuda")))
        return
    seed_globals(0)
    ctx = _FewSteps(seed=0, device="meta", attempt=folder / "meta")
    with _imitation():
        _tried(lambda: run(ctx))


def _tried(run: Callable[[], Any]) -> None:
    try:
        run()
    except SkipTest:
        raise
    except Exception as error:
        text = " ".join(str(error).split())[:300]
        if any(words in text for words in _MISPLACED):
            raise AssertionError(_TAUGHT.format(error=text)) from error
        if "cuda" in text.lower():
            raise AssertionError(_TAUGHT.format(error=f"it asks for CUDA by name ({text})")) from error
        raise SkipTest(f"there is no GPU here, and the imitation of one cannot follow: {text}") from error


def _imitation() -> Any:
    """Return a mode in which tensors of the imitated device can be read, as noise."""
    import torch
    from torch.overrides import TorchFunctionMode

    tensor: Any = torch.Tensor
    rng = np.random.default_rng(0)

    def noise(like: Any) -> Any:
        values = torch.from_numpy(rng.random(tuple(like.shape)))
        return values.to(like.dtype)

    class Imitation(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            first = args[0] if args else None
            if not (isinstance(first, tensor) and first.is_meta):
                return func(*args, **kwargs)
            if func in (tensor.numpy, tensor.__array__):
                raise TypeError("a tensor of the device becomes an array")
            if func is tensor.cpu:
                return noise(first)
            if func is tensor.to and str(kwargs.get("device", args[1] if len(args) > 1 else "")) == "cpu":
                return noise(first)
            if func in (tensor.item, tensor.__float__):
                return float(rng.random())
            if func is tensor.__bool__:
                return False
            if func is tensor.__int__:
                return 0
            if func is tensor.tolist:
                return rng.random(tuple(first.shape)).tolist()
            return func(*args, **kwargs)

    return Imitation()
