"""A package with one plugin that works, to be changed into one's own: its name, its files, and where they go."""

from __future__ import annotations

import importlib.util
import keyword
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from string import Template

from bpcbench.errors import UserError
from bpcbench.hooks import API_VERSION
from bpcbench.registry.discovery import Registry

TEMPLATES = Path(__file__).parent / "templates"
QUICK = {"method": " steps=20", "inference": " steps=20"}
"""Options with which `bpcbench check` takes seconds, by kind."""
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_SUFFIX = ".template"


@dataclass(frozen=True)
class WrittenPackage:
    """What was written: the folder, its files relative to it, and options for a quick check."""

    folder: Path
    files: tuple[str, ...]
    quick: str


def write_package(registry: Registry, kind: str, name: str, output: str | None = None) -> WrittenPackage:
    """Write a package for a plugin of a kind into a new folder; raise UserError, with nothing written, if it cannot be.

    The folder appears complete or not at all, and nothing that exists is overwritten.
    """
    module = f"bpcbench_{name.replace('-', '_')}"
    folder = Path(output) if output is not None else Path(f"bpcbench-{name}")
    _check_name(registry, kind, name, module)
    if folder.exists():
        raise UserError(f"{folder} exists already, and nothing is overwritten: remove it, or choose another --output")
    if not folder.absolute().parent.is_dir():
        raise UserError(f"{folder.absolute().parent} is not a folder")
    words = {
        "name": name,
        "kind": kind,
        "module": module,
        "title": _class_name(name),
        "api": str(API_VERSION),
        "quick": QUICK.get(kind, ""),
        "options": QUICK.get(kind, "").strip(),
    }
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.absolute().parent) as place:
        made = Path(place) / folder.name
        for source in (TEMPLATES / "common", TEMPLATES / kind):
            for file in sorted(source.rglob(f"*{_SUFFIX}")):
                target = made / Template(str(file.relative_to(source)).removesuffix(_SUFFIX)).substitute(words)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(Template(file.read_text(encoding="utf-8")).substitute(words), encoding="utf-8")
        made.chmod(0o755)
        made.rename(folder)
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return WrittenPackage(folder, tuple(files), words["quick"])


def _check_name(registry: Registry, kind: str, name: str, module: str) -> None:
    if not _NAME.fullmatch(name):
        raise UserError(
            f"{name!r} cannot be a plugin's name here: it starts with a letter and has lower-case letters, digits and "
            f"single hyphens, such as {_suggestion(name)!r}"
        )
    taken = registry.classes.get((kind, name))
    if taken is not None:
        raise UserError(f"the {kind} {name!r} is already provided by {taken.distribution}: choose another name")
    for plugin in registry.plugins:
        if plugin.name == name:
            raise UserError(
                f"{plugin.distribution} already has a plugin {name!r}: choose another name. To extend your own "
                "package, add a class to it and name the class in a hook"
            )
    if importlib.util.find_spec(module) is not None:
        raise UserError(f"there is already a module {module} in this environment: choose another name")


def _suggestion(name: str) -> str:
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-").lstrip("0123456789-")
    return plain or "my-plugin"


def _class_name(name: str) -> str:
    camel = "".join(part[0].upper() + part[1:] for part in name.split("-"))
    return f"{camel}Plugin" if keyword.iskeyword(camel) else camel
