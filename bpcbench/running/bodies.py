"""The body of each kind of stage, and `execute`, which any process may call with a Task."""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bpcbench.api import Dataset, Evaluator, Inference, Method, Network, Predictive, Preprocessing, Prerequisite
from bpcbench.coresets.preview import preview
from bpcbench.coresets.reading import read_coreset
from bpcbench.data.classes import of_classes
from bpcbench.data.splits import evaluated_split, training_data
from bpcbench.errors import BpcbenchError, PluginError, Stopped, Superseded, shortened, unknown
from bpcbench.figures import figure_to_json
from bpcbench.planning.spec import Spec
from bpcbench.planning.stages import (
    CoresetStage,
    Fitted,
    PredictStage,
    PrerequisiteStage,
    Roles,
    ScoreInput,
    ScoreStage,
    Stage,
    TrainingData,
    stage_from_json,
)
from bpcbench.planning.status import stage_code
from bpcbench.records import (
    FINAL,
    FIT,
    Arrays,
    Coreset,
    Data,
    EvaluatorInputs,
    Inputs,
    LearnedTask,
    Predictions,
    PrerequisiteOutput,
    SplitRef,
    Task,
    Transform,
    snapshot_member,
    undeclared,
    union,
)
from bpcbench.registry.discovery import Registry, registry
from bpcbench.running.bundles import Companion, companions, fit_of, joined, part
from bpcbench.running.checkpoint import fresh_folder
from bpcbench.running.context import StageContext
from bpcbench.running.device import limit_threads, resolve_device
from bpcbench.running.exhaustion import explained, ran_out, release
from bpcbench.running.members import Members
from bpcbench.running.numerics import of_plugins, settle, synchronise
from bpcbench.running.predictions import predict_split, read_predictions
from bpcbench.running.queue import Outcome
from bpcbench.running.seeding import derive, seed_globals
from bpcbench.running.sight import answer
from bpcbench.running.usage import Usage, free
from bpcbench.store import leases, provenance
from bpcbench.store.address import SCHEME, Address
from bpcbench.store.folder import size
from bpcbench.store.leases import Lease
from bpcbench.store.locks import Busy
from bpcbench.store.store import Store

Started = Callable[[StageContext], None]
_REASON_LENGTH = 200
"""How much of an error a message shows that says why seeds are not fitted together."""


def attempt(task: Task, started: Started | None = None, store: Store | None = None) -> Outcome:
    """Make what a task asks for, in this process; whatever goes wrong is raised.

    The stage is rebuilt from its description. A key that differs when it is derived again, or a plugin of another
    version than planned, is refused: a result is never committed under a key that does not belong to it.
    """
    begin = time.monotonic()
    if task.kind == "examination":
        answer(task)
        return Outcome(task.id, "done", time.monotonic() - begin)
    store = store or _opened(task)
    try:
        stage = stage_from_json(task.kind, task.body_version, task.key, dict(task.stage))
    except ValueError as error:
        raise PluginError(str(error)) from None
    try:
        with _right(store, task):
            if all(store.has(address) for address in stage.addresses):
                return Outcome(task.id, "cached", messages=tuple(store.messages))
            for module in task.preload:
                importlib.import_module(module)
            limit_threads(task.threads)
            try:
                with _lease(store, task) as lease:
                    _body(stage)(_Attempt(task, stage, store, started, lease))
            except Exception:
                # Where locks do not work, another process may have been first and removed what this one was using.
                if not all(store.has(address) for address in stage.addresses):
                    raise
            store.discard_scratch(task.id)
    except (Busy, Superseded):
        return Outcome(task.id, "busy", messages=tuple(store.messages))
    except Stopped:
        return Outcome(task.id, "stopped", time.monotonic() - begin, "stopped")
    return Outcome(task.id, "done", time.monotonic() - begin, messages=tuple(store.messages))


@contextlib.contextmanager
def _right(store: Store, task: Task) -> Iterator[None]:
    """Hold the lock of a stage, unless its holder has fallen silent: a lost machine may hold a lock for ever."""
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(store.lock(task.id))
        except Busy:
            if not leases.expired(store.scratch(task.id)):
                raise
        yield


@contextlib.contextmanager
def _lease(store: Store, task: Task) -> Iterator[Lease | None]:
    """Hold the lease beside a stage's checkpoints; a score has none, and takes no time."""
    if task.kind == "score":
        yield None
        return
    lease = leases.acquire(store.scratch(task.id))
    try:
        yield lease
    finally:
        lease.release()


def _opened(task: Task) -> Store:
    """Return the task's store, which whoever made the task has created."""
    store = Store.open(task.store, create=False)
    store.require()
    return store


def execute(task: Task, started: Started | None = None) -> Outcome:
    """Make what a task asks for, in this process; whatever goes wrong is an outcome, not an exception.

    Memory of a GPU that is left unused is given back, for the process may live on.
    """
    try:
        return _execute(task, started)
    finally:
        free()


def _execute(task: Task, started: Started | None) -> Outcome:
    begin = time.monotonic()
    exhausted = False
    try:
        store = _opened(task)
    except BpcbenchError as error:
        return Outcome(task.id, "failed", message=str(error))
    except (OSError, MemoryError) as error:
        return Outcome(task.id, "failed", message=f"{type(error).__name__}: {error}")
    try:
        return attempt(task, started, store)
    except BpcbenchError as error:
        message = str(error)
        trace = traceback.format_exc()
    except Stopped:
        raise
    except BaseException as error:
        # Whatever a plugin raises, KeyboardInterrupt included, is its own failure.
        message = f"{type(error).__name__}: {error}"
        trace = traceback.format_exc()
        if exhausted := ran_out(error):
            message = explained(error, resolve_device(task.device), _options(task))
            release(error)
    _log(task, trace)
    seconds = time.monotonic() - begin
    return Outcome(task.id, "failed", seconds, message, tuple(store.messages), out_of_memory=exhausted)


def _options(task: Task) -> Mapping[str, Any]:
    """Return the options of the plugin whose work a stage is."""
    plugin = next((task.stage[name] for name in ("method", "inference", "plugin") if name in task.stage), None)
    try:
        return Spec.from_json(plugin).settings()
    except ValueError:
        return {}


def _log(task: Task, trace: str, what: str = "failed") -> None:
    """Write a traceback to the task's log, where everything goes that a worker prints."""
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
        task.log.parent.mkdir(parents=True, exist_ok=True)
        with task.log.open("a", encoding="utf-8", errors="backslashreplace") as stream:
            stream.write(f"{task.kind} {task.label} {what}\n{trace}")
            redirected = os.path.samestat(os.fstat(stream.fileno()), os.fstat(2))
        if not redirected and multiprocessing.parent_process() is None:
            sys.stderr.write(trace)


class _Attempt:
    """One attempt at a stage: builds plugins, reads inputs, commits results."""

    def __init__(
        self, task: Task, stage: Stage, store: Store, started: Started | None, lease: Lease | None = None
    ) -> None:
        self.task = task
        self.lease = lease
        self.stage = stage
        self.store = store
        self.started = started
        self.resumed = False
        self.usage = Usage()
        # Now, not when it commits: the files may be edited while a long stage runs.
        self.code = stage_code(self.registry, stage)

    @property
    def registry(self) -> Registry:
        return registry()

    @property
    def scratch(self) -> Path:
        return self.store.scratch(self.task.id)

    def alone(self, error: Exception, seeds: int) -> None:
        """Say that seeds are not fitted together, and why."""
        _log(self.task, traceback.format_exc(), "fits seeds one by one")
        what = "out of memory" if ran_out(error) else shortened(str(error) or type(error).__name__, _REASON_LENGTH)
        self.store.messages.append(f"{self.task.label}: {seeds} seeds are fitted one by one, not together: {what}")

    def build(self, spec: Spec) -> Any:
        return spec.build(self.registry)

    def context(
        self, seed: int, precision: str, snapshot: Callable[[int, Coreset, float], None] | None = None
    ) -> StageContext:
        device = resolve_device(self.task.device)
        settle(precision, device)
        self.usage.expect(device)
        context = StageContext(
            seed=seed,
            device=device,
            precision=of_plugins(precision),
            attempt=fresh_folder(self.scratch, self.task.attempt),
            keep_snapshot=snapshot,
            lease=self.lease,
        )
        seed_globals(seed)
        if self.started:
            self.started(context)
        return context

    def commit(
        self,
        member: str,
        arrays: Arrays,
        context: StageContext | None = None,
        meta: Mapping[str, Any] | None = None,
        stage: Stage | None = None,
        *,
        curves: bool = True,
    ) -> bool:
        """Store a result of a stage; return whether it was the first, for otherwise another one is kept."""
        stage = stage or self.stage
        files = {}
        description: dict[str, Any] = {
            "label": self.task.label,
            "scheme": SCHEME,
            "body_version": stage.body_version,
            "stage": stage.to_json(),
            "inputs": [str(address) for address in dict.fromkeys(stage.inputs())],
            "code": self.code,
            "environment": {**provenance.versions(), **provenance.machine(), "commit": provenance.git_hash()},
            "threads": self.task.threads,
            "jobs": self.task.jobs,
            **self.usage.described(),
            **(meta or {}),
        }
        if context is not None:
            description["device"] = self.usage.device(context.device)
            description["started"] = provenance.timestamp(time.time() - context.elapsed)
            if context.resumed_from and not self.resumed:
                self.resumed = True
                self.store.messages.append(f"{self.task.label}: resumed at step {context.resumed_from:,}")
            description.setdefault("seconds", round(context.elapsed, 3))
            description.setdefault("cpu_seconds", round(context.cpu_seconds, 3))
            points = b"".join(line for line in context.curves().splitlines(keepends=True) if b'"m"' in line)
            if points and curves:
                files["curves.jsonl"] = points
        address = Address(stage.kind, stage.key, member)
        if self.lease is not None and not self.lease.holds():
            raise Superseded
        first = self.store.commit(address, description, arrays, files)
        if first and member == self.stage.members[-1]:
            total = sum(size(self.store.path(a)) for a in self.stage.addresses)
            self.store.note_timing(self.task.family, float(description.get("seconds", 0.0)), total)
        return first

    def transform(self, fitted: Fitted) -> Transform:
        plugin: Preprocessing = self.build(fitted.plugin)
        return Transform(plugin, dict(self.store.read(fitted.address).arrays), str(fitted.address))

    def role_inputs(self, fitted: Fitted, roles: Roles) -> Inputs:
        made = {}
        for role, item in roles.items():
            plugin: Prerequisite = self.build(item.plugin)
            made[role] = PrerequisiteOutput(plugin, str(item.addresses[0]), Members(self.store, list(item.addresses)))
        return Inputs(self.transform(fitted), made)

    def data(self, training: TrainingData) -> Data:
        dataset: Dataset = self.build(training.dataset)
        self.check(dataset, "train", training.fingerprint)
        data = training_data(dataset, self.task.data, holdout=training.holdout)
        return data if training.classes is None else of_classes(data, training.classes)

    def check(self, dataset: Dataset, split: str, fingerprint: str) -> None:
        """Refuse data other than those that were planned with, as another machine may have."""
        if dataset.fingerprint(self.task.data, split) != fingerprint:
            raise PluginError(
                f"{dataset.name} in {self.task.data}: the {split} split differs from the one planned with; plan again"
            )

    def coreset(self, addresses: Iterable[Address]) -> Coreset:
        return union([read_coreset(self.store.read(address)) for address in addresses])

    def predictions(self, inputs: Iterable[ScoreInput]) -> dict[SplitRef, Predictions]:
        return {item.wanted: read_predictions(self.store.read(item.address)) for item in inputs}


def _body(stage: Stage) -> Callable[[_Attempt], None]:
    if isinstance(stage, PrerequisiteStage):
        return lambda attempt: _prerequisite(attempt, stage)
    if isinstance(stage, CoresetStage):
        return lambda attempt: _coreset(attempt, stage)
    if isinstance(stage, PredictStage):
        return lambda attempt: _predict(attempt, stage)
    assert isinstance(stage, ScoreStage)
    return lambda attempt: _score(attempt, stage)


def _prerequisite(attempt: _Attempt, stage: PrerequisiteStage) -> None:
    plugin: Preprocessing | Prerequisite = attempt.build(stage.plugin)
    inputs = attempt.role_inputs(stage.transform, stage.prerequisites) if stage.transform else None
    data = attempt.data(stage.data)
    context = attempt.context(derive("member", stage.member), stage.precision)
    if isinstance(plugin, Preprocessing):
        arrays = plugin.fit(data, context)
    else:
        assert inputs is not None
        arrays = plugin.make(data, inputs, context, stage.member)
    context.close()
    attempt.commit(stage.member, arrays, context)


def _coreset(attempt: _Attempt, stage: CoresetStage) -> None:
    method: Method = attempt.build(stage.method)
    inputs = attempt.role_inputs(stage.transform, stage.prerequisites)
    data = attempt.data(stage.data)

    def keep(coreset: Coreset, member: str, context: StageContext, extra: Mapping[str, Any]) -> None:
        if not np.isfinite(coreset.images).all() or not np.isfinite(coreset.targets).all():
            raise ValueError(f"{method.name} returned a coreset with NaN or infinite values ({member})")
        if stage.data.classes is not None and (foreign := set(coreset.class_ids.tolist()) - set(stage.data.classes)):
            raise ValueError(f"{method.name} returned images of classes that its training data lack: {sorted(foreign)}")
        rows = method.rows_per_class(stage.ipc) if stage.ipc is not None else None
        if rows is not None:
            check_rows(method.name, coreset, data, rows)
        arrays = {**coreset.arrays(), **preview(coreset, inputs.transform)}
        attempt.commit(member, arrays, context, {"coreset": coreset.description(), **extra})

    def snapshot(step: int, coreset: Coreset, seconds: float) -> None:
        keep(coreset, snapshot_member(step), context, {"step": step, "seconds": round(seconds, 3)})

    context = attempt.context(derive("distil", stage.seed or 0), stage.precision, snapshot)
    coreset = method.distil(data, stage.ipc or 0, inputs, context)
    if not isinstance(coreset, Coreset):
        raise TypeError(f"{method.name}.distil must return a bpcbench.Coreset, it returned a {type(coreset).__name__}")
    context.close()
    keep(coreset, FINAL, context, {})


def check_rows(name: str, coreset: Coreset, data: Data, rows: int) -> None:
    """Raise ValueError unless a coreset has so many rows of every class that the training data have, and no others."""
    ids = coreset.class_ids
    if len(ids) and not (ids.min() >= 0 and ids.max() < coreset.classes):
        raise ValueError(f"{name} returned class numbers from {ids.min()} to {ids.max()} of {coreset.classes} classes")
    counts = np.bincount(ids, minlength=coreset.classes)
    wanted = np.zeros_like(counts)
    wanted[np.unique(data.labels)] = rows
    wrong = np.flatnonzero(counts != wanted)
    if len(wrong):
        first = wrong[0]
        others = f", and other numbers for {len(wrong) - 1:,} more classes" if len(wrong) > 1 else ""
        raise ValueError(
            f"{name} returned {counts[first]:,} rows of class {first} instead of {wanted[first]:,}{others}; "
            "a method that returns others says so in rows_per_class"
        )


def _predict(attempt: _Attempt, stage: PredictStage) -> None:
    coreset = attempt.coreset(stage.coresets)
    inputs = attempt.role_inputs(stage.transform, stage.prerequisites)
    inference: Inference = attempt.build(stage.inference)
    network: Network = attempt.build(stage.network)
    predictive, context, shared = _fitted(attempt, stage, inference, coreset, network, inputs)
    context.close()
    for split in stage.splits:
        if attempt.store.has(Address(stage.kind, stage.key, split.member)):
            continue
        dataset: Dataset = attempt.build(split.dataset)
        attempt.check(dataset, "train" if split.split == "validation" else split.split, split.fingerprint)
        loaded = evaluated_split(
            dataset, attempt.task.data, split.split, coreset.classes, examples=split.examples, shape=split.shape
        )
        begin = time.monotonic()
        arrays = predict_split(predictive, loaded.images, loaded.labels, inputs.transform, inference.batch)
        seconds = round(time.monotonic() - begin, 3)
        meta = {"predict_seconds": seconds, **shared.spent(context)}
        attempt.commit(split.member, arrays, context, meta, stage.only(split))


@dataclass(frozen=True)
class _Shared:
    """What fits that were made together have cost each of them, beside what its own stage has spent.

    `networks` is how many there were, 1 for a fit of its own. The stage that made them all has spent the time of the
    others too, which its `seconds` and `cpu_seconds` take off.
    """

    networks: int = 1
    seconds: float = 0.0
    cpu_seconds: float = 0.0

    def spent(self, context: StageContext) -> dict[str, Any]:
        """Return the costs of a result, or nothing where the context tells them itself."""
        if self.networks == 1:
            return {}
        return {
            "together": self.networks,
            "seconds": round(context.elapsed + self.seconds, 3),
            "cpu_seconds": round(context.cpu_seconds + self.cpu_seconds, 3),
        }


def _fitted(
    attempt: _Attempt,
    stage: PredictStage,
    inference: Inference,
    coreset: Coreset,
    network: Network,
    inputs: Inputs,
) -> tuple[Predictive, StageContext, _Shared]:
    """Return the fit of a stage: the stored one, or a new one, which is stored unless another process was first."""
    if attempt.store.has(fit_of(stage)):
        return _restored(attempt, stage, inference, coreset, network, inputs)
    seed = derive("evaluate", stage.seed)
    others = joined(attempt.scratch, companions(attempt.task, attempt.store.has))
    context = attempt.context(seed, stage.precision)
    if others:
        try:
            made = _fitted_together(attempt, stage, others, inference, coreset, network, inputs, context)
        except Exception as error:
            # One of them must not cost the others their results, and more memory than there is must cost none.
            attempt.alone(error, 1 + len(others))
            release(error)
        else:
            if made is not None:
                return made
            context.close()
            return _restored(attempt, stage, inference, coreset, network, inputs)
        part(attempt.scratch)
        with contextlib.suppress(Exception):
            context.close()
        if context.stopping:
            raise Stopped
        context = attempt.context(seed, stage.precision)
    predictive = inference.fit(coreset, network, inputs, context)
    arrays = predictive.arrays()
    if arrays is not None and not attempt.commit(FIT, arrays, context, stage=replace(stage, splits=())):
        context.close()
        return _restored(attempt, stage, inference, coreset, network, inputs)
    return predictive, context, _Shared()


def _restored(
    attempt: _Attempt, stage: PredictStage, inference: Inference, coreset: Coreset, network: Network, inputs: Inputs
) -> tuple[Predictive, StageContext, _Shared]:
    """Return the stored fit of a stage."""
    # What restores by fitting again must not go on from checkpoints that hold other networks.
    joined(attempt.scratch, [])
    context = attempt.context(derive("evaluate", stage.seed), stage.precision)
    artefact = attempt.store.read(fit_of(stage))
    shared = _Shared(*(artefact.meta.get(name, 0) for name in ("together", "seconds", "cpu_seconds")))
    predictive = inference.restore(dict(artefact.arrays), coreset, network, inputs, context)
    return predictive, context, shared if shared.networks > 1 else _Shared()


def _fitted_together(
    attempt: _Attempt,
    stage: PredictStage,
    others: Sequence[Companion],
    inference: Inference,
    coreset: Coreset,
    network: Network,
    inputs: Inputs,
    context: StageContext,
) -> tuple[Predictive, StageContext, _Shared] | None:
    """Return the fit of a stage, made and stored together with those of others, each under its own key.

    None if another process was first to store the fit of this stage.
    """
    seeds = [derive("evaluate", one.seed) for one in (stage, *(other.stage for other in others))]
    predictives = list(inference.fit_together(coreset, network, inputs, context, seeds))
    if len(predictives) != len(seeds):
        raise ValueError(f"{inference.name}.fit_together returned {len(predictives)} of {len(seeds)} predictives")
    synchronise()
    count, seconds, cpu = len(seeds), context.elapsed, context.cpu_seconds
    shared = _Shared(count, seconds / count - seconds, cpu / count - cpu)
    costs = shared.spent(context)
    first = True
    # Its own comes last: once that is there, no later attempt at this stage makes any other.
    for other, predictive in reversed(list(zip((None, *others), predictives, strict=True))):
        arrays = predictive.arrays()
        if arrays is not None:
            one = stage if other is None else other.stage
            label = {} if other is None else {"label": other.label}
            won = attempt.commit(FIT, arrays, context, costs | label, replace(one, splits=()), curves=other is None)
            first = won or other is not None
    return (predictives[0], context, shared) if first else None


def _score(attempt: _Attempt, stage: ScoreStage) -> None:
    evaluator: Evaluator = attempt.build(stage.evaluator)
    base = attempt.role_inputs(stage.transform, stage.prerequisites)
    predictions = attempt.predictions(stage.predictions)
    inputs = EvaluatorInputs(
        base.transform,
        base.prerequisites,
        reference=attempt.predictions(stage.reference),
        coreset=attempt.coreset(stage.coresets) if stage.coresets else None,
        tasks=tuple(LearnedTask(task.classes, attempt.predictions(task.predictions)) for task in stage.tasks),
    )
    # The process has made other scores before: what they drew must not matter.
    seed_globals(derive("score", 0))
    begin = time.monotonic()
    scores = evaluator.score(predictions, inputs)
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
    attempt.commit(FINAL, {}, None, meta)
