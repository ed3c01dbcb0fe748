"""The layers of the core: a module imports only from layers below its own, lazy imports and type checking included."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2] / "bpcbench"

LAYERS: list[set[str]] = [
    {"errors", "records", "text", "reading"},
    {"stats", "detection", "sampling", "figures"},
    {"metrics"},
    {"api"},
    {"hooks"},
    {"registry", "store"},
    {"data", "suite"},
    {"planning"},
    {"coresets", "reporting", "tracking"},
    {"running"},
    {"session", "testing"},
    {"commands", "cli", "__main__", "__init__"},
]
ALLOWED = {
    "store": {"errors", "records", "text", "reading"},
    "reporting": {"errors", "records", "text", "reading", "stats", "metrics", "detection", "figures", "store"},
    "tracking": {"errors", "records", "text", "reading", "stats", "metrics", "detection", "figures", "store"},
    "figures": {"errors", "records", "text", "metrics"},
}
"""Packages that may import less than the layers below them."""


def room(path: Path) -> str:
    """Return the top-level module or package that a file belongs to."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[str]:
    """Yield the rooms that a file imports from."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "bpcbench":
            parts = node.module.split(".")
            names = [parts[1]] if len(parts) > 1 else [alias.name for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name.split(".")[1] for alias in node.names if alias.name.startswith("bpcbench.")]
        for name in names:
            if (ROOT / name).is_dir() or (ROOT / f"{name}.py").is_file():
                yield name


def test_every_room_has_a_layer():
    rooms = {room(path) for path in ROOT.rglob("*.py")} - {"suites"}
    assert rooms == set().union(*LAYERS)


def test_imports_point_downwards():
    level = {name: number for number, layer in enumerate(LAYERS) for name in layer}
    wrong = []
    for path in ROOT.rglob("*.py"):
        mine = room(path)
        for other in imports(path):
            below = level[other] < level[mine] and other in ALLOWED.get(mine, {other})
            # `records` and `api` describe each other's types; nothing is imported at run time.
            typed = (mine, other) == ("records", "api")
            if other != mine and not below and not typed:
                wrong.append(f"{path.relative_to(ROOT.parent)} imports bpcbench.{other}")
    assert wrong == []


def test_the_core_imports_no_framework_and_no_plugin():
    foreign = {"torch", "torchvision", "jax", "bpcbench_torch", "bpcbench_data", "bpcbench_vbpc", "bpcbench_bpc"}
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {name.partition(".")[0] for name in names} & foreign, path
