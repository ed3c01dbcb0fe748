"""What a step computes, compiled: equal to eager execution, compiled once, resumed exactly, and working in workers."""

from __future__ import annotations

import functools
import importlib.util
import subprocess
import sys
import types
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest
import torch
import torch._dynamo
import torch._inductor.config
from torch import Tensor

from bpcbench.errors import UserError
from bpcbench.planning.spec import Spec
from bpcbench.records import Facts, Ref
from bpcbench.registry.options import OptionError, build
from bpcbench.testing import MethodConformance, context, registry, toy_data, toy_inputs
from bpcbench_distill.method import FRePo
from bpcbench_torch import computation
from bpcbench_torch.augmentation import OPERATIONS, Augmentation
from bpcbench_torch.computation import Compiled, CompiledAugmentation, Computation, _missing_compiler
from bpcbench_torch.networks import ConvBN
from bpcbench_torch.pool_method import PoolMethod
from bpcbench_torch.strategy import strategy
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


def traced(function: Any, mode: str, device: str) -> Any:
    """Stand in for the compiler where generating code, which takes most of the time, is not what matters."""
    own = types.FunctionType(function.__code__.replace(), function.__globals__, closure=function.__closure__)
    return torch.compile(own, dynamic=False, fullgraph=True, backend="aot_eager")


@pytest.mark.campaign
def test_frepo_and_batch_statistics_are_one_graph_as_well(monkeypatch, tmp_path):
    monkeypatch.setattr(computation, "compiled", traced)
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


def augmented(augment: Any, generators: list[torch.Generator], calls: int) -> tuple[list[Tensor], list[Tensor]]:
    """Return images with gradients, both of some calls, and the states that the generators end in."""
    found = []
    for call in range(calls):
        images = torch.randn(4, 3, 12, 12, generator=torch.Generator().manual_seed(call), requires_grad=True)
        out = augment(images)
        found += [out.detach(), torch.autograd.grad(out.square().sum(), [images])[0]]
    return found, [generator.get_state() for generator in generators]


def check_augmentation(augmentation: Augmentation, calls: int) -> None:
    """Check compiled against eager images, gradients and generators."""
    both = []
    for whole in (False, True):
        generator, chooser = (torch.Generator().manual_seed(seed) for seed in (1, 2))
        augment: Any = CompiledAugmentation(augmentation, generator, chooser, everything=True)
        if not whole:
            augment = functools.partial(augmentation, generator=generator, chooser=chooser)
        both.append(augmented(augment, [generator, chooser], calls))
    for wanted, found in zip(*(values for values, _ in both), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    assert all(torch.equal(a, b) for a, b in zip(*(states for _, states in both), strict=True))


@pytest.mark.parametrize(
    "name",
    ["paper-all", "frepo-each", "dsa-all", "paper", *OPERATIONS["frepo"], *(f"dsa:{o}" for o in OPERATIONS["dsa"])],
)
def test_a_compiled_augmentation_draws_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All calls of an operation are one graph, and the random numbers are those of the eager one."""
    monkeypatch.setattr(computation, "compiled", traced)
    check_augmentation(strategy(name, 3), 4)


@pytest.mark.campaign
@pytest.mark.parametrize("name", ["color_crop-all", "cutout_flip-all"])
def test_a_compiled_augmentation_is_the_eager_one_but_for_the_last_bits(name: str) -> None:
    check_augmentation(strategy(name, 3), 2)


def test_warps_are_not_compiled_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    monkeypatch.setattr(computation, "compiled", lambda function, mode, device: made.append(mode) or function)
    generator = torch.Generator().manual_seed(0)
    for name in ("crop", "noise", "rotate", "translate", "cutout_crop-all", "none"):
        CompiledAugmentation(strategy(name, 1), generator, generator)(torch.zeros(2, 1, 8, 8))
    assert made == []
    for name in ("cutout", "color", "flip"):
        CompiledAugmentation(strategy(name, 1), generator, generator, "reduce-overhead")(torch.zeros(2, 1, 8, 8))
    assert made == ["reduce-overhead"] * 3


WHOLE = replace(SHORT, augmentation="cutout", compile_parts="all")


@pytest.mark.campaign
def test_a_step_compiled_as_a_whole_is_the_eager_one(tmp_path):
    """The first two updates of images and labels, by the compiled network and augmentation and the fused Adam."""
    options = {"compile": False, "compile_parts": "network"}
    data, inputs = toy_data(), toy_inputs()
    for steps in (1, 2):
        eager, whole = (
            replace(method, steps=steps).distil(data, 2, inputs, context(tmp_path / f"{steps}{index}"))
            for index, method in enumerate((replace(WHOLE, **options), WHOLE))
        )
        assert not np.array_equal(eager.images, whole.images)
        np.testing.assert_allclose(whole.images, eager.images, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(whole.targets, eager.targets, rtol=1e-4, atol=1e-5)


@pytest.mark.campaign
class TestWhole(MethodConformance):
    """Interrupted and resumed, it ends with the same bits, with an operation drawn at every call."""

    plugin = replace(WHOLE, augmentation="cutout_crop_flip", compile_mode="max-autotune-no-cudagraphs")
    interruptions = (5,)
    test_valid = test_deterministic = test_absent_classes = None


@pytest.mark.parametrize("method", [VBPC(network=SMALL), FRePo(network=SMALL)], ids=["vbpc", "frepo"])
def test_modes_and_parts_are_options_that_old_results_do_not_have(method: PoolMethod) -> None:
    for name, value in (("compile_mode", "reduce-overhead"), ("compile_parts", "all")):
        with pytest.raises(ValueError, match=f"{name}: {value} is for `compile: true`"):
            replace(method, **{name: value})
        for setting in (True, "auto"):
            compiling = replace(method, compile=setting)
            assert name not in Spec.of(compiling).options
            assert Spec.of(replace(compiling, **{name: value})).options[name] == value


def test_unknown_modes_are_refused() -> None:
    with pytest.raises(OptionError, match=r"compile_mode.*reduce-overhead"):
        build(registry(), "method", Ref("vbpc", {"compile": True, "compile_mode": "fast"}))


@pytest.mark.parametrize("mode", get_args(get_type_hints(PoolMethod)["compile_mode"]))
def test_a_mode_reaches_torch(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With torch's own options for it; on a GPU what a CUDA graph returns is copied before the next one is replayed."""
    given: list[dict[str, Any]] = []
    one = torch.ones(2)
    monkeypatch.setattr(torch, "compile", lambda function, **more: given.append(more["options"]) or (lambda: one))
    wanted = {**torch._inductor.list_mode_options(mode), "compile_threads": 1}
    found = {device: computation.compiled(lambda: one, mode, device)() for device in ("cpu", "cuda")}
    assert given == [wanted, wanted]
    assert found["cpu"] is one
    assert (found["cuda"] is one) != bool(wanted.get("triton.cudagraphs"))
    assert torch.equal(found["cuda"], one)


def test_kernels_chosen_by_time_are_not_deterministic(tmp_path: Path) -> None:
    method = replace(SHORT, compile_mode="max-autotune")
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(UserError, match=r"max-autotune.*deterministic: true"):
            Compiled(method, 100, context(tmp_path), SMALL.build((1, 8, 8), 3, 0))
    finally:
        torch.use_deterministic_algorithms(False)


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
