"""Two invocations side by side: what changed in options, versions and numbers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from bpcbench.records import Unit
from bpcbench.reporting.observations import Draw
from bpcbench.reporting.plain import PlainFormat, plain
from bpcbench.reporting.rows import Row, number, with_unit
from bpcbench.reporting.view import View
from bpcbench.stats import Difference, paired_difference
from bpcbench.store.manifest import Manifest

CHANGE_HEADINGS = ("what", "A", "B")
NUMBER_HEADINGS = (
    *("data set", "ipc", "method", "inference", "network", "metric"),
    *("A", "B", "difference", "95 % interval", "n", "verdict"),
)
ABSENT = "—"


@dataclass(frozen=True)
class Change:
    """Something that is not the same in both; None where one side does not have it."""

    what: str
    before: str | None
    after: str | None

    def cells(self) -> tuple[str, str, str]:
        """Return the change as the texts of a line under `CHANGE_HEADINGS`."""
        before, after = (ABSENT if side is None else side for side in (self.before, self.after))
        return (self.what, before, after)


class Spot(NamedTuple):
    """Where a number stands in both tables."""

    dataset: str
    ipc: int
    method: str
    inference: str
    network: str
    evaluator: str
    metric: str
    unit: Unit
    higher_is_better: bool | None


@dataclass(frozen=True)
class Shift:
    """The same cells in both: their means, and B less A over pairs of seeds; `same` if every number is equal."""

    spot: Spot
    before: float
    after: float
    difference: Difference
    same: bool

    @property
    def verdict(self) -> str:
        """What the interval says: `same`, `better`, `worse`, `larger`, `smaller`, or `not told apart`."""
        d = self.difference
        if self.same:
            return "same"
        if d.low is None or d.high is None or d.low <= 0 <= d.high:
            return "not told apart"
        if self.spot.higher_is_better is None:
            return "larger" if d.low > 0 else "smaller"
        return "better" if (d.low > 0) == self.spot.higher_is_better else "worse"

    def cells(self) -> tuple[str, ...]:
        """Return the shift as the texts of a line under `NUMBER_HEADINGS`."""
        spot, d = self.spot, self.difference
        unit, size = spot.unit, max(abs(d.mean), abs(d.low or 0.0), abs(d.high or 0.0))
        bounds = (
            "" if d.low is None or d.high is None else f"{_signed(unit, d.low, size)} ... {_signed(unit, d.high, size)}"
        )
        names = (spot.dataset, str(spot.ipc), spot.method, spot.inference, spot.network, with_unit(spot.metric, unit))
        means = (number(unit, self.before), number(unit, self.after))
        return (*names, *means, _signed(unit, d.mean, size), bounds, str(d.n), self.verdict)


@dataclass(frozen=True)
class Comparison:
    """What differs between A (`before`) and B (`after`)."""

    before: str
    after: str
    options: tuple[Change, ...]
    versions: tuple[Change, ...]
    shifts: tuple[Shift, ...]
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]

    @property
    def changed(self) -> tuple[Shift, ...]:
        """The numbers that are not the same."""
        return tuple(shift for shift in self.shifts if not shift.same)

    @property
    def equal(self) -> bool:
        """Whether nothing at all differs."""
        return not (self.changed or self.options or self.versions or self.only_before or self.only_after)

    def sentences(self) -> Iterator[str]:
        """Yield what is to be said beside the tables."""
        if self.equal:
            yield "Nothing differs."
        if not self.shifts:
            yield "No cell of both has results that could be compared."
        elif same := sum(shift.same for shift in self.shifts):
            yield f"{same} of {len(self.shifts)} numbers that both have are the same in both, and not listed."
        for side, names in (("A", self.only_before), ("B", self.only_after)):
            if names:
                yield f"Only in {side}: {'; '.join(names)}."
        if self.changed:
            yield (
                "Differences are B less A over the same seeds: evaluations are averaged per coreset, coresets paired "
                "by seed. The verdict is better or worse where the 95 % t-interval excludes zero."
            )


def compare(before: View, after: View, metrics: Sequence[str] = ()) -> Comparison:
    """Return what differs between two views, by default in the metrics that either shows."""
    shown = tuple(metrics) or tuple(dict.fromkeys((*before.shown(), *after.shown())))
    ours, theirs = _places(before.manifest), _places(after.manifest)
    return Comparison(
        before=_title(before),
        after=_title(after),
        options=tuple(_changes(_options(before.manifest), _options(after.manifest))),
        versions=tuple(_changes(_versions(before), _versions(after))),
        shifts=tuple(shifts(before.rows(), after.rows(), shown)),
        only_before=tuple(place for place in ours if place not in theirs),
        only_after=tuple(place for place in theirs if place not in ours),
    )


def shifts(before: Sequence[Row], after: Sequence[Row], metrics: Sequence[str]) -> Iterator[Shift]:
    """Yield a shift for every place and metric of which both have the same seeds.

    Evaluations that both have are averaged per coreset; coresets are paired by their seed, and seeds that share the
    coresets of both are one pair.
    """
    ours, theirs = _numbers(before, metrics), _numbers(after, metrics)
    places = list(dict.fromkeys(spot[:5] for spot in ours))
    order = {spot: (places.index(spot[:5]), list(metrics).index(spot.metric)) for spot in ours}
    for spot, mine in sorted(ours.items(), key=lambda item: order[item[0]]):
        other = theirs.get(spot, {})
        shared = [seeds for seeds in mine if seeds in other]
        if not shared:
            continue
        old: dict[tuple[str, str], list[float]] = {}
        new: dict[tuple[str, str], list[float]] = {}
        for seeds in shared:
            pair = (mine[seeds][0], other[seeds][0])
            old.setdefault(pair, []).append(mine[seeds][1])
            new.setdefault(pair, []).append(other[seeds][1])
        a, b = ({pair: sum(values) / len(values) for pair, values in side.items()} for side in (old, new))
        # Not by the means: equal means of different numbers are not the same results, and NaN equals itself here.
        same = all(repr(mine[seeds][1]) == repr(other[seeds][1]) for seeds in shared)
        yield Shift(spot, _mean(a), _mean(b), paired_difference(b, a), same)


def comparison_text(comparison: Comparison, format: PlainFormat = "text") -> str:  # noqa: A002
    """Return a comparison as text or Markdown; as CSV only the numbers, those that are the same too."""
    if format == "csv":
        return plain(NUMBER_HEADINGS, [shift.cells() for shift in comparison.shifts], "csv")
    parts = [f"A: {comparison.before}\nB: {comparison.after}\n"]
    for title, changes in (("Options", comparison.options), ("Versions", comparison.versions)):
        if changes:
            body = plain(CHANGE_HEADINGS, [change.cells() for change in changes], format)
            parts.append(f"{_heading(title, format)}\n{body}")
    if comparison.changed:
        body = plain(NUMBER_HEADINGS, [shift.cells() for shift in comparison.changed], format)
        parts.append(f"{_heading('Numbers', format)}\n{body}")
    parts += [f"{sentence}\n" for sentence in comparison.sentences()]
    return "\n".join(parts)


def _heading(title: str, format: PlainFormat) -> str:  # noqa: A002
    return f"## {title}\n" if format == "md" else title


def _title(view: View) -> str:
    return f"{view.manifest.name}:{view.invocation.path.name}, {view.invocation.title}, in {view.store.root}"


def _places(manifest: Manifest) -> dict[str, None]:
    return dict.fromkeys(group.label for group in manifest.groups)


def _options(manifest: Manifest) -> dict[str, str]:
    """Return the suite as flat texts: its seeds, split and protocol, and every plugin's version and options."""
    flat = {"protocol": str(manifest.protocol), "split": manifest.split, "purpose": manifest.purpose}
    flat["seeds.distil"], flat["seeds.evaluate"] = map(str, manifest.seeds)
    skipped = ("name", "description", "protocol", "split", "seeds", "metrics", "methods", "inferences", "networks")
    for key, value in manifest.document.items():
        if key not in skipped:
            flat.update(_flat(key, value))
    by_place: dict[str, dict[str, str]] = {}
    for group in manifest.groups:
        for role, plugin in group.plugins.items():
            label = f"{role} {getattr(group, role, plugin.name)}"
            own = {f"{label}: plugin": f"{plugin.package}:{plugin.name}", f"{label}: version": str(plugin.version)}
            for name, value in plugin.options.items():
                own.update(_flat(f"{label}: {name}", value))
            for key, value in own.items():
                by_place.setdefault(key, {})[f"{group.dataset} ipc {group.ipc}"] = value
    for key, values in by_place.items():
        if len(set(values.values())) == 1:
            flat[key] = next(iter(values.values()))
        else:
            flat.update({f"{key} ({place})": value for place, value in values.items()})
    return flat


def _versions(view: View) -> dict[str, str]:
    manifest = view.manifest
    found = {name: str(version) for name, version in manifest.versions.items()}
    for one in manifest.datasets:
        found[f"data set {one.label}"] = one.fingerprint[:12] or "unknown"
    if view.invocation.runs:
        found["host"] = view.invocation.runs[-1].host
    return found


def _flat(name: str, value: Any) -> dict[str, str]:
    if isinstance(value, Mapping) and value:
        return {key: text for part, item in value.items() for key, text in _flat(f"{name}.{part}", item).items()}
    return {name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)}


def _changes(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[Change]:
    for what in dict.fromkeys((*before, *after)):
        if before.get(what) != after.get(what):
            yield Change(what, before.get(what), after.get(what))


def _numbers(rows: Sequence[Row], metrics: Sequence[str]) -> dict[Spot, dict[tuple[Draw, int], tuple[str, float]]]:
    found: dict[Spot, dict[tuple[Draw, int], tuple[str, float]]] = {}
    for row in rows:
        if row.metric in metrics:
            place = (row.dataset, row.ipc, row.method, row.inference, row.network, row.evaluator)
            spot = Spot(*place, row.metric, row.unit, row.higher_is_better)
            found.setdefault(spot, {})[row.draw, row.evaluate_seed] = (row.coreset, row.value)
    return found


def _mean(values: Mapping[Any, float]) -> float:
    return sum(values.values()) / len(values)


def _signed(unit: Unit, value: float, like: float) -> str:
    text = number(unit, value, like)
    return text if text.startswith("-") else f"+{text}"
