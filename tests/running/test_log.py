"""`ctx.log` and snapshots: guards, curves that stay small, and the 1-2-5 grid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from toy_loops import interrupted, points

from bpcbench.errors import NotFinite, Stopped
from bpcbench.records import Coreset
from bpcbench.running.context import StageContext
from bpcbench.testing import context as make

BAD = [float("nan"), float("inf"), -float("inf"), np.float32("nan"), np.array(np.inf)]


@pytest.mark.parametrize("value", [*BAD, torch.tensor(torch.nan), torch.tensor(torch.inf, dtype=torch.bfloat16)])
def test_guard_names_metric_and_step(tmp_path: Path, value: Any) -> None:
    ctx = make(tmp_path)
    with pytest.raises(NotFinite, match=r"^kl is -?(nan|inf) at step 33 of warm-up$"):
        for step in ctx.steps(100, what="warm-up"):
            ctx.log(loss=1.0, kl=value if step == 33 else 0.5)
    assert all(np.isfinite(value) for _, _, value in points(ctx, "kl"))


def test_large_values_are_finite(tmp_path: Path) -> None:
    ctx = make(tmp_path)
    for _ in ctx.steps(2):
        ctx.log(a=torch.tensor(1e300, dtype=torch.float64), b=torch.tensor([2**40]), c=np.array([3]))
    ctx.close()
    assert [points(ctx, name)[0][2] for name in "abc"] == [1e300, 2.0**40, 3.0]


def test_a_logged_tensor_is_read_as_it_was(tmp_path: Path) -> None:
    ctx = make(tmp_path)
    tensor, array = torch.zeros(()), np.zeros(())
    for _ in ctx.steps(4):
        ctx.log(tensor=tensor, array=array)
        tensor += 1
        array += 1
    ctx.close()
    for name in ("tensor", "array"):
        assert [value for _, _, value in points(ctx, name)] == [0, 1, 2, 3]


def test_log_takes_scalars(tmp_path: Path) -> None:
    ctx = make(tmp_path)
    with pytest.raises(ValueError, match=r"weights has shape \(3,\)"):
        ctx.log(weights=torch.zeros(3))


@pytest.mark.parametrize(("total", "every", "offset"), [(1000, 1, 0), (1001, 1, 0), (2000, 1, 0), (50_000, 50, 49)])
def test_at_most_a_thousand_points(tmp_path: Path, total: int, every: int, offset: int) -> None:
    """However often it is logged; and a curve is never lost because it is logged at other steps than are kept."""
    ctx = make(tmp_path)
    for step in ctx.steps(total):
        if step % every == offset:
            ctx.log(x=step)
    ctx.close()
    steps = [step for _, step, _ in points(ctx, "x")]
    assert steps == sorted(set(steps))
    assert 490 <= len(steps) <= 1000
    assert steps[-1] == total - 1


def test_points_do_not_depend_on_an_interruption(tmp_path: Path) -> None:
    def loop(ctx: StageContext, after: int = -1) -> list[tuple[str, int, float]]:
        for step in interrupted(ctx, ctx.steps(2500), after):
            if step % 2:
                ctx.log(x=step)
        ctx.close()
        return points(ctx, "x")

    reference = loop(make(tmp_path / "whole"))
    with pytest.raises(Stopped):
        loop(make(tmp_path / "parts"), 1235)
    assert loop(make(tmp_path / "parts")) == reference


def test_snapshots_on_the_grid(tmp_path: Path) -> None:
    """At 0 and on 1-2-5 steps, counted on over loops, and never of a step whose log was not finite."""
    kept: list[tuple[int, float]] = []
    ctx = make(tmp_path, keep_snapshot=lambda step, coreset, seconds: kept.append((step, coreset.images.item())))
    image = np.zeros((1, 1, 1, 1), np.float32)

    def snapshot() -> Coreset:
        return Coreset(images=image.copy(), targets=np.zeros(1, np.int64), class_ids=np.zeros(1, np.int64), classes=2)

    for _ in ctx.steps(25, snapshot=snapshot):
        image += 1
    for _ in ctx.steps(3):
        image += 0
    for _ in ctx.steps(30, snapshot=snapshot):
        image += 1
    assert kept == [(step, float(step)) for step in (0, 1, 2, 5, 10, 20, 50)]
    with pytest.raises(NotFinite, match="step 44"):
        for step in ctx.steps(100, snapshot=snapshot):
            ctx.log(x=float("nan") if step == 44 else 0.0)
    assert kept[-1][0] == 50
