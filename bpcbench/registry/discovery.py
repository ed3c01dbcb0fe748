"""Find plugins, load each in isolation, and look their classes up by name."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import importlib.metadata
import inspect
import os
import re
import signal
import threading
import time
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pluggy

from bpcbench import hooks
from bpcbench.api import Dataset, Engine, Evaluator, Inference, Method, Network, Plugin, Preprocessing, Prerequisite
from bpcbench.errors import PluginError, UserError, unknown
from bpcbench.records import Publication, StageEvent
from bpcbench.streams import printed_to_stderr

GROUP = "bpcbench"
KINDS: Mapping[str, type[Plugin]] = {
    "dataset": Dataset,
    "preprocessing": Preprocessing,
    "prerequisite": Prerequisite,
    "method": Method,
    "inference": Inference,
    "network": Network,
    "evaluator": Evaluator,
    "engine": Engine,
}
LOCAL_VARIABLE = "BPCBENCH_PLUGINS"
"""Environment variable with comma-separated modules to load as plugins while they are being written."""


@dataclass(frozen=True)
class LoadedPlugin:
    """One entry point, the outcome of loading it, and how long that took.

    `error` is empty if it loaded; `api` is the version of the API that it is written for.
    """

    name: str
    distribution: str
    version: str
    module: str
    error: str = ""
    classes: tuple[str, ...] = ()
    seconds: float = 0.0
    api: int | None = None


@dataclass(frozen=True)
class Registered:
    """A plugin class and where it comes from."""

    kind: str
    cls: type[Plugin]
    distribution: str
    plugin: str


@dataclass
class Registry:
    """All plugins of this environment: `plugins` by entry point, `classes` by kind and name.

    `registry()` builds it once per process; tests may build their own.
    """

    manager: pluggy.PluginManager
    plugins: list[LoadedPlugin] = field(default_factory=list)
    classes: dict[tuple[str, str], Registered] = field(default_factory=dict)
    suites: dict[str, Path] = field(default_factory=dict)

    def names(self, kind: str) -> list[str]:
        """Return the sorted names of all plugins of a kind."""
        return sorted(name for k, name in self.classes if k == kind)

    def get(self, kind: str, name: str) -> Registered:
        """Return the class of that kind and name; raise UserError, naming plugins that failed to load."""
        try:
            return self.classes[kind, name]
        except KeyError:
            message = unknown(kind, name, self.names(kind))
            for broken in self.broken():
                message += f"\n    note: plugin {broken.name!r} of {broken.distribution} did not load: {broken.error}"
            raise UserError(message) from None

    def broken(self) -> list[LoadedPlugin]:
        """Return the entry points that failed to load."""
        return [plugin for plugin in self.plugins if plugin.error]

    def observe(self, event: StageEvent, report: Callable[[str], None]) -> None:
        """Notify every observer. A failing observer is reported and does not affect the others."""
        for impl in self.manager.hook.bpcbench_stage_finished.get_hookimpls():
            try:
                impl.function(*(event for _ in impl.argnames))
            except (Exception, SystemExit) as error:
                report(f"observer {impl.plugin_name} failed: {type(error).__name__}: {error}")

    def published(self, report: Callable[[str], None]) -> list[Publication]:
        """Return the publications of all plugins. A plugin that fails is reported and skipped."""
        publications: list[Publication] = []
        for impl in self.manager.hook.bpcbench_published.get_hookimpls():
            try:
                returned: Any = impl.function()
                returned = list(returned)
                for publication in returned:
                    if not isinstance(publication, Publication):
                        raise PluginError(f"bpcbench_published returned {publication!r}, which is not a Publication")
            except (Exception, SystemExit) as error:
                report(f"no published numbers of plugin {impl.plugin_name}: {_one_line(error)}")
            else:
                publications += returned
        return publications

    def add(self, name: str, distribution: str, version: str, module: str, load: Callable[[], Any]) -> None:
        """Load one plugin. On failure, record the error and roll back everything it registered."""
        before_classes, before_suites = dict(self.classes), dict(self.suites)
        plugin: Any = None
        known = True
        begin = time.perf_counter()
        try:
            with _contained():
                plugin = load()
                _check_version(plugin)
                _check_marks(plugin)
                known = self.manager.is_registered(plugin)
                self.manager.register(plugin, name=f"{distribution}:{name}")
                self.manager.check_pending()
                classes = tuple(self._register(plugin, name, distribution))
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            if not known and self.manager.is_registered(plugin):
                self.manager.unregister(plugin)
            self.classes, self.suites = before_classes, before_suites
            seconds = time.perf_counter() - begin
            self.plugins.append(LoadedPlugin(name, distribution, version, module, _one_line(error), seconds=seconds))
        else:
            seconds = time.perf_counter() - begin
            api: int = plugin.BPCBENCH_API
            self.plugins.append(LoadedPlugin(name, distribution, version, module, "", classes, seconds, api))

    def _register(self, plugin: Any, name: str, distribution: str) -> Iterator[str]:
        for kind, base in KINDS.items():
            for cls in _call(self.manager, f"bpcbench_{kind}s", plugin):
                _check_class(cls, kind, base)
                taken = self.classes.get((kind, cls.name))
                if taken is not None:
                    raise PluginError(
                        f"{kind} {cls.name!r} is already provided by {taken.distribution} (plugin {taken.plugin!r})"
                    )
                self.classes[kind, cls.name] = Registered(kind, cls, distribution, name)
                yield f"{kind} {cls.name}"
        suites: Mapping[str, Path] = dict(_call(self.manager, "bpcbench_suites", plugin))
        for suite, path in suites.items():
            self.suites[f"{name}:{suite}"] = Path(path)


def kind_of(plugin: Plugin) -> str:
    """Return the kind of an instance: `method`, `network`, ..."""
    return next(kind for kind, base in KINDS.items() if isinstance(plugin, base))


def no_plugins() -> Registry:
    """Return a registry to which nothing was added yet."""
    manager = pluggy.PluginManager("bpcbench")
    manager.add_hookspecs(hooks)
    return Registry(manager)


def load_registry() -> Registry:
    """Load every entry point of group `bpcbench`, then the modules of BPCBENCH_PLUGINS."""
    result = no_plugins()
    for distribution, version, entry in _entry_points(result.plugins):
        result.add(entry.name, distribution, version, entry.value, entry.load)
    for module in filter(None, map(str.strip, os.environ.get(LOCAL_VARIABLE, "").split(","))):
        result.add(module, "local", "", module, functools.partial(importlib.import_module, module))
    return result


@functools.cache
def registry() -> Registry:
    """Return the registry of this process."""
    return load_registry()


@contextlib.contextmanager
def _contained() -> Iterator[None]:
    """Run a plugin's own code: what it prints goes to stderr, and only a real Ctrl-C is a KeyboardInterrupt."""
    pressed: list[int] = []
    before = signal.getsignal(signal.SIGINT)
    watched = threading.current_thread() is threading.main_thread() and callable(before)

    def press(signum: int, frame: types.FrameType | None) -> None:
        pressed.append(signum)
        if callable(before):
            before(signum, frame)

    if watched:
        signal.signal(signal.SIGINT, press)
    try:
        with printed_to_stderr():
            yield
    except KeyboardInterrupt as error:
        if pressed:
            raise
        raise PluginError("it raised KeyboardInterrupt") from error
    finally:
        if watched:
            signal.signal(signal.SIGINT, before)


def _entry_points(unreadable: list[LoadedPlugin]) -> list[tuple[str, str, importlib.metadata.EntryPoint]]:
    entry_points: dict[tuple[str, str], tuple[str, str, importlib.metadata.EntryPoint]] = {}
    for distribution in importlib.metadata.distributions():
        try:
            # Parsing the metadata of every distribution takes longer than loading all plugins, and most do not name us.
            if f"[{GROUP}]" not in (distribution.read_text("entry_points.txt") or ""):
                continue
            entries = [entry for entry in distribution.entry_points if entry.group == GROUP]
            name, version = str(distribution.name), str(distribution.version)
        except Exception as error:
            # The metadata of some distribution is damaged; it may not even be a plugin.
            unreadable.append(
                LoadedPlugin("?", str(getattr(distribution, "_path", "unknown")), "", "", _one_line(error))
            )
            continue
        for entry in entries:
            # An editable install may appear twice on sys.path; imports resolve to the first.
            entry_points.setdefault((name, entry.name), (name, version, entry))
    return [entry_points[key] for key in sorted(entry_points, key=lambda key: (key[0] != "bpcbench", key))]


def _check_version(plugin: Any) -> None:
    wanted = getattr(plugin, "BPCBENCH_API", None)
    if not isinstance(wanted, int):
        raise PluginError(f"it does not say BPCBENCH_API = {hooks.API_VERSION}, the version it was written for")
    if wanted < hooks.OLDEST_API_VERSION:
        raise PluginError(
            f"it is written for plugin API {wanted}, and the oldest that this bpcbench supports is "
            f"{hooks.OLDEST_API_VERSION}: upgrade the plugin"
        )
    if wanted > hooks.API_VERSION:
        raise PluginError(
            f"it is written for plugin API {wanted}, this bpcbench has API {hooks.API_VERSION}: upgrade bpcbench"
        )


def _check_marks(plugin: Any) -> None:
    """Reject functions named like hooks but not decorated: they would silently do nothing."""
    for name, value in list(vars(plugin).items()):
        if not name.startswith("bpcbench_") or not inspect.isfunction(value):
            continue
        marks = getattr(value, "bpcbench_impl", None)
        if marks is None:
            raise PluginError(f"{name} is not decorated with @bpcbench.hookimpl")
        if marks.get("hookwrapper") or marks.get("wrapper"):
            raise PluginError(f"{name} is a hook wrapper; plugins are called one by one, so it would never run")


def _call(manager: pluggy.PluginManager, hook: str, plugin: Any) -> Any:
    caller = getattr(manager.hook, hook)
    for impl in caller.get_hookimpls():
        if impl.plugin is plugin:
            return impl.function()
    return ()


def _check_class(cls: Any, kind: str, base: type[Plugin]) -> None:
    if not (isinstance(cls, type) and issubclass(cls, base)):
        raise PluginError(f"bpcbench_{kind}s returned {cls!r}, which is not a subclass of bpcbench.{base.__name__}")
    if not isinstance(getattr(cls, "name", None), str) or not cls.name or not re.fullmatch(r"[\w.~+-]+", cls.name):
        raise PluginError(f"{cls.__name__}.name must be a word of letters, digits and _ . ~ + -")
    params = cls.__dict__.get("__dataclass_params__")
    if params is None or not params.frozen:
        raise PluginError(f"{cls.__name__} must be decorated with @dataclass(frozen=True)")
    if abstract := getattr(cls, "__abstractmethods__", None):
        raise PluginError(f"{cls.__name__} does not define {', '.join(sorted(abstract))}")
    try:
        typing.get_type_hints(cls)
    except Exception as error:
        raise PluginError(f"the types of {cls.__name__}'s options cannot be resolved: {error}") from None
    if not isinstance(cls.version, int):
        raise PluginError(f"{cls.__name__}.version must be an integer")
    for option in dataclasses.fields(cls):
        if option.name == "plugin" or (kind == "method" and option.name == "preprocessing"):
            raise PluginError(f"{cls.__name__}.{option.name}: suites use this word themselves; rename the option")
        if option.default is dataclasses.MISSING and option.default_factory is dataclasses.MISSING:
            raise PluginError(f"{cls.__name__}.{option.name} needs a default")


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, PluginError) else f"{type(error).__name__}: {text}"
