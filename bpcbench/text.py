"""Readable text: durations, sizes, and lines on stderr."""

from __future__ import annotations

import sys


def spell(seconds: float | None) -> str:
    """Return a readable duration: `0.3 s`, `4 min 10 s`, `2 h 5 min`."""
    if seconds is None:
        return "unknown"
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def counted(number: int, thing: str) -> str:
    """Return a number of things in words: `1 stage`, `1,200 stages`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def clock(seconds: float | None) -> str:
    """Return a duration in few characters: `0:12`, `4:10`, `2:05:00`; `-:--` if it is unknown."""
    if seconds is None:
        return "-:--"
    whole = round(seconds)
    minutes = f"{whole // 60}" if whole < 3600 else f"{whole // 3600}:{whole % 3600 // 60:02}"
    return f"{minutes}:{whole % 60:02}"


def spell_bytes(size: float | None) -> str:
    """Return a readable size: `12 kB`, `3.4 GB`."""
    if size is None:
        return "unknown"
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def to_stderr(text: str) -> None:
    """Print to stderr; stdout is for tables."""
    print(text, file=sys.stderr, flush=True)
