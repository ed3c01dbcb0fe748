"""From a plan to its manifest: everything that views need, without the plugins that made it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bpcbench.planning.cells import Cell, Choice, Coordinates
from bpcbench.planning.plan import Plan
from bpcbench.planning.published import match
from bpcbench.planning.spec import Spec
from bpcbench.records import COST, Publication, PublishedQuery
from bpcbench.store.address import digest
from bpcbench.store.manifest import (
    CellRecord,
    DatasetRecord,
    Group,
    Manifest,
    MetricRecord,
    PluginRecord,
    PublishedRecord,
    Purpose,
)
from bpcbench.store.provenance import versions
from bpcbench.suite.model import Suite

_NOT_REQUESTED = frozenset({"description", "metrics", "device", "engine", "timeout", "extends"})
"""The keys of a suite that cannot change what is computed; two requests that differ in these alone are one."""


def request_digest(document: Mapping[str, Any], name: str) -> str:
    """Return a digest of a suite as written, overrides included, by which an earlier invocation is found again."""
    asked = {key: value for key, value in document.items() if key not in _NOT_REQUESTED}
    return digest({**asked, "name": name})[:16]


def manifest_of(
    plan: Plan, *, source: str, request: str, purpose: Purpose = "run", publications: Sequence[Publication] = ()
) -> Manifest:
    """Return the manifest of a plan; `source` is the suite as the user named it, `request` a digest of its content."""
    suite = plan.suite
    metrics = tuple(_metrics(suite))
    costs = (name for one in publications for number in one.numbers for cell in number.cells for name in cell.metrics)
    names = tuple(dict.fromkeys((*(m.name for m in metrics), *(name for name in costs if name.startswith(COST)))))
    groups: dict[Coordinates, Group] = {}
    for cell in plan.cells:
        known = groups.get(cell.at)
        if known is None or (not known.plugins and cell.choice is not None):
            groups[cell.at] = _group(cell, names, publications, None if suite.tasks is None else suite.tasks.steps)
    cells = tuple(_cell(cell, groups[cell.at]) for cell in plan.cells)
    used = {number.publication for group in groups.values() for number in group.published}
    return Manifest(
        name=suite.name,
        source=source,
        purpose=purpose,
        request=request,
        description=suite.description,
        protocol=suite.protocol,
        split=suite.split,
        shown=suite.metrics,
        document={key: value for key, value in suite.source.items() if key != "extends"},
        versions=versions(),
        metrics=metrics,
        datasets=tuple(_datasets(plan)),
        groups=tuple(groups.values()),
        cells=cells,
        tried=suite.tried,
        publications={one.name: one.note for one in publications if one.name in used},
        seeds=(suite.distil_seeds, suite.evaluate_seeds),
    )


def _metrics(suite: Suite) -> Iterable[MetricRecord]:
    for label, evaluator in suite.evaluators.items():
        for metric in evaluator.metrics():
            yield MetricRecord(label, metric.name, metric.direction, metric.unit, metric.help)


def _datasets(plan: Plan) -> Iterable[DatasetRecord]:
    for label, dataset in plan.datasets.items():
        facts = dataset.facts
        yield DatasetRecord(
            label=label,
            plugin=_plugin(dataset.training.dataset),
            shape=facts.shape,
            classes=facts.classes,
            sizes=dict(facts.sizes),
            class_names=facts.class_names,
            official=facts.official,
            fingerprint=dataset.training.fingerprint,
            notes=dataset.notes,
            left_out=dataset.left_out,
        )


def _plugin(spec: Spec) -> PluginRecord:
    return PluginRecord(spec.package, spec.name, spec.version, spec.settings())


def _group(cell: Cell, metrics: Iterable[str], publications: Sequence[Publication], tasks: int | None) -> Group:
    at, choice = cell.at, cell.choice
    names = (at.dataset, at.ipc, at.method, at.inference, at.network)
    if choice is None:
        return Group(*names)
    roles = ("dataset", "method", "preprocessing", "inference", "network")
    return Group(
        *names,
        plugins={role: _plugin(getattr(choice, role)) for role in roles},
        native_inference=choice.native_inference,
        native_network=choice.native_network,
        ranked=choice.ranked,
        notes=choice.notes,
        own=choice.own and (_plugin(choice.own[0]), _plugin(choice.own[1])),
        published=tuple(_published(at.ipc, choice, metrics, publications, tasks)),
    )


def _published(
    ipc: int, choice: Choice, metrics: Iterable[str], publications: Sequence[Publication], tasks: int | None
) -> Iterable[PublishedRecord]:
    own = choice.own
    native = choice.native_inference or (own is not None and own[0].digest == choice.inference.digest)
    for metric in metrics if publications else ():
        query = PublishedQuery(
            dataset=choice.dataset.name,
            ipc=ipc,
            method=choice.method.name,
            inference=choice.inference.name,
            network=choice.network.name,
            native=native,
            method_options=choice.method.settings(),
            inference_options=choice.inference.settings(),
            network_options=choice.network.settings(),
            metric=metric,
            tasks=tasks,
        )
        for publication in publications:
            number = match([publication], query)
            if number is not None:
                yield PublishedRecord(publication.name, metric, number.mean, number.std, number.printed)


def _cell(cell: Cell, group: Group) -> CellRecord:
    return CellRecord(
        group=group,
        distil_seed=cell.distil_seed,
        evaluate_seed=cell.evaluate_seed,
        coresets=cell.coresets,
        predict=cell.predict,
        splits=cell.splits,
        scores=cell.scores,
        skipped=cell.skipped,
        step=cell.step,
        order=cell.order,
        earlier=cell.earlier,
        earlier_splits=cell.earlier_splits,
    )
