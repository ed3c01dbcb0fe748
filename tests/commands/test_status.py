"""`status` and `logs`: what runs, failed and is left in a store, wherever it was started."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import toys
import yaml
from toys import TOYS

from bpcbench.cli import main
from bpcbench.registry.discovery import Registry
from bpcbench.running.standing import Standing, select
from bpcbench.session import Session
from bpcbench.store import runs as module
from bpcbench.store.invocations import invocations
from bpcbench.store.runs import FailureRecord, Journal
from bpcbench.store.store import Store


class Bench:
    """The toy suite in a store: everything but some predictions was run."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "small.yaml"
        self.out = folder / "store"
        self.file.write_text(yaml.safe_dump(yaml.safe_load(TOYS)))
        words = ["run", str(self.file), "--out", str(self.out), "--in-process", "--no-mlflow", "--quiet"]
        assert main(words) == 0
        self.store = Store.open(self.out)
        (self.found,) = invocations(self.store)

    def stage(self, kind: str) -> Any:
        """Remove the results of one stage; return it as planned."""
        plan = Session(str(self.file), out=self.out).plan()
        planned = next(planned for planned in plan.stages if planned.kind == kind)
        for address in planned.stage.addresses:
            self.store.remove(address)
        for cell in self.found.manifest.cells if kind != "score" else ():
            for address in cell.scores.values():
                if self.store.has(address) and (kind == "coreset" or f"predict:{cell.predict}" == planned.id):
                    self.store.remove(address)
        return planned

    def journal(self, command: str = "bpcbench run small") -> Journal:
        """Begin a run of this very process."""
        return Journal.begin(
            self.found.path, command=command, overrides=(), request="", description="", shown=(), stale=()
        )

    def say(self, planned: Any, done: int, **metrics: float) -> Path:
        """Write events of an attempt, as a worker does."""
        attempt = self.store.scratch(planned.id) / "attempt"
        attempt.mkdir(parents=True, exist_ok=True)
        lines = [{"t": 1.0, "what": "", "step": done, "m": metrics}] if metrics else []
        lines.append({"t": 10.0, "what": "", "done": done, "total": 100, "loop": 0})
        with (attempt / "events.jsonl").open("a") as stream:
            stream.writelines(json.dumps(line) + "\n" for line in lines)
        return attempt

    def log(self, planned: Any, text: str) -> Path:
        address = planned.stage.addresses[0]
        path = self.out / "logs" / f"{address.kind}-{address.key[:12]}-{address.folder}.log"
        path.parent.mkdir(exist_ok=True)
        with path.open("a") as stream:
            stream.write(text)
        return path


@pytest.fixture
def bench(install: Callable[..., Registry], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Bench:
    install(toys)
    made = Bench(tmp_path)
    capsys.readouterr()
    return made


def test_a_finished_suite_is_two_lines(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--out", str(bench.out)]) == 0
    name, ended, done = capsys.readouterr().out.splitlines()
    assert name == str(bench.file)
    assert re.fullmatch(r"  ended \d+\.\d s ago on \S+", ended)
    assert re.fullmatch(r"  (\d+) of \1 evaluations done", done)


def test_what_runs_failed_and_is_left(
    bench: Bench, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HEARTBEAT_SECONDS", -1.0)
    coreset, predict = bench.stage("coreset"), bench.stage("predict")
    journal = bench.journal()
    failure = FailureRecord(predict.id, predict.label, "ValueError: too small", "")
    journal.beat([coreset.id], [failure], {coreset.id: f"coreset {coreset.label}"})
    bench.say(coreset, 40, loss=0.25)
    assert main(["status", "--out", str(bench.out)]) == 0
    text = capsys.readouterr().out
    assert re.search(r"^  running for .* \(process \d+\); last sign of life .* ago$", text, re.M)
    assert re.search(r"^  \d+ of \d+ evaluations done, \d+ running", text, re.M)
    assert f"  running: coreset {coreset.label}: step 40 of 100 (40 %), about 15 s left; loss 0.25" in text
    assert "to go on" not in text
    journal.end(exit_code=130, counts={}, failures=[failure])
    assert main(["status", "--out", str(bench.out), bench.found.name]) == 0
    text = capsys.readouterr().out
    assert re.search(r"^  was stopped \d", text, re.M)
    assert f"  interrupted: coreset {coreset.label}: step 40 of 100 (40 %)" in text
    assert f"failed: predict {predict.label}: ValueError: too small" in text
    assert f"log: bpcbench logs predict-{predict.stage.key[:12]} --out {bench.out}" in text
    assert "  to go on: bpcbench run small" in text
    assert main(["status", "--out", str(bench.out), "--json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)
    states = {stage["id"]: stage["state"] for stage in one["stages"]}
    assert (states[coreset.id], states[predict.id]) == ("interrupted", "failed")


def test_a_run_that_was_killed_is_told_from_one_that_goes_on(
    bench: Bench, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    coreset = bench.stage("coreset")
    monkeypatch.setattr(module.os, "getpid", lambda: 2**22 + 1)  # no process has this number
    bench.journal()
    monkeypatch.undo()
    bench.say(coreset, 7)
    assert main(["status", "--out", str(bench.out)]) == 0
    text = capsys.readouterr().out
    assert "  was killed, last sign of life " in text
    assert "interrupted: coreset" in text


def test_logs_are_found_by_words_and_by_key(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    coreset = bench.stage("coreset")
    bench.log(coreset, "one\ntwo\n")
    for words in (coreset.label.split(), [f"coreset {coreset.label}"], [coreset.stage.key[:6]]):
        extra = ["coreset"] if len(words) > 1 else []
        assert main(["logs", *extra, *words, "--out", str(bench.out)]) == 0
        printed = capsys.readouterr()
        assert printed.out == "one\ntwo\n"
        assert printed.err.startswith("left: coreset ")


def test_without_words_it_is_the_one_that_failed(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    predict = bench.stage("predict")
    bench.log(predict, "Traceback\n")
    bench.journal().end(exit_code=1, counts={}, failures=[FailureRecord(predict.id, predict.label, "oops", "")])
    assert main(["logs", "--out", str(bench.out)]) == 0
    printed = capsys.readouterr()
    assert (printed.out, f"failed: predict {predict.label}: oops" in printed.err) == ("Traceback\n", True)


def test_words_that_name_nothing_or_too_much_are_answered_with_what_there_is(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["logs", "corset", "--out", str(bench.out)]) == 2
    assert "no stage of this store has 'corset' in its label or key; did you mean 'coreset'?" in capsys.readouterr().err
    assert main(["logs", "coreset", "--out", str(bench.out)]) == 2
    said = capsys.readouterr().err
    assert re.search(r"'coreset' names \d+ stages; add words", said)
    assert re.search(r"^  coreset-[0-9a-f]{12}  done ", said, re.M)
    assert "score" not in said


def test_a_log_is_followed_until_its_stage_is_over(
    bench: Bench, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HEARTBEAT_SECONDS", -1.0)
    monkeypatch.setattr("bpcbench.commands.status.POLL_SECONDS", 0.05)
    coreset = bench.stage("coreset")
    journal = bench.journal()
    journal.beat([coreset.id], [], {coreset.id: f"coreset {coreset.label}"})
    bench.log(coreset, "begun\n")

    def work() -> None:
        for step in (10, 20):
            time.sleep(0.3)
            bench.say(coreset, step, loss=1.0 / step)
            bench.log(coreset, f"step {step}\n")
        journal.end(exit_code=0, counts={}, failures=[])

    worker = threading.Thread(target=work)
    worker.start()
    assert main(["logs", "--follow", "--out", str(bench.out)]) == 0
    worker.join()
    printed = capsys.readouterr()
    assert printed.out == "begun\nstep 10\nstep 20\n"
    assert "step 10 of 100 (10 %), about 1 min 30 s left; loss 0.1" in printed.err


@pytest.mark.parametrize("words", [["status"], ["logs", "vbpc"]])
def test_a_folder_that_is_no_store_is_refused(words: list[str], tmp_path: Path, capsys: Any) -> None:
    assert main([*words, "--out", str(tmp_path)]) == 2
    assert "is not a store; run a suite first" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_suite_that_was_not_run_is_answered_with_what_was(bench: Bench, capsys: Any) -> None:
    assert main(["status", bench.found.name[:-1], "--out", str(bench.out)]) == 2
    assert f"did you mean {bench.found.name!r}?" in capsys.readouterr().err


def test_seeds_and_steps_are_one_word_with_their_number() -> None:
    labels = ["coreset d ipc 1 m seed 10", "coreset d ipc 10 m seed 1", "predict d ipc 1 m / i / n seed 10.1"]
    stages = [Standing(f"coreset:{i}" * 8, label, "done") for i, label in enumerate(labels)]
    assert select(stages, ["ipc", "10"]) == [stages[1]]
    assert select(stages, ["seed=10"]) == [stages[0]], "a prediction's seed is 10.1"
    assert select(stages, ["n seed 10"]) == [stages[2]]
    assert select(stages, ["predict d ipc 1 m / i / n seed 10.1"]) == [stages[2]]
    assert select(stages, ["coreset", "ipc", "1"]) == [stages[0]]
