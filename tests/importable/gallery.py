"""A plugin and a suite that fill every part of a page, with markup in every text that a plugin or a suite can bring."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from toys import Dots, Pick

import bpcbench
from bpcbench import Session, SplitRef, metrics, option
from bpcbench.figures import Bars, Curves, Matrix, Reliability, Series
from bpcbench.records import Publication, PublishedNumber, PublishedPattern
from bpcbench.registry.discovery import registry

BPCBENCH_API = 1
EVIL = "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=1>\u2028\"'&"
NAME = "<img src=x onerror=window.hacked=1>"
LABEL = "evil<script>\"'&"
"""Labels may have neither spaces nor any of / @ : , =."""
SUITE = f"""
name: {json.dumps(NAME)}
description: {json.dumps("described " + EVIL)}
protocol: 1
datasets:
  spots:
ipc: [1, 2, 16]
methods:
  real: {{plugin: pick}}
  fade: {{steps: 12}}
  torn:
  {json.dumps(LABEL)}: {{plugin: fade, steps: 5, rate: 0.3}}
preprocessing: scale
inferences:
  centroid:
  hot: {{plugin: centroid, heat: 4}}
networks: [line]
evaluators: [classification, shapes]
metrics: [acc, nll]
seeds: {{distil: 2, evaluate: 2}}
"""


@dataclass(frozen=True)
class Spots(Dots):
    """Two classes with names."""

    name = "spots"

    def facts(self, root: Path) -> bpcbench.Facts:
        sizes = {"train": 40, "test": 20}
        notes = ("generated", f"noted {EVIL}")
        return bpcbench.Facts(shape=(1, 4, 4), classes=2, sizes=sizes, class_names=("<i>dark", "light"), notes=notes)


@dataclass(frozen=True)
class Fade(Pick):
    """Real images that fade step by step, with snapshots."""

    name = "fade"

    def notes(self) -> tuple[str, ...]:
        return ("reconstruction",)

    def distil(self, data: Any, ipc: int, inputs: Any, ctx: Any) -> bpcbench.Coreset:
        start = super().distil(data, ipc, inputs, ctx)
        images = np.array(start.images) - np.float32(self.rate * self.steps)

        def coreset() -> bpcbench.Coreset:
            return bpcbench.Coreset(
                images=images.copy(), targets=start.targets, class_ids=start.class_ids, classes=start.classes
            )

        for _ in ctx.steps(self.steps, snapshot=coreset):
            images *= np.float32(1 - self.rate)
        return coreset()


@dataclass(frozen=True)
class Torn(Pick):
    """Fails for one image per class, and is skipped for 16."""

    name = "torn"

    def distil(self, data: Any, ipc: int, inputs: Any, ctx: Any) -> bpcbench.Coreset:
        if ipc == 1:
            raise RuntimeError(f"torn apart {EVIL}")
        return super().distil(data, ipc, inputs, ctx)


@dataclass(frozen=True)
class Shapes(bpcbench.Evaluator):
    """A figure of every kind."""

    name = "shapes"
    scale: float = option(1.0, "of the bars")

    def metrics(self) -> Sequence[bpcbench.Metric]:
        return [bpcbench.Metric("right", "higher", "percent", help=f"share {EVIL}")]

    def score(self, predictions: Any, inputs: Any) -> bpcbench.Scores:
        found = predictions[SplitRef()]
        right = metrics.accuracy(found.log_probs, found.labels)
        curve = Curves("", f"x {EVIL}", "y", {f"c {EVIL}": Series([0, 1, 2], [right, right / 2, 0])})
        figures = {
            "curve": curve,
            "bars": Bars("", [f"a {EVIL}", "b"], {"": [self.scale, right]}),
            "matrix": Matrix("", ["r", "s"], [f"t {EVIL}", "u"], [[0, right], [1, 0.5]]),
            "calibrated": Reliability([0, 0.5, 1], [4, 16], [0.4, right], [0.3, 0.8]),
        }
        return bpcbench.Scores({"right": right}, figures)


@bpcbench.hookimpl
def bpcbench_datasets() -> list[type]:
    return [Spots]


@bpcbench.hookimpl
def bpcbench_methods() -> list[type]:
    return [Fade, Torn]


@bpcbench.hookimpl
def bpcbench_evaluators() -> list[type]:
    return [Shapes]


@bpcbench.hookimpl
def bpcbench_published() -> list[Publication]:
    number = PublishedNumber(
        "main",
        "spots",
        1,
        "Fade",
        "acc",
        0.875,
        0.011,
        printed=("87.5", "1.1"),
        cells=(PublishedPattern(method="fade"),),
    )
    return [Publication(f"Author {EVIL}, 2025", "", (number,), f"Printed {EVIL}.")]


@contextmanager
def plugins() -> Iterator[None]:
    """Let the toys and this plugin be found by this process."""
    before = os.environ.get("BPCBENCH_PLUGINS")
    os.environ["BPCBENCH_PLUGINS"] = "toys,gallery"
    registry.cache_clear()
    try:
        yield
    finally:
        if before is None:
            del os.environ["BPCBENCH_PLUGINS"]
        else:
            os.environ["BPCBENCH_PLUGINS"] = before
        registry.cache_clear()


def session(folder: Path, *overrides: str, text: str = SUITE, **options: Any) -> Session:
    """Return a session of the suite, whose file and store are in a folder."""
    file = folder / "gallery.yaml"
    file.write_text(text, encoding="utf-8")
    return Session(str(file), overrides, out=folder / "store", inline=True, track=False, quiet=True, **options)


def filled(folder: Path) -> Session:
    """Run the suite, of which one method fails; return its session."""
    with plugins():
        made = session(folder)
        assert made.run().exit_code == 1, "one method is made to fail"
    return made
