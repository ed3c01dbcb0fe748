"""What a command shows while it cannot say how far it is."""

from __future__ import annotations

import io
import re
import time

import pytest

from bpcbench.commands import waiting as module
from bpcbench.commands.waiting import waiting


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_long_work_shows_the_time_and_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DELAY_SECONDS", 0.05)
    monkeypatch.setattr(module, "REFRESH_SECONDS", 0.02)
    screen = Terminal()
    with waiting("planning", screen):
        time.sleep(0.2)
    assert re.fullmatch(r"(\rplanning 0:0\d)+\r\x1b\[K", screen.getvalue())


def test_short_work_and_files_stay_silent() -> None:
    for screen in (Terminal(), io.StringIO()):
        with pytest.raises(KeyError), waiting("planning", screen):
            raise KeyError
        assert screen.getvalue() == ""
