"""The results of one suite as a view of the store: a manifest, its run records, and whatever the store holds of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from bpcbench.errors import UserError, unknown
from bpcbench.reporting.collect import Progress, asked, collect, progress, published_numbers, skip_notes, task_notes
from bpcbench.reporting.costs import cost_table, costs
from bpcbench.reporting.pairs import Axis, difference_table, pairs
from bpcbench.reporting.rows import Row
from bpcbench.reporting.table import Table, build
from bpcbench.store.invocations import Invocation
from bpcbench.store.manifest import Manifest
from bpcbench.store.store import Store


@dataclass(frozen=True, eq=False)
class View:
    """What the store has of one invocation. `notes` are for the reader, not for the table."""

    store: Store
    invocation: Invocation
    notes: tuple[str, ...] = ()

    @property
    def manifest(self) -> Manifest:
        """The manifest."""
        return self.invocation.manifest

    @property
    def title(self) -> str:
        """What stands over a table."""
        manifest = self.manifest
        return f"{manifest.name} (protocol {manifest.protocol}, {manifest.split} split)"

    @cached_property
    def progress(self) -> Progress:
        """The cells by state: done, running, failed, missing, skipped."""
        return progress(self.manifest, self.store, list(self.invocation.runs))

    def shown(self, metrics: Sequence[str] = ()) -> tuple[str, ...]:
        """Return the metrics to show: those named, else those of the latest run; raise UserError for unknown ones."""
        known = {metric.name for metric in self.manifest.metrics}
        for metric in metrics if known else ():
            if metric not in known:
                raise UserError("--metrics: " + unknown("metric", metric, known))
        runs = self.invocation.runs
        return tuple(metrics) or (runs[-1].shown if runs else ()) or self.manifest.shown

    def rows(self, step: int | None = None) -> list[Row]:
        """Return every number that the store has, of coresets after `step` or at their end."""
        return collect(self.manifest, self.store, step)

    def table(self, metrics: Sequence[str] = (), *, published: bool = False) -> Table:
        """Return the table of all results, with what has to be said below it."""
        manifest = self.manifest
        return build(
            self.rows(),
            metrics=self.shown(metrics),
            title=self.title,
            published=published_numbers(manifest) if published else None,
            publications=manifest.publications,
            extra=self.footnotes(),
            tried=manifest.tried,
            asked=asked(manifest),
        )

    def differences(self, against: str, metrics: Sequence[str] = (), *, axis: Axis = "method") -> Table:
        """Return the paired differences to a method, an inference or a network.

        Raise UserError for an unknown label, and where nothing can be paired.
        """
        order = tuple(asked(self.manifest))
        found = pairs(self.rows(), against, self.shown(metrics), axis, order)
        if not found:
            what = "distil seed" if axis == "method" else "coreset"
            raise UserError(f"nothing to compare with the {axis} {against!r}: no result shares a {what} with it")
        return difference_table(found, self.title, axis, self.footnotes(), order)

    def costs(self, *, published: bool = False) -> Table:
        """Return what the coresets and their evaluations took."""
        return cost_table(
            costs(self.manifest, self.store),
            self.title,
            self.footnotes(),
            order=tuple(asked(self.manifest)),
            published=published_numbers(self.manifest) if published else None,
            publications=self.manifest.publications,
        )

    def footnotes(self) -> tuple[str, ...]:
        """Return what has to be said of the results as a whole: what is missing, skipped, or made by older code."""
        runs = self.invocation.runs
        notes = []
        if note := self.progress.note():
            command = f" To complete: {runs[-1].command}" if runs else ""
            notes.append(f"{note}{command}")
        notes += self.progress.dashes()
        if runs and runs[-1].stale:
            names = ", ".join(runs[-1].stale)
            again = " ".join(f"--recompute {name}" for name in runs[-1].stale)
            notes.append(f"Some results of {names} were made by code that has changed since; {again} makes them again.")
        return (*task_notes(self.manifest), *notes, *skip_notes(self.manifest))
