"""From a plan and a store to the rows of a report: the numbers that are there, read and never recomputed."""

from __future__ import annotations

from bpcbench.planning.plan import Plan
from bpcbench.reporting import Row
from bpcbench.store.store import Store

_HIGHER_IS_BETTER = {"higher": True, "lower": False, None: None}


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
                        higher_is_better=_HIGHER_IS_BETTER[meta["directions"][metric]],
                        unit=meta["units"][metric],
                        notes=cell.notes,
                    )
                )
    return rows
