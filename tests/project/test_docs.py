"""What the documentation shows is what the program does."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from bpcbench.cli import parser
from bpcbench.hooks import hookspec
from bpcbench.registry.discovery import registry
from bpcbench.suite.document import parse
from bpcbench.suite.validation import validate

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.S)


def commands() -> list[str]:
    lines = [line for page in PAGES for block in blocks(page, "sh") for line in block.splitlines()]
    found = [part.strip() for line in lines for part in line.partition("  #")[0].split("&&")]
    return [part for part in found if part.startswith("bpcbench ")]


@pytest.mark.parametrize("command", sorted(set(commands())))
def test_commands_of_the_documentation_parse(command):
    words = shlex.split(command)[1:]
    arguments = parser().parse_args(words)
    assert arguments.command == words[0]
    suite = getattr(arguments, "suite", None)
    if suite and suite.startswith("suites/"):
        assert (ROOT / suite).is_file()


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
