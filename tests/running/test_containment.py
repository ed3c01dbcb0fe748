"""Faults of plugins and of surroundings that must not reach further than they have to."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bpcbench.cli import main

PLUGIN = """
import sys
from dataclasses import dataclass
import bpcbench

BPCBENCH_API = 1

class _Method(bpcbench.Method):
    resources = bpcbench.Resources()
    def distil(self, data, ipc, given, ctx):
        chosen = bpcbench.per_class(data.labels, ipc, ctx.seed)
        labels = data.labels[chosen]
        images = given.transform.apply(data.train.images[chosen])
        return bpcbench.Coreset(images=images, targets=labels, class_ids=labels, classes=data.facts.classes)

@dataclass(frozen=True)
class BadPreload(_Method):
    name = "bad-preload"
    preload = ("exits_at_import",)

@dataclass(frozen=True)
class BadSkip(_Method):
    name = "bad-skip"
    def skip(self, facts, ipc):
        raise RuntimeError("skip went wrong")

@dataclass(frozen=True)
class Fails(_Method):
    name = "fails"
    def distil(self, data, ipc, given, ctx):
        return (1, 2)

@dataclass(frozen=True)
class OddNames(bpcbench.Evaluator):
    name = "odd-names"
    def metrics(self):
        return [bpcbench.Metric("acc@1%", "higher"), bpcbench.Metric("nll", "lower")]
    def score(self, predictions, given):
        return bpcbench.Scores({"acc@1%": 0.5, "nll": 7.0})

@dataclass(frozen=True)
class BadFigures(OddNames):
    name = "bad-figures"
    def score(self, predictions, given):
        return bpcbench.Scores({"nll": 7.0}, {"drawn": b"by hand"})

@dataclass(frozen=True)
class Undeclared(OddNames):
    name = "undeclared"
    def score(self, predictions, given):
        return bpcbench.Scores({"nl": 7.0})

class Pool:
    slots = 2
    def __init__(self, fails):
        self.fails = fails
    def __getattribute__(self, call):
        if call == object.__getattribute__(self, "fails"):
            raise LookupError("no such call")
        return object.__getattribute__(self, call)
    def adopt(self):
        return ()
    def submit(self, task):
        self.task = task
        return True
    def wait(self, seconds):
        return ["over"] if self.fails == "nonsense" else [bpcbench.Ended(self.task.attempt)]
    def close(self):
        raise LookupError("cannot close")

@dataclass(frozen=True)
class Faulty(bpcbench.Engine):
    name = "faulty"
    fails: str = ""
    def open(self, run):
        if self.fails == "open":
            raise LookupError("no such call")
        return Pool(self.fails)

@dataclass(frozen=True)
class Elsewhere(bpcbench.Evaluator):
    name = "elsewhere"
    def splits(self, facts):
        return [bpcbench.SplitRef("test", bpcbench.Ref("mnist"))]
    def metrics(self):
        return [bpcbench.Metric("acc", "higher")]
    def score(self, predictions, given):
        return bpcbench.Scores({"acc": 0.5})

@bpcbench.hookimpl
def bpcbench_methods():
    return [BadPreload, BadSkip, Fails]

@bpcbench.hookimpl
def bpcbench_evaluators():
    return [OddNames, BadFigures, Undeclared, Elsewhere]

@bpcbench.hookimpl
def bpcbench_engines():
    return [Faulty]

@bpcbench.hookimpl
def bpcbench_stage_finished(event):
    if "OBSERVER_EXITS" in __import__("os").environ:
        sys.exit(9)
"""
SUITE = """
name: contained
protocol: 1
datasets: [digits]
ipc: [1]
methods: [random]
inferences: {network: {steps: 3}}
networks: {conv-nn: {width: 4}}
"""


def _path(folder: Path) -> str:
    return os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])


@pytest.fixture
def run(tmp_path):
    (tmp_path / "faulty.py").write_text(PLUGIN)
    (tmp_path / "exits_at_import.py").write_text("raise SystemExit(3)\n")
    (tmp_path / "s.yaml").write_text(SUITE)

    def call(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        variables = {**os.environ, "PYTHONPATH": _path(tmp_path), "BPCBENCH_PLUGINS": "faulty", **environment}
        command = [sys.executable, "-m", "bpcbench", *words]
        return subprocess.run(
            command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=120, check=False
        )

    return call


def test_a_preload_that_exits_fails_alone(run):
    done = run("run", "s.yaml", "methods=[random, bad-preload]", "--no-mlflow")
    assert done.returncode == 1
    assert "1 failed" in done.stderr
    assert "random" in done.stdout


def test_a_plugin_that_raises_while_planning_gives_one_message(run, tmp_path):
    done = run("run", "s.yaml", "methods=[random, bad-skip]")
    assert done.returncode == 2
    assert "RuntimeError: skip went wrong" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "results").exists()


def test_names_that_cannot_be_logged_are_changed(run, tmp_path):
    done = run("run", "s.yaml", "evaluators=[classification, odd-names]")
    assert done.returncode == 0, done.stderr
    assert "cannot be written" not in done.stderr
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{tmp_path / 'results' / 'mlflow.db'}")
    runs = client.search_runs([client.get_experiment_by_name("contained").experiment_id])
    (cell,) = [run for run in runs if "bpcbench.cell" in run.data.tags]
    assert cell.data.metrics["acc_1_"] == 0.5
    assert cell.data.metrics["odd-names/nll"] == 7.0
    assert cell.data.metrics["classification/nll"] != 7.0


@pytest.mark.parametrize("call", ["open", "adopt", "submit", "wait", "slots"])
def test_an_engine_that_raises_ends_the_run_with_a_message(run, call):
    done = run("run", "s.yaml", f"engine={{plugin: faulty, fails: {call}}}", "--no-mlflow")
    assert done.returncode == 1
    assert f"engine faulty failed in {call}: LookupError: no such call" in done.stderr
    assert "to resume: bpcbench run s.yaml" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_engine_that_returns_nonsense_ends_the_run_with_a_message(run):
    done = run("run", "s.yaml", "engine={plugin: faulty, fails: nonsense}", "--no-mlflow")
    assert done.returncode == 1
    assert "engine faulty failed in wait: TypeError: expected Started, Requeued or Ended, got 'over'" in done.stderr


def test_an_engine_that_does_nothing_is_not_believed(run):
    """Every attempt is said to have ended, but nothing is in the store; three attempts are enough."""
    done = run("run", "s.yaml", "engine=faulty", "--no-mlflow")
    assert done.returncode == 1
    assert done.stderr.count("worker lost: prerequisite") == 2
    assert "the worker left no outcome, 3 times" in done.stderr


def test_scores_that_break_the_contract_fail_alone_with_a_reason(run):
    done = run("run", "s.yaml", "evaluators=[classification, bad-figures, undeclared]", "--no-mlflow")
    assert done.returncode == 1
    assert "2 failed" in done.stderr
    assert "a figure is one of curves, bars, matrix, reliability of bpcbench.figures, not a bytes" in done.stderr
    assert "undeclared.score gave a metric it does not declare" in done.stderr
    assert "unknown metric 'nl'; did you mean 'nll'" in done.stderr


def test_no_test_split_is_predicted_while_tuning(run, tmp_path):
    (tmp_path / "MNIST").mkdir()
    done = run("plan", "s.yaml", "evaluators=[elsewhere]", "split=validation")
    assert done.returncode == 2
    assert "no test split may be predicted" in done.stderr


def test_an_observer_that_exits_is_reported(run):
    done = run("run", "s.yaml", "--no-mlflow", OBSERVER_EXITS="1")
    assert done.returncode == 0
    assert "failed: SystemExit: 9" in done.stderr


def test_a_method_that_returns_something_else_is_told(run):
    done = run("run", "s.yaml", "methods=[fails]", "--no-mlflow")
    assert done.returncode == 1
    assert "fails.distil must return a bpcbench.Coreset, it returned a tuple" in done.stderr
    assert "to resume: bpcbench run s.yaml" in done.stderr


def test_a_reader_that_has_gone_does_not_hide_a_failure(run, tmp_path):
    run("plan", "s.yaml")
    command = (
        f"{sys.executable} -m bpcbench run s.yaml methods=[fails] --no-mlflow 2> err | true; exit ${{PIPESTATUS[0]}}"
    )
    variables = {**os.environ, "PYTHONPATH": _path(tmp_path), "BPCBENCH_PLUGINS": "faulty", "PYTHONUNBUFFERED": "1"}
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, env=variables, timeout=120, check=False)
    assert done.returncode == 1
    assert "to resume:" in (tmp_path / "err").read_text()


def test_a_damaged_distribution_does_not_break_the_commands(tmp_path):
    broken = tmp_path / "odd-1.0.dist-info"
    broken.mkdir()
    (broken / "METADATA").write_text("Name: odd\nVersion: 1.0\n")
    (broken / "entry_points.txt").write_text("[bpcbench]\nfoo\n")
    command = [sys.executable, "-m", "bpcbench", "list", "plugins"]
    environment = {**os.environ, "PYTHONPATH": _path(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "NOT LOADED" in done.stdout
    assert "baselines" in done.stdout


def test_one_bad_record_of_a_suite_does_not_stop_the_others(run, tmp_path):
    assert run("run", "s.yaml", "--no-mlflow").returncode == 0
    (manifest,) = (tmp_path / "results" / "suites" / "contained").iterdir()
    for name, text in (("bad", '{"name": '), ("worse", "[1]")):
        copy = shutil.copytree(manifest, tmp_path / "results" / "suites" / name / manifest.name)
        (copy / "suite.json").write_text(text)
    done = run("sync")
    assert done.returncode == 0, done.stderr
    assert "1 cell added" in done.stdout
    for name in ("bad", "worse"):
        assert f"{name}/{manifest.name} is passed over" in done.stderr


def test_a_damaged_score_is_reported_by_the_report(run, tmp_path):
    assert run("run", "s.yaml", "--no-mlflow").returncode == 0
    (stage,) = (tmp_path / "results" / "stages" / "score").glob("*/*/stage.json")
    body = json.loads(stage.read_text())
    body["metrics"]["acc"] = 1.0
    stage.write_text(json.dumps(body))
    done = run("report", "s.yaml")
    assert "damaged: score:" in done.stderr
    assert "no results of this suite yet" in done.stdout


def test_output_is_checked_first(tmp_path, capsys):
    shutil.copy(Path(__file__), tmp_path / "x")
    for words in (["report", "quickstart"], ["tune", "cpu/tune/digits"]):
        assert main([*words, "--out", str(tmp_path / "store"), "--output", str(tmp_path / "no" / "x.md")]) == 2
        assert "its folder does not exist" in capsys.readouterr().err
    assert not (tmp_path / "store").exists()


def test_what_a_kill_between_commit_and_end_left_is_removed(run, tmp_path):
    assert run("run", "s.yaml", "--no-mlflow").returncode == 0
    (key,) = (path.name for path in (tmp_path / "results" / "stages" / "predict").iterdir())
    left = tmp_path / "results" / "scratch" / "stages" / f"predict-{key}" / "attempt"
    other = tmp_path / "results" / "scratch" / "stages" / "predict-0000" / "attempt"
    for folder in (left, other):
        folder.mkdir(parents=True)
    assert run("run", "s.yaml", "--no-mlflow").returncode == 0
    assert not left.parent.exists()
    assert other.exists()
