"""A CUDA device without a GPU: its tensors have shapes and no values, and everything asked of it is written down.

    register()  # before torch is imported
    with fake_cuda() as ledger:
        ledger.phase = "step"
        ...  # the code under test, with the device "cuda"; tensors of the CPU are computed as always
    print(ledger.summary("step"))

It tells whether devices are mixed, where the host waits for the device (`.item()`, a branch on a value, a blocking copy
in either direction), and counts launches (operations that are neither views nor allocations), copies and the peak of
live bytes. Of values, of cuDNN, of the allocator and of speed it knows nothing: a value that is read is made up.

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
    waits: Counter[str] = field(default_factory=Counter)
    copies: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    peak: int = 0


@dataclass
class Ledger:
    """Everything that was asked of the device, by phase."""

    phase: str = "start"
    steps: int = 0
    """How many steps were watched in the phase `step`."""
    counts: dict[str, Counts] = field(default_factory=lambda: defaultdict(Counts))
    _held: dict[int, tuple[Any, int]] = field(default_factory=dict)
    _live: int = 0

    @property
    def now(self) -> Counts:
        """The counts of the current phase."""
        return self.counts[self.phase]

    def waits(self, what: str) -> None:
        """Note that the host waits for the device."""
        self.now.waits[f"{what} at {_place()}"] += 1

    def copied(self, source: Any, target: str, *, blocking: bool) -> None:
        """Note a copy between host and device; a blocking one is a wait as well."""
        what = f"{source.numel() * source.element_size():,} bytes to {target}"
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
        """Count the bytes of new storages."""
        from torch.multiprocessing.reductions import StorageWeakRef

        for tensor in tensors:
            storage = tensor.untyped_storage()
            number, size = storage._cdata, storage.nbytes()
            if number in self._held:
                if not self._held[number][0].expired():
                    continue
                self._live -= self._held.pop(number)[1]
            self._held[number] = (StorageWeakRef(storage), size)
            self._live += size
        if self._live > self.now.peak:
            for number in [number for number, (weak, _) in self._held.items() if weak.expired()]:
                self._live -= self._held.pop(number)[1]
            self.now.peak = max(self.now.peak, self._live)

    def summary(self, phase: str) -> str:
        """Return the counts of a phase, per step, and every wait and copy."""
        counts, steps = self.counts[phase], max(1, self.steps if phase == "step" else 1)
        lines = [f"{phase}: {counts.launches / steps:.0f} launches, peak {counts.peak / 1e6:.1f} MB"]
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
    with _torch_as_with_cuda(), FakeTensorMode(allow_non_fake_inputs=True), _dispatching(ledger), _calling(ledger):
        yield ledger


@contextlib.contextmanager
def _torch_as_with_cuda() -> Iterator[None]:
    """Give torch generators of the device, and let optimisers use their fused and foreach forms, as on CUDA."""
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

    types_with_foreach = optimizer._foreach_supported_types
    torch.Generator = Generator  # type: ignore[misc]
    # Tensors of inference mode cannot be fake.
    torch.inference_mode = lambda mode=True: torch.no_grad() if mode else contextlib.nullcontext()  # type: ignore
    types_with_foreach.append(FakeTensor)
    try:
        yield
    finally:
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
            ledger.now.launches += not view and name not in _NO_LAUNCH
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
            if func is torch.Tensor.pin_memory:
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
