"""One number of a benchmark, where it comes from and how it is written: what every table is made of."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from bpcbench.records import Unit

if TYPE_CHECKING:
    import pandas as pd

_DECIMALS = ((0.0005, ".1e"), (0.1, ".3f"), (100, ".2f"), (1000, ".1f"), (1e5, ".0f"))


class Place(NamedTuple):
    """The labels of a group of rows: where their mean stands in a table, but for the metric."""

    dataset: str
    ipc: int
    method: str
    inference: str
    network: str


@dataclass(frozen=True)
class Asked:
    """What a suite asks for at one place: how many distil seeds, each with how many evaluation seeds.

    In class-incremental learning every order of the classes has its own coresets: `distil` counts them all.
    """

    distil: int
    evaluate: int
    ranked: bool = True


@dataclass(frozen=True)
class Row:
    """One metric of one evaluation of one coreset.

    `coreset` is the coreset's address; of coresets with equal content, the first one's. Rows with equal `coreset`
    evaluate the same coreset even where `distil_seed` differs: a deterministic method has one for all its seeds, and
    counts once. `value` is as the evaluator gave
    it; with the unit `percent` it is a fraction that tables print in percent. `notes` are the words of the data set and
    of the method that every table must carry, such as `subset`, `generated` or `reconstruction`. `ranked` is False for
    a method that is no competitor. In class-incremental learning `order` names the order of the classes, and `coreset`
    is the memory that came about in it.
    """

    dataset: str
    ipc: int
    method: str
    inference: str
    network: str
    coreset: str
    distil_seed: int
    evaluate_seed: int
    evaluator: str
    metric: str
    value: float
    higher_is_better: bool | None
    unit: Unit = ""
    notes: tuple[str, ...] = ()
    ranked: bool = True
    order: str = ""

    @property
    def draw(self) -> tuple[str, int]:
        """The order of the classes and the distil seed: lines are paired by what they share of it."""
        return self.order, self.distil_seed

    @property
    def place(self) -> Place:
        """Where the row's mean stands in a table, but for the metric."""
        return Place(self.dataset, self.ipc, self.method, self.inference, self.network)


def number(unit: Unit, value: float, like: float | None = None) -> str:
    """Return a value as tables show it, with the decimals that suit `like` (by default the value itself)."""
    if unit == "percent":
        return f"{100 * value:.1f}"
    size = abs(value if like is None else like)
    return format(value, ".2f" if size == 0 else next((spec for limit, spec in _DECIMALS if size < limit), ".1e"))


def with_unit(metric: str, unit: Unit) -> str:
    """Return a metric's name as a heading: with the sign of its unit."""
    return f"{metric} %" if unit == "percent" else metric


def notes(rows: Sequence[Row]) -> Iterator[str]:
    """Say of every note which data sets carry it, and with which methods where not all rows of a data set do.

    A word is a mark of the data set; a note of several words, such as `svhn: resized to 32x32`, speaks for itself.
    """
    for note in dict.fromkeys(note for row in rows for note in row.notes):
        where = []
        for dataset in dict.fromkeys(row.dataset for row in rows if note in row.notes):
            mine = [row for row in rows if row.dataset == dataset]
            methods = dict.fromkeys(row.method for row in mine if note in row.notes)
            everywhere = all(note in row.notes for row in mine)
            where.append(dataset if everywhere else f"{dataset} ({', '.join(methods)})")
        yield f"{note} ({', '.join(where)})." if " " in note else f"Marked {note}: {', '.join(where)}."


def to_frame(rows: Iterable[Row]) -> pd.DataFrame:
    """Return the rows as a data frame: a column per field in their order, `notes` joined by semicolons."""
    # Pandas takes half a second to import, and only those who ask for a frame should pay for it.
    import pandas as pd

    names = [field.name for field in dataclasses.fields(Row)]
    records = [{name: getattr(row, name) for name in names} | {"notes": "; ".join(row.notes)} for row in rows]
    return pd.DataFrame.from_records(records, columns=names)
