"""The cells of a suite: every combination that it asks for, with its stages, or the reason why it is not possible."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from bpcbench.api import Inference, Method, Network, Preprocessing
from bpcbench.errors import UserError
from bpcbench.planning.datasets import ResolvedDataset
from bpcbench.planning.planner import Planner, inference_peak, method_peak
from bpcbench.planning.spec import Spec
from bpcbench.planning.stages import Fitted, PredictStage
from bpcbench.records import Offer, snapshot_member
from bpcbench.store.address import Address
from bpcbench.suite.model import Suite
from bpcbench.suite.tasks import task_classes

Snapshots = Callable[[str], Sequence[int]]
"""The steps at which the coreset of a key was kept, and is to be evaluated too."""


@dataclass(frozen=True, order=True)
class Coordinates:
    """The place of a cell in the grid, by the suite's labels: a line and a column of its table."""

    dataset: str
    ipc: int
    method: str
    inference: str
    network: str

    @property
    def label(self) -> str:
        """The coordinates in words."""
        return f"{self.dataset} ipc {self.ipc} {self.method} / {self.inference} / {self.network}"


@dataclass(frozen=True, eq=False)
class Choice:
    """The plugins behind coordinates: what a label stands for there.

    `native_inference` and `native_network` say that the suite asks for the method's own; `own` are what the method
    names as its own, wherever it names any.
    """

    dataset: Spec
    method: Spec
    preprocessing: Spec
    inference: Spec
    network: Spec
    native_inference: bool
    native_network: bool
    ranked: bool
    notes: tuple[str, ...]
    own: tuple[Spec, Spec] | None = None


@dataclass(frozen=True, eq=False)
class Cell:
    """One point of the grid: what is compared with what. `skipped` holds the reason if it is not possible.

    `step` is the step after which the coreset is evaluated; None means its end. In class-incremental learning `order`
    names the order of the classes, `coresets` has one coreset per step, `predict` is what their union predicts, and
    `earlier` what was predicted after each step before the last, with the splits `earlier_splits`.
    """

    at: Coordinates
    distil_seed: int
    evaluate_seed: int
    choice: Choice | None = None
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
    def label(self) -> str:
        """The cell in words."""
        at_step = "" if self.step is None else f" step {self.step}"
        order = f" order {self.order}" if self.order else ""
        return f"{self.at.label}{order} seed {self.distil_seed}.{self.evaluate_seed}{at_step}"


@dataclass(frozen=True, eq=False)
class _Plugins:
    method: Method
    preprocessing: Preprocessing
    inference: Inference
    network: Network
    choice: Choice


OTHER_ROWS = "rows per class may differ from ipc"
"""The note on results of a method that need not keep to the images per class."""
MAX_CELLS = 100_000
"""The largest grid that is planned unless a larger one is asked for; planning it takes about ten seconds."""


def check_size(suite: Suite, limit: int = MAX_CELLS) -> None:
    """Raise UserError if a suite's grid has more cells than `limit`; they are counted, not made.

    Patterns of `exclude` are not applied: a grid is made whole before they leave anything out.
    """
    parts = {
        "datasets": len(suite.datasets),
        "ipc": len(suite.ipc),
        "methods": max((len(setting.methods) for setting in suite.settings.values()), default=0),
        "inferences": max((len(setting.inferences) for setting in suite.settings.values()), default=0),
        "networks": max((len(setting.networks) for setting in suite.settings.values()), default=0),
        "seeds.distil": suite.distil_seeds,
        "seeds.evaluate": suite.evaluate_seeds,
    }
    count = math.prod(parts.values())
    if count > limit:
        product = " x ".join(f"{number:,} {name}" for name, number in parts.items() if number > 1)
        raise UserError(
            f"{suite.name}: a grid of {count:,} cells ({product}) is above the limit of {limit:,}; "
            f"ask for less, or raise it with --max-cells {count}"
        )


def cells(
    planner: Planner, datasets: Mapping[str, ResolvedDataset | str], snapshots: Snapshots | None = None
) -> Iterator[Cell]:
    """Yield the cells that are not excluded; `datasets` holds each data set, or why it is absent.

    With `snapshots`, a cell is followed by one for every kept state of its coreset.
    """
    suite = planner.suite
    for label, dataset in datasets.items():
        for ipc in suite.ipc:
            setting = suite.settings[label, ipc]
            for method in setting.methods:
                for inference in setting.inferences:
                    for network in setting.networks:
                        at = Coordinates(label, ipc, method, inference, network)
                        if not suite.excluded(**vars(at)):
                            yield from _seeds(planner, dataset, at, snapshots)


def _seeds(
    planner: Planner, dataset: ResolvedDataset | str, at: Coordinates, snapshots: Snapshots | None
) -> Iterator[Cell]:
    suite = planner.suite
    orders = [""] if suite.tasks is None else [str(order) for order in suite.tasks.orders]
    seeds = [(d, e) for d in range(suite.distil_seeds) for e in range(suite.evaluate_seeds)]
    plugins = f"data are missing: {dataset}" if isinstance(dataset, str) else _choose(planner, dataset, at)
    if isinstance(plugins, str) or isinstance(dataset, str):
        yield from (Cell(at, *seed, skipped=str(plugins), order=order) for order in orders for seed in seeds)
        return
    transform = planner.once(planner.transform, dataset, plugins.preprocessing)
    for order, classes in zip(orders, _tasks(suite, dataset), strict=True):
        for d, e in seeds:
            name = f"{at.dataset} ipc {at.ipc} {at.method} seed {d}"
            parts = [planner.training(dataset, some) for some in classes]
            stages = [
                planner.once(planner.coreset, dataset, part, at.ipc, plugins.method, transform, d, name)
                for part in parts
            ]
            final = tuple(stage.addresses[0] for stage in stages)
            for step in (None, *_kept(snapshots, [stage.key for stage in stages])):
                member = None if step is None else snapshot_member(step)
                coresets = tuple(replace(one, member=member) for one in final) if member else final
                cell = Cell(at, d, e, plugins.choice, coresets, step=step, order=order)
                yield _predicted(planner, dataset, cell, plugins, transform, classes)


def _tasks(suite: Suite, dataset: ResolvedDataset) -> Sequence[tuple[tuple[int, ...], ...]]:
    """Return the classes of every step for every order; one step of all classes where the suite has no tasks."""
    if suite.tasks is None:
        return [(tuple(range(dataset.facts.classes)),)]
    return [task_classes(order, dataset.facts.classes, suite.tasks.steps) for order in suite.tasks.orders]


def _kept(snapshots: Snapshots | None, keys: Sequence[str]) -> Sequence[int]:
    """Return the steps at which all of several coresets were kept."""
    if snapshots is None:
        return ()
    first, *others = ([*snapshots(key)] for key in keys)
    return [step for step in first if all(step in other for other in others)]


def _predicted(
    planner: Planner,
    dataset: ResolvedDataset,
    cell: Cell,
    plugins: _Plugins,
    transform: Fitted,
    classes: tuple[tuple[int, ...], ...],
) -> Cell:
    """Return the cell with its predictions, after every step if an evaluator asks for them, and its scores."""
    at, suite = cell.at, planner.suite
    asking = [name for name in dataset.splits if suite.evaluators[name].uses_tasks]
    early = {split.member: split for name in asking for split in dataset.splits[name]}
    made: list[tuple[tuple[int, ...], PredictStage]] = []
    for number, brought in enumerate(classes, 1) if early else ():
        last = number == len(classes)
        stage = planner.predict(
            dataset,
            cell.coresets[:number],
            plugins.inference,
            plugins.network,
            transform,
            cell.evaluate_seed,
            cell.label if last else f"{cell.label} after task {number} of {len(classes)}",
            None if last else early,
            planner.training(dataset, tuple(label for some in classes[:number] for label in some)),
        )
        made.append((brought, stage))
    predict = (
        made[-1][1]
        if made
        else planner.predict(
            dataset, cell.coresets, plugins.inference, plugins.network, transform, cell.evaluate_seed, cell.label
        )
    )
    scores = {
        evaluator: planner.score(
            dataset,
            evaluator,
            predict,
            f"{cell.label} {evaluator}",
            planner.once(planner.reference, dataset, evaluator, at.ipc, plugins.network, transform),
            made,
        )
        for evaluator in dataset.splits
    }
    earlier = tuple(stage.key for _, stage in made[:-1])
    return replace(
        cell,
        predict=predict.key,
        splits=predict.members,
        scores=scores,
        earlier=earlier,
        earlier_splits=tuple(early) if earlier else (),
    )


def _choose(planner: Planner, dataset: ResolvedDataset, at: Coordinates) -> _Plugins | str:
    """Return the plugins of a cell, or the reason why it is skipped."""
    if not dataset.splits:
        return "data are missing: " + "; ".join(dataset.missing.values())
    facts, lookup = dataset.facts, planner.lookup
    setting = planner.suite.settings[at.dataset, at.ipc]
    chosen = setting.methods[at.method]
    method = chosen.plugin
    if reason := method.skip(facts, at.ipc):
        return reason
    inference, network = setting.inferences[at.inference], setting.networks[at.network]
    asked = inference is None, network is None
    native = method.native(facts, at.ipc)
    own: tuple[Inference, Network] | None = None
    if native is not None:
        own = lookup.build("inference", native.inference), lookup.build("network", native.network)
    if inference is None:
        if own is None:
            return f"{at.method} has no native inference; name one"
        inference = own[0]
    if network is None:
        if own is None:
            return f"{at.method} has no native network; name one"
        network = own[1]
    if reason := network.skip(facts):
        return reason
    if reason := inference.accepts(Offer(facts, at.ipc, at.method, method.convention(), network)):
        return reason
    if reason := _too_large(planner, dataset, at.ipc, method, inference, network):
        return reason
    preprocessing = setting.preprocessing[chosen.preprocessing]
    choice = Choice(
        dataset=lookup.spec(dataset.plugin),
        method=lookup.spec(method),
        preprocessing=lookup.spec(preprocessing),
        inference=lookup.spec(inference),
        network=lookup.spec(network),
        native_inference=asked[0],
        native_network=asked[1],
        ranked=method.ranked,
        notes=(*dataset.notes, *method.notes(), *((OTHER_ROWS,) if method.rows_per_class(at.ipc) is None else ())),
        own=own and (lookup.spec(own[0]), lookup.spec(own[1])),
    )
    return _Plugins(method, preprocessing, inference, network, choice)


def _too_large(
    planner: Planner, dataset: ResolvedDataset, ipc: int, method: Method, inference: Inference, network: Network
) -> str | None:
    """Return that a cell needs more memory than the device has, or None.

    With classes that come in steps, a coreset is of those of one step, and predictions are from the union.
    """
    there = planner.memory
    if there is None:
        return None
    first = planner.training(dataset, _tasks(planner.suite, dataset)[0][0])
    needs = (
        (f"distilling by {method.name}", planner.once(method_peak, method, planner.part(dataset, first), ipc)),
        (f"{inference.name} with {network.name}", _inference_needs(planner, dataset, ipc, inference, network)),
    )
    for what, needed in needs:
        if needed is not None and needed > there.bytes:
            return f"{what} needs about {needed / 1e9:.1f} GB of memory, {there.where} has {there.bytes / 1e9:.1f}"
    return None


def _inference_needs(
    planner: Planner, dataset: ResolvedDataset, ipc: int, inference: Inference, network: Network
) -> float | None:
    facts = planner.part(dataset, dataset.training)
    needed: float | None = planner.once(inference_peak, inference, network, facts, ipc, 1)
    return needed
