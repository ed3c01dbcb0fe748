"""Manifests: what a suite asked for and where its results lie, so that every view needs the store alone.

STORE/suites/NAME/DIGEST/suite.json       labels, plugins with their options, data sets, metrics, groups of cells
                         cells.jsonl      one line per cell: its group, its seeds, its addresses, or why it is skipped
                         runs/RUN.json    one record per invocation (`bpcbench.store.runs`)

A manifest is immutable, so it needs no lock: the same content has the same digest, hence the same folder. What only
concerns presentation (the description, the metrics that a table shows) stays out of the digest and stands in the run
records as well. Plugins, coresets and sets of splits are written once and referred to by number.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from bpcbench.errors import StoreError
from bpcbench.forms import check
from bpcbench.reading import parse_json, read_bounded
from bpcbench.store import folder
from bpcbench.store.address import Address, digest
from bpcbench.store.layout import CELLS, SUITE, SUITES, manifests

SCHEMA = 1
Purpose = Literal["run", "tune", "anytime"]
Direction = Literal["higher", "lower"]


@dataclass(frozen=True)
class PluginRecord:
    """A configured plugin: import package, name, version, and all options as a suite writes them."""

    package: str
    name: str
    version: int
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class MetricRecord:
    """A metric that an evaluator of the suite gives: which way it goes, and its unit."""

    evaluator: str
    name: str
    direction: Direction | None = None
    unit: str = ""
    help: str = ""


@dataclass(frozen=True)
class DatasetRecord:
    """A data set of the suite as it was when it was planned; `left_out` is what evaluators did without, and why."""

    label: str
    plugin: PluginRecord
    shape: tuple[int, ...]
    classes: int
    sizes: Mapping[str, int]
    class_names: tuple[str, ...] = ()
    official: bool = True
    fingerprint: str = ""
    notes: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class PublishedRecord:
    """A number that a paper prints for a group and a metric, in the metric's own unit, and as it is printed."""

    publication: str
    metric: str
    mean: float | None
    std: float | None
    printed: tuple[str, str]


@dataclass(frozen=True)
class Group:
    """The cells that differ in their seeds only: one line of one block of a table.

    `own` holds the method's native inference and network, where it has them.
    """

    dataset: str
    ipc: int
    method: str
    inference: str
    network: str
    plugins: Mapping[str, PluginRecord] = field(default_factory=dict)
    native_inference: bool = False
    native_network: bool = False
    ranked: bool = True
    notes: tuple[str, ...] = ()
    own: tuple[PluginRecord, PluginRecord] | None = None
    published: tuple[PublishedRecord, ...] = ()

    @property
    def label(self) -> str:
        """The group in words."""
        return f"{self.dataset} ipc {self.ipc} {self.method} / {self.inference} / {self.network}"


@dataclass(frozen=True, eq=False)
class CellRecord:
    """One cell: its group and seeds, and the addresses of its coresets, predictions and scores, or why it is skipped.

    `step` is the step after which the coreset is evaluated; None means its end. In class-incremental learning `order`
    names the order of the classes, there is a coreset per step, and `earlier` are the keys of the predictions after
    each step before the last, with their splits.
    """

    group: Group
    distil_seed: int
    evaluate_seed: int
    coresets: tuple[Address, ...] = ()
    predict: str = ""
    splits: tuple[str, ...] = ()
    scores: Mapping[str, Address] = field(default_factory=dict)
    skipped: str = ""
    step: int | None = None
    order: str = ""
    earlier: tuple[str, ...] = ()
    earlier_splits: tuple[str, ...] = ()

    @property
    def coreset(self) -> str:
        """The addresses of the coresets as one text: equal for cells that evaluate the same coreset."""
        return "+".join(map(str, self.coresets))

    @property
    def predictions(self) -> tuple[Address, ...]:
        """The addresses of the predicted splits."""
        return tuple(Address("predict", self.predict, split) for split in self.splits)

    @property
    def draw(self) -> tuple[str, int]:
        """The order of the classes and the distil seed: what is drawn anew for every coreset of a group."""
        return self.order, self.distil_seed

    @property
    def stages(self) -> tuple[str, ...]:
        """The ids of the stages behind the scores: coresets and predictions, those after earlier steps included."""
        return (*(address.stage for address in self.coresets), *(f"predict:{k}" for k in (*self.earlier, self.predict)))

    def task(self, stage: str) -> str:
        """Return the step that a coreset or a prediction belongs to, such as `task-2`; empty where there is one."""
        if len(self.coresets) < 2:
            return ""
        made = [address.stage for address in self.coresets]
        predicted = [f"predict:{key}" for key in (*self.earlier, self.predict)]
        last = len(made)
        if stage in made:
            return f"task-{made.index(stage) + 1}"
        return f"task-{last - len(predicted) + predicted.index(stage) + 1}" if stage in predicted else ""

    @property
    def label(self) -> str:
        """The cell in words."""
        at_step = "" if self.step is None else f" step {self.step}"
        order = f" order {self.order}" if self.order else ""
        return f"{self.group.label}{order} seed {self.distil_seed}.{self.evaluate_seed}{at_step}"

    @property
    def key(self) -> str:
        """A digest of the cell: its place in the grid, its seeds and the addresses of its scores."""
        names = [self.group.label, self.distil_seed, self.evaluate_seed, self.step, *([self.order] * bool(self.order))]
        return digest([names, sorted(str(address) for address in self.scores.values())])


@dataclass(frozen=True, eq=False)
class Manifest:
    """A resolved suite. `request` is a digest of the suite as written, with overrides; `document` is its content."""

    name: str
    source: str
    purpose: Purpose
    request: str
    description: str
    protocol: int
    split: str
    shown: tuple[str, ...]
    document: Mapping[str, Any]
    versions: Mapping[str, str]
    metrics: tuple[MetricRecord, ...]
    datasets: tuple[DatasetRecord, ...]
    groups: tuple[Group, ...]
    cells: tuple[CellRecord, ...]
    tried: Mapping[str, int] = field(default_factory=dict)
    publications: Mapping[str, str] = field(default_factory=dict)
    """The notes that tables print under the numbers of a publication, by its name."""
    seeds: tuple[int, int] = (1, 1)

    @property
    def digest(self) -> str:
        """A digest of the content, without what only concerns presentation."""
        head, cells = _encode(self)
        for name in ("description", "shown", "document", "request", "source", "versions"):
            head.pop(name)
        return digest([head, cells])[:12]

    def metric(self, name: str, evaluator: str | None = None) -> MetricRecord | None:
        """Return the declaration of a metric, of one evaluator or of the first that gives it."""
        return next((m for m in self.metrics if m.name == name and evaluator in (None, m.evaluator)), None)


def suite_folder(name: str) -> str:
    """Return the folder's name of a suite: its own name, with whatever a file system may refuse escaped."""
    safe = quote(name, safe=" +-_.()")
    safe = f"%2E{safe[1:]}" if safe.startswith(".") else safe
    return safe if len(safe) <= 120 else f"{safe[:100]}-{digest(name)[:8]}"


def write_manifest(root: Path, manifest: Manifest) -> Path:
    """Write a manifest into a store unless it is there, atomically and durably; return its folder."""
    target = root / SUITES / suite_folder(manifest.name) / manifest.digest
    if not (target / SUITE).is_file():
        temporary = folder.temporary(root / "scratch" / "commit")
        head, cells = _encode(manifest)
        lines = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in cells)
        try:
            temporary.mkdir(parents=True)
            folder.write_durably(temporary / SUITE, (json.dumps(head, indent=1, sort_keys=True) + "\n").encode())
            folder.write_durably(temporary / CELLS, lines.encode())
            folder.sync_folder(temporary)
            folder.publish(temporary, target)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
    return target


def read_manifest(path: Path) -> Manifest:
    """Read the manifest in a folder; raise StoreError for an unknown schema or content that cannot be read.

    Fields that this version does not know are ignored.
    """
    try:
        head = parse_json(read_bounded(path / SUITE))
        schema = head["schema"]
        if schema != SCHEMA:
            raise StoreError(f"{path / SUITE} has schema {schema}; this bpcbench reads schema {SCHEMA}")
        lines = [parse_json(line) for line in read_bounded(path / CELLS).splitlines()]
        found = _decode(head, lines)
        check(found, Manifest)
        if any(not address.proper for cell in found.cells for address in (*cell.coresets, *cell.scores.values())):
            raise ValueError("it names a place that no store has")
        return found
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error) or type(error).__name__
        raise StoreError(f"{path}: the manifest cannot be read: {what.strip(' .')[:300]}") from None


def manifest_folders(root: Path) -> Iterator[Path]:
    """Yield the folders of all manifests of a store, sorted; whatever else lies there is passed over."""
    for path in manifests(root):
        if isinstance(path, Path) and (path / SUITE).is_file():
            yield path


class _Interned:
    """A list without repetitions; values are told apart by their JSON."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._numbers: dict[str, int] = {}

    def number(self, value: Any) -> int:
        text = json.dumps(value, sort_keys=True)
        if text not in self._numbers:
            self._numbers[text] = len(self.values)
            self.values.append(value)
        return self._numbers[text]


def _encode(manifest: Manifest) -> tuple[dict[str, Any], list[list[Any]]]:
    """Return the two files.

    A cell is [group, seed, seed, coresets, predict key, splits, (evaluator, score key)...] or, if it is skipped,
    [group, seed, seed, reason]; a step, if it has one, stands last. In class-incremental learning an object follows:
    the order of the classes, and the predictions after earlier steps.
    """
    plugins, coresets, splits = _Interned(), _Interned(), _Interned()
    numbers = {id(group): number for number, group in enumerate(manifest.groups)}
    evaluators = list(dict.fromkeys(name for cell in manifest.cells for name in cell.scores))
    skips = _Interned()
    groups = []
    for group in manifest.groups:
        plain = {name: getattr(group, name) for name in _PLAIN_GROUP}
        plain["notes"] = list(group.notes)
        # Sorted, as the file will be: numbers go by first appearance, and a manifest that is read has the same digest.
        plain["plugins"] = {role: plugins.number(asdict(plugin)) for role, plugin in sorted(group.plugins.items())}
        plain["own"] = group.own and [plugins.number(asdict(plugin)) for plugin in group.own]
        plain["published"] = [asdict(item) for item in group.published]
        groups.append(plain)
    cells: list[list[Any]] = []
    for cell in manifest.cells:
        place = [numbers[id(cell.group)], cell.distil_seed, cell.evaluate_seed]
        step: list[Any] = [] if cell.step is None else [cell.step]
        if cell.order:
            early = {"earlier": list(cell.earlier), "splits": splits.number(list(cell.earlier_splits))}
            step.append({"order": cell.order, **(early if cell.earlier else {})})
        if cell.skipped:
            cells.append([*place, skips.number(cell.skipped), *step])
            continue
        made = [coresets.number(str(address)) for address in cell.coresets]
        scores = {evaluators.index(name): address.key for name, address in cell.scores.items()}
        cells.append([*place, made, cell.predict, splits.number(list(cell.splits)), *_pairs(scores), *step])
    datasets = [{**asdict(one), "plugin": plugins.number(asdict(one.plugin))} for one in manifest.datasets]
    head = {
        "schema": SCHEMA,
        "name": manifest.name,
        "source": manifest.source,
        "purpose": manifest.purpose,
        "request": manifest.request,
        "description": manifest.description,
        "protocol": manifest.protocol,
        "split": manifest.split,
        "shown": list(manifest.shown),
        "document": dict(manifest.document),
        "versions": dict(manifest.versions),
        "metrics": [asdict(metric) for metric in manifest.metrics],
        "datasets": datasets,
        "groups": groups,
        "tried": dict(manifest.tried),
        "publications": dict(manifest.publications),
        "seeds": list(manifest.seeds),
        "evaluators": evaluators,
        "plugins": plugins.values,
        "coresets": coresets.values,
        "splits": splits.values,
        "skips": skips.values,
    }
    # As it will be read: JSON has no tuples and only text as keys.
    return json.loads(json.dumps(head)), cells


_PLAIN_GROUP = ("dataset", "ipc", "method", "inference", "network", "native_inference", "native_network", "ranked")


def _pairs(scores: Mapping[int, str]) -> Iterable[Any]:
    return (value for pair in scores.items() for value in pair)


def _decode(head: Mapping[str, Any], lines: Sequence[Sequence[Any]]) -> Manifest:
    plugins = [_known(PluginRecord, item) for item in head["plugins"]]
    groups = tuple(
        Group(
            **{name: item[name] for name in _PLAIN_GROUP},
            plugins={role: plugins[number] for role, number in item["plugins"].items()},
            notes=tuple(item["notes"]),
            own=item["own"] and (plugins[item["own"][0]], plugins[item["own"][1]]),
            published=tuple(
                _known(PublishedRecord, {**number, "printed": tuple(number["printed"])}) for number in item["published"]
            ),
        )
        for item in head["groups"]
    )
    datasets = tuple(
        _known(
            DatasetRecord,
            {
                **item,
                "plugin": plugins[item["plugin"]],
                **{name: tuple(item[name]) for name in ("shape", "class_names", "notes", "left_out")},
            },
        )
        for item in head["datasets"]
    )
    coresets = [Address.parse(text) for text in head["coresets"]]
    splits = [tuple(item) for item in head["splits"]]
    evaluators, skips = head["evaluators"], head["skips"]
    cells = []
    for every in lines:
        tasks: dict[str, Any] = every[-1] if isinstance(every[-1], dict) else {}
        line = every[:-1] if tasks else every
        order = str(tasks.get("order", ""))
        group, distil, evaluate, what = groups[line[0]], line[1], line[2], line[3]
        if isinstance(what, int):
            step = line[4] if len(line) == 5 else None
            cells.append(CellRecord(group, distil, evaluate, skipped=skips[what], step=step, order=order))
            continue
        step = line[-1] if len(line) % 2 else None
        made, predict, split = tuple(coresets[number] for number in what), line[4], splits[line[5]]
        pairs = zip(line[6:-1:2], line[7::2], strict=True)
        scores = {evaluators[number]: Address("score", key, "final") for number, key in pairs}
        cells.append(
            CellRecord(
                group,
                distil,
                evaluate,
                made,
                predict,
                split,
                scores,
                step=step,
                order=order,
                earlier=tuple(map(str, tasks.get("earlier", ()))),
                earlier_splits=splits[tasks["splits"]] if "earlier" in tasks else (),
            )
        )
    return Manifest(
        name=str(head["name"]),
        source=str(head["source"]),
        purpose=head["purpose"],
        request=str(head["request"]),
        description=str(head["description"]),
        protocol=int(head["protocol"]),
        split=str(head["split"]),
        shown=tuple(head["shown"]),
        document=head["document"],
        versions=head["versions"],
        metrics=tuple(_known(MetricRecord, item) for item in head["metrics"]),
        datasets=datasets,
        groups=groups,
        cells=tuple(cells),
        tried=head["tried"],
        publications=head["publications"],
        seeds=(int(head["seeds"][0]), int(head["seeds"][1])),
    )


def _known(cls: Any, item: Mapping[str, Any]) -> Any:
    """Return a record from JSON; fields of a later version are ignored."""
    return cls(**{name: value for name, value in item.items() if name in cls.__dataclass_fields__})
