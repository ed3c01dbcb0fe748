"""The standard streams: closed ones, narrow encodings, readers that leave, full disks, and foreign control characters.

Whatever is printed may hold words of a suite, a plugin, a file or an exception. A terminal obeys escape sequences, so
all of them are made visible here, in the one place through which every command prints.
"""

from __future__ import annotations

import codecs
import contextlib
import ctypes
import os
import re
import sys
from collections.abc import Iterator
from typing import Any, TextIO

_REPLACED = {
    "─": "-",
    "│": "|",
    "±": "+-",
    "—": "-",
    "–": "-",
    "−": "-",
    "×": "x",
    "†": "+",
    "↑": "^",
    "↓": "v",
    "→": "->",
    "…": "...",
    "·": ".",
    "²": "2",
    "∞": "inf",
    "≤": "<=",
    "≥": ">=",
    "’": "'",
    "“": '"',
    "”": '"',
}
_STYLES = r"\x1b\[[014]m"
"""Normal, bold and underlined: what tables use, and all that is let through."""
# Control characters but the line feed and the tab, and those that reorder or hide the text around them.
_UNSAFE = re.compile(rf"({_STYLES})|[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff]")
_MOVES = re.compile(r"\n*(\x1b\[A)+")
"""What progress bars write to move between lines, always on its own."""
_HANDLER = "bpcbench.replace"


def visible(text: str) -> str:
    """Return text whose control characters are written out as escape codes; bold and underlined stay."""
    return _UNSAFE.sub(lambda found: found[1] or _written_out(found[0]), text)


def plain(text: str) -> str:
    """Return one line of visible text, without any style: for names and labels."""
    return visible(re.sub(r"\s+", " ", text)).replace("\x1b", r"\x1b")


def encodes(stream: TextIO, text: str) -> bool:
    """Return whether a stream can write a text as it is."""
    try:
        text.encode(stream.encoding or "ascii")
    except (UnicodeError, LookupError):
        return False
    return True


@contextlib.contextmanager
def guarded() -> Iterator[Streams]:
    """Replace `sys.stdout` and `sys.stderr` by guarded ones for the duration of a command.

    A stream that was closed before the start becomes the null device, so that no file that is opened later gets its
    number. A stream whose reader leaves, or that cannot be written, is silenced: the command itself goes on.
    """
    occupy()
    before = sys.stdout, sys.stderr
    streams = Streams(_Guarded(before[0]), _Guarded(before[1]))
    # Both replace text streams in everything that this program and its libraries do with them.
    sys.stdout, sys.stderr = streams.out, streams.error
    try:
        yield streams
    finally:
        for stream in (streams.out, streams.error):
            stream.flush()
        sys.stdout, sys.stderr = before


class Streams:
    """The guarded streams of a command."""

    def __init__(self, out: _Guarded, error: _Guarded) -> None:
        self.out = out
        self.error = error

    def lost(self) -> str:
        """Return why stdout could not be written, or an empty string; a reader that has left is no loss."""
        self.out.flush()
        return self.out.lost


class _Guarded:
    """A text stream that writes visible text only and never raises."""

    def __init__(self, below: TextIO) -> None:
        self.below = below
        self.lost = ""
        # Streams of tests and notebooks have no encoding to change.
        if below.encoding and hasattr(below, "reconfigure"):
            below.reconfigure(errors=_HANDLER)

    def write(self, text: str) -> int:
        with self._silenced():
            self.below.write(_as_shown(text))
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        with self._silenced():
            self.below.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.below, name)

    @contextlib.contextmanager
    def _silenced(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            self._discard()
        except (OSError, ValueError) as error:
            self.lost = self.lost or getattr(error, "strerror", None) or str(error)
            self._discard()

    def _discard(self) -> None:
        """Send whatever is still buffered, and all that follows, to the null device."""
        with contextlib.suppress(OSError, ValueError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.below.fileno())
            os.close(null)


def _as_shown(text: str) -> str:
    """Return visible text; what a progress bar does to its own line, which no foreign text can, is let through."""
    if _MOVES.fullmatch(text):
        return text
    return "\r" + visible(text[1:]) if text.startswith("\r") else visible(text)


@contextlib.contextmanager
def printed_to_stderr() -> Iterator[None]:
    """Send whatever is printed meanwhile to stderr, by Python, by libraries in C and by processes that they start."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            stack.enter_context(_one_to_two())
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        yield


@contextlib.contextmanager
def _one_to_two() -> Iterator[None]:
    """Make file descriptor 1 a copy of 2 meanwhile; raise OSError where one of them is closed."""
    _flush()
    kept = os.dup(1)
    try:
        os.dup2(2, 1)
    except OSError:
        os.close(kept)
        raise
    try:
        yield
    finally:
        _flush()
        os.dup2(kept, 1)
        os.close(kept)


def _flush() -> None:
    """Write out what Python and C hold back for stdout."""
    for stream in (sys.stdout, sys.__stdout__):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()  # type: ignore[union-attr] # None where it is closed
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).fflush(None)


def occupy() -> None:
    """Open the null device in place of every standard stream that is closed.

    Otherwise `sys.stderr` is None, and the next file that is opened, a database for example, becomes descriptor 2.
    """
    for name, number in (("stdin", 0), ("stdout", 1), ("stderr", 2)):
        try:
            os.fstat(number)
        except OSError:
            descriptor = os.open(os.devnull, os.O_RDWR)
            if descriptor != number:
                os.dup2(descriptor, number)
                os.close(descriptor)
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            stream = open(number, "r" if number == 0 else "w", encoding="utf-8", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)


def _replace(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    return "".join(_REPLACED.get(character) or _written_out(character) for character in text), error.end


def _written_out(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


codecs.register_error(_HANDLER, _replace)
