"""Tuning: trials on the validation split only, the suite's own setting first, a preset and a record of the trials."""

from __future__ import annotations

import csv

import pytest
import yaml

import bpcbench
from bpcbench import Session
from bpcbench.cli import main
from bpcbench.errors import BpcbenchError
from bpcbench.suite import space as tuning
from bpcbench.suite.document import parse
from bpcbench.suite.files import load

SUITE = """
protocol: 1
datasets: [digits]
ipc: [1, 2]
methods: {kmeans: {iterations: 7}, random: }
inferences: {network: {steps: 5}}
cases:
  - when: {ipc: 2}
    set: {methods.kmeans.iterations: 9}
tune:
  trials: 3
  space:
    kmeans: {iterations: [1, 2, 3, 4, 5]}
"""


def test_the_first_trial_is_the_suite_itself_and_none_repeats():
    found = tuning.declared(parse(SUITE, "s"))
    assert [trial.number for trial in found.trials] == [1, 2, 3]
    assert found.trials[0].setting == {}
    assert len({str(trial.setting) for trial in found.trials}) == 3
    assert found == tuning.declared(parse(SUITE, "s"))


def test_trials_use_the_validation_split_and_cases_yield_to_their_settings(registry):
    from bpcbench.suite.validation import validate

    doc = parse(SUITE, "s")
    found = tuning.declared(doc)
    suite = validate(registry, tuning.trial_document(doc, found, "s"))
    assert suite.split == "validation"
    assert (suite.distil_seeds, suite.evaluate_seeds) == (1, 1)
    for ipc, own in ((1, 7), (2, 9)):
        chosen = suite.settings["digits", ipc].methods
        for trial in found.trials:
            assert chosen[trial.label].plugin.iterations == trial.setting.get("iterations", own)


def test_each_method_is_judged_under_one_inference(registry):
    from bpcbench.suite.validation import validate

    text = SUITE.replace(
        "kmeans: {iterations: [1, 2, 3, 4, 5]}", "kmeans: {iterations: [1, 2, 3, 4, 5]}\n    vbpc: {lr: [1, 2]}"
    )
    doc = parse(text.replace("random: }", "random: , vbpc: }") + "  inference: {kmeans: network}\n", "s")
    found = tuning.declared(doc)
    suite = validate(registry, tuning.trial_document(doc, found, "s"))
    assert suite.settings["digits", 1].inferences["network"].steps == 5
    for method, inference, expected in (
        ("kmeans-trial-1", "network", False),
        ("kmeans-trial-1", "native", True),
        ("vbpc-trial-1", "network", True),
        ("vbpc-trial-1", "native", False),
    ):
        cell = {"dataset": "digits", "ipc": 1, "method": method, "inference": inference, "network": "native"}
        assert suite.excluded(**cell) is expected


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("split: test\n" + SUITE, "tuning on the test split is not allowed"),
        (SUITE.replace("trials: 3", "trials: 1"), "integer above 1"),
        (SUITE.replace("[1, 2, 3, 4, 5]", "many"), "expected a list of values"),
        (SUITE.replace("[1, 2, 3, 4, 5]", "{low: 0, high: 1, log: true}"), "expected a list of values"),
        (SUITE.replace("{iterations: [1, 2, 3, 4, 5]}", "{a: [1], b: [1], c: [1], d: [1]}"), "1 to 3 options"),
        (SUITE.partition("tune:")[0], "nothing to tune"),
        (SUITE.replace("trials: 3", "trial: 3"), "tune.trial: unknown key 'trial'; did you mean 'trials'"),
        (SUITE.replace("trials: 3", "trials: 3\n  objective: nlll"), "unknown metric 'nlll'; did you mean 'nll'"),
        (SUITE.replace("    kmeans: {iterations: [", "    kmens: {iterations: ["), "no method with this label"),
        (SUITE + "  inference: {kmeans: netwrk}\n", "unknown inference of the suite 'netwrk'; did you mean 'network'"),
        (SUITE + "  inference: {random: network}\n", "unknown method of the space 'random'"),
        (SUITE + "  inference: network\n", "expected {METHOD: INFERENCE}"),
        (SUITE.replace("kmeans: {iterations: [1, 2, 3, 4, 5]}", "kmeans: false"), "every method is excluded"),
    ],
)
def test_wrong_declarations_are_refused(text, complaint, tmp_path):
    (tmp_path / "s.yaml").write_text(text)
    with pytest.raises(BpcbenchError, match=complaint):
        Session(str(tmp_path / "s.yaml"), out=tmp_path / "store", inline=True).tune()
    assert not (tmp_path / "store").exists()


def test_a_mistake_of_the_suite_is_said_once(tmp_path):
    (tmp_path / "s.yaml").write_text(SUITE.replace("kmeans: {iterations: 7}", "kmeans: {iteration: 7}"))
    with pytest.raises(BpcbenchError) as caught:
        Session(str(tmp_path / "s.yaml"), out=tmp_path / "store", inline=True).tune()
    assert str(caught.value).count("did you mean 'iterations'") == 1


def test_a_method_of_the_space_can_be_left_out():
    text = SUITE.replace("    kmeans: {", "    random: {x: [1, 2]}\n    kmeans: {")
    for changed in (text.replace("random: {x: [1, 2]}", "random: false"), text.replace("random: }", "random: false}")):
        found = tuning.declared(parse(changed, "s"))
        assert {trial.method for trial in found.trials} == {"kmeans"}


def test_a_preset_names_the_best_setting_and_is_extended(tmp_path, capsys, registry):
    (tmp_path / "s.yaml").write_text(SUITE)
    words = ["tune", str(tmp_path / "s.yaml"), "networks={conv-nn: {width: 4}}", "ipc=[2]", "--quiet"]
    assert main([*words, "--out", str(tmp_path / "store"), "--output", str(tmp_path / "preset.yaml")]) == 0
    assert str(tmp_path / "preset.yaml") in (message := capsys.readouterr().err)
    assert str(tmp_path / "records" / "preset.csv") in message
    text = (tmp_path / "preset.yaml").read_text()
    assert text.startswith("# Written by `bpcbench tune ")
    preset = yaml.safe_load(text)
    assert preset["tuned"] == {
        "kmeans": {"trials": 3, "objective": "validation nll", "record": "records/preset.csv"},
    }
    with (tmp_path / "records" / "preset.csv").open(newline="") as file:
        tried = list(csv.DictReader(file))
    assert [(item["method"], item["dataset"], item["ipc"]) for item in tried] == [("kmeans", "digits", "2")] * 3
    assert {item["trial"] for item in tried} == {"1", "2", "3"}
    values = [float(item["value"]) for item in tried]
    assert values == sorted(values)
    assert [item["best"] for item in tried] == ["true", "false", "false"]
    assert [item["set.iterations"] for item in tried if item["trial"] == "1"] == [""]
    own = (tmp_path / "s.yaml").read_text().partition("tune:")[0]
    (tmp_path / "final.yaml").write_text(f"extends: preset.yaml\n{own}")
    suite = load(registry, str(tmp_path / "final.yaml"))
    best = int(tried[0]["set.iterations"] or 7)
    # The suite's own cases come after the preset's and win.
    assert suite.settings["digits", 2].methods["kmeans"].plugin.iterations == 9
    assert suite.tried == {"kmeans": 3}
    (tmp_path / "final.yaml").write_text(f"extends: preset.yaml\n{own.partition('cases:')[0]}")
    suite = load(registry, str(tmp_path / "final.yaml"))
    assert suite.settings["digits", 2].methods["kmeans"].plugin.iterations == best


def test_without_a_file_the_preset_is_printed_and_the_trials_are_a_table(tmp_path, capsys):
    (tmp_path / "s.yaml").write_text(SUITE)
    words = ["tune", str(tmp_path / "s.yaml"), "ipc=[1]", "--out", str(tmp_path / "store")]
    assert main(words) == 0
    printed = capsys.readouterr()
    preset = yaml.safe_load(printed.out)
    assert preset["tuned"] == {"kmeans": {"trials": 3, "objective": "validation nll"}}
    assert "validation nll" in printed.err
    assert "the suite's own" in printed.err
    assert not list(tmp_path.rglob("*.csv"))


def test_where_the_trials_cannot_be_written_nothing_is_run(tmp_path, capsys):
    (tmp_path / "s.yaml").write_text(SUITE)
    (tmp_path / "records").touch()
    words = ["tune", str(tmp_path / "s.yaml"), "--out", str(tmp_path / "store")]
    assert main([*words, "--output", str(tmp_path / "preset.yaml")]) == 2
    assert "the trials cannot be written to" in capsys.readouterr().err
    assert not (tmp_path / "store").exists()


def test_tables_say_how_many_were_tried(tmp_path, capsys):
    (tmp_path / "s.yaml").write_text(
        "protocol: 1\ndatasets: [digits]\nipc: [1]\nmethods: [random]\ninferences: {network: {steps: 2}}\n"
        "networks: {conv-nn: {width: 4}}\ntuned: {random: {trials: 8}}\n"
    )
    assert bpcbench.run(str(tmp_path / "s.yaml"), out=tmp_path / "store", inline=True, track=False).exit_code == 0
    assert main(["report", str(tmp_path / "s.yaml"), "--out", str(tmp_path / "store")]) == 0
    assert "Settings tried on the validation split, per data set and ipc: random 8." in capsys.readouterr().out
