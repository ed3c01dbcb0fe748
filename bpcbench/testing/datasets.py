"""The conformance tests of data sets."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np

from bpcbench.api import Dataset
from bpcbench.data.splits import load_split
from bpcbench.testing.plugins import PluginConformance


class DatasetConformance(PluginConformance):
    """A data set's facts, fingerprints and content agree."""

    plugin: ClassVar[Dataset]
    root: ClassVar[Path] = Path()

    def test_splits(self) -> None:
        """Every split has the promised size, type and labels, and a fingerprint that stays."""
        facts = self.plugin.facts(self.root)
        assert "train" in facts.sizes, f"facts().sizes has no split named train: {sorted(facts.sizes)}"
        for split, size in facts.sizes.items():
            loaded = load_split(self.plugin, self.root, split)
            assert len(loaded) == size, f"split {split} has {len(loaded)} images, facts().sizes says {size}"
            first, again = (self.plugin.fingerprint(self.root, split) for _ in range(2))
            assert first == again, f"the fingerprint of {split} is another one each time, so nothing is ever cached"

    def test_same_every_time(self) -> None:
        """Loading a split twice gives the same images and labels."""
        for split in self.plugin.facts(self.root).sizes:
            first, again = (load_split(self.plugin, self.root, split) for _ in range(2))
            message = f"split {split} differs from one load to the next, with the same fingerprint"
            assert np.array_equal(first.images, again.images), message
            assert (first.labels is None) == (again.labels is None), message
            if first.labels is not None and again.labels is not None:
                assert np.array_equal(first.labels, again.labels), message

    def test_every_class_in_train(self) -> None:
        """No class is without training images."""
        labels = self.plugin.load(self.root, "train").labels
        assert labels is not None, "the split train has no labels, so nothing can be distilled from it"
        found, wanted = set(np.unique(labels).tolist()), set(range(self.plugin.facts(self.root).classes))
        assert found == wanted, (
            f"training labels are {sorted(found)}; with {len(wanted)} classes they are 0 to {len(wanted) - 1}"
        )
