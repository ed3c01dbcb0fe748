"""Every command that the documentation shows runs; what takes a GPU, a cluster, a download or hours is planned.

Commands run word for word in a folder with small stores under the names that they use. Keys, digests and mount points
that only an example can name are replaced by ones that exist, and a suite of the reader's own by a small one.
"""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gallery
import numpy as np
import pytest
import yaml

from bpcbench import Session
from bpcbench.cli import main, parser
from bpcbench.commands.suite import suite_session
from bpcbench.registry.discovery import registry
from bpcbench.store.invocations import invocations
from bpcbench.suite.files import read, shipped
from bpcbench.suite.validation import metric_names

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
OWN = ("my.yaml", "mine.yaml", "rfad.yaml")
"""Suites of the reader."""
SUITE: dict[str, object] = {
    "protocol": 1,
    "datasets": {"digits": {"plugin": "spots"}},
    "ipc": [1, 10],
    "methods": {
        "random": {"plugin": "pick"},
        "vbpc": {"plugin": "fade", "steps": 3},
        "frepo": {"plugin": "fade", "steps": 2},
    },
    "preprocessing": "scale",
    "inferences": {"network": {"plugin": "centroid"}},
    "networks": ["line"],
    "evaluators": ["classification"],
    "metrics": ["acc", "nll"],
    "seeds": {"distil": 2, "evaluate": 1},
    "tune": {"trials": 2, "objective": "nll", "space": {"vbpc": {"rate": [0.1, 0.2]}}},
}
VIEWS = (
    *("compare", "data", "doctor", "figure", "leaderboard", "list"),
    *("logs", "plan", "report", "schema", "show", "status"),
)
"""Commands that only read stores."""
ELSEWHERE = {
    r"ui$": "serves until it is stopped: tests/browser/test_mlflow.py",
    r"doctor --engine": "needs a cluster: tests/clusters",
    r"data get": "downloads: tests/commands/test_data_command.py",
    r"(check dm|run dm:example)": "needs what pip installs: tests/commands/test_authors.py",
    r"import .*--data-set cifar10": "needs files of others and a download: tests/coresets/test_layouts.py",
}
"""Commands that cannot run here, by what they start with, and where what they do is tested."""


def documented() -> list[str]:
    """Every `bpcbench ...` in a shell block, without comments, and with the values of shell variables."""
    found = []
    for page in PAGES:
        for block in re.findall(r"```sh\n(.*?)```", page.read_text(), re.S):
            variables = dict(re.findall(r"^([A-Z]+)='(.*)'$", block, re.M))
            for line in block.splitlines():
                for name, value in variables.items():
                    line = line.replace(f'"${name}"', shlex.quote(value))
                # NAME stands for any of several suites.
                found += [part.strip().replace("/NAME", "/optimiser") for part in line.partition("  #")[0].split("&&")]
    return sorted({part for part in found if part.startswith("bpcbench ")})


def parsed(command: str) -> argparse.Namespace:
    """The arguments of a command, as the program reads them."""
    words = shlex.split(command)[1:]
    arguments, late = parser().parse_known_args(words)
    assert all("=" in word and not word.startswith("-") for word in late), command
    if late:
        arguments.overrides += late
    arguments.words = words
    return arguments


def elsewhere(command: str) -> bool:
    return any(re.match(rf"bpcbench {pattern}", command) for pattern in ELSEWHERE)


def of_shipped_suite(command: str) -> bool:
    name = getattr(parsed(command), "suite", None) or ""
    return name.removeprefix("suites/").removesuffix(".yaml") in shipped()


def of_another_suite(command: str) -> bool:
    """Whether a command reads the results of a shipped suite other than the quickstart."""
    return starts(command, "report", "figure") and of_shipped_suite(command) and "quickstart" not in command


def starts(command: str, *verbs: str) -> bool:
    return shlex.split(command)[1] in verbs


COMMANDS = [command for command in documented() if not elsewhere(command)]
OF_SUITES = [command for command in COMMANDS if of_shipped_suite(command)]
TO_PLAN = [command for command in OF_SUITES if starts(command, "run", "anytime", "tune", "report", "figure")]
PLANNED = list({(parsed(command).suite, *parsed(command).overrides): command for command in TO_PLAN}.values())
SLOW = [command for command in COMMANDS if starts(command, "sync", "tune", "anytime", "doctor")]
"""They start processes or import MLflow and whatever else there is, which takes seconds."""
RUN = [
    command
    for command in COMMANDS
    if command not in SLOW and not (starts(command, "run") and of_shipped_suite(command))
]


@pytest.mark.parametrize("command", documented())
def test_it_is_understood(command: str) -> None:
    arguments = parsed(command)
    assert arguments.command == shlex.split(command)[1]
    suite = getattr(arguments, "suite", None)
    if suite and suite.startswith("suites/"):
        assert (ROOT / suite).is_file()
    metrics = getattr(arguments, "metrics", None)
    known = metric_names(registry().get("evaluator", name).cls() for name in registry().names("evaluator"))
    assert set(metrics.split(",") if metrics else ()) <= known


def test_every_page_is_read_and_every_exception_is_needed() -> None:
    assert {page.name for page in PAGES} >= {"README.md", "report.md", "cifar10.md", "large.md"}
    assert len(RUN) > 40
    assert len(PLANNED) > 20
    for pattern in ELSEWHERE:
        assert [command for command in documented() if re.match(rf"bpcbench {pattern}", command)], pattern
    for reason in ELSEWHERE.values():
        assert (ROOT / reason.partition(": ")[2]).exists(), reason


@pytest.fixture(scope="module")
def stocked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with small stores and files under the names that the documentation uses."""
    folder = tmp_path_factory.mktemp("documented")
    with gallery.plugins(), pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda descriptor: None)
        fill(folder, "my", "results")
        fill(folder, "digits", "results")
        # There are two of the quickstart, and one is the latest.
        fill(folder, "quickstart", "results", "methods.frepo.steps=5")
        fill(folder, "quickstart", "results")
        fill(folder, "digits", "other", "ipc=[1]")
        fill(folder, "quickstart", "other", "ipc=[1]")
        shutil.copytree(folder / "other", folder / "b-results")
        for other in ("other-results", "old-results", "a-results", "results-a"):
            (folder / other).symlink_to("other")
        (folder / "results-b").symlink_to("b-results")
        for name in OWN:
            shutil.copy(folder / "my-small.yaml", folder / name)
        images = np.random.default_rng(0).random((4, 3, 8, 8), np.float32)
        np.savez(folder / "theirs.npz", images=images, labels=np.arange(4) % 2)
        yield folder


def stand_in(folder: Path, command: str) -> list[str]:
    """Run a small suite under the name of the one that a command reports; return the command's words for it.

    It has the labels that the command names; overrides, which are the suite's own, are left out.
    """
    arguments = parsed(command)
    name = str(read(registry(), arguments.suite)[0].values["name"])
    plugins = {"methods": ("against", "fade"), "inferences": ("against_inference", "centroid")}
    plugins["networks"] = ("against_network", "line")
    labels = {key: getattr(arguments, option, None) for key, (option, _) in plugins.items()}
    added = {key: {labels[key]: {"plugin": plugins[key][1]}} for key in labels if labels[key]}
    suite = {key: {**named(SUITE[key]), **added.get(key, {})} for key in plugins}
    fill(folder, name.replace("/", "-"), "shelf", suite={**SUITE, **suite, "ipc": [1]})
    words = [word for word in shlex.split(command)[1:] if word not in arguments.overrides]
    words[1] = name.replace("/", "-")
    return [*words, "--out", "shelf"]


def named(labels: Any) -> dict[str, object]:
    return dict(labels) if isinstance(labels, dict) else dict.fromkeys(labels)


def fill(folder: Path, name: str, store: str, *overrides: str, suite: Mapping[str, object] = SUITE) -> None:
    file = folder / f"{name}-small.yaml"
    file.write_text(yaml.safe_dump({"name": name, **suite}), encoding="utf-8")
    done = Session(str(file), overrides, out=folder / store, inline=True, track=False, quiet=True).run()
    assert done.exit_code == 0


@pytest.fixture(scope="module")
def places(stocked: Path) -> Mapping[str, str]:
    """What stands for keys, digests and places of examples: keys, digests and places that there are."""
    every = invocations(Session("quickstart", out=stocked / "results").view().store)
    first, second = (one.path.name for one in every if one.name == "quickstart")
    cell = next(cell for cell in every[0].manifest.cells if cell.group.method == "vbpc")
    return {
        "quickstart:3f2a": f"quickstart:{first}",
        "quickstart:9c01": f"quickstart:{second}",
        "3a79ad75": cell.coresets[0].key[:8],
        "predict-3d09be4eda91": f"predict-{cell.predict[:12]}",
        "/media/disk/store-of-b": "other",
        "/media/disk/store-of-c": "old-results",
        "OTHER": "other",
        "/local/data": "data",
        "/shared/results": "shared",
        "100,200": "1,2",
        "0,100,500,2000": "0,1",
    }


@pytest.fixture
def desk(request: pytest.FixtureRequest, stocked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder, or a copy of it for a command that may change a store; it is the current one."""
    folder, command = stocked, request.node.callspec.params["command"]
    if not starts(command, *VIEWS):
        folder = tmp_path / "desk"
        shutil.copytree(stocked, folder, symlinks=True)
    elif of_another_suite(command):
        folder = tmp_path
    monkeypatch.chdir(folder)
    # Nothing here has to outlive a loss of power.
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
    monkeypatch.setattr("webbrowser.open", lambda address: True)
    monkeypatch.delenv("BPCBENCH_DATA", raising=False)
    return folder


def assert_done(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Run a command; it succeeds, says or writes something, and writes where it was told to."""
    code = main(words)
    said = capsys.readouterr()
    assert code == 0, said.err
    written = [words[words.index(option) + 1] for option in ("--output", "--pictures") if option in words]
    assert all(Path(file).exists() for file in written)
    assert said.out + said.err or written


@pytest.mark.parametrize("command", RUN)
def test_it_runs(command: str, desk: Path, places: Mapping[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    words = [places.get(word, word) for word in shlex.split(command)[1:]]
    if words[0] == "run":
        words += ["--in-process", "--no-mlflow"]
    if of_another_suite(command):
        words = stand_in(desk, command)
    if command.startswith("bpcbench export results/imported/"):
        assert main(["import", "theirs.npz", "--as", "theirs"]) == 0
    assert_done(words, capsys)


@pytest.mark.campaign
@pytest.mark.parametrize("command", SLOW)
def test_what_takes_seconds_runs_too(
    command: str,
    desk: Path,
    places: Mapping[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{desk}/mlflow.db")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests" / "importable"), prepend=":")
    words = [places.get(word, word) for word in shlex.split(command)[1:]]
    if of_shipped_suite(command):
        words[1] = "quickstart-small.yaml"
    assert_done(words, capsys)


@pytest.mark.parametrize("command", PLANNED)
def test_it_can_be_planned(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No data set need be there: what data sets declare is enough."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BPCBENCH_DATA", raising=False)
    plan = suite_session(parsed(command)).prepare(declare=True).plan
    assert plan.stages
    assert not list(tmp_path.iterdir()), "planning writes nothing"
