"""Safetensors, and torch's files as far as they hold tensors: nothing else is ever unpickled."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from bpcbench.coresets.importing.contents import FILE_BYTES, Contents, flattened
from bpcbench.records import Array


def read_safetensors(path: Path) -> Contents:
    """Return the arrays of a safetensors file; those of types that NumPy lacks are among the refused."""
    from safetensors import SafetensorError, safe_open

    arrays: dict[str, Array] = {}
    refused: dict[str, str] = {}
    try:
        with safe_open(path, framework="numpy") as file:
            for name in file.keys():  # noqa: SIM118 - not a mapping
                try:
                    arrays[name] = file.get_tensor(name)
                except (TypeError, AttributeError, KeyError) as error:
                    refused[name] = f"its type is not one of NumPy's ({error})"
    except SafetensorError as error:
        raise ValueError(f"it is damaged: {error}") from None
    return Contents(arrays, refused)


def is_torch(path: Path) -> bool:
    """Tell whether a zip archive is one that torch.save wrote."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith("data.pkl") for name in archive.namelist())
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError) as error:
        raise ValueError(f"it is damaged: {error}") from None


def read_torch(path: Path) -> Contents:
    """Return the tensors of a file of torch.save, however nested; objects other than tensors are refused."""
    import torch

    if zipfile.is_zipfile(path):
        try:
            with zipfile.ZipFile(path) as archive:
                total = sum(entry.file_size for entry in archive.infolist())
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError) as error:
            raise ValueError(f"it is damaged: {error}") from None
        if total > FILE_BYTES:
            raise ValueError(f"it unpacks to {total:,} bytes, more than the {FILE_BYTES:,} that are read")
    try:
        tree = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        reason = next((line for line in str(error).splitlines() if "Unsupported" in line or "GLOBAL" in line), "")
        raise ValueError(
            f"it holds more than tensors, which is never opened: it could run any code. {reason.strip()[:150]} "
            "Save the tensors alone, or as npz"
        ) from None
    except Exception as error:
        # The reader of torch raises whatever its restricted machine meets in a damaged file.
        lines = str(error).splitlines() or [""]
        raise ValueError(f"torch cannot read it: {type(error).__name__}: {lines[0][:150]}") from None

    def convert(item: Any) -> Array | None:
        if not isinstance(item, torch.Tensor):
            return None
        if item.layout != torch.strided or item.numel() * item.element_size() > FILE_BYTES or item.is_meta:
            raise ValueError(f"a tensor of shape {tuple(item.shape)} is too large or not dense")
        if item.is_quantized or item.is_complex():
            raise ValueError(f"its type, {item.dtype}, is not supported")
        plain = item.detach()
        return np.ascontiguousarray((plain.float() if plain.dtype == torch.bfloat16 else plain).numpy())

    return flattened(tree, convert)
