"""The k-means centres of every class as a coreset."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from bpcbench.api import Context, option
from bpcbench.records import Array, Coreset, Data, Inputs
from bpcbench_baselines.selection import Baseline, rows_by_class


@dataclass(frozen=True)
class KMeans(Baseline):
    """The `ipc` centres of k-means within every class, in preprocessed pixel space; centres are not real images.

    Minimises sum_i min_j ||x_i - c_j||^2 by k-means++ (Arthur & Vassilvitskii, 2007) and Lloyd's iterations (1982),
    until assignments no longer change.
    """

    name: ClassVar[str] = "kmeans"
    preload: ClassVar[tuple[str, ...]] = ("sklearn.cluster",)

    iterations: int = option(100, "maximum iterations of Lloyd's algorithm per class")

    def distil(self, data: Data, ipc: int, inputs: Inputs, ctx: Context) -> Coreset:
        """Return the centres, ordered by class."""
        centres = []
        for label, rows in rows_by_class(data, ipc).items():
            points = inputs.transform.apply(data.train.images[rows]).reshape(len(rows), -1)
            seed = int(np.random.SeedSequence([ctx.seed, label]).generate_state(1)[0])
            centres.append(self._centres(points, ipc, seed))
        images = np.concatenate(centres).reshape(-1, *data.facts.shape).astype(np.float32)
        labels = np.repeat(np.asarray(data.present, dtype=np.int64), ipc)
        return Coreset(images=images, targets=labels, class_ids=labels.copy(), classes=data.facts.classes)

    def _centres(self, points: Array, count: int, seed: int) -> Array:
        import sklearn.cluster

        # tol=0: otherwise scikit-learn stops before the fixed point, at a distance that depends on the scale.
        fitted = sklearn.cluster.KMeans(
            count, init="k-means++", n_init=1, max_iter=self.iterations, tol=0.0, random_state=seed
        ).fit(points)
        return fitted.cluster_centers_
