"""The evaluator `per-class`: the accuracy of every class."""

from dataclasses import dataclass

import bpcbench
from bpcbench import metrics
from bpcbench.figures import Bars


@dataclass(frozen=True)
class PerClass(bpcbench.Evaluator):
    """The accuracy of the worst class, and a bar for every class."""

    name = "per-class"
    version = 1

    def metrics(self):
        return [bpcbench.Metric("worst_class_acc", "higher", "percent", help="accuracy of the worst class")]

    def score(self, predictions, inputs):
        (p,) = predictions.values()
        classes = range(p.log_probs.shape[1])
        found = [c for c in classes if (p.labels == c).any()]
        accuracy = [metrics.accuracy(p.log_probs[p.labels == c], p.labels[p.labels == c]) for c in found]
        bars = Bars(title="Accuracy by class", labels=[str(c) for c in found], series={"accuracy": accuracy})
        return bpcbench.Scores({"worst_class_acc": min(accuracy)}, {"accuracy by class": bars})
