"""Hashes of the code behind a result, so that a plan can tell when cached results were computed by other code.

A hash covers the modules that define the plugin classes and every module these import, transitively: at the top of a
file or inside a function, also by `importlib.import_module("literal")`, but not below `if TYPE_CHECKING`. Files are
parsed, never imported. Modules of other libraries, such as numpy, are not covered; their versions are part of a
result's provenance.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from bpcbench.api import Evaluator, Inference, Method, Plugin, Preprocessing, Prerequisite
from bpcbench.registry.discovery import Registry
from bpcbench.registry.syntax import Source, digest, parse

_CORE = "bpcbench"

_IMPORTED_CORE = frozenset({"bpcbench.metrics", "bpcbench.detection", "bpcbench.sampling", "bpcbench.stats"})
"""The core modules that compute numbers for plugins; they are covered if a plugin's code imports them.

The rest of the core is contracts and bookkeeping, which change often without changing a number. The bodies of stages
have a version in the key.
"""

_TRAINING = ("bpcbench.running.seeding", "bpcbench.data.splits", "bpcbench.sampling")
_STAGE_CORE: Mapping[type[Plugin], tuple[str, ...]] = {
    Preprocessing: _TRAINING,
    Prerequisite: _TRAINING,
    Method: _TRAINING,
    Inference: (*_TRAINING, "bpcbench.data.conversion", "bpcbench.running.predictions"),
    Evaluator: ("bpcbench.running.seeding",),
}
"""The core modules that compute numbers for a stage whatever its plugin imports.

Their own imports are not covered: a metric added to `bpcbench.metrics` must not mark every prediction.
"""


@dataclass(frozen=True)
class _Module:
    """The location of a module. `file` is None for a namespace package; `folders` is empty unless it is a package."""

    file: Path | None
    folders: tuple[Path, ...] = ()


@functools.cache
def _lies_in(folders: frozenset[Path], top: str) -> bool:
    # Not find_spec: the finder that seeds torch on import would mistake the search for the import.
    return any((folder / top / "__init__.py").is_file() or (folder / f"{top}.py").is_file() for folder in folders)


@dataclass(frozen=True)
class _Scope:
    """Whose code is covered: some packages, and whatever lies beside them in a source folder."""

    packages: frozenset[str]
    folders: frozenset[Path]

    def __contains__(self, module: str) -> bool:
        top = module.partition(".")[0]
        if top == _CORE:
            return module in _IMPORTED_CORE
        return top in self.packages or _lies_in(self.folders, top)


_Entries = frozenset[tuple[str, str]]
_hashes: dict[tuple[_Entries, frozenset[type[Plugin]]], tuple[str, Mapping[str, str]]] = {}
_files: dict[Path, tuple[tuple[int, int], Source]] = {}


def code_hash(registry: Registry, classes: Iterable[type[Plugin]]) -> str:
    """Return a hash of all code that plugins of these classes may run; comments, docstrings and layout are ignored.

    Computed once per process and set of classes: the process runs the code it has loaded, not later edits.
    """
    return _hashed(registry, classes)[0]


def code_modules(registry: Registry, classes: Iterable[type[Plugin]]) -> Mapping[str, str]:
    """Return the hash of each module that `code_hash` covers, by name."""
    return _hashed(registry, classes)[1]


def clear() -> None:
    """Clear all caches."""
    _hashes.clear()
    _files.clear()
    _find.cache_clear()
    _lies_in.cache_clear()
    _scope.cache_clear()


def _hashed(registry: Registry, classes: Iterable[type[Plugin]]) -> tuple[str, Mapping[str, str]]:
    chosen = frozenset(classes)
    entries = frozenset((entry.distribution, entry.module) for entry in registry.plugins)
    known = _hashes.get((entries, chosen))
    if known is None:
        modules = _modules(entries, chosen)
        text = "\n".join(f"{name} {content}" for name, content in modules.items())
        known = _hashes[entries, chosen] = (digest(text.encode()), MappingProxyType(modules))
    return known


def _modules(entries: _Entries, classes: frozenset[type[Plugin]]) -> dict[str, str]:
    # A base class may come from a library that registers no plugin.
    bases = {base.__module__ for cls in classes for base in cls.__mro__ if issubclass(base, Plugin)}
    waiting = list(bases)
    scope = _scope(entries, frozenset(name.partition(".")[0] for name in bases))
    hashes: dict[str, str] = {}
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        if not name or name in seen or name not in scope:
            continue
        seen.add(name)
        waiting.append(name.rpartition(".")[0])
        module = _find(name)
        if module is not None and module.file is not None:
            source = _read(module.file)
            hashes[name] = source.digest
            waiting += _imported(source, name, bool(module.folders))
    for kind, core in _STAGE_CORE.items():
        if any(issubclass(cls, kind) for cls in classes):
            hashes.update((name, _read(module.file).digest) for name in core if (module := _find(name)) and module.file)
    return dict(sorted(hashes.items()))


@functools.cache
def _scope(entries: _Entries, packages: frozenset[str]) -> _Scope:
    """Return the scope of these packages, those that entry points name, and the others of the same distributions."""
    tops = {*packages, *(module.partition(":")[0].partition(".")[0] for _, module in entries)} - {"", _CORE}
    folders = {_folder(top) for top in tops}
    sources = frozenset(folder for folder in folders if folder is not None and not _installed(folder))
    for name in {distribution for distribution, _ in entries}:
        try:
            files = importlib.metadata.distribution(name).files or ()
        except Exception:  # noqa: S112
            continue  # plugins named by an environment variable have no distribution
        tops.update(file.parts[0].removesuffix(".py") for file in files if file.suffix == ".py")
    return _Scope(frozenset(tops - {_CORE}), sources)


def _installed(folder: Path) -> bool:
    """Return whether a folder is one like site-packages, shared by unrelated modules, rather than a source folder."""
    return folder.name in ("site-packages", "dist-packages") or any(folder.glob("*.dist-info"))


def _folder(top: str) -> Path | None:
    module = _find(top) if top else None
    if module is None:
        return None
    if module.folders:
        return module.folders[0].parent
    return module.file.parent if module.file is not None else None


@functools.cache
def _find(name: str) -> _Module | None:
    """Locate a module without importing it or its package; return None if there is none with source."""
    parent, _, tail = name.rpartition(".")
    module = _below(_find(parent), tail) if parent else _top_level(name)
    if module is None and (file := getattr(sys.modules.get(name), "__file__", None)):
        module = _Module(Path(file))
    return None if module is not None and module.file is not None and module.file.suffix != ".py" else module


def _top_level(name: str) -> _Module | None:
    try:
        spec = importlib.util.find_spec(name)
    except Exception:
        return None  # other packages may have installed finders of their own
    if spec is None:
        return None
    folders = tuple(map(Path, spec.submodule_search_locations or ()))
    return _Module(Path(spec.origin) if spec.origin and spec.has_location else None, folders)


def _below(package: _Module | None, name: str) -> _Module | None:
    folders = [folder / name for folder in package.folders] if package is not None else []
    for folder in folders:
        if (file := folder / "__init__.py").is_file():
            return _Module(file, (folder,))
        if (file := folder.with_name(f"{name}.py")).is_file():
            return _Module(file)
    namespace = tuple(folder for folder in folders if folder.is_dir())
    return _Module(None, namespace) if namespace else None


def _imported(source: Source, name: str, is_package: bool) -> Iterator[str]:
    """Yield the modules that a module may import; names of attributes are among them and resolve to no module."""
    package = name if is_package else name.rpartition(".")[0]
    for item in source.imports:
        base = item.module
        if item.level:
            parents = package.split(".")
            kept = parents[: len(parents) - item.level + 1]
            base = ".".join([*kept, *filter(None, [item.module])])
        yield base
        yield from (f"{base}.{imported}" for imported in item.names)
        if base == _CORE:
            yield from _reexported(item.names)


def _reexported(names: frozenset[str]) -> Iterator[str]:
    """Yield the modules from which the core's top level re-exports these names."""
    core = _find(_CORE)
    if core is not None and core.file is not None:
        yield from (item.module for item in _read(core.file).imports if item.names & names)


def _read(path: Path) -> Source:
    try:
        state = path.stat()
        stamp = (state.st_mtime_ns, state.st_size)
        known = _files.get(path)
        if known is None or known[0] != stamp:
            known = _files[path] = (stamp, parse(path.read_bytes()))
    except OSError:
        return Source("unreadable")  # a file moved meanwhile must not cost a result
    return known[1]
