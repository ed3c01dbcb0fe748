"""Import torchvision where its compiled operators do not fit the installed torch.

A torchvision built for another torch (the CUDA wheel beside a CPU-only torch) cannot load its extension and then
fails at import with `operator torchvision::nms does not exist`, although all that this project and torchmetrics use of
it is plain Python. Naming the operators is enough for the import; calling them still fails.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

import torch

_SCHEMAS = tuple(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor" for name in ("nms", "qnms"))
_new_library: Any = torch.library.Library  # torch leaves it without annotations
_libraries: list[torch.library.Library] = []
"""Kept for the life of the process: a Library takes its operators with it when it is collected."""


def import_torchvision() -> ModuleType:
    """Return torchvision, declaring its missing operators if that is what stops the import; safe to call again.

    Call it before anything else imports torchvision (torchmetrics, timm). Other failures are raised as they are.
    """
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
