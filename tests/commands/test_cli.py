"""The command line: exit codes, messages, and what is imported when."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import re
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
import yaml
from detached_engine import Detached
from import_path import with_folder

from bpcbench.cli import FORMATS, KINDS, main
from bpcbench.errors import UserError
from bpcbench.registry.discovery import registry
from bpcbench.running import device
from bpcbench.running.execution import check_device
from bpcbench.session import Session
from bpcbench.suite.files import shipped
from bpcbench.suite.keys import KEYS
from bpcbench.suite.schema import suite_schema

TINY = ["ipc=[1]", "seeds=1", "methods=[random]", "inferences={network: {steps: 5}}", "networks={conv-nn: {width: 4}}"]

HEAVY = {"torch", "torchvision", "mlflow", "scipy", "sklearn", "pandas", "matplotlib", "PIL"}


def run(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bpcbench", *words]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=200, check=False)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli") / "store"
    done = run("run", "quickstart", *TINY, "--no-mlflow", "--out", str(folder))
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("words", [["--help"], ["list"], ["list", "methods"], ["show", "conv-bn"], ["schema"]])
def test_light_commands_import_no_framework(words):
    code = (
        "import sys\nfrom bpcbench.cli import main\n"
        f"try:\n    main({words!r})\nexcept SystemExit:\n    pass\n"
        f"print(sorted({HEAVY!r} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


def test_every_command_has_help():
    top = run("--help").stdout
    commands = re.findall(r"^    ([a-z]+) ", top, re.M)
    assert {"run", "plan", "report", "list", "show", "ui", "sync", "doctor", "schema", "store"} <= set(commands)
    for command in commands:
        assert run(command, "--help").returncode == 0


def test_a_run_prints_its_table_and_running_again_does_nothing(store):
    again = run("run", "quickstart", *TINY, "--no-mlflow", "--out", str(store))
    assert again.returncode == 0
    assert re.search(r"^random +\d+\.\d", again.stdout, re.M)
    assert "no stages were run" in again.stderr


def test_overrides_may_stand_after_options(store):
    done = run("plan", "quickstart", "--out", str(store), *TINY, "--json")
    assert {item["status"] for item in json.loads(done.stdout)} == {"cached"}


@pytest.mark.parametrize("kind", FORMATS)
def test_report_formats(store, kind, capsys):
    assert main(["report", "quickstart", *TINY, "--out", str(store), "--format", kind, "--metrics", "acc"]) == 0
    text = capsys.readouterr().out
    assert "random" in text
    if kind == "json":
        json.loads(text)


def test_a_report_without_a_store_is_refused(tmp_path, capsys):
    assert main(["report", "quickstart", "--out", str(tmp_path / "none")]) == 2
    printed = capsys.readouterr()
    assert (printed.out, "is not a store; run a suite first" in printed.err) == ("", True)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_list_as_json(kind, capsys):
    assert main(["list", kind, "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert all(item["name"] for item in listed[kind])


def test_show_knows_types_and_suggests(capsys):
    assert main(["show", "kmeans"]) == 0
    assert re.search(r"iterations +int += 100", capsys.readouterr().out)
    assert main(["show", "kmean"]) == 2
    assert "did you mean 'kmeans'" in capsys.readouterr().err


def test_plan_tells_cached_from_to_do(store, capsys):
    assert main(["plan", "quickstart", *TINY, "seeds.evaluate=2", "--out", str(store), "--all"]) == 0
    text = capsys.readouterr().out
    assert re.search(r"score +1 cached, 1 to do", text)
    assert re.search(r"to do +predict +digits ipc 1 random / network / conv-nn seed 0.1", text)
    # The other evaluation seed was timed, so this one's cost is known.
    assert "expected: unknown" not in text


def test_plan_shows_what_is_shared(tmp_path, capsys):
    assert main(["plan", "bpc:digits", "--out", str(tmp_path)]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if " trajectories [" in line]
    assert line.endswith("10 members, 2.7 MB, for bpc-cd, bpc-fkl, bpc-rkl, bpc-w, fbpc")


def test_wrong_words_end_with_code_2_and_no_traceback(tmp_path):
    for words in (
        ["run"],
        ["run", "quickstart", "--nonsense"],
        ["run", "no-such-suite"],
        ["run", "quickstart", "ipc="],
        ["run", "quickstart", "--jobs", "0"],
        ["list", "nonsense"],
        ["run", "quickstart", "--recompute", "xyz"],
    ):
        done = run(*words, cwd=tmp_path)
        assert done.returncode == 2, (words, done)
        assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_device_that_is_not_there_is_one_message_and_nothing_is_written(tmp_path, monkeypatch, capsys):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise SystemExit('imported')")
    (tmp_path / "torch" / "version.py").write_text("__version__ = '9.9+cpu'\ncuda: Optional[str] = None\nhip = None\n")
    fake, real = importlib.machinery.PathFinder.find_spec("torch", [str(tmp_path)]), importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: fake if name == "torch" else real(name))
    out = str(tmp_path / "store")
    for words in (["run"], ["run", "--in-process", "--quiet"], ["anytime"]):
        assert main([*words, "quickstart", *TINY, "--device", "cuda", "--out", out]) == 2
        said = capsys.readouterr().err
        assert re.fullmatch(r"bpcbench: device 'cuda' is not available .* torch 9\.9\+cpu was built .*\n", said), said
    assert not Path(out).exists()
    # A plan says so too, but it may be for another machine.
    assert main(["plan", "quickstart", *TINY, "--device", "cuda:1", "--out", out]) == 0
    assert "note: device 'cuda:1' is not available" in capsys.readouterr().err


def test_devices_of_other_machines_are_not_looked_for_here(tmp_path, monkeypatch):
    prepared = Session("quickstart", [*TINY, "device=cuda"], out=tmp_path).prepare()
    monkeypatch.setattr(device, "missing_device", lambda wanted, thorough=True: "it is not there")
    with pytest.raises(UserError, match="it is not there"):
        check_device(prepared)
    elsewhere = replace(prepared.plan.suite, engine=Detached())
    check_device(replace(prepared, plan=replace(prepared.plan, suite=elsewhere)))


def test_what_torch_says_of_a_device_is_quoted():
    assert device.missing_device("auto") is None
    assert device.missing_device("cpu") is None
    assert "nowhere" in str(device._trial("nowhere"))


def test_a_command_without_a_suite_says_what_one_is(capsys):
    for command in ("run", "plan", "report", "tune", "anytime"):
        with pytest.raises(SystemExit) as ended:
            main([command])
        assert ended.value.code == 2
        said = capsys.readouterr().err
        assert "a suite is required: a shipped one (`bpcbench list suites`)" in said
        assert said.endswith(f"for example: bpcbench {command} quickstart\n")


def test_formats_have_their_long_names_too(store, capsys):
    assert main(["report", "quickstart", *TINY, "--out", str(store), "--format", "markdown"]) == 0
    assert "| method |" in capsys.readouterr().out


@pytest.mark.parametrize(("name", "meant"), [("accuracy", "acc"), ("NLL", "nll"), ("calibration error", "ece")])
def test_other_names_of_metrics_suggest_the_metric(name, meant, tmp_path, capsys):
    assert main(["plan", "quickstart", f"metrics=[{name}]", "--out", str(tmp_path)]) == 2
    assert f"unknown metric {name!r}; did you mean {meant!r}?" in capsys.readouterr().err


def test_a_missing_data_set_names_the_command_that_gets_it(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("BPCBENCH_DATA", raising=False)
    words = ["run", "quickstart", "datasets=[mnist]", "--out", str(tmp_path / "new"), "--data", str(tmp_path)]
    assert main(words) == 2
    assert f"; `bpcbench data get mnist --data {tmp_path}` downloads it (or run with" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_cannot_be_written_is_refused_first(tmp_path):
    (tmp_path / "file").write_text("")
    done = run("run", "quickstart", *TINY, "--out", str(tmp_path / "file" / "store"))
    assert done.returncode == 2
    assert "is a file" in done.stderr
    done = run("run", "quickstart", *TINY, "--out", "/proc/nowhere")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_a_port_in_use_is_refused(store):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = run("ui", "--out", str(store), "--port", str(taken.getsockname()[1]), "--no-browser")
    assert done.returncode == 2
    assert "cannot be used" in done.stderr


def test_doctor_names_what_it_finds(store):
    done = run("doctor", "--out", str(store))
    assert done.returncode == 0, done.stdout
    for words in ("torch", "digits         present", "locks: working", " plugin classes"):
        assert words in done.stdout


def test_doctor_and_lists_name_a_broken_plugin(tmp_path):
    (tmp_path / "halfbaked.py").write_text("import time\ntime.sleep(1.1)\nraise RuntimeError('not yet')\n")
    environment = {**os.environ, "PYTHONPATH": with_folder(tmp_path), "BPCBENCH_PLUGINS": "halfbaked"}
    command = [sys.executable, "-m", "bpcbench", "doctor", "--out", str(tmp_path / "none")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert re.search(r"NOT LOADED: RuntimeError: not yet; its import took [1-9]\d*\.", done.stdout)


def test_store_list_and_prune(store, tmp_path, capsys):
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(store, copy)
    assert main(["store", "list", "--out", str(copy), "--json"]) == 0
    before = json.loads(capsys.readouterr().out)
    assert main(["store", "prune", "--kind", "coreset", "--out", str(copy)]) == 0
    assert "would prune" in capsys.readouterr().out
    assert main(["store", "prune", "--kind", "coreset", "--out", str(copy), "--yes"]) == 0
    capsys.readouterr()
    assert main(["store", "list", "--out", str(copy), "--json"]) == 0
    after = json.loads(capsys.readouterr().out)
    assert {item["address"] for item in before} - {item["address"] for item in after} == {
        item["address"] for item in before if item["address"].startswith("coreset:")
    }
    assert main(["store", "prune", "--out", str(copy)]) == 2


def test_export_travels(store, tmp_path, capsys):
    import bpcbench
    from bpcbench.coresets.reading import pixels

    assert main(["store", "list", "--kind", "coreset", "--out", str(store), "--json"]) == 0
    (item,) = json.loads(capsys.readouterr().out)
    assert main(["export", item["address"], str(tmp_path / "mine"), "--out", str(store)]) == 0
    coreset = bpcbench.load_coreset(tmp_path / "mine")
    assert coreset.images.shape == (10, 1, 8, 8)
    assert 0 <= pixels(tmp_path / "mine").min() <= pixels(tmp_path / "mine").max() <= 1
    assert main(["export", item["address"], str(tmp_path / "mine"), "--out", str(store)]) == 2


def test_schema_accepts_shipped_suites_and_refuses_mistakes():
    schema = suite_schema(registry())
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    assert set(schema["properties"]) == set(KEYS)
    for path in shipped().values():
        assert list(validator.iter_errors(yaml.safe_load(path.read_text()))) == []
    good = yaml.safe_load(shipped()["quickstart"].read_text())
    for wrong in (
        {"metods": {}},
        {"ipc": [0]},
        {"methods": {"kmeans": {"iterations": "many"}}},
        {"methods": ["none"]},
        {"networks": {"conv-bn": {"growth": 3}}},
        {"split": "train"},
    ):
        assert list(validator.iter_errors({**good, **wrong})), wrong
