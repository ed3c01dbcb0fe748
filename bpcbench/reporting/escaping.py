"""Foreign words in output: the one place where a name, a note or a reason becomes part of a format.

Labels come from suites, notes and names from plugins, reasons from exceptions. None of them may act: not as an escape
sequence, not as markup, not as a formula of a spreadsheet. HTML is escaped by `page.markup`, by the same rule.
"""

from __future__ import annotations

import re
from typing import Any

from bpcbench.streams import plain

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_TEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "_": r"\_",
    "%": r"\%",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    # At the start of a line these two would be read as arguments of the \\ that ends the line before.
    "[": "{[}",
    "*": "{*}",
    "±": r"$\pm$",
    "—": "---",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "†": r"$^{\dagger}$",
}


def flat(text: str) -> str:
    """Return text on one line, with control characters written out."""
    return plain(text)


def spreadsheet(value: Any) -> Any:
    """Return a value that a spreadsheet does not take for a formula: a text that looks like one starts with `'`."""
    if not isinstance(value, str) or not value.startswith(_FORMULA):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


def markdown(text: str) -> str:
    """Return text that GitHub shows as it is; an underscore inside a word needs no escape and gets none."""
    bare = flat(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"[\\`*|~$\[\]]|(?<!\w)_|_(?!\w)", lambda found: f"\\{found[0]}", bare)


def tex(text: str) -> str:
    """Return text that LaTeX prints as it is."""
    return "".join(_TEX.get(character, character) for character in flat(text))
