"""The Python interface: a suite, what may be done with it, and where its results lie.

    done = bpcbench.run("quickstart", {"ipc": [1]}, out="results")
    print(done.table())
    print(done.against("random"))

`run`, `results` and `load_coreset` are shortcuts, and `evaluate` scores a coreset without a suite. Planning and running
need plugins and data; `rows`, `frame` and `report` are views of the store and need neither.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bpcbench.streams import occupy

if TYPE_CHECKING:
    import pandas as pd

    from bpcbench.api import Engine
    from bpcbench.planning.cells import Snapshots
    from bpcbench.planning.plan import Plan
    from bpcbench.planning.planner import DeviceMemory
    from bpcbench.records import Coreset, StoredCoreset, Transform
    from bpcbench.registry.discovery import Registry
    from bpcbench.reporting import Format, Row
    from bpcbench.reporting.tuned import Tuned
    from bpcbench.reporting.view import View
    from bpcbench.result import RunResult
    from bpcbench.running.execution import Prepared
    from bpcbench.running.run import Result
    from bpcbench.store.manifest import Purpose
    from bpcbench.store.store import Store
    from bpcbench.suite.document import Document
    from bpcbench.suite.model import Suite

DEFAULT_OUT = "results"


class Session:
    """A suite with overrides, and a store.

    `suite` is the name of a shipped suite, `PLUGIN:NAME`, a file, or a mapping with what a file would say; `overrides`
    are `key=value` texts, or a mapping whose values replace those of the suite (`{"seeds.distil": 3}`); `out` is the
    store. `data` is where data sets lie; `unverified` admits data that are not the official ones; `skip_missing`
    leaves out data sets that are absent; `recompute` names plugins whose results are made again; `max_cells` is the
    largest grid that is planned. `jobs` is the number of stages at a time; `inline` runs everything in this process;
    `debug` also opens pdb at the first error; `track` logs to MLflow; `quiet` prints failures only; `detach` submits
    what is ready and leaves it to the cluster;
    `memory` is what the device has, in GB, by which cells are skipped (default: asked of the device that stages use on
    this machine). `report_to` takes every line that would go to stderr.
    """

    def __init__(
        self,
        suite: str | Path | Mapping[str, Any],
        overrides: Sequence[str] | Mapping[str, Any] = (),
        *,
        out: str | Path = DEFAULT_OUT,
        data: str | None = None,
        device: str | None = None,
        unverified: bool = False,
        skip_missing: bool = False,
        recompute: Iterable[str] = (),
        max_cells: int | None = None,
        memory: float | None = None,
        jobs: int | None = None,
        inline: bool = False,
        debug: bool = False,
        track: bool = True,
        quiet: bool = False,
        detach: bool = False,
        command: str = "",
        report_to: Callable[[str], None] | None = None,
    ) -> None:
        occupy()
        self._given = suite if isinstance(suite, Mapping) else None
        self.suite = str(suite.get("name") or "suite") if isinstance(suite, Mapping) else str(suite)
        self.overrides = _texts(overrides)
        self.out = Path(out).absolute()
        self.data = data
        self.device = device
        self.unverified = unverified
        self.skip_missing = skip_missing
        self.recompute = tuple(recompute)
        self.max_cells = max_cells
        self.memory = memory
        self.jobs = jobs
        self.inline = inline
        self.debug = debug
        self.track = track
        self.quiet = quiet
        self.detach = detach
        self.command = command
        self.report_to = report_to

    def __repr__(self) -> str:
        return f"Session({' '.join((self.suite, *self.overrides))!r}, out={str(self.out)!r})"

    @property
    def store(self) -> Store | None:
        """The store as it is on disk now, or None if there is none yet."""
        from bpcbench.store.store import Store

        return Store.open(self.out, create=False) if (self.out / "store.json").exists() else None

    def plan(self) -> Plan:
        """Return the cells of the suite, and which stages are cached or to do. Nothing is written."""
        return self.prepare().plan

    def prepare(self, *, declare: bool = False) -> Prepared:
        """Read, validate and plan the suite. Nothing is written; everything that is wrong is raised at once.

        With `declare`, what data sets declare stands in for data that are not there; such a plan cannot be run.
        """
        registry = _registry()
        return self._prepared(registry, *self._load(registry), declare=declare)

    def engine(self) -> Engine | None:
        """Return the engine that the suite names; data sets are not looked for."""
        return self._load(_registry())[0].engine

    def run(self) -> RunResult:
        """Run the suite: what is cached is not run again, what fails fails alone. Return its results."""
        from bpcbench.result import RunResult

        prepared = self.prepare()
        return RunResult(self.execute(prepared), prepared.plan, self.opened(prepared))

    def execute(self, prepared: Prepared, *, track: bool | None = None) -> Result:
        """Run what a prepared plan says is to do; raise UserError if it is a plan without data."""
        from bpcbench.errors import UserError

        if prepared.plan.declared:
            raise UserError("a plan without data cannot be run: " + "; ".join(prepared.plan.declared.values()))
        from bpcbench.running.execution import execute

        return execute(
            prepared,
            jobs=self.jobs,
            detach=self.detach,
            inline=self.inline,
            debug=self.debug,
            track=self.track if track is None else track,
            quiet=self.quiet,
            report=self.report_to,
        )

    def tune(self) -> tuple[Tuned, Result]:
        """Run the trials that the suite declares, on the validation split; return their outcomes and the result.

        Trials are stages like any others: they are cached and shared. `Tuned.preset` writes the suite to extend.
        """
        from bpcbench.errors import UserError, unknown
        from bpcbench.reporting.tuned import choose
        from bpcbench.suite import space
        from bpcbench.suite.validation import metric_names, validate

        registry = _registry()
        document, _, name = self._read(registry)
        declared = space.declared(document)
        validate(registry, document)  # a mistake of the suite is reported once, not once per trial
        trials = validate(registry, space.trial_document(document, declared, name))
        known = metric_names(trials.evaluators.values())
        if known and declared.objective not in known:
            raise UserError("tune.objective: " + unknown("metric", declared.objective, known))
        prepared = self._prepared(registry, trials, self._digest(document, name), purpose="tune")
        result = self.execute(prepared)
        return choose(self.opened(prepared).rows(), declared.trials, declared.objective), result

    def anytime(self, steps: Iterable[int] | None = None) -> tuple[View | None, Result]:
        """Run the suite, then evaluate the snapshots that its coresets kept, all or those after `steps`.

        Return a view of the snapshots, None if the run failed. Snapshots do not become runs of MLflow.
        """
        from bpcbench.reporting.anytime import kept_snapshots

        registry = _registry()
        suite, request = self._load(registry)
        result = self.execute(self._prepared(registry, suite, request))
        store = self.store
        if result.exit_code or store is None:
            return None, result
        snapshots = kept_snapshots(store, None if steps is None else set(steps))
        prepared = self._prepared(registry, suite, request, snapshots=snapshots, purpose="anytime")
        result = self.execute(prepared, track=False)
        return self.opened(prepared), result

    def view(self) -> View:
        """Return the results of the suite that the store has; raise UserError, naming what there is, if none."""
        from bpcbench.errors import UserError
        from bpcbench.reporting.view import View
        from bpcbench.store.invocations import find_invocation

        store = self.store
        if store is None:
            raise UserError(f"{self.out} is not a store; run a suite first, or name another with --out")
        try:
            document, _, name = self._read_alone()
            request: str | None = self._digest(document, name)
        except UserError:
            # The file need not be here: the store remembers what was run.
            name, request = self.suite, None
        file = self._given is None and (self.suite.endswith((".yaml", ".yml")) or "/" in self.suite)
        found = find_invocation(store, self.suite, self.overrides, name=name, request=request)
        notes = []
        if request is not None and request not in found.requests and file:
            notes.append(f"{self.suite} differs from what was run; shown is {found.title}")
        elif not self.overrides and found.overrides:
            notes.append(f"the latest invocation is shown: {found.title}")
        return View(store, found, tuple(notes))

    def rows(self) -> list[Row]:
        """Return every number that the store has for the suite."""
        return self.view().rows()

    def frame(self) -> pd.DataFrame:
        """Return every number that the store has for the suite, one line per cell and metric."""
        from bpcbench.reporting import to_frame

        return to_frame(self.rows())

    def report(self, format: Format = "text", *, metrics: Sequence[str] = (), published: bool = False) -> str:  # noqa: A002
        """Return the table of what the store has, as text, md, latex, csv or json."""
        from bpcbench.reporting import render

        return render(self.view().table(metrics, published=published), format)

    def _load(self, registry: Registry) -> tuple[Suite, str]:
        from bpcbench.suite.validation import validate

        document, path, name = self._read(registry)
        return validate(registry, document, path), self._digest(document, name)

    def _read(self, registry: Registry) -> tuple[Document, Path, str]:
        """Return the suite with everything it extends and the overrides, its file and its name."""
        from bpcbench.suite.files import read

        suite = self.suite if self._given is None else self._given
        document, path = read(registry, suite, [*self.overrides, *([f"device={self.device}"] * bool(self.device))])
        return document, path, str(document.values.get("name") or path.stem)

    def _read_alone(self) -> tuple[Document, Path, str]:
        """Read the suite as `_read` does; no plugin is imported unless the suite is a plugin's, or extends one."""
        from bpcbench.errors import UserError
        from bpcbench.registry.discovery import no_plugins

        try:
            return self._read(no_plugins())
        except UserError:
            return self._read(_registry())

    def _digest(self, document: Document, name: str) -> str:
        from bpcbench.planning.manifest import request_digest

        return request_digest(document.values, name)

    def _prepared(
        self,
        registry: Registry,
        suite: Suite,
        request: str,
        *,
        snapshots: Snapshots | None = None,
        purpose: Purpose = "run",
        declare: bool = False,
    ) -> Prepared:
        from bpcbench.data.root import data_root
        from bpcbench.errors import UserError, unknown
        from bpcbench.planning.cells import MAX_CELLS, check_size
        from bpcbench.planning.plan import make
        from bpcbench.registry.discovery import KINDS
        from bpcbench.running.execution import Prepared

        check_size(suite, MAX_CELLS if self.max_cells is None else self.max_cells)
        names = {name for kind in KINDS for name in registry.names(kind)}
        for name in self.recompute:
            if name not in names:
                raise UserError("--recompute: " + unknown("plugin", name, names))
        store, data = self.store, data_root(self.data)
        plan = make(
            registry,
            suite,
            store,
            data,
            skip_missing=self.skip_missing,
            unverified=self.unverified,
            recompute=self.recompute if purpose == "run" else (),
            snapshots=snapshots,
            declare=declare,
            memory=self._device_memory(suite),
            exhausted=_exhausted(store, suite.name),
        )
        notes = (*suite.notes, *plan.notes, *(store.messages if store else ()))
        return Prepared(
            registry, plan, self.out, data, self.suite, self.overrides, request, purpose, self._command(purpose), notes
        )

    def _device_memory(self, suite: Suite) -> DeviceMemory | None:
        """Return what was given or, for plans of stages that would run on this machine, what its device has."""
        from bpcbench.planning.planner import DeviceMemory
        from bpcbench.running.device_memory import device_memory
        from bpcbench.running.engines import Inline, Local

        if self.memory is not None:
            return DeviceMemory(self.memory * 1e9, "the device (--memory)", given=True)
        engine = suite.engine or Local()
        if not isinstance(engine, Local | Inline):
            return None
        found = device_memory(suite.device, engine.gpus if isinstance(engine, Local) else None)
        return None if found is None else DeviceMemory(*found)

    def _command(self, purpose: Purpose) -> str:
        import shlex

        if self._given is not None and not self.command:
            overrides = f", {list(self.overrides)!r}" if self.overrides else ""
            return f"bpcbench.run({dict(self._given)!r}{overrides}, out={str(self.out)!r})"
        return self.command or shlex.join(["bpcbench", purpose, self.suite, *self.overrides])

    def opened(self, prepared: Prepared) -> View:
        """Return a view of what was just run."""
        from bpcbench.errors import Unfinished
        from bpcbench.reporting.view import View
        from bpcbench.store.invocations import find_invocation

        store = self.store
        if store is None:
            raise Unfinished(f"the store {self.out} was removed while it was used")
        name, purposes = prepared.plan.suite.name, (prepared.purpose,)
        return View(store, find_invocation(store, name, request=prepared.request, exact=True, purposes=purposes))


def run(
    suite: str | Path | Mapping[str, Any], overrides: Sequence[str] | Mapping[str, Any] = (), **options: Any
) -> RunResult:
    """Run a suite and return its results; all arguments are those of `Session`."""
    return Session(suite, overrides, **options).run()


def results(
    suite: str | Path | Mapping[str, Any],
    overrides: Sequence[str] | Mapping[str, Any] = (),
    *,
    out: str | Path = DEFAULT_OUT,
) -> pd.DataFrame:
    """Return every number that the store has for a suite, one line per cell and metric."""
    return Session(suite, overrides, out=out).frame()


def load_coreset(path: str | Path) -> Coreset:
    """Return the coreset in a folder: an exported one, or a member of a store. Every checksum is verified."""
    from bpcbench.coresets.reading import load_coreset as load

    return load(path)


def load_transform(path: str | Path) -> Transform:
    """Return the fitted preprocessing in whose space the images of the coreset in a folder are."""
    from bpcbench.coresets.reading import load_transform as load

    return load(path)


def describe_coreset(path: str | Path) -> StoredCoreset:
    """Return what is known of the coreset in a folder without reading its images: digest, shape, classes, counts."""
    from bpcbench.coresets.reading import describe_coreset as describe

    return describe(path)


def evaluate(
    coreset: Coreset | str | Path,
    data: str | Mapping[str, Any],
    inference: str | Mapping[str, Any] = "network",
    network: str | Mapping[str, Any] = "conv-bn",
    *,
    preprocessing: str | Mapping[str, Any] | None = None,
    pixels: bool = False,
    split: str = "test",
    examples: int | None = None,
    seed: int = 0,
    data_root: str | None = None,
    device: str | None = None,
) -> dict[str, float]:
    """Return the metrics that a coreset reaches under an inference, without a suite; nothing is stored.

    A coreset is given as a record or as the folder of an exported or imported one. Plugins are given as in a suite: by
    name, or as a mapping with `plugin` and options. Images of a record are in the space of `preprocessing` (default:
    the one a suite has), or with `pixels` from 0, black, to 1, white; those of a folder are brought into that space,
    which by default is their own. `examples` scores a fixed part of the split.
    """
    from bpcbench.running.evaluation import evaluate as run

    occupy()
    return run(
        coreset,
        data,
        inference,
        network,
        preprocessing=preprocessing,
        pixels=pixels,
        split=split,
        examples=examples,
        seed=seed,
        root=data_root,
        device=device,
    )


def _texts(overrides: Sequence[str] | Mapping[str, Any]) -> tuple[str, ...]:
    if isinstance(overrides, Mapping):
        from bpcbench.suite.document import assignments

        return tuple(assignments(overrides))
    return tuple(overrides)


def _exhausted(store: Store | None, name: str) -> dict[str, str]:
    """Return the messages of stages that ran out of memory when a suite of that name was last run."""
    from bpcbench.store.invocations import invocations
    from bpcbench.store.runs import last_failures

    found: dict[str, str] = {}
    # The latest invocation comes first, and has the last word.
    for one in reversed([] if store is None else invocations(store)):
        if one.name == name:
            failed = last_failures(one.runs).values()
            found |= {failure.stage: failure.message for failure in failed if failure.out_of_memory}
    return found


def _registry() -> Registry:
    from bpcbench.registry.discovery import registry

    return registry()
