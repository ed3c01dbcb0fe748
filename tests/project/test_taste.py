"""House rules that a linter does not know."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = sorted([*(ROOT / "bpcbench").rglob("*.py"), *(ROOT / "plugins").rglob("*.py")])
EVERYTHING = [*SOURCES, *sorted((ROOT / "tests").rglob("*.py"))]


def test_files_are_named_for_what_they_hold():
    vague = re.compile(r"^(utils?|helpers?|common|misc|base|core)$")
    assert [path for path in EVERYTHING if any(vague.match(part) for part in (path.stem, path.parent.name))] == []


def test_source_files_stay_readable():
    long = {path.name: len(path.read_text().splitlines()) for path in SOURCES}
    assert sorted(long.values())[len(long) // 2] < 160


def test_nothing_is_pickled_and_no_device_is_assumed():
    unsafe = r"\bpickle\.loads?\(|torch\.load\((?!.*weights_only=True)|yaml\.load\(|np\.load\((?!.*allow_pickle=False)"
    wrong = re.compile(unsafe + r"|\.cuda\(|\beval\(\w|\bexec\(")
    found = [f"{path.name}: {line}" for path in SOURCES for line in path.read_text().splitlines() if wrong.search(line)]
    assert [line for line in found if ".eval(" not in line] == []


def test_first_party_plugins_use_only_what_third_parties_can_import():
    allowed = {"api", "records", "metrics", "figures", "sampling", "errors"}
    for path in (ROOT / "plugins").rglob("*.py"):
        for module in re.findall(r"^ *from bpcbench\.(\w+)", path.read_text(), re.M):
            assert module in allowed, f"{path.name} imports bpcbench.{module}"


def test_servers_bind_to_this_machine_only():
    text = "\n".join(path.read_text() for path in SOURCES)
    assert "0.0.0.0" not in text
    assert '"127.0.0.1"' in text
