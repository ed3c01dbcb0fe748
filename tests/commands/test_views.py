"""Tables, costs and MLflow are views of the store: they need neither data nor plugins, and tell what is missing."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import toys
import yaml
from toys import TOYS

import bpcbench
from bpcbench import Session
from bpcbench.cli import main
from bpcbench.errors import UserError
from bpcbench.registry import source
from bpcbench.registry.discovery import Registry
from bpcbench.store.invocations import invocations
from bpcbench.store.store import Store


@dataclass(frozen=True)
class Fails(toys.Pick):
    """Fails on a second coreset."""

    name: ClassVar[str] = "fails"

    def distil(self, data: Any, ipc: int, inputs: Any, ctx: Any) -> bpcbench.Coreset:
        if ipc == 2:
            raise ValueError("two are too many")
        return super().distil(data, ipc, inputs, ctx)


@dataclass(frozen=True)
class Steps(toys.Pick):
    """Keeps its coreset on the way."""

    name: ClassVar[str] = "steps"

    def distil(self, data: Any, ipc: int, inputs: Any, ctx: Any) -> bpcbench.Coreset:
        rows = bpcbench.per_class(data.labels, ipc, ctx.seed)
        labels = data.labels[rows]
        images = inputs.transform.apply(data.train.images[rows])

        def made() -> bpcbench.Coreset:
            return bpcbench.Coreset(images=images.copy(), targets=labels, class_ids=labels, classes=2)

        for _ in ctx.steps(self.steps, state={"images": images}, snapshot=made):
            images += self.rate
        return made()


class Bench:
    """The toy suite in a file, and a store."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "small.yaml"
        self.out = folder / "store"
        self.data = folder / "data"
        self.data.mkdir()
        (self.data / "noise").write_bytes(b"some")
        self.write()

    def write(self, **keys: Any) -> None:
        suite = {"datasets": {"dots": {"file": "noise"}}, "methods": ["pick", "guided"], "metrics": ["right"]}
        self.file.write_text(yaml.safe_dump(yaml.safe_load(TOYS) | suite | keys))

    def run(self, *words: str, out: Path | None = None) -> int:
        where = ["--out", str(out or self.out), "--data", str(self.data)]
        return main(["run", str(self.file), *words, *where, "--in-process", "--no-mlflow", "--quiet"])

    def report(self, suite: str, *words: str, out: Path | None = None) -> int:
        return main(["report", suite, *words, "--out", str(out or self.out)])

    def remove(self, kind: str, count: int) -> None:
        store = Store.open(self.out)
        for address in [address for address in store.addresses() if address.kind == kind][:count]:
            store.remove(address)


@pytest.fixture
def bench(install: Callable[..., Registry], tmp_path: Path) -> Bench:
    install(toys, Fails, Steps)
    return Bench(tmp_path)


def bare(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run bpcbench in a process that knows none of the toys."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("BPCBENCH_")}
    command = [sys.executable, "-m", "bpcbench", *words]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=200, check=False
    )


def unwrapped(text: str) -> str:
    """Return a text without the line breaks of footnotes."""
    return " ".join(text.split())


def test_a_copied_store_needs_neither_data_nor_plugins(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.run() == 0
    table = capsys.readouterr().out
    assert re.search(r"^guided +\d", table, re.M)
    assert bench.report("small", "--costs") == 0
    costs = capsys.readouterr().out
    copy = bench.folder / "elsewhere" / "copy"
    shutil.copytree(bench.out, copy)
    for path in (bench.out, bench.data):
        shutil.rmtree(path)
    bench.file.unlink()
    listed = bare(copy.parent, "list", "methods")
    assert listed.returncode == 0
    assert "guided" not in listed.stdout
    for words, expected in ((["report", "small"], table), (["report", "small", "--costs"], costs)):
        done = bare(copy.parent, *words, "--out", "copy")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == expected
    done = bare(copy.parent, "sync", "--out", "copy")
    assert done.returncode == 0, done.stderr
    assert "16 cells added to MLflow" in done.stdout


def test_what_is_shown_is_named_as_it_was_run(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.run() == 0
    whole = capsys.readouterr().out
    assert bench.run("ipc=[1]", "methods=[pick]") == 0
    part = capsys.readouterr().out
    assert whole != part
    # With overrides, the invocation that had them; without, the latest, and a note says which that is.
    for words in (["ipc=[1]", "methods=[pick]"], ["methods=[pick]", "ipc=[1]"]):
        for suite in ("small", str(bench.file)):
            assert bench.report(suite, *words) == 0
            assert capsys.readouterr() == (part, "")
    assert bench.report("small") == 0
    printed = capsys.readouterr()
    assert printed.out == part
    assert "note: the latest invocation is shown: " in printed.err
    assert "ipc=[1] methods=[pick]" in printed.err
    assert bench.run() == 0
    capsys.readouterr()
    for suite in ("small", str(bench.file)):
        assert bench.report(suite) == 0
        assert capsys.readouterr() == (whole, "")
    # Spelled differently, but the same request: the file tells.
    assert bench.report(str(bench.file), "ipc=[ 1 ]", "methods=[pick]") == 0
    assert capsys.readouterr() == (part, "")


def test_a_file_that_was_changed_since_is_said(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.run() == 0
    table = capsys.readouterr().out
    bench.write(description="Other words.")
    assert bench.report(str(bench.file)) == 0
    assert capsys.readouterr() == (table, "")
    bench.write(ipc=[3])
    assert bench.report(str(bench.file)) == 0
    printed = capsys.readouterr()
    assert printed.out == table
    assert f"note: {bench.file} differs from what was run; shown is {bench.file} (" in printed.err


def test_what_was_not_run_is_answered_with_what_was(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.run("ipc=[1]") == 0
    capsys.readouterr()
    for suite in ("small", str(bench.file)):
        assert bench.report(suite, "ipc=[2]") == 2
        printed = capsys.readouterr()
        assert printed.out == ""
        assert f"{suite} ipc=[2] was not run in {bench.out}; there are" in printed.err
        assert f"  {bench.file} ipc=[1] (20" in printed.err
    assert bench.report("smal") == 2
    assert "did you mean 'small'" in capsys.readouterr().err
    with pytest.raises(UserError, match="was not run"):
        Session("small", ["ipc=[2]"], out=bench.out).rows()


def test_missing_cells_are_counted_and_the_command_is_named(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.run("--recompute", "pick") == 0
    whole = capsys.readouterr().out
    assert "Incomplete" not in whole
    bench.remove("score", 3)
    assert bench.report("small") == 0
    table = unwrapped(capsys.readouterr().out)
    assert "Incomplete: 3 of 16 evaluations have no result (3 not run yet)." in table
    command = re.search(r"To complete: (.*)", table)
    assert command is not None
    # What was made again is not made again once more, and the command is one that can be typed.
    words = command[1].split()
    assert words[:3] == ["bpcbench", "run", str(bench.file)]
    assert "--recompute" not in words
    assert "pick" not in words
    assert main(words[1:]) == 0
    assert capsys.readouterr().out == whole


def test_failed_cells_are_counted(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.write(methods=["pick", "fails"])
    assert bench.run() == 1
    printed = capsys.readouterr()
    assert "two are too many" in printed.err
    assert "Incomplete: 4 of 16 evaluations have no result (4 failed). To complete: bpcbench run " in unwrapped(
        printed.out
    )
    bench.remove("score", 1)
    assert bench.report("small") == 0
    assert "Incomplete: 5 of 16 evaluations have no result (4 failed, 1 not run yet)." in unwrapped(
        capsys.readouterr().out
    )
    view = Session("small", out=bench.out).view()
    assert {cell.group.ipc for cell in view.progress.failed} == {2}
    assert set(view.progress.reasons.values()) == {"ValueError: two are too many"}


def test_nothing_finished_is_a_table_that_says_so(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.write(methods=["fails"], ipc=[2])
    assert bench.run() == 1
    out = capsys.readouterr().out
    assert "has no results of this suite yet" in out
    assert "Incomplete: 4 of 4 evaluations have no result (4 failed)." in unwrapped(out)


def test_snapshots_have_a_manifest_of_their_own(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.write(methods={"steps": {"steps": 2}, "pick": None}, ipc=[1])
    assert bench.run() == 0
    table = capsys.readouterr().out
    session = Session(str(bench.file), out=bench.out, data=str(bench.data), inline=True, track=False, quiet=True)
    view, result = session.anytime()
    assert result.exit_code == 0
    assert view is not None
    store = Store.open(bench.out)
    kinds = [(one.purpose, one.name) for one in invocations(store)]
    assert sorted(kinds) == [("anytime", "small"), ("run", "small")]
    assert view.invocation.purpose == "anytime"
    steps = {cell.step for cell in view.manifest.cells if cell.group.method == "steps"}
    assert {None, 0, 2} <= steps
    assert {cell.step for cell in view.manifest.cells if cell.group.method == "pick"} == {None}
    # The table of the suite is that of its run.
    assert bench.report("small") == 0
    assert capsys.readouterr() == (table, "")


def test_results_of_changed_code_are_named(
    install: Callable[..., Registry],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    module = tmp_path / "toys_that_age.py"
    shutil.copy(toys.__file__, module)
    monkeypatch.syspath_prepend(tmp_path)
    install(importlib.import_module("toys_that_age"))
    (tmp_path / "bench").mkdir()
    bench = Bench(tmp_path / "bench")
    assert bench.run() == 0
    printed = capsys.readouterr()
    assert "--recompute" not in printed.err + printed.out
    module.write_text(module.read_text() + "\nANOTHER = 1\n")
    source.clear()  # as a new process begins
    assert bench.run() == 0
    printed = capsys.readouterr()
    names = ["centroid", "guided", "means", "pick", "right", "scale"]
    again = " ".join(f"--recompute {name}" for name in names)
    note = f"note: code of {', '.join(names)} has changed since cached results were computed ({again})"
    assert note in printed.err
    assert main(["plan", str(bench.file), "--out", str(bench.out), "--data", str(bench.data)]) == 0
    assert note in capsys.readouterr().err
    footnote = f"Some results of {', '.join(names)} were made by code that has changed since; {again} makes them again."
    assert footnote in unwrapped(printed.out)
    assert bench.report("small") == 0
    assert capsys.readouterr().out == printed.out
    assert bench.run(*(word for name in names for word in ("--recompute", name))) == 0
    assert "--recompute" not in capsys.readouterr().out


def test_parts_computed_in_two_stores_are_merged_into_one_table(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = [bench.folder / "one", bench.folder / "two"]
    for ipc, part in enumerate(parts, 1):
        assert bench.run(f"ipc=[{ipc}]", out=part) == 0
    assert bench.run(out=bench.folder / "whole") == 0
    capsys.readouterr()
    assert main(["store", "merge", *map(str, parts), "--out", str(bench.out)]) == 0
    assert "conflicts     0" in capsys.readouterr().out
    # The manifests came along: each part can be shown before anything is run.
    for ipc, part in enumerate(parts, 1):
        assert bench.report("small", f"ipc=[{ipc}]") == 0
        merged = capsys.readouterr().out
        assert bench.report("small", out=part) == 0
        assert capsys.readouterr().out == merged
    session = Session(str(bench.file), out=bench.out, data=str(bench.data), inline=True, track=False, quiet=True)
    assert session.plan().to_do() == []
    assert session.run().counts == {}
    assert bench.report("small") == 0
    union = capsys.readouterr().out
    assert bench.report("small", out=bench.folder / "whole") == 0
    assert capsys.readouterr().out == union
    assert main(["store", "verify", "--out", str(bench.out)]) == 0
