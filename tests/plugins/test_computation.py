"""What a step computes, compiled: equal to eager execution, compiled once, resumed exactly, and working in workers."""

from __future__ import annotations

import functools
import importlib.util
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch._dynamo
import torch._inductor.config
from torch import Tensor

from bpcbench.errors import UserError
from bpcbench.planning.spec import Spec
from bpcbench.records import Facts
from bpcbench.testing import MethodConformance, context, toy_data, toy_inputs
from bpcbench_distill.method import FRePo
from bpcbench_torch import computation
from bpcbench_torch.computation import Compiled, Computation, _missing_compiler
from bpcbench_torch.networks import ConvBN
from bpcbench_torch.pool_method import PoolMethod
from bpcbench_vbpc.method import VBPC

SMALL = ConvBN(width=2, depth=1, order="conv-first")
SHORT = VBPC(steps=8, network=SMALL, batch=16, pool=2, updates=2, compile=True)


@pytest.fixture(autouse=True)
def strict():
    """One thread, on which generated code depends, and no function is compiled twice: torch would raise."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch._dynamo.config.patch(recompile_limit=1):
        yield
    torch.set_num_threads(before)


def computed(compute: Computation, seed: int) -> dict[str, Tensor]:
    """Return everything a computation gives for a network and random images, gradients and statistics included."""
    model = SMALL.build((1, 8, 8), 3, seed).eval()
    generator = torch.Generator().manual_seed(seed)
    for norm in model.norms:
        norm.running_mean.normal_(generator=generator)
        norm.running_var.uniform_(0.5, 2.0, generator=generator)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    real = torch.randn(16, 1, 8, 8, generator=generator)
    rows = torch.randn(6, 1, 8, 8, generator=generator, requires_grad=True)
    targets = torch.randn(6, 3, generator=generator, requires_grad=True)
    features = compute.constant(model, real)
    assert not features.requires_grad
    values = compute.outer(model, rows, targets, features, torch.arange(16) % 3)
    found = dict(zip(("images", "targets"), torch.autograd.grad(values["loss"], [rows, targets]), strict=True))
    # Neither the statistics nor gradients of the network come of the outer loss.
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    model.train()
    loss = compute.pool_loss(model, rows.detach(), targets.detach())
    loss.backward()
    gradients = {f"gradient of {name}": parameter.grad for name, parameter in model.named_parameters()}
    return {**found, **values, **gradients, **dict(model.named_buffers()), "features": features, "pool loss": loss}


def agree(method: PoolMethod, folder: Path) -> None:
    """Check compiled against eager execution; a limit of one compilation is for two networks."""
    ctx = context(folder)
    eager, compiled = Computation(method, 100, ctx), Compiled(method, 100, ctx, SMALL.build((1, 8, 8), 3, 0))
    for seed in (1, 2):
        wanted, found = computed(eager, seed), computed(compiled, seed)
        assert wanted.keys() == found.keys()
        for name, value in wanted.items():
            # A bias in front of a BatchNorm has a gradient of rounding errors alone.
            atol = 1e-5 * float(value.detach().double().norm()) + 1e-5
            torch.testing.assert_close(found[name], value, rtol=1e-4, atol=atol, msg=name)


@pytest.mark.campaign
def test_compiled_is_eager_but_for_the_last_bits(tmp_path):
    agree(SHORT, tmp_path)


@pytest.mark.campaign
def test_frepo_and_batch_statistics_are_one_graph_as_well(monkeypatch, tmp_path):
    """Without generating code, which takes most of the time."""
    compiler = functools.partial(torch.compile, dynamic=False, fullgraph=True, backend="aot_eager")
    monkeypatch.setattr(computation, "_compile", compiler)
    options = {"network": SMALL, "statistics": "batch", "compile": True}
    agree(VBPC(**options), tmp_path / "vbpc")
    torch._dynamo.reset()
    agree(FRePo(**options), tmp_path / "frepo")


def test_bf16_is_for_the_constant_features_only(tmp_path):
    exact = computed(Computation(SHORT, 100, context(tmp_path / "a")), 1)
    rough = computed(Computation(SHORT, 100, context(tmp_path / "b", precision="bf16")), 1)
    assert rough["features"].dtype == torch.float32
    assert not torch.equal(rough["features"], exact["features"])
    torch.testing.assert_close(rough["features"], exact["features"], rtol=0.05, atol=0.05)
    assert torch.equal(rough["pool loss"], exact["pool loss"])
    assert torch.equal(rough["kl"], exact["kl"])


@pytest.mark.campaign
class TestCompiled(MethodConformance):
    """Interrupted and resumed by somebody who compiles anew, it ends with the same bits.

    Networks are replaced on the way. A second compilation of a function would raise, also one for another coreset.
    """

    plugin = SHORT
    interruptions = (5,)
    test_valid = test_deterministic = test_absent_classes = None


def test_results_without_compile_keep_their_keys():
    assert "compile" not in Spec.of(replace(SHORT, compile=False)).options
    assert Spec.of(SHORT).options["compile"] is True


def test_a_missing_compiler_is_one_clear_message(tmp_path):
    with (
        torch._inductor.config.patch({"cpp.cxx": ("no-such-compiler",)}),
        pytest.raises(UserError, match=r"`compile: true` needs a C\+\+ compiler"),
    ):
        SHORT.distil(toy_data(), 2, toy_inputs(), context(tmp_path))


SUITE = """
name: compiled
protocol: 1
datasets: [digits]
ipc: [1]
methods:
  vbpc: {steps: 4, batch: 16, network: {plugin: conv-bn, width: 2, depth: 1, order: conv-first}, pool: 2, updates: 2}
inferences:
  vi: {steps: 2}
networks:
  conv-bn: {width: 2}
metrics: [acc]
threads: 1
"""


@pytest.mark.campaign
def test_workers_compile(write_suite, tmp_path):
    """Workers are forked from a server that has torch loaded; `compile` is an option like any other there."""
    command = [sys.executable, "-m", "bpcbench", "run", write_suite(SUITE), "methods.vbpc.compile=true"]
    command += ["--out", str(tmp_path / "out"), "--jobs", "1", "--no-mlflow"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("method", [VBPC(network=SMALL), FRePo(network=SMALL)], ids=["vbpc", "frepo"])
def test_chunks_give_the_same_gradients(method: PoolMethod, tmp_path: Path) -> None:
    """Features and their gradients come part by part, their sums in another order."""
    ctx = context(tmp_path)
    whole, parts = (computed(Computation(replace(method, chunk=chunk), 90, ctx), 3) for chunk in (None, 4))
    assert whole.keys() == parts.keys()
    for name, value in whole.items():
        torch.testing.assert_close(parts[name], value, rtol=1e-4, atol=1e-6)


def test_chunks_are_an_option_that_old_results_do_not_have() -> None:
    assert "chunk" not in Spec.of(VBPC(network=SMALL)).options
    assert Spec.of(VBPC(network=SMALL, chunk=100)).options["chunk"] == 100
    for wrong in ({"chunk": 0}, {"chunk": 4, "compile": True}, {"chunk": 4, "statistics": "batch"}):
        with pytest.raises(ValueError, match="chunk"):
            VBPC(**wrong)


def test_chunks_bound_the_predicted_memory() -> None:
    """CIFAR-100 at 50 images per class, ImageNet at 64 px with two: 5,000 and 2,000 rows."""
    for shape, classes, ipc in (((3, 32, 32), 100, 50), ((3, 64, 64), 1000, 2)):
        facts = Facts(shape=shape, classes=classes, sizes={"train": 10_000})
        whole, parts = (VBPC(network=ConvBN(), chunk=chunk).peak_bytes(facts, ipc) for chunk in (None, 250))
        assert parts < 0.7 * whole


def test_what_triton_lacks_is_said(monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "triton" in _missing_compiler("cuda")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    assert _missing_compiler("cuda").startswith("a C compiler")
    compiler = tmp_path / "gcc"
    compiler.touch(mode=0o755)
    assert _missing_compiler("cuda") is None
    compiler.rename(tmp_path / "mine")
    monkeypatch.setenv("CC", "mine")
    assert _missing_compiler("cuda") is None
