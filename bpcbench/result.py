"""What `bpcbench.run` returns: how the run ended, and its results as tables, a data frame, a page and coresets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from bpcbench.errors import UserError, unknown

if TYPE_CHECKING:
    import pandas as pd

    from bpcbench.planning.plan import Plan
    from bpcbench.records import Coreset
    from bpcbench.reporting import Row, Table
    from bpcbench.reporting.pairs import Axis
    from bpcbench.reporting.view import View
    from bpcbench.running.run import Failure, Result
    from bpcbench.store.manifest import CellRecord


@dataclass(frozen=True, eq=False)
class RunResult:
    """A run that has ended. `view` is what the store has of its suite, now and later: whoever runs again sees more."""

    ended: Result
    plan: Plan
    view: View

    @property
    def exit_code(self) -> int:
        """0 if all results exist, 1 if something failed, 128 + n if signal n stopped the run."""
        return self.ended.exit_code

    @property
    def counts(self) -> Mapping[str, int]:
        """The number of stages of this run by status; empty if everything was there before."""
        return self.ended.counts

    @property
    def failures(self) -> tuple[Failure, ...]:
        """The stages that failed, why, and their logs."""
        return self.ended.failures

    @property
    def signal(self) -> int | None:
        """The signal that stopped the run, if one did."""
        return self.ended.signal

    @property
    def error(self) -> str:
        """What went wrong with the engine, if that ended the run."""
        return self.ended.error

    @property
    def store(self) -> Path:
        """The folder of the store."""
        return self.view.store.root

    def rows(self) -> list[Row]:
        """Return every number of the suite that the store has."""
        return self.view.rows()

    def frame(self) -> pd.DataFrame:
        """Return every number of the suite that the store has, one line per cell and metric."""
        from bpcbench.reporting import to_frame

        return to_frame(self.rows())

    def table(self, metrics: str | Sequence[str] = (), *, published: bool = False) -> Table:
        """Return the table of the results; `print` it, or `render` it as Markdown, LaTeX, CSV or JSON.

        `metrics` are those of the suite by default; with `published` printed numbers stand below the lines they match.
        """
        return self.view.table(_several(metrics), published=published)

    def against(self, baseline: str, metrics: str | Sequence[str] = (), *, axis: Axis = "method") -> Table:
        """Return the paired differences to a method, with `axis` to an inference or a network, with 95 % intervals."""
        return self.view.differences(baseline, _several(metrics), axis=axis)

    def costs(self) -> Table:
        """Return what coresets and evaluations took: seconds, memory and bytes."""
        return self.view.costs()

    def page(self, output: str | Path | None = None, metrics: str | Sequence[str] = ()) -> Path:
        """Write the report as one HTML file, by default NAME.html in the current folder; return its path."""
        from bpcbench.reporting.page import page_path, report_page

        path = page_path(output, self.view.manifest.name)
        path.write_text(report_page(self.view, _several(metrics)), encoding="utf-8")
        return path

    def coreset(
        self,
        method: str,
        dataset: str | None = None,
        ipc: int | None = None,
        *,
        seed: int = 0,
        step: int | None = None,
        order: int | str | None = None,
    ) -> Coreset:
        """Return a coreset of the run, or its snapshot after `step`; a notebook shows it.

        `dataset`, `ipc` and, in class-incremental learning, `order` may be left out where the method has one only; the
        coreset is then the union of those of all steps. Raise UserError, with what there is, if the
        run has no such coreset.
        """
        from bpcbench.coresets.reading import load_coreset
        from bpcbench.records import union
        from bpcbench.store.address import Address

        named = None if order is None else str(order)
        cell = self._cell({"method": method, "dataset": dataset, "ipc": ipc, "order": named, "distil_seed": seed})
        addresses = cell.coresets
        if step is not None:
            addresses = tuple(Address(one.kind, one.key, f"step-{step}") for one in addresses)
        for address in addresses:
            if not self.view.store.has(address):
                what = "" if step is None else f" after step {step}"
                raise UserError(f"the store has no coreset{what} of {cell.label}")
        return union([load_coreset(self.view.store.path(address)) for address in addresses])

    def _cell(self, wanted: Mapping[str, object]) -> CellRecord:
        """Return the first cell with these labels, of which those that are None must be unambiguous."""
        left = [cell for cell in self.view.manifest.cells if cell.coresets and cell.step is None]
        for axis, value in wanted.items():
            there = dict.fromkeys(_label(cell, axis) for cell in left)
            name = axis.replace("_", " ").replace("dataset", "data set")
            if value is None and len(there) > 1:
                raise UserError(f"which {name}? There are {_listed(there)}")
            if value is not None and value not in there:
                raise UserError(unknown(name, value, map(str, there)))
            left = [cell for cell in left if value is None or _label(cell, axis) == value]
        if not left:
            raise UserError(f"{self.view.manifest.name} has no coresets")
        return left[0]

    @cached_property
    def _state(self) -> str:
        view = self.view
        progress = view.progress
        total = len(progress.done) + len(progress.running) + len(progress.failed) + len(progress.missing)
        words = [f"{len(progress.done):,} of {total:,} evaluations have results"]
        words += [f"{len(self.failures):,} stages failed"] if self.failures else []
        words += [f"stopped by signal {self.signal}"] if self.signal is not None else []
        words += [self.error] if self.error else []
        return f"{view.manifest.name}: {', '.join(words)}"

    def __repr__(self) -> str:
        return f"RunResult({self._state}; store {str(self.store)!r})"

    def _repr_html_(self) -> str:
        """Return the table for notebooks, below what failed."""
        from html import escape

        failed = "".join(f"<li>{escape(one.stage.label)}: {escape(one.message)}</li>" for one in self.failures)
        return f"<p>{escape(self._state)}</p>{f'<ul>{failed}</ul>' if failed else ''}{self.table()._repr_html_()}"


def _label(cell: CellRecord, axis: str) -> object:
    return getattr(cell if axis in ("distil_seed", "order") else cell.group, axis)


def _listed(values: Iterable[object]) -> str:
    return ", ".join(map(str, values))


def _several(metrics: str | Sequence[str]) -> tuple[str, ...]:
    return (metrics,) if isinstance(metrics, str) else tuple(metrics)
