"""The layers of the core: a module imports only from layers below its own, lazy imports and type checking included."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
_spec = importlib.util.spec_from_file_location("docs_tree", ROOT / "docs" / "tree.py")
assert _spec is not None
assert _spec.loader is not None
tree = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(tree)

BASIS = {"streams", "errors", "forms", "records", "text", "reading"}
ALLOWED = {
    "store": BASIS,
    "figures": {*BASIS, "metrics"},
    "reporting": {*BASIS, "stats", "metrics", "detection", "figures", "store"},
    "tracking": {*BASIS, "stats", "metrics", "detection", "figures", "store", "reporting"},
}
"""Packages that may import less than the layers below them: views know the store and the top level only."""
FOREIGN = {"torch", "torchvision", "jax", "mlflow", "sklearn"}


def files() -> list[Path]:
    return [path for path in tree.CORE.rglob("*.py") if tree.room(path) != "suites"]


def test_every_room_has_a_layer():
    assert {tree.room(path) for path in files()} == {name for layer in tree.LAYERS for name in layer}


def test_imports_point_downwards():
    level = {name: number for number, layer in enumerate(tree.LAYERS) for name in layer}
    wrong = []
    for path in files():
        mine = tree.room(path)
        for other in tree.imported_rooms(path):
            below = level[other] < level[mine] and other in ALLOWED.get(mine, {other})
            # Records name the types of plugins and figures for type checkers only.
            typed = mine == "records" and other in ("api", "figures")
            if other != mine and not below and not typed:
                wrong.append(f"{path.relative_to(ROOT)} imports bpcbench.{other}")
    assert wrong == []


def test_records_import_nothing_at_run_time():
    body = ast.parse((tree.CORE / "records.py").read_text()).body
    modules = [node.module or "" for node in body if isinstance(node, ast.ImportFrom)]
    assert not [module for module in modules if module.startswith("bpcbench")]


def test_the_core_imports_no_framework_at_start_up():
    for path in files():
        body = ast.parse(path.read_text()).body
        names = [alias.name for node in body if isinstance(node, ast.Import) for alias in node.names]
        names += [node.module or "" for node in body if isinstance(node, ast.ImportFrom)]
        assert not {name.partition(".")[0] for name in names} & FOREIGN, path


def test_the_core_knows_no_plugin():
    plugins = {path.name for path in (ROOT / "plugins").iterdir()}
    for path in files():
        assert not set(re.findall(r"^\s*(?:from|import) (bpcbench_\w+)", path.read_text(), re.M)) & plugins, path


def test_the_page_of_the_tree_is_as_generated():
    assert tree.PAGE.read_text() == tree.page(), "the source has changed: run `python docs/tree.py`"
