"""Files that commands write for people: checked before anything is computed, always UTF-8."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from bpcbench.errors import BpcbenchError, Unfinished, UserError, reason


def check_output(output: str | None) -> None:
    """Raise UserError if it is clear beforehand that the output file cannot be written."""
    if output is None:
        return
    path = Path(output)
    with _looked_up("--output"):
        fits = path.absolute().parent.is_dir() and not path.is_dir()
        path.exists()
    if not fits:
        raise UserError(f"--output {output}: its folder does not exist, or it is a folder itself")


def check_folder(option: str, folder: Path) -> None:
    """Raise UserError if it is clear beforehand that the folder of an option cannot be made."""
    with _looked_up(option):
        fits = all(place.is_dir() for place in (folder, *folder.absolute().parents) if place.exists())
    if not fits:
        raise UserError(f"{option} {folder}: it is a file, or below one, not a folder")


@contextlib.contextmanager
def _looked_up(option: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        raise UserError(f"{option}: {reason(error) if isinstance(error, OSError) else error}") from None


@contextlib.contextmanager
def under_way() -> Iterator[None]:
    """For what follows work that is done: what the system refuses is no wrong input any more."""
    try:
        yield
    except OSError as error:
        raise Unfinished(reason(error)) from None


def write_output(path: Path, text: str, refused: type[BpcbenchError] = UserError) -> None:
    """Write a text; raise `refused` if the file cannot be written."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise refused(f"{path}: cannot be written: {error.strerror}") from None
