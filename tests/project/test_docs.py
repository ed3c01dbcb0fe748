"""What the documentation shows is what the program does."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from bpcbench.hooks import hookspec
from bpcbench.registry.discovery import registry
from bpcbench.suite.document import parse
from bpcbench.suite.validation import validate

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.S)


def test_the_readme_compares_what_there_is():
    page = (ROOT / "README.md").read_text()
    kinds = {"methods": "method", "baselines": "method", "inferences": "inference", "networks": "network"}
    kinds["data sets"] = "dataset"
    for row, kind in kinds.items():
        (listed,) = re.findall(rf"^\| {row} \| (.*) \|$", page, re.M)
        named = re.findall(r"`([\w-]+)`", listed)
        assert named
        assert set(named) <= set(registry().names(kind)), row


def test_the_python_examples_run(tmp_path):
    (code,) = blocks(ROOT / "README.md", "python")
    code += "".join(blocks(ROOT / "docs" / "python.md", "python"))
    environment = {**os.environ, "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"kmeans +acc +0\.\d", done.stdout)
    assert "Difference to random, paired" in done.stdout


def test_the_suite_of_the_documentation_is_valid():
    text = "\n".join(blocks(ROOT / "docs" / "suites.md", "yaml"))
    suite = validate(registry(), parse(text.replace("extends: quickstart", ""), "docs/suites.md"))
    assert suite.timeout == 7200
    assert "herding" not in suite.settings["digits", 1].methods


def test_the_engines_of_the_documentation_are_valid():
    head = {"protocol": 1, "datasets": ["digits"], "ipc": [1], "methods": ["random"]}
    found = [block for block in blocks(ROOT / "docs" / "clusters.md", "yaml") if block.startswith("engine:")]
    assert len(found) == 4
    for block in found:
        text = "\n".join(f"{key}: {value}" for key, value in head.items()).replace("'", "")
        engine = validate(registry(), parse(f"{text}\n{block}", "docs/clusters.md")).engine
        assert engine.name in block


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} -> {target}"


def test_every_hook_is_documented():
    from bpcbench import hooks

    page = (ROOT / "docs" / "plugins.md").read_text()
    names = [name for name in vars(hooks) if name.startswith("bpcbench_")]
    assert len(names) == 11
    assert hookspec.project_name == "bpcbench"
    for name in names:
        assert f"`{name}`" in page
