"""What MLflow costs: CPU seconds per cell and per line of the table, written from a store that is complete."""

from __future__ import annotations

import time

import pytest
import toys

import bpcbench
from bpcbench.store.invocations import invocations
from bpcbench.store.store import Store
from bpcbench.tracking.mlflow import Book

pytestmark = pytest.mark.benchmark
SUITE = toys.TOYS.replace(
    "methods: [pick]", "methods: {" + ", ".join(f"m{i}: {{plugin: pick, rate: 0.{i}}}" for i in range(5)) + "}"
).replace("{distil: 2, evaluate: 2}", "{distil: 4, evaluate: 5}")


def test_cpu_seconds_per_cell_and_per_summary(tmp_path, monkeypatch, install, write_suite):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    install(toys)
    suite = write_suite(SUITE + "metrics: [right]\n")
    assert bpcbench.run(suite, out=tmp_path / "store", inline=True, track=False, quiet=True).exit_code == 0
    store = Store.open(tmp_path / "store")
    (one,) = invocations(store)
    book = Book(one.manifest, store).open()
    missing = book.missing()
    assert len(missing) == 200
    book.begin()
    before = time.process_time()
    for cell in missing:
        book.log_cell(cell)
    cells = time.process_time() - before
    before = time.process_time()
    changed = book.changed_summaries()
    for summary in changed:
        book.log_summary(summary)
    lines = time.process_time() - before
    assert len(changed) == 10
    print(f"\nMLflow: {cells / 200:.4f} CPU s per cell, {lines / 10:.4f} CPU s per summary (of 20 cells, 4 pictures)")
    assert (cells + lines) / 200 <= 0.1
