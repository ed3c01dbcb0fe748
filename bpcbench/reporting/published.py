"""The numbers printed in the VBPC paper, to stand beside measured ones."""

from __future__ import annotations

import csv
import functools
import importlib.resources
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bpcbench.errors import Mistake, Mistakes
from bpcbench.records import Unit
from bpcbench.stats import Summary

COLUMNS = ("table", "dataset", "ipc", "setting", "method", "metric", "mean", "std")
OUT_OF_MEMORY = "oom"
_ALIASES = {"fmnist": "fashionmnist"}


@dataclass(frozen=True)
class Published:
    """One printed number, in the unit it was printed in (accuracies are percentages).

    `setting` says what varies inside a table, e.g. `arch=conv-gn`, and is empty in the main table. `mean` is None
    where the authors report `oom`; `std` is None where none is printed. `printed` is both as they stand in the paper.
    """

    table: str
    dataset: str
    ipc: int
    setting: str
    method: str
    metric: str
    mean: float | None
    std: float | None
    printed: tuple[str, str]

    def summary(self, unit: Unit) -> Summary | None:
        """Return the number as evaluators give it, a fraction if the metric's unit is `percent`; None if there is none.

        Its n is 0 because n is not known.
        """
        if self.mean is None:
            return None
        scale = 100 if unit == "percent" else 1
        # Six decimals hold all that is printed, without the digits that a division by 100 adds.
        std = None if self.std is None else round(self.std / scale, 6)
        return Summary(round(self.mean / scale, 6), std, 0, None, None, None)


def published(path: Path | str | None = None) -> list[Published]:
    """Return the records of a CSV file with the columns `COLUMNS`, by default the paper's numbers that ship with us.

    Raise `Mistakes` that names every line that cannot be read.
    """
    if path is None:
        text = importlib.resources.files("bpcbench.reporting").joinpath("published.csv").read_text(encoding="utf-8")
    else:
        text = Path(path).read_text(encoding="utf-8")
    reader = csv.DictReader(text.splitlines())
    name = "published.csv" if path is None else str(path)
    if missing := [column for column in COLUMNS if column not in (reader.fieldnames or ())]:
        raise Mistakes(name, [Mistake("", f"no column {', '.join(missing)}", 1, name)])
    records, mistakes = [], []
    for line in reader:
        try:
            records.append(_record(line))
        except (ValueError, AttributeError) as error:
            mistakes.append(Mistake("", f"not a published number: {error}", reader.line_num, name))
    if mistakes:
        raise Mistakes(name, mistakes)
    return records


def lookup(
    records: Iterable[Published],
    *,
    dataset: str,
    ipc: int,
    method: str,
    metric: str,
    table: str = "main",
    setting: str = "",
) -> Published | None:
    """Return the number of a cell, or None; data sets and methods match if their `normalised` names are equal."""
    wanted = (table, normalised(dataset), ipc, setting, normalised(method), metric)
    for record in records:
        names = (normalised(record.dataset), record.ipc, record.setting, normalised(record.method), record.metric)
        if (record.table, *names) == wanted:
            return record
    return None


def printed_as(metric: str) -> dict[str, str]:
    """Return the table, the setting and the metric under which `lookup` finds what a metric of ours is called there.

    `svhn/auroc` is in the table of out-of-distribution detection; the paper does not say by which score, so that only
    the default one is compared. `snow/acc`, a mean over severities, is in the table of CIFAR-10-C, as is `clean/acc`.
    The paper does not say by which formula its NLLs were computed, so that `nll` and `nll_batch128` both stand beside
    them.
    """
    other, _, name = metric.partition("/")
    if name in ("auroc", "aupr_in", "aupr_out"):
        return {"table": "ood_detection", "setting": f"ood={normalised(other)}", "metric": name}
    if name in ("acc", "nll"):
        return {"table": "cifar10c", "setting": f"corruption={other}", "metric": name}
    return {"metric": "nll" if metric == "nll_batch128" else metric}


@functools.cache
def normalised(name: str) -> str:
    """Return a name as it is compared: lower case, without the separators `-`, `_` and space, aliases resolved.

    So `CIFAR-10`, `CIFAR10` and `cifar_10` are one, and so are `FMNIST` and `fashion_mnist`. A separator between two
    digits stays: `cifar10-0` is not `cifar100`.
    """
    bare = re.sub(r"(?<!\d)[-_ ]+|[-_ ]+(?!\d)", "", name.strip().casefold())
    return _ALIASES.get(bare, bare)


def _record(line: Mapping[str, str]) -> Published:
    mean, std = line["mean"].strip(), line["std"].strip()
    return Published(
        table=line["table"],
        dataset=line["dataset"],
        ipc=int(line["ipc"]),
        setting=line["setting"],
        method=line["method"],
        metric=line["metric"],
        mean=None if mean == OUT_OF_MEMORY else float(mean),
        std=float(std) if std else None,
        printed=(mean, std),
    )
