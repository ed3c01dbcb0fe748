"""From a plan and a store to the rows of a report: the numbers that are there, read and never recomputed."""

from __future__ import annotations

from bpcbench.planning.plan import Plan
from bpcbench.records import PublishedQuery
from bpcbench.reporting import Row
from bpcbench.reporting.rows import Place
from bpcbench.store.store import Store


def collect(plan: Plan, store: Store, step: int | None = None) -> list[Row]:
    """Return one row per cell, evaluator and metric that the store holds, of coresets after `step` or at their end."""
    rows = []
    for cell in plan.cells:
        if cell.step != step:
            continue
        for evaluator, address in cell.scores.items():
            if not store.has(address):
                continue
            meta = store.meta(address)
            for metric, value in meta["metrics"].items():
                rows.append(
                    Row(
                        dataset=cell.dataset,
                        ipc=cell.ipc,
                        method=cell.method,
                        inference=cell.inference,
                        network=cell.network,
                        coreset=str(cell.coreset),
                        distil_seed=cell.distil_seed,
                        evaluate_seed=cell.evaluate_seed,
                        evaluator=evaluator,
                        metric=metric,
                        value=float(value),
                        higher_is_better=meta["higher_is_better"].get(metric),
                        notes=cell.notes,
                        ranked=plan.suite.settings[cell.dataset, cell.ipc].methods[cell.method].plugin.ranked,
                    )
                )
    return rows


def queries(plan: Plan) -> dict[Place, PublishedQuery]:
    """Return the plugins of every place of the table, by which published numbers are matched."""
    return {
        Place(cell.dataset, cell.ipc, cell.method, cell.inference, cell.network): cell.query
        for cell in plan.cells
        if cell.query is not None
    }
