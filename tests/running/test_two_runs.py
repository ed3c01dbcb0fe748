"""Several runs on one store: every stage is made once, and if locks do not work nothing goes wrong."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from plain_stages import MADE, planned
from toy_runs import Toy, until

from bpcbench.running import bodies
from bpcbench.running.run import make_task
from bpcbench.store.store import Store

METHODS = "{a: {plugin: toy-loop, steps: 40}, b: {plugin: toy-loop, steps: 41}, c: {plugin: toy-real, wait: 0.5}}"


def both(toy: Toy, **settings: object) -> None:
    """Run the suite twice at the same time; both must succeed."""
    runs = [toy.start(pace=0.02, **settings) for _ in range(2)]
    codes = [run.wait(200) for run in runs]
    assert codes == [0, 0], toy.output()
    assert toy.all_gone(5)


def test_two_runs_share_the_work(toy: Toy) -> None:
    toy.write(METHODS, evaluators="classification, toy-shifted")
    both(toy)
    assert len(toy.counted("coreset")) == 3
    assert len(toy.counted("fit")) == 3
    assert len(toy.counted("score")) == 3
    assert {step for _, _, step in toy.counted("from")} == {"0"}
    alone = Toy(toy.folder / "alone").write(METHODS, evaluators="classification, toy-shifted")
    alone.run()
    assert toy.results() == alone.results()
    assert not list((toy.out / "scratch").glob("*/*"))


@pytest.mark.campaign
def test_eight_runs_share_the_work(toy: Toy) -> None:
    """Each stage is made once, and all eight print the same table."""
    toy.write(METHODS, evaluators="classification, toy-shifted")
    runs = [toy.start(pace=0.02) for _ in range(8)]
    assert [run.wait(250) for run in runs] == [0] * 8, toy.output()
    assert toy.all_gone(10)
    assert [len(toy.counted(what)) for what in ("coreset", "fit", "score")] == [3, 3, 3]
    assert "Traceback" not in toy.output()
    # All write into one file; the lines of their tables are whole all the same.
    lines = [line.rstrip() for line in toy.output().splitlines() if re.match(r"[abc] +\d", line)]
    assert [lines.count(line) for line in sorted(set(lines))] == [8, 8, 8], toy.output()
    alone = Toy(toy.folder / "alone").write(METHODS, evaluators="classification, toy-shifted")
    alone.run()
    assert toy.results() == alone.results()
    assert not list((toy.out / "scratch").glob("stages/*"))


def test_two_runs_without_locks(toy: Toy) -> None:
    """Work may be done twice, but the results are right, and neither run fails because the other was first."""
    toy.write(METHODS, evaluators="classification, toy-shifted")
    both(toy, no_locks=1)
    assert "this file system has no locks" in toy.output()
    assert toy.output().count("this file system has no locks") == 2, "it is said once per run"
    alone = Toy(toy.folder / "alone").write(METHODS, evaluators="classification, toy-shifted")
    alone.run()
    assert toy.results() == alone.results()


def test_a_rival_that_was_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails because another process has made it meanwhile, and tidied up, has not failed."""
    store = Store.open(tmp_path / "store")
    chosen = planned("k")
    task = make_task(chosen, store.root, tmp_path, log=tmp_path / "log")
    monkeypatch.setattr(bodies, "stage_from_json", lambda *description: chosen.stage)

    def beaten(attempt: Any) -> None:
        raise FileNotFoundError("gone")

    def beaten_by_a_rival(attempt: Any) -> None:
        Store.open(store.root).commit(chosen.stage.addresses[0], MADE, {})
        raise FileNotFoundError("gone")

    for body, status in ((beaten, "failed"), (beaten_by_a_rival, "done")):
        monkeypatch.setattr(bodies, "_body", lambda stage, body=body: body)
        assert bodies.execute(task).status == status


def test_a_successor_waits_for_the_living(toy: Toy) -> None:
    """A second run neither starts over nor adopts the checkpoint of a stage that another run is still at."""
    toy.write("{a: {plugin: toy-loop, steps: 60}}")
    first = toy.start(pace=0.03)
    until(lambda: toy.scratch("*/*/checkpoint-*"))
    second = toy.start(pace=0.03)
    assert first.wait(60) == 0
    assert second.wait(60) == 0
    assert len(toy.counted("coreset")) == 1


def test_a_successor_takes_over_from_the_dead(toy: Toy) -> None:
    """The first run is killed while the second waits for it; the second goes on from its checkpoint."""
    toy.write("{a: {plugin: toy-loop, steps: 120}}")
    first = toy.start(pace=0.2)
    until(lambda: toy.scratch("*/*/checkpoint-*"))
    second = toy.start()
    until(lambda: toy.output().count("1 cell, ") == 2)
    first.kill()
    first.wait()
    assert second.wait(60) == 0
    (_, start), (_, again) = toy.counted("from", "coreset")
    assert (int(start), int(again) > 0) == (0, True)
    alone = Toy(toy.folder / "alone").write("{a: {plugin: toy-loop, steps: 120}}")
    alone.run()
    assert toy.results() == alone.results()
