"""What it costs to evaluate a fitted posterior under 35 corruptions: 36 forward passes and next to nothing else.

Nothing here fails because of time; the numbers are printed. Run with `pytest tests/benchmarks -s -m benchmark`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import bpcbench
from bpcbench import Session
from bpcbench.data.splits import evaluated_split
from bpcbench.planning.stages import PredictStage
from bpcbench.running import bodies as stages
from bpcbench.running.run import make_task
from bpcbench_data.cifar10c import CIFAR10C
from bpcbench_data.corruptions import CORRUPTIONS, SEVERITIES, corrupted

pytestmark = [
    pytest.mark.benchmark,
    pytest.mark.timeout(1800),
    pytest.mark.skipif("BPCBENCH_DATA" not in os.environ, reason="CIFAR-10 is not here"),
]

EXAMPLES = 500
SUITE = f"""
name: cost
description: one coreset, one posterior, all corruptions
protocol: 1
datasets: [cifar10]
ipc: [10]
methods: [random]
preprocessing: {{default: {{plugin: zca}}}}
inferences: {{vi: {{steps: 2, augmentation: none}}}}
networks: {{conv-bn: {{width: 128}}}}
evaluators: [classification]
examples: {EXAMPLES}
threads: 1
"""


@pytest.fixture
def root() -> Path:
    found = Path(os.environ["BPCBENCH_DATA"])
    if not (found / "cifar-10-batches-py").exists():
        pytest.skip("CIFAR-10 is not here")
    return found


def test_predicting_all_corruptions_against_bare_forward_passes(
    root: Path, tmp_path: Path, write_suite: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """CPU seconds of one thread: other programs on the machine hardly change them."""
    suite, where = write_suite(SUITE), {"out": tmp_path / "out", "data": str(root)}
    assert bpcbench.run(suite, **where, track=False, inline=True, quiet=True).exit_code == 0
    shifted = Session(suite, ["evaluators=[corruption]"], **where).prepare()
    (planned,) = [planned for planned in shifted.plan.to_do() if planned.kind == "predict"]
    assert isinstance(planned.stage, PredictStage)
    wanted = [split for split in planned.stage.splits if split.dataset.name == "cifar10c"]
    assert len(wanted) == 35
    # Loaded, hence generated, before anything is timed.
    splits = [
        evaluated_split(CIFAR10C(), root, split.split, 10, examples=split.examples, shape=split.shape)
        for split in wanted
    ]
    predictives: list[Any] = []
    monkeypatch.setattr(stages, "predict_split", _noticed(stages.predict_split, predictives))
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        begin = time.process_time()
        outcome = stages.attempt(make_task(planned, tmp_path / "out", root, log=tmp_path / "log", device="cpu"))
        whole = time.process_time() - begin
        assert outcome.status == "done"
        predictive, transform = predictives[0]
        bare = sum(_forward(predictive, transform.apply(split.images)) for split in splits)
    finally:
        torch.set_num_threads(before)
    print(f"\n35 corrupted splits of {EXAMPLES} images: predict stage {whole:.1f} s, bare forward passes {bare:.1f} s")
    print(
        f"ratio {whole / bare:.3f} (aim < 1.10), whitening, checks and storing included; load {os.getloadavg()[0]:.1f}"
    )


def _noticed(function: Callable[..., Any], found: list[Any]) -> Callable[..., Any]:
    def noticing(predictive: Any, images: Any, labels: Any, transform: Any, batch: int) -> Any:
        found.append((predictive, transform))
        return function(predictive, images, labels, transform, batch)

    return noticing


@torch.inference_mode()
def _forward(predictive: Any, images: Any) -> float:
    """Return the CPU seconds of nothing but the network and the product with the posterior mean."""
    begin = time.process_time()
    for part in torch.from_numpy(images).split(250):
        predictive.q.predict(predictive.model.features(part))
    return time.process_time() - begin


def test_seconds_to_generate_the_test_set(root: Path) -> None:
    from bpcbench_data.cifar import CIFAR10

    clean = CIFAR10().load(root, "test").images
    print(f"\nCPU seconds for {len(clean):,} images at severities 1 to 5, load {os.getloadavg()[0]:.1f}")
    for kind in CORRUPTIONS:
        seconds = []
        for severity in SEVERITIES:
            begin = time.process_time()
            for _ in corrupted(clean, kind, severity):
                pass
            seconds.append(time.process_time() - begin)
        print(f"{kind:<17} {'  '.join(f'{s:.2f}' for s in seconds)}  together {sum(seconds):.1f}")
