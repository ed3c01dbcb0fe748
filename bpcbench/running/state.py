"""Convert live training state to arrays and JSON, and restore it in place, without pickle.

Supported are objects with `state_dict`/`load_state_dict`, torch and NumPy generators, tensors and arrays, and dicts,
lists and tuples of plain values and arrays. torch is used only if a plugin has already imported it.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bpcbench.records import Array
from bpcbench.store.folder import storable


@dataclass(frozen=True)
class Packed:
    """A state as named arrays and a JSON skeleton that references them."""

    arrays: dict[str, Array]
    skeleton: Any


def _torch() -> Any:
    return sys.modules.get("torch")


def capture(state: Mapping[str, Any]) -> Packed:
    """Copy a mapping of live objects."""
    arrays: dict[str, Array] = {}
    skeleton = {}
    for name, value in state.items():
        try:
            skeleton[name] = _pack(_extract(value, name), arrays)
        except _Unsupported as error:
            raise TypeError(f"state {name!r} holds {error}, which cannot be kept in a checkpoint") from None
    return Packed(arrays, skeleton)


class _Unsupported(TypeError):
    """A value inside a state that cannot be expressed as arrays and JSON."""


def restore(state: Mapping[str, Any], packed: Packed) -> None:
    """Restore a captured state into the live objects of the same names."""
    if set(state) != set(packed.skeleton):
        raise ValueError(f"the checkpoint holds {sorted(packed.skeleton)}, the loop names {sorted(state)}")
    for name, value in state.items():
        _insert(value, _unpack(packed.skeleton[name], packed.arrays), name)


def capture_globals() -> dict[str, Any]:
    """Return the state of the global generators of Python, NumPy and, if loaded, torch."""
    version, internal, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    result: dict[str, Any] = {
        "python": {"version": version, "internal": np.array(internal, np.uint32), "gauss": gauss},
        "numpy": {"kind": kind, "keys": keys, "position": position, "has_gauss": has_gauss, "cached": cached},
    }
    if torch := _torch():
        result["torch"] = torch.get_rng_state()
        if torch.cuda.is_initialized():
            result["cuda"] = list(torch.cuda.get_rng_state_all())
    return result


def restore_globals(state: Mapping[str, Any]) -> None:
    """Restore the global generators."""
    python, numpy = state["python"], state["numpy"]
    random.setstate((python["version"], tuple(map(int, python["internal"])), python["gauss"]))
    numpy_state = (numpy["kind"], numpy["keys"], numpy["position"], numpy["has_gauss"], numpy["cached"])
    np.random.set_state(numpy_state)
    if (torch := _torch()) and "torch" in state:
        torch.set_rng_state(torch.as_tensor(state["torch"]))
        if "cuda" in state and torch.cuda.is_available():
            torch.cuda.set_rng_state_all([torch.as_tensor(item) for item in state["cuda"]])


def pack(value: Any) -> Packed:
    """Copy a tree of plain values, arrays and tensors."""
    arrays: dict[str, Array] = {}
    return Packed(arrays, _pack(value, arrays))


def unpack(packed: Packed) -> Any:
    """Return the packed tree; tensors are restored as tensors."""
    return _unpack(packed.skeleton, packed.arrays)


def _extract(value: Any, name: str) -> Any:
    torch = _torch()
    if isinstance(value, np.random.Generator):
        return {"bit_generator": dict(value.bit_generator.state)}
    if torch and isinstance(value, torch.Generator):
        return {"generator": value.get_state()}
    if hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
        return value.state_dict()
    if isinstance(value, dict | list):
        if any(getattr(leaf, "requires_grad", False) for leaf in _leaves(value)):
            raise TypeError(
                f"state {name!r} is a {type(value).__name__} with a tensor that requires grad: an optimiser would keep "
                "the old one after a resume; name such tensors one by one"
            )
        return value
    if isinstance(value, np.ndarray) or (torch and isinstance(value, torch.Tensor)):
        return value
    raise TypeError(
        f"state {name!r} is a {type(value).__name__}, which cannot be restored in place; pass an object with "
        "state_dict and load_state_dict, a generator, a tensor, an array, a dict or a list"
    )


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _leaves(item)
    else:
        yield value


def _insert(target: Any, value: Any, name: str) -> None:
    torch = _torch()
    if isinstance(target, np.random.Generator):
        target.bit_generator.state = value["bit_generator"]
    elif torch and isinstance(target, torch.Generator):
        target.set_state(value["generator"])
    elif hasattr(target, "load_state_dict"):
        target.load_state_dict(value)
    elif isinstance(target, dict):
        target.clear()
        target.update(value)
    elif isinstance(target, list):
        target[:] = value
    elif _form(target) != _form(value):
        raise ValueError(f"state {name!r} is {_form(target)}, the checkpoint holds {_form(value)}")
    elif isinstance(target, np.ndarray):
        target[...] = value
    else:
        with torch.no_grad():
            target.copy_(value)


def _form(value: Any) -> str:
    if isinstance(value, np.ndarray | np.generic):
        return f"an array of {value.dtype} {value.shape}"
    if (torch := _torch()) and isinstance(value, torch.Tensor):
        return f"a tensor of {value.dtype} {tuple(value.shape)}"
    return f"a {type(value).__name__}"


def _pack(value: Any, arrays: dict[str, Array]) -> Any:
    torch = _torch()
    if isinstance(value, np.generic) and storable(np.asarray(value)):
        return {"s": _keep(np.asarray(value), arrays)}
    if value is None or isinstance(value, bool | int | float | str):
        return {"v": value} if not isinstance(value, float) else {"f": value.hex()}
    if torch and isinstance(value, torch.Tensor):
        name = _keep(_tensor_bytes(value, torch), arrays)
        return {"t": [name, str(value.dtype), list(value.shape), _layout(value, torch)]}
    if isinstance(value, np.ndarray) and storable(value):
        return {"a": _keep(np.array(value, order="C", copy=True), arrays)}
    if isinstance(value, Mapping):
        return {"d": [[_pack(key, arrays), _pack(item, arrays)] for key, item in value.items()]}
    if isinstance(value, list | tuple):
        return {"l" if isinstance(value, list) else "u": [_pack(item, arrays) for item in value]}
    raise _Unsupported(_form(value))


def _tensor_bytes(tensor: Any, torch: Any) -> Array:
    # As bytes, so that bfloat16 and other dtypes without a NumPy equivalent survive exactly.
    flat = tensor.detach().to("cpu", copy=True).contiguous().reshape(-1)
    result: Array = flat.view(torch.uint8).numpy() if flat.numel() else np.zeros(0, np.uint8)
    return result


def _layout(tensor: Any, torch: Any) -> str:
    """Return the memory format; kernels over an optimiser's state and its parameter need both in the same one."""
    if tensor.is_contiguous():
        return "contiguous_format"
    for dimensions, layout in ((4, "channels_last"), (5, "channels_last_3d")):
        if tensor.dim() == dimensions and tensor.is_contiguous(memory_format=getattr(torch, layout)):
            return layout
    return "contiguous_format"


def _keep(array: Array, arrays: dict[str, Array]) -> str:
    name = str(len(arrays))
    arrays[name] = array
    return name


def _unpack(node: Any, arrays: Mapping[str, Array]) -> Any:
    torch = _torch()
    ((tag, value),) = node.items()
    if tag == "v":
        return value
    if tag == "f":
        return float.fromhex(value)
    if tag == "t":
        name, kind, shape, layout = value
        dtype = getattr(torch, kind.removeprefix("torch."))
        data = torch.from_numpy(np.array(arrays[name]))
        tensor = (data.view(dtype) if data.numel() else data.to(dtype)).reshape(shape)
        return tensor.contiguous(memory_format=getattr(torch, layout))
    if tag == "a":
        return np.array(arrays[value])
    if tag == "s":
        return arrays[value][()]
    if tag == "d":
        return {_unpack(key, arrays): _unpack(item, arrays) for key, item in value}
    items = [_unpack(item, arrays) for item in value]
    return items if tag == "l" else tuple(items)
