"""From a suite to stages: every stage has a key computed from all that determines its result; equal stages are one.

The plan works back from what the suite asks for: a stage is to do only if something asked for is missing and needs it.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bpcbench import metrics
from bpcbench.api import Dataset, Evaluator, Inference, Method, Network, Plugin, Prerequisite
from bpcbench.engine import Stage
from bpcbench.environment import source_hash
from bpcbench.errors import MissingData, Mistake, Mistakes, UserError
from bpcbench.keys import SCHEME, Address, digest
from bpcbench.options import build, describe, identity, plugins_within
from bpcbench.plugins import Registry
from bpcbench.records import FINAL, Facts, Native, Need, Offer, Ref, SplitRef
from bpcbench.splits import VALIDATION, planning_facts
from bpcbench.store import Store
from bpcbench.suite import Suite


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

    @property
    def label(self) -> str:
        """The cell in words."""
        seeds = f"seed {self.distil_seed}.{self.evaluate_seed}"
        return f"{self.dataset} ipc {self.ipc} {self.method} / {self.inference} / {self.network} {seeds}"


@dataclass(frozen=True)
class Planned:
    """A stage and whether it is `cached`, `cached (code changed)` or `to do`, with its cost if that is known."""

    stage: Stage
    status: str
    seconds: float | None = None
    bytes: float | None = None


@dataclass(frozen=True)
class Plan:
    """All cells of a suite, and the stages they ask for, in an order in which they can be run."""

    suite: Suite
    cells: tuple[Cell, ...]
    stages: tuple[Planned, ...]
    missing: Mapping[str, str] = field(default_factory=dict)

    def to_do(self) -> list[Planned]:
        """Return the stages that must be run."""
        return [planned for planned in self.stages if planned.status == "to do"]

    def skipped(self) -> Counter[str]:
        """Return how many cells are skipped for each reason."""
        return Counter(cell.skipped for cell in self.cells if cell.skipped)


def make(
    registry: Registry,
    suite: Suite,
    store: Store | None,
    data: Path,
    *,
    skip_missing: bool = False,
    recompute: Iterable[str] = (),
) -> Plan:
    """Return the plan of a suite; raise Mistakes if data are missing (unless skipped) or nothing is left to do."""
    planner = _Planner(registry, suite, data)
    missing: dict[str, str] = {}
    for label, dataset in suite.datasets.items():
        try:
            planner.learn(label, dataset)
        except MissingData as error:
            missing[label] = str(error)
    if missing and not skip_missing:
        mistakes = [
            Mistake(f"datasets.{label}", f"{text} (or run with --skip-missing)") for label, text in missing.items()
        ]
        raise Mistakes(suite.name, mistakes)
    cells = tuple(planner.cells(missing))
    if not any(not cell.skipped for cell in cells):
        reasons = "; ".join(sorted({cell.skipped for cell in cells})) or "every cell is excluded"
        raise UserError(f"{suite.name}: the grid is empty: {reasons}")
    return Plan(suite, cells, tuple(_demand(planner, cells, store, set(recompute))), missing)


@dataclass
class _Source:
    dataset: Dataset
    facts: Facts
    identity: Mapping[str, Any]
    family: str


class _Planner:
    def __init__(self, registry: Registry, suite: Suite, data: Path) -> None:
        self.registry = registry
        self.suite = suite
        self.data = data
        self.holdout = suite.split == VALIDATION
        self.sources: dict[str, _Source] = {}
        self.stages: dict[str, Stage] = {}
        self._known: dict[int, tuple[Plugin, str, dict[str, Any]]] = {}
        self._memo: dict[tuple[Any, ...], Any] = {}

    def _digest(self, plugin: Plugin) -> str:
        return self._look(plugin)[1]

    def _describe(self, plugin: Plugin) -> dict[str, Any]:
        return self._look(plugin)[2]

    def _look(self, plugin: Plugin) -> tuple[Plugin, str, dict[str, Any]]:
        # By object, not by value: options may be unhashable; the tuple keeps the object, hence its id, alive.
        found = self._known.get(id(plugin))
        if found is None:
            found = self._known[id(plugin)] = (plugin, digest(identity(self.registry, plugin)), describe(plugin))
        return found

    def _once(self, compute: Callable[..., Any], *arguments: Any) -> Any:
        """Call a method of the planner once for equal arguments; plugins and sources are compared by object."""
        key = (compute.__name__, *(a if isinstance(a, int | str) else id(a) for a in arguments))
        if key not in self._memo:
            self._memo[key] = (compute(*arguments), arguments)
        return self._memo[key][0]

    def learn(self, label: str, dataset: Dataset) -> None:
        facts = planning_facts(dataset, self.data, holdout=self.holdout)
        source = {
            "dataset": self._digest(dataset),
            "train": dataset.fingerprint(self.data, "train"),
            "holdout": self.holdout,
        }
        self.sources[label] = _Source(dataset, facts, source, digest(source))

    def cells(self, missing: Mapping[str, str]) -> Iterable[Cell]:
        suite = self.suite
        for dataset in suite.datasets:
            for ipc in suite.ipc:
                setting = suite.settings[dataset, ipc]
                for method in setting.methods:
                    for inference in setting.inferences:
                        for network in setting.networks:
                            where = {"dataset": dataset, "ipc": ipc, "method": method}
                            if suite.excluded(**where, inference=inference, network=network):
                                continue
                            names = (dataset, ipc, method, inference, network)
                            yield from self._seeds(names, missing.get(dataset, ""))

    def _seeds(self, names: tuple[str, int, str, str, str], missing: str) -> Iterable[Cell]:
        dataset, ipc, method, inference, network = names
        seeds = [(d, e) for d in range(self.suite.distil_seeds) for e in range(self.suite.evaluate_seeds)]
        if missing:
            reason, chosen = f"data are missing: {missing}", None
        else:
            reason, chosen = self._choose(names)
        if chosen is None:
            yield from (Cell(*names, *seed, skipped=reason) for seed in seeds)
            return
        plugin, preprocessing, fit, net = chosen
        source = self.sources[dataset]
        need = Need(Ref(preprocessing.name))
        transform = self._prerequisite(source, need, preprocessing, None)[0]
        for d, e in seeds:
            name = f"{dataset} ipc {ipc} {method} seed {d}"
            coreset = self._once(self._coreset, source, ipc, plugin, transform, d, name)
            label = f"{dataset} ipc {ipc} {method} / {inference} / {network} seed {d}.{e}"
            predict, splits = self._predict(source, coreset, fit, net, transform, e, label)
            scores = {
                name: self._score(source, evaluator, predict, splits[name], transform, f"{label} {name}")
                for name, evaluator in self.suite.evaluators.items()
            }
            yield Cell(*names, d, e, coreset.addresses[0], predict, scores, source.facts.notes)

    def _choose(
        self, names: tuple[str, int, str, str, str]
    ) -> tuple[str, tuple[Method, Prerequisite, Inference, Network] | None]:
        dataset, ipc, method, inference, network = names
        facts = self.sources[dataset].facts
        setting = self.suite.settings[dataset, ipc]
        choice = setting.methods[method]
        plugin = choice.plugin
        if reason := plugin.skip(facts, ipc):
            return reason, None
        native: Native | None = plugin.native(facts, ipc)
        fit, net = setting.inferences[inference], setting.networks[network]
        for what, value in (("inference", fit), ("network", net)):
            if value is None and native is None:
                return f"{method} has no native {what}; name one", None
        if fit is None and native is not None:
            fit = build(self.registry, "inference", native.inference)  # type: ignore[assignment]
        if net is None and native is not None:
            net = build(self.registry, "network", native.network)  # type: ignore[assignment]
        assert fit is not None and net is not None
        if reason := net.skip(facts):
            return reason, None
        if reason := fit.accepts(Offer(facts, ipc, method, plugin.convention(), net)):
            return reason, None
        return "", (plugin, setting.preprocessing[choice.preprocessing], fit, net)

    def _add(self, stage: Stage) -> Stage:
        known = self.stages.get(stage.id)
        if known is None:
            self.stages[stage.id] = stage
            return stage
        extra = tuple(member for member in stage.members if member not in known.members)
        if extra:
            body = dict(known.body)
            body["splits"] = [*known.body["splits"], *(s for s in stage.body["splits"] if s["member"] in extra)]
            known = self.stages[stage.id] = replace(known, members=known.members + extra, body=body)
        return known

    def _prerequisite(self, source: _Source, need: Need, plugin: Prerequisite, transform: Stage | None) -> list[Stage]:
        given, needs = self._given(source, plugin.prerequisites(source.facts), transform)
        payload = {
            "scheme": SCHEME,
            "kind": "prerequisite",
            "plugin": self._digest(plugin),
            "data": source.family,
            "precision": self.suite.precision,
            "inputs": [_address(transform), given],
        }
        key = digest(payload)
        return [
            self._add(
                Stage(
                    kind="prerequisite",
                    key=key,
                    members=(member,),
                    label=f"{source.dataset.name} {plugin.name}" + (f" {member}" if member != FINAL else ""),
                    plugin=plugin.name,
                    body={
                        **self._data_body(source),
                        "prerequisite": self._describe(plugin),
                        "transform": _transform(transform),
                        "given": given,
                    },
                    needs=(*_ids(transform), *needs),
                    gpus=plugin.gpus,
                    family=digest({"plugin": self._digest(plugin), "data": source.family}),
                    preload=_preload(plugin),
                )
            )
            for member in need.members
        ]

    def _given(
        self, source: _Source, wanted: Mapping[str, Need], transform: Stage | None
    ) -> tuple[dict[str, Any], list[str]]:
        given, needs = {}, []
        for role, need in sorted(wanted.items()):
            plugin = build(self.registry, "prerequisite", need.plugin)
            stages = self._prerequisite(source, need, plugin, transform)  # type: ignore[arg-type]
            given[role] = {
                "plugin": self._describe(plugin),
                "addresses": [str(address) for stage in stages for address in stage.addresses],
            }
            needs += [stage.id for stage in stages]
        return given, needs

    def _coreset(self, source: _Source, ipc: int, method: Method, transform: Stage, seed: int, label: str) -> Stage:
        payload: dict[str, Any] = {
            "scheme": SCHEME,
            "kind": "coreset",
            "plugin": self._digest(method),
            "data": source.family,
            "precision": self.suite.precision,
        }
        if method.uses_ipc:
            payload["ipc"] = ipc
        family = digest(payload)
        if method.uses_seed:
            payload["seed"] = seed
        given, needs = self._given(source, method.prerequisites(source.facts, ipc), transform)
        payload["inputs"] = [_address(transform), {role: made["addresses"] for role, made in given.items()}]
        native = method.native(source.facts, ipc)
        return self._add(
            Stage(
                kind="coreset",
                key=digest(payload),
                members=(FINAL,),
                label=label,
                plugin=method.name,
                body={
                    **self._data_body(source),
                    "method": self._describe(method),
                    "ipc": ipc,
                    "seed": seed if method.uses_seed else 0,
                    "transform": _transform(transform),
                    "given": given,
                    "native": native
                    and {
                        "inference": {"plugin": native.inference.plugin, **native.inference.options},
                        "network": {"plugin": native.network.plugin, **native.network.options},
                    },
                },
                needs=(transform.id, *needs),
                gpus=method.gpus,
                family=family,
                preload=_preload(method),
            )
        )

    def _predict(
        self,
        source: _Source,
        coreset: Stage,
        inference: Inference,
        network: Network,
        transform: Stage,
        seed: int,
        label: str,
    ) -> tuple[str, Mapping[str, list[dict[str, Any]]]]:
        splits = {
            name: self._once(self._splits, source, evaluator) for name, evaluator in self.suite.evaluators.items()
        }
        union = {split["member"]: split for group in splits.values() for split in group}
        payload = {
            "scheme": SCHEME,
            "kind": "predict",
            "coreset": str(coreset.addresses[0]),
            "inference": self._digest(inference),
            "network": self._digest(network),
            "precision": self.suite.precision,
            "seed": seed,
        }
        stage = self._add(
            Stage(
                kind="predict",
                key=digest(payload),
                members=tuple(union),
                label=label,
                plugin=inference.name,
                body={
                    "coreset": str(coreset.addresses[0]),
                    "inference": self._describe(inference),
                    "network": self._describe(network),
                    "seed": seed,
                    "transform": _transform(transform),
                    "splits": list(union.values()),
                },
                needs=(transform.id, coreset.id),
                gpus=inference.gpus,
                family=digest([coreset.family, payload["inference"], payload["network"], len(union)]),
                preload=(*_preload(inference), *_preload(network)),
            )
        )
        return stage.key, splits

    def _splits(self, source: _Source, evaluator: Evaluator) -> list[dict[str, Any]]:
        return [self._split(source, wanted) for wanted in evaluator.splits(source.facts)]

    def _split(self, source: _Source, wanted: SplitRef) -> dict[str, Any]:
        dataset = source.dataset
        split = self.suite.split if wanted.dataset is None and wanted.split == "test" else wanted.split
        if wanted.dataset is not None:
            dataset = build(self.registry, "dataset", wanted.dataset)  # type: ignore[assignment]
        origin = "train" if split == VALIDATION else split
        mark = self._once(self._fingerprint, dataset, origin)
        return {
            "member": f"{dataset.name}/{split}~{mark}",
            "dataset": self._describe(dataset),
            "split": split,
            "wanted": {
                "split": wanted.split,
                "dataset": wanted.dataset and {"plugin": wanted.dataset.plugin, **wanted.dataset.options},
            },
        }

    def _fingerprint(self, dataset: Dataset, split: str) -> str:
        return digest([self._digest(dataset), dataset.fingerprint(self.data, split)])[:8]

    def _score(
        self,
        source: _Source,
        evaluator: Evaluator,
        predict: str,
        splits: list[dict[str, Any]],
        transform: Stage,
        label: str,
    ) -> Address:
        inputs = [str(Address("predict", predict, split["member"])) for split in splits]
        given, needs = self._once(self._evaluator_given, source, evaluator, transform)
        payload = {
            "scheme": SCHEME,
            "kind": "score",
            "plugin": self._digest(evaluator),
            "metrics": metrics.VERSION,
            "inputs": inputs,
            "given": {role: made["addresses"] for role, made in given.items()},
        }
        stage = self._add(
            Stage(
                kind="score",
                key=digest(payload),
                members=(FINAL,),
                label=label,
                plugin=evaluator.name,
                body={
                    "evaluator": self._describe(evaluator),
                    "inputs": [{"address": a, **s["wanted"]} for a, s in zip(inputs, splits, strict=True)],
                    "transform": _transform(transform),
                    "given": given,
                },
                needs=(f"predict:{predict}", *needs),
                family=digest(["score", payload["plugin"], len(inputs)]),
                preload=_preload(evaluator),
            )
        )
        return stage.addresses[0]

    def _evaluator_given(
        self, source: _Source, evaluator: Evaluator, transform: Stage
    ) -> tuple[dict[str, Any], list[str]]:
        return self._given(source, evaluator.prerequisites(source.facts), transform)

    def _data_body(self, source: _Source) -> dict[str, Any]:
        return {"dataset": self._describe(source.dataset), "holdout": self.holdout}


def _demand(planner: _Planner, cells: Iterable[Cell], store: Store | None, recompute: set[str]) -> Iterable[Planned]:
    """Yield the stages that are asked for, inputs first, with their status."""
    timings = store.timings() if store else {}
    wanted = [f"score:{address.key}" for cell in cells for address in cell.scores.values()]
    again = _downstream(planner.stages, recompute)
    done: dict[str, Planned] = {}
    stack = list(reversed(wanted))
    while stack:
        name = stack.pop()
        if name in done:
            continue
        stage = planner.stages[name]
        status = "to do" if name in again or store is None else _status(planner, stage, store)
        pending = [need for need in stage.needs if need not in done] if status == "to do" else []
        if pending:
            stack += [name, *reversed(pending)]
            continue
        past = timings.get(stage.family, [])
        done[name] = Planned(
            stage,
            status,
            statistics.median(seconds for seconds, _ in past) if past else None,
            statistics.median(size for _, size in past) if past else None,
        )
    return done.values()


def _status(planner: _Planner, stage: Stage, store: Store) -> str:
    if not all(store.has(address) for address in stage.addresses):
        return "to do"
    known = store.meta(stage.addresses[0]).get("source")
    now = source_hash(planner.registry, _KIND_OF[stage.kind], stage.plugin)
    return "cached" if known == now else "cached (code changed)"


_KIND_OF = {"prerequisite": "prerequisite", "coreset": "method", "predict": "inference", "score": "evaluator"}


def _downstream(stages: Mapping[str, Stage], names: set[str]) -> set[str]:
    """Return the stages of the named plugins and everything that is made from them."""
    result: set[str] = set()
    for stage in stages.values() if names else ():
        # Stages are listed inputs first, so one pass reaches everything.
        if stage.plugin in names or any(need in result for need in stage.needs):
            result.add(stage.id)
    return result


def _address(stage: Stage | None) -> str | None:
    return None if stage is None else str(stage.addresses[0])


def _ids(stage: Stage | None) -> tuple[str, ...]:
    return () if stage is None else (stage.id,)


def _transform(stage: Stage | None) -> dict[str, Any] | None:
    if stage is None:
        return None
    return {"plugin": stage.body["prerequisite"], "address": str(stage.addresses[0])}


def _preload(plugin: Plugin) -> tuple[str, ...]:
    return tuple(module for part in plugins_within(plugin) for module in part.preload)
