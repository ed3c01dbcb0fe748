"""The abstract classes a plugin author implements, and the helpers to declare options.

A plugin class is its own configuration: a frozen dataclass whose fields are the options a suite may set and whose
class variables are its identity. `name` is its name in suites; `version` is bumped by the author whenever the same
options would give other results, and is part of every key.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

from bpcbench.records import (
    Activations,
    Array,
    Arrays,
    Convention,
    Coreset,
    Data,
    Download,
    Ended,
    EvaluatorInputs,
    Facts,
    Inputs,
    Metric,
    Native,
    Need,
    Offer,
    Predicted,
    Predictions,
    Ref,
    Reference,
    Requeued,
    Resources,
    RunInfo,
    Scores,
    Split,
    SplitRef,
    Started,
    Task,
    Transform,
)

_UNSET: Any = object()


def option(default: Any, help: str = "", *, key: bool = True, absent: Any = _UNSET) -> Any:  # noqa: A002
    """Declare an option: a dataclass field with a help line.

    `key=False` marks an option that cannot change the plugin's result: one for speed, or one that only configures a
    method's native inference. It stays out of keys. `absent` is the value that means "as before this option existed":
    with that value the option stays out of keys, so that old results remain valid.
    """
    metadata: dict[str, Any] = {"help": help, "key": key}
    if absent is not _UNSET:
        metadata["absent"] = absent
    if isinstance(default, list | dict | set):
        return dataclasses.field(default_factory=lambda: type(default)(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def refers(kind: str, plugin: str | None, help: str = "", **options: Any) -> Any:  # noqa: A002
    """Declare an option that names another plugin of `kind` (`network`, `inference`, `prerequisite`, `dataset`).

    A suite sets it to a name or to `{plugin: NAME, OPTION: value}`; the harness hands the plugin a built instance.
    """
    default = None if plugin is None else Ref(plugin, options)
    return dataclasses.field(default=default, metadata={"help": help, "key": True, "refers": kind})


class Context(Protocol):
    """What a running plugin may use. The harness owns the loop, the author owns the control flow."""

    @property
    def seed(self) -> int:
        """The seed of this stage, equal for all methods; global generators are already seeded with it."""

    @property
    def device(self) -> str:
        """Where to compute: `cpu`, `cuda`, ..."""

    @property
    def precision(self) -> str:
        """The suite's precision: `float32`, or what a plugin documents (`bf16`)."""

    @property
    def scratch(self) -> Path:
        """A private folder for temporary files; it is removed once the stage is committed."""

    def steps(
        self,
        total: int,
        *,
        state: Mapping[str, Any] | None = None,
        snapshot: Callable[[], Coreset] | None = None,
        what: str = "",
    ) -> Iterator[int]:
        """Yield the remaining steps of 0 ... total-1, with progress, checkpoints and exact resume.

        `state` names every object that changes from step to step: anything with `state_dict`/`load_state_dict`,
        torch or NumPy generators, tensors and arrays (restored in place), dicts and lists of plain values. Global
        random generators are kept without being named. Tensors that require a gradient are named one by one, not in
        lists. Loops may follow each other but not nest. `snapshot` returns the coreset as it stands; it is called on
        a 1-2-5 grid of steps, counted over all loops that have one, and kept as a member of the result.
        """

    def log(self, **metrics: Any) -> None:
        """Record scalars of the current step (floats or 0-d arrays; a device is not synchronised).

        The first value that is NaN or infinite ends the stage with an error that names it and the step.
        """


@dataclasses.dataclass(frozen=True)
class Plugin:
    """Base of all plugin classes. Subclasses are frozen dataclasses; their fields are the options."""

    name: ClassVar[str]
    version: ClassVar[int] = 1
    preload: ClassVar[tuple[str, ...]] = ()
    """Modules to import before worker processes are forked, e.g. ("torch",)."""


class Dataset(Plugin, abc.ABC):
    """Real data: cheap facts and fingerprints for planning, images on demand. It never downloads by itself."""

    licence: ClassVar[str] = "unknown"
    downloads: ClassVar[tuple[Download, ...]] = ()
    """What `bpcbench data get` fetches; none where the licence forbids it or there is no public address."""

    @abc.abstractmethod
    def facts(self, root: Path) -> Facts:
        """Return shape, classes and sizes; raise MissingData, naming the files to place, if they are absent."""

    @abc.abstractmethod
    def fingerprint(self, root: Path, split: str) -> str:
        """Return a string that changes whenever the content of the split changes."""

    @abc.abstractmethod
    def load(self, root: Path, split: str) -> Split:
        """Return the images and labels of a split named in `facts().sizes`."""

    def declared(self) -> Facts | None:
        """Return the facts of the official data, known without any file, for plans where they are absent; or None."""
        return None

    def differs(self, root: Path) -> str:
        """Return how the files differ from the official ones, if `facts` says that they are not official."""
        return ""

    def places(self, root: Path) -> Sequence[Path]:
        """Return the files and folders, present or not, that the data set is read from, for `bpcbench data list`."""
        return ()


class Prerequisite(Plugin, abc.ABC):
    """Something computed once from training data and shared by all users, such as expert trajectories."""

    resources: ClassVar[Resources] = Resources()

    def prerequisites(self, facts: Facts) -> Mapping[str, Need]:
        """Return what this prerequisite itself needs, by role."""
        return {}

    def expected_bytes(self, facts: Facts) -> int | None:
        """Return the size of one member on disk in bytes, for `bpcbench plan`, or None if unknown."""
        return None

    def operations(self, facts: Facts) -> float | None:
        """Return the floating-point operations of one member, for plans, or None if unknown."""
        return None

    @abc.abstractmethod
    def make(self, data: Data, inputs: Inputs, ctx: Context, member: str) -> Arrays:
        """Compute one member. Members may be computed in parallel, each seeded by its name."""


class Preprocessing(Plugin, abc.ABC):
    """Maps raw images to the space that networks see, and back. It is fitted on training data only."""

    resources: ClassVar[Resources] = Resources()

    def expected_bytes(self, facts: Facts) -> int | None:
        """Return the size of the fitted arrays on disk in bytes, for `bpcbench plan`, or None if unknown."""
        return None

    def operations(self, facts: Facts) -> float | None:
        """Return the floating-point operations of fitting, for plans, or None if unknown."""
        return None

    @abc.abstractmethod
    def fit(self, data: Data, ctx: Context) -> Arrays:
        """Return the fitted arrays: a function of the options and the training data alone."""

    default: ClassVar[bool] = False
    """Whether suites that name none use it by default. A subclass does not inherit it."""

    @abc.abstractmethod
    def apply(self, images: Array, arrays: Arrays) -> Array:
        """Map uint8 NCHW images to float32 network space."""

    @abc.abstractmethod
    def invert(self, images: Array, arrays: Arrays) -> Array:
        """Map float32 network space back to pixels in [0, 1], not clipped."""

    def apply_float(self, pixels: Array, arrays: Arrays) -> Array:
        """Map float NCHW pixels, 0 black and 1 white but not clipped, to float32 network space; inverse of `invert`.

        Imported coresets need it. It is optional: the default raises ValueError.
        """
        raise ValueError(
            f"the preprocessing {self.name} maps uint8 images only (it has no apply_float), so images from elsewhere "
            "cannot be brought into its space"
        )


class Method(Plugin, abc.ABC):
    """Distils training data into a coreset."""

    resources: ClassVar[Resources] = Resources(gpus=1.0)
    uses_ipc: ClassVar[bool] = True
    """False when the result does not depend on the images per class (the whole data set): it is then computed once."""
    uses_seed: ClassVar[bool] = True
    """False when the result is deterministic: it is then computed once for all distillation seeds."""
    ranked: ClassVar[bool] = True
    """False for a reference that does not compete, such as training on all data: tables show it without ranking it."""

    def convention(self) -> Convention:
        """Return how the coreset's targets are to be read."""
        return "class"

    def prerequisites(self, facts: Facts, ipc: int) -> Mapping[str, Need]:
        """Return the prerequisites by role; the preprocessing of the suite is always included."""
        return {}

    def native(self, facts: Facts, ipc: int) -> Native | None:
        """Return the inference and the network that `native` means in a suite, or None if there is none."""
        return None

    def skip(self, facts: Facts, ipc: int) -> str | None:
        """Return why this cell is not possible, or None."""
        return None

    def rows_per_class(self, ipc: int) -> int | None:
        """Return how many rows of every class of the training data a coreset has: `ipc`, unless stated otherwise.

        A coreset with other numbers is refused. None means that they may be any; every table then says so.
        """
        return ipc

    def notes(self) -> tuple[str, ...]:
        """Return the notes that every table with results of this method must carry, such as `reconstruction`."""
        return ()

    def operations(self, facts: Facts, ipc: int) -> float | None:
        """Return the floating-point operations of distilling one coreset, for plans, or None if unknown."""
        return None

    def peak_bytes(self, facts: Facts, ipc: int) -> float | None:
        """Return the most memory that distilling takes on its device, in bytes, or None if unknown.

        Cells that need more than the device has are skipped. Counted are tensors, not the framework itself.
        """
        return None

    @abc.abstractmethod
    def distil(self, data: Data, ipc: int, inputs: Inputs, ctx: Context) -> Coreset:
        """Return the coreset. It must be a function of the options, the data, ipc, `inputs` and `ctx.seed` alone.

        Not every class needs to have training data: in class-incremental learning only those of a step do. The coreset
        is then of the classes that are there (`data.present`), its targets are over all `data.facts.classes`.
        """


class Network(Plugin, abc.ABC):
    """An architecture. What `build` returns belongs to a framework, which an inference may ask for."""

    framework: ClassVar[str] = "torch"

    def skip(self, facts: Facts) -> str | None:
        """Return why the network cannot take such images, or None."""
        return None

    def parameters(self, shape: tuple[int, int, int], classes: int) -> int | None:
        """Return the number of parameters, for plans, or None if unknown without building the network."""
        return None

    def operations(self, shape: tuple[int, int, int], classes: int) -> float | None:
        """Return the floating-point operations of one image's forward pass, for plans, or None if unknown."""
        return None

    def activations(self, shape: tuple[int, int, int], classes: int) -> Activations | None:
        """Return how many numbers the network holds per image, for predictions of memory, or None if unknown."""
        return None

    @abc.abstractmethod
    def build(self, shape: tuple[int, int, int], classes: int, seed: int) -> Any:
        """Return a freshly initialised network: a function of these arguments and the options."""


class Predictive(abc.ABC):  # noqa: B024 - either of two methods must be defined
    """A fitted posterior predictive."""

    def log_probs(self, images: Array) -> Array:
        """Return float32 log-probabilities (n, k) of images in network space, or (members, n, k) if sampled.

        The rows must not depend on which other images are in the batch.
        """
        raise TypeError(f"{type(self).__name__} must define log_probs or predict")

    def predict(self, images: Array) -> Predicted:
        """Return log-probabilities and, where the inference has them, further numbers per example."""
        return Predicted(self.log_probs(images))

    def predict_pixels(self, pixels: Array, transform: Transform) -> Predicted:
        """Return `predict` of raw uint8 images, which is what a run calls.

        A predictive may prepare the images by itself, for instance on a GPU, equal to `transform.apply` up to rounding.
        """
        return self.predict(transform.apply(pixels))

    def arrays(self) -> Arrays | None:
        """Return the fit as arrays to store, or None to be refitted from its seed when needed again."""
        return None


class Inference(Plugin, abc.ABC):
    """Turns a coreset and a network into a predictive. It is never handed test labels."""

    resources: ClassVar[Resources] = Resources(gpus=1.0)
    batch: ClassVar[int] = 1000
    """The number of test images per call of the predictive."""

    def accepts(self, offer: Offer) -> str | None:
        """Return why this inference cannot handle such a cell, or None."""
        return None

    def prerequisites(self, facts: Facts) -> Mapping[str, Need]:
        """Return the prerequisites by role; the coreset's own preprocessing is always included."""
        return {}

    def operations(self, offer: Offer, images: int) -> float | None:
        """Return the floating-point operations of one fit and the prediction of `images` images, or None if unknown."""
        return None

    def peak_bytes(self, offer: Offer) -> float | None:
        """Return the most memory that a fit and its predictions take on their device, in bytes, or None if unknown.

        Cells that need more than the device has are skipped. Counted are tensors, not the framework itself. With
        `offer.seeds` above 1 the fit is that of `fit_together`; what needs too much then is fitted one by one.
        """
        return None

    @abc.abstractmethod
    def fit(self, coreset: Coreset, network: Network, inputs: Inputs, ctx: Context) -> Predictive:
        """Return the predictive: a function of the options, these arguments and `ctx.seed` alone."""

    def seeds_together(self) -> int:
        """Return how many fits that differ in their seed alone `fit_together` may be asked for at a time; 1: none.

        More than one needs an option that is part of keys and is 1 by default: a fit then has the same key whether it
        was made alone or with others, so the key must say that bits may depend on it.
        """
        return 1

    def fit_together(
        self, coreset: Coreset, network: Network, inputs: Inputs, ctx: Context, seeds: Sequence[int]
    ) -> Sequence[Predictive]:
        """Return a predictive for every seed, each equal up to rounding to what `fit` returns for it.

        The first seed is `ctx.seed`, and the loops of `ctx` are those of all fits. All random numbers must come from
        `seeds`. The harness stores the `arrays()` of each, from which the stages of the other seeds restore theirs. If
        anything is raised, every seed is fitted alone.
        """
        raise NotImplementedError(f"{self.name} fits one seed at a time")

    def restore(self, arrays: Arrays, coreset: Coreset, network: Network, inputs: Inputs, ctx: Context) -> Predictive:
        """Return the predictive from what its `arrays()` returned."""
        return self.fit(coreset, network, inputs, ctx)


class Evaluator(Plugin, abc.ABC):
    """Scores stored predictions. Metrics come from `bpcbench.metrics`, so that a number means one thing."""

    default: ClassVar[bool] = False
    """Whether suites that name none use it by default. A subclass does not inherit it."""
    uses_coreset: ClassVar[bool] = False
    """True when `score` reads `inputs.coreset`, the coreset behind the predictions."""
    uses_tasks: ClassVar[bool] = False
    """True when `score` reads `inputs.tasks`, the predictions after every step; a suite then needs the key `tasks`."""

    def splits(self, facts: Facts) -> Sequence[SplitRef]:
        """Return the splits to be predicted."""
        return (SplitRef(),)

    def prerequisites(self, facts: Facts) -> Mapping[str, Need]:
        """Return what the evaluator itself needs, by role."""
        return {}

    def notes(self, split: str) -> tuple[str, ...]:
        """Return the notes that every table of this evaluator's metrics on the evaluated `split` must carry."""
        return ()

    def reference(self, facts: Facts) -> Reference | None:
        """Return the reference whose predictions of the same splits `score` reads in `inputs.reference`, or None."""
        return None

    @abc.abstractmethod
    def score(self, predictions: Mapping[SplitRef, Predictions], inputs: EvaluatorInputs) -> Scores:
        """Return values of metrics that `metrics` declares, all or some, and figures of `bpcbench.figures`."""

    @abc.abstractmethod
    def metrics(self) -> Sequence[Metric]:
        """Return every metric that `score` may return with these options, on any data set; names are lower case.

        Suites are checked against it, and tables take directions and units from it.
        """


class Pool(Protocol):
    """An engine at work for one run. All calls come from one thread.

    The runner owns the queue, timeouts, the grace period and retries. A pool starts attempts, and says when they have
    started and ended. An attempt is named by `task.attempt`.

    The pool of a detached engine may have a number `undelivered`: how many attempts it has taken but not handed on yet,
    so that they would be lost with this process. `bpcbench run --detach` waits until it is 0.
    """

    @property
    def slots(self) -> int:
        """The maximum number of concurrent attempts; more are not submitted."""

    def adopt(self) -> Iterable[Task]:
        """Return the attempts that an earlier invocation left running; `wait` reports their ends like any other's.

        It is called once, before anything is submitted. An engine that is not `detached` has none. Those that belong to
        another run that still lives must be left to it: ask `RunInfo.claim`.
        """

    def submit(self, task: Task) -> bool:
        """Start an attempt, or put it into a queue of the engine's own; False if there is no room for it now.

        It is asked again for a task with these resources when an attempt has ended.
        """

    def wait(self, seconds: float) -> Iterable[Started | Requeued | Ended]:
        """Return new events; wait up to the given number of seconds for one.

        Every attempt that was submitted or adopted ends with one `Ended`, also after `stop` and `kill`.
        """

    def stop(self, attempts: Collection[str]) -> None:
        """Ask attempts to write a checkpoint and end, with SIGTERM for example; return at once.

        The pool of an in-process engine is called from a signal handler in the middle of its `wait`.
        """

    def kill(self, attempts: Collection[str]) -> None:
        """End attempts that did not stop within the grace period, or that must not write; return at once."""

    def close(self) -> None:
        """Release everything; what still runs is killed, unless the engine is `detached`. It is the last call."""


@dataclasses.dataclass(frozen=True)
class Engine(Plugin, abc.ABC):
    """Runs attempts at stages somewhere. Local processes and in-process are built in; others are plugins.

    Attempts anywhere run `python -m bpcbench.running.worker TASK.json`, where the file holds `task.to_json()`. It
    prints into the task's log, stops with a checkpoint on SIGTERM, and writes `task.outcome_file`, so that an engine
    need not know more than that the process is gone. Its exit code is 0 (done), 1 (failed), 75 (another process works
    on the stage) or 143 (stopped). With `--bound` it ends when its standard input is closed, so that it dies with its
    parent; with `--bound stop` it writes a checkpoint first.
    """

    in_process: ClassVar[bool] = False
    """True when `wait` executes stages in this process, for debuggers; scores then run in the same pool."""
    detached: ClassVar[bool] = False
    """True when attempts survive the death of this process; `Pool.adopt` returns them next time."""
    retries: ClassVar[int] = 2
    """How many more attempts a stage gets whose worker was lost. An exception in a stage is never retried."""

    jobs: int | None = option(None, "attempts at a time; none: as many as the engine has room for", key=False)

    @abc.abstractmethod
    def open(self, run: RunInfo) -> Pool:
        """Return the pool that executes the attempts of a run."""
