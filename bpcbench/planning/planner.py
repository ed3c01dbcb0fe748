"""From a suite's plugins to stages.

Labels, the order of the suite and options that are not keyed have no influence on keys; equal stages are one stage.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, cast

from bpcbench import metrics
from bpcbench.api import Evaluator, Inference, Method, Network, Plugin, Preprocessing, Prerequisite
from bpcbench.errors import UserError
from bpcbench.planning.datasets import ResolvedDataset
from bpcbench.planning.lookup import Lookup
from bpcbench.planning.stages import (
    CoresetStage,
    Fitted,
    PredictStage,
    PrerequisiteStage,
    RoleInput,
    Roles,
    ScoreInput,
    ScoreStage,
    SplitUse,
    Stage,
    TaskInput,
    TrainingData,
)
from bpcbench.records import FINAL, Facts, Kind, Need, Offer, Resources
from bpcbench.store.address import Address, digest
from bpcbench.suite.model import Suite

_NUMBER = 4
"""Bytes of a float32."""
PlanStatus = Literal["cached", "cached (code changed)", "to do", "no data"]
"""`no data`: a stage on data that are not there, of which nothing can be said but what it would cost."""
_NAMED = 5
"""So many classes are named in the label of a stage."""


@dataclass(frozen=True, eq=False)
class PlannedStage:
    """A stage of a plan, with what only the plan knows: its label, resources, status and expected cost.

    `family` groups stages that cost the same but for noise. `again` says that what the stage left in the store is
    removed and made once more. `similar` says that none of its family was timed, and that its cost is that of similar
    stages.
    """

    stage: Stage
    label: str
    plugin: str
    family: str
    resources: Resources
    preload: tuple[str, ...]
    status: PlanStatus = "to do"
    again: bool = False
    seconds: float | None = None
    bytes: float | None = None
    operations: float | None = None
    """Floating-point operations by the plugins' formulas; computed for stages without data."""
    similar: bool = False
    memory: float | None = None
    """The most bytes that the stage takes on its device, by the plugins' formulas; None if they state none."""
    together: int = 1
    """How many predictions that differ in their seed alone may be fitted by one of their stages."""
    exhausted: str = ""
    """The message of an earlier run in which the stage, which has no result since, ran out of memory."""

    @property
    def id(self) -> str:
        """Name of the stage in the plan."""
        return self.stage.id

    @property
    def kind(self) -> Kind:
        """Kind of the stage."""
        return cast(Kind, self.stage.kind)


@dataclass(frozen=True)
class DeviceMemory:
    """How many bytes there are, and where, in words; `given` by the user, or asked of this machine."""

    bytes: float
    where: str
    given: bool = False


class Planner:
    """Makes the stages of one suite and keeps each of them once, inputs before what is made from them."""

    def __init__(self, suite: Suite, lookup: Lookup, memory: DeviceMemory | None = None) -> None:
        self.suite = suite
        self.lookup = lookup
        self.memory = memory
        """What the device has; None: cells are not skipped for their memory."""
        self.stages: dict[str, PlannedStage] = {}
        self.expected: dict[str, Callable[[], int | None]] = {}
        """How large a stage's result will be, by its family, where a plugin may know."""
        self.operations: dict[str, Callable[[], float | None]] = {}
        """How many floating-point operations a stage takes, by its id, where a plugin may know."""
        self.sizes: dict[str, int] = {}
        """How many bytes the arrays of coresets and predictions have, by the id of the stage."""
        self._memo: dict[tuple[Any, ...], tuple[Any, tuple[Any, ...]]] = {}
        self._training: dict[tuple[int, tuple[int, ...]], TrainingData] = {}

    def once(self, compute: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function once for equal arguments; plugins and other objects are compared by identity."""
        key = (compute.__name__, *(a if isinstance(a, int | str) else id(a) for a in arguments))
        if key not in self._memo:
            # The arguments are kept with the result: an id names an object only while that object lives.
            self._memo[key] = (compute(*arguments), arguments)
        return self._memo[key][0]

    def transform(self, dataset: ResolvedDataset, preprocessing: Preprocessing) -> Fitted:
        """Return the preprocessing as fitted by a stage of its own."""
        spec = self.lookup.spec(preprocessing)
        stage = PrerequisiteStage(spec, dataset.training, None, {}, self.suite.numerics)
        family = digest([spec.digest, dataset.training.digest])
        self.expected[family] = partial(preprocessing.expected_bytes, dataset.facts)
        self.operations[stage.id] = partial(preprocessing.operations, dataset.facts)
        label = f"{dataset.plugin.name} {preprocessing.name}"
        self._add(stage, label, preprocessing, family, preprocessing.resources)
        return Fitted(spec, stage.addresses[0])

    def training(self, dataset: ResolvedDataset, classes: tuple[int, ...] | None) -> TrainingData:
        """Return the training data of some classes; None, or all of them, are all the data."""
        if classes is None or len(classes) == dataset.facts.classes:
            return dataset.training
        key = (id(dataset), tuple(sorted(classes)))
        if key not in self._training:
            self._training[key] = replace(dataset.training, classes=key[1])
        return self._training[key]

    def part(self, dataset: ResolvedDataset, training: TrainingData) -> Facts:
        """Return the facts of training data, the same object for the same data."""
        facts: Facts = self.once(_part, dataset.facts, training)
        return facts

    def coreset(
        self,
        dataset: ResolvedDataset,
        training: TrainingData,
        ipc: int,
        method: Method,
        transform: Fitted,
        seed: int,
        label: str,
    ) -> CoresetStage:
        """Return the stage that distils a coreset of training data, which are those of the data set or a part."""
        spec = self.lookup.spec(method)
        inputs = self._roles(dataset, training, method.prerequisites(dataset.facts, ipc), transform)
        stage = CoresetStage(
            spec,
            training,
            transform,
            inputs,
            self.suite.numerics,
            ipc if method.uses_ipc else None,
            seed if method.uses_seed else None,
        )
        family = digest([spec.digest, *_like(dataset, training), self.suite.numerics, stage.ipc])
        part = self.part(dataset, training)
        self.operations[stage.id] = partial(method.operations, part, ipc)
        self.sizes[stage.id] = _coreset_bytes(part, dataset.facts.classes, stage.ipc)
        peak = self.once(method_peak, method, part, ipc)
        self._add(stage, label + _of_classes(training), method, family, method.resources, memory=peak)
        return stage

    def predict(
        self,
        dataset: ResolvedDataset,
        coresets: Sequence[Address],
        inference: Inference,
        network: Network,
        transform: Fitted,
        seed: int | str,
        label: str,
        splits: Mapping[str, SplitUse] | None = None,
        seen: TrainingData | None = None,
    ) -> PredictStage:
        """Return the stage that fits an inference and predicts splits, by default all that evaluators ask for.

        `seen` are the training data behind the coresets, where they are not all of them.
        """
        splits = dataset.union if splits is None else splits
        seen = seen or dataset.training
        fit, net = self.lookup.describe(inference), self.lookup.describe(network)
        stage = PredictStage(
            tuple(coresets),
            fit.spec,
            net.spec,
            transform,
            self.once(self._inference_roles, dataset, seen, inference, transform),
            self.suite.numerics,
            seed,
            tuple(splits.values()),
        )
        made_by = self.stages[coresets[0].stage].family
        several = (len(coresets),) if len(coresets) > 1 else ()
        family = self.once(_family, made_by, fit.spec.digest, net.spec.digest, len(splits), *several)
        made = self.stages[coresets[0].stage]
        assert isinstance(made.stage, CoresetStage)
        ipc = made.stage.ipc or dataset.facts.sizes["train"] // dataset.facts.classes
        images = sum(dataset.images[split.member] for split in splits.values())
        offer = Offer(self.part(dataset, seen), ipc, made.plugin, "class", network)
        self.operations[stage.id] = partial(inference.operations, offer, images)
        self.sizes[stage.id] = _NUMBER * images * dataset.facts.classes
        known = self.stages.get(stage.id)
        if known is not None:
            planned = known.stage
            assert isinstance(planned, PredictStage)
            extra = tuple(split for split in stage.splits if split.member not in planned.members)
            if extra:
                planned = replace(planned, splits=planned.splits + extra)
                self.stages[stage.id] = replace(known, stage=planned)
            return stage
        preload = (*fit.preload, *net.preload)
        # Bits may depend on which seeds are fitted together.
        together = 1 if self.suite.deterministic or isinstance(seed, str) else inference.seeds_together()
        together = min(together, self.suite.evaluate_seeds)
        peak = self.once(inference_peak, inference, network, offer.facts, ipc, together)
        if together > 1 and self.memory is not None and peak is not None and peak > self.memory.bytes:
            together, peak = 1, self.once(inference_peak, inference, network, offer.facts, ipc, 1)
        self._add(stage, label, inference, family, inference.resources, preload, memory=peak, together=together)
        return stage

    def reference(
        self, dataset: ResolvedDataset, name: str, ipc: int, network: Network, transform: Fitted
    ) -> PredictStage | None:
        """Return the stage whose predictions an evaluator compares those of a cell with, or None."""
        wanted = self.suite.evaluators[name].reference(dataset.facts)
        if wanted is None:
            return None
        method: Method = self.lookup.build("method", wanted.method)
        inference: Inference = self.lookup.build("inference", wanted.inference)
        network = network if wanted.network is None else self.lookup.build("network", wanted.network)
        offer = Offer(dataset.facts, ipc, method.name, method.convention(), network)
        reason = method.skip(dataset.facts, ipc) or network.skip(dataset.facts) or inference.accepts(offer)
        if reason:
            raise UserError(f"evaluators.{name}: its reference is not possible: {reason}")
        label = f"{dataset.plugin.name} reference {method.name}"
        coreset = self.once(self.coreset, dataset, dataset.training, ipc, method, transform, 0, label)
        splits = {split.member: split for split in dataset.splits[name]}
        label += f" / {inference.name} / {network.name}"
        return self.predict(dataset, coreset.addresses, inference, network, transform, "reference", label, splits)

    def score(
        self,
        dataset: ResolvedDataset,
        name: str,
        predict: PredictStage,
        label: str,
        reference: PredictStage | None = None,
        tasks: Sequence[tuple[tuple[int, ...], PredictStage]] = (),
    ) -> Address:
        """Return the address of what an evaluator makes of predictions, and of those of its reference if it has one.

        `tasks` are the classes of every step of class-incremental learning, and the predictions after it.
        """
        evaluator = self.suite.evaluators[name]
        spec = self.lookup.spec(evaluator)
        splits = dataset.splits[name]
        stage = ScoreStage(
            spec,
            metrics.VERSION,
            _inputs(predict, splits),
            () if reference is None else _inputs(reference, splits),
            self.once(self._evaluator_roles, dataset, evaluator, predict.transform),
            predict.transform,
            predict.coresets if evaluator.uses_coreset else (),
            tuple(TaskInput(classes, _inputs(made, splits)) for classes, made in tasks if evaluator.uses_tasks),
        )
        self._add(stage, label, evaluator, self.once(_family, "score", spec.digest, len(splits)), Resources())
        return stage.addresses[0]

    def _add(
        self,
        stage: Stage,
        label: str,
        plugin: Plugin,
        family: str,
        resources: Resources,
        preload: tuple[str, ...] | None = None,
        *,
        memory: float | None = None,
        together: int = 1,
    ) -> None:
        if stage.id not in self.stages:
            preload = self.lookup.describe(plugin).preload if preload is None else preload
            planned = PlannedStage(
                stage, label, plugin.name, family, resources, preload, memory=memory, together=together
            )
            self.stages[stage.id] = planned

    def _roles(
        self, dataset: ResolvedDataset, training: TrainingData, wanted: Mapping[str, Need], transform: Fitted
    ) -> Roles:
        roles = {}
        for role, need in sorted(wanted.items()):
            plugin: Prerequisite = self.lookup.build("prerequisite", need.plugin)
            spec = self.lookup.spec(plugin)
            inputs = self._roles(dataset, training, plugin.prerequisites(dataset.facts), transform)
            family = digest([spec.digest, *_like(dataset, training)])
            self.expected[family] = partial(plugin.expected_bytes, dataset.facts)
            addresses = []
            for member in need.members:
                stage = PrerequisiteStage(spec, training, transform, inputs, self.suite.numerics, member)
                label = f"{dataset.plugin.name} {plugin.name}{_of_classes(training)}"
                label += f" {member}" if member != FINAL else ""
                self._add(stage, label, plugin, family, plugin.resources)
                self.operations[stage.id] = partial(plugin.operations, dataset.facts)
                addresses.append(stage.addresses[0])
            roles[role] = RoleInput(spec, tuple(addresses))
        return roles

    def _inference_roles(
        self, dataset: ResolvedDataset, seen: TrainingData, inference: Inference, transform: Fitted
    ) -> Roles:
        return self._roles(dataset, seen, inference.prerequisites(dataset.facts), transform)

    def _evaluator_roles(self, dataset: ResolvedDataset, evaluator: Evaluator, transform: Fitted) -> Roles:
        return self._roles(dataset, dataset.training, evaluator.prerequisites(dataset.facts), transform)


def method_peak(method: Method, facts: Facts, ipc: int) -> float | None:
    """Return the most bytes that distilling takes."""
    return method.peak_bytes(facts, ipc)


def inference_peak(inference: Inference, network: Network, facts: Facts, ipc: int, seeds: int) -> float | None:
    """Return the most bytes that a fit and its predictions take."""
    return inference.peak_bytes(Offer(facts, ipc, "", "class", network, seeds))


def _like(dataset: ResolvedDataset, training: TrainingData) -> tuple[str | int, ...]:
    """Return what stages that cost about the same share of their training data: how many classes, not which."""
    part = () if training.classes is None else (len(training.classes),)
    return (dataset.training.digest, *part)


def _of_classes(training: TrainingData) -> str:
    """Return the words for a part of the training data in a label."""
    if training.classes is None:
        return ""
    first = ",".join(map(str, training.classes[:_NAMED]))
    return f" classes {first}" + (f",... ({len(training.classes)})" if len(training.classes) > _NAMED else "")


def _part(facts: Facts, training: TrainingData) -> Facts:
    """Return the facts of a part of the training data, as far as costs depend on them; all classes count as equal."""
    if training.classes is None:
        return facts
    count = len(training.classes)
    return replace(facts, classes=count, sizes={**facts.sizes, "train": facts.sizes["train"] * count // facts.classes})


def _coreset_bytes(facts: Facts, classes: int, ipc: int | None) -> int:
    """Return the size of images, and of a target over `classes` for each."""
    rows = facts.sizes["train"] if ipc is None else ipc * facts.classes
    return _NUMBER * rows * (math.prod(facts.shape) + classes)


def _family(*parts: str | int) -> str:
    return digest(parts)


def _inputs(predict: PredictStage, splits: Sequence[SplitUse]) -> tuple[ScoreInput, ...]:
    return tuple(ScoreInput(Address("predict", predict.key, split.member), split.wanted) for split in splits)
