"""A coreset scored in this process, without a suite and without a store, by the same steps as the stages of a run."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np

from bpcbench.api import Dataset, Evaluator, Inference, Network, Preprocessing
from bpcbench.coresets.reading import describe_coreset, load_coreset, load_transform
from bpcbench.data.root import data_root
from bpcbench.data.splits import evaluated_split, training_data
from bpcbench.errors import UserError
from bpcbench.records import (
    Arrays,
    Coreset,
    Data,
    EvaluatorInputs,
    Inputs,
    Offer,
    Predictions,
    SplitRef,
    Transform,
    mirrored,
)
from bpcbench.registry.discovery import Registry, registry
from bpcbench.registry.options import as_ref, build
from bpcbench.running.context import StageContext
from bpcbench.running.device import resolve_device
from bpcbench.running.predictions import EXTRA, predict_split
from bpcbench.running.seeding import derive, seed_globals

Given = str | Mapping[str, Any]
"""A plugin as a suite writes it: a name, or a mapping with `plugin` and options."""


def fit_preprocessing(plugin: Preprocessing, data: Data) -> Arrays:
    """Fit a preprocessing to training data, in this process."""
    with tempfile.TemporaryDirectory(prefix="bpcbench-") as folder:
        return plugin.fit(data, _context(Path(folder), derive("member", "final"), None))


def evaluate(
    coreset: Coreset | str | Path,
    data: Given,
    inference: Given,
    network: Given,
    *,
    preprocessing: Given | None = None,
    pixels: bool = False,
    split: str = "test",
    examples: int | None = None,
    seed: int = 0,
    root: str | None = None,
    device: str | None = None,
) -> dict[str, float]:
    """Return the metrics of the default evaluators; see `bpcbench.evaluate`."""
    plugins = registry()
    dataset: Dataset = cast(Dataset, build(plugins, "dataset", as_ref(data)))
    fit: Inference = cast(Inference, build(plugins, "inference", as_ref(inference)))
    net: Network = cast(Network, build(plugins, "network", as_ref(network)))
    where = data_root(root)
    training = training_data(dataset, where, holdout=split == "validation")
    prepared, transform = _brought(coreset, training, preprocessing, pixels, plugins)
    facts = training.facts
    if prepared.images.shape[1:] != facts.shape or prepared.classes != facts.classes:
        raise UserError(
            f"the coreset's images are {prepared.images.shape[1:]} of {prepared.classes} classes, but those of "
            f"{dataset.name} are {facts.shape} of {facts.classes} classes"
        )
    ipc = int(np.bincount(prepared.class_ids, minlength=facts.classes).max())
    reason = net.skip(facts) or fit.accepts(Offer(facts, ipc, "", prepared.convention, net))
    if reason:
        raise UserError(reason)
    if fit.prerequisites(facts):
        raise UserError(f"{fit.name} needs prerequisites, which only a suite makes")
    loaded = evaluated_split(dataset, where, split, prepared.classes, examples=examples)
    with tempfile.TemporaryDirectory(prefix="bpcbench-") as folder:
        context = _context(Path(folder), derive("evaluate", seed), device)
        inputs = Inputs(transform)
        predictive = fit.fit(prepared, net, inputs, context)
        context.close()
        arrays = predict_split(predictive, loaded.images, loaded.labels, transform, fit.batch)
    predictions = Predictions(
        log_probs=arrays["log_probs"],
        labels=arrays.get("labels"),
        member_log_likelihood=arrays.get("member_log_likelihood"),
        expected_entropy=arrays.get("expected_entropy"),
        extras={name.removeprefix(EXTRA): array for name, array in arrays.items() if name.startswith(EXTRA)},
    )
    metrics: dict[str, float] = {}
    for name in plugins.names("evaluator"):
        if plugins.get("evaluator", name).cls.__dict__.get("default"):
            evaluator = cast(Evaluator, build(plugins, "evaluator", as_ref(name)))
            scores = evaluator.score({SplitRef(): predictions}, EvaluatorInputs(transform, coreset=prepared))
            metrics |= {metric: float(value) for metric, value in scores.metrics.items()}
    return metrics


def _brought(
    coreset: Coreset | str | Path, training: Data, preprocessing: Given | None, pixels: bool, plugins: Registry
) -> tuple[Coreset, Transform]:
    """Return a coreset in the space in which it is evaluated, and that space."""
    from dataclasses import replace

    given = None if preprocessing is None else _fitted(preprocessing, training, plugins)
    if isinstance(coreset, Coreset):
        transform = given or _fitted(_default(plugins), training, plugins)
        images = transform.apply_float(coreset.images) if pixels else coreset.images
        return replace(coreset, images=images), transform
    if pixels:
        raise UserError("a coreset in a folder has its own space; `pixels` is for a Coreset")
    source = load_transform(coreset)
    transform = given or source
    loaded = load_coreset(coreset)
    brought = replace(loaded, images=transform.convert(loaded.images, source))
    return mirrored(brought) if describe_coreset(coreset).mirrored else brought, transform


def _fitted(given: Given, training: Data, plugins: Registry) -> Transform:
    plugin = cast(Preprocessing, build(plugins, "preprocessing", as_ref(given)))
    return Transform(plugin, fit_preprocessing(plugin, training))


def _default(plugins: Registry) -> str:
    names = plugins.names("preprocessing")
    return next(name for name in names if plugins.get("preprocessing", name).cls.__dict__.get("default"))


def _context(folder: Path, seed: int, device: str | None) -> StageContext:
    context = StageContext(seed=seed, device=resolve_device(device or "auto"), attempt=folder / "attempt")
    seed_globals(seed)
    return context
