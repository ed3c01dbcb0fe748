"""Conformance tests without a test file: the class for a kind of plugin, and a runner of its tests."""

from __future__ import annotations

import inspect
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from unittest import SkipTest

from bpcbench.testing.datasets import DatasetConformance
from bpcbench.testing.engines import EngineConformance
from bpcbench.testing.evaluators import EvaluatorConformance
from bpcbench.testing.inferences import InferenceConformance
from bpcbench.testing.methods import MethodConformance
from bpcbench.testing.networks import NetworkConformance
from bpcbench.testing.plugins import PluginConformance
from bpcbench.testing.preprocessings import PreprocessingConformance
from bpcbench.testing.prerequisites import PrerequisiteConformance

CONFORMANCE: Mapping[str, type[PluginConformance]] = {
    "dataset": DatasetConformance,
    "preprocessing": PreprocessingConformance,
    "prerequisite": PrerequisiteConformance,
    "method": MethodConformance,
    "inference": InferenceConformance,
    "network": NetworkConformance,
    "evaluator": EvaluatorConformance,
    "engine": EngineConformance,
}
"""The conformance tests of every kind of plugin."""


@dataclass(frozen=True)
class Outcome:
    """How one test ended; `message` says what is wrong and what to do, or why it was skipped."""

    name: str
    status: Literal["ok", "failed", "skipped"]
    seconds: float
    message: str = ""
    subject: str = ""


def check(tests: type[PluginConformance], starting: Callable[[str], None] | None = None) -> Iterator[Outcome]:
    """Run the tests of a conformance class with its plugin, one by one; `starting` is told the name of each before."""
    names = [name for cls in reversed(tests.__mro__) for name in vars(cls) if name.startswith("test_")]
    for name in dict.fromkeys(names):
        if starting is not None:
            starting(_title(name))
        yield _outcome(tests, name)


def _title(name: str) -> str:
    return name.removeprefix("test_").replace("_", " ")


def _outcome(tests: type[PluginConformance], name: str) -> Outcome:
    test = getattr(tests(), name)
    title, subject = _title(name), inspect.getdoc(test) or ""
    began = time.monotonic()

    def ended(status: Literal["ok", "failed", "skipped"], message: str = "") -> Outcome:
        return Outcome(title, status, time.monotonic() - began, message, subject.partition("\n")[0])

    with tempfile.TemporaryDirectory() as folder:
        try:
            test(**({"tmp_path": Path(folder)} if "tmp_path" in inspect.signature(test).parameters else {}))
        except SkipTest as reason:
            return ended("skipped", str(reason))
        except AssertionError as error:
            return ended("failed", str(error).strip() or _where(error))
        except Exception as error:
            return ended("failed", f"{type(error).__name__}: {error} ({_where(error)})")
    return ended("ok")


def _where(error: BaseException) -> str:
    frames: list[Any] = traceback.extract_tb(error.__traceback__)
    ours = str(Path(__file__).parent)
    theirs = [
        frame
        for frame in frames
        if not frame.filename.startswith(ours) and "site-packages/torch/" not in frame.filename
    ]
    frame = (theirs or frames)[-1]
    return f"{frame.filename}:{frame.lineno}: {frame.line}"
