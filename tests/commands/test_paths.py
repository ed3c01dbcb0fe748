"""Stores, suites and outputs may have any name that the system takes; every command is asked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toys
from toys import TOYS

from bpcbench.cli import main

NAMES = ["a b", "50%", "a%20b", "a#b", "a?b=c", "a\nb", "söre 日本", "-a", "~nobody"]


@pytest.mark.campaign
@pytest.mark.parametrize("name", NAMES)
def test_every_command_takes_any_path(
    name: str, install: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    install(toys)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    place = tmp_path / name
    place.mkdir()
    monkeypatch.chdir(tmp_path)
    suite, store = f"./{name}/toys.yaml", f"--out=./{name}/store"
    Path(suite).write_text(TOYS.replace("[1, 2]", "[1]") + "metrics: [right]\n")
    np.savez(place / "theirs.npz", images=np.zeros((4, 1, 6, 6), np.float32), labels=np.arange(4) % 2)
    assert main(["run", suite, "--in-process", "--no-mlflow", store]) == 0
    key = next(path.parent.name for path in place.glob("store/stages/coreset/*/final"))
    theirs = [f"./{name}/theirs.npz", "--as", "theirs", "--data-range", "0-1", "--classes", "2"]
    for words in (
        ["plan", suite],
        ["report", suite],
        ["report", suite, "--format", "html", f"--output=./{name}/page.html"],
        ["status"],
        ["logs", "coreset", key[:8]],
        ["leaderboard", f"one=./{name}/store", f"--output=./{name}/board.html"],
        ["store", "list"],
        ["store", "verify"],
        ["store", "prune", "--scratch"],
        ["export", key, f"./{name}/exported"],
        ["import", *theirs],
        ["doctor"],
    ):
        assert main([*words, store]) == 0, (words, capsys.readouterr())
    assert main(["store", "merge", f"./{name}/store", f"--out=./{name}/other"]) == 0
    assert [path.name for path in tmp_path.iterdir()] == [name], "nothing was written next to it"
    assert {path.name for path in place.iterdir()} == {
        "toys.yaml", "theirs.npz", "store", "other", "page.html", "board.html", "exported",
    }  # fmt: skip


def test_a_home_that_does_not_exist_is_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    # The system knows the first user, whose home does not exist, and not the second.
    for home in ("~nobody", "~no-such-user"):
        for words in (["report", "quickstart"], ["status"], ["store", "list"], ["store", "verify"]):
            assert main([*words, "--out", f"{home}/store"]) == 2
            assert "is not a store" in capsys.readouterr().err
        assert main(["data", "list", "--data", f"{home}/data"]) == 0
    assert list(tmp_path.iterdir()) == []
