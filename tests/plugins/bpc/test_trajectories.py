"""Expert trajectories: what is recorded, shared, resumed and read back."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from bpcbench import testing
from bpcbench.errors import Stopped
from bpcbench.planning.spec import Spec
from bpcbench.records import PrerequisiteOutput
from bpcbench.store import folder
from bpcbench.testing.toys import InterruptedContext, StageContext
from bpcbench_bpc.trajectories import Trajectories, expert_names
from bpcbench_bpc.windows import Windows
from bpcbench_torch.flat import FlatNetwork
from bpcbench_torch.networks import ConvBN, ConvIN

SMALL = ConvIN(width=4, growth=1, order="conv-first", init="torch")
PLAN = Trajectories(network=SMALL, epochs=3, lr=0.1, batch=32)


def train(plan, folder, seed=0, **more):
    return plan.make(testing.toy_data(), testing.toy_inputs(), testing.context(folder, seed, **more), "000")


def test_snapshots_are_copies_of_what_went_on(tmp_path):
    arrays = train(PLAN, tmp_path)
    assert list(arrays) == ["0000", "0001", "0002", "0003"]
    rows = list(arrays.values())
    for index, row in enumerate(rows):
        assert row.dtype == np.float32
        assert all(not np.array_equal(row, other) for other in rows[:index])
        assert not any(np.shares_memory(row, other) for other in rows[:index])
    first = FlatNetwork(SMALL.build((1, 8, 8), 3, 0)).initial()
    np.testing.assert_array_equal(rows[0], first.numpy())


@pytest.mark.parametrize("network", [SMALL, ConvBN(width=4)], ids=lambda network: network.name)
def test_an_expert_is_torch_sgd(tmp_path, network):
    """Against a module trained by torch's own optimiser; one batch per epoch, so that no order is drawn."""
    plan = Trajectories(
        network=network, epochs=4, lr=0.1, batch=1000, momentum=0.5, weight_decay=0.01, augmentation="none"
    )
    arrays = train(plan, tmp_path)
    module = network.build((1, 8, 8), 3, 0).train()
    data = testing.toy_data()
    images = torch.tensor(testing.Scale().apply(data.train.images, {}))
    sgd = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.5, weight_decay=0.01)
    for _ in range(4):
        sgd.zero_grad()
        F.cross_entropy(module(images), torch.tensor(data.labels)).backward()
        sgd.step()
    wanted = torch.cat([value.detach().flatten() for value in module.parameters()])
    np.testing.assert_allclose(arrays["0004"], wanted.numpy(), rtol=1e-3, atol=1e-5)


def test_decay_divides_the_rate_behind_the_middle(tmp_path):
    """As in the public code, whose test is `epoch == epochs // 2 + 1`: up to and with that epoch the rate is whole."""
    plan = Trajectories(network=SMALL, epochs=6, lr=0.1, batch=1000, augmentation="none")
    usual, decayed = (train(replace(plan, decay=decay), tmp_path / str(decay)) for decay in (False, True))
    for epoch in range(6):
        np.testing.assert_array_equal(usual[f"{epoch:04d}"], decayed[f"{epoch:04d}"])
    steps = [arrays["0006"] - arrays["0005"] for arrays in (usual, decayed)]
    np.testing.assert_allclose(steps[1], 0.1 * steps[0], rtol=1e-3, atol=1e-6)


def test_it_learns(tmp_path):
    data = testing.toy_data()
    network = FlatNetwork(SMALL.build((1, 8, 8), 3, 0))
    arrays = train(Trajectories(network=SMALL, epochs=15, lr=0.2, batch=16), tmp_path)
    images, labels = torch.tensor(testing.Scale().apply(data.train.images, {})), torch.tensor(data.labels)
    losses = [float(F.cross_entropy(network(torch.tensor(row), images), labels)) for row in arrays.values()]
    assert losses[-1] < 0.5 * losses[0]


def test_every_image_once_per_epoch(tmp_path):
    """90 images in batches of 32: the last 26 count too, so an epoch is three updates."""
    steps = []

    class Counting(StageContext):
        def steps(self, total, **more):
            steps.append(total)
            return super().steps(total, **more)

    PLAN.make(testing.toy_data(), testing.toy_inputs(), Counting(seed=0, attempt=tmp_path / "a"), "000")
    assert steps == [9]


def test_stride_and_float16(tmp_path):
    full = train(Trajectories(network=SMALL, epochs=4, batch=32), tmp_path / "a")
    thin = train(Trajectories(network=SMALL, epochs=4, batch=32, stride=2, dtype="float16"), tmp_path / "b")
    assert list(thin) == ["0000", "0002", "0004"]
    for name, row in thin.items():
        assert row.dtype == np.float16
        np.testing.assert_array_equal(row, full[name].astype(np.float16))


@pytest.mark.parametrize("after", [1, 4, 8])
def test_a_partial_expert_is_resumed(tmp_path, after):
    reference = train(PLAN, tmp_path / "whole")
    ctx = InterruptedContext(seed=0, attempt=tmp_path / "half" / "first", after=after)
    with contextlib.suppress(Stopped):
        PLAN.make(testing.toy_data(), testing.toy_inputs(), ctx, "000")
    resumed = train(PLAN, tmp_path / "half")
    for name, row in reference.items():
        np.testing.assert_array_equal(row, resumed[name])


def test_seeds_make_experts_differ(tmp_path):
    one, other = train(PLAN, tmp_path / "a", seed=1), train(PLAN, tmp_path / "b", seed=2)
    assert not np.array_equal(one["0000"], other["0000"])


def test_fewer_experts_are_the_first_of_more():
    assert expert_names(10) == expert_names(100)[:10]
    assert PLAN.need(3).members == ("000", "001", "002")


def test_the_size_is_known_in_advance(tmp_path):
    for plan in (PLAN, Trajectories(network=SMALL, epochs=4, stride=2, dtype="float16")):
        arrays = train(plan, tmp_path / plan.dtype)
        assert plan.expected_bytes(testing.toy_data().facts) == sum(row.nbytes for row in arrays.values())


def test_what_a_method_asks_for_is_this_plan(registry):
    wanted = PLAN.need(2).plugin
    assert wanted == PLAN
    assert Spec.of(wanted).build(registry) == PLAN


@pytest.fixture
def stored(tmp_path):
    """Two experts on disk, whose snapshots are filled with 10 * expert + epoch, and a note of what was read."""
    read = []

    class Noting(folder.LazyArrays):
        def __getitem__(self, name):
            read.append(name)
            return super().__getitem__(name)

    members = {}
    for expert in range(2):
        place = tmp_path / f"{expert:03d}"
        rows = {f"{epoch:04d}": np.full(5, 10 * expert + epoch, np.float32) for epoch in range(4)}
        folder.write(place, "stage.json", {}, rows, {})
        members[place.name] = Noting(Path(place) / folder.ARRAYS)
    return PrerequisiteOutput(PLAN, "", members), read


def test_only_what_is_needed_is_read(stored):
    made, read = stored
    windows = Windows(made, max_start=2, order="uniform", seed=0, device="cpu")
    window = windows.draw()
    assert read == []
    start, target = window(0), window(2)
    assert len(read) == 2
    assert float(target[0] - start[0]) == 2
    start.zero_()
    assert float((window(2) - window(0))[0]) == 2


def test_windows_cover_experts_and_starts_and_resume(stored):
    made, _ = stored
    windows = Windows(made, max_start=3, order="uniform", seed=0, device="cpu")
    starts = [float(windows.draw()(0)[0]) for _ in range(100)]
    assert set(starts) == {0, 1, 2, 10, 11, 12}
    late = Windows(made, max_start=3, min_start=2, order="uniform", seed=0, device="cpu")
    assert {float(late.draw()(0)[0]) for _ in range(100)} == {2, 12}
    passes = Windows(made, max_start=1, order="passes", seed=0, device="cpu")
    firsts = [float(passes.draw()(0)[0]) for _ in range(20)]
    assert all({firsts[i], firsts[i + 1]} == {0, 10} for i in range(0, 20, 2))
    assert len({tuple(firsts[i : i + 2]) for i in range(0, 20, 2)}) == 2
    passes.draw()
    again = Windows(made, max_start=1, order="passes", seed=5, device="cpu")
    again.load_state_dict(passes.state_dict())
    assert [float(again.draw()(0)[0]) for _ in range(9)] == [float(passes.draw()(0)[0]) for _ in range(9)]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"lr": 0.0}, "lr must be above 0"),
        ({"momentum": 1.0}, "momentum must lie"),
        ({"epochs": 5, "stride": 2}, "multiple of stride"),
        ({"augmentation": "flop"}, "flop"),
    ],
)
def test_wrong_options(wrong, message):
    with pytest.raises(ValueError, match=message):
        Trajectories(**wrong)
