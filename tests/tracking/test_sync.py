"""`bpcbench sync` brings MLflow to what the store has, whatever a run could not log."""

from __future__ import annotations

import os
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path

import pytest
import toys

import bpcbench
from bpcbench import Session
from bpcbench.cli import main
from bpcbench.store.invocations import invocations
from bpcbench.store.store import Store
from bpcbench.tracking.location import quiet_environment, tracking_uri
from bpcbench.tracking.mlflow import Book
from bpcbench.tracking.summary import summaries

SUITE = toys.TOYS.replace("[pick]", "[pick, growing]").replace("[1, 2]", "[1]") + "metrics: [right]\nname: late\n"


@dataclass(frozen=True)
class Growing(toys.Pick):
    """Takes steps and keeps snapshots; fails while a file exists."""

    name = "growing"

    def distil(self, data, ipc, inputs, ctx):
        if Path(toys.__file__).with_name("growing.no").exists():
            print("the reason is in the log")
            raise RuntimeError("not today")
        made = super().distil(data, ipc, inputs, ctx)
        for _ in ctx.steps(5, state={"images": made.images}, snapshot=lambda: made):
            made.images[:] += 0.001
        return made


class Bench:
    """The suite, its store, and what MLflow shows of it."""

    def __init__(self, suite, store):
        self.suite, self.store = suite, store

    def run(self, *overrides, **more):
        return bpcbench.run(self.suite, overrides, out=self.store, inline=True, quiet=True, **more)

    def sync(self):
        assert main(["sync", "--out", str(self.store)]) == 0

    @property
    def client(self):
        quiet_environment()
        from mlflow import MlflowClient

        return MlflowClient(tracking_uri(self.store))

    def runs(self, kind):
        experiment = self.client.get_experiment_by_name("late").experiment_id
        return self.client.search_runs([experiment], f"tags.`bpcbench.kind` = '{kind}'")

    def artifacts(self, run):
        """The files of a run by name, wherever they lie."""
        address = run.info.artifact_uri
        if address.startswith("mlflow-artifacts:"):
            folder = self.store / "mlflow-artifacts" / address.removeprefix("mlflow-artifacts:/")
        else:
            folder = Path(address.removeprefix("file://"))
        return {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def empty_database(tmp_path_factory):
    """A database without experiments; making one takes MLflow seconds."""
    quiet_environment()
    from mlflow import MlflowClient

    file = tmp_path_factory.mktemp("empty") / "mlflow.db"
    MlflowClient(f"sqlite:///{file}").search_experiments()
    return file


@pytest.fixture
def bench(tmp_path, monkeypatch, install, write_suite, empty_database):
    install(toys, Growing)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr(toys, "__file__", str(tmp_path / "toys.py"))
    monkeypatch.chdir(tmp_path)
    Store.open(tmp_path / "store")
    shutil.copy(empty_database, tmp_path / "store" / "mlflow.db")
    return Bench(write_suite(SUITE), tmp_path / "store")


@pytest.fixture(scope="module")
def finished_store(tmp_path_factory):
    """Where the store of the whole suite is kept once a test has run it."""
    return tmp_path_factory.mktemp("finished") / "store"


@pytest.fixture
def finished(bench, finished_store):
    """A bench whose suite has run."""
    if finished_store.exists():
        shutil.rmtree(bench.store)
        shutil.copytree(finished_store, bench.store)
    else:
        assert bench.run().exit_code == 0
        shutil.copytree(bench.store, finished_store)
    return bench


def test_the_page_reaches_a_server_with_the_first_sync(bench, tmp_path, monkeypatch, capsys):
    (bench.store / "mlflow.db").rename(tmp_path / "server.db")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'server.db'}")
    monkeypatch.setattr("bpcbench.tracking.live.SERVER_SECONDS", 60.0)
    assert bench.run().exit_code == 0
    (parent,) = bench.runs("suite")
    assert "table.md" in bench.artifacts(parent)
    assert "report.html" not in bench.artifacts(parent)
    bench.sync()
    assert "0 cells added" in capsys.readouterr().out
    (after,) = bench.runs("suite")
    assert "<h1>late</h1>" in bench.artifacts(after)["report.html"].read_text()
    assert (after.info.run_id, after.info.end_time) == (parent.info.run_id, parent.info.end_time)
    bench.artifacts(after)["report.html"].unlink()
    bench.sync()
    assert "report.html" not in bench.artifacts(after), "what has arrived is not sent again"


def test_a_story_that_a_run_could_not_tell_is_told_by_sync(bench, monkeypatch):
    def refuse(book, story):
        raise ConnectionError("the server is gone")

    said = []
    with monkeypatch.context() as patch:
        patch.setattr(Book, "_tell", refuse)
        assert bench.run(report_to=said.append).exit_code == 0
    assert any("the server is gone" in line for line in said)
    (before,) = bench.runs("suite")
    assert "| pick" not in before.data.tags["mlflow.note.content"]
    bench.sync()
    check_story(bench, before)


def test_the_run_of_a_tracker_that_was_given_up_is_completed(finished):
    client, (before,) = finished.client, finished.runs("suite")
    for tag in ("bpcbench.told", "bpcbench.attached", "mlflow.note.content"):
        client.delete_tag(before.info.run_id, tag)
    for path in finished.artifacts(before).values():
        path.unlink()
    # The process lives on, as that of a notebook does.
    client.set_tag(before.info.run_id, "bpcbench.process", f"{socket.gethostname()}:{os.getpid()}")
    client.update_run(before.info.run_id, "RUNNING")
    finished.sync()
    check_story(finished, before)


def test_running_again_tells_what_was_never_told(finished):
    (before,) = finished.runs("suite")
    finished.client.delete_tag(before.info.run_id, "bpcbench.told")
    finished.client.update_run(before.info.run_id, "KILLED")
    assert finished.run().counts == {}
    check_story(finished, before)


def check_story(bench, before):
    (parent,) = bench.runs("suite")
    assert parent.info.run_id == before.info.run_id
    assert parent.info.status == "FINISHED"
    assert "| pick" in parent.data.tags["mlflow.note.content"]
    assert parent.data.metrics["best/dots ipc 1/right"] > 0
    assert {"table.md", "differences.md", "report.html"} <= set(bench.artifacts(parent))
    assert parent.data.tags["bpcbench.told"]
    assert parent.info.end_time >= parent.info.start_time


def test_cells_that_all_failed_without_mlflow_are_added_with_their_logs(bench, tmp_path, capsys):
    (tmp_path / "growing.no").touch()
    assert bench.run("methods=[growing]", track=False).exit_code == 1
    bench.sync()
    assert "0 cells added to MLflow and 4 that failed" in capsys.readouterr().out
    failed = bench.runs("cell")
    assert [run.info.status for run in failed] == ["FAILED"] * 4
    for run in failed:
        assert "not today" in run.data.tags["failed.reason"]
        assert "RuntimeError: not today" in bench.artifacts(run)["failed.log"].read_text()
    assert [run.info.status for run in bench.runs("suite")] == ["FAILED"]
    bench.sync()
    assert "0 cells added to MLflow\n" in capsys.readouterr().out
    assert {run.info.run_id for run in bench.runs("cell")} == {run.info.run_id for run in failed}
    (tmp_path / "growing.no").unlink()
    assert bench.run("methods=[growing]", track=False).exit_code == 0
    bench.sync()
    assert [run.info.status for run in bench.runs("cell")] == ["FINISHED"] * 4


def test_the_curves_of_snapshots_are_added_once_they_are_there(finished):
    (parent,) = finished.runs("suite")
    assert not any(name.startswith("anytime/") for name in finished.artifacts(parent))
    view, _ = Session(finished.suite, out=finished.store, inline=True, quiet=True, track=False).anytime()
    assert view is not None
    finished.sync()
    (after,) = finished.runs("suite")
    assert after.info.run_id == parent.info.run_id
    assert "<svg" in finished.artifacts(after)["anytime/dots-ipc1-right.svg"].read_text()


def test_runs_of_other_settings_have_names_that_differ(finished):
    assert finished.run("methods=[pick]", "seeds.distil=1").exit_code == 0

    def names(kind):
        return sorted(run.data.tags["mlflow.runName"] for run in finished.runs(kind))

    digests = {run.data.tags["bpcbench.digest"]: run.data.tags["mlflow.runName"] for run in finished.runs("summary")}
    (old,) = {digest for digest, name in digests.items() if name.startswith("older ")}
    mark = f"older {old[:4]}: "
    assert names("summary") == sorted([f"{mark}growing", f"{mark}pick", "pick"])
    assert [name for name in names("cell") if not name.startswith("older")] == ["pick seed 0.0", "pick seed 0.1"]
    assert len(names("cell")) == 8
    assert finished.run().counts == {}, "the first settings are the current ones again"
    assert [name for name in names("summary") if not name.startswith("older")] == ["growing", "pick"]
    assert not [name for name in names("cell") if name.startswith("older")]
    before = names("summary")
    finished.sync()
    assert names("summary") == before


def seconds_of(store, addresses):
    return sum(float(store.meta(address).get("seconds") or 0.0) for address in addresses)


def test_the_duration_of_a_cell_is_what_its_prediction_and_scores_took(finished):
    store = Store.open(finished.store)
    (one,) = invocations(store)
    runs = {run.data.tags["bpcbench.cell"]: run for run in finished.runs("cell")}
    for cell in one.manifest.cells:
        run, took = runs[cell.key], seconds_of(store, (*cell.predictions[:1], *cell.scores.values()))
        assert took > 0
        assert run.info.end_time - run.info.start_time == round(1000 * took)


def test_the_duration_of_a_line_is_what_its_stages_took(finished):
    store = Store.open(finished.store)
    (one,) = invocations(store)
    for summary in summaries(one.manifest, store):
        cells = [cell for cell in one.manifest.cells if cell.group == summary.group]
        made = {address for cell in cells for address in (*cell.coresets, *cell.predictions[:1], *cell.scores.values())}
        took = seconds_of(store, made)
        assert took > 0
        assert summary.milliseconds == round(1000 * took)
        (run,) = [run for run in finished.runs("summary") if run.data.params["method"] == summary.group.method]
        assert run.info.end_time - run.info.start_time == summary.milliseconds
        assert run.info.end_time == summary.ended


def test_snapshots_are_the_steps_of_one_image(finished):
    (summary,) = [run for run in finished.runs("summary") if run.data.params["method"] == "growing"]
    pictures = [name.removeprefix("images/") for name in finished.artifacts(summary) if name.startswith("images/")]
    steps = {}
    for name in pictures:
        key, step, moment = name.split("+")[0], int(name.split("+")[2]), int(name.split("+")[4])
        assert moment > 1_600_000_000_000
        steps.setdefault(key, set()).add(step)
    assert steps == {"coresets~seed 0": {0, 1, 2, 5, 6}, "coresets~seed 1": {0}}, "the end is a step of its own"


def test_cells_have_their_data_set(finished):
    for run in finished.runs("cell"):
        (found,) = run.inputs.dataset_inputs
        assert found.dataset.name == "dots"
