"""The conformance tests of evaluators."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np

from bpcbench.api import Evaluator
from bpcbench.figures import draw, figure_from_json, figure_to_json
from bpcbench.records import EvaluatorInputs, LearnedTask, Predictions, SplitRef, Transform, undeclared
from bpcbench.testing.plugins import PluginConformance
from bpcbench.testing.toys import Scale, toy_coreset, toy_data, toy_prerequisites


class EvaluatorConformance(PluginConformance):
    """An evaluator gives the numbers that it declares, finite and whatever the order of the examples, and figures."""

    plugin: ClassVar[Evaluator]

    def predictions(self, seed: int = 0) -> dict[SplitRef, Predictions]:
        """Return predictions for every split that the evaluator asks for; override to add members or extras."""
        data = toy_data()
        rng = np.random.default_rng(seed)
        logits = rng.normal(0, 1, (len(data.labels), data.facts.classes)) + 2 * np.eye(data.facts.classes)[data.labels]
        log_probs = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
        made = Predictions(log_probs.astype(np.float32), data.labels)
        return dict.fromkeys(self.ready().splits(data.facts), made)

    def inputs(self) -> EvaluatorInputs:
        """Return the prerequisites, reference and coreset that the evaluator asks for; override to give others.

        An evaluator that asks for the steps of class-incremental learning gets one per class, with equal predictions.
        """
        data, plugin = toy_data(), self.ready()
        classes = range(data.facts.classes) if plugin.uses_tasks else ()
        return EvaluatorInputs(
            Transform(Scale(), {}),
            toy_prerequisites(plugin.prerequisites(data.facts), data),
            reference={} if plugin.reference(data.facts) is None else EvaluatorConformance.predictions(self, seed=2),
            coreset=toy_coreset() if plugin.uses_coreset else None,
            tasks=tuple(LearnedTask((label,), self.predictions()) for label in classes),
        )

    def test_metrics(self) -> None:
        """Names are lower case and declared, values finite, and permuting the examples changes nothing."""
        evaluator = self.ready()
        scores, declared = evaluator.score(self.predictions(), self.inputs()), evaluator.metrics()
        first = scores.metrics
        assert first, "score gives no metrics"
        for name, value in first.items():
            assert name == name.lower(), f"the metric {name!r} is not in lower case"
            assert np.isfinite(value), f"{name} is {value} for ordinary predictions"
        extra = undeclared(scores, declared)
        assert extra == (), f"score gives metrics that metrics() does not declare: {', '.join(extra)}"
        assert len({metric.name for metric in declared}) == len(declared), "a metric is declared twice"
        for name, figure in scores.figures.items():
            drawn = draw(figure_from_json(figure_to_json(figure)))
            assert drawn.startswith("<svg"), f"figure {name!r} is not drawn"
        order = np.random.default_rng(1).permutation(len(toy_data().labels))
        permuted = {
            split: Predictions(p.log_probs[order], None if p.labels is None else p.labels[order])
            for split, p in self.predictions().items()
        }
        inputs = self.inputs()
        tasks = tuple(replace(task, predictions=permuted) for task in inputs.tasks)
        again = evaluator.score(permuted, replace(inputs, tasks=tasks)).metrics
        message = "a metric depends on the order of the examples; compute it per example or over the whole split"
        np.testing.assert_allclose(
            [again[name] for name in first], list(first.values()), rtol=1e-9, atol=1e-12, err_msg=message
        )
