"""State is captured and restored exactly: through a file, in place, to the last bit."""

from __future__ import annotations

import copy
import math
import random
import tempfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from bpcbench.running import checkpoint
from bpcbench.running import state as tree
from bpcbench.running.state import Packed
from bpcbench.store import folder


def through_file(packed: Packed) -> Packed:
    """Return what a checkpoint's files would give back."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "checkpoint"
        folder.write(path, "meta.json", {"skeleton": packed.skeleton}, packed.arrays, {})
        meta = folder.read_meta(path, "meta.json")
        return Packed(dict(folder.LazyArrays(path / folder.ARRAYS)), meta["skeleton"])


def same(left: Any, right: Any) -> bool:
    """Say whether two trees are equal in types, shapes and bits; NaN equals NaN."""
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and left.shape == right.shape and _bits(left) == _bits(right)
    if type(left) is not type(right):
        return False
    if isinstance(left, np.ndarray | np.generic):
        return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()
    if isinstance(left, float):
        return (
            math.isnan(left)
            if math.isnan(right)
            else (left, math.copysign(1, left)) == (right, math.copysign(1, right))
        )
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return left == right


def _bits(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**130), 2**130),
    st.floats(),
    st.text(st.characters(exclude_categories=[]), max_size=4),
)
NUMPY = st.one_of(
    hnp.arrays(
        st.one_of(
            hnp.boolean_dtypes(),
            hnp.integer_dtypes(endianness="<"),
            hnp.floating_dtypes(endianness="<", sizes=(16, 32, 64)),
        ),
        hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
    ),
    st.floats().map(np.float64),
    st.integers(-100, 100).map(np.int8),
)
DTYPES = (
    torch.bfloat16,
    torch.float16,
    torch.float32,
    torch.float64,
    torch.int64,
    torch.uint8,
    torch.bool,
    torch.complex64,
)
TENSORS = st.builds(
    lambda dtype, shape, seed: torch.randn(shape, generator=torch.Generator().manual_seed(seed)).mul(3).to(dtype),
    st.sampled_from(DTYPES),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
    st.integers(0, 99),
)
KEYS = st.one_of(st.integers(), st.text(max_size=3), st.booleans(), st.tuples(st.integers(), st.text(max_size=2)))
TREES = st.recursive(
    st.one_of(SCALARS, NUMPY, TENSORS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.lists(inner, max_size=3).map(tuple), st.dictionaries(KEYS, inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=300, deadline=None)
@given(TREES)
def test_round_trip(value: Any) -> None:
    assert same(tree.unpack(through_file(tree.pack(value))), value)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(KEYS, st.one_of(SCALARS, NUMPY), max_size=4), st.lists(SCALARS, max_size=4))
def test_containers_are_restored_in_place(mapping: dict[Any, Any], items: list[Any]) -> None:
    wanted = copy.deepcopy((mapping, items))
    packed = through_file(tree.capture({"mapping": mapping, "items": items}))
    live: dict[str, Any] = {"mapping": {"stale": 1}, "items": [1, 2, 3, 4, 5, 6]}
    before = live["mapping"], live["items"]
    tree.restore(live, packed)
    assert live["mapping"] is before[0]
    assert live["items"] is before[1]
    assert same((live["mapping"], live["items"]), wanted)


def test_tensors_and_arrays_are_restored_in_place() -> None:
    for made in (
        torch.randn(3, 2, dtype=torch.bfloat16),
        torch.tensor(2.5),
        torch.zeros(0, 4),
        torch.tensor([math.nan, math.inf, -0.0]),
        torch.randn(2, 3).T,
        np.arange(3.0),
        np.array(7),
        np.zeros((0, 2), bool),
    ):
        is_tensor = isinstance(made, torch.Tensor)
        wanted = made.clone() if is_tensor else made.copy()
        packed = through_file(tree.capture({"x": made}))
        target = torch.zeros_like(made) if is_tensor else np.zeros_like(made)
        tree.restore({"x": target}, packed)
        assert same(target, wanted)


def test_captured_state_is_a_copy() -> None:
    array, tensor = np.zeros(3), torch.zeros(3)
    packed = tree.capture({"a": array, "t": tensor})
    array += 1
    tensor += 1
    tree.restore({"a": array, "t": tensor}, packed)
    assert array.sum() == 0
    assert tensor.sum() == 0


def test_a_leaf_stays_the_leaf_of_its_optimizer() -> None:
    leaf = torch.zeros(3, requires_grad=True)
    packed = tree.capture({"leaf": leaf})
    with torch.no_grad():
        leaf += 1
    tree.restore({"leaf": leaf}, packed)
    assert leaf.requires_grad
    assert leaf.is_leaf
    assert float(leaf.detach().sum()) == 0
    with pytest.raises(TypeError, match="'leaves' is a list with a tensor that requires grad"):
        tree.capture({"leaves": [leaf]})


def _training() -> tuple[dict[str, Any], Any]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(), torch.nn.Linear(8, 1)
    )
    optimizer = torch.optim.Adam(model.parameters(), 0.01, amsgrad=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=100)
    ours, theirs = torch.Generator().manual_seed(1), np.random.default_rng(2)
    state = {"model": model, "optimizer": optimizer, "schedule": schedule, "ours": ours, "theirs": theirs}

    def step() -> float:
        x = torch.randn(16, 4, generator=ours) + float(theirs.normal()) + float(np.random.normal()) + random.random()
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        return loss.item()

    return state, step


@pytest.mark.parametrize("before", [0, 1, 7])
def test_training_goes_on_exactly(before: int) -> None:
    """Modules, Adam, a schedule, both kinds of generators and all global ones, through a file."""
    state, step = _training()
    for _ in range(before):
        step()
    packed = through_file(tree.capture(state))
    around = through_file(tree.pack(tree.capture_globals()))
    reference = [step() for _ in range(5)]
    fresh, step = _training()
    for _ in range(3):
        step()
    tree.restore(fresh, packed)
    tree.restore_globals(tree.unpack(around))
    assert [step() for _ in range(5)] == reference
    assert same(dict(fresh["model"].state_dict()), dict(state["model"].state_dict()))


@pytest.mark.parametrize("kind", [np.random.PCG64, np.random.MT19937, np.random.Philox, np.random.SFC64])
def test_numpy_generators(kind: Any) -> None:
    generator = np.random.Generator(kind(5))
    generator.normal(size=3)
    generator.integers(0, 10, dtype=np.uint32)
    packed = through_file(tree.capture({"g": generator}))
    wanted = generator.normal(size=4)
    other = np.random.Generator(kind(6))
    tree.restore({"g": other}, packed)
    assert other.normal(size=4).tobytes() == wanted.tobytes()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (3, "'bad' is a int, which cannot be restored in place"),
        (random.Random(1), "'bad' is a Random"),
        ({"f": open}, "'bad' holds a builtin_function_or_method"),
        ([{1, 2}], "'bad' holds a set"),
        ({"net": torch.nn.Linear(1, 1)}, "'bad' holds a Linear"),
        ([b"bytes"], "'bad' holds a bytes"),
        (np.array(["text"]), "'bad' holds an array of <U4"),
        (np.array([None]), "'bad' holds an array of object"),
        (np.zeros(2, np.complex128), "'bad' holds an array of complex128"),
    ],
)
def test_what_cannot_be_kept_is_named(value: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        tree.capture({"good": [1], "bad": value})


def test_a_checkpoint_of_other_code() -> None:
    packed = tree.capture({"a": np.zeros(3), "t": torch.zeros(2)})
    with pytest.raises(ValueError, match=r"holds \['a', 't'\], the loop names \['a'\]"):
        tree.restore({"a": np.zeros(3)}, packed)
    with pytest.raises(ValueError, match=r"'a' is an array of float64 \(2,\), the checkpoint holds .* \(3,\)"):
        tree.restore({"a": np.zeros(2), "t": torch.zeros(2)}, packed)
    with pytest.raises(ValueError, match=r"'t' is a tensor of torch.float64"):
        tree.restore({"a": np.zeros(3), "t": torch.zeros(2, dtype=torch.float64)}, packed)


def _save(attempt: Path, loop: int, step: int) -> None:
    packed = tree.pack({"step": step, "x": np.arange(100)})
    checkpoint.save(attempt, loop=loop, step=step, total=9, elapsed=1.0, cpu=0.5, events=3, state=packed)


def test_the_furthest_complete_checkpoint_is_found(tmp_path: Path) -> None:
    """Of all attempts; damaged ones are passed over, and each new one removes those it goes beyond."""
    assert checkpoint.newest(tmp_path) is None
    _save(tmp_path / "a", 0, 9)
    _save(tmp_path / "b", 1, 2)
    _save(tmp_path / "a", 1, 1)
    assert sorted(path.name for path in tmp_path.glob("*/*")) == [
        "checkpoint-000001-000000000001",
        "checkpoint-000001-000000000002",
    ]
    found = checkpoint.newest(tmp_path)
    assert found is not None
    assert (found.loop, found.step, found.elapsed, found.events) == (1, 2, 1.0, 3)
    assert same(tree.unpack(found.state), {"step": 2, "x": np.arange(100)})
    for damage, left in (("arrays.safetensors", (1, 1)), ("checkpoint.json", None)):
        path = found.path / damage
        path.write_bytes(path.read_bytes()[:-5])
        found = checkpoint.newest(tmp_path)
        assert (found and (found.loop, found.step)) == left
    # What a process that was killed while it wrote has left does not count.
    unfinished = tmp_path / "c" / "tmp-1"
    unfinished.mkdir(parents=True)
    assert checkpoint.newest(tmp_path) is None


def test_order_of_keys_survives() -> None:
    value = OrderedDict([("b", 1), ("a", 2)])
    assert list(tree.unpack(through_file(tree.pack(value)))) == ["b", "a"]


def test_the_memory_format_survives():
    """A fused optimiser walks through state and parameter in memory order: they must stay alike."""
    conv = torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(conv.parameters(), fused=True)
    conv(torch.randn(2, 3, 8, 8)).sum().backward()
    optimizer.step()
    packed = tree.capture({"optimizer": optimizer})
    fresh = torch.optim.Adam(conv.parameters(), fused=True)
    tree.restore({"optimizer": fresh}, packed)
    for name, value in optimizer.state[conv.weight].items():
        assert fresh.state[conv.weight][name].stride() == value.stride()
        assert torch.equal(fresh.state[conv.weight][name], value)
