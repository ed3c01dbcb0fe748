"""A run in a real terminal: bars that fit its width, and Ctrl-C, which leaves them behind and says how to go on."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from toy_runs import Toy

pytestmark = pytest.mark.campaign
METHODS = "{first: {plugin: toy-adam, steps: 400}, second_with_a_rather_long_label: {plugin: toy-adam, steps: 400}}"
SECONDS = 120.0


class Screen:
    """What a terminal shows: lines of characters, and every line that went on in the next one for want of room."""

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.lines: list[list[str]] = [[]]
        self.row = self.column = 0
        self.wrapped: list[str] = []

    def feed(self, text: str) -> None:
        """Obey what a program writes."""
        for part in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|.", text, re.S):
            if part == "\r":
                self.column = 0
            elif part == "\n":
                self._down()
            elif part == "\x1b[A":
                self.row = max(0, self.row - 1)
            elif not part.startswith("\x1b"):
                self._put(part)

    def text(self) -> list[str]:
        """Return the lines, without what is blank at their ends."""
        return ["".join(line).rstrip() for line in self.lines]

    def _down(self) -> None:
        self.row += 1
        while self.row >= len(self.lines):
            self.lines.append([])

    def _put(self, character: str) -> None:
        if self.column == self.columns:
            self.wrapped.append("".join(self.lines[self.row]))
            self.column = 0
            self._down()
        line = self.lines[self.row]
        line.extend(" " * (self.column + 1 - len(line)))
        line[self.column] = character
        self.column += 1


class Session:
    """A program whose terminal is a pty of so many columns."""

    def __init__(self, command: list[str], columns: int, folder: Path, environment: dict[str, str]) -> None:
        self.screen = Screen(columns)
        self.raw = ""
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        # Its own session, with the pty as its controlling terminal: Ctrl-C reaches it as a signal.
        begin = (
            "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execvp(sys.argv[1], sys.argv[1:])"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", begin, *command],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=folder,
            env=environment,
            start_new_session=True,
        )
        os.close(slave)

    def until(self, what: Callable[[], object]) -> None:
        """Read what is written until something holds, or the program has ended."""
        end = time.monotonic() + SECONDS
        while not what():
            assert time.monotonic() < end, "\n".join(self.screen.text())
            if not select.select([self.master], [], [], 0.2)[0]:
                continue
            try:
                part = self.decoder.decode(os.read(self.master, 65536))
            except OSError:  # nobody writes any more
                return
            self.raw += part
            self.screen.feed(part)

    def press(self, key: bytes) -> None:
        os.write(self.master, key)

    def wait(self) -> int:
        """Read the rest, and return the exit code."""
        self.until(lambda: False)
        return self.process.wait(SECONDS)

    def close(self) -> None:
        os.close(self.master)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def toy(tmp_path: Path) -> Iterator[Toy]:
    made = Toy(tmp_path / "run").write(METHODS)
    yield made
    made.kill_all()


@pytest.fixture(params=[80, 160])
def session(request: pytest.FixtureRequest, toy: Toy) -> Iterator[Session]:
    words = ["run", "suite.yaml", "--out", "store", "--jobs", "2", "--no-mlflow"]
    environment = toy.environment(pace=0.02) | {"TERM": "xterm", "PYTHONIOENCODING": "utf-8"}
    environment.pop("COLUMNS", None)
    begun = Session([sys.executable, "-m", "bpcbench", *words], request.param, toy.folder, environment)
    yield begun
    begun.close()


def test_bars_fit_and_stay_above_what_ctrl_c_says(session: Session, toy: Toy) -> None:
    screen = session.screen
    bar = re.compile(r"coreset toy-data .*\|.*\| \d+/400 steps, (about .* left|time left unknown)")
    session.until(lambda: any(map(bar.match, screen.text())))
    assert any(line.startswith("suite |") for line in screen.text())
    session.press(b"\x03")
    assert session.wait() == 130
    lines = screen.text()
    at = next(i for i, line in enumerate(lines) if line.startswith("suite |"))
    said = next(i for i, line in enumerate(lines) if line.startswith("stopped; nothing that was finished is lost"))
    resume = next(i for i, line in enumerate(lines) if line.startswith("to resume: bpcbench run suite.yaml"))
    assert at < said < resume
    assert not [line for line in lines[at + 1 :] if "steps" in line], "the bars of stages are gone"
    assert not [line for line in screen.wrapped if "|" in line], "a bar was too long"
    assert "\\x1b" not in session.raw, "no escape sequence is shown"
    assert toy.all_gone(10)
