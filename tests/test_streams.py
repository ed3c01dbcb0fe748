"""The standard streams of a command: foreign words, narrow encodings, closed and full streams."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
import toys
from hypothesis import given
from hypothesis import strategies as st
from toys import TOYS

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


@pytest.fixture
def toys_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a suite of the plugin `toys`, which processes that are started find."""
    (tmp_path / "quickstart.yaml").write_text(TOYS.replace("[1, 2]", "[1]") + "metrics: [right]\n")
    monkeypatch.setenv("BPCBENCH_PLUGINS", "toys")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(toys.__file__).parent), *sys.path]))
    return tmp_path


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


LIBRARY = """
import sys, bpcbench
done = bpcbench.run("quickstart.yaml", out="store", track=False, inline=INLINE, jobs=1)
open("told", "w").write(f"{done.exit_code} {sorted(done.counts)}")
"""


@pytest.mark.parametrize("inline", [True, pytest.param(False, marks=pytest.mark.campaign)], ids=["inline", "workers"])
def test_a_run_from_python_needs_no_streams(inline: bool, toys_folder: Path) -> None:
    (toys_folder / "library.py").write_text(LIBRARY.replace("INLINE", str(inline)))
    done = shell(f"{sys.executable} library.py 2>&- <&-; echo $?", toys_folder)
    assert (done.stdout, done.stderr) == ("0\n", "")
    assert (toys_folder / "told").read_text() == "0 ['done']"


def test_evaluating_from_python_prints_nothing_to_stdout_in_place_of_stderr(toys_folder: Path) -> None:
    program = """
import sys, bpcbench
from bpcbench.text import to_stderr
bpcbench.Session("quickstart.yaml")
to_stderr("words for people")
"""
    done = shell(f"{sys.executable} -c '{program}' 2>&-", toys_folder)
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.campaign
@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&- <&-"])
def test_a_run_with_closed_streams(closed: str, toys_folder: Path) -> None:
    run = f"{sys.executable} -m bpcbench run quickstart.yaml --out store --no-mlflow --jobs 1"
    done = shell(f"{run} {closed}; echo $? > code", toys_folder)
    assert (toys_folder / "code").read_text() == "0\n"
    assert ("Traceback" in done.stderr, "Traceback" in done.stdout) == (False, False)
    again = shell(f"{run} | cat", toys_folder)
    assert "no stages were run" in again.stderr, "everything is in the store"


@pytest.mark.campaign
def test_a_reader_that_leaves_does_not_end_a_run(toys_folder: Path) -> None:
    run = f"{sys.executable} -m bpcbench run quickstart.yaml --out store --no-mlflow --jobs 1"
    done = shell(f"{{ {run} 2>&1; echo $? > code; }} | head -1", toys_folder)
    assert (toys_folder / "code").read_text() == "0\n"
    assert len(done.stdout.splitlines()) == 1
    assert "Traceback" not in done.stderr
    assert "no stages were run" in shell(f"{run} | cat", toys_folder).stderr


@pytest.mark.campaign
@pytest.mark.parametrize(
    "settings",
    ["PYTHONIOENCODING=ascii", "PYTHONIOENCODING=latin-1", "LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0"],
)
def test_narrow_encodings_in_every_view(settings: str, toys_folder: Path) -> None:
    """Tables have signs that these encodings lack; files that are written are UTF-8 all the same."""
    bpcbench = f"{sys.executable} -m bpcbench"
    first = shell(f"{bpcbench} run quickstart.yaml --out store --no-mlflow --in-process", toys_folder)
    assert first.returncode == 0, first.stderr
    for words in (
        "run quickstart.yaml --no-mlflow --in-process",
        "report quickstart.yaml",
        "report quickstart.yaml --format latex",
        "report quickstart.yaml --output table.txt",
        "plan quickstart.yaml",
        "status",
        "store list",
        "list methods",
    ):
        out = "" if words.startswith("list") else "--out store"
        done = subprocess.run(
            ["bash", "-c", f"export {settings}; {bpcbench} {words} {out}"], cwd=toys_folder, capture_output=True
        )
        assert (done.returncode, b"Traceback" in done.stderr) == (0, False), (words, done.stderr)
        if "latin" not in settings:
            done.stdout.decode("ascii")
    assert "±" in (toys_folder / "table.txt").read_text(encoding="utf-8")
