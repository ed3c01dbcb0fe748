"""Every method, prerequisite, inference and network on the fake device.

No devices are mixed, no generator of the CPU draws on it, and no step waits for it: what a GPU would do, tried without.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import fake_cuda
import pytest

from bpcbench.errors import Stopped
from bpcbench.registry.discovery import load_registry
from bpcbench.testing import registered

if reason := fake_cuda.missing():
    pytest.skip(reason, allow_module_level=True)

import fake_device_subjects as subjects
import torch
from fake_device_subjects import INFERENCES, METHODS, Watched
from torch._subclasses.fake_tensor import DynamicOutputShapeException

from bpcbench_bpc import inner
from bpcbench_torch.distillation import _optimizer
from bpcbench_torch.sghmc import SGHMC

pytestmark = pytest.mark.fakedevice

NOT_ON_A_DEVICE = {"file", "herding", "kmeans", "random", "whole"}
"""Methods that compute with NumPy alone."""

DECLARED = {
    "chains.py:keep": "a kept sample leaves the device, every `thin` steps: all samples together may not fit there",
    "expert.py:record": "a snapshot of the expert leaves the device at the end of an epoch",
}
"""Waits within steps, by the innermost function, and why they are needed."""

ONCE = {
    "batches.py:__init__": "training data and labels move to the device",
    "context.py:_as_floats": "all values logged since the last flush, together, twice a second",
    "convnet.py:laid": "a network moves to the device",
    "distillation.py:coreset": "a snapshot of the coreset, or the result",
    "distillation.py:distil": "initial images, labels and the network move to the device",
    "expert.py:__init__": "training data and labels move to the device",
    "inferences.py:fit": "networks are drawn on the CPU, the same for every device",
    "method.py:distil": "FRePo fits its temperature at the end, on the CPU",
    "method.py:<listcomp>": "the same: the outputs that the temperature is fitted to",
    "moving_average.py:load_state_dict": "a checkpoint that is resumed from",
    "pool.py:_built": "the first networks are drawn on the CPU, the same for every device",
    "pool.py:load_state_dict": "the pool of a checkpoint",
    "predictive.py:<dictcomp>": "what is stored of a fit",
    "predictive.py:<listcomp>": "test images, or stored networks",
    "predictive.py:_member": "predictions",
    "predictive.py:_predictive": "whether the closed form is finite, once per fit",
    "predictive.py:predict_tensor": "predictions",
    "predictive.py:_logits": "test images",
    "predictive.py:restore": "a stored network",
    "rates.py:<listcomp>": "a checkpoint",
    "rates.py:load_state_dict": "a checkpoint that is resumed from",
    "rates.py:searched": "RCIG's search for its first rates",
    "rcig_distillation.py:coreset": "a snapshot of the coreset, or the result",
    "rcig_distillation.py:distil": "initial images and labels move to the device",
    "regression.py:regress": "the network is drawn on the CPU, the same for every device",
    "regression.py:tensors": "the coreset moves to the device",
    "sampled.py:<dictcomp>": "what is stored of a fit",
    "sampled.py:<listcomp>": "test images and samples",
    "sampled.py:arrays": "what is stored of a fit",
    "sampled.py:fit": "the coreset and the networks move to the device",
    "sampled.py:predict_tensor": "samples, and predictions",
    "sampled.py:restore": "stored samples",
    "context.py:_resume": "a checkpoint that is resumed from",
    "state.py:_insert": "a checkpoint that is resumed from",
    "state.py:_pack": "a checkpoint",
    "state.py:_tensor_bytes": "a checkpoint, and the trial of one before the first step",
    "test_steps.py:test_a_network": "the network moves to the device",
    "training.py:relative_weights": "the weights of rows move to the device",
    "training.py:train": "the coreset moves to the device",
}
"""Waits outside steps, by the innermost function, and what they are for."""


def check(ledger: fake_cuda.Ledger, name: str) -> None:
    print(f"{name}\n{ledger.summary('start')}\n{ledger.summary('step')}")
    step = [wait for wait in ledger.counts["step"].waits if _function(wait) not in DECLARED]
    assert step == [], "a step waits for the device"
    once = [w for phase in ("start", "around", "first step") for w in ledger.counts[phase].waits]
    assert [wait for wait in once if _function(wait) not in {**ONCE, **DECLARED}] == []
    assert ledger.errors() == []


def _function(wait: str) -> str:
    return wait.rpartition(" at ")[2].split(" < ")[0]


@pytest.mark.parametrize("name", METHODS)
def test_a_method(ledger, tmp_path: Path, name: str) -> None:
    coreset = subjects.distil(METHODS[name], Watched(ledger, tmp_path))
    assert coreset.images.shape == (10, 1, 8, 8)
    assert ledger.counts["step"].launches > 0
    check(ledger, name)


@pytest.mark.parametrize("name", ["vbpc", "frepo", "rcig", "bpc-w", "fbpc real"])
def test_a_method_that_is_resumed(ledger, tmp_path: Path, name: str) -> None:
    first = Watched(ledger, tmp_path)
    first.stop_after = 1
    with pytest.raises(Stopped):
        subjects.distil(METHODS[name], first)
    again = Watched(ledger, tmp_path)
    subjects.distil(METHODS[name], again)
    assert again.resumed_from == 2
    check(ledger, name)


def test_an_expert(ledger, tmp_path: Path) -> None:
    subjects.PLAN.make(subjects.data(), subjects.inputs(), Watched(ledger, tmp_path), "000")
    check(ledger, "expert")


@pytest.mark.parametrize("convention", ["class", "centred"])
@pytest.mark.parametrize("name", INFERENCES)
def test_an_inference(ledger, tmp_path: Path, name: str, convention: str) -> None:
    inference, coreset = INFERENCES[name], subjects.coreset(convention)
    fitted = inference.fit(coreset, subjects.NET, subjects.inputs(), Watched(ledger, tmp_path / "fit"))
    images = coreset.images[:7]
    ledger.phase = "prediction"
    shape = fitted.predict(images).log_probs.shape
    ledger.phase = "start"
    arrays = fitted.arrays()
    assert arrays is not None
    again = inference.restore(arrays, coreset, subjects.NET, subjects.inputs(), Watched(ledger, tmp_path / "restore"))
    assert again.predict(images).log_probs.shape == shape
    assert shape[-2:] == (7, 10)
    check(ledger, name)


def test_test_images_are_prepared_on_the_device(ledger, tmp_path: Path) -> None:
    plugin = registered("preprocessing", "zca")(grey=True)
    transform = subjects.Transform(plugin, plugin.fit(subjects.data(), Watched(ledger, tmp_path / "zca")))
    fitted = INFERENCES["ensemble"].fit(
        subjects.coreset("class"), subjects.NET, subjects.inputs(), Watched(ledger, tmp_path / "fit")
    )
    pixels = subjects.data().train.images[:7]
    fitted.predict_pixels(pixels, transform)  # the first brings the matrix along
    ledger.phase = "step"
    assert fitted.predict_pixels(pixels, transform).log_probs.shape == (2, 7, 10)
    copies = [copy for copy in ledger.counts["step"].copies if "to cuda" in copy]
    # As bytes, once for all networks.
    assert [copy.partition(" bytes")[0] for copy in copies] == [str(pixels.nbytes)]
    assert ledger.errors() == []


@pytest.mark.parametrize("name", sorted(load_registry().names("network")))
def test_a_network(ledger, name: str) -> None:
    network = registered("network", name)()
    shape = (3, 32, 32)
    model = network.build(shape, 10, 0).to("cuda")
    ledger.phase = "step"
    images = torch.empty(2, *shape, device="cuda", requires_grad=True)
    loss = model(images).square().mean() + model.features(images).square().mean()
    loss.backward()
    assert images.grad is not None
    check(ledger, name)


@pytest.mark.parametrize(("fused", "launches"), [(False, 14), (True, 4)], ids=["default", "fused"])
def test_launches_of_adam(ledger, fused: bool, launches: int) -> None:
    """Of images and labels, as docs/gpu.md tells: fused, a kernel and a counter for each of the two."""
    tensors = [torch.zeros(10, *shape, device="cuda", requires_grad=True) for shape in ((1, 8, 8), (10,))]
    optimizer = _optimizer(METHODS["vbpc"], *tensors, fused=fused)
    for phase in ("first step", "step"):
        for tensor in tensors:
            tensor.grad = torch.ones_like(tensor)
        ledger.phase = phase
        optimizer.step()
        ledger.phase = "around"
    check(ledger, "adam")
    assert ledger.counts["step"].launches == launches


def test_every_method_and_inference_is_tried() -> None:
    registry = load_registry()
    assert {name.split()[0] for name in METHODS} == set(registry.names("method")) - NOT_ON_A_DEVICE
    assert {name.split()[0] for name in INFERENCES} == set(registry.names("inference"))


@pytest.mark.parametrize(
    ("what", "said"),
    [
        (lambda x: x.sum().item(), "value read"),
        (lambda x: x.cpu(), "blocking copy"),
        (lambda x: bool(x.sum() > 0), "value read"),
        (lambda x: x[x > 0], "boolean index"),
        (lambda x: x + torch.zeros(1, device="cpu").to("cuda"), "blocking copy"),
        (lambda x: x.tolist(), ""),
        (lambda x: torch.linalg.inv(torch.eye(3, device="cuda")), "_linalg_check_errors"),
    ],
    ids=["item", "cpu", "branch", "boolean index", "copy", "tolist", "linalg"],
)
def test_a_wait_in_a_loop_is_found(ledger, tmp_path: Path, monkeypatch, what, said: str) -> None:
    """The tests above fail where somebody puts one of these into a loop."""
    method = METHODS["vbpc"]
    outer = type(method).outer

    def waiting(self, features, *more):
        with contextlib.suppress(DynamicOutputShapeException):  # the shape of a result that depends on values
            what(features.detach())
        return outer(self, features, *more)

    monkeypatch.setattr(type(method), "outer", waiting)
    subjects.distil(method, Watched(ledger, tmp_path))
    with pytest.raises(AssertionError, match="a step waits for the device"):
        check(ledger, "planted")
    assert any(said in wait and "test_steps.py" in wait for wait in ledger.counts["step"].waits)


LOOPS = {
    "inner loop of bpc-w": ("bpc-w", inner, "_stepping", lambda problem, distortion: problem.images),
    "inner step of bpc-w, captured": ("bpc-w", inner, "energy", lambda logits, *more: logits),
    "sghmc": ("sghmc", SGHMC, "step", lambda chains, **more: chains.theta),
}
"""Functions that these loops call in every step, and the tensor that is read before."""


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("what", [lambda x: x.sum().item(), lambda x: x.cpu()], ids=["item", "cpu"])
def test_a_wait_in_another_loop_is_found(ledger, tmp_path: Path, monkeypatch, what, loop: str) -> None:
    """Where a loop is captured, what it reads is an error of the recording: a replay does not read it again."""
    name, owner, called, tensor = LOOPS[loop]
    plain = getattr(owner, called)

    def waiting(*args, **options):
        what(tensor(*args, **options).detach())
        return plain(*args, **options)

    monkeypatch.setattr(owner, called, waiting)
    if name in METHODS:
        subjects.distil(METHODS[name], Watched(ledger, tmp_path))
    else:
        INFERENCES[name].fit(subjects.coreset(), subjects.NET, subjects.inputs(), Watched(ledger, tmp_path))
    with pytest.raises(AssertionError):
        check(ledger, "planted")
    found = [*ledger.counts["step"].waits, *ledger.errors()]
    assert any("test_steps.py:waiting" in one for one in found)


def test_mixed_devices_and_generators_are_found(ledger) -> None:
    with pytest.raises(Exception, match="same device"):
        torch.zeros(3, device="cuda") + torch.zeros(3)
    torch.randn(3, device="cuda", generator=torch.Generator())
    assert [error.split(" at ")[0].split(":")[0] for error in ledger.errors()] == [
        "aten",
        "generator of cpu for a tensor on cuda",
    ]
    with pytest.raises(AssertionError):
        check(ledger, "planted")
