"""HTML from texts: every text is escaped where it enters an element, unless it is `Html` already."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape

_VOID = frozenset(("br", "input", "meta"))
_UNPRINTABLE = re.compile(r"[^\t\n\r -\x7e\xa0-\uD7FF\uE000-\uFFFD\U00010000-\U0010FFFF]")


class Html(str):
    """A piece of HTML, which enters a page as it stands."""

    __slots__ = ()


def text(words: object) -> Html:
    """Return a text as HTML: `Html` as it stands, anything else escaped, control characters replaced."""
    if isinstance(words, Html):
        return words
    return Html(escape(_UNPRINTABLE.sub("\ufffd", str(words))))


def element(tag: str, *children: object, **attributes: object) -> Html:
    """Return an element. An attribute's underscores are hyphens, a trailing one is dropped (`class_`, `data_metric`).

    An attribute that is None or False is left out, and True stands without a value. Children that are None are left
    out.
    """
    words = [tag]
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        name = name.rstrip("_").replace("_", "-")
        words.append(name if value is True else f'{name}="{text(str(value))}"')
    if tag in _VOID:
        return Html(f"<{' '.join(words)}>")
    return Html(f"<{' '.join(words)}>{joined(children)}</{tag}>")


def joined(children: Iterable[object], between: str = "") -> Html:
    """Return the children one after the other, without those that are None."""
    return Html(text(between).join(text(child) for child in children if child is not None))


def table(headings: Sequence[str], lines: Iterable[Sequence[object]], **attributes: object) -> Html:
    """Return a table in a box of its own that scrolls; columns whose entries all look like numbers are right-aligned.

    The first entry of a line heads it.
    """
    rows = [list(line) for line in lines]
    right = [bool(rows) and all(_numeric(row[i]) for row in rows) for i in range(len(headings))]
    head = [
        element("th", name, scope="col", class_="r" if r else None) for name, r in zip(headings, right, strict=True)
    ]
    body = []
    for row in rows:
        first = element("th", row[0], scope="row", class_="r" if right[0] else None)
        rest = [element("td", cell, class_="r" if r else None) for cell, r in zip(row[1:], right[1:], strict=True)]
        body.append(element("tr", first, *rest))
    made = element("table", element("thead", element("tr", *head)), element("tbody", *body), **attributes)
    return scrolling(made)


def scrolling(content: Html, label: str = "table") -> Html:
    """Return content in a box that scrolls sideways, by keyboard too."""
    return element("div", content, class_="scroll", tabindex="0", role="region", aria_label=label)


def _numeric(cell: object) -> bool:
    words = str(cell)
    return not isinstance(cell, Html) and (not words or bool(re.match(r"[+−-]?[\d.]*\d", words)))
