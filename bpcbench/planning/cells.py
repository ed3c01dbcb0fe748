"""The cells of a suite: every combination that it asks for, with its stages, or the reason why it is not possible."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from bpcbench.api import Inference, Method, Network, Prerequisite
from bpcbench.planning.datasets import Source
from bpcbench.planning.planner import Planner
from bpcbench.records import Offer, PublishedQuery, snapshot_member
from bpcbench.store.address import Address

_Names = tuple[str, int, str, str, str]
Snapshots = Callable[[str], Sequence[int]]
"""The steps at which the coreset of a key was kept, and is to be evaluated too."""


@dataclass(frozen=True)
class Cell:
    """One point of the grid: what is compared with what. `skipped` holds the reason if it is not possible."""

    dataset: str
    ipc: int
    method: str
    inference: str
    network: str
    distil_seed: int
    evaluate_seed: int
    coreset: Address | None = None
    predict: str = ""
    scores: Mapping[str, Address] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    skipped: str = ""
    step: int | None = None
    """The step after which the coreset is looked at; none: the last one."""
    query: PublishedQuery | None = field(default=None, compare=False)
    """The plugins of the cell, by which published numbers are matched; none for a skipped cell."""

    @property
    def label(self) -> str:
        """The cell in words."""
        seeds = f"seed {self.distil_seed}.{self.evaluate_seed}"
        return f"{self.dataset} ipc {self.ipc} {self.method} / {self.inference} / {self.network} {seeds}"


@dataclass(frozen=True)
class _Choice:
    method: Method
    preprocessing: Prerequisite
    inference: Inference
    network: Network


def cells(planner: Planner, sources: Mapping[str, Source | str], snapshots: Snapshots | None = None) -> Iterator[Cell]:
    """Yield the cells that are not excluded; `sources` holds each data set, or why it is not there.

    With `snapshots`, a cell is followed by one for every kept state of its coreset.
    """
    suite = planner.suite
    for dataset, source in sources.items():
        for ipc in suite.ipc:
            setting = suite.settings[dataset, ipc]
            for method in setting.methods:
                for inference in setting.inferences:
                    for network in setting.networks:
                        where = {"dataset": dataset, "ipc": ipc, "method": method}
                        if not suite.excluded(**where, inference=inference, network=network):
                            names = (dataset, ipc, method, inference, network)
                            yield from _seeds(planner, source, names, snapshots)


def _seeds(planner: Planner, source: Source | str, names: _Names, snapshots: Snapshots | None) -> Iterator[Cell]:
    suite = planner.suite
    seeds = [(d, e) for d in range(suite.distil_seeds) for e in range(suite.evaluate_seeds)]
    choice = f"data are missing: {source}" if isinstance(source, str) else _choose(planner, source, names)
    if isinstance(choice, str) or isinstance(source, str):
        yield from (Cell(*names, *seed, skipped=str(choice)) for seed in seeds)
        return
    dataset, ipc, method, inference, network = names
    transform = planner.once(planner.transform, source, choice.preprocessing)
    notes = (*source.notes, *choice.method.notes())
    native = suite.settings[dataset, ipc].inferences[inference] is None
    query = _query(planner, source, ipc, choice, native=native)
    for d, e in seeds:
        name = f"{dataset} ipc {ipc} {method} seed {d}"
        coreset = planner.once(planner.coreset, source, ipc, choice.method, transform, d, name)
        label = f"{dataset} ipc {ipc} {method} / {inference} / {network} seed {d}.{e}"
        for step in (None, *(snapshots(coreset.key) if snapshots else ())):
            seen = coreset if step is None else replace(coreset, members=(snapshot_member(step),))
            title = label if step is None else f"{label} step {step}"
            predict = planner.predict(source, seen, choice.inference, choice.network, transform, e, title)
            scores = {
                evaluator: planner.score(
                    source,
                    evaluator,
                    predict,
                    transform,
                    f"{title} {evaluator}",
                    planner.once(planner.reference, source, evaluator, ipc, choice.network, transform),
                )
                for evaluator in source.splits
            }
            yield Cell(*names, d, e, seen.addresses[0], predict.key, scores, notes, step=step, query=query)


def _query(planner: Planner, source: Source, ipc: int, choice: _Choice, *, native: bool) -> PublishedQuery:
    method, inference, network = (
        {name: value for name, value in planner.lookup.look(plugin).description.items() if name != "plugin"}
        for plugin in (choice.method, choice.inference, choice.network)
    )
    return PublishedQuery(
        dataset=source.dataset.name,
        ipc=ipc,
        method=choice.method.name,
        inference=choice.inference.name,
        network=choice.network.name,
        native=native,
        method_options=method,
        inference_options=inference,
        network_options=network,
    )


def _choose(planner: Planner, source: Source, names: _Names) -> _Choice | str:
    """Return the plugins of a cell, or the reason why it is skipped."""
    dataset, ipc, method, inference, network = names
    if not source.splits:
        return "data are missing: " + "; ".join(source.missing.values())
    facts = source.facts
    setting = planner.suite.settings[dataset, ipc]
    choice = setting.methods[method]
    if reason := choice.plugin.skip(facts, ipc):
        return reason
    fit, net = setting.inferences[inference], setting.networks[network]
    native = choice.plugin.native(facts, ipc) if fit is None or net is None else None
    if fit is None:
        if native is None:
            return f"{method} has no native inference; name one"
        fit = planner.lookup.build("inference", native.inference)
    if net is None:
        if native is None:
            return f"{method} has no native network; name one"
        net = planner.lookup.build("network", native.network)
    if reason := net.skip(facts):
        return reason
    if reason := fit.accepts(Offer(facts, ipc, method, choice.plugin.convention(), net)):
        return reason
    return _Choice(choice.plugin, setting.preprocessing[choice.preprocessing], fit, net)
