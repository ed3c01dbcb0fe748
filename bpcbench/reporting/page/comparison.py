"""The page of a comparison of two invocations."""

from __future__ import annotations

from bpcbench.reporting.compare import CHANGE_HEADINGS, NUMBER_HEADINGS, Change, Comparison
from bpcbench.reporting.page.document import document, section
from bpcbench.reporting.page.markup import Html, element, joined, table


def comparison_page(comparison: Comparison) -> str:
    """Return a comparison as one HTML document that needs nothing else."""
    sides = element(
        "dl",
        *(
            joined((element("dt", name), element("dd", words)))
            for name, words in (("A", comparison.before), ("B", comparison.after))
        ),
        class_="facts",
    )
    said = element("ul", *(element("li", sentence) for sentence in comparison.sentences()), class_="notes")
    parts = [section("summary", "Summary", said)]
    for anchor, title, changes in (
        ("options", "Options", comparison.options),
        ("versions", "Versions", comparison.versions),
    ):
        if changes:
            parts.append(section(anchor, title, table(CHANGE_HEADINGS, [_cells(change) for change in changes])))
    if comparison.changed:
        lines = []
        for shift in comparison.changed:
            *cells, verdict = shift.cells()
            strong = verdict in ("better", "worse", "larger", "smaller")
            lines.append((*cells, element("b", verdict) if strong else element("span", verdict)))
        parts.append(section("numbers", "Numbers", table(NUMBER_HEADINGS, lines)))
    header = element("header", element("h1", "Comparison"), sides)
    return document("Comparison", joined((header, element("main", *parts))))


def _cells(change: Change) -> tuple[Html, ...]:
    what, before, after = change.cells()
    return element("span", what), element("code", before), element("code", after)
