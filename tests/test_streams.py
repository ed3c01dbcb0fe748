"""The standard streams of a command: foreign words, narrow encodings, closed and full streams."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bpcbench import streams
from bpcbench.cli import main
from bpcbench.streams import guarded, plain, visible

HOSTILE = "\x1b]0;title\x07\x1b[31mred\x1b[2J\x9b\u202e\x08"


@given(st.text())
def test_visible_text_has_no_control_character_but_line_feeds_tabs_and_styles(text: str) -> None:
    shown = visible(text)
    for style in ("\x1b[0m", "\x1b[1m", "\x1b[4m"):
        shown = shown.replace(style, "")
    assert all(c in "\n\t" or (ord(c) >= 32 and not 0x7F <= ord(c) <= 0x9F) for c in shown)
    assert not set(shown) & set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u2028\u2029\ufeff")


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126)))
def test_ordinary_text_stays(text: str) -> None:
    assert visible(text) == text


def test_a_name_has_no_style_either() -> None:
    assert plain("a\n b\x1b[1mc") == r"a b\x1b[1mc"


def test_foreign_words_are_shown_not_obeyed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", HOSTILE]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert "\x1b" not in error
    assert r"\x1b]0;title\x07" in error


def test_bars_may_move_and_nothing_else_may(capsys: pytest.CaptureFixture[str]) -> None:
    with guarded():
        sys.stderr.write("\n\x1b[A")
        sys.stderr.write("\rbar \x1b[31m\rback")
    assert capsys.readouterr().err == "\n\x1b[A\rbar \\x1b[31m\\rback"


@pytest.mark.parametrize(
    ("encoding", "expected"), [("ascii", "a +- b -"), ("latin-1", "a ± b -"), ("utf-8", "a ± b ─")]
)
def test_what_an_encoding_lacks_is_written_another_way(encoding: str, expected: str) -> None:
    below = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    stream = streams._Guarded(below)
    stream.write("a ± b ─")
    stream.flush()
    assert below.buffer.getvalue().decode(encoding) == expected  # type: ignore[attr-defined]


@pytest.fixture
def command(tmp_path: Path) -> str:
    return f"{sys.executable} -m bpcbench list methods"


def shell(words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", "-c", words], cwd=folder, capture_output=True, text=True, timeout=120)


def test_closed_streams(command: str, tmp_path: Path) -> None:
    done = shell(f"{command} >&- 2>&- <&-; echo $?", tmp_path)
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_a_full_disk_behind_stdout(command: str, tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    done = shell(f"{command} > /dev/full; echo $?", tmp_path)
    assert done.stdout == "1\n"
    assert done.stderr == "bpcbench: the output could not be written: No space left on device\n"


def test_a_reader_that_leaves(command: str, tmp_path: Path) -> None:
    done = shell(f"{{ sleep 0.1; {command}; echo $? >&2; }} | true", tmp_path)
    assert done.stderr == "0\n"
