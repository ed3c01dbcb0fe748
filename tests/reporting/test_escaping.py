"""Foreign words in a spreadsheet: numbers stay numbers, and nothing becomes a formula."""

from __future__ import annotations

import pytest

from bpcbench.reporting.escaping import spreadsheet


@pytest.mark.parametrize("text", ["+1+2", "-2+3", "@x", "=1+1", "=HYPERLINK(0)", "\t=1", "\r=1", "-", "+a"])
def test_what_looks_like_a_formula_is_text(text: str) -> None:
    assert spreadsheet(text) == f"'{text}"


@pytest.mark.parametrize("value", ["a", "", "1", "-1.5", "+2e-3", "-inf", "a=b", 3, -2.5, None])
def test_everything_else_stays(value: object) -> None:
    assert spreadsheet(value) == value
