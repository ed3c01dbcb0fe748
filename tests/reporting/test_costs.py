"""What `report --costs` prints, against the seconds and bytes that the stages noted themselves."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from bpcbench import Session, cli
from bpcbench.reporting.costs import Cost, costs

SUITE = """
name: costs
protocol: 1
datasets: [digits]
ipc: [2]
methods:
  random:
  bpc-fkl: {trajectories: &experts {epochs: 2, lr: 0.05, batch: 256, augmentation: none, network: {width: 4}},
            experts: 2, max_start: 1, steps: 3, inner_steps: 2, draws: 1, augmentation: none}
  bpc-w: {trajectories: *experts, experts: 1, max_start: 1, steps: 3, inner_steps: 2, augmentation: none}
  vbpc: {steps: 3, batch: 64, network: {plugin: conv-bn, width: 4}, augmentation: none, pool: 2, updates: 4}
inferences:
  vi: {steps: 2, augmentation: none}
networks:
  conv-bn: {width: 4}
metrics: [acc, nll]
seeds: {distil: 2, evaluate: 2}
threads: 1
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a suite that was run in this process."""
    place = tmp_path_factory.mktemp("costs")
    (place / "costs.yaml").write_text(SUITE)
    session = Session(str(place / "costs.yaml"), out=place / "out", inline=True, track=False, quiet=True)
    assert session.run().exit_code == 0
    return place


def _words(folder: Path, *more: str) -> list[str]:
    return ["report", str(folder / "costs.yaml"), "--out", str(folder / "out"), "--costs", *more]


def _printed(folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, dict[str, str]]]:
    """Return the records of the CSV by method and column."""
    assert cli.main(_words(folder, "--format", "csv")) == 0
    printed: dict[str, dict[str, dict[str, str]]] = {}
    for record in csv.DictReader(io.StringIO(capsys.readouterr().out)):
        printed.setdefault(record["method"], {})[record["metric"]] = record
    return printed


def _stages(folder: Path, kind: str, plugin: str | None = None) -> list[dict[str, Any]]:
    found = [json.loads(path.read_text()) for path in (folder / "out" / "stages" / kind).glob("*/*/stage.json")]
    role = "plugin" if kind == "prerequisite" else "method"
    return [meta for meta in found if plugin is None or meta["stage"][role]["$plugin"]["name"] == plugin]


def _costs(folder: Path) -> dict[str, Cost]:
    view = Session(str(folder / "costs.yaml"), out=folder / "out").view()
    return {cost.method: cost for cost in costs(view.manifest, view.store)}


def test_distillation_is_the_mean_of_the_coresets(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = _printed(folder, capsys)
    for method, cost in _costs(folder).items():
        made = [meta for meta in _stages(folder, "coreset", method) if meta["member"] == "final"]
        one, other = (meta["cpu_seconds"] for meta in made)
        assert cost.distil.mean == pytest.approx((one + other) / 2)
        assert cost.distil.std == pytest.approx(abs(one - other) / 2**0.5)
        assert printed[method]["distil s"]["text"] == f"{cost.distil.mean:.1f}±{cost.distil.std:.1f}"
        assert float(printed[method]["distil s"]["mean"]) == cost.distil.mean
        peak = max(meta["peak_memory_bytes"] for meta in made)
        assert float(printed[method]["peak MB"]["mean"]) == pytest.approx(peak / 1e6)
        assert printed[method]["timed"]["text"] == "alone"


def test_stages_that_ran_beside_others_are_marked(folder: Path, tmp_path: Path) -> None:
    suite = str(folder / "costs.yaml")
    overrides = ["methods={random: }", "seeds.evaluate=1"]
    session = Session(suite, overrides, out=tmp_path / "out", jobs=2, track=False, quiet=True)
    assert session.run().exit_code == 0
    view = session.view()
    (cost,) = costs(view.manifest, view.store)
    assert cost.shared
    assert cost.cells()[-1].mean == "shared"


def test_bytes_are_those_of_images_and_targets(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = {method: int(line["bytes"]["mean"]) for method, line in _printed(folder, capsys).items()}
    images = 2 * 10 * 8 * 8 * 4
    assert found["bpc-fkl"] == images + 20 * 8, "class numbers are int64"
    assert found["vbpc"] == images + 20 * 10 * 4, "and learned labels a vector each"


def test_experts_are_charged_in_full_and_divided(folder: Path) -> None:
    """Two methods share the first expert, only one uses the second, and four share the means of the pixels."""
    seconds = {meta["member"]: meta["cpu_seconds"] for meta in _stages(folder, "prerequisite", "trajectories")}
    assert len(seconds) == 2
    first, second = (seconds[name] for name in sorted(seconds))
    (means,) = (meta["cpu_seconds"] for meta in _stages(folder, "prerequisite", "standardize"))
    found = _costs(folder)
    wanted = {
        "bpc-fkl": (first + second + means, first / 2 + second + means / 4),
        "bpc-w": (first + means, first / 2 + means / 4),
        "vbpc": (means, means / 4),
    }
    for method, (full, share) in wanted.items():
        assert found[method].prepare == pytest.approx(full)
        assert found[method].share == pytest.approx(share)


def test_inference_is_a_fit_and_its_predictions(folder: Path) -> None:
    spent: dict[str, float] = {}
    for meta in _stages(folder, "predict"):
        spent[meta["key"]] = max(spent.get(meta["key"], 0.0), meta["cpu_seconds"])
    assert len(spent) == 4 * 2 * 2
    means = [cost.infer.mean for cost in _costs(folder).values()]
    assert sum(means) / 4 == pytest.approx(sum(spent.values()) / 16)


def test_what_was_pruned_leaves_a_gap(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    for meta in _stages(copy, "prerequisite", "trajectories"):
        shutil.rmtree(copy / "out" / "stages" / "prerequisite" / meta["key"], ignore_errors=True)
    printed = _printed(copy, capsys)
    assert [printed["bpc-w"][name]["text"] for name in ("prep s", "share s")] == ["—", "—"]
    assert printed["vbpc"]["prep s"]["mean"] != ""


def test_text_says_what_the_columns_are(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(_words(folder)) == 0
    out = capsys.readouterr().out
    assert "share s: divided among the methods of the suite" in " ".join(out.split())
    assert out.splitlines()[0] == "costs (protocol 1, test split). Costs"
    assert out.splitlines()[3].split()[:2] == ["method", "bytes"]


def test_a_folder_that_is_no_store_is_refused(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", str(folder / "costs.yaml"), "--out", str(tmp_path / "no"), "--costs"]) == 2
    assert "is not a store" in capsys.readouterr().err
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(("format", "start"), [("latex", "% needs"), ("json", "{"), ("md", "**costs")])
def test_costs_have_the_formats_of_tables(
    folder: Path,
    format: str,  # noqa: A002
    start: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(_words(folder, "--format", format)) == 0
    assert capsys.readouterr().out.startswith(start)


def test_costs_or_differences_not_both(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(_words(folder, "--against", "random"))
    assert ended.value.code == 2
    assert "not allowed with argument" in capsys.readouterr().err


def test_measured_memory_has_columns_and_the_published_number_below(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The naive loss holds several h x h arrays at a time, the efficient one none."""
    width = 128 * 2 * 2
    (tmp_path / "memory.yaml").write_text("""
datasets: [digits]
ipc: [1]
methods:
  small: &options {plugin: vbpc, steps: 1, batch: 8, pool: 1, measure: true, network: &net {plugin: conv-bn, width: 64}}
  naive: {plugin: vbpc, steps: 1, batch: 8, pool: 1, measure: true, naive: true, network: *net}
inferences: {vi: {steps: 1, measure: true}, vi-naive: {plugin: vi, steps: 1, measure: true, naive: true}}
networks: {conv-bn: {width: 64}}
exclude: [{method: small, inference: vi-naive}, {method: naive, inference: vi}]
seeds: 1
""")
    session = Session(str(tmp_path / "memory.yaml"), out=tmp_path / "out", inline=True, track=False, quiet=True)
    assert session.run().exit_code == 0
    view = session.view()
    found = {cost.method: cost.measured for cost in costs(view.manifest, view.store)}
    square = 4 * width**2 / 1e6
    assert set(found["small"]) == {"loss MB", "BMA MB"}
    assert found["small"]["loss MB"] < square
    assert found["small"]["BMA MB"] < 2 * square, "the features of a batch of 250 are about one"
    assert found["naive"]["loss MB"] > 3 * square
    assert found["naive"]["BMA MB"] > 3 * square
    rows = session.rows()
    by_method = {row.method: row.value for row in rows if row.metric == "acc"}
    assert by_method["small"] == pytest.approx(by_method["naive"], abs=0.02)
    assert cli.main(["report", str(tmp_path / "memory.yaml"), "--out", str(tmp_path / "out"), "--costs"]) == 0
    assert "the largest amount that its tensors take at a time" in " ".join(capsys.readouterr().out.split())
