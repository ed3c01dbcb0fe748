"""The body of each kind of stage, and `execute`, which any process may call with a Task."""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import resource
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from bpcbench.api import Dataset, Evaluator, Inference, Method, Network, Predictive, Preprocessing, Prerequisite
from bpcbench.coresets.files import read_coreset
from bpcbench.data.splits import evaluated_split, training_data
from bpcbench.errors import BpcbenchError, Stopped, unknown
from bpcbench.figures import figure_to_json
from bpcbench.records import (
    FINAL,
    Arrays,
    Coreset,
    Given,
    Made,
    Predictions,
    Recipe,
    SplitRef,
    Transform,
    snapshot_member,
    undeclared,
)
from bpcbench.registry.discovery import Registry, registry
from bpcbench.registry.options import as_ref, build
from bpcbench.registry.source import source_hash
from bpcbench.running.context import StageContext
from bpcbench.running.device import limit_threads, resolve_device
from bpcbench.running.members import Members
from bpcbench.running.predictions import predict_split, read_predictions
from bpcbench.running.queue import Outcome, Task
from bpcbench.running.seeding import derive, seed_globals
from bpcbench.store import provenance
from bpcbench.store.address import Address
from bpcbench.store.folder import size
from bpcbench.store.locks import Busy
from bpcbench.store.store import Store

FIT = "fit"
_PLUGIN_KIND = {"prerequisite": "prerequisite", "coreset": "method", "predict": "inference", "score": "evaluator"}
Started = Callable[[StageContext], None]


def attempt(task: Task, started: Started | None = None, store: Store | None = None) -> Outcome:
    """Make what a task asks for, in this process; whatever goes wrong is raised."""
    stage = task.stage
    begin = time.monotonic()
    store = store or Store.open(task.store)
    try:
        with store.lock(stage.id):
            if all(store.has(address) for address in stage.addresses):
                return Outcome(stage.id, "cached", messages=tuple(store.messages))
            for module in stage.preload:
                importlib.import_module(module)
            limit_threads(task.threads)
            try:
                _Run(task, store, started).make()
            except Exception:
                # Where locks do not work, another process may have been first and removed what this one was using.
                if not all(store.has(address) for address in stage.addresses):
                    raise
            store.discard_scratch(stage.id)
    except Busy:
        return Outcome(stage.id, "busy")
    except Stopped:
        return Outcome(stage.id, "stopped", time.monotonic() - begin, "stopped")
    return Outcome(stage.id, "done", time.monotonic() - begin, messages=tuple(store.messages))


def execute(task: Task, started: Started | None = None) -> Outcome:
    """Make what a task asks for, in this process; whatever goes wrong is an outcome, not an exception."""
    begin = time.monotonic()
    try:
        store = Store.open(task.store)
    except BpcbenchError as error:
        return Outcome(task.stage.id, "failed", message=str(error))
    try:
        return attempt(task, started, store)
    except BpcbenchError as error:
        message = str(error)
        trace = traceback.format_exc()
    except MemoryError:
        message = "out of memory"
        trace = traceback.format_exc()
    except (Exception, SystemExit) as error:
        message = f"{type(error).__name__}: {error}"
        trace = traceback.format_exc()
    _log(task, trace)
    return Outcome(task.stage.id, "failed", time.monotonic() - begin, message, messages=tuple(store.messages))


def _log(task: Task, trace: str) -> None:
    """Write a traceback to the task's log, which in a worker is where everything goes that is printed."""
    with contextlib.suppress(OSError):
        if multiprocessing.parent_process() is None:
            sys.stderr.write(trace)
        sys.stdout.flush()
        sys.stderr.flush()
        task.log.parent.mkdir(parents=True, exist_ok=True)
        with task.log.open("a") as stream:
            stream.write(f"{task.stage.kind} {task.stage.label} failed\n{trace}")


@dataclass
class _Run:
    task: Task
    store: Store
    started: Started | None
    resumed: bool = False

    def make(self) -> None:
        {
            "prerequisite": self._prerequisite,
            "coreset": self._coreset,
            "predict": self._predict,
            "score": self._score,
        }[self.task.stage.kind]()

    @property
    def body(self) -> Mapping[str, Any]:
        return self.task.stage.body

    @property
    def registry(self) -> Registry:
        return registry()

    def _build(self, kind: str, description: Mapping[str, Any]) -> Any:
        return build(self.registry, kind, as_ref(description))

    def _context(self, seed: int, snapshot: Callable[[int, Coreset, float], None] | None = None) -> StageContext:
        stage = self.task.stage
        context = StageContext(
            seed=seed,
            device=resolve_device(self.task.device),
            precision=self.task.precision,
            attempt=self.store.scratch(stage.id) / self.task.attempt,
            keep_snapshot=snapshot,
        )
        seed_globals(seed)
        if self.started:
            self.started(context)
        return context

    def _commit(
        self, member: str, arrays: Arrays, context: StageContext | None = None, meta: Mapping[str, Any] | None = None
    ) -> None:
        stage = self.task.stage
        files = {}
        described: dict[str, Any] = {
            "label": stage.label,
            "plugin": stage.plugin,
            "body": stage.body,
            "needs": list(stage.needs),
            "source": source_hash(self.registry, _PLUGIN_KIND[stage.kind], stage.plugin),
            "environment": {**provenance.versions(), **provenance.machine(), "commit": provenance.git_hash()},
            "threads": self.task.threads,
            "precision": self.task.precision,
            "jobs": self.task.jobs,
            "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            **(meta or {}),
        }
        if context is not None:
            described["device"] = context.device
            if context.resumed_from and not self.resumed:
                self.resumed = True
                self.store.messages.append(
                    f"{stage.label}: went on from step {context.resumed_from:,} of an earlier run"
                )
            described.setdefault("seconds", round(context.elapsed, 3))
            described.setdefault("cpu_seconds", round(context.cpu_seconds, 3))
            points = b"".join(line for line in context.curves().splitlines(keepends=True) if b'"m"' in line)
            if points:
                files["curves.jsonl"] = points
        address = Address(stage.kind, stage.key, member)
        if self.store.commit(address, described, arrays, files) and member == stage.members[-1]:
            total = sum(size(self.store.path(a)) for a in stage.addresses)
            self.store.note_timing(stage.family, float(described.get("seconds", 0.0)), total)

    def _transform(self) -> Transform | None:
        description = self.body["transform"]
        if description is None:
            return None
        plugin: Preprocessing = self._build("prerequisite", description["plugin"])
        made = self.store.read(Address.parse(description["address"]))
        return Transform(plugin, dict(made.arrays), description["address"])

    def _given(self) -> Given | None:
        transform = self._transform()
        if transform is None:
            return None
        made = {}
        for role, item in self.body["given"].items():
            addresses = [Address.parse(text) for text in item["addresses"]]
            plugin: Prerequisite = self._build("prerequisite", item["plugin"])
            made[role] = Made(plugin, item["addresses"][0], Members(self.store, addresses))
        return Given(transform, made)

    def _prerequisite(self) -> None:
        (member,) = self.task.stage.members
        plugin: Prerequisite = self._build("prerequisite", self.body["prerequisite"])
        given = self._given()
        dataset: Dataset = self._build("dataset", self.body["dataset"])
        data = training_data(dataset, self.task.data, holdout=self.body["holdout"])
        context = self._context(derive("member", member))
        arrays = plugin.make(data, given, context, member)
        context.close()
        self._commit(member, arrays, context)

    def _coreset(self) -> None:
        method: Method = self._build("method", self.body["method"])
        given = self._given()
        assert given is not None
        dataset: Dataset = self._build("dataset", self.body["dataset"])
        data = training_data(dataset, self.task.data, holdout=self.body["holdout"])
        native = self.body["native"] or {}

        def keep(coreset: Coreset, member: str, context: StageContext, extra: Mapping[str, Any]) -> None:
            if not np.isfinite(coreset.images).all() or not np.isfinite(coreset.targets).all():
                raise ValueError(f"{method.name} returned a coreset with NaN or infinite values ({member})")
            scalars = {name: float(value) for name, value in coreset.recipe.scalars.items()}
            recipe = Recipe(self.body["transform"], native.get("network"), native.get("inference"), scalars)
            meta = {
                "coreset": {
                    "classes": coreset.classes,
                    "convention": coreset.convention,
                    "recipe": asdict(recipe),
                    "bytes": int(coreset.images.nbytes + coreset.targets.nbytes),
                },
                **extra,
            }
            arrays = {"images": coreset.images, "targets": coreset.targets, "class_ids": coreset.class_ids}
            self._commit(member, arrays, context, meta)

        def snapshot(step: int, coreset: Coreset, seconds: float) -> None:
            keep(coreset, snapshot_member(step), context, {"step": step, "seconds": round(seconds, 3)})

        context = self._context(derive("distil", self.body["seed"]), snapshot)
        coreset = method.distil(data, self.body["ipc"], given, context)
        if not isinstance(coreset, Coreset):
            raise TypeError(
                f"{method.name}.distil must return a bpcbench.Coreset, it returned a {type(coreset).__name__}"
            )
        context.close()
        keep(coreset, FINAL, context, {})

    def _predict(self) -> None:
        stage = self.task.stage
        coreset = read_coreset(self.store.read(Address.parse(self.body["coreset"])))
        transform = self._transform()
        assert transform is not None
        inference: Inference = self._build("inference", self.body["inference"])
        network: Network = self._build("network", self.body["network"])
        context = self._context(derive("evaluate", self.body["seed"]))
        predictive = self._fitted(inference, coreset, network, context)
        context.close()
        for split in self.body["splits"]:
            address = Address(stage.kind, stage.key, split["member"])
            if not self.store.has(address):
                dataset: Dataset = self._build("dataset", split["dataset"])
                loaded = evaluated_split(dataset, self.task.data, split, coreset.classes)
                begin = time.monotonic()
                arrays = predict_split(predictive, loaded.images, loaded.labels, transform, inference.batch)
                seconds = round(time.monotonic() - begin, 3)
                # Each member tells of its own split only: with many splits they would tell of little else.
                meta = {"split": split, "predict_seconds": seconds, "body": {**self.body, "splits": [split]}}
                self._commit(split["member"], arrays, context, meta)

    def _fitted(self, inference: Inference, coreset: Coreset, network: Network, context: StageContext) -> Predictive:
        stage = self.task.stage
        kept = Address(stage.kind, stage.key, FIT)
        if self.store.has(kept):
            return inference.restore(dict(self.store.read(kept).arrays), coreset, network, context)
        predictive = inference.fit(coreset, network, context)
        arrays = predictive.arrays()
        if arrays is not None:
            self._commit(FIT, arrays, context)
        return predictive

    def _score(self) -> None:
        evaluator: Evaluator = self._build("evaluator", self.body["evaluator"])
        given = self._given()
        assert given is not None
        predictions = self._predictions(self.body["inputs"])
        given = replace(given, reference=self._predictions(self.body.get("reference", ())))
        if "coreset" in self.body:
            given = replace(given, coreset=read_coreset(self.store.read(Address.parse(self.body["coreset"]))))
        # The process has made other scores before: what they drew must not matter.
        seed_globals(derive("score", 0))
        begin = time.monotonic()
        scores = evaluator.score(predictions, given)
        declared = {metric.name: metric for metric in evaluator.metrics()}
        for name in undeclared(scores, declared.values()):
            raise ValueError(
                f"{evaluator.name}.score gave a metric it does not declare: {unknown('metric', name, declared)}"
            )
        values = {name: float(value) for name, value in scores.metrics.items()}
        meta = {
            "metrics": {name: value if np.isfinite(value) else str(value) for name, value in values.items()},
            "directions": {name: declared[name].direction for name in values},
            "units": {name: declared[name].unit for name in values},
            "figures": {name: figure_to_json(figure) for name, figure in scores.figures.items()},
            "seconds": round(time.monotonic() - begin, 3),
        }
        self._commit(FINAL, {}, None, meta)

    def _predictions(self, inputs: Iterable[Mapping[str, Any]]) -> dict[SplitRef, Predictions]:
        found = {}
        for item in inputs:
            wanted = SplitRef(item["split"], item["dataset"] and as_ref(item["dataset"]))
            found[wanted] = read_predictions(self.store.read(Address.parse(item["address"])))
        return found
