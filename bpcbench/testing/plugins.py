"""What every kind of plugin must keep: a light import, options that survive YAML, results that depend on the seed."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar
from unittest import SkipTest

import numpy as np
import yaml

from bpcbench.api import Plugin
from bpcbench.errors import Stopped, UserError
from bpcbench.records import Array
from bpcbench.registry.discovery import Registered, Registry, kind_of, registry
from bpcbench.registry.options import as_ref, build, describe, ready
from bpcbench.running.seeding import seed_globals
from bpcbench.testing.toys import CountingContext, InterruptedContext, context

HEAVY = ("torch", "torchvision", "jax", "flax", "tensorflow", "keras", "mlflow", "sklearn", "matplotlib", "pandas")
"""What must not be imported with a plugin, because `bpcbench list` and `bpcbench --help` import every plugin."""
FORGOTTEN = (
    "stopped after step {after} of {total} and resumed, it ends with other bits. Name everything that changes from "
    "step to step in `state` of ctx.steps: arrays, tensors, modules, optimisers, generators. What only depends on the "
    "step may instead be derived from ctx.seed and the step"
)
_IMPORTS = """
import importlib, json, sys
import bpcbench
try:
    importlib.import_module(sys.argv[1])
except ModuleNotFoundError as error:
    if error.name != sys.argv[1].partition(".")[0]:
        raise
    print("null")
else:
    print(json.dumps(sorted(set(sys.argv[2:]) & set(sys.modules))))
"""


class PluginConformance:
    """The part of the contract that all kinds of plugins share."""

    plugin: ClassVar[Plugin]

    def ready(self) -> Any:
        """Return the plugin as the harness would hand it to a stage: options that refer to plugins are built."""
        return ready(registry(), self.plugin)

    def test_import_is_light(self) -> None:
        """Importing the plugin imports no framework: `bpcbench list` stays fast."""
        module = _entry_module(type(self.plugin))
        found = imported_heavies(module)
        if found is None:
            raise SkipTest(f"no other process can import {module} by its name")
        assert not found, (
            f"importing {module} imports {', '.join(found)}: import such modules inside the functions that use them, "
            "and name what takes long in `preload`"
        )

    def test_options_survive_yaml(self) -> None:
        """Written to YAML and read again, the options are the same, types included."""
        plugin = self.ready()
        kind, cls = kind_of(plugin), type(plugin)
        known = registry()
        classes = {**known.classes, (kind, cls.name): Registered(kind, cls, "checked", "checked")}
        described = describe(plugin)
        try:
            read = yaml.safe_load(yaml.safe_dump(described))
            again = build(Registry(known.manager, known.plugins, classes, known.suites), kind, as_ref(read))
        except (UserError, yaml.YAMLError) as error:
            raise AssertionError(
                f"the options cannot be read back from YAML: {error}. A suite has numbers, texts, booleans, lists and "
                "mappings only; declare each option with the type of its value"
            ) from None
        assert describe(again) == described, (
            f"YAML changes the options from {described} to {describe(again)}: __post_init__ must accept its own result"
        )


def _entry_module(cls: type[Plugin]) -> str:
    """Return the module that discovery imports for a class: its entry point, or else the one it is defined in."""
    known = registry()
    for registered in known.classes.values():
        if registered.cls is cls:
            for plugin in known.plugins:
                if (plugin.name, plugin.distribution) == (registered.plugin, registered.distribution):
                    return plugin.module
    return cls.__module__


@functools.cache
def imported_heavies(module: str) -> tuple[str, ...] | None:
    """Return what importing a module imports of HEAVY, in a new process; None if it cannot be imported by name."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", _IMPORTS, module, *HEAVY]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise AssertionError(f"{module} cannot be imported in a new process:\n{done.stderr.strip()}")
    found = json.loads(done.stdout.splitlines()[-1])
    return None if found is None else tuple(found)


Results = Mapping[str, Array]
Run = Callable[[Any], Results]
"""A run of a stage in a context, and the arrays it gives."""


def same(first: Results, second: Results, message: str) -> None:
    """Assert that two runs gave the same bits; `message` says what to do if not."""
    assert first.keys() == second.keys(), f"{message} (arrays {sorted(first)} and {sorted(second)})"
    for name, array in first.items():
        other = second[name]
        assert array.shape == other.shape, f"{message} ({name}: shapes {array.shape} and {other.shape})"
        if not np.array_equal(array, other, equal_nan=array.dtype.kind == "f"):
            wrong = np.asarray(array != other)
            gap = np.abs(array.astype(np.float64) - other.astype(np.float64)).max()
            raise AssertionError(f"{message} ({name}: {wrong.sum()} of {wrong.size} values differ, by up to {gap:.3g})")


def differ(first: Results, second: Results) -> bool:
    """Return whether two runs gave different arrays."""
    return any(not np.array_equal(array, second[name]) for name, array in first.items())


def repeats(run: Run, folder: Path) -> Results:
    """Assert that two runs with the same seed give the same bits; return them."""
    first = run(context(folder / "a"))
    message = (
        "two runs with the same seed differ: draw every random number from ctx.seed or from the global generators, "
        "which are seeded for you, and use nothing that depends on time, on the hash of a string or on the order of a "
        "set"
    )
    same(first, run(context(folder / "b")), message)
    return first


def resumes(run: Run, folder: Path, interruptions: tuple[int, ...]) -> None:
    """Assert that a run that was interrupted ends with the same bits, also at a step chosen at random."""
    counting = CountingContext(seed=0, attempt=folder / "reference" / "attempt-0")
    seed_globals(0)
    reference, total = run(counting), counting.made
    if not total:
        raise SkipTest("it has no loop of ctx.steps, so there is nothing to resume: an interrupted stage starts over")
    drawn = int(np.random.default_rng().integers(1, total + 1))
    for after in dict.fromkeys([*(step for step in interruptions if step <= total), drawn]):
        place = folder / str(after)
        ctx = InterruptedContext(seed=0, attempt=place / "first", after=after)
        seed_globals(0)
        with contextlib.suppress(Stopped):
            run(ctx)
        same(reference, run(context(place)), FORGOTTEN.format(after=after, total=total))


def above_chance(log_probs: Array, labels: Array, classes: int) -> None:
    """Assert that predictions are right more often than guesses, by three standard errors of the latter."""
    accuracy, chance = float((log_probs.argmax(-1) == labels).mean()), 1 / classes
    least = chance + 3 * np.sqrt(chance * (1 - chance) / len(labels))
    assert accuracy > least, (
        f"an accuracy of {accuracy:.0%} on toy data that is easy to learn; guessing gives {chance:.0%}, and "
        f"{least:.0%} is asked for. With too few steps that is no surprise: give the check more"
    )


def not_asked() -> SkipTest:
    """Return the skip of a test of learning that nobody asked for."""
    return SkipTest("not asked for: set `learns = True` in the test class, or give `bpcbench check` the flag --learns")


def uses_torch(plugin: Plugin) -> bool:
    """Return whether a plugin says that it uses torch, or its module imports it."""
    names = [*plugin.preload]
    module = inspect.getmodule(type(plugin))
    with contextlib.suppress(OSError, TypeError):
        names += re.findall(r"^\s*(?:from|import) (torch)\b", inspect.getsource(module) if module else "", re.M)
    for field in dataclasses.fields(plugin):
        value = getattr(plugin, field.name)
        names += value.preload if isinstance(value, Plugin) else ()
    return any(name.partition(".")[0] == "torch" for name in names)
