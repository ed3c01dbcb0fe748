"""An SVG document: its style, shapes and texts, and the frame between two axes.

A picture stands alone, or inside an HTML page: it has no ids, its style rules apply to its own class only, and it
follows the reader's dark mode.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Sequence
from html import escape
from unicodedata import east_asian_width

from bpcbench.figures.axes import Axis

# Okabe and Ito's palette: told apart with any colour vision. Yellow is left out, being illegible on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
_LIGHT = {"paper": "#fff", "ink": "#333", "pale": "#ddd", "over": "#F2B48A", "under": "#A6CEE3", "share": "#888"}
_DARK = {"paper": "#1b1b1d", "ink": "#ddd", "pale": "#444", "over": "#F2B48A", "under": "#A6CEE3", "share": "#999"}
_SIZE, LINE = 12, 18
_NARROW, _BROAD = frozenset("iljtfrI.,:;'|!()[]{}/ "), frozenset("mwMW@%—…×")


def _rules(colours: dict[str, str], series: Sequence[str]) -> str:
    named = "".join(f".bpc-figure .{name}{{fill:{colour}}}" for name, colour in colours.items())
    numbered = "".join(f".bpc-figure .s{index}{{color:{colour}}}" for index, colour in enumerate(series))
    lines = f".bpc-figure .grid{{stroke:{colours['pale']}}}.bpc-figure .axis{{stroke:{colours['ink']}}}"
    return f"{named}{numbered}{lines}"


STYLE = (
    ".bpc-figure{font:12px system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif;max-width:100%;height:auto}"
    ".bpc-figure .title{font-size:13px;font-weight:600}.bpc-figure .small{font-size:11px}"
    ".bpc-figure .line{fill:none;stroke:currentColor;stroke-width:1.6;stroke-linejoin:round;stroke-linecap:round}"
    ".bpc-figure .light{fill:#fff}.bpc-figure .mark{fill:currentColor}"
    ".bpc-figure .band{fill:currentColor;fill-opacity:.16}"
    ".bpc-figure .axis,.bpc-figure .grid{fill:none;stroke-width:1}"
    + _rules(_LIGHT, COLOURS)
    + f"@media (prefers-color-scheme:dark){{{_rules(_DARK, ('#2D8FD5', *COLOURS[1:6], '#eee'))}}}"
)
"""The rules of every picture; a page that holds many may state them once."""


class Paper:
    """Shapes and texts, collected from back to front."""

    def __init__(self, title: str, note: str = "") -> None:
        self.parts: list[str] = []
        self.title, self.note = title, note
        self.top = 12.0 + 20 * bool(title) + 16 * bool(note)

    def add(self, *parts: str) -> None:
        """Add SVG elements as they stand."""
        self.parts += parts

    def text(self, x: float, y: float, words: str, anchor: str = "start", kind: str = "ink", turn: float = 0) -> None:
        """Add a text at its baseline; `turn` is in degrees, clockwise."""
        turned = f' transform="rotate({turn:g} {x:.1f} {y:.1f})"' if turn else ""
        placed = "" if anchor == "start" else f' text-anchor="{anchor}"'
        self.add(f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}"{placed}{turned}>{_escaped(words)}</text>')

    def path(self, kind: str, outline: str, more: str = "") -> None:
        """Add a path; `more` are further attributes."""
        self.add(f'<path class="{kind}" d="{outline}"{more}/>')

    def bar(self, kind: str, x: float, y: float, width: float, height: float, tip: str = "", more: str = "") -> None:
        """Add a rectangle, with a text that shows when pointed at."""
        inside = f"<title>{_escaped(tip)}</title>" if tip else ""
        place = f'x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{max(height, 0):.1f}"'
        self.add(f'<rect class="{kind}" {place}{more}>{inside}</rect>')

    def document(self, width: float, height: float, label: str) -> str:
        """Return the SVG; `label` tells what it shows to those who cannot see it."""
        parts, self.parts = self.parts, []
        if self.title:
            self.text(12, 24, fitted(self.title, width - 24, 14), kind="ink title")
        if self.note:
            self.text(12, self.top - 8, fitted(self.note, width - 24, 11), kind="ink small")
        name = _escaped(f"{self.title}: {label}" if self.title else label)
        size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" class="bpc-figure" {size} role="img" aria-label="{name}">'
        paper = '<rect class="paper" width="100%" height="100%"/>'
        return "".join([head, f"<title>{name}</title><style>{STYLE}</style>", paper, *self.parts, *parts, "</svg>\n"])


class Frame:
    """The rectangle between two axes, and where values lie in it."""

    def __init__(self, paper: Paper, x: Axis, y: Axis, left: float, top: float, width: float, height: float) -> None:
        self.paper, self.x_axis, self.y_axis = paper, x, y
        self.left, self.top, self.right, self.bottom = left, top, left + width, top + height

    def x(self, value: float) -> float:
        """Return where a value lies across."""
        return self.left + self.x_axis.at(value) * (self.right - self.left)

    def y(self, value: float) -> float:
        """Return where a value lies, from the top of the picture."""
        return self.bottom - self.y_axis.at(value) * (self.bottom - self.top)

    def axes(self, x: str, y: str, x_ticks: Iterable[tuple[float, str]], y_ticks: Iterable[tuple[float, str]]) -> None:
        """Add grid lines, the texts of ticks that do not overlap, and the labels of the axes."""
        across = [(self.x(value), text) for value, text in x_ticks]
        up = [(self.y(value), text) for value, text in y_ticks]
        lines = [f"M{at:.1f} {self.top:.1f}V{self.bottom:.1f}" for at, _ in across]
        lines += [f"M{self.left:.1f} {at:.1f}H{self.right:.1f}" for at, _ in up]
        self.paper.path("grid", "".join(lines))
        free = -math.inf
        for at, text in across:
            if text and at - text_width(text) / 2 > free:
                self.paper.text(at, self.bottom + 16, text, "middle")
                free = at + text_width(text) / 2
        for at, text in up:
            self.paper.text(self.left - 6, at + 4, text, "end")
        room = self.right - self.left
        if x:
            self.paper.text((self.left + self.right) / 2, self.bottom + 34, fitted(x, room + 40), "middle")
        if y:
            height = self.bottom - self.top
            self.paper.text(18, (self.top + self.bottom) / 2, fitted(y, height + 20), "middle", turn=-90)

    def border(self) -> None:
        """Add the lines of the axes, over what was drawn before."""
        self.paper.path("axis", f"M{self.left:.1f} {self.top:.1f}V{self.bottom:.1f}H{self.right:.1f}")


def legend(paper: Paper, left: float, y: float, entries: Iterable[tuple[str, str]]) -> float:
    """Draw coloured squares with names in one line, and return where it ends."""
    for kind, name in entries:
        square = f'<rect class="{"mark" if kind[1:].isdigit() else kind}" x="{left:.1f}" y="{y - 5:.1f}" '
        paper.add(f'<g class="{kind}">', f'{square}width="10" height="10"/>', "</g>")
        paper.text(left + 14, y + 4, name)
        left += 26 + text_width(name)
    return left


def text_width(words: str, size: float = _SIZE) -> float:
    """Return roughly how wide a text is, rather too much than too little: fonts differ from reader to reader."""
    return size * sum(map(_relative_width, words))


@functools.cache
def _relative_width(character: str) -> float:
    if character in _NARROW:
        return 0.36
    if character in _BROAD or east_asian_width(character) in "WF":
        return 0.95
    return 0.72 if character.isupper() else 0.6


def fitted(words: str, room: float, size: float = _SIZE) -> str:
    """Return the text, cut with an ellipsis if it is wider than the room."""
    if text_width(words, size) <= room:
        return words
    while words and text_width(words + "…", size) > room:
        words = words[:-1]
    return words + "…"


def _escaped(words: str) -> str:
    """Return the text for XML, in which most control characters have no place."""
    return escape(re.sub(r"[^\t\n\r -\uD7FF\uE000-\uFFFD\U00010000-\U0010FFFF]", "\ufffd", words))
