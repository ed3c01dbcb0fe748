"""Predictions that differ in their seed alone, all fitted by one of their stages."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from toy_runs import Toy, until

from bpcbench.running.bundles import companions
from bpcbench.running.seeding import derive

METHODS = "{a: {plugin: toy-real}}"


def make(folder: Path, *more: str, seeds: int = 5, **options: Any) -> Toy:
    inside = ", ".join(f"{name}: {value}" for name, value in options.items())
    inferences = f"{{toy: {{plugin: toy-together, {inside}}}}}"
    return Toy(folder).write(METHODS, f"seeds: {{distil: 1, evaluate: {seeds}}}", *more, inferences=inferences)


def together(toy: Toy) -> list[list[int]]:
    """Return the evaluation seeds that were fitted together, in the order of the fits."""
    numbers = {str(derive("evaluate", seed)): seed for seed in range(10)}
    return [[numbers[one] for one in line] for line in toy.counted("together")]


def predictions(toy: Toy) -> Iterator[tuple[int, str, dict[str, Any], bytes]]:
    """Yield seed, member, description and values of what was predicted."""
    for name, meta, arrays in toy.members("predict"):
        values = b"".join(value.tobytes() for value in arrays.values())
        yield meta["stage"]["seed"], name.rpartition("/")[2], meta, values


@pytest.mark.parametrize("jobs", [0, 2])
def test_each_has_its_result_under_its_own_key(tmp_path: Path, jobs: int) -> None:
    toy = make(tmp_path / "toy", together=3, seeds=5)
    toy.run(jobs=jobs)
    assert sorted(together(toy)) == [[0, 1, 2], [3, 4]]
    assert len(toy.counted("restore")) == 3, "the others find their fits"
    assert toy.counted("fit") == []
    found = list(predictions(toy))
    assert {seed: meta["together"] for seed, _, meta, _ in found} == {0: 3, 1: 3, 2: 3, 3: 2, 4: 2}
    fits = {seed: meta for seed, member, meta, _ in found if member == "fit"}
    assert fits.keys() == set(range(5))
    assert all(meta["label"].endswith(f"seed 0.{seed}") for seed, meta in fits.items())
    assert fits[0]["seconds"] == fits[1]["seconds"], "they share the costs"
    assert not (toy.out / "scratch" / "stages").exists() or toy.scratch("predict-*") == []


def test_the_key_is_that_of_the_seed_alone(tmp_path: Path) -> None:
    toy = make(tmp_path, together=3, seeds=1)
    toy.run()
    assert (len(toy.counted("fit")), together(toy)) == (1, [])
    before = dict(toy.results())
    toy.run("seeds.evaluate=3")
    assert together(toy) == [[1, 2]], "what is there is not made again"
    after = toy.results()
    assert {name: after[name] for name in before} == before


def test_one_that_was_fitted_but_not_predicted_is_not_fitted_again(tmp_path: Path) -> None:
    toy = make(tmp_path, together=3, seeds=2)
    toy.run()
    for path in toy.out.glob("stages/predict/*/*test*"):
        (path / "stage.json").unlink()
    toy.run("--recompute", "classification")
    assert together(toy) == [[0, 1]]
    assert len(toy.counted("restore")) == 1 + 2


@pytest.mark.parametrize("how", ["together: 1", "deterministic", "default"])
def test_none_are_fitted_together_unless_bits_may_depend_on_it(tmp_path: Path, how: str) -> None:
    options: dict[str, Any] = {
        "together: 1": {"together": 1},
        "deterministic": {"together": 3},
        "default": {"steps": 1},
    }
    toy = make(tmp_path, *(["deterministic: true"] if how == "deterministic" else []), seeds=2, **options[how])
    toy.run()
    assert (together(toy), len(toy.counted("fit"))) == ([], 2)


def test_together_1_has_the_keys_of_before(tmp_path: Path) -> None:
    toy = make(tmp_path, steps=1, seeds=2)
    toy.run()
    keys = set(toy.results())
    toy.run("inferences.toy.together=1")
    assert set(toy.results()) == keys
    toy.run("inferences.toy.together=2")
    assert set(toy.results()) > keys, "bits may differ"


def test_what_cannot_be_fitted_together_is_fitted_alone(tmp_path: Path) -> None:
    toy = make(tmp_path, together=3, seeds=3, broken="together")
    said = toy.run()
    assert "3 seeds are fitted one by one, not together: not these seeds" in said
    assert together(toy) == [[0, 1, 2]]
    assert len(toy.counted("fit")) == 3
    assert all("together" not in meta for _, _, meta, _ in predictions(toy))
    assert "ValueError: not these seeds" in "".join(path.read_text() for path in (toy.out / "logs").iterdir())


def test_one_failure_is_not_that_of_the_others(tmp_path: Path) -> None:
    toy = make(tmp_path, together=3, seeds=3, broken="all")
    said = toy.run(expect=1)
    assert said.count("no fit is possible") >= 3, "each has tried by itself"


@pytest.mark.parametrize("seeds", [3, 4])
def test_an_interrupted_fit_goes_on_if_it_has_the_same_companions(tmp_path: Path, seeds: int) -> None:
    toy = make(tmp_path, together=4, seeds=3, steps=60)
    run = toy.start(pace=0.05)
    until(lambda: toy.scratch("predict-*/*/checkpoint-*"))
    os.kill(run.pid, signal.SIGINT)
    assert run.wait(60) == 128 + signal.SIGINT
    stopped = len(toy.counted("step"))
    assert 0 < stopped < 60
    toy.run(f"seeds.evaluate={seeds}")
    assert together(toy) == [list(range(seeds))]
    steps = toy.counted("step")[stopped:]
    # One more network starts over: what was written holds others.
    assert steps[0] == ([str(stopped), "3"] if seeds == 3 else ["0", "4"])
    assert ("resumed at step" in toy.output()) == (seeds == 3)


def interrupted_alone(toy: Toy) -> int:
    """Interrupt a run when a fit alone has written a checkpoint; return how many steps such fits have taken."""
    run = toy.start(pace=0.02)
    until(lambda: len(toy.counted("alone")) > 10 and toy.scratch("predict-*/*/checkpoint-*"))
    os.kill(run.pid, signal.SIGINT)
    assert run.wait(60) == 128 + signal.SIGINT
    return len(toy.counted("alone"))


def test_a_fit_that_goes_on_alone_is_resumed_alone(tmp_path: Path) -> None:
    toy = make(tmp_path, together=3, seeds=3, steps=60, broken="together")
    stopped = interrupted_alone(toy)
    assert stopped < 60
    toy.run()
    assert together(toy) == [[0, 1, 2]], "the first is not tried with others again"
    assert toy.counted("alone")[stopped][0] == str(stopped)
    assert "resumed at step" in toy.output()


def test_what_was_begun_alone_is_not_begun_again_with_others(tmp_path: Path) -> None:
    toy = make(tmp_path, together=3, seeds=1, steps=60)
    stopped = interrupted_alone(toy)
    assert stopped < 60
    toy.run("seeds.evaluate=3")
    assert together(toy) == []
    assert toy.counted("alone")[stopped][0] == str(stopped)


def test_a_stop_during_the_step_that_fails_is_heeded(tmp_path: Path) -> None:
    toy = make(tmp_path, together=3, seeds=3, broken="stopping")
    said = toy.run(jobs=1)
    assert said.count("the worker was told to stop by a signal") == 1
    assert len(toy.counted("step")) == 1, "the next attempt knows that it failed"
    assert len(toy.counted("fit")) == 3


def test_a_companion_whose_key_is_another_is_left_out(tmp_path: Path) -> None:
    toy = make(tmp_path, together=1, seeds=1)
    toy.run()
    meta = next(meta for name, meta, _ in toy.members("predict") if not name.endswith("/fit"))
    along = [{"key": key, "label": key, "stage": meta["stage"]} for key in (meta["key"], "0" * 64)]
    task = SimpleNamespace(kind="predict", body_version=meta["body_version"], along=along)
    assert [one.label for one in companions(task, lambda address: False)] == [meta["key"]]  # type: ignore[arg-type]


def test_a_worker_killed_while_fitting_together_costs_no_result(tmp_path: Path) -> None:
    toy = make(tmp_path, together=3, seeds=3, broken="crash")
    said = toy.run(jobs=1)
    assert "3 seeds are fitted one by one, not together: the worker was killed by SIGKILL" in said
    assert (together(toy), len(toy.counted("fit"))) == ([[0, 1, 2]], 3)


def test_a_timeout_counts_once_per_seed(tmp_path: Path) -> None:
    """So often it is waited for; then each is fitted alone, within its own."""
    toy = make(tmp_path, "timeout: 4", together=3, seeds=3, broken="hang")
    said = toy.run(jobs=1)
    assert "not together: it took longer than its timeout of 12 s" in said
    assert (together(toy), len(toy.counted("fit"))) == ([[0, 1, 2]], 3)
