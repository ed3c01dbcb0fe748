"""Import torchvision even if its compiled operators do not match the installed torch.

A torchvision built for another torch (the CUDA wheel beside a CPU-only torch) cannot load its extension, and its import
fails with `operator torchvision::nms does not exist`. This project and torchmetrics use only its Python code, and for
that it is enough to declare the missing operators. Calling one of them still fails.
"""

from __future__ import annotations

import importlib
import sys
import threading
from types import ModuleType
from typing import Any

import torch

_SCHEMAS = tuple(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor" for name in ("nms", "qnms"))
_new_library: Any = torch.library.Library  # torch leaves it without annotations
_libraries: list[torch.library.Library] = []
"""Kept for the life of the process: the operators of a Library vanish when it is garbage-collected."""
_lock = threading.Lock()


def import_torchvision() -> ModuleType:
    """Return torchvision; declare its missing operators first if the import fails without them.

    Call this before any other package (torchmetrics, timm) imports torchvision. Repeated and concurrent calls are safe.
    Any other import error is raised unchanged.
    """
    with _lock:
        return _import()


def _import() -> ModuleType:
    try:
        return importlib.import_module("torchvision")
    except RuntimeError as error:
        if "operator torchvision::" not in str(error) or _libraries:
            raise
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    library = _new_library("torchvision", "FRAGMENT")
    for schema in _SCHEMAS:
        library.define(schema)
    _libraries.append(library)
    return importlib.import_module("torchvision")
