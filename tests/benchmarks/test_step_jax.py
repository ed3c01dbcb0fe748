"""A whole step of VBPC against the same step in JAX (`jax_step.py`): first that they are equal, then what they cost.

    pip install jax && pytest tests/benchmarks/test_step_jax.py -s -m benchmark

CPU seconds per step, of one thread each. All processes stay alive and take turns, so that whatever else the machine
does hits all of them; a ratio is the median over rounds. glibc is told to keep freed memory for JAX as well, which
VBPC does by itself (`jax, glibc as it is` shows what that saves). BPCBENCH_ROUNDS sets the number of rounds. Numbers
and what they say: docs/speed.md.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from bpcbench.testing import context

sys.path.insert(0, str(Path(__file__).parent))
pytest.importorskip("jax")

import jax
import jax_step
from step_worker import Case, Worker

from bpcbench_torch.computation import Computation

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(7200)]

CASES = [Case((1, 28, 28), 32, 10), Case((1, 28, 28), 128, 10), Case((3, 32, 32), 128, 100)]
KEPT = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1)}
VARIANTS = {
    "jax": ("jax", KEPT),
    "jax, glibc as it is": ("jax", {}),
    "torch, eager": ("eager", {}),
    "torch, compile": ("compile", {}),
    "torch, eager, bf16": ("eager bf16", {}),
    "torch, compile, bf16": ("compile bf16", {}),
}
EMULATED = not torch.ops.mkldnn._is_mkldnn_bf16_supported()
"""Whether this CPU lacks bfloat16 instructions: a step then takes several times longer, and only the small one runs."""
ROUNDS = int(os.environ.get("BPCBENCH_ROUNDS", "5"))
SAME = 5
"""How many steps, from the same start, must have the same losses."""


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-8), (torch.float32, 1e-3)], ids=["64", "32"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_loss_and_gradients_are_equal(case: Case, dtype: torch.dtype, tolerance: float, tmp_path: Path) -> None:
    """In float64 beyond doubt; in float32 each is off by about 1e-4, for the coreset's kernel is ill-conditioned."""
    method = case.method()
    model = method.network.build(case.shape, 10, 0).to(dtype).eval()
    generator = torch.Generator().manual_seed(1)
    for norm in list(model.norms)[1:]:
        norm.running_mean.normal_(std=0.1, generator=generator)
        norm.running_var.uniform_(0.5, 2.0, generator=generator)
    images = torch.randn(case.rows, *case.shape, generator=generator, dtype=dtype, requires_grad=True)
    targets = torch.eye(10, dtype=dtype)[torch.arange(case.rows) % 10] - 0.1
    targets.requires_grad_()
    real = torch.randn(32, *case.shape, generator=generator, dtype=dtype)
    labels = torch.arange(len(real)) % 10
    compute = Computation(method, len(real), context(tmp_path))
    loss = compute.outer(model, images, targets, model.features(real).detach(), labels)["loss"]
    gradients = torch.autograd.grad(loss, [images, targets])
    with jax.enable_x64(dtype == torch.float64):
        learned = {"images": _last(images), "targets": targets.detach().numpy()}
        found, there = jax.jit(jax_step.loss_and_gradients)(
            learned, *jax_step.from_torch(model), _last(real), labels.numpy().astype(np.int32)
        )
    assert float(found) == pytest.approx(loss.item(), rel=min(tolerance, 1e-4))
    for ours, theirs in ((_last(gradients[0]), there["images"]), (gradients[1].numpy(), there["targets"])):
        assert theirs.dtype == ours.dtype
        assert np.linalg.norm(ours - np.asarray(theirs)) < tolerance * np.linalg.norm(ours)


def _last(images: torch.Tensor) -> np.ndarray:
    return images.detach().permute(0, 2, 3, 1).numpy()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_cost_of_a_step(case: Case) -> None:
    variants = {name: it for name, it in VARIANTS.items() if "bf16" not in name or not EMULATED or case.width <= 32}
    with contextlib.ExitStack() as stack:
        workers = {
            name: stack.enter_context(Worker(case, variant, **environment))
            for name, (variant, environment) in variants.items()
        }
        losses = {name: worker.take(SAME)["losses"] for name, worker in workers.items()}
        for name, values in losses.items():
            np.testing.assert_allclose(values, losses["jax"], rtol=1e-3 if "bf16" in name else 1e-4, err_msg=name)
        count = max(1, round(1.0 / workers["jax"].take(1)["seconds"]))
        seconds = [{name: worker.take(count)["seconds"] for name, worker in workers.items()} for _ in range(ROUNDS)]
    print(f"\n{case}; {ROUNDS} rounds of {count} steps, load {os.getloadavg()[0]:.1f}")
    print("| | CPU ms per step | share of jax | smallest to largest |\n|---|---:|---:|---|")
    for name in variants:
        ratios = sorted(times[name] / times["jax"] for times in seconds)
        median = 1e3 * statistics.median(times[name] for times in seconds)
        shares = f"{statistics.median(ratios):.2f} | {ratios[0]:.2f} to {ratios[-1]:.2f}"
        print(f"| {name} | {median:.4g} | {shares} |", flush=True)
