"""What the page of a suite of 1,000 cells costs: seconds and megabytes, beside the text table of the same store."""

from __future__ import annotations

import time

import pytest
import toys

import bpcbench
from bpcbench.reporting import render
from bpcbench.reporting.page import report_page

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(1500)]
METHODS = ", ".join(f"m{i}: {{plugin: pick, rate: 0.{i}}}" for i in range(1, 11))


def test_seconds_and_megabytes_of_a_thousand_cells(tmp_path, monkeypatch, install, write_suite):
    install(toys)
    text = toys.TOYS.replace("methods: [pick]", f"methods: {{{METHODS}}}")
    suite = write_suite(text.replace("{distil: 2, evaluate: 2}", "{distil: 10, evaluate: 5}") + "metrics: [right]\n")
    done = bpcbench.run(suite, out=tmp_path / "store", inline=True, track=False, quiet=True)
    assert done.exit_code == 0
    cells = len(done.view.manifest.cells)
    assert cells == 1000
    before = time.process_time()
    table = render(bpcbench.Session(suite, out=tmp_path / "store").view().table())
    text_seconds = time.process_time() - before
    before = time.process_time()
    page = report_page(bpcbench.Session(suite, out=tmp_path / "store").view())
    page_seconds = time.process_time() - before
    size = len(page.encode()) / 1e6
    print(
        f"\n{cells} cells: page {page_seconds:.1f} CPU s, {size:.2f} MB; table {text_seconds:.1f} CPU s "
        f"({page_seconds / text_seconds:.1f} times)"
    )
    assert table.count("m1") > 0
    assert size < 2
