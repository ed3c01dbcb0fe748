"""Suite files: located by name, read with everything they extend, and validated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bpcbench.errors import Mistake, Mistakes, UserError, unknown
from bpcbench.registry.discovery import Registry
from bpcbench.suite import document
from bpcbench.suite.document import Document
from bpcbench.suite.model import Suite


def shipped() -> dict[str, Path]:
    """Return the suites that come with bpcbench, by name: in the wheel, or in the checkout of an editable install."""
    package = Path(__file__).parent.parent
    for folder in (package / "suites", package.parent / "suites"):
        if folder.is_dir():
            return {str(p.relative_to(folder).with_suffix("")): p for p in sorted(folder.rglob("*.yaml"))}
    return {}


def locate(registry: Registry, name: str, beside: Path | None = None) -> Path:
    """Return the file of a suite: a path (relative to `beside`), a plugin's `plugin:name`, or a shipped name."""
    if name in registry.suites:
        return registry.suites[name]
    ours = shipped()
    if name in ours:
        return ours[name]
    if name.endswith((".yaml", ".yml")) or "/" in name:
        path = Path(name) if beside is None or Path(name).is_absolute() else beside / name
        if not path.exists() and name.startswith("suites/") and name[7:].removesuffix(".yaml") in ours:
            return ours[name[7:].removesuffix(".yaml")]
        return path
    raise UserError(unknown("suite", name, [*ours, *registry.suites]) + "; a path must contain / or end in .yaml")


def read(registry: Registry, suite: str | Mapping[str, Any], overrides: Sequence[str] = ()) -> tuple[Document, Path]:
    """Return a suite's document, not validated, with everything it extends and the overrides, and its file.

    A mapping is a suite that has no file: it extends what it names from the current folder.
    """
    if isinstance(suite, Mapping):
        path = Path("suite")
        whole = _above(registry, document.given(suite), path, ())
    else:
        path = locate(registry, suite)
        whole = _extended(registry, path, ())
    return document.override(whole, list(overrides)), path


def _extended(registry: Registry, path: Path, seen: tuple[Path, ...]) -> Document:
    if path.resolve() in seen:
        raise UserError(f"{path}: extends itself, via {' -> '.join(str(p) for p in seen)}")
    return _above(registry, document.read(path), path, seen)


def _above(registry: Registry, own: Document, path: Path, seen: tuple[Path, ...]) -> Document:
    result = Document({})
    for parent in _parents(registry, own, path):
        result = _merged(result, _extended(registry, parent, (*seen, path.resolve())))
    result.values.pop("name", None)
    return _merged(result, own)


def _merged(below: Document, above: Document) -> Document:
    """Merge suites; `cases` are appended, so that presets for several methods combine."""
    first, second = (doc.values.get("cases") for doc in (below, above))
    if not (isinstance(first, list) and isinstance(second, list)):
        return document.merge(below, above)
    shifted = {
        ("cases", str(int(path[1]) + len(first)), *path[2:]) if path[0] == "cases" and len(path) > 1 else path: place
        for path, place in above.places.items()
    }
    cases = {**above.values, "cases": [*first, *second]}
    return document.merge(below, Document(cases, {**below.places, **shifted}, above.left_out, above.notes))


def _parents(registry: Registry, own: Document, path: Path) -> list[Path]:
    names = own.values.get("extends") or []
    names = [names] if isinstance(names, str) else names
    place = own.place(("extends",))
    line = place.line if place else None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        message = f"expected a suite's name or a list of them, got {names!r}"
        raise Mistakes(str(path), [Mistake("extends", message, line, str(path))])
    parents, mistakes = [], []
    for name in names:
        try:
            parents.append(locate(registry, name, path.parent))
            if not parents[-1].exists():
                mistakes.append(Mistake("extends", f"{parents[-1]}: no such file", line, str(path)))
        except UserError as error:
            mistakes.append(Mistake("extends", str(error), line, str(path)))
    if mistakes:
        raise Mistakes(str(path), mistakes)
    return parents


def load(registry: Registry, name: str, overrides: Sequence[str] = ()) -> Suite:
    """Read and validate a suite; raise Mistakes with everything that is wrong with it."""
    from bpcbench.suite.validation import validate

    doc, path = read(registry, name, overrides)
    return validate(registry, doc, path)
