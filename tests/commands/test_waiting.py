"""What a command shows while it cannot say how far it is."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import gallery
import numpy as np
import pytest
from toys import TOYS

from bpcbench import Session
from bpcbench.cli import main
from bpcbench.commands import waiting as module
from bpcbench.commands.waiting import waiting
from bpcbench.store.store import Store
from bpcbench.streams import guarded


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@contextmanager
def guarded_streams(screen: Terminal, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The streams of a command, on a screen."""
    monkeypatch.setattr("sys.stderr", screen)
    with guarded():
        yield


def test_long_work_shows_the_time_and_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DELAY_SECONDS", 0.05)
    monkeypatch.setattr(module, "REFRESH_SECONDS", 0.02)
    screen = Terminal()
    with waiting("planning", screen):
        time.sleep(0.2)
    assert re.fullmatch(r"(\rplanning 0:0\d)+\r {13}\r", screen.getvalue())


def test_a_long_line_is_cut_and_no_control_character_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DELAY_SECONDS", 0.0)
    screen = Terminal()
    with guarded_streams(screen, monkeypatch), waiting(f"planning {'x' * 100}"):
        time.sleep(0.1)
    assert re.fullmatch(r"(\rplanning x{65} 0:0\d)+\r {79}\r", screen.getvalue())


def test_short_work_and_files_stay_silent() -> None:
    for screen in (Terminal(), io.StringIO()):
        with pytest.raises(KeyError), waiting("planning", screen):
            raise KeyError
        assert screen.getvalue() == ""


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Two small stores, `a` and `b`, and files of somebody else."""
    folder = tmp_path_factory.mktemp("waited")
    (folder / "small.yaml").write_text("name: small" + TOYS)
    with gallery.plugins():
        for name, rate in (("a", "0.1"), ("b", "0.2")):
            session = Session(
                str(folder / "small.yaml"),
                ["ipc=[1]", f"methods.pick.rate={rate}"],
                out=folder / name,
                inline=True,
                track=False,
                quiet=True,
            )
            assert session.run().exit_code == 0
        images = np.random.default_rng(0).random((4, 3, 8, 8), np.float32)
        np.savez(folder / "theirs.npz", images=images, labels=np.arange(4) % 2)
        yield folder


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("comparing", ["compare", "a", "b"]),
        ("writing the page", ["leaderboard", "a", "b", "--output", "board.html"]),
        ("drawing", ["figure", "small.yaml", "--out", "a", "--output", "figures"]),
        ("reading theirs.npz", ["import", "theirs.npz", "--as", "theirs", "--to", "theirs"]),
        ("exporting", ["export", "KEY", "mine", "--out", "a"]),
        ("reading results", ["report", "small.yaml", "--out", "a"]),
        ("writing the page", ["report", "small.yaml", "--out", "a", "--format", "html", "--output", "page.html"]),
        ("planning small.yaml", ["plan", "small.yaml", "--out", "a"]),
    ],
)
def test_commands_show_that_they_work(
    what: str, words: list[str], stores: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Terminal()
    monkeypatch.setattr(module, "DELAY_SECONDS", 0.0)
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.chdir(stores)
    key = next(address.key for address in Store.open(stores / "a").addresses() if address.kind == "coreset")
    assert main([key if word == "KEY" else word for word in words]) == 0, screen.getvalue()
    assert f"\r{what} 0:0" in screen.getvalue()
    assert "\\x" not in screen.getvalue()
