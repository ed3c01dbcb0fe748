"""Every hook is documented by an example, and every example runs."""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

import bpcbench
from bpcbench import hooks
from bpcbench.cli import main
from bpcbench.registry.discovery import KINDS, LOCAL_VARIABLE, Registry, registry
from bpcbench.session import Session

HOOKS = {name: value for name, value in vars(hooks).items() if name.startswith("bpcbench_")}
EXPECTED = {
    "bpcbench_datasets": ("dataset", "stripes"),
    "bpcbench_preprocessings": ("preprocessing", "centre"),
    "bpcbench_prerequisites": ("prerequisite", "class-means"),
    "bpcbench_methods": ("method", "jitter"),
    "bpcbench_inferences": ("inference", "nearest-mean"),
    "bpcbench_networks": ("network", "random-projection"),
    "bpcbench_evaluators": ("evaluator", "confidence"),
    "bpcbench_engines": ("engine", "plain"),
}
SUITE = """
protocol: 1
datasets: [stripes]
ipc: [3]
methods:
  jitter: {steps: 4}
inferences: [nearest-mean]
networks: [random-projection]
evaluators: [confidence, classification]
seeds: 2
"""
MEANS = '''
"""A method that uses the example of a prerequisite."""
from dataclasses import dataclass
import numpy as np
import bpcbench

BPCBENCH_API = 1

@dataclass(frozen=True)
class ByMeans(bpcbench.Method):
    name = "by-means"
    resources = bpcbench.Resources()
    uses_ipc = False

    def prerequisites(self, facts, ipc):
        return {"means": bpcbench.Need(bpcbench.Ref("class-means"))}

    def distil(self, data, ipc, given, ctx):
        labels = np.arange(data.facts.classes)
        images = given["means"].members["final"]["means"]
        return bpcbench.Coreset(images=images, targets=labels, classes=len(labels))

@bpcbench.hookimpl
def bpcbench_methods():
    return [ByMeans]
'''


def example(hook: str) -> str:
    """Return the code of a hook's example."""
    _, found, code = (inspect.getdoc(HOOKS[hook]) or "").partition("Example:\n")
    assert found, f"{hook} has no example"
    return textwrap.dedent(code)


@pytest.fixture
def examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Write every example to a module of its own, as an author would, and load them all."""
    folder = tmp_path / "modules"
    folder.mkdir()
    names = [f"example_of_{hook}" for hook in HOOKS]
    for name, hook in zip(names, HOOKS, strict=True):
        (folder / f"{name}.py").write_text("BPCBENCH_API = 1\n" + example(hook))
    (folder / "uses_means.py").write_text(MEANS)
    (folder / "tiny.yaml").write_text(SUITE)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv(LOCAL_VARIABLE, ",".join([*names, "uses_means"]))
    registry.cache_clear()
    yield folder
    registry.cache_clear()
    for name in [*names, "uses_means"]:
        sys.modules.pop(name, None)


def test_every_kind_of_plugin_has_its_hook() -> None:
    assert {f"bpcbench_{kind}s" for kind in KINDS} == set(EXPECTED)
    assert set(HOOKS) == {*EXPECTED, "bpcbench_suites", "bpcbench_published", "bpcbench_stage_finished"}


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_is_documented_and_its_example_implements_it(hook: str) -> None:
    first = (inspect.getdoc(HOOKS[hook]) or "").splitlines()[0]
    assert first.endswith(".")
    assert len(first) > 20
    assert f"def {hook}(" in example(hook)


def test_every_example_is_registered(examples: Path) -> None:
    found: Registry = registry()
    assert found.broken() == []
    for hook, (kind, name) in EXPECTED.items():
        registered = found.get(kind, name)
        assert registered.plugin == f"example_of_{hook}"
        assert registered.cls.__doc__
    assert found.suites["example_of_bpcbench_suites:tiny"] == examples / "tiny.yaml"


def test_the_examples_make_a_whole_run(examples: Path, tmp_path: Path) -> None:
    suite, out = "example_of_bpcbench_suites:tiny", tmp_path / "out"
    result = bpcbench.run(suite, ["methods.by-means="], out=out, inline=True, track=False, quiet=True)
    assert (result.exit_code, result.failures) == (0, ())
    values: dict[tuple[str, str], list[float]] = {}
    for row in Session(suite, ["methods.by-means="], out=out).rows():
        values.setdefault((row.method, row.metric), []).append(row.value)
    # Stripes are easy, and a softmax of small distances is modest: accuracy is high, confidence is not.
    for method in ("jitter", "by-means"):
        assert len(values[method, "acc"]) == 4
        assert min(values[method, "acc"]) > 0.9
        assert max(values[method, "overconfidence"]) < 0


def test_the_example_of_an_observer_tells_of_a_failure(
    examples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    suite = "example_of_bpcbench_suites:tiny"
    result = bpcbench.run(suite, ["ipc=21", "seeds=1"], out=tmp_path / "out", inline=True, track=False, quiet=True)
    assert result.exit_code == 1
    assert "stripes ipc 21 jitter seed 0 failed: ValueError: class 0 has 20 examples, fewer" in capsys.readouterr().out


def test_the_example_of_a_publication_stands_below_the_measured_line(
    examples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    suite, out = "example_of_bpcbench_suites:tiny", str(tmp_path / "out")
    bpcbench.run(suite, out=out, inline=True, track=False, quiet=True)
    assert main(["report", suite, "--out", out, "--published", "--format", "md"]) == 0
    printed = capsys.readouterr().out
    lines = [line.split(" | ")[0] for line in printed.splitlines() if "jitter" in line]
    assert lines[:2] == ["| jitter", "| jitter (published)"]
    assert "| 95.1±0.4 |" in printed
    assert "printed in Jitter, 2025 and not ranked here. Its images have twice the resolution." in printed


def test_the_example_of_an_engine_runs_a_suite(examples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(examples))  # workers import them too
    suite, out = "example_of_bpcbench_suites:tiny", tmp_path / "out"
    result = bpcbench.run(suite, ["engine=plain", "seeds=1"], out=out, track=False, quiet=True)
    assert (result.exit_code, result.counts) == (0, {"done": 5})  # preprocessing, coreset, predictions, two scores
    assert len(Session(suite, ["seeds=1"], out=out).rows()) == 8
