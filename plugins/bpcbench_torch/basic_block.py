"""torchvision's basic residual block; a module of its own, so that workers can preload torchvision by its name."""

from __future__ import annotations

from typing import Any

from bpcbench_torch.torchvision_compat import import_torchvision

BasicBlock: Any = import_torchvision().models.resnet.BasicBlock
"""The class: BasicBlock(inputs, filters, stride, shortcut, norm_layer=...)."""
