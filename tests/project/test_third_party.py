"""A package from elsewhere, installed by pip, adds a method; a broken one beside it does no harm."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from import_path import with_folder

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "matching"

BROKEN = {
    "pyproject.toml": """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "bpcbench-broken"
version = "9.9"
[project.entry-points.bpcbench]
broken = "bpcbench_broken"
newer = "bpcbench_newer"
[tool.hatch.build.targets.wheel]
only-include = ["bpcbench_broken.py", "bpcbench_newer.py"]
""",
    "bpcbench_broken.py": "import a_module_that_does_not_exist\n",
    "bpcbench_newer.py": "BPCBENCH_API = 99\n",
}


def install(package: Path, target: Path) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--target", str(target), str(package)], check=True)


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    target = tmp_path_factory.mktemp("site")
    install(EXAMPLE, target)
    broken = tmp_path_factory.mktemp("broken")
    for name, text in BROKEN.items():
        (broken / name).write_text(text)
    install(broken, target)
    return target


def bpcbench(installed: Path, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": with_folder(installed)}
    command = [sys.executable, "-m", "bpcbench", *words]
    return subprocess.run(command, env=environment, cwd=cwd, capture_output=True, text=True, timeout=200, check=False)


def test_is_listed_with_its_origin(installed, tmp_path):
    methods = bpcbench(installed, "list", "methods", cwd=tmp_path)
    assert methods.returncode == 0
    assert re.search(r"dm +Matches the mean features.*\[bpcbench-matching\]", methods.stdout)
    plugins = bpcbench(installed, "list", "plugins", cwd=tmp_path).stdout
    assert re.search(r"broken +bpcbench-broken 9.9 .*NOT LOADED: ModuleNotFoundError: .*a_module_that", plugins)
    assert re.search(r"newer +bpcbench-broken 9.9 .*NOT LOADED: .*plugin API 99.*has API 1", plugins)


def test_is_run_by_a_suite(installed, tmp_path):
    (tmp_path / "mine.yaml").write_text(
        "protocol: 1\ndatasets: [digits]\nipc: [2]\n"
        "methods: {dm: {steps: 3, batch: 8, network: {width: 4}}, random: }\n"
        "inferences: {random-features: {members: 2}}\nnetworks: {conv-in: {width: 4}}\n"
        "evaluators: [per-class, classification]\n"
    )
    done = bpcbench(installed, "run", "mine.yaml", "--no-mlflow", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^dm +\d", done.stdout, re.M)
    again = bpcbench(installed, "run", "mine.yaml", "--no-mlflow", cwd=tmp_path)
    assert "no stages were run" in again.stderr


def test_a_suite_that_names_the_broken_one_is_told(installed, tmp_path):
    (tmp_path / "bad.yaml").write_text("protocol: 1\ndatasets: [digits]\nipc: [1]\nmethods: [missing-method]\n")
    refused = bpcbench(installed, "run", "bad.yaml", cwd=tmp_path)
    assert refused.returncode == 2
    assert "unknown method 'missing-method'" in refused.stderr
    assert "plugin 'broken' of bpcbench-broken did not load" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert not (tmp_path / "results").exists()


@pytest.mark.campaign
def test_its_own_conformance_tests_pass(installed):
    environment = {**os.environ, "PYTHONPATH": with_folder(installed)}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(EXAMPLE / "tests")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout
    assert "20 passed, 7 skipped" in done.stdout


def test_the_documentation_shows_the_example_as_it_is():
    page = (ROOT / "docs" / "plugins.md").read_text()
    assert (EXAMPLE / "bpcbench_matching" / "method.py").read_text().strip() in page
    tests = (EXAMPLE / "tests" / "test_conformance.py").read_text()
    (shown,) = re.findall(r"^class TestDistributionMatching.*?(?=\n\n|```)", page, re.M | re.S)
    assert shown.strip() in tests
