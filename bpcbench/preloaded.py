"""Imported once by the fork server, so that every worker starts with plugins and their frameworks in memory.

Whatever fails here is left for the stage that needs it, where it is reported.
"""

from __future__ import annotations

import contextlib
import importlib
import os

import bpcbench.stages
from bpcbench.plugins import registry
from bpcbench.worker import PRELOAD_VARIABLE

__all__ = ["bpcbench"]

registry()
for _module in filter(None, os.environ.get(PRELOAD_VARIABLE, "").split(",")):
    with contextlib.suppress(Exception):
        importlib.import_module(_module)
