"""MLflow is a faithful view of the store, and a run does not need it."""

from __future__ import annotations

import base64
import json
import shutil
import socket
import zlib
from pathlib import Path
from xml.etree import ElementTree

import pytest

import bpcbench
from bpcbench import Session
from bpcbench.cli import main
from bpcbench.store.manifest import manifest_folders, read_manifest
from bpcbench.tracking import mlflow as tracking

SUITE = """
name: tracked
description: Two baselines.
protocol: 1
datasets: [digits]
ipc: [1]
methods: [random, kmeans]
inferences: {network: {steps: 30}}
networks: {conv-nn: {width: 4}}
seeds: {distil: 1, evaluate: 2}
"""


@pytest.fixture(scope="module")
def tracked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tracked")
    (folder / "suite.yaml").write_text(SUITE)
    said: list[str] = []
    result = bpcbench.run(str(folder / "suite.yaml"), out=folder / "store", report_to=said.append)
    assert result.exit_code == 0
    return folder, said


def client_of(folder):
    tracking.quiet_environment()
    from mlflow import MlflowClient

    return MlflowClient(f"sqlite:///{folder / 'store' / 'mlflow.db'}")


def runs_of(client):
    experiment = client.get_experiment_by_name("tracked")
    runs = client.search_runs([experiment.experiment_id])
    cells = {run.data.tags["mlflow.runName"]: run for run in runs if run.data.tags["bpcbench.kind"] == "cell"}
    return cells, [run for run in runs if run.data.tags["bpcbench.kind"] == "suite"]


def summaries_of(client):
    experiment = client.get_experiment_by_name("tracked")
    runs = client.search_runs([experiment.experiment_id], "tags.`bpcbench.kind` = 'summary'")
    return {run.data.tags["mlflow.runName"]: run for run in runs}


def test_every_cell_is_a_finished_child_run(tracked):
    folder, _ = tracked
    client = client_of(folder)
    cells, parents = runs_of(client)
    assert len(cells) == 4
    (parent,) = parents
    assert parent.info.status == "FINISHED"
    frame = bpcbench.results(str(folder / "suite.yaml"), out=folder / "store")
    for run in cells.values():
        assert run.info.status == "FINISHED"
        assert run.data.tags["mlflow.parentRunId"] == parent.info.run_id
        assert run.data.params["option.inference.steps"] == "30"
        assert run.data.params["option.network.width"] == "4"
        params = run.data.params
        mine = frame[(frame.method == params["method"]) & (frame.evaluate_seed == int(params["evaluate_seed"]))]
        for _, row in mine.iterrows():
            assert run.data.metrics[row.metric] == pytest.approx(row.value, abs=1e-12)
        assert run.data.metrics["usage/coreset_bytes"] == 10 * (8 * 8 * 4 + 8), "float32 images, int64 class numbers"
        for name in ("dataset", "ipc", "network", "inference", "distil_seed"):
            assert params[name]
        for name in ("coreset.key", "predict.key", "commit", "bpcbench.digest"):
            assert run.data.tags[name]
        assert 0 < run.info.end_time - run.info.start_time < 60_000


def test_curves_are_complete_and_not_repeated(tracked):
    client = client_of(tracked[0])
    for run in runs_of(client)[0].values():
        history = client.get_metric_history(run.info.run_id, "trace/predict/network/loss")
        assert sorted(point.step for point in history) == list(range(30))


def artifact(folder, run, name):
    """The file of an artifact, found as a server does that is told where artifacts lie."""
    relative = run.info.artifact_uri.removeprefix("mlflow-artifacts:/")
    return folder / "store" / tracking.ARTIFACTS / relative / name


def test_pictures_are_attached(tracked):
    from PIL import Image

    folder, _ = tracked
    client = client_of(folder)
    summary, cell = summaries_of(client)["kmeans"], next(iter(runs_of(client)[0].values()))
    with Image.open(artifact(folder, summary, "coreset.png")) as picture:
        assert min(picture.size) > 100
    # MLflow's image grid reads the key, the step and the time from the name.
    images = sorted(path.name for path in artifact(folder, summary, "images").iterdir())
    assert [name.partition("+timestamp+")[0] for name in images] == ["coresets~seed 0+step+0"] * 2
    assert {Path(name).suffix for name in images} == {".png", ".webp"}
    assert summary.data.tags["mlflow.loggedImages"] == "True"
    for name in ("reliability.svg", "risk_coverage.svg"):
        assert ElementTree.parse(artifact(folder, cell, name)).getroot().tag == "{http://www.w3.org/2000/svg}svg"


def test_a_summary_is_a_line_of_the_table(tracked):
    folder, _ = tracked
    found = summaries_of(client_of(folder))
    assert set(found) == {"random", "kmeans"}, "only the method varies"
    report = Session(str(folder / "suite.yaml"), out=folder / "store").report("json", metrics=("acc", "nll", "ece"))
    cells = json.loads(report)["cells"]
    assert len(cells) == 6
    for cell in cells:
        run = found[cell["method"]]
        assert set(run.data.params) == {"dataset", "ipc", "method", "inference", "network"}
        assert run.data.metrics[cell["metric"]] == cell["mean"]
        assert run.data.metrics.get(f"{cell['metric']}_std") == cell["std"]
        assert run.data.metrics["n"] == cell["n"]
        assert not [name for name in run.data.metrics if name.startswith("within/")], "there is one block only"
        if cell["metric"] != "ece":
            assert run.data.tags[f"rank.{cell['metric']}"].startswith("1") == cell["best"]
        assert run.inputs.dataset_inputs[0].dataset.name == "digits"
        assert run.info.end_time > run.info.start_time


def test_a_manifest_that_is_read_has_the_digest_of_the_one_that_ran(tracked):
    folder, _ = tracked
    (place,) = manifest_folders(folder / "store")
    (parent,) = runs_of(client_of(folder))[1]
    assert read_manifest(place).digest == place.name == parent.data.tags["bpcbench.digest"]


def test_the_run_of_the_invocation_tells_the_story(tracked):
    folder, _ = tracked
    client = client_of(folder)
    (parent,) = runs_of(client)[1]
    table = artifact(folder, parent, "table.md").read_text()
    assert "| method | digits ipc 1" in table
    assert parent.data.tags["mlflow.note.content"].startswith(table.strip())
    assert "<h1>tracked</h1>" in artifact(folder, parent, "report.html").read_text()
    assert [one.dataset.name for one in parent.inputs.dataset_inputs] == ["digits"]
    assert "Paired differences to random" in artifact(folder, parent, "differences.md").read_text()
    assert json.loads(artifact(folder, parent, "suite.json").read_text())["name"] == "tracked"
    best = max(run.data.metrics["acc"] for run in summaries_of(client).values())
    assert parent.data.metrics["best/digits ipc 1/acc"] == best
    experiment = client.get_experiment_by_name("tracked")
    assert experiment.tags["mlflow.note.content"] == "Two baselines."


def test_other_settings_have_runs_of_their_own(tracked, tmp_path):
    shutil.copytree(tracked[0] / "store", tmp_path / "store")
    (tmp_path / "suite.yaml").write_text(SUITE)
    before = summaries_of(client_of(tmp_path))
    assert bpcbench.run(str(tmp_path / "suite.yaml"), ["methods=[kmeans]"], out=tmp_path / "store").counts == {}
    client = client_of(tmp_path)
    experiment = client.get_experiment_by_name("tracked")
    runs = client.search_runs([experiment.experiment_id])
    digests = {run.data.tags["bpcbench.digest"] for run in runs if run.data.tags["bpcbench.kind"] == "suite"}
    (old,) = {run.data.tags["bpcbench.digest"] for run in before.values()}
    assert len(digests) == 2
    (new,) = digests - {old}
    mine = client.search_runs([experiment.experiment_id], f"tags.`bpcbench.digest` LIKE '%{new}%'")
    kinds = sorted(run.data.tags["bpcbench.kind"] for run in mine)
    assert kinds == ["cell", "cell", "suite", "summary"], "the cells are shared, the summary is not"
    assert new in state_of(experiment.tags["mlflow.sharedViewState.results"])["searchFilter"]


def state_of(tag):
    return json.loads(zlib.decompress(base64.b64decode(json.loads(tag)["state"].removeprefix("deflate;"))))


def test_running_again_logs_nothing_new(tracked):
    folder, _ = tracked
    before = {run.info.run_id for run in [*runs_of(client_of(folder))[0].values(), *runs_of(client_of(folder))[1]]}
    assert bpcbench.run(str(folder / "suite.yaml"), out=folder / "store").counts == {}
    after = {run.info.run_id for run in [*runs_of(client_of(folder))[0].values(), *runs_of(client_of(folder))[1]]}
    assert before == after


def test_recomputing_replaces_the_runs(tracked, tmp_path):
    folder = tmp_path
    shutil.copytree(tracked[0] / "store", folder / "store")
    (folder / "suite.yaml").write_text(SUITE)
    before = runs_of(client_of(folder))[0]
    assert bpcbench.run(str(folder / "suite.yaml"), out=folder / "store", recompute=["kmeans"]).exit_code == 0
    after = runs_of(client_of(folder))[0]
    assert set(before) == set(after)
    for name, run in after.items():
        again = "kmeans" in name
        assert (run.info.run_id != before[name].info.run_id) == again
        assert run.data.metrics["nll"] == before[name].data.metrics["nll"]


def test_sync_rebuilds_what_was_lost(tracked, tmp_path, capsys):
    shutil.copytree(tracked[0] / "store", tmp_path / "store")
    expected = {name: run.data.metrics["nll"] for name, run in runs_of(client_of(tracked[0]))[0].items()}
    (tmp_path / "store" / "mlflow.db").unlink()
    assert main(["sync", "--out", str(tmp_path / "store")]) == 0
    assert "4 cells added" in capsys.readouterr().out
    cells = runs_of(client_of(tmp_path))[0]
    assert {name: run.data.metrics["nll"] for name, run in cells.items()} == expected
    for run in cells.values():
        # MLflow's page lists them in this order.
        names = list(run.data.metrics)
        first = [min(names.index(name) for name in names if name.startswith(kind)) for kind in ("usage/", "trace/")]
        assert names[:2] == ["acc", "nll"]
        assert names.index("ece") < first[0] < first[1]
    assert main(["sync", "--out", str(tmp_path / "store")]) == 0
    assert "0 cells added" in capsys.readouterr().out


def test_what_a_killed_invocation_left_is_cleared_away(tracked, tmp_path):
    shutil.copytree(tracked[0] / "store", tmp_path / "store")
    (tmp_path / "suite.yaml").write_text(SUITE)
    client = client_of(tmp_path)
    experiment = client.get_experiment_by_name("tracked").experiment_id
    tag = f"{socket.gethostname()}:999999999"
    dead = client.create_run(experiment, tags={tracking.PROCESS_TAG: tag}).info.run_id
    orphan = client.create_run(experiment, tags={tracking.CELL_TAG: "x", tracking.PARENT_TAG: dead}).info.run_id
    assert main(["sync", "--out", str(tmp_path / "store")]) == 0
    assert client.get_run(dead).info.status == "KILLED"
    assert client.get_run(orphan).info.lifecycle_stage == "deleted"


def test_an_unreachable_server_does_not_stop_a_run(tmp_path, monkeypatch, capsys):
    (tmp_path / "suite.yaml").write_text(SUITE)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://someone:secret@127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    said: list[str] = []
    overrides = ["methods=[random]", "seeds=1"]
    result = bpcbench.run(
        str(tmp_path / "suite.yaml"), overrides, out=tmp_path / "store", inline=True, report_to=said.append
    )
    assert result.exit_code == 0
    assert len(bpcbench.results(str(tmp_path / "suite.yaml"), overrides, out=tmp_path / "store")) > 0
    (complaint,) = [text for text in said if "MLflow" in text]
    assert "http://***@127.0.0.1:9 cannot be written" in complaint
    assert "secret" not in complaint
    assert "bpcbench sync" in complaint
    assert main(["sync", "--out", str(tmp_path / "store")]) == 2
    printed = capsys.readouterr()
    assert "cannot be written" in printed.err
    assert "secret" not in printed.err + printed.out
