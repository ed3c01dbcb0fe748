"""`ctx.steps`: exact resume, curves, guards, snapshots; through real checkpoints in real files."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from toy_loops import interrupted, points

from bpcbench.errors import Stopped
from bpcbench.records import Coreset
from bpcbench.running import checkpoint, context
from bpcbench.running import state as tree
from bpcbench.running.context import StageContext
from bpcbench.testing import context as make


def ensemble(ctx: StageContext, after: int = -1, *, members: int = 3, steps: int = 6) -> list[torch.Tensor]:
    """Train a few models only consecutive ones; draw from every generator inside and between the loops."""
    ours, theirs = torch.Generator().manual_seed(ctx.seed), np.random.default_rng(ctx.seed)
    result = []
    for member in range(members):
        shift = float(torch.randn(())) + random.random() + float(np.random.normal()) + float(theirs.normal())
        model = torch.nn.Linear(3, 2)
        adam = torch.optim.Adam(model.parameters(), 0.1)
        notes: dict[Any, Any] = {"seen": [], 7: None}
        state = {"model": model, "adam": adam, "ours": ours, "theirs": theirs, "notes": notes}
        for step in interrupted(ctx, ctx.steps(steps, state=state, what=f"member {member}"), after):
            x = torch.randn(4, 3, generator=ours) + float(theirs.normal()) + torch.rand(()) + random.random()
            loss = (model(x) - shift).square().mean() + float(np.random.normal())
            adam.zero_grad()
            loss.backward()
            adam.step()
            notes["seen"].append(step)
            ctx.log(loss=loss, shift=shift)
        assert notes["seen"] == list(range(steps))
        result += [parameter.detach().clone() for parameter in model.parameters()]
    return [*result, torch.tensor([random.random(), np.random.normal(), theirs.normal()])]


def equal(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize("after", range(1, 19))
def test_resumes_exactly_wherever_it_stopped(tmp_path: Path, after: int) -> None:
    """Three loops of six steps, stopped at every one of the eighteen steps."""
    whole = make(tmp_path / "whole")
    reference = ensemble(whole)
    whole.close()
    first = make(tmp_path / "parts")
    with pytest.raises(Stopped):
        ensemble(first, after)
    again = make(tmp_path / "parts")
    assert equal(ensemble(again), reference)
    again.close()
    assert again.resumed_from == (after - 1) % 6 + 1
    assert points(again) == points(whole)
    assert len(points(whole)) == 18


def test_killed_again_and_again(tmp_path: Path) -> None:
    """No warning at all: every attempt is abandoned, and the next one adopts whatever checkpoint there is."""
    reference = ensemble(make(tmp_path / "whole"))
    folder, resumed = tmp_path / "parts", []
    for attempt in range(40):
        ctx = make(folder)
        ctx._pause = ctx._interval = 0.0 if attempt % 3 else 1e9
        ctx._save_cost = 0.0
        try:
            result = _abandoned(ctx, attempt % 5 + 1)
        except KeyboardInterrupt:
            continue
        finally:
            resumed.append(ctx.resumed_from or 0)
        assert equal(result, reference)
        break
    else:
        pytest.fail("never finished")
    assert len({*resumed}) > 3
    assert len(list(folder.glob("*/checkpoint-*"))) == 1


def _abandoned(ctx: StageContext, after: int) -> list[torch.Tensor]:
    real = ctx.log

    def log(**metrics: Any) -> None:
        nonlocal after
        after -= 1
        real(**metrics)
        if after < 0:
            raise KeyboardInterrupt

    ctx.log = log  # type: ignore[method-assign]
    return ensemble(ctx)


def test_events_go_back_to_the_checkpoint(tmp_path: Path) -> None:
    first = make(tmp_path)
    with pytest.raises(Stopped):
        ensemble(first, 3)
    events = first.attempt / checkpoint.EVENTS
    with events.open("a") as stream:
        stream.write(json.dumps({"what": "member 0", "step": 3, "m": {"loss": 1e9}}) + "\n")
        stream.write('{"torn')
    again = make(tmp_path)
    ensemble(again)
    again.close()
    assert [step for what, step, _ in points(again) if what == "member 0"] == [0, 1, 2, 3, 4, 5]
    assert max(value for _, _, value in points(again)) < 1e9
    assert b"\0" not in again.curves()


def test_lost_events_cost_points_only(tmp_path: Path) -> None:
    first = make(tmp_path)
    with pytest.raises(Stopped):
        ensemble(first, 3)
    (first.attempt / checkpoint.EVENTS).unlink()
    again = make(tmp_path)
    ensemble(again)
    assert again.resumed_from == 3
    assert [step for what, step, _ in points(again) if what == "member 0"] == [3, 4, 5]
    assert b"\0" not in again.curves()


def test_elapsed_adds_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(context.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(context.time, "process_time", lambda: clock[0] / 2)
    first = make(tmp_path)
    with pytest.raises(Stopped):
        for _ in interrupted(first, first.steps(10), 4):
            clock[0] += 10
    clock[0] = 5000.0
    again = make(tmp_path)
    clock[0] += 1000
    for _ in again.steps(10):
        clock[0] += 10
    assert again.elapsed == 100.0
    assert again.cpu_seconds == 50.0


def test_loops_do_not_nest(tmp_path: Path) -> None:
    ctx = make(tmp_path)
    with pytest.raises(RuntimeError, match="only consecutive ones"):
        for _ in ctx.steps(3):
            for _ in ctx.steps(3):
                pass


def test_a_loop_may_be_left_early(tmp_path: Path) -> None:
    def both(ctx: StageContext, after: int = -1) -> float:
        rng = np.random.default_rng(0)
        for step in ctx.steps(10, state={"rng": rng}, what="search"):
            ctx.log(x=rng.normal())
            if step == 3:
                break
        for _ in interrupted(ctx, ctx.steps(10, state={"rng": rng}, what="then"), after):
            ctx.log(x=rng.normal())
        ctx.close()
        return float(rng.normal())

    whole = make(tmp_path / "whole")
    reference = both(whole)
    assert [what for what, _, _ in points(whole, "x")] == ["search"] * 4 + ["then"] * 10
    with pytest.raises(Stopped):
        both(make(tmp_path / "parts"), 5)
    assert both(make(tmp_path / "parts")) == reference


def test_state_that_cannot_be_kept_fails_at_once(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="'f' holds a function"):
        next(iter(make(tmp_path).steps(10, state={"f": [lambda: 0]})))


def test_a_checkpoint_of_other_code_says_what_to_do(tmp_path: Path) -> None:
    ctx = make(tmp_path)
    with pytest.raises(Stopped):
        for _ in interrupted(ctx, ctx.steps(5, state={"a": np.zeros(2)}), 2):
            pass
    with pytest.raises(ValueError, match=r"checkpoint-000000-0+2 was written by other code .* remove it to start over"):
        next(iter(make(tmp_path).steps(5, state={"b": np.zeros(2)})))


FULL_DISK = """
import resource, sys
from pathlib import Path
import numpy as np
from bpcbench.running import checkpoint
from bpcbench.testing import context

folder = Path(sys.argv[1])
ctx = context(folder)
for step in ctx.steps(30, state={"big": np.zeros(10_000)}):
    ctx._save_cost = 0.0
    if step == 10:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    ctx.log(**{f"metric{i}": step for i in range(50)})
print(step, checkpoint.newest(folder).step)
sys.stdout.write(ctx.curves().decode())
"""


def test_a_full_disk_costs_the_checkpoint_only(tmp_path: Path) -> None:
    """In a process of its own: a limit on the size of files would also hold for the output of the tests."""
    environment = {**os.environ, context.CHECKPOINT_VARIABLE: "0"}
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    head, *curves = done.stdout.splitlines()
    assert head == "29 10"
    assert "checkpoint at step 11 not written" in done.stderr
    assert "curve points not written" in done.stderr
    assert not list(tmp_path.rglob("tmp-*"))
    assert curves
    assert all(json.loads(line) for line in curves)


def test_not_even_the_complaint_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any, **more: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setenv(context.CHECKPOINT_VARIABLE, "0")
    monkeypatch.setattr(checkpoint, "save", full)
    monkeypatch.setattr("builtins.print", full)
    ctx = make(tmp_path, keep_snapshot=full)
    image = Coreset(
        images=np.zeros((1, 1, 1, 1), np.float32),
        targets=np.zeros(1, np.int64),
        class_ids=np.zeros(1, np.int64),
        classes=2,
    )
    assert list(ctx.steps(5, state={"x": np.zeros(3)}, snapshot=lambda: image)) == [0, 1, 2, 3, 4]


def test_the_folder_goes_while_it_is_used(tmp_path: Path) -> None:
    """Where locks do not work, a rival that was first removes all attempts; this one ends undisturbed."""
    ctx = make(tmp_path)
    ctx._pause = ctx._interval = 0.0
    for step in ctx.steps(20, state={"x": np.zeros(3)}):
        ctx._save_cost = 0.0
        if step in (5, 12):
            shutil.rmtree(tmp_path, ignore_errors=True)
        ctx.log(x=step)
    assert checkpoint.newest(tmp_path) is not None
    assert ctx.scratch.is_dir()
    ctx.close()
    assert [step for _, step, _ in points(ctx, "x")] == list(range(20))


def test_scratch_is_private_and_exists(tmp_path: Path) -> None:
    first, second = make(tmp_path), make(tmp_path)
    assert first.scratch != second.scratch
    (first.scratch / "x").write_text("x")
    assert list(second.scratch.iterdir()) == []


def test_globals_survive_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(tree.sys.modules, "torch")
    kept = tree.unpack(tree.pack(tree.capture_globals()))
    assert "torch" not in kept
    wanted = random.random(), np.random.normal()
    tree.restore_globals(kept)
    assert (random.random(), np.random.normal()) == wanted
