"""A configured plugin as plain data: one key wherever it is installed, and refused where it is another one."""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import toys
from toys import Centroid, Line, Pick

from bpcbench import option, refers
from bpcbench.errors import PluginError, UserError
from bpcbench.planning.spec import Spec
from bpcbench.records import Ref
from bpcbench.registry.discovery import LOCAL_VARIABLE, Registered, Registry, load_registry
from bpcbench.registry.options import build, ready
from bpcbench.store.address import PLUGIN, keyed

Install = Callable[..., Registry]

MODULE = """
from dataclasses import dataclass
import bpcbench

@dataclass(frozen=True)
class Shared(bpcbench.Network):
    name = "shared-net"
    width: int = bpcbench.option(4, "features")

    def build(self, shape, classes, seed):
        return None
"""
HOOK = """
import bpcbench
from packaged_plugin.deeper.nets import Shared

BPCBENCH_API = 1

@bpcbench.hookimpl
def bpcbench_networks():
    return [Shared]
"""
METADATA = {
    "METADATA": "Metadata-Version: 2.1\nName: some-distribution\nVersion: 3.0\n",
    "entry_points.txt": "[bpcbench]\nmine = packaged_plugin.hooks\n",
}


def renewed(registry: Registry, kind: str, cls: type[Any]) -> None:
    """Make a class the one that this registry has under its name, as another installation would."""
    registry.classes[kind, cls.name] = Registered(kind, cls, "elsewhere", "elsewhere")


@pytest.fixture
def found(install: Install) -> Registry:
    return install(toys)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package on the path, with a class deep in it and a module of hooks."""
    folder = tmp_path / "site"
    (folder / "packaged_plugin" / "deeper").mkdir(parents=True)
    for name, text in {"__init__": "", "hooks": HOOK, "deeper/__init__": "", "deeper/nets": MODULE}.items():
        (folder / "packaged_plugin" / f"{name}.py").write_text(text)
    for name in [name for name in sys.modules if name.partition(".")[0] == "packaged_plugin"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(folder)
    return folder


def test_a_plugin_has_one_key_before_and_after_it_is_packaged(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LOCAL_VARIABLE, "packaged_plugin.hooks")
    local = load_registry()
    monkeypatch.delenv(LOCAL_VARIABLE)
    with pytest.raises(UserError, match="unknown network 'shared-net'"):
        load_registry().get("network", "shared-net")
    metadata = package / "some_distribution-3.0.dist-info"
    metadata.mkdir()
    for name, text in METADATA.items():
        (metadata / name).write_text(text)
    importlib.invalidate_caches()
    installed = load_registry()
    homes = [registry.get("network", "shared-net").distribution for registry in (local, installed)]
    assert homes == ["local", "some-distribution"]
    specs = [Spec.of(build(registry, "network", Ref("shared-net"))) for registry in (local, installed)]
    assert {spec.package for spec in specs} == {"packaged_plugin"}
    assert specs[0].digest == specs[1].digest
    assert specs[0].build(installed).width == 4


def test_the_package_tells_plugins_of_one_name_apart() -> None:
    spec = Spec.of(Line())
    assert spec.package == "toys"
    assert replace(spec, package="others").digest != spec.digest


def test_another_version_is_refused_and_both_are_named(found: Registry) -> None:
    spec = Spec.of(ready(found, Centroid()))
    assert spec.build(found) == Centroid()
    newer = dataclass(frozen=True)(type("Centroid", (Centroid,), {"version": 2, "__module__": "toys"}))
    renewed(found, "inference", newer)
    with pytest.raises(PluginError) as caught:
        spec.build(found)
    message = str(caught.value)
    assert "inference centroid was planned as toys:centroid version 1" in message
    assert "this installation has toys:centroid version 2; plan again" in message
    assert "options that differ" not in message


def test_a_plugin_of_another_package_is_refused(found: Registry) -> None:
    other = dataclass(frozen=True)(type("Centroid", (Centroid,), {"__module__": "others.deep"}))
    renewed(found, "inference", other)
    with pytest.raises(PluginError, match=r"planned as toys:centroid version 1, .*has others:centroid version 1"):
        Spec.of(Centroid(heat=1.0)).build(found)


def test_another_default_is_no_difference_for_a_spec_that_holds_all_options(found: Registry) -> None:
    """The plan wrote every option out, so what a default is elsewhere does not matter."""

    @dataclass(frozen=True)
    class Wider(Line):
        name = "line"
        width: int = option(9, "features")

    Wider.__module__ = "toys"
    renewed(found, "network", Wider)
    built: Any = Spec.of(Line()).build(found)
    assert built.width == 4


def test_an_additional_keyed_option_is_refused_and_named(found: Registry) -> None:
    @dataclass(frozen=True)
    class Longer(Line):
        name = "line"
        length: int = option(1, "a later addition, keyed from the start")
        chunk: int = option(1, "speed only", key=False)
        style: str = option("plain", "a later addition that stays out of keys", absent="plain")

    Longer.__module__ = "toys"
    renewed(found, "network", Longer)
    with pytest.raises(PluginError, match=r"network line was planned .*\(options that differ: length\); plan again"):
        Spec.of(Line()).build(found)


def test_additional_options_that_stay_out_of_keys_are_no_difference(found: Registry) -> None:
    @dataclass(frozen=True)
    class Later(Line):
        name = "line"
        chunk: int = option(1, "speed only", key=False)
        style: str = option("plain", "a later addition", absent="plain")

    Later.__module__ = "toys"
    renewed(found, "network", Later)
    assert Spec.of(Line()).build(found) == Later()


def test_an_absent_value_that_changed_is_refused(found: Registry) -> None:
    """`absent` stands for one value only: if that changes, the option enters the key."""

    @dataclass(frozen=True)
    class Restyled(Pick):
        name = "pick"
        style: str = option("fancy", "another default", absent="fancy")

    Restyled.__module__ = "toys"
    renewed(found, "method", Restyled)
    with pytest.raises(PluginError, match=r"options that differ: style\)"):
        Spec.of(Pick(net=Line())).build(found)


def test_what_a_plugin_builds_by_hand_has_the_key_that_a_worker_derives(found: Registry) -> None:
    """Centroid.heat is a float; Python code may leave it at 1, or write 2."""

    @dataclass(frozen=True)
    class Outer(Pick):
        name = "outer"
        inference: Any = refers("inference", "centroid", "an inference")

    for plugin in (Centroid(), Centroid(heat=2), Pick(net=Line(width=7)), Outer(inference=Centroid(heat=2))):
        spec = Spec.of(ready(found, plugin))
        found.classes["method", "outer"] = Registered("method", Outer, "tests", "tests")
        assert spec.build(found) == ready(found, plugin)
    with pytest.raises(PluginError, match=r"\(options that differ: heat\)"):
        Spec.of(Centroid(heat=2)).build(found)


def test_an_option_that_is_gone_is_refused(found: Registry) -> None:
    spec = Spec.of(Centroid())
    with pytest.raises(UserError, match="unknown option of centroid 'cold'"):
        replace(spec, options={**spec.options, "cold": 1.0}).build(found)
    with pytest.raises(UserError, match="unknown inference 'centre'"):
        replace(spec, name="centre").build(found)


def test_nested_plugins_are_specs_and_are_built_again(found: Registry) -> None:
    plugin = Pick(net=Line(width=7), chunk=3)
    spec = Spec.of(plugin)
    assert [inner.name for inner in spec.walk()] == ["pick", "line"]
    assert spec.reference() == {
        "plugin": "pick", "steps": 2, "rate": 0.1, "net": {"plugin": "line", "width": 7, "height": 1},
        "chunk": 3, "style": "plain",
    }  # fmt: skip
    carried = Spec.from_json(json.loads(json.dumps(spec.to_json())))
    assert carried.to_json() == spec.to_json()
    assert carried.digest == spec.digest
    assert carried.build(found) == plugin
    # In the key it is a digest of its own, so that the key of the outer plugin holds the inner one's version.
    assert keyed(spec.to_json()[PLUGIN])["options"]["net"] == {PLUGIN: spec.options["net"].digest}


def test_a_nested_plugin_of_another_version_is_refused(found: Registry) -> None:
    spec = Spec.of(Pick(net=Line()))
    newer = dataclass(frozen=True)(type("Line", (Line,), {"version": 2, "__module__": "toys"}))
    renewed(found, "network", newer)
    with pytest.raises(PluginError, match=r"method pick was planned .*\(options that differ: net\); plan again"):
        spec.build(found)


@pytest.mark.parametrize("value", [None, 3, "line", {}, {PLUGIN: {}}, {PLUGIN: {"kind": "network"}}, {PLUGIN: [1]}])
def test_what_describes_no_plugin_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="not the description of a plugin"):
        Spec.from_json(value)


def test_a_spec_holds_every_option_once() -> None:
    spec = Spec.of(Pick(net=Line()))
    assert spec.options.keys().isdisjoint(spec.unkeyed)
    assert {*spec.options, *spec.unkeyed} == {field.name for field in dataclasses.fields(Pick)}
