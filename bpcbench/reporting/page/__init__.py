"""The report as one HTML file that needs nothing else: tables, pictures and provenance, from a manifest and a store."""

from __future__ import annotations

from bpcbench.reporting.page.comparison import comparison_page
from bpcbench.reporting.page.report import report_page

__all__ = ["comparison_page", "report_page"]
