"""Plugins are found, each loaded on its own: one that is broken is noted, taken back, and disturbs nobody."""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import signal
import subprocess
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import toys
from toys import TOYS, Dots, Line, Pick

import bpcbench
from bpcbench import Dataset, hookimpl, hooks
from bpcbench.errors import UserError
from bpcbench.records import StageEvent
from bpcbench.registry.discovery import LOCAL_VARIABLE, LoadedPlugin, Registry, _entry_points, load_registry

Module = Callable[..., types.ModuleType]
EVENT = StageEvent("coreset:abc@final", "coreset", "a label", "done", 1.0)


@pytest.fixture
def fresh() -> Registry:
    return load_registry()


def add(registry: Registry, module: Any, name: str = "theirs", distribution: str = "their-dist") -> str:
    """Add a module as an entry point would; return the error."""
    registry.add(name, distribution, "1.2", "their.module", lambda: module)
    return registry.plugins[-1].error


def implementations(registry: Registry) -> list[str]:
    callers = [getattr(registry.manager.hook, name) for name in dir(hooks) if name.startswith("bpcbench_")]
    return sorted(f"{impl.plugin_name}.{caller.name}" for caller in callers for impl in caller.get_hookimpls())


def test_all_plugins_of_this_distribution_load(registry: Registry) -> None:
    assert registry.broken() == []
    ours = {plugin.name for plugin in registry.plugins if plugin.distribution == "bpcbench"}
    assert ours >= {"engines", "data", "torch", "baselines", "evaluators"}
    assert "method random" in next(plugin for plugin in registry.plugins if plugin.name == "baselines").classes
    assert registry.get("dataset", "digits").distribution == "bpcbench"
    assert registry.names("engine") == sorted(registry.names("engine"))


class Installed(importlib.metadata.Distribution):
    """A distribution of two files; `METADATA` may be damaged."""

    def __init__(self, name: str, entry_points: str, *, damaged: bool = False) -> None:
        self.read: list[str] = []
        self._path = Path(f"/{name}.dist-info")
        self._texts = {"METADATA": f"Name: {name}\nVersion: 1.5\n", "entry_points.txt": entry_points}
        self._damaged = damaged

    def read_text(self, filename: str) -> str | None:
        self.read.append(filename)
        if filename == "METADATA" and self._damaged:
            raise OSError("input/output error")
        return self._texts.get(filename)

    def locate_file(self, path: Any) -> Any:
        return self._path.parent / path


def test_entry_points_come_in_order_and_other_distributions_are_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Installed("plain", "[console_scripts]\nbpcbench = x:main\n", damaged=True)
    installed = [
        plain,
        Installed("zoo", "[bpcbench]\nb = zoo.b\na = zoo.a\n"),
        Installed("damaged", "[bpcbench]\nd = damaged.d\n", damaged=True),
        Installed("zoo", "[bpcbench]\na = zoo.stale\n"),
        Installed("alpha", "[other]\nc = alpha.other\n[bpcbench]\nc = alpha.c\n"),
        Installed("bpcbench", "[bpcbench]\nx = bpcbench.x\n"),
    ]
    monkeypatch.setattr(importlib.metadata, "distributions", lambda: installed)
    unreadable: list[LoadedPlugin] = []
    entries = [(name, version, entry.value) for name, version, entry in _entry_points(unreadable)]
    assert entries == [
        ("bpcbench", "1.5", "bpcbench.x"),
        ("alpha", "1.5", "alpha.c"),
        ("zoo", "1.5", "zoo.a"),
        ("zoo", "1.5", "zoo.b"),
    ]
    assert [(found.distribution, found.error) for found in unreadable] == [
        ("/damaged.dist-info", "OSError: input/output error")
    ]
    assert "METADATA" not in plain.read


@dataclass(frozen=True)
class Fine(Dots):
    name = "fine"


class Undecorated(Dots):
    name = "undecorated"


@dataclass(frozen=True)
class Unfinished(Dataset):
    name = "unfinished"


@dataclass(frozen=True)
class Nameless(Dots):
    name = ""


@dataclass(frozen=True)
class Slashed(Dots):
    name = "a/b"


@dataclass(frozen=True)
class Versioned(Dots):
    name = "versioned"
    version = "2"  # type: ignore[assignment]


@dataclass(frozen=True)
class Greedy(Pick):
    name = "greedy"
    plugin: str = ""


@dataclass(frozen=True)
class Mixing(Pick):
    name = "mixing"
    preprocessing: str = ""


@dataclass(frozen=True, kw_only=True)
class Defaultless(Dots):
    name = "defaultless"
    needed: int


@dataclass(frozen=True)
class Again(Dots):
    name = "digits"


def returns(*values: Any) -> Callable[[], Any]:
    return hookimpl(lambda: list(values))


def explodes() -> Any:
    raise RuntimeError("two\nlines")


WORD = ".name must be a word of letters, digits and _ . ~ + -"
BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "no API": ({"BPCBENCH_API": None}, "it does not say BPCBENCH_API = 1, the version it was written for"),
    "API in words": ({"BPCBENCH_API": "1"}, "it does not say BPCBENCH_API = 1"),
    "newer API": (
        {"BPCBENCH_API": 7},
        f"it is written for plugin API 7, this bpcbench has API {bpcbench.API_VERSION}: upgrade bpcbench",
    ),
    "unknown hook": ({"bpcbench_nonsense": returns()}, "unknown hook 'bpcbench_nonsense' in plugin"),
    "hook's arguments": (
        {"bpcbench_stage_finished": hookimpl(lambda event, more: None)},
        "hook 'bpcbench_stage_finished'",
    ),
    "hook returns None": ({"bpcbench_datasets": hookimpl(lambda: None)}, "TypeError: 'NoneType' object is not"),
    "hook raises": ({"bpcbench_methods": hookimpl(explodes)}, "RuntimeError: two lines"),
    "instance": ({"bpcbench_datasets": returns(Dots())}, "returned Dots(file=''), which is not a subclass"),
    "wrong base": ({"bpcbench_methods": returns(Dots)}, "which is not a subclass of bpcbench.Method"),
    "not a plugin": ({"bpcbench_inferences": returns(Path)}, "which is not a subclass of bpcbench.Inference"),
    "not a dataclass": ({"bpcbench_datasets": returns(Undecorated)}, "must be decorated with @dataclass(frozen=True)"),
    "abstract": ({"bpcbench_datasets": returns(Unfinished)}, "Unfinished does not define facts, fingerprint, load"),
    "no name": ({"bpcbench_datasets": returns(Nameless)}, "Nameless" + WORD),
    "bad name": ({"bpcbench_datasets": returns(Slashed)}, "Slashed" + WORD),
    "version": ({"bpcbench_datasets": returns(Versioned)}, "Versioned.version must be an integer"),
    "no default": ({"bpcbench_datasets": returns(Defaultless)}, "Defaultless.needed needs a default"),
    "reserved": ({"bpcbench_methods": returns(Greedy)}, "Greedy.plugin: suites use this word themselves"),
    "reserved for methods": ({"bpcbench_methods": returns(Mixing)}, "Mixing.preprocessing: suites use this word"),
    "taken": ({"bpcbench_datasets": returns(Fine, Again)}, "'digits' is already provided by bpcbench (plugin 'data')"),
    "twice": ({"bpcbench_datasets": returns(Fine, Fine)}, "'fine' is already provided by their-dist (plugin 't"),
    "suites": ({"bpcbench_suites": hookimpl(lambda: {"a": 3})}, "TypeError"),
    "late failure": (
        {
            "bpcbench_datasets": returns(Fine),
            "bpcbench_suites": hookimpl(lambda: [1]),
            "bpcbench_stage_finished": hookimpl(lambda event: None),
        },
        "TypeError",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("attributes", "message"), BROKEN.values(), ids=BROKEN)
def test_a_broken_plugin_is_noted_and_leaves_no_trace(
    fresh: Registry, plugin_module: Module, attributes: dict[str, Any], message: str
) -> None:
    classes, suites, before = dict(fresh.classes), dict(fresh.suites), implementations(fresh)
    error = add(fresh, plugin_module(**attributes))
    assert message in error
    assert "\n" not in error
    (broken,) = fresh.broken()
    assert (broken.name, broken.distribution, broken.version, broken.module) == (
        "theirs", "their-dist", "1.2", "their.module",
    )  # fmt: skip
    assert (fresh.classes, fresh.suites, implementations(fresh)) == (classes, suites, before)
    # The same plugin, repaired, and others are not held back.
    assert add(fresh, plugin_module(Fine)) == ""
    assert fresh.get("dataset", "fine").cls is Fine


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import no_such_framework", "ModuleNotFoundError: No module named 'no_such_framework'"),
        ("raise ValueError('broken')", "ValueError: broken"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("import sys; sys.exit('please install x')", "SystemExit: please install x"),
        ("def (:", "SyntaxError: invalid syntax"),
        ("raise KeyError", "KeyError:"),
    ],
)
def test_whatever_an_import_does_the_rest_stays_usable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, message: str
) -> None:
    (tmp_path / "import_breaks.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv(LOCAL_VARIABLE, " import_breaks , toys,")
    found = load_registry()
    (broken,) = found.broken()
    assert (broken.name, broken.distribution) == ("import_breaks", "local")
    assert broken.error.startswith(message)
    assert found.get("dataset", "dots").cls.__module__ == "toys"
    assert found.get("dataset", "digits").distribution == "bpcbench"


def test_a_suite_runs_beside_broken_plugins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_suite: Callable[..., str]
) -> None:
    from bpcbench.registry.discovery import registry

    monkeypatch.setenv(LOCAL_VARIABLE, "no_such_module,toys")
    registry.cache_clear()
    try:
        suite, out = write_suite(TOYS), tmp_path / "out"
        result = bpcbench.run(suite, ["seeds=1"], out=out, inline=True, track=False, quiet=True)
        assert (result.exit_code, set(result.counts)) == (0, {"done"})
        with pytest.raises(UserError, match=r"(?s)unknown method 'lost'.*note: plugin 'no_such_module' of local did"):
            bpcbench.run(suite, ["methods=[lost]"], out=out, inline=True, track=False)
    finally:
        registry.cache_clear()


def test_ctrl_c_during_an_import_is_not_swallowed(fresh: Registry) -> None:
    def load() -> Any:
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        fresh.add("theirs", "their-dist", "1", "m", load)


class Odd(BaseException):
    """Neither an Exception nor anything that Python itself raises."""


@pytest.mark.parametrize("raised", [KeyboardInterrupt, SystemExit, GeneratorExit, Odd])
def test_whatever_an_import_raises_is_the_plugins_own_error(fresh: Registry, raised: type[BaseException]) -> None:
    def load() -> Any:
        raise raised("at import")

    fresh.add("theirs", "their-dist", "1", "m", load)
    (broken,) = fresh.broken()
    assert raised.__name__ in broken.error


def test_what_an_import_prints_does_not_reach_stdout(fresh: Registry, capsys: pytest.CaptureFixture[str]) -> None:
    def load() -> Any:
        print("hello from a plugin")
        raise ValueError("and goodbye")

    fresh.add("theirs", "their-dist", "1", "m", load)
    out, error = capsys.readouterr()
    assert (out, error) == ("", "hello from a plugin\n")
    assert fresh.plugins[-1].seconds >= 0


def test_what_an_import_prints_below_python_does_not_reach_stdout(
    fresh: Registry, capfd: pytest.CaptureFixture[str]
) -> None:
    def load() -> Any:
        os.write(1, b"from a descriptor\n")
        subprocess.run(["echo", "from a child"], check=True)
        ctypes.CDLL(None).puts(b"from a library in C")
        raise ValueError("and goodbye")

    print("before")
    fresh.add("theirs", "their-dist", "1", "m", load)
    print("after", flush=True)
    ctypes.CDLL(None).fflush(None)
    out, error = capfd.readouterr()
    assert (out, error) == ("before\nafter\n", "from a descriptor\nfrom a child\nfrom a library in C\n")


def test_a_report_imports_no_plugin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, install: Callable[..., Registry], write_suite: Callable[..., str]
) -> None:
    install(toys)
    suite, out = write_suite(TOYS), tmp_path / "out"
    bpcbench.run(suite, ["seeds=1"], out=out, inline=True, track=False, quiet=True)

    def refuse() -> Registry:
        raise AssertionError("plugins are imported")

    monkeypatch.setattr("bpcbench.registry.discovery.registry", refuse)
    assert "pick" in bpcbench.Session(suite, ["seeds=1"], out=out).report(metrics=["right"])


def test_a_name_that_is_not_found_lists_what_is_and_what_did_not_load(fresh: Registry, plugin_module: Module) -> None:
    add(fresh, plugin_module(BPCBENCH_API=9), name="jaxy")
    with pytest.raises(UserError) as caught:
        fresh.get("method", "randon")
    message = str(caught.value)
    assert message.startswith("unknown method 'randon'; did you mean 'random'? (allowed: ")
    assert "note: plugin 'jaxy' of their-dist did not load: it is written for plugin API 9" in message
    assert ", ".join(fresh.names("method")) in message


def test_a_plugin_class_cannot_be_a_dataclass_that_is_not_frozen() -> None:
    with pytest.raises(TypeError, match="frozen"):
        dataclass(type("Thawed", (Dots,), {"name": "thawed"}))


def test_one_name_may_serve_two_kinds(fresh: Registry, plugin_module: Module) -> None:
    @dataclass(frozen=True)
    class Network(Line):
        name = "fine"

    assert add(fresh, plugin_module(Fine, Network)) == ""
    assert fresh.get("dataset", "fine").cls is Fine
    assert fresh.get("network", "fine").cls is Network
    assert fresh.plugins[-1].classes == ("dataset fine", "network fine")


def test_a_module_that_is_loaded_twice_keeps_working(fresh: Registry, plugin_module: Module) -> None:
    told: list[StageEvent] = []
    module = plugin_module(Fine, bpcbench_stage_finished=hookimpl(lambda event: told.append(event)))
    assert add(fresh, module) == ""
    assert "already registered" in add(fresh, module, distribution="local")
    fresh.observe(EVENT, pytest.fail)
    assert told == [EVENT]
    assert fresh.get("dataset", "fine").distribution == "their-dist"


def test_an_observer_that_fails_is_reported_and_the_others_are_told(fresh: Registry, plugin_module: Module) -> None:
    told: list[str] = []
    says: list[str] = []

    def listens(event: StageEvent) -> None:
        told.append(event.label)

    def fails(event: StageEvent) -> None:
        raise ValueError("no disk")

    def counts() -> None:  # pluggy lets an implementation take fewer arguments
        told.append("one more")

    for observer in (listens, fails, counts):
        module = plugin_module(bpcbench_stage_finished=hookimpl(observer))
        assert add(fresh, module, name=observer.__name__) == ""
    fresh.observe(EVENT, says.append)
    assert says == ["observer their-dist:fails failed: ValueError: no disk"]
    assert sorted(told) == ["a label", "one more"]


def test_a_forgotten_decorator_is_an_error(fresh: Registry) -> None:
    module = types.ModuleType("forgetful")
    exec("BPCBENCH_API = 1\ndef bpcbench_method(): return []", vars(module))
    fresh.add("forgetful", "tests", "0", "forgetful", lambda: module)
    (broken,) = fresh.broken()
    assert broken.error == "bpcbench_method is not decorated with @bpcbench.hookimpl"
