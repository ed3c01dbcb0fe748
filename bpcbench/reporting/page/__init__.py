"""The report as one HTML file that needs nothing else: tables, pictures and provenance, from a manifest and a store."""

from __future__ import annotations

from pathlib import Path

from bpcbench.reporting.page.comparison import comparison_page
from bpcbench.reporting.page.leaderboard import leaderboard_page
from bpcbench.reporting.page.report import report_page

__all__ = ["comparison_page", "leaderboard_page", "page_path", "report_page"]


def page_path(output: str | Path | None, name: str) -> Path:
    """Return where a page is written: to `output`, by default to NAME.html in the current folder."""
    safe = "".join(c if c.isalnum() or c in "-_.+" else "-" for c in name).lstrip(".") or "report"
    return Path(output or f"{safe[:100]}.html").absolute()
