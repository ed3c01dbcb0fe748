"""Parts of a step that are captured once as CUDA graphs and then replayed, each by one launch instead of hundreds."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

Region = Callable[..., tuple[Tensor, ...]]
"""A function of tensors. Its shapes, kernels and their order depend on its key and on the shapes of its arguments."""


def capturable(device: str | torch.device) -> bool:
    """Return whether work on the device can be captured."""
    return torch.device(device).type == "cuda"


class Regions:
    """Calls functions of tensors: on a GPU by replaying their CUDA graphs, elsewhere as they are; results are the same.

    A region must not read values of the device on the host, copy from or to the host, use generators of the CPU, or
    keep a graph of autograd beyond its end; random numbers come from `generators`, which a replay advances like the
    kernels themselves would. What a captured region returns lies at fixed addresses and is overwritten by the next call
    with the same key: `own` makes a copy where it must last longer. A region that cannot be captured is a warning, and
    from then on all are called as they are.
    """

    def __init__(
        self, device: str | torch.device, *, generators: Sequence[torch.Generator] = (), enabled: bool = True
    ) -> None:
        self.captured = enabled and capturable(device)
        """Whether regions are replayed."""
        self._generators = [generator for generator in generators if generator.device.type != "cpu"]
        self._recordings: dict[Hashable, Recording] = {}
        self._held: dict[Hashable, Tensor] = {}
        # A replay is over before the next call copies its inputs, so graphs with inputs of one kind read the same ones.
        self._inputs: dict[Hashable, Tensor] = {}
        # One pool for all: what regions return stays referenced, so none of them writes over another's results.
        self._place: Place | None = None

    def __call__(
        self, key: Hashable, region: Region, inputs: Sequence[Tensor] = (), fixed: Sequence[Tensor] = ()
    ) -> tuple[Tensor, ...]:
        """Return region(*inputs).

        `inputs` may be other tensors at every call and are copied to where the graph reads. `fixed` are tensors that
        the function refers to, whose values may change; if they are other tensors than before, it is captured again.
        What else it refers to must stay as it is.
        """
        if not self.captured:
            return region(*inputs)
        whole = key, tuple((one.shape, one.dtype) for one in inputs)
        recording = self._recordings.get(whole)
        if recording is None or not recording.reads(fixed):
            recording = self._recorded(region, inputs, fixed)
            if recording is None:
                return region(*inputs)
            self._recordings[whole] = recording
        return recording.replay(inputs)

    def hold(self, name: Hashable, values: Tensor) -> Tensor:
        """Return a tensor with these values that is the same one for every call with this name: one that is `fixed`."""
        if not self.captured:
            return values
        held = self._held.get(name)
        if held is None or held.shape != values.shape or held.dtype != values.dtype:
            held = self._held[name] = torch.empty_like(values, requires_grad=False)
        return held.copy_(values.detach())

    def own(self, value: Tensor) -> Tensor:
        """Return what a region returned, so that no later call overwrites it."""
        return value.clone() if self.captured else value

    def _recorded(self, region: Region, inputs: Sequence[Tensor], fixed: Sequence[Tensor]) -> Recording | None:
        """Return a new recording, or None if the region cannot be captured; generators are left as they were."""
        states = [generator.get_state() for generator in self._generators]
        try:
            self._place = self._place or Place()
            return Recording(region, self._placed(inputs), fixed, self._generators, self._place)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self.captured = False
            self._recordings.clear()
            warnings.warn(f"nothing is captured as a CUDA graph any more: {error}", stacklevel=3)
            return None
        finally:
            for generator, state in zip(self._generators, states, strict=True):
                generator.set_state(state)

    def _placed(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Return tensors at fixed addresses with these values: by place and kind, the same ones for all recordings."""
        placed = []
        for index, one in enumerate(inputs):
            kind = index, one.shape, one.stride(), one.dtype
            if kind not in self._inputs:
                self._inputs[kind] = torch.empty_like(one, requires_grad=False)
            placed.append(self._inputs[kind].copy_(one.detach()))
        return placed


@dataclass
class Place:
    """Where recordings are made: the memory that their graphs share, and a stream beside the current one."""

    pool: Any = field(default_factory=lambda: torch.cuda.graph_pool_handle())
    stream: Any = field(default_factory=lambda: torch.cuda.Stream())


class Recording:
    """A region as a CUDA graph that reads its `inputs`, and writes, at fixed addresses.

    Other recordings may have the same inputs, so no output lies in one of them.
    """

    def __init__(
        self,
        region: Region,
        inputs: Sequence[Tensor],
        fixed: Sequence[Tensor],
        generators: Sequence[torch.Generator],
        place: Place,
    ) -> None:
        self.region, self.fixed = region, tuple(fixed)  # kept, because the graph reads what they refer to
        self.inputs = tuple(inputs)
        static = {one.untyped_storage()._cdata for one in inputs}
        self.graph = torch.cuda.CUDAGraph()
        if hasattr(self.graph, "register_generator_state"):
            for generator in generators:
                self.graph.register_generator_state(generator)
        place.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(place.stream):
            # Libraries allocate and choose on their first call, which a graph must not contain.
            region(*self.inputs)
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            # Other threads read ahead and pin memory meanwhile, so only this one is held to the rules of a capture.
            self.graph.capture_begin(pool=place.pool, capture_error_mode="thread_local")
            try:
                found = [one.detach() for one in region(*self.inputs)]
                self.outputs = tuple(one.clone() if one.untyped_storage()._cdata in static else one for one in found)
            finally:
                self.graph.capture_end()
        torch.cuda.current_stream().wait_stream(place.stream)

    def reads(self, fixed: Sequence[Tensor]) -> bool:
        """Return whether these are the tensors that the graph reads."""
        return len(fixed) == len(self.fixed) and all(a is b for a, b in zip(fixed, self.fixed, strict=True))

    def replay(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the outputs for these inputs."""
        for static, given in zip(self.inputs, inputs, strict=True):
            static.copy_(given.detach())
        self.graph.replay()
        return self.outputs
