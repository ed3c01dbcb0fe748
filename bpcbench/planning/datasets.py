"""The data sets of a suite as its plan sees them: facts, what is trained on, and which splits are to be predicted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bpcbench.api import Dataset, Evaluator
from bpcbench.data.conversion import VERSION as CONVERSION
from bpcbench.data.conversion import conversion
from bpcbench.data.splits import VALIDATION, check_split, planning_facts, split_size
from bpcbench.errors import MissingData, PluginError, UserError
from bpcbench.planning.lookup import Lookup
from bpcbench.records import Facts, Ref, SplitRef
from bpcbench.store.address import digest
from bpcbench.suite.model import Suite

SUBSET = "subset"
"""The note of data that are not, or not completely, the official ones."""

Split = Mapping[str, Any]
"""A split to be predicted: its member, its data set's description, its name, and the reference that asked for it;
`examples` if it is a subset of so many images, and `shape` if its images have to be converted to that shape."""


@dataclass(frozen=True, eq=False)
class Source:
    """One data set of the suite. `family` is a digest of the training data; `splits` are those of each evaluator.

    `notes` is what every table must say of the data: the words of its own facts, those of other data sets after their
    names, what is a subset, what is converted and what is left out.
    """

    dataset: Dataset
    facts: Facts
    family: str
    splits: Mapping[str, Sequence[Split]]
    union: Mapping[str, Split]
    missing: Mapping[str, str]
    notes: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    """What an evaluator does without, and why."""


def learn(lookup: Lookup, suite: Suite, data: Path, dataset: Dataset, *, unverified: bool = False) -> Source:
    """Get to know a data set without reading its images; raise MissingData if it is not there.

    `missing` says, for each evaluator that cannot do without another data set which is not there, what to place where.
    """
    holdout = suite.split == VALIDATION
    facts = planning_facts(dataset, data, holdout=holdout)
    _admit(dataset, facts, data, unverified)
    trained_on = {
        "dataset": lookup.look(dataset).digest,
        "train": dataset.fingerprint(data, "train"),
        "holdout": holdout,
    }
    asked = _Asked(lookup, suite, data, dataset, facts.shape, unverified)
    splits: dict[str, Sequence[Split]] = {}
    missing: dict[str, str] = {}
    for name, evaluator in suite.evaluators.items():
        try:
            splits[name] = asked.splits(name, _wanted(evaluator, facts))
        except MissingData as error:
            missing[name] = str(error)
    union = {split["member"]: split for group in splits.values() for split in group}
    notes, left_out = tuple(dict.fromkeys((*facts.notes, *asked.notes))), tuple(asked.left_out)
    return Source(dataset, facts, digest(trained_on), splits, union, missing, notes, left_out)


def _admit(dataset: Dataset, facts: Facts, data: Path, unverified: bool) -> None:
    """Raise UserError for content that is not the official one, unless the caller said that it may be used."""
    if SUBSET in facts.notes and not unverified:
        why = dataset.differs(data) or f"its facts say {SUBSET!r}"
        raise UserError(
            f"data set {dataset.name} is not the official one: {why}. To use it all the same, marked {SUBSET!r} in "
            f"every table, say --unverified (unverified=True in Python)"
        )


def _wanted(evaluator: Evaluator, facts: Facts) -> Sequence[SplitRef]:
    wanted = evaluator.splits(facts)
    if not wanted:
        raise PluginError(f"evaluator {evaluator.name} asks for no split, so that there is nothing to score")
    return wanted


class _Asked:
    """The splits that evaluators ask for, for one data set, and what has to be said of them."""

    def __init__(
        self, lookup: Lookup, suite: Suite, data: Path, own: Dataset, shape: tuple[int, int, int], unverified: bool
    ) -> None:
        self.lookup, self.suite, self.data, self.own, self.shape = lookup, suite, data, own, shape
        self.unverified = unverified
        self.notes: list[str] = []
        self.left_out: list[str] = []

    def splits(self, evaluator: str, wanted: Sequence[SplitRef]) -> list[Split]:
        """Return the splits of one evaluator; raise MissingData if it cannot do without what is not there."""
        found: dict[SplitRef, Split] = {}
        notes: list[str] = []
        reasons: list[str] = []
        for ref in wanted:
            dataset: Dataset = self.own if ref.dataset is None else self.lookup.build("dataset", ref.dataset)
            try:
                split, said = self._split(dataset, ref)
            except MissingData as error:
                if not ref.optional:
                    raise
                notes.append(f"{dataset.name}: not there, left out")
                reasons.append(str(error))
                continue
            if ref.optional and split["member"] in {known["member"] for known in found.values()}:
                notes.append(f"nothing is held out beside the {split['split']} split, which is evaluated")
                reasons.append(notes[-1])
                continue
            found[ref] = split
            notes += said
        others = [ref for ref in wanted if ref.dataset is not None]
        if others and not any(ref in found for ref in others):
            raise MissingData("; ".join(reasons))
        self.notes += notes
        self.left_out += [f"evaluators.{evaluator} does without a split: {reason}" for reason in reasons]
        return list(found.values())

    def _split(self, dataset: Dataset, wanted: SplitRef) -> tuple[Split, list[str]]:
        # Also when an evaluator names the data set itself: while tuning, its test split is out of reach.
        split = self.suite.split if dataset.name == self.own.name and wanted.split == "test" else wanted.split
        if self.suite.split == VALIDATION and split not in ("train", VALIDATION):
            raise UserError(
                f"while settings are chosen on the validation split no test split may be predicted, and an evaluator "
                f"asks for {split!r} of {dataset.name}; leave it out"
            )
        facts = check_split(dataset, self.data, split)
        _admit(dataset, facts, self.data, self.unverified)
        known = self.lookup.look(dataset)
        content: list[Any] = [known.digest, dataset.fingerprint(self.data, "train" if split == VALIDATION else split)]
        description: dict[str, Any] = {
            "member": "",
            "dataset": known.description,
            "split": split,
            "wanted": {"split": wanted.split, "dataset": wanted.dataset and plain_ref(wanted.dataset)},
        }
        foreign = known.digest != self.lookup.look(self.own).digest
        notes, label = list(facts.notes) if foreign else [], split
        # What is as it always was adds nothing to the digest, so that old predictions are found.
        if change := conversion(dataset.name, facts.shape, self.shape):
            description["shape"] = list(self.shape)
            content.append({"shape": self.shape, "version": CONVERSION})
            notes.append(change)
        count, size = self.suite.examples, split_size(facts, split)
        if count is not None and count < size:
            description["examples"] = count
            content.append({"examples": count})
            label = f"{split}-{count}"
            notes.append(f"{count:,} of {size:,} images" if foreign else f"{count:,} of {size:,} {split} images")
        description["member"] = f"{dataset.name}/{label}~{digest(content)[:8]}"
        return description, [f"{dataset.name}: {note}" if foreign else note for note in notes]


def plain_ref(ref: Ref) -> dict[str, Any]:
    """Return a reference as a suite would write it."""
    return {"plugin": ref.plugin, **ref.options}
