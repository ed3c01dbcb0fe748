"""Helpers for tests of a stage's loops."""

from __future__ import annotations

import json
from collections.abc import Iterator

from bpcbench.running.context import StageContext


def interrupted(ctx: StageContext, steps: Iterator[int], after: int) -> Iterator[int]:
    """Yield steps until the stage is told to stop, as SIGTERM does, at global step `after`."""
    for step in steps:
        ctx.seen = getattr(ctx, "seen", 0) + 1  # type: ignore[attr-defined]
        ctx.stopping = ctx.seen == after  # type: ignore[attr-defined]
        yield step


def points(ctx: StageContext, name: str = "loss") -> list[tuple[str, int, float]]:
    lines = [json.loads(line) for line in ctx.curves().splitlines()]
    return [(line["what"], line["step"], line["m"][name]) for line in lines if name in line.get("m", {})]
