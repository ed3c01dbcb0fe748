"""What is public is listed, stays, and is all that first-party plugins use; and what a plugin for an older API gets."""

from __future__ import annotations

import importlib.util
import re
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

import bpcbench
from bpcbench import hooks
from bpcbench.cli import main
from bpcbench.registry import discovery
from bpcbench.registry.discovery import load_registry

ROOT = Path(__file__).parents[2]
_spec = importlib.util.spec_from_file_location("docs_api", ROOT / "docs" / "api.py")
assert _spec is not None
assert _spec.loader is not None
api = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(api)

INTERNAL = {"__init__", "__main__", "cli", "detection", "forms", "reading", "streams", "text"}
"""Top-level modules that are not public; all packages but those in `api.PUBLIC` are internal too."""
RECORD = Path(__file__).with_name("api_1.txt")


def test_every_top_level_module_is_public_or_known_to_be_internal():
    modules = {path.stem for path in (ROOT / "bpcbench").glob("*.py")}
    packages = {path.parent.name for path in (ROOT / "bpcbench").glob("*/__init__.py")}
    assert modules - INTERNAL == set(api.PUBLIC) - packages
    assert set(api.PUBLIC) - modules <= packages


def test_everything_that_is_exported_is_on_the_page():
    page = api.PAGE.read_text()
    listed = set(re.findall(r"`(\w+)`", page))
    assert set(bpcbench.__all__) <= listed, "run `python docs/api.py`"


def test_everything_on_the_page_exists():
    modules = dict(api.modules())
    for section in api.PAGE.read_text().split("\n## bpcbench")[1:]:
        module = modules["bpcbench" + section.partition("\n")[0]]
        for name in re.findall(r"^\| `(\w+)` \|", section, re.M):
            assert hasattr(module, name), f"{module.__name__}.{name} is on the page and not in the code"


def _parsed(lines: Iterator[str]) -> dict[str, list[str]]:
    found = {}
    for line in lines:
        name, _, parameters = line.partition("(")
        found[name] = [p for p in parameters.removesuffix(")").split(", ") if p]
    return found


def test_what_plugins_for_api_1_use_is_still_there():
    """Names and parameters may be added, at the end and with defaults; none may go while API 1 is supported."""
    now, then = _parsed(api.signatures()), _parsed(iter(RECORD.read_text().splitlines()))
    assert len(then) > 300
    gone = [name for name in then if name not in now]
    assert gone == [], "renamed or removed: keep the old name, and see docs/api.md"
    lost = [f"{name}: {p}" for name, parameters in then.items() for p in parameters if p not in now[name]]
    assert lost == [], "parameters or fields that plugins for API 1 may use"


def test_first_party_plugins_import_only_what_is_public():
    allowed = {*api.PUBLIC, *bpcbench.__all__, "__version__"}
    for path in (ROOT / "plugins").rglob("*.py"):
        text = path.read_text()
        used = re.findall(r"^\s*(?:from|import) bpcbench\.(\w+)", text, re.M)
        for names in re.findall(r"^\s*from bpcbench import (.+)$", text, re.M):
            used += [name.strip(" ()").partition(" as ")[0] for name in names.split(",") if name.strip(" ()")]
        assert set(used) <= allowed, path


Module = Callable[..., types.ModuleType]


@dataclass(frozen=True)
class FromApi1(bpcbench.Method):
    """A method for API 1."""

    name: ClassVar[str] = "from-api-1"

    def distil(self, data: Any, ipc: int, inputs: Any, ctx: Any) -> Any:
        raise NotImplementedError


@pytest.fixture
def api_2(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """As if API 2 had come: it has a hook and a method more than API 1."""

    @hooks.hookspec
    def bpcbench_colours() -> list[str]:
        """Return colours."""
        raise AssertionError

    monkeypatch.setattr(hooks, "API_VERSION", 2)
    monkeypatch.setattr(hooks, "bpcbench_colours", bpcbench_colours, raising=False)
    monkeypatch.setattr(bpcbench.Method, "colour", lambda self: "grey", raising=False)
    yield monkeypatch
    discovery.registry.cache_clear()


def test_api_2_runs_a_plugin_for_api_1_unchanged_and_says_so(
    api_2: pytest.MonkeyPatch, plugin_module: Module, capsys: pytest.CaptureFixture[str]
) -> None:
    found = load_registry()
    for name, version in (("old", 1), ("new", 2)):
        more = {"bpcbench_colours": bpcbench.hookimpl(lambda: ["red"])} if version == 2 else {}
        module = plugin_module(*([FromApi1] if version == 1 else []), name=name, BPCBENCH_API=version, **more)
        found.add(name, "theirs", "0.1", name, lambda module=module: module)
    assert found.broken() == []
    assert {p.name: p.api for p in found.plugins if p.distribution == "theirs"} == {"old": 1, "new": 2}
    method = found.get("method", "from-api-1").cls()
    assert method.colour() == "grey"  # what is new has a default
    api_2.setattr(discovery, "load_registry", lambda: found)
    discovery.registry.cache_clear()
    assert main(["list", "plugins"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if "theirs" in line}
    assert lines["old"].endswith("method from-api-1  (written for API 1 of 2)")
    assert "written for" not in lines["new"]


def test_a_plugin_for_api_2_is_refused_by_api_1(plugin_module: Module) -> None:
    found = load_registry()
    colours = {"bpcbench_colours": bpcbench.hookimpl(lambda: ["red"])}
    module = plugin_module(name="new", BPCBENCH_API=2, **colours)
    found.add("new", "theirs", "0.1", "new", lambda: module)
    (broken,) = found.broken()
    assert broken.error == "it is written for plugin API 2, this bpcbench has API 1: upgrade bpcbench"


def test_when_api_1_is_no_longer_supported_its_plugins_are_told(
    api_2: pytest.MonkeyPatch, plugin_module: Module
) -> None:
    api_2.setattr(hooks, "OLDEST_API_VERSION", 2)
    found = load_registry()
    module = plugin_module(FromApi1, name="old", BPCBENCH_API=1)
    found.add("old", "theirs", "0.1", "old", lambda: module)
    broken = {plugin.name: plugin.error for plugin in found.broken()}
    assert broken["old"] == (
        "it is written for plugin API 1, and the oldest that this bpcbench supports is 2: upgrade the plugin"
    )
    with pytest.raises(bpcbench.UserError, match=r"plugin 'old' of theirs did not load: .*upgrade the plugin"):
        found.get("method", "from-api-1")
