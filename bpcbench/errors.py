"""Every error that a user of bpcbench is meant to read, and the exit code it ends with."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

SHOWN_MISTAKES = 20
"""How many mistakes of one input a message shows."""
MISTAKE_LENGTH = 2000
"""The length at which one mistake is cut."""


class BpcbenchError(Exception):
    """Base of all errors that are shown as one message, without a traceback."""

    exit_code = 2


class UserError(BpcbenchError):
    """Something the caller asked for cannot be done as asked; nothing was written."""


class MissingData(BpcbenchError):
    """A data set's files are not where they are looked for. The message says what to place where."""


class PluginError(BpcbenchError):
    """A plugin could not be loaded, or does not keep its contract."""


class EngineError(BpcbenchError):
    """An engine raised, or does not keep its contract. What was finished before is in the store."""

    exit_code = 1


class StoreError(BpcbenchError):
    """The store cannot be read or written as a store of this version."""


class Unfinished(BpcbenchError):
    """A run ended before its end for a reason that is no stage's, a full disk for example; what is done is kept."""

    exit_code = 1


class NotFinite(BpcbenchError):
    """A logged quantity became NaN or infinite; the message names it and the step."""

    exit_code = 1


class Stopped(BaseException):
    """Raised inside a worker that was asked to stop; the stage goes on from its checkpoint next time."""


class Superseded(Stopped):
    """Raised inside a worker whose stage another process has taken over: it must not write any more."""


@dataclass(frozen=True)
class Mistake:
    """One thing wrong with an input: where it is and what to do about it."""

    path: str
    message: str
    line: int | None = None
    file: str | None = None

    def __str__(self) -> str:
        where = self.file or ""
        if self.line is not None:
            where = f"{where}:{self.line}" if where else f"line {self.line}"
        return ": ".join(part for part in (where, self.path, self.message) if part)


class Mistakes(UserError):
    """All mistakes of one input, reported together: the message shows the first of them, each cut where it is long."""

    def __init__(self, what: str, mistakes: Iterable[Mistake]) -> None:
        self.what = what
        self.mistakes = tuple(mistakes)
        count = len(self.mistakes)
        lines = [f"{shortened(what)}: {count:,} mistake{'s' if count != 1 else ''}"]
        lines += [f"  {shortened(str(mistake), MISTAKE_LENGTH)}" for mistake in self.mistakes[:SHOWN_MISTAKES]]
        if count > SHOWN_MISTAKES:
            lines.append(f"  ... and {count - SHOWN_MISTAKES:,} more")
        super().__init__("\n".join(lines))


def shortened(text: str, length: int = 100) -> str:
    """Return a text, with its middle left out if it is longer than `length`."""
    if len(text) <= length:
        return text
    kept = length - 5
    return f"{text[: kept - kept // 3]} ... {text[len(text) - kept // 3 :]}"


def reason(error: OSError) -> str:
    """Return what the operating system refused, as `PATH: reason`."""
    names = [shortened(str(name), 200) for name in (error.filename, error.filename2) if name is not None]
    return ": ".join([*(" to ".join(names),) * bool(names), error.strerror or str(error) or type(error).__name__])


OTHER_NAMES: Mapping[str, Mapping[str, str]] = {
    "metric": {
        "accuracy": "acc",
        "top1": "acc",
        "negative log-likelihood": "nll",
        "log-likelihood": "nll",
        "loss": "nll",
        "calibration": "ece",
        "calibration error": "ece",
    },
    "device": {"gpu": "cuda", "nvidia": "cuda", "rocm": "cuda", "hip": "cuda", "metal": "mps", "apple": "mps"},
    "precision": {
        **dict.fromkeys(("fp16", "float16", "half", "amp", "bfloat16", "mixed", "16"), "bf16"),
        **dict.fromkeys(("fp32", "32", "single", "float", "full"), "float32"),
        "tensorfloat32": "tf32",
    },
}
"""What else things are called, by what they are: for suggestions only."""


def did_you_mean(word: object, allowed: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` when one of `allowed` is close to `word`, else an empty string."""
    # No name is that long, and comparing a very long word takes minutes.
    close = difflib.get_close_matches(str(word)[:100], list(allowed), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""


def unknown(what: str, word: object, allowed: Iterable[str]) -> str:
    """Return the message for a name that is not among the allowed ones."""
    names = sorted(allowed)
    listed = ", ".join(names) if names else "(none)"
    plain = str(word).strip().lower().replace("_", " ")
    meant = next((name for name in (plain, OTHER_NAMES.get(what, {}).get(plain)) if name in names), word)
    return f"unknown {what} {shortened(str(word))!r}{did_you_mean(meant, names)} (allowed: {listed})"
