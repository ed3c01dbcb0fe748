"""What the documentation shows is what the program does."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from bpcbench.cli import main, parser
from bpcbench.hooks import hookspec
from bpcbench.registry.discovery import registry
from bpcbench.suite.document import parse
from bpcbench.suite.files import load, shipped
from bpcbench.suite.validation import metric_names, validate

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


READS = ("list", "show", "schema")
"""Commands that need neither a store nor data: they are run."""


def _words(command: str) -> list[str]:
    return shlex.split(command)[1:]


@pytest.mark.parametrize("command", sorted({c for c in commands() if _words(c)[0] in READS}))
def test_commands_of_the_documentation_that_only_read_run(command, capsys):
    assert main(_words(command)) == 0
    assert capsys.readouterr().out


def _of_suites() -> set[tuple[str, ...]]:
    """The suites with overrides that documented commands name, where the suite is one of ours."""
    parsed = [parser().parse_args(_words(command)) for command in commands()]
    named = [(one.suite, *one.overrides) for one in parsed if getattr(one, "suite", None) and hasattr(one, "overrides")]
    ours = shipped()
    return {one for one in named if one[0].removeprefix("suites/").removesuffix(".yaml") in ours}


@pytest.mark.parametrize("suite", sorted(_of_suites()), ids=" ".join)
def test_suites_of_the_documentation_are_valid_with_their_overrides(suite):
    name, *overrides = suite
    assert load(registry(), name, overrides).name


@pytest.mark.parametrize("command", sorted({c for c in commands() if " report " in c or " compare " in c}))
def test_metrics_of_the_documentation_exist(command):
    metrics = getattr(parser().parse_args(_words(command)), "metrics", None)
    known = metric_names(registry().get("evaluator", name).cls() for name in registry().names("evaluator"))
    assert set(metrics.split(",") if metrics else ()) <= known


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
