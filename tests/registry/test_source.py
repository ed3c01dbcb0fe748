"""The hash of the code behind a result: it sees every edit that could change a number, and no other."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pluggy
import pytest

from bpcbench.api import Plugin
from bpcbench.registry import source
from bpcbench.registry.discovery import LoadedPlugin, Registry

METHOD = '''
"""A plugin."""
from dataclasses import dataclass
from typing import TYPE_CHECKING

import {library}.maths
from bpcbench.api import Method
from bpcbench.metrics import nll
from {library}.base import Base
from . import beside

if TYPE_CHECKING:
    from .types_only import Thing

@dataclass(frozen=True)
class Mine(Base):
    name = "mine"

    def distil(self, data, ipc, inputs, ctx):
        from {library} import lazy
        return lazy.f({library}.maths.f(nll))
'''

FILES = {
    "{plugin}/__init__.py": "",
    "{plugin}/method.py": METHOD,
    "{plugin}/beside.py": "from .deeper.leaf import f\n",
    "{plugin}/deeper/__init__.py": "A = 1\n",
    "{plugin}/deeper/leaf.py": "import numpy\n\ndef f(): return numpy.zeros(1)\n",
    "{plugin}/unrelated.py": "A = 1\n",
    "{plugin}/types_only.py": "class Thing: pass\n",
    "{plugin}/network.py": """
from dataclasses import dataclass
from bpcbench.api import Network

@dataclass(frozen=True)
class Net(Network):
    name = "net"
    preload = ("{plugin}.unrelated",)

    def build(self, shape, classes, seed):
        return 1
""",
    "{library}/__init__.py": "",
    "{library}/base.py": """
from dataclasses import dataclass
from bpcbench.api import Method

@dataclass(frozen=True)
class Base(Method):
    def prerequisites(self, facts, ipc):
        return {}
""",
    "{library}/maths.py": "def f(x): return x\n",
    "{library}/lazy.py": """
import importlib

def f(x):
    # a remark
    \"\"\"What it does.\"\"\"
    importlib.import_module("{library}.dynamic")
    return importlib.import_module(".nearby", __package__).f(x + 1)
""",
    "{library}/dynamic.py": "A = 1\n",
    "{library}/nearby.py": "A = 1\n",
    "{library}/other.py": "A = 1\n",
}


class Tree:
    """Two packages of files, `plugin` and `library`, that the import system finds."""

    def __init__(self, root: Path, number: int) -> None:
        self.root = root
        self.names = {"plugin": f"source_plugin_{number}", "library": f"source_library_{number}"}
        for path, text in FILES.items():
            self.write(path, text)

    def fill(self, text: str) -> str:
        for word, name in self.names.items():
            text = text.replace(f"{{{word}}}", name)
        return text

    def path(self, path: str) -> Path:
        return self.root / self.fill(path)

    def write(self, path: str, text: str) -> None:
        file = self.path(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(self.fill(text))

    def edit(self, path: str, old: str, new: str) -> None:
        text = self.path(path).read_text()
        assert self.fill(old) in text
        self.write(path, text.replace(self.fill(old), new))
        os.utime(self.path(path), ns=(1, self.path(path).stat().st_mtime_ns + 1))

    def load(self, module: str, name: str) -> type[Plugin]:
        cls: type[Plugin] = getattr(importlib.import_module(self.fill(module)), name)
        return cls

    def registry(self, *modules: str, distribution: str = "local") -> Registry:
        found = [
            LoadedPlugin(module, distribution, "1", self.fill(module)) for module in modules or ("{plugin}.plugin:x",)
        ]
        return Registry(pluggy.PluginManager("bpcbench"), found)


_numbers = iter(range(1000))


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tree]:
    monkeypatch.syspath_prepend(str(tmp_path))
    source.clear()
    made = Tree(tmp_path, next(_numbers))
    yield made
    for name in [name for name in sys.modules if name.partition(".")[0] in made.names.values()]:
        del sys.modules[name]
    source.clear()


@pytest.fixture
def mine(tree: Tree) -> type[Plugin]:
    return tree.load("{plugin}.method", "Mine")


def changed_by(tree: Tree, classes: list[type[Plugin]], path: str, old: str, new: str) -> bool:
    before = source.code_hash(tree.registry(), classes)
    tree.edit(path, old, new)
    source.clear()
    return source.code_hash(tree.registry(), classes) != before


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        ("{plugin}/method.py", "ipc, inputs", "ipc, given"),
        ("{plugin}/__init__.py", "", "A = 1"),
        ("{plugin}/beside.py", "f\n", "f as g\n"),
        ("{plugin}/deeper/__init__.py", "1", "2"),
        ("{plugin}/deeper/leaf.py", "zeros(1)", "zeros(2)"),
        ("{library}/__init__.py", "", "A = 1"),
        ("{library}/maths.py", "return x", "return -x"),
        ("{library}/base.py", "{}", "None"),
        ("{library}/lazy.py", "x + 1", "x - 1"),
        ("{library}/dynamic.py", "1", "2"),
        ("{library}/nearby.py", "1", "'1'"),
    ],
)
def test_an_edit_of_what_the_plugin_imports_is_seen(tree: Tree, mine: type[Plugin], path: str, old: str, new: str):
    assert changed_by(tree, [mine], path, old, new)


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        ("{plugin}/unrelated.py", "1", "2"),
        ("{plugin}/types_only.py", "pass", "a = 1"),
        ("{plugin}/network.py", "return 1", "return 2"),
        ("{library}/other.py", "1", "2"),
        ("{plugin}/method.py", "from .types_only import Thing", "from .types_only import Thing as T"),
        ("{plugin}/method.py", '"""A plugin."""', '"""Another text."""'),
        ("{library}/lazy.py", "# a remark", "# another"),
        ("{library}/lazy.py", '"""What it does."""', '"""What it really does."""'),
        ("{library}/lazy.py", "x + 1", "(\n        x +  1)"),
        ("{library}/dynamic.py", "A = 1", 'A = 1\n"""What A means."""'),
    ],
)
def test_other_edits_are_not(tree: Tree, mine: type[Plugin], path: str, old: str, new: str):
    assert not changed_by(tree, [mine], path, old, new)


def test_a_network_that_takes_part_is_seen_and_what_it_preloads_is_not_code(tree: Tree, mine: type[Plugin]):
    net = tree.load("{plugin}.network", "Net")
    assert source.code_hash(tree.registry(), [mine, net]) == source.code_hash(tree.registry(), [net, mine])
    assert not changed_by(tree, [mine, net], "{plugin}/unrelated.py", "1", "2")
    assert changed_by(tree, [mine, net], "{plugin}/network.py", "return 1", "return 2")


def test_modules_say_where_the_code_differs(tree: Tree, mine: type[Plugin]):
    before = source.code_modules(tree.registry(), [mine])
    assert set(before) == {
        *map(tree.fill, ("{plugin}", "{plugin}.method", "{plugin}.beside", "{plugin}.deeper", "{plugin}.deeper.leaf")),
        *map(tree.fill, ("{library}", "{library}.base", "{library}.maths", "{library}.lazy", "{library}.dynamic")),
        tree.fill("{library}.nearby"),
        *("bpcbench.metrics", "bpcbench.detection"),
        *("bpcbench.running.seeding", "bpcbench.data.splits", "bpcbench.sampling"),
    }
    tree.edit("{library}/maths.py", "return x", "return -x")
    source.clear()
    after = source.code_modules(tree.registry(), [mine])
    assert {name for name in after if after[name] != before[name]} == {tree.fill("{library}.maths")}


def test_a_process_keeps_its_answer(tree: Tree, mine: type[Plugin]):
    before = source.code_hash(tree.registry(), [mine])
    tree.edit("{library}/maths.py", "return x", "return -x")
    assert source.code_hash(tree.registry(), [mine]) == before


def test_an_edited_file_is_read_again_for_another_set(tree: Tree, mine: type[Plugin]):
    before = source.code_modules(tree.registry(), [mine])
    tree.edit("{library}/maths.py", "return x", "return -x")
    net = tree.load("{plugin}.network", "Net")
    maths = tree.fill("{library}.maths")
    assert source.code_modules(tree.registry(), [mine, net])[maths] != before[maths]


def test_files_that_do_not_parse_count_by_their_bytes(tree: Tree, mine: type[Plugin]):
    tree.write("{library}/dynamic.py", "def f(:\n")
    assert changed_by(tree, [mine], "{library}/dynamic.py", "(:", "(: # more")


def test_a_file_that_vanishes_is_a_change_and_no_error(tree: Tree, mine: type[Plugin]):
    before = source.code_hash(tree.registry(), [mine])
    tree.path("{plugin}/beside.py").unlink()
    assert source.code_hash(tree.registry("{plugin}.more"), [mine]) != before


def test_sources_are_only_read(tree: Tree, mine: type[Plugin]):
    tree.write("{library}/dynamic.py", "raise RuntimeError('imported')\n")
    assert tree.fill("{library}.dynamic") in source.code_modules(tree.registry(), [mine])
    assert tree.fill("{library}.dynamic") not in sys.modules


def test_installed_libraries_count_if_a_distribution_of_plugins_brings_them(tree: Tree, mine: type[Plugin]):
    """In a folder like site-packages, what lies beside a plugin belongs to anybody."""
    tree.write("{library}/lazy.py", "import someones\nimport ours\n")
    tree.write("someones.py", "A = 1\n")
    tree.write("ours.py", "A = 1\n")
    tree.write("theirs-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    tree.write("theirs-1.0.dist-info/RECORD", "{plugin}/method.py,,\n{library}/lazy.py,,\nours.py,,\n")
    covered = source.code_modules(tree.registry(distribution="theirs"), [mine])
    assert {"ours", tree.fill("{library}.lazy")} <= set(covered)
    assert "someones" not in covered
    # Another distribution's library is not followed, but for the module of a base class.
    covered = source.code_modules(tree.registry(), [mine])
    assert "ours" not in covered
    assert tree.fill("{library}.base") in covered


def test_the_core_counts_where_it_computes(tree: Tree):
    tree.write(
        "{plugin}/user.py",
        """
from dataclasses import dataclass
import bpcbench
from bpcbench import per_class
from bpcbench.api import Network
from bpcbench.records import Facts

@dataclass(frozen=True)
class User(Network):
    name = "user"

    def build(self, shape, classes, seed):
        return bpcbench.stats
""",
    )
    covered = set(source.code_modules(tree.registry(), [tree.load("{plugin}.user", "User")]))
    assert covered == {tree.fill("{plugin}"), tree.fill("{plugin}.user"), "bpcbench.sampling", "bpcbench.stats"}


def test_no_finder_is_asked_for_modules_of_others(tree: Tree, mine: type[Plugin], monkeypatch: pytest.MonkeyPatch):
    """Torch is seeded by a finder that acts when it is asked for torch."""
    asked: list[str] = []

    class Finder:
        def find_spec(self, name: str, *_: Any) -> None:
            asked.append(name)

    monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])
    tree.write("{library}/maths.py", "import torch\nfrom torch import nn\nimport absent\n")
    tree.write("{library}/lazy.py", "import {plugin}.unrelated\n")
    source.code_hash(tree.registry(), [mine])
    assert not {"torch", "absent", "numpy"} & set(asked)


def test_first_party_plugins(registry: Registry):
    def covered(kind: str, name: str) -> set[str]:
        return set(source.code_modules(registry, [registry.get(kind, name).cls]))

    vbpc = covered("method", "vbpc")
    assert {"bpcbench_vbpc.posterior", "bpcbench_torch.distillation", "bpcbench_torch.pool_method"} <= vbpc
    assert not {"bpcbench.metrics", "bpcbench_data.svhn", "bpcbench.api", "bpcbench_vbpc.plugin"} & vbpc
    assert {"bpcbench.metrics", "bpcbench.detection"} <= covered("evaluator", "classification")
    assert covered("dataset", "svhn") & {"bpcbench_data.cifar", "bpcbench_data.svhn"} == {"bpcbench_data.svhn"}
    for kind, name in registry.classes:
        tops = {module.partition(".")[0] for module in covered(kind, name)}
        assert all(top.startswith("bpcbench") for top in tops), (kind, name, tops)


def test_the_modules_of_the_core_exist():
    named = {*source._IMPORTED_CORE, *(name for names in source._STAGE_CORE.values() for name in names)}
    for name in named:
        module = source._find(name)
        assert module is not None, name
        assert module.file is not None, name
