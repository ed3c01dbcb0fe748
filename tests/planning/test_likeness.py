"""What was timed tells what similar stages take: across options, in seconds per step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import bpcbench
from bpcbench.planning.likeness import Likeness, Timed, estimate
from bpcbench.session import Session
from bpcbench.store.store import Store

SUITE = """
datasets: [digits]
ipc: [1]
methods: {kmeans: {iterations: 5}}
inferences: {network: {steps: 20}}
networks: {conv-nn: {width: 4}}
seeds: 1
"""


def timed(seconds: float, steps: float, **options: str) -> Timed:
    return Timed(Likeness("g", options, steps), [(seconds, 10)])


def test_seconds_are_per_step_of_those_that_differ_least() -> None:
    past = [timed(8.0, 4, lr="1", width="16"), timed(100.0, 4, lr="2", width="64")]
    assert estimate(Likeness("g", {"lr": "3", "width": "16"}, 40), past) == (80.0, 10)
    assert estimate(Likeness("g", {"lr": "3", "width": "64"}, 4), past) == (100.0, 10)
    assert estimate(Likeness("g", {}, 4), []) is None


@given(st.lists(st.tuples(st.floats(0.1, 1e4), st.integers(1, 10**6)), min_size=1, max_size=30), st.integers(1, 10**6))
def test_an_estimate_lies_within_what_was_seen_per_step(seen: list[tuple[float, int]], steps: int) -> None:
    found = estimate(Likeness("g", {}, steps), [timed(seconds, count, lr="1") for seconds, count in seen])
    assert found is not None
    paces = [seconds / count for seconds, count in seen]
    assert min(paces) * 0.999 <= found[0] / steps <= max(paces) * 1.001


@pytest.mark.parametrize(
    "value", [{}, {"group": "g", "options": {}, "steps": 0}, {"group": "g", "options": 3, "steps": 1}]
)
def test_what_is_no_description_is_refused(value: Any) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        Likeness.from_json(value)


def test_other_options_do_not_make_a_plan_unknown(write_suite: Any, tmp_path: Path, capsys: Any) -> None:
    suite, out = write_suite(SUITE), tmp_path / "store"
    bpcbench.run(suite, out=out, inline=True, track=False, quiet=True)
    store = Store.open(out)
    # Predictions took 4 s, whatever they took here.
    rewritten = [(family, 4.0, 1) for family, like in store.families().items() if "inference.lr" in like["options"]]
    (out / "timings.jsonl").write_text(
        "".join(line + "\n" for line in (out / "timings.jsonl").read_text().splitlines() if '"like"' in line)
    )
    store.note_timings([*rewritten, *((family, 0.5, 1) for family in store.families() if family != rewritten[0][0])])
    more = ["inferences.network.lr=0.5", "inferences.network.steps=60", "methods.kmeans.iterations=6"]
    plan = Session(suite, more, out=out).plan()
    expected = {planned.kind: planned.seconds for planned in plan.to_do()}
    assert expected["predict"] == pytest.approx(12.0)
    assert expected["coreset"] == pytest.approx(0.6)
    assert all(planned.similar for planned in plan.to_do() if planned.kind != "score")
    # Another data set, another method: nobody knows.
    unseen = Session(suite, ["methods=[herding]"], out=out).plan()
    assert {planned.kind for planned in unseen.to_do() if planned.seconds is None} == {"coreset"}
    from bpcbench.cli import main

    assert main(["plan", suite, "methods=[herding]", "--out", str(out)]) == 0
    assert "expected: more than " in (text := capsys.readouterr().out)
    assert "never timed here: 1 coreset herding" in text
    assert "1 cell, " in text
    assert "1 stages" not in text
