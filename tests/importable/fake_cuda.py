"""A CUDA device without a GPU: its tensors have shapes and no values, and everything asked of it is written down.

    register()  # before torch is imported
    with fake_cuda() as ledger:
        ledger.phase = "step"
        ...  # the code under test, with the device "cuda"; tensors of the CPU are computed as always
    print(ledger.summary("step"))

It tells whether devices are mixed, where the host waits for the device (`.item()`, a branch on a value, a blocking copy
in either direction), and counts launches (operations that are neither views nor allocations), copies and the peak of
live bytes. A CUDA graph counts as one launch per replay. It must be safe to capture: nothing in it waits, copies from
or to the host, pins memory or draws by a generator that it does not know, and what it reads still exists at every
replay. Its memory is a pool that is never given back. What happens on a side stream, to record a graph, is the phase
`recording`. Of values, of cuDNN, of the allocator and of speed it knows nothing: a value that is read is made up.

The device is registered in this process for good, so such tests run in a process of their own.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bpcbench.running.device import missing_device

_SOURCE = Path(__file__).with_suffix(".cpp")
_registered: list[Path] = []
_WAITING = {
    "aten::_linalg_check_errors",
    "aten::_unique2",
    "aten::equal",
    "aten::masked_select",
    "aten::nonzero",
    "aten::unique_consecutive",
    "aten::unique_dim",
}
"""Operations whose result, or its shape, the host must know."""
_NO_LAUNCH = {
    "aten::_unsafe_view",
    "aten::detach",
    "aten::empty",
    "aten::empty_like",
    "aten::empty_strided",
    "aten::lift_fresh",
    "aten::new_empty",
    "aten::new_empty_strided",
}


def missing() -> str | None:
    """Return why there can be no fake device in this process, or None."""
    if "torch" in sys.modules and not _registered:
        return "the fake device must be there before torch: run `pytest -n 0 -m fakedevice tests/fake_device` by itself"
    if missing_device("cuda", thorough=False) is None:
        return "this torch has CUDA: tests on a real device cover it"
    return None if _compiler() else "no C++ compiler (g++, clang++ or CXX), which the fake device is built with"


def _compiler() -> str | None:
    return next(
        (found for name in (os.environ.get("CXX", ""), "g++", "clang++") if (found := shutil.which(name))), None
    )


def register() -> None:
    """Build the device, once per version of torch, and load it into this process; torch must not be loaded yet."""
    spec, compiler = importlib.util.find_spec("torch"), _compiler()
    assert spec is not None
    assert spec.origin is not None
    assert compiler is not None
    include, libraries = Path(spec.origin).parent / "include", Path(spec.origin).parent / "lib"
    mark = hashlib.sha256(_SOURCE.read_bytes() + importlib.metadata.version("torch").encode()).hexdigest()[:16]
    built = Path(tempfile.gettempdir()) / f"bpcbench-fake-cuda-{os.getuid()}" / f"{mark}.so"
    for name in ("libc10.so", "libtorch_cpu.so"):
        ctypes.CDLL(str(libraries / name), mode=ctypes.RTLD_GLOBAL)
    if not built.exists():
        built.parent.mkdir(mode=0o700, exist_ok=True)
        fresh = built.with_name(f"{mark}.{os.getpid()}")
        options = ["-shared", "-fPIC", "-O0", "-std=c++20", f"-I{include}", f"-I{include}/torch/csrc/api/include"]
        linked = [f"-L{libraries}", "-lc10", "-ltorch_cpu"]
        subprocess.run([compiler, *options, str(_SOURCE), "-o", str(fresh), *linked], check=True)
        fresh.replace(built)
    ctypes.CDLL(str(built), mode=ctypes.RTLD_GLOBAL)
    _registered.append(built)


@dataclass
class Counts:
    """What happened in one phase; places are `file:function`, the innermost outside torch first."""

    launches: int = 0
    captured: int = 0
    """Launches within the graphs that were replayed, which are one launch each."""
    replays: int = 0
    waits: Counter[str] = field(default_factory=Counter)
    copies: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    peak: int = 0


@dataclass
class Memory:
    """The bytes of live storages, and the most there ever were."""

    live: int = 0
    peak: int = 0
    _held: dict[int, tuple[Any, int]] = field(default_factory=dict)

    def holds(self, storage: Any) -> bool:
        """Return whether the storage is counted here."""
        found = self._held.get(storage._cdata)
        return found is not None and not found[0].expired()

    def add(self, tensors: list[Any]) -> None:
        """Count the storages that are not counted yet."""
        from torch.multiprocessing.reductions import StorageWeakRef

        for tensor in tensors:
            storage = tensor.untyped_storage()
            if self.holds(storage):
                continue
            if (old := self._held.pop(storage._cdata, None)) is not None:
                self.live -= old[1]
            self._held[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
            self.live += storage.nbytes()
        if self.live > self.peak:
            self.forget()
            self.peak = max(self.peak, self.live)

    def forget(self) -> None:
        """Stop counting what is not alive any more."""
        for number in [number for number, (weak, _) in self._held.items() if weak.expired()]:
            self.live -= self._held.pop(number)[1]


@dataclass(eq=False)
class Graph:
    """What was captured: launches, generators, and the memory that is read and not its own, by its address."""

    ledger: Ledger
    launches: int = 0
    generators: list[Any] = field(default_factory=list)
    read: dict[int, Any] = field(default_factory=dict)

    def register_generator_state(self, generator: Any) -> None:
        """Know a generator, so that a replay advances it."""
        self.generators.append(generator)

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        """Begin."""
        self.ledger.capture(self)

    def capture_end(self) -> None:
        """End."""
        self.ledger.capture(None)

    def replay(self) -> None:
        """Launch it."""
        self.ledger.replayed(self)


class Stream:
    """A stream; on a fake device all of them are one."""

    def wait_stream(self, other: Stream) -> None:
        """Do nothing."""


@dataclass
class Ledger:
    """Everything that was asked of the device, by phase."""

    phase: str = "start"
    steps: int = 0
    """How many steps were watched in the phase `step`."""
    counts: dict[str, Counts] = field(default_factory=lambda: defaultdict(Counts))
    _memory: Memory = field(default_factory=lambda: Memory())
    _pool: Memory = field(default_factory=lambda: Memory())
    _graph: Graph | None = None
    """The graph that is being captured."""

    @property
    def now(self) -> Counts:
        """The counts of the current phase."""
        return self.counts[self.phase]

    @property
    def capturing(self) -> Graph | None:
        """The graph that is being captured."""
        return self._graph

    def capture(self, graph: Graph | None) -> None:
        """Begin or end the capture of a graph."""
        self._graph = graph

    def launched(self) -> None:
        """Count a launch."""
        if self._graph is None:
            self.now.launches += 1
        else:
            self._graph.launches += 1

    def replayed(self, graph: Graph) -> None:
        """Count a replay, and check that what the graph reads is still there."""
        self.now.launches += 1
        self.now.captured += graph.launches
        self.now.replays += 1
        if any(weak.expired() for weak in graph.read.values()):
            self.wrong("a captured region reads memory that was freed")

    def read(self, tensors: list[Any]) -> None:
        """Note which memory a graph under capture reads that is not its own."""
        if self._graph is None:
            return
        from torch.multiprocessing.reductions import StorageWeakRef

        for tensor in tensors:
            storage = tensor.untyped_storage()
            if not self._pool.holds(storage):
                self._graph.read[storage._cdata] = StorageWeakRef(storage)

    def uncapturable(self, what: str) -> None:
        """Note what must not happen while a graph is captured."""
        if self._graph is not None:
            self.wrong(f"a captured region has {what}")

    def waits(self, what: str) -> None:
        """Note that the host waits for the device."""
        self.uncapturable(f"a wait ({what})")
        self.now.waits[f"{what} at {_place()}"] += 1

    def copied(self, source: Any, target: str, *, blocking: bool) -> None:
        """Note a copy between host and device; a blocking one is a wait as well."""
        what = f"{source.numel() * source.element_size():,} bytes to {target}"
        self.uncapturable(f"a copy of {what}")
        self.now.copies[f"{what} at {_place()}"] += 1
        if blocking:
            self.waits(f"blocking copy of {what}")

    def wrong(self, what: str) -> None:
        """Note what fails on a device."""
        self.now.errors[f"{what} at {_place()}"] += 1

    def errors(self) -> list[str]:
        """Return all errors of all phases."""
        return [what for counts in self.counts.values() for what in counts.errors]

    def hold(self, tensors: list[Any]) -> None:
        """Count the bytes of new storages; those of a graph under capture in the pool, which gives nothing back."""
        if self._graph is None:
            self._memory.add([one for one in tensors if not self._pool.holds(one.untyped_storage())])
        else:
            self._pool.add(tensors)
        if self._memory.live + self._pool.peak > self.now.peak:
            self._memory.forget()
            self.now.peak = max(self.now.peak, self._memory.live + self._pool.peak)

    def summary(self, phase: str) -> str:
        """Return the counts of a phase, per step, and every wait and copy."""
        counts, steps = self.counts[phase], max(1, self.steps if phase == "step" else 1)
        captured = f" ({counts.captured / steps:.0f} in {counts.replays / steps:.1f} graphs)" if counts.replays else ""
        lines = [f"{phase}: {counts.launches / steps:.0f} launches{captured}, peak {counts.peak / 1e6:.1f} MB"]
        for name in ("waits", "copies", "errors"):
            lines += [f"  {name} {n / steps:.2f} {what}" for what, n in getattr(counts, name).most_common()]
        return "\n".join(lines)


def _place() -> str:
    own = {__file__, contextlib.__file__}
    frames = [f for f in traceback.extract_stack() if "/torch/" not in f.filename and f.filename not in own]
    return " < ".join(f"{Path(frame.filename).name}:{frame.name}" for frame in frames[:-4:-1])


def _of_device(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor) and value.device.type == "cuda"


@contextlib.contextmanager
def fake_cuda() -> Iterator[Ledger]:
    """Make `cuda` the fake device within the block, and return what is asked of it."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    ledger = Ledger()
    with (
        _torch_as_with_cuda(ledger),
        FakeTensorMode(allow_non_fake_inputs=True),
        _dispatching(ledger),
        _calling(ledger),
    ):
        yield ledger


@contextlib.contextmanager
def _torch_as_with_cuda(ledger: Ledger) -> Iterator[None]:
    """Give torch generators and graphs of the device, and let optimisers use their fused and foreach forms."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.optim import optimizer

    plain, inference_mode = torch.Generator, torch.inference_mode

    class AnyDevice(type(plain)):  # type: ignore[misc]
        def __instancecheck__(cls, value: Any) -> bool:
            return isinstance(value, plain)

    class OfDevice(plain):
        def __new__(cls, device: Any = None) -> Any:
            return plain.__new__(cls)

        def __init__(self, device: Any = None) -> None:
            pass

        @property
        def device(self) -> torch.device:
            return torch.device("cuda", 0)

    class Generator(plain, metaclass=AnyDevice):
        def __new__(cls, device: Any = "cpu") -> Any:
            return OfDevice() if torch.device(device).type == "cuda" else plain(device)

    @contextlib.contextmanager
    def stream(which: Stream) -> Iterator[None]:
        before, ledger.phase = ledger.phase, "recording"
        try:
            yield
        finally:
            ledger.phase = before

    of_graphs = {
        "CUDAGraph": lambda: Graph(ledger),
        "Stream": Stream,
        "stream": stream,
        "current_stream": Stream,
        "graph_pool_handle": object,
        "synchronize": lambda: None,
        "empty_cache": lambda: None,
    }
    without = {name: getattr(torch.cuda, name) for name in of_graphs}
    types_with_foreach = optimizer._foreach_supported_types
    torch.Generator = Generator  # type: ignore[misc]
    # Tensors of inference mode cannot be fake.
    torch.inference_mode = lambda mode=True: torch.no_grad() if mode else contextlib.nullcontext()  # type: ignore
    types_with_foreach.append(FakeTensor)
    for name, value in of_graphs.items():
        setattr(torch.cuda, name, value)
    try:
        yield
    finally:
        for name, value in without.items():
            setattr(torch.cuda, name, value)
        torch.Generator, torch.inference_mode = plain, inference_mode  # type: ignore[misc]
        types_with_foreach.remove(FakeTensor)


def _dispatching(ledger: Ledger) -> Any:
    """Return a mode that sees every operation."""
    import torch
    from torch._subclasses.fake_tensor import unset_fake_temporarily
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class Dispatching(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            name, leaves, device = func._schema.name, tree_leaves((args, kwargs)), kwargs.get("device")
            made_there = device is not None and torch.device(device).type == "cuda"
            if not made_there and not any(map(_of_device, leaves)):
                with unset_fake_temporarily():
                    return func(*args, **kwargs)
            if name.startswith("prim::"):
                return func(*args, **kwargs)
            if (answer := _asked(ledger, name, args, kwargs, leaves)) is not None:
                return answer[0]
            view = any(out.alias_info is not None and not out.alias_info.is_write for out in func._schema.returns)
            if not view and name not in _NO_LAUNCH:
                ledger.launched()
            ledger.read([leaf for leaf in leaves if _of_device(leaf)])
            try:
                result = func(*args, **kwargs)
            except Exception as error:
                ledger.wrong(f"{name}: {type(error).__name__}: {str(error)[:200]}")
                raise
            if not view:
                ledger.hold([leaf for leaf in tree_leaves(result) if _of_device(leaf)])
            return result

    return Dispatching()


def _asked(ledger: Ledger, name: str, args: Any, kwargs: Any, leaves: list[Any]) -> tuple[Any] | None:
    """Note what an operation means for host and device; return its result if the host gets one, else None."""
    import torch
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    if name == "aten::_local_scalar_dense":
        ledger.waits("value read")
        kind = args[0].dtype
        return ((0.5 if kind.is_floating_point else False if kind is torch.bool else 1),)
    if name in _WAITING:
        ledger.waits(name)
        return (None,) if name == "aten::_linalg_check_errors" else None
    if name == "aten::_to_copy":
        source, wanted = args[0], kwargs.get("device")
        target = source.device if wanted is None else torch.device(wanted)
        if source.device.type != target.type:
            ledger.copied(source, target.type, blocking=not kwargs.get("non_blocking"))
            if target.type == "cpu":
                with unset_fake_temporarily():
                    return (torch.zeros(source.shape, dtype=kwargs.get("dtype") or source.dtype),)
    elif name == "aten::copy_":
        into, source = args[0], args[1]
        if into.device.type != source.device.type:
            non_blocking = (len(args) > 2 and args[2]) or kwargs.get("non_blocking")
            ledger.copied(source, into.device.type, blocking=not non_blocking)
            if into.device.type == "cpu":
                return (into,)
    elif name.startswith("aten::index"):
        indices = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf is not args[0]]
        if any(index.dtype in (torch.bool, torch.uint8) and _of_device(index) for index in indices):
            ledger.waits("boolean index")
        if any(not _of_device(index) and index.dim() > 0 for index in indices):
            ledger.waits("index on the host")
    return None


def _calling(ledger: Ledger) -> Any:
    """Return a mode that sees calls of torch's functions, for what never becomes an operation."""
    import torch
    from torch.overrides import TorchFunctionMode

    class Calling(TorchFunctionMode):
        def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if (generator := kwargs.get("generator")) is not None:
                first = next((a.device for a in args if isinstance(a, torch.Tensor)), torch.device("cpu"))
                target = first if kwargs.get("device") is None else torch.device(kwargs["device"])
                if target.type != generator.device.type:
                    ledger.wrong(f"generator of {generator.device} for a tensor on {target}")
                if ledger.capturing and not any(generator is known for known in ledger.capturing.generators):
                    ledger.uncapturable(f"a generator of {generator.device.type} that it does not know")
            if func is torch.Tensor.pin_memory:
                ledger.uncapturable("memory of the host that is pinned")
                return args[0].clone()
            if args and _of_device(args[0]):
                if func is torch.Tensor.tolist:
                    ledger.waits("tolist")
                    return np.zeros(args[0].shape).tolist()
                if func in (torch.Tensor.numpy, torch.Tensor.__array__):
                    ledger.wrong("a tensor of the device becomes an array")
                    return np.zeros(args[0].shape, np.float32)
            return func(*args, **kwargs)

    return Calling()
