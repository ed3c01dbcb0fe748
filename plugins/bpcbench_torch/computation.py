"""The computations of a distillation step with a pool network, eager or compiled by torch.compile."""

from __future__ import annotations

import copy
import importlib.util
import os
import shutil
import types
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from bpcbench.api import Context
from bpcbench.errors import UserError
from bpcbench.records import Facts
from bpcbench_torch.augmentation import Augmentation
from bpcbench_torch.pool_method import PoolMethod

State = dict[str, Tensor]
GAIN_ON_CPU = frozenset({"color", "cutout", "flip"})
"""Operations of augmentations that are compiled on a CPU: generated warps take twice as long as torch's own."""
WORTH_COMPILING = 1e13
"""Floating-point operations of a run from which on `compile: auto` compiles; docs/speed.md has the measurements."""


class Computation:
    """Features and losses of a method; `n` is the number of real images."""

    def __init__(self, method: PoolMethod, n: int, ctx: Context) -> None:
        self.method, self.n = method, n
        self.batch = method.statistics == "batch"
        self.device = torch.device(ctx.device).type
        self.bf16 = ctx.precision == "bf16"

    @torch.no_grad()
    def constant(self, model: nn.Module, images: Tensor) -> Tensor:
        """Return features without gradients; `bf16` computes them under autocast."""
        with torch.autocast(self.device, torch.bfloat16, enabled=self.bf16):
            parts = [images] if self.method.chunk is None else images.split(self.method.chunk)
            found = [self._features(model, part).float() for part in parts]
            return found[0] if len(found) == 1 else torch.cat(found)

    def outer(self, model: nn.Module, rows: Tensor, targets: Tensor, real: Tensor, labels: Tensor) -> State:
        """Return `loss` and further logged values of coreset rows against the features of a real batch."""
        return self.method.outer(self._checkpointed(model, rows), targets, real, labels, self.n)

    def pool_loss(self, model: nn.Module, images: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of a pool update; `model` is in training mode."""
        return self.method.pool_loss(model, images, targets)

    def _checkpointed(self, model: nn.Module, images: Tensor) -> Tensor:
        """Return features; with `chunk` part by part, each part's activations recomputed for its gradient."""
        chunk = self.method.chunk
        if chunk is None or len(images) <= chunk:
            return self._features(model, images)
        parts = [checkpoint(self._features, model, part, use_reentrant=False) for part in images.split(chunk)]
        return torch.cat(parts)

    def _features(self, model: nn.Module, images: Tensor) -> Tensor:
        """Return features without updating the network's running statistics."""
        if not self.batch:
            return model.features(images)  # type: ignore[operator]
        buffers = {f"model.{name}": value.clone() for name, value in model.named_buffers()}
        model.train()
        phi: Tensor = functional_call(_Body(model), buffers, (images,))
        model.eval()
        return phi


class Compiled(Computation):
    """The same computations through torch.compile, compiled once for all networks of a pool.

    The compiled functions take a network's tensors and use the modules of a copy of `model`. A replaced network thus
    needs no recompilation. Results differ from eager ones in the last bits, but not between runs: the generated code
    depends only on options, shapes, threads and machine.
    """

    def __init__(self, method: PoolMethod, n: int, ctx: Context, model: nn.Module) -> None:
        super().__init__(method, n, ctx)
        _check_compiler(self.device)
        if method.compile_mode.startswith("max-autotune") and torch.are_deterministic_algorithms_enabled():
            raise UserError(
                f"`compile_mode: {method.compile_mode}` chooses kernels by their time, which `deterministic: true` "
                "rules out; remove one of them"
            )
        seen, trained = _Body(copy.deepcopy(model).train(self.batch)), copy.deepcopy(model).train()
        buffers = [name for name, _ in seen.named_buffers()] if self.batch else []

        def features(state: State, images: Tensor) -> Tensor:
            copies = {name: state[name].clone() for name in buffers}
            phi: Tensor = functional_call(seen, {**state, **copies}, (images,))
            return phi

        def constant(state: State, images: Tensor) -> Tensor:
            with torch.autocast(self.device, torch.bfloat16, enabled=self.bf16):
                return features(state, images).float()

        def outer(state: State, rows: Tensor, targets: Tensor, real: Tensor, labels: Tensor) -> State:
            return method.outer(features(state, rows), targets, real, labels, n)

        def pool_loss(state: State, images: Tensor, targets: Tensor) -> Tensor:
            return method.pool_loss(lambda x: functional_call(trained, state, (x,)), images, targets)

        self._constant, self._outer, self._pool_loss = (
            compiled(f, method.compile_mode, self.device) for f in (constant, outer, pool_loss)
        )
        self._states: WeakKeyDictionary[nn.Module, tuple[State, State]] = WeakKeyDictionary()

    @torch.no_grad()
    def constant(self, model: nn.Module, images: Tensor) -> Tensor:
        return self._constant(self._state(model)[0], images)

    def outer(self, model: nn.Module, rows: Tensor, targets: Tensor, real: Tensor, labels: Tensor) -> State:
        return self._outer(self._state(model)[0], rows, targets, real, labels)

    def pool_loss(self, model: nn.Module, images: Tensor, targets: Tensor) -> Tensor:
        return self._pool_loss(self._state(model)[1], images, targets)

    def _state(self, model: nn.Module) -> tuple[State, State]:
        """Return the network's tensors twice: detached, for the outer loss, which needs no gradient of them, and as is.

        They are cached because collecting them takes a good part of a millisecond; all updates are in place.
        """
        if model not in self._states:
            tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
            self._states[model] = {f"model.{name}": value.detach() for name, value in tensors.items()}, tensors
        return self._states[model]


class _Body(nn.Module):
    """A module whose forward pass returns a network's features."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """Return the features."""
        return self.model.features(images)  # type: ignore[operator]


class CompiledAugmentation:
    """An augmentation whose images are made by compiled functions, one for each operation and shape.

    The random numbers are those of the eager augmentation: they are drawn outside of what is compiled. On a CPU only
    operations are compiled that gain by it, unless `everything` is.
    """

    def __init__(
        self,
        augmentation: Augmentation,
        generator: torch.Generator,
        chooser: torch.Generator,
        mode: str = "default",
        *,
        everything: bool = False,
    ) -> None:
        self.augmentation, self.generator, self.chooser, self.mode = augmentation, generator, chooser, mode
        self.everything = everything
        self._compiled: dict[object, tuple[Callable[[], tuple[Tensor, ...]], Callable[..., Tensor]]] = {}

    def __call__(self, images: Tensor) -> Tensor:
        """Return augmented images, equal to the eager ones but for the last bits."""
        chosen = self.augmentation.drawn(self.chooser)
        if not self._gains(chosen, images.device.type):
            return chosen.recorded(images, self.generator)[0]
        key = chosen, images.shape, images.dtype, images.requires_grad
        if key not in self._compiled:

            def repeated(images: Tensor, numbers: tuple[Tensor, ...]) -> Tensor:
                return chosen.repeated(images, numbers)

            made = compiled(repeated, self.mode, images.device.type)
            self._compiled[key] = chosen.numbers(images, self.generator), made
        numbers, function = self._compiled[key]
        return function(images, numbers())

    def _gains(self, chosen: Augmentation, device: str) -> bool:
        operations = set(chosen.operations)
        return bool(operations) and (self.everything or device != "cpu" or operations <= GAIN_ON_CPU)


def compiled(function: Callable[..., Any], mode: str, device: str) -> Callable[..., Any]:
    """Return the compiled function; it raises if it cannot be compiled as one graph.

    Torch caches compilations per code object and falls back to eager execution, with other last bits, when there are
    too many. So each function gets its own code object. A single compile thread keeps the compiler from starting
    processes that the stage was not given.
    """
    own = types.FunctionType(
        function.__code__.replace(), function.__globals__, function.__name__, closure=function.__closure__
    )
    from torch._inductor import list_mode_options

    options = list_mode_options(mode)
    made = torch.compile(own, dynamic=False, fullgraph=True, options={**options, "compile_threads": 1})
    if device != "cuda" or not options.get("triton.cudagraphs"):
        return made

    def kept(*values: Any) -> Any:
        # What a CUDA graph returns is overwritten by the next one; features, losses and logged values last longer.
        found = made(*values)
        return {name: one.clone() for name, one in found.items()} if isinstance(found, dict) else found.clone()

    return kept


def compiles(method: PoolMethod, facts: Facts, ipc: int, device: str) -> bool:
    """Return whether the step is compiled: as the option says, or for `auto` where that saves more than it costs.

    `auto` depends on the method's options and the data, and on whether there is a compiler: without one, or with
    `chunk`, it stays eager.
    """
    if method.compile != "auto":
        return method.compile
    if method.chunk is not None or _missing_compiler(torch.device(device).type):
        return False
    work = method.operations(facts, ipc)
    return work is not None and work >= WORTH_COMPILING


def _check_compiler(device: str) -> None:
    """Raise UserError if torch.compile has no compiler for the device."""
    if need := _missing_compiler(device):
        raise UserError(f"`compile: true` needs {need}; install it, or remove `compile`")


def _missing_compiler(device: str) -> str | None:
    """Return what torch.compile lacks to generate code for the device, or None."""
    if device == "cuda" and importlib.util.find_spec("triton") is None:
        return f"the package triton on {device}"
    if device == "cuda" and not any(shutil.which(name) for name in (os.environ.get("CC", ""), "gcc", "clang", "cc")):
        return "a C compiler, with which triton builds what launches its kernels (gcc or clang on PATH, or CC)"
    if device != "cpu":
        return None
    from torch._inductor.cpp_builder import get_cpp_compiler

    try:
        get_cpp_compiler()
    except (RuntimeError, OSError):
        return "a C++ compiler (g++ or clang++ on PATH, or CXX)"
    return None
