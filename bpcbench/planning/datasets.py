"""The data sets of a suite as its plan sees them: facts, what is trained on, and which splits are predicted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bpcbench.api import Dataset, Evaluator
from bpcbench.data.conversion import VERSION as CONVERSION
from bpcbench.data.conversion import conversion
from bpcbench.data.splits import TRAIN, VALIDATION, planning_facts, split_size
from bpcbench.errors import MissingData, PluginError, UserError
from bpcbench.planning.lookup import Lookup
from bpcbench.planning.sources import Sources
from bpcbench.planning.stages import SplitUse, TrainingData
from bpcbench.records import Facts, SplitRef
from bpcbench.store.address import digest
from bpcbench.suite.model import Suite


@dataclass(frozen=True, eq=False)
class ResolvedDataset:
    """One data set of the suite: its facts, its training data, and the splits that each evaluator asks for.

    `notes` are what every table must say of the data: the marks of its own facts, those of other data sets after their
    names, what is a subset, what is converted, what is left out, and what evaluators say of their metrics. `missing`
    says, for each evaluator that cannot do without another data set, what to place where. `left_out` says what an
    evaluator does without, and why.
    """

    plugin: Dataset
    facts: Facts
    training: TrainingData
    splits: Mapping[str, Sequence[SplitUse]]
    union: Mapping[str, SplitUse]
    missing: Mapping[str, str]
    images: Mapping[str, int]
    """How many images each split of `union` has, by its member."""
    notes: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


def resolve_dataset(lookup: Lookup, suite: Suite, sources: Sources, dataset: Dataset) -> ResolvedDataset:
    """Resolve a data set without reading its images; raise MissingData if its files are absent."""
    holdout = suite.split == VALIDATION
    facts = planning_facts(sources.facts(dataset, TRAIN), holdout=holdout)
    training = TrainingData(lookup.spec(dataset), sources.fingerprint(dataset, TRAIN), holdout)
    requested = _RequestedSplits(lookup, suite, sources, dataset, facts.shape)
    splits: dict[str, Sequence[SplitUse]] = {}
    missing: dict[str, str] = {}
    for name, evaluator in suite.evaluators.items():
        try:
            splits[name] = requested.splits(name, _wanted(evaluator, facts))
        except MissingData as error:
            missing[name] = str(error)
    union = {split.member: split for group in splits.values() for split in group}
    said = [note for name in splits for note in suite.evaluators[name].notes(suite.split)]
    notes = tuple(dict.fromkeys((*facts.marks, *requested.notes, *said)))
    return ResolvedDataset(
        dataset, facts, training, splits, union, missing, requested.images, notes, tuple(requested.left_out)
    )


def _wanted(evaluator: Evaluator, facts: Facts) -> Sequence[SplitRef]:
    wanted = evaluator.splits(facts)
    if not wanted:
        raise PluginError(f"evaluator {evaluator.name} asks for no split, so there is nothing to score")
    return wanted


class _RequestedSplits:
    """The splits that evaluators ask for, for one data set, and the notes that come with them."""

    def __init__(
        self, lookup: Lookup, suite: Suite, sources: Sources, own: Dataset, shape: tuple[int, int, int]
    ) -> None:
        self.lookup, self.suite, self.sources, self.own, self.shape = lookup, suite, sources, own, shape
        self.notes: list[str] = []
        self.images: dict[str, int] = {}
        self.left_out: list[str] = []

    def splits(self, evaluator: str, wanted: Sequence[SplitRef]) -> list[SplitUse]:
        """Return the splits of one evaluator; raise MissingData if it cannot do without one that is absent."""
        if self.own.name in self.sources.stand_ins:
            return self._splits(evaluator, [replace(ref, optional=False) for ref in wanted])
        try:
            return self._splits(evaluator, wanted)
        except MissingData:
            if not self.sources.declare:
                raise
            return self._splits(evaluator, [replace(ref, optional=False) for ref in wanted])

    def _splits(self, evaluator: str, wanted: Sequence[SplitRef]) -> list[SplitUse]:
        used: dict[SplitRef, SplitUse] = {}
        notes: list[str] = []
        reasons: list[str] = []
        for ref in wanted:
            dataset: Dataset = self.own if ref.dataset is None else self.lookup.build("dataset", ref.dataset)
            try:
                split, split_notes = self._split(dataset, ref)
            except MissingData as error:
                if not ref.optional:
                    raise
                notes.append(f"{dataset.name}: not there, left out")
                reasons.append(str(error))
                continue
            if ref.optional and split.member in {other.member for other in used.values()}:
                notes.append(f"nothing is held out beside the {split.split} split, which is evaluated")
                reasons.append(notes[-1])
                continue
            used[ref] = split
            notes += split_notes
        others = [ref for ref in wanted if ref.dataset is not None]
        if others and not any(ref in used for ref in others):
            raise MissingData("; ".join(reasons))
        self.notes += notes
        self.left_out += [f"evaluators.{evaluator} does without a split: {reason}" for reason in reasons]
        return list(used.values())

    def _split(self, dataset: Dataset, wanted: SplitRef) -> tuple[SplitUse, list[str]]:
        # Also when an evaluator names the data set itself: while tuning, its test split is out of reach.
        split = self.suite.split if dataset.name == self.own.name and wanted.split == "test" else wanted.split
        if self.suite.split == VALIDATION and split not in ("train", VALIDATION):
            raise UserError(
                f"while settings are chosen on the validation split no test split may be predicted, and an evaluator "
                f"asks for {split!r} of {dataset.name}; leave it out"
            )
        facts = self.sources.facts(dataset, split, optional=wanted.optional)
        spec = self.lookup.spec(dataset)
        fingerprint = self.sources.fingerprint(dataset, TRAIN if split == VALIDATION else split)
        content: dict[str, Any] = {"dataset": spec.digest, "split": split, "fingerprint": fingerprint}
        foreign = spec.digest != self.lookup.spec(self.own).digest
        notes, label = list(facts.marks) if foreign else [], split
        shape = examples = None
        if change := conversion(dataset.name, facts.shape, self.shape):
            shape = self.shape
            content["conversion"] = [list(self.shape), CONVERSION]
            notes.append(change)
        count, size = self.suite.examples, split_size(facts, split)
        if count is not None and count < size:
            content["examples"] = examples = count
            label = f"{split}-{count}"
            notes.append(f"{count:,} of {size:,} images" if foreign else f"{count:,} of {size:,} {split} images")
        member = f"{dataset.name}/{label}~{digest(content)[:8]}"
        self.images[member] = size if examples is None else examples
        use = SplitUse(member, spec, split, fingerprint, wanted, examples, shape)
        return use, [f"{dataset.name}: {note}" if foreign else note for note in notes]
