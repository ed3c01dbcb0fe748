"""Hashes of the source code behind a plugin."""

from __future__ import annotations

import functools
import hashlib
import sys
from collections.abc import Iterable
from pathlib import Path

from bpcbench.api import Plugin
from bpcbench.registry.discovery import Registry


@functools.cache
def _package_hash(package: str) -> str:
    module = sys.modules.get(package)
    file = getattr(module, "__file__", None)
    if file is None:
        return ""
    path = Path(file)
    files = sorted(path.parent.rglob("*.py")) if path.name == "__init__.py" else [path]
    result = hashlib.sha256()
    for source in files:
        result.update(source.relative_to(path.parent).as_posix().encode())
        result.update(source.read_bytes())
    return result.hexdigest()[:16]


def source_hash(registry: Registry, kind: str, name: str) -> str:
    """Return a hash of the source of the package that a plugin lives in."""
    return _package_hash(registry.get(kind, name).cls.__module__.partition(".")[0])


def code_hash(registry: Registry, classes: Iterable[type[Plugin]]) -> str:
    """Return a hash of the source behind plugin classes."""
    packages = sorted({cls.__module__.partition(".")[0] for cls in classes})
    return hashlib.sha256("".join(map(_package_hash, packages)).encode()).hexdigest()[:16]
