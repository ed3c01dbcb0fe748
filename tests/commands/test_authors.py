"""`bpcbench new` writes packages that work at once, and `bpcbench check` tells what is wrong with a plugin."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import bpcbench
from bpcbench.cli import SCAFFOLDS, main
from bpcbench.registry.discovery import registry
from bpcbench.testing import PluginConformance, check

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working directory; what is imported from it is forgotten again."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith(("bpcbench_own", "test_own"))]:
        del sys.modules[name]
    registry.cache_clear()


def installed(package: Path, module: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Do what pip does: put the package on the path, with its entry point in the metadata."""
    metadata = package / f"bpcbench_{module}-0.1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: bpcbench-{name}\nVersion: 0.1.0\n")
    (metadata / "entry_points.txt").write_text(f"[bpcbench]\n{name} = {module}\n")
    monkeypatch.syspath_prepend(package)
    importlib.invalidate_caches()
    registry.cache_clear()


@pytest.mark.parametrize("kind", SCAFFOLDS)
def test_a_new_package_passes_its_own_tests_at_once(
    kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["new", kind, f"own-{kind}"]) == 0
    assert f"bpcbench check own-{kind}" in capsys.readouterr().out
    package, module = folder / f"bpcbench-own-{kind}", f"bpcbench_own_{kind}"
    installed(package, module, f"own-{kind}", monkeypatch)
    found = registry()
    assert found.broken() == []
    assert found.get(kind, f"own-{kind}").distribution == f"bpcbench-own-{kind}"
    assert found.suites[f"own-{kind}:example"] == package / module / "example.yaml"
    assert "own-" in bpcbench.Session(f"own-{kind}:example", out=folder / "store").plan().suite.name
    assert main(["show", f"own-{kind}"]) == 0
    assert "  =" in capsys.readouterr().out  # its options are documented
    if kind == "engine":
        return  # its tests take a minute: they run where the packages are installed by pip
    tests: Any = _module(package / "tests" / f"test_{kind}.py", f"test_own_{kind}")
    (cls,) = [
        value for name, value in vars(tests).items() if name.startswith("Test") and issubclass(value, PluginConformance)
    ]
    outcomes = list(check(cls))
    assert [outcome for outcome in outcomes if outcome.status == "failed"] == []
    skipped = {outcome.name: outcome.message for outcome in outcomes if outcome.status == "skipped"}
    # What keeps no fit, and fits one seed at a time, says so; everything else is really tested.
    assert set(skipped) <= {"restores", "together", "together is an option", "together resumes exactly"}
    assert all(skipped.values())


def _module(path: Path, name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["method", "random"], "the method 'random' is already provided by bpcbench"),
        (["inference", "torch"], "bpcbench already has a plugin 'torch'"),
        (["method", "Foo_Bar"], "such as 'foo-bar'"),
        (["method", "2nd"], "such as 'nd'"),
        (["method", "--", "-x"], "such as 'x'"),
        (["method", "über"], "such as 'ber'"),
        (["method", "mine", "--output", "."], "exists already, and nothing is overwritten"),
        (["method", "mine", "--output", "nowhere/mine"], "nowhere is not a folder"),
    ],
)
def test_a_name_that_cannot_be_is_refused_and_nothing_is_written(
    words: list[str], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["new", *words]) == 2
    assert message in capsys.readouterr().err
    assert list(folder.iterdir()) == []


def test_a_second_package_of_the_same_name_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", "method", "none", "--output", "first"]) == 0
    text = (folder / "first" / "bpcbench_none" / "method.py").read_text()
    assert "class NonePlugin(" in text  # `None` cannot be a class
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert main(["new", "network", "none", "--output", "first"]) == 2
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


@dataclass(frozen=True)
class Broken(bpcbench.Method):
    """Breaks one rule at a time."""

    name: ClassVar[str] = "own-broken"
    resources: ClassVar[bpcbench.Resources] = bpcbench.Resources()

    how: str = bpcbench.option("", "what is wrong")
    steps: int = bpcbench.option(6, "number of steps")

    def convention(self) -> Any:
        return "centred" if self.how == "convention" else "class"

    def distil(self, data: Any, ipc: int, inputs: Any, ctx: Any) -> bpcbench.Coreset:
        ipc = ipc - 1 if self.how == "ipc" else ipc
        chosen = bpcbench.per_class(data.labels, ipc, 0 if self.how == "seed" else ctx.seed)
        images = inputs.transform.apply(data.train.images[chosen])
        if self.how == "time":
            images[0, 0, 0, 0] += np.random.default_rng().random()
        hidden = np.zeros(())
        state = {"images": images} if self.how == "state" else {"images": images, "hidden": hidden}
        for _ in ctx.steps(0 if self.how == "loopless" else self.steps, state=state):
            hidden += 1
            images += 0.001 * hidden
        if self.how == "mixed devices":
            import torch

            _ = torch.zeros(3, device=ctx.device) + torch.ones(3)
        return bpcbench.Coreset(
            images=images if self.how != "noise" else images * 0, targets=data.labels[chosen], classes=3
        )


@pytest.mark.parametrize(
    ("how", "test", "message"),
    [
        ("ipc", "valid", r"images per class [1, 1, 1], asked for were 2 of each"),
        ("convention", "valid", "convention() promises 'centred'"),
        ("time", "deterministic", "draw every random number from ctx.seed"),
        ("seed", "deterministic", "say `uses_seed = False`"),
        ("state", "resumes exactly", "Name everything that changes from step to step in `state`"),
        ("mixed devices", "device", "Create tensors with `device=ctx.device`"),
        ("noise", "learns", "guessing gives 33%"),
    ],
)
def test_check_teaches(how: str, test: str, message: str, install: Any, capsys: pytest.CaptureFixture[str]) -> None:
    install(Broken)
    assert main(["check", "own-broken", f"how={how}", "--learns"]) == 1
    printed = capsys.readouterr().out
    assert message in printed
    assert f"  FAILED   {test} " in printed


def test_check_passes_what_is_right_and_says_what_it_could_not_tell(
    install: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    install(Broken)
    assert main(["check", "own-broken", "--learns"]) == 0
    assert "7 passed, 0 failed, 1 skipped" in capsys.readouterr().out  # no other process can import a test
    assert main(["check", "own-broken", "how=loopless"]) == 0
    printed = capsys.readouterr().out
    assert "it has no loop of ctx.steps, so there is nothing to resume" in printed
    assert "give `bpcbench check` the flag --learns" in printed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rndom"], "unknown plugin 'rndom'; did you mean 'random'?"),
        (["random", "--kind", "inference"], "unknown inference 'random'"),
        (["random", "steps"], "expected OPTION=VALUE, got 'steps'"),
        (["kmeans", "iteration=3"], "unknown option of kmeans 'iteration'; did you mean 'iterations'?"),
        (["kmeans", "iterations={"], "'{' is not a value in YAML"),
        (
            ["frepo", "steps=3"],
            "the method and the inference are both named frepo: say with --kind",
        ),
        (["cifar10", "--data", "nowhere"], "data set cifar10 needs"),
    ],
)
def test_check_refuses_what_it_cannot_check(
    words: list[str], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", *words]) == 2
    assert message in capsys.readouterr().err


def test_other_kinds_are_checked_too(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["classification"], ["standardize"], ["digits"], ["conv-gn", "width=4"]):
        assert main(["check", *words]) == 0
        assert " 0 failed" in capsys.readouterr().out


@pytest.mark.campaign
@pytest.mark.timeout(1800)
def test_new_packages_and_the_example_install_by_pip_and_pass_their_tests(tmp_path: Path) -> None:
    """In a fresh environment with the dependencies of this one, as a package index would give them."""
    import venv

    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    (site,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    (site / "dependencies.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHONPATH", "BPCBENCH"))}

    def run(*words: str) -> str:
        done = subprocess.run(
            [str(python), "-m", *words], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    pip = ("pip", "install", "--quiet", "--no-deps", "--no-build-isolation")
    run(*pip, str(ROOT))
    for kind in SCAFFOLDS:
        run("bpcbench", "new", kind, f"own-{kind}")
    shutil.copytree(ROOT / "examples" / "matching", tmp_path / "matching")  # away from the settings of our own tests
    packages = [*(str(tmp_path / f"bpcbench-own-{kind}") for kind in SCAFFOLDS), str(tmp_path / "matching")]
    run(*pip, *packages)
    listed = run("bpcbench", "list", "plugins")
    assert "NOT LOADED" not in listed
    assert "bpcbench-matching 0.1.0" in listed
    for package in packages:
        tests = run("pytest", "-q", "-p", "no:cacheprovider", str(Path(package) / "tests"))
        assert " passed" in tests
        assert "failed" not in tests
    for kind in SCAFFOLDS:
        assert "acc" in run("bpcbench", "run", f"own-{kind}:example", "--no-mlflow", "--quiet")
    example = run("bpcbench", "run", "matching:digits", "seeds=1", "ipc=[1]", "--no-mlflow", "--quiet")
    assert "worst_class_acc" in example
