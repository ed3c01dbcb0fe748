"""Every engine keeps the contract: those that are built in, the documented example, and one that is detached."""

from __future__ import annotations

import importlib
import inspect
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import ClassVar

from detached_engine import Detached

from bpcbench import hooks
from bpcbench.api import Engine
from bpcbench.running.engines import Inline, Local
from bpcbench.testing import EngineConformance


def _example() -> Engine:
    """Return the engine of the hook's example, from a module that other processes can import too."""
    folder = Path(tempfile.mkdtemp(prefix="bpcbench-example-"))
    code = (inspect.getdoc(hooks.bpcbench_engines) or "").partition("Example:\n")[2]
    (folder / "example_engine.py").write_text("BPCBENCH_API = 1\n" + textwrap.dedent(code))
    sys.path.append(str(folder))
    return importlib.import_module("example_engine").Plain()


class TestLocal(EngineConformance):
    plugin: ClassVar[Engine] = Local()


class TestInline(EngineConformance):
    plugin: ClassVar[Engine] = Inline()


class TestExample(EngineConformance):
    plugin: ClassVar[Engine] = _example()


class TestDetached(EngineConformance):
    plugin: ClassVar[Engine] = Detached()
