"""What a person sees while a suite runs: bars that fit the terminal, an ETA that learns, and honest counts."""

from __future__ import annotations

import io
import re
from types import SimpleNamespace
from typing import Any

import pytest

from bpcbench.running import progress as module
from bpcbench.running.forecast import Forecast
from bpcbench.running.progress import Progress
from bpcbench.running.queue import Outcome

LONG = "predict fashion_mnist ipc 50 bpc-rkl / network / conv-bn seed 2.1"


class Terminal(io.StringIO):
    """A terminal that keeps what is written to it."""

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return -1

    def bars(self) -> list[str]:
        """Every text that was drawn over a line, without the codes that move the cursor."""
        drawn = re.split(r"[\r\n]|\x1b\[A", self.getvalue())
        return [text for text in drawn if text.strip()]


def stage(name: str, label: str = "", family: str = "f", seconds: float | None = None) -> Any:
    kind, _, rest = (label or f"coreset {name}").partition(" ")
    return SimpleNamespace(id=name, kind=kind, label=rest, plugin="p", family=family, seconds=seconds)


def line(done: int, total: int, seconds: float, what: str = "", loop: int = 0) -> dict[str, Any]:
    return {"done": done, "total": total, "t": seconds, "what": what, "loop": loop}


@pytest.fixture
def width(monkeypatch: pytest.MonkeyPatch) -> Any:
    def use(columns: int) -> None:
        monkeypatch.setattr(module.os, "get_terminal_size", lambda _: SimpleNamespace(columns=columns))

    return use


@pytest.mark.parametrize("columns", [80, 100, 160])
def test_label_bar_and_eta_fit_the_terminal(width: Any, columns: int) -> None:
    width(columns)
    screen, one = Terminal(), stage("a", LONG)
    shown = Progress([one, stage("b")], stream=screen)
    shown.started(one)
    shown.events(one, [line(500, 2000, 60.0, "training")])
    shown.close()
    assert all(len(text) <= columns - 3 for text in screen.bars()), screen.bars()
    (bar,) = {text for text in screen.bars() if text.startswith(LONG)}
    assert re.search(r"25% 3:00$" if columns < 160 else r" 500/2,000 steps, about 3 min 0 s left$", bar)
    assert "|" in bar or columns == 80
    assert ("training" in bar) == (columns > 80)


def test_a_label_that_is_longer_than_the_terminal_keeps_its_ends_and_the_eta(width: Any) -> None:
    width(60)
    screen, one = Terminal(), stage("a", LONG)
    shown = Progress([one], stream=screen)
    shown.started(one)
    shown.events(one, [line(500, 2000, 60.0)])
    shown.close()
    (bar,) = {text for text in screen.bars() if text.startswith("predict fashion")}
    assert bar.endswith("seed 2.1 25% 3:00")
    assert len(bar) == 57


def test_a_resumed_bar_counts_only_what_its_stage_did(width: Any) -> None:
    width(160)
    screen, one = Terminal(), stage("a")
    shown = Progress([one], stream=screen)
    shown.started(one)
    # Step 1,000 was reached after 100 s, in an earlier attempt: 10 steps a second, not 1,000 in no time.
    shown.events(one, [line(1000, 2000, 100.0)])
    shown.close()
    assert any("1,000/2,000 steps, about 1 min 40 s left" in text for text in screen.bars())


def test_stopped_stages_are_not_done(width: Any) -> None:
    width(80)
    screen, both = Terminal(), [stage("a"), stage("b")]
    shown = Progress(both, stream=screen)
    for one in both:
        shown.started(one)
    shown.finished(both[0], Outcome("a", "done", 1.0))
    shown.finished(both[1], Outcome("b", "stopped", 1.0))
    shown.close()
    assert shown.done == 1
    assert "2/2" not in screen.getvalue()


def test_what_a_signal_starts_stands_below_the_bars(width: Any) -> None:
    width(80)
    screen, one = Terminal(), stage("a")
    shown = Progress([one], stream=screen)
    shown.started(one)
    shown.events(one, [line(5, 10, 1.0)])
    before = len(screen.getvalue())
    shown.say_below("stopping: wait")
    written = screen.getvalue()[before:]
    assert written.startswith("\n\n")  # past the suite's bar and the stage's
    assert "stopping: wait" in written
    shown.close()
    assert screen.getvalue().endswith("left\n")  # only the suite's bar stays


def test_a_stage_without_steps_gets_a_line_when_it_takes_long(width: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    width(80)
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    screen, one = Terminal(), stage("a", "coreset digits ipc 1 kmeans seed 0")
    shown = Progress([one], stream=screen)
    shown.started(one)
    now[0] += 1.0
    shown._draw()
    assert "kmeans" not in screen.getvalue()
    now[0] += 4.0
    shown._draw()
    assert "coreset digits ipc 1 kmeans seed 0 5.0 s so far" in screen.getvalue()
    shown.close()


def test_without_a_terminal_lines_say_what_is_left() -> None:
    screen, both = io.StringIO(), [stage("a"), stage("b")]
    shown = Progress(both, stream=screen)
    shown.started(both[0])
    shown.finished(both[0], Outcome("a", "done", 1.0))
    shown.started(both[1])
    shown.finished(both[1], Outcome("b", "stopped", 1.0))
    first, second = screen.getvalue().splitlines()
    assert re.fullmatch(r"\[1/2\] done: coreset a \(1\.0 s; about .* left\)", first)
    assert second == "[1/2] stopped: coreset b (1.0 s)"


def test_a_forecast_starts_with_the_plan_and_learns_from_what_ends() -> None:
    stages = [stage(str(i), seconds=10.0) for i in range(10)]
    forecast = Forecast(stages, 0.0)
    assert forecast.left(0.0) is None
    forecast.started(stages[0], 0.0)
    assert forecast.left(0.0) == pytest.approx(100.0)
    assert forecast.left(4.0) == pytest.approx(96.0)
    forecast.finished(stages[0], "done", 20.0)  # twice as long as planned
    assert forecast.left(20.0) == pytest.approx(9 * 20.0)
    forecast.started(stages[1], 20.0)
    forecast.progressed(stages[1], 2, 8, 10.0, 0)
    assert forecast.stage_left(stages[1], 30.0) == pytest.approx(30.0)
    assert forecast.left(30.0) == pytest.approx(8 * 20.0 + 30.0)


def test_stages_at_a_time_divide_what_is_left() -> None:
    stages = [stage(str(i), seconds=10.0) for i in range(8)]
    forecast = Forecast(stages, 0.0)
    for one in stages[:2]:
        forecast.started(one, 0.0)
    for one in stages[:2]:
        forecast.finished(one, "done", 10.0)
    assert forecast.left(10.0) == pytest.approx(6 * 10.0 / 2)


def test_a_later_loop_has_a_pace_of_its_own() -> None:
    one = stage("a")
    forecast = Forecast([one], 0.0)
    forecast.started(one, 0.0)
    forecast.progressed(one, 100, 100, 50.0, 0)
    forecast.progressed(one, 0, 10, 50.0, 1)
    forecast.progressed(one, 5, 10, 60.0, 1)
    assert forecast.stage_left(one, 60.0) == pytest.approx(10.0)


def test_a_stopped_stage_stays_to_do_and_a_skipped_one_does_not() -> None:
    stages = [stage(str(i), seconds=10.0) for i in range(4)]
    forecast = Forecast(stages, 0.0)
    forecast.started(stages[0], 0.0)
    forecast.finished(stages[0], "stopped", 5.0)
    forecast.finished(stages[1], "skipped", 5.0)
    forecast.started(stages[2], 5.0)
    forecast.finished(stages[2], "done", 15.0)
    assert forecast.left(15.0) == pytest.approx(20.0 * 15 / 10)  # two stages; ten of fifteen seconds were worked


def test_nothing_is_known_of_a_stage_that_was_never_timed() -> None:
    stages = [stage("a"), stage("b", "predict x", family="g")]
    forecast = Forecast(stages, 0.0)
    forecast.started(stages[0], 0.0)
    assert forecast.left(1.0) is None
    forecast.finished(stages[0], "done", 2.0)
    assert forecast.left(2.0) == pytest.approx(2.0)  # like what is over


def test_a_first_step_that_compiles_does_not_tell_how_long_the_others_take() -> None:
    one = stage("one")
    forecast = Forecast([one], 0.0)
    forecast.started(one, 0.0)
    forecast.progressed(one, 1, 1001, 60.0, 0)
    assert forecast.stage_left(one, 60.0) is None
    forecast.progressed(one, 101, 1001, 70.0, 0)
    assert forecast.stage_left(one, 70.0) == pytest.approx(90.0)
