"""Wrong suites: every mistake is found at once, with its file and line, and says what would be right."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import toys

import bpcbench
from bpcbench.errors import BpcbenchError, Mistakes
from bpcbench.registry.discovery import Registry
from bpcbench.suite.files import load

GOOD = """\
protocol: 1
datasets: [digits]
ipc: [1]
methods:
  random:
"""


def good(**changes: str) -> str:
    """Return the good suite with some lines changed; lines 1 to 5 stay where they are."""
    lines = {"protocol": "protocol: 1", "datasets": "datasets: [digits]", "ipc": "ipc: [1]"} | {
        key: changes.pop(key) for key in ("protocol", "datasets", "ipc") if key in changes
    }
    rest = changes.pop("methods", "methods:\n  random:")
    return "\n".join([*lines.values(), rest, *changes.values()]) + "\n"


CASES = {
    "unknown key": ("methds: [x]\n" + GOOD, 1, "methds: unknown key 'methds'; did you mean 'methods'? (allowed: "),
    "wrong protocol": (good(protocol="protocol: 7"), 1, "protocol: unknown version 7 (allowed: 1)"),
    "protocol as truth": (good(protocol="protocol: true"), 1, "protocol: unknown version True (allowed: 1)"),
    "no datasets": (good(datasets=""), None, "datasets: missing: a list of names, or a mapping of labels to options"),
    "null datasets": (good(datasets="datasets:"), 2, "datasets: missing: a list of names, or a mapping"),
    "empty list": (good(datasets="datasets: []"), 2, "datasets: empty: at least one is needed"),
    "all removed": (good(methods="methods: {random: false}"), 4, "methods: empty: at least one is needed"),
    "no evaluator": (good(e="evaluators: []"), 6, "evaluators: empty: at least one is needed"),
    "axis of numbers": (good(datasets="datasets: [1]"), 2, "datasets: expected a list of names or a mapping of labels"),
    "axis is a number": (good(datasets="datasets: 3"), 2, "datasets: expected a list of names or a mapping of labels"),
    "unknown dataset": (good(datasets="datasets: [digit]"), 2, "unknown dataset 'digit'; did you mean 'digits'?"),
    "tasks without steps": (good(t="tasks: {order: 1}"), 6, "tasks: expected {steps: n, order: m} or {steps"),
    "tasks is a number": (good(t="tasks: 5"), 6, "tasks: expected {steps: n, order: m} or {steps"),
    "unknown key of tasks": (
        good(t="tasks: {steps: 5, ordes: [1]}"),
        6,
        "tasks.ordes: unknown key 'ordes'; did you mean 'orders'? (allowed: order, orders, steps)",
    ),
    "one step": (good(t="tasks: {steps: 1}"), 6, "tasks.steps: steps must be an integer above 1, got 1"),
    "half a step": (good(t="tasks: {steps: 2.5}"), 6, "tasks.steps: steps must be an integer above 1, got 2.5"),
    "negative order": (good(t="tasks: {steps: 5, order: -1}"), 6, "tasks.order: an order is natural, or a seed from 0"),
    "order as truth": (good(t="tasks: {steps: 5, order: true}"), 6, "tasks.order: an order is natural, or a seed from"),
    "several under order": (good(t="tasks: {steps: 5, order: [0, 1]}"), 6, "tasks.order: expected one order; several"),
    "no orders": (good(t="tasks: {steps: 5, orders: []}"), 6, "tasks.orders: orders must name at least one"),
    "an order twice": (good(t="tasks: {steps: 5, orders: [1, 1]}"), 6, "tasks.orders: an order is named twice"),
    "order and orders": (
        good(t="tasks: {steps: 5, order: 0, orders: [1]}"), 6, "tasks.orders: order and orders exclude each other"
    ),
    "evaluator of steps": (
        good(e="evaluators: [continual]"), 6, "evaluators.continual: it scores class-incremental learning: add the key"
    ),
    "unknown method": (
        good(methods="methods:\n  random:\n  kmean:"),
        6,
        "methods.kmean: unknown method 'kmean'; did you mean 'kmeans'? (allowed: ",
    ),
    "unknown plugin": (
        good(methods="methods:\n  mine:\n    plugin: hearding"),
        6,
        "methods.mine.plugin: unknown method 'hearding'; did you mean 'herding'?",
    ),
    "plugin is a number": (good(methods="methods: {a: {plugin: 3}}"), 4, "a.plugin: expected a plugin's name, got 3"),
    "unknown option": (
        good(methods="methods:\n  kmeans:\n    iteration: 5"),
        6,
        "kmeans.iteration: unknown option of kmeans 'iteration'; did you mean 'iterations'? (allowed: iterations)",
    ),
    "type of an option": (
        good(methods="methods:\n  kmeans:\n    iterations: many"),
        6,
        "methods.kmeans.iterations: expected int, got 'many'",
    ),
    "truth for a number": (
        good(methods="methods: {kmeans: {iterations: true}}"),
        4,
        "methods.kmeans.iterations: expected int, got True",
    ),
    "interpolation": (
        good(methods="methods: {kmeans: {iterations: '${oc.env:HOME}'}}"),
        4,
        "methods.kmeans.iterations: expected int, got '${oc.env:HOME}'",
    ),
    "options are a list": (good(methods="methods: {random: [1]}"), 4, "random: expected a mapping of options, got [1]"),
    "label": (good(methods="methods: {'a/b': random}"), 4, "methods.a/b: a label is a word without / @ : ,"),
    "label with a space": (good(methods="methods: {'a b': random}"), 4, "methods.a b: a label is a word without"),
    "no ipc": (good(ipc=""), None, "ipc: missing: a list of images per class, such as [1, 10]"),
    "ipc 0": (good(ipc="ipc: [1, 0]"), 3, "ipc: expected a non-empty list of integers above 0, got [1, 0]"),
    "empty ipc": (good(ipc="ipc: []"), 3, "ipc: expected a non-empty list of integers above 0, got []"),
    "ipc in words": (good(ipc="ipc: ten"), 3, "ipc: expected a non-empty list of integers above 0, got 'ten'"),
    "ipc fraction": (good(ipc="ipc: [1.5]"), 3, "ipc: expected a non-empty list of integers above 0, got [1.5]"),
    "seeds 0": (good(s="seeds: {distil: 0}"), 6, "seeds.distil: expected an integer above 0, got 0"),
    "seeds in words": (good(s="seeds: many"), 6, "seeds: expected {distil: n, evaluate: m}, got 'many'"),
    "seeds axis": (good(s="seeds: {destil: 3}"), 6, "seeds.destil: unknown seed axis 'destil'; did you mean 'distil'?"),
    "timeout": (good(t="timeout: soon"), 6, "expected seconds above 0, or a duration such as 30m or 2h, got 'soon'"),
    "timeout below 0": (good(t="timeout: -5m"), 6, "timeout: expected seconds above 0"),
    "timeout is a truth": (good(t="timeout: true"), 6, "timeout: expected seconds above 0"),
    "split": (good(s="split: train"), 6, "split: expected test or validation, got 'train'"),
    "threads": (good(t="threads: 0"), 6, "threads: expected an integer above 0, got 0"),
    "device": (good(d="device: 0"), 6, "device: expected a word such as auto, cpu or cuda, got 0"),
    "device gpu": (good(d="device: gpu"), 6, "device: unknown device 'gpu'; did you mean 'cuda'?"),
    "device in capitals": (good(d="device: 'CUDA:1'"), 6, "unknown device 'CUDA'; did you mean 'cuda'?"),
    "device mistyped": (good(d="device: cdua"), 6, "unknown device 'cdua'; did you mean 'cuda'?"),
    "precision": (good(p="precision: 32"), 6, "precision: expected a word such as float32, got 32"),
    "name": (good(n="name: a/b"), 6, "name: expected a word without /, 120 bytes at most, got 'a/b'"),
    "metrics": (good(m="metrics: acc"), 6, "metrics: expected a list of metric names, got 'acc'"),
    "unknown metric": (good(m="metrics: [acc, briar]"), 6, "metrics: unknown metric 'briar'; did you mean 'brier'?"),
    "tuned": (good(t="tuned: 8"), 6, "tuned: expected {METHOD: {trials: n}}, as `bpcbench tune` writes it, got 8"),
    "tuned without trials": (good(t="tuned: {random: {}}"), 6, "tuned.random: expected a mapping with the number of"),
    "tuned otherwise": (good(t="tuned: {random: {trials: 2, trial: 3}}"), 6, "random.trial: unknown key 'trial'; did"),
    "empty evaluators": (good(e="evaluators:"), 6, "evaluators: missing: a list of names, or a mapping of labels to"),
    "engine": (good(e="engine: dusk"), 6, "engine: unknown engine 'dusk' (allowed: inline, local"),
    "engine's option": (good(e="engine: {plugin: local, job: 2}"), 6, "engine.job: unknown option of local 'job'; did"),
    "engine without plugin": (good(e="engine: {jobs: 2}"), 6, "expected an engine's name or a mapping with `plugin`"),
    "no such preprocessing": (
        good(methods="methods: {random: {preprocessing: zca}}"),
        4,
        "methods.random.preprocessing: unknown preprocessing 'zca' (allowed: default)",
    ),
    "cases not a list": (good(c="cases: {ipc: 1}"), 6, "cases: expected a list, got {'ipc': 1}"),
    "case without set": (good(c="cases:\n- when: {ipc: 1}"), 6, "cases.0: expected {when: {dataset, ipc}, set: {"),
    "case sets a list": (good(c="cases:\n- when: {ipc: 1}\n  set: [a]"), 6, "cases.0: expected {when: {dataset, ipc},"),
    "case of a method": (
        good(c="cases:\n- when:\n    method: random\n  set: {}"),
        8,
        "cases.0.when.method: unknown key 'method' (allowed: dataset, ipc)",
    ),
    "case of no ipc": (good(c="cases:\n- {when: {ipc: one}, set: {}}"), 7, "when.ipc: expected an integer or a list"),
    "case sets a key": (
        good(c="cases:\n- when: {ipc: 1}\n  set:\n    methods.random: 1"),
        9,
        "expected methods|preprocessing|inferences|networks.LABEL.OPTION",
    ),
    "case sets a label": (
        good(c="cases:\n- when: {ipc: 1}\n  set:\n    methods.rondom.x: 1"),
        9,
        "unknown label 'rondom'; did you mean 'random'?",
    ),
    "case sets an option": (
        good(c="cases:\n- when: {ipc: 1}\n  set:\n    methods.random.x: 1"),
        9,
        "cases.0.set.methods.random.x: unknown option of random 'x' (allowed: (none))",
    ),
    "exclude": (good(e="exclude: [random]"), 6, "exclude.0: expected a mapping of dataset, ipc, method, inference"),
    "exclude key": (good(e="exclude:\n- methods: random"), 7, "exclude.0.methods: unknown key 'methods'; did you mean"),
    "exclude label": (good(e="exclude:\n- method: [random, x]"), 7, "exclude.0.method: unknown method 'x' (allowed: "),
    "exclude mapping": (good(e="exclude:\n- method: {a: 1}"), 7, "exclude.0.method: unknown method \"{'a': 1}\""),
    "exclude ipc": (good(e="exclude:\n- ipc: all"), 7, "ipc: expected an integer or a list of them, got 'all'"),
    "extends": (good(e="extends: {a: 1}"), 6, "extends: expected a suite's name or a list of them, got {'a': 1}"),
    "extends nothing": (good(e="extends: [./a.yaml, b]"), 6, "a.yaml: no such file"),
    "extends unknown": (good(e="extends: quickstar"), 6, "unknown suite 'quickstar'; did you mean 'quickstart'?"),
    "not YAML": (good(x="seeds: {distil: 1"), 7, "not valid YAML: expected ',' or '}'"),
    "written twice": (good(x="ipc: [2]"), 6, "ipc: this key is written twice"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "line", "message"), CASES.values(), ids=CASES)
def test_a_mistake_is_found_at_its_line(
    registry: Registry, write_suite: Callable[..., str], text: str, line: int | None, message: str
) -> None:
    file = write_suite(text)
    with pytest.raises(Mistakes) as caught:
        load(registry, file)
    found = [mistake for mistake in caught.value.mistakes if message in f"{mistake.path}: {mistake.message}"]
    assert len(found) == 1, str(caught.value)
    # What is missing altogether stands on no line.
    assert (found[0].line, found[0].file) == (line, file if line else None)
    assert str(caught.value).startswith(f"{file}: ")


def test_the_good_suite_is_good(registry: Registry, write_suite: Callable[..., str]) -> None:
    assert load(registry, write_suite(good())).name == "suite"


def test_everything_wrong_is_reported_at_once_and_nothing_is_written(
    write_suite: Callable[..., str], tmp_path: Path
) -> None:
    text = """\
    protocol: 3
    datasets: [digitz]
    ipc: [0]
    methods:
      random: {depth: 3}
      kmeans:
        iterations: few
    inferences: [netwrk]
    networks:
      conv-bn: {width: wide}
    evaluators: [classifcation]
    seeds: {distil: none}
    split: holdout
    timeout: never
    engine: cloud
    colour: red
    """
    file = write_suite(textwrap.dedent(text))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(Mistakes) as caught:
        bpcbench.run(file, ["threads=no"], out=tmp_path / "out", inline=True, track=False)
    lines = {mistake.path: mistake.line for mistake in caught.value.mistakes}
    assert lines == {
        "protocol": 1,
        "datasets.digitz": 2,
        "ipc": 3,
        "methods.random.depth": 5,
        "methods.kmeans.iterations": 7,
        "inferences.netwrk": 8,
        "networks.conv-bn.width": 10,
        "evaluators.classifcation": 11,
        "seeds.distil": 12,
        "split": 13,
        "timeout": 14,
        "engine": 15,
        "colour": 16,
        "threads": None,
    }
    assert "command line: threads: expected an integer above 0, got False" in str(caught.value)
    assert sorted(tmp_path.rglob("*")) == before
    assert caught.value.exit_code == 2


def test_plugins_are_checked_even_where_the_grid_is_wrong(registry: Registry, write_suite: Callable[..., str]) -> None:
    with pytest.raises(Mistakes) as caught:
        load(registry, write_suite(good(ipc="ipc: []", methods="methods: {kmean: }", n="networks: {conv: }")))
    assert {mistake.path for mistake in caught.value.mistakes} == {"ipc", "methods.kmean", "networks.conv"}


def test_a_mistake_in_what_is_extended_names_that_file(registry: Registry, write_suite: Callable[..., str]) -> None:
    base = write_suite(good(methods="methods:\n  random:\n  kmeans: {iterations: x}"), "base.yaml")
    top = write_suite("extends: base.yaml\n\nseeds: 0\n")
    with pytest.raises(Mistakes) as caught:
        load(registry, top)
    places = {(mistake.file, mistake.line) for mistake in caught.value.mistakes}
    assert places == {(base, 6), (top, 3)}
    assert str(caught.value).startswith(f"{top}: 3 mistakes")  # both seeds are 0


def test_a_cycle_of_extends_is_named(registry: Registry, write_suite: Callable[..., str]) -> None:
    first = write_suite("extends: b.yaml\n", "a.yaml")
    write_suite("extends: c.yaml\n", "b.yaml")
    write_suite("extends: a.yaml\n", "c.yaml")
    with pytest.raises(BpcbenchError, match=r"a\.yaml: extends itself, via .*a\.yaml -> .*b\.yaml -> .*c\.yaml"):
        load(registry, first)
    with pytest.raises(BpcbenchError, match=r"self\.yaml: extends itself"):
        load(registry, write_suite("extends: self.yaml\n", "self.yaml"))


def test_a_prerequisite_is_not_a_preprocessing(
    install: Callable[..., Registry], write_suite: Callable[..., str]
) -> None:
    with pytest.raises(Mistakes, match=r"preprocessing.default: unknown preprocessing 'means' \(allowed: .*\bscale, "):
        load(install(toys), write_suite(good(p="preprocessing: means")))


def test_a_plugin_that_refuses_its_options_is_quoted(
    install: Callable[..., Registry], write_suite: Callable[..., str]
) -> None:
    @dataclass(frozen=True)
    class Strict(toys.Pick):
        name = "strict"

        def __post_init__(self) -> None:
            if self.steps > 3:
                raise ValueError("steps must not exceed 3")
            if self.rate > 1:
                raise KeyError("rate")

    found = install(toys, Strict)
    text = good(methods="methods:\n  a: {plugin: strict, steps: 4}\n  b: {plugin: strict, rate: 2}\n  c: strict")
    with pytest.raises(Mistakes) as caught:
        load(found, write_suite(text))
    assert [(m.path, m.message, m.line) for m in caught.value.mistakes] == [
        ("methods.a", "steps must not exceed 3", 5),
        ("methods.b", "KeyError: 'rate'", 6),
    ]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("quikstart", "unknown suite 'quikstart'; did you mean 'quickstart'?"),
        ("no/such.yaml", "no/such.yaml: no such file"),
        ("plugin:none", "unknown suite 'plugin:none'"),
    ],
)
def test_suites_that_are_not_there(registry: Registry, name: str, message: str) -> None:
    with pytest.raises(BpcbenchError) as caught:
        load(registry, name)
    assert message in str(caught.value)
