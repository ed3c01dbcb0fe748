"""What a plan knows of data sets: from their files or, for a plan alone, from what the data sets declare."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from pathlib import Path

from bpcbench.api import Dataset
from bpcbench.data.root import data_root
from bpcbench.data.splits import check_split, with_split
from bpcbench.errors import MissingData, UserError
from bpcbench.planning.lookup import Lookup
from bpcbench.records import Facts

DECLARED = "declared"
"""The fingerprint of data that are not there. No stage with it is ever run, so nothing is stored under its keys."""


@dataclass(frozen=True, eq=False)
class Sources:
    """The data sets of a plan below a root.

    Content that is not official is refused unless `unverified` admits it. With `declare`, facts that a data set
    declares stand in for files that are absent or refused; `stand_ins` then says by the data set's name what is wrong.
    """

    lookup: Lookup
    root: Path
    unverified: bool = False
    declare: bool = False
    stand_ins: dict[str, str] = field(default_factory=dict)

    def facts(self, dataset: Dataset, split: str, *, optional: bool = False) -> Facts:
        """Return the facts of a data set with a split; raise MissingData or UserError if it cannot be used.

        Nothing stands in for what is `optional` and absent: a run does without.
        """
        declared = dataset.declared() if self.declare else None
        if declared is not None and dataset.name in self.stand_ins:
            return with_split(dataset, declared, split)
        try:
            facts = self._check(dataset, split)
            self._admit(dataset, facts)
        except (MissingData, _Unofficial) as error:
            if declared is None or (optional and isinstance(error, MissingData)):
                raise
            self.stand_ins[dataset.name] = str(error)
            return with_split(dataset, declared, split)
        return facts

    def fingerprint(self, dataset: Dataset, split: str) -> str:
        """Return the fingerprint of a split, after `facts`."""
        return DECLARED if dataset.name in self.stand_ins else dataset.fingerprint(self.root, split)

    def _check(self, dataset: Dataset, split: str) -> Facts:
        try:
            return check_split(dataset, self.root, split)
        except MissingData as error:
            if not dataset.downloads:
                raise
            where = "" if self.root == data_root(None) else f" --data {shlex.quote(str(self.root))}"
            get = f"`bpcbench data get {dataset.name}{where}` downloads it"
            raise MissingData(f"{error}; {get}") from error

    def _admit(self, dataset: Dataset, facts: Facts) -> None:
        if not facts.official and not self.unverified:
            why = dataset.differs(self.root) or "its facts say so"
            raise _Unofficial(
                f"data set {dataset.name} is not the official one: {why}. To use it all the same, marked 'subset' in "
                f"every table, add --unverified (unverified=True in Python)"
            )


class _Unofficial(UserError):
    """Content that is not official, and was not admitted."""
