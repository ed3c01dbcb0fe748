"""The data sets of a suite as its plan sees them: facts, what is trained on, and which splits are to be predicted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bpcbench.api import Dataset, Evaluator
from bpcbench.errors import MissingData, PluginError, UserError
from bpcbench.keys import digest
from bpcbench.lookup import Lookup
from bpcbench.records import Facts, Ref, SplitRef
from bpcbench.splits import VALIDATION, check_split, planning_facts
from bpcbench.suite import Suite

Split = Mapping[str, Any]
"""A split to be predicted: its member, its data set's description, its name, and the reference that asked for it."""


@dataclass(frozen=True, eq=False)
class Source:
    """One data set of the suite. `family` is a digest of the training data; `splits` are those of each evaluator."""

    dataset: Dataset
    facts: Facts
    family: str
    splits: Mapping[str, Sequence[Split]]
    union: Mapping[str, Split]
    missing: Mapping[str, str]


def learn(lookup: Lookup, suite: Suite, data: Path, dataset: Dataset) -> Source:
    """Get to know a data set without reading its images; raise MissingData if it is not there.

    `missing` says, for each evaluator that asks for another data set which is not there, what to place where.
    """
    holdout = suite.split == VALIDATION
    facts = planning_facts(dataset, data, holdout=holdout)
    trained_on = {
        "dataset": lookup.look(dataset).digest,
        "train": dataset.fingerprint(data, "train"),
        "holdout": holdout,
    }
    splits: dict[str, list[Split]] = {}
    missing: dict[str, str] = {}
    for name, evaluator in suite.evaluators.items():
        try:
            splits[name] = [_split(lookup, suite, data, dataset, ref) for ref in _wanted(evaluator, facts)]
        except MissingData as error:
            missing[name] = str(error)
    union = {split["member"]: split for group in splits.values() for split in group}
    return Source(dataset, facts, digest(trained_on), splits, union, missing)


def _wanted(evaluator: Evaluator, facts: Facts) -> Sequence[SplitRef]:
    wanted = evaluator.splits(facts)
    if not wanted:
        raise PluginError(f"evaluator {evaluator.name} asks for no split, so that there is nothing to score")
    return wanted


def _split(lookup: Lookup, suite: Suite, data: Path, own: Dataset, wanted: SplitRef) -> Split:
    dataset: Dataset = own if wanted.dataset is None else lookup.build("dataset", wanted.dataset)
    # Also when an evaluator names the data set itself: while tuning, its test split is out of reach.
    split = suite.split if dataset.name == own.name and wanted.split == "test" else wanted.split
    if suite.split == VALIDATION and split not in ("train", VALIDATION):
        raise UserError(
            f"while settings are chosen on the validation split no test split may be predicted, and an evaluator asks "
            f"for {split!r} of {dataset.name}; leave it out"
        )
    check_split(dataset, data, split)
    known = lookup.look(dataset)
    content = dataset.fingerprint(data, "train" if split == VALIDATION else split)
    return {
        "member": f"{dataset.name}/{split}~{digest([known.digest, content])[:8]}",
        "dataset": known.description,
        "split": split,
        "wanted": {"split": wanted.split, "dataset": wanted.dataset and plain_ref(wanted.dataset)},
    }


def plain_ref(ref: Ref) -> dict[str, Any]:
    """Return a reference as a suite would write it."""
    return {"plugin": ref.plugin, **ref.options}
