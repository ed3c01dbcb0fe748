"""The page of one suite, from its view."""

from __future__ import annotations

from collections.abc import Sequence

from bpcbench.reporting.costs import costs
from bpcbench.reporting.formats import Layout
from bpcbench.reporting.page.cells import marks
from bpcbench.reporting.page.charts import Key
from bpcbench.reporting.page.commands import run_command
from bpcbench.reporting.page.comparisons import agreement_charts, anytime_charts, cost_charts, rank_charts
from bpcbench.reporting.page.coresets import coreset_pictures
from bpcbench.reporting.page.document import document, section
from bpcbench.reporting.page.facts import cost_table, provenance, settings, state, unfinished
from bpcbench.reporting.page.figures import evaluator_figures
from bpcbench.reporting.page.images import Album
from bpcbench.reporting.page.markup import Html, element, joined
from bpcbench.reporting.page.results import axis_values, metrics_of, results
from bpcbench.reporting.view import View

_ALL_DATA = "whole"
"""The method that has all training data."""
_CHARTED = 3
"""Charts are drawn of so many metrics, the first of those shown."""


def report_page(view: View, metrics: Sequence[str] = (), layout: Layout = "wide") -> str:
    """Return the report of a suite as one HTML document that needs nothing else, neither plugins nor a network.

    `metrics` are shown at first, by default those of the latest run; the others can be switched to. `layout` is the
    one of the tables that is shown at first. Raise UserError for an unknown metric.
    """
    manifest = view.manifest
    rows = view.rows()
    chosen = metrics_of(view, rows, metrics)
    published = any(group.published for group in manifest.groups)
    table = view.table((*chosen.shown, *chosen.further), published=published)
    foot = view.table(chosen.shown, published=published).footnotes
    key = Key(tuple(axis_values(manifest.groups, "method")), tuple(axis_values(manifest.groups, "inference")))
    charted = chosen.shown[:_CHARTED]
    used = {group.method: group.plugins.get("method") for group in manifest.groups}
    ceilings = [method for method, plugin in used.items() if plugin is not None and plugin.name == _ALL_DATA]
    album = Album()
    costly = costs(manifest, view.store)
    nothing = element("p", "The store has no results of this suite yet.")
    parts: list[tuple[str, str, Html | None]] = [
        ("results", "Results", results(view, table, chosen, foot, layout) if rows else nothing),
        ("unfinished", "Cells without results", unfinished(view)),
        ("ranks", "Ranks", rank_charts(rows, charted, key)),
        ("agreement", "Posterior agreement", agreement_charts(table, ceilings, key)),
        ("cost", "Quality and cost", cost_charts(table, costly, charted[:2], key)),
        ("anytime", "Quality over time", anytime_charts(view, table, charted, key)),
        ("coresets", "Coresets", coreset_pictures(view, album)),
        ("figures", "Figures of the evaluators", evaluator_figures(view, key)),
        ("costs", "What it took", cost_table(costly)),
        ("settings", "Settings", settings(view)),
        ("provenance", "Provenance", provenance(view, run_command(view.invocation))),
    ]
    shown = [(anchor, title, content) for anchor, title, content in parts if content is not None]
    charts = {"ranks", "agreement", "cost", "anytime", "figures"}
    legend = key.legend()
    sections = [
        section(anchor, title, legend if anchor in charts else None, content) for anchor, title, content in shown
    ]
    links = [element("li", element("a", title, href=f"#{anchor}")) for anchor, title, _ in shown]
    description = (view.invocation.runs[-1].description if view.invocation.runs else "") or manifest.description
    words = dict.fromkeys(note for group in manifest.groups for note in group.notes)
    shared = ["shared"] if any(cost.shared for cost in costly) else []
    header = element(
        "header",
        element("h1", manifest.name),
        element("p", description, class_="description") if description else None,
        element(
            "p",
            f"Protocol {manifest.protocol}, {manifest.split} split. {state(view.progress)}. ",
            marks((*words, *shared)),
            class_="state",
        ),
        element("nav", element("ul", *links), aria_label="sections"),
    )
    skip = element("a", "Skip to the results", href="#results", class_="skip")
    notes = [element("p", note, class_="warning") for note in view.notes]
    body = joined((skip, header, element("main", *notes, *sections), album.definitions()))
    return document(f"{manifest.name}: results", body)
