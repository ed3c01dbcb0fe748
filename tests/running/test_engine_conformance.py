"""Every engine keeps the contract: those that are built in, the documented example, and one that is detached."""

from __future__ import annotations

import importlib
import inspect
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any, ClassVar

import pytest
from detached_engine import Detached, Leaving

from bpcbench import hooks
from bpcbench.api import Engine, Pool
from bpcbench.records import RunInfo
from bpcbench.running.engines import Inline, Local
from bpcbench.running.local import LocalPool
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


@pytest.mark.campaign
class TestExample(EngineConformance):
    plugin: ClassVar[Engine] = _example()


@pytest.mark.campaign
class TestDetached(EngineConformance):
    plugin: ClassVar[Engine] = Detached()


class _DeafPool(LocalPool):
    def stop(self, attempts: Any) -> None:
        pass


class _GreedyPool(LocalPool):
    def __init__(self, run: Any, slots: int) -> None:
        super().__init__(run, slots + 1)


class _Altered(Local):
    """The local engine with another pool."""

    pool: ClassVar[type[LocalPool]]

    def open(self, run: RunInfo) -> Pool:
        return self.pool(run, self.jobs or 1)


class _Deaf(_Altered):
    pool = _DeafPool


class _Greedy(_Altered):
    pool = _GreedyPool


def _broken(engine: Engine) -> EngineConformance:
    tested = EngineConformance()
    tested.plugin = engine  # type: ignore[misc]
    tested.grace = 2.0  # type: ignore[misc]
    return tested


def test_conformance_finds_an_engine_that_leaves_processes(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="lives on after its runner was killed"):
        _broken(Leaving()).test_the_runner_is_killed(tmp_path)


def test_conformance_finds_an_engine_that_does_not_stop(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        _broken(_Deaf()).test_a_stop_keeps_a_checkpoint(tmp_path)


def test_conformance_finds_an_engine_that_runs_too_many(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        _broken(_Greedy()).test_as_many_at_once_as_jobs(tmp_path)
