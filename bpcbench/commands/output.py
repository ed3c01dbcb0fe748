"""Files that commands write for people: checked before anything is computed, always UTF-8."""

from __future__ import annotations

from pathlib import Path

from bpcbench.errors import UserError, reason


def check_output(output: str | None) -> None:
    """Raise UserError if it is clear beforehand that the output file cannot be written."""
    if output is None:
        return
    path = Path(output)
    try:
        fits = path.absolute().parent.is_dir() and not path.is_dir()
        path.exists()
    except (OSError, ValueError) as error:
        raise UserError(f"--output: {reason(error) if isinstance(error, OSError) else error}") from None
    if not fits:
        raise UserError(f"--output {output}: its folder does not exist, or it is a folder itself")


def write_output(path: Path, text: str) -> None:
    """Write a text; raise UserError if the file cannot be written."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}") from None
