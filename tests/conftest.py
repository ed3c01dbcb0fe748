"""Fixtures for all tests; `importable/` is on the path, and `toys` in it is a plugin of classes that run in no time."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bpcbench import hookimpl
from bpcbench.registry import discovery as plugins
from bpcbench.registry.discovery import KINDS, Registry

# Many tests start interpreters; without this each of them would compile every module again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ.setdefault("PYTHONPYCACHEPREFIX", str(Path(tempfile.gettempdir()) / f"bpcbench-tests-{os.getuid()}"))

# `nohup` and background jobs of a script ignore these, and so would every process that a test starts.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

sys.path.insert(0, str(Path(__file__).parent / "importable"))
sys.path.insert(0, str(Path(__file__).parent / "toy_plugin"))


@pytest.fixture(scope="session")
def registry() -> Registry:
    """The plugins that are really installed; to add some, use `install`."""
    return plugins.load_registry()


@pytest.fixture
def plugin_module() -> Callable[..., types.ModuleType]:
    """Return a maker of plugin modules: `plugin_module(Class, ..., name="x", ATTRIBUTE=value)`."""

    def make(*classes: type, name: str = "adhoc", **attributes: Any) -> types.ModuleType:
        module = types.ModuleType(name)
        vars(module).update({"BPCBENCH_API": 1, **attributes})
        for kind, base in KINDS.items():
            if found := [cls for cls in classes if issubclass(cls, base)]:
                setattr(module, f"bpcbench_{kind}s", hookimpl(lambda found=found: found))
        return module

    return make


@pytest.fixture
def install(
    monkeypatch: pytest.MonkeyPatch, plugin_module: Callable[..., types.ModuleType]
) -> Iterator[Callable[..., Registry]]:
    """Return a function that makes classes and modules part of this process's registry until the test ends."""

    load = plugins.load_registry

    def add(*plugin: Any) -> Registry:
        found = load()
        modules = [item for item in plugin if isinstance(item, types.ModuleType)]
        classes = [item for item in plugin if isinstance(item, type)]
        for module in [*modules, *([plugin_module(*classes)] if classes else [])]:
            found.add(module.__name__, "tests", "0", module.__name__, lambda module=module: module)
        assert not found.broken(), found.broken()
        monkeypatch.setattr(plugins, "load_registry", lambda: found)
        plugins.registry.cache_clear()
        return found

    yield add
    monkeypatch.undo()
    plugins.registry.cache_clear()


@pytest.fixture
def write_suite(tmp_path: Path) -> Callable[..., str]:
    """Return a function that writes YAML to a file and returns the file's name."""

    def write(text: str, name: str = "suite.yaml") -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return str(path)

    return write


@pytest.fixture
def toy(tmp_path: Path) -> Iterator[Any]:
    """A suite of the toy plugin that is run in processes of its own; see `toy_plugin/toy_runs.py`."""
    from toy_runs import Toy

    made = Toy(tmp_path / "toy")
    yield made
    made.kill_all()
