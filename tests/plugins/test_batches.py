"""Batches of real data: every image once per epoch, the same from memory and from disk, and data larger than memory."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bpcbench.api import Method, Preprocessing
from bpcbench.records import Data, Facts, Split, Transform
from bpcbench.testing import context, toy_data, toy_inputs
from bpcbench_distill.rcig import RCIG
from bpcbench_torch import batches as batches_module
from bpcbench_torch.batches import Batches, Place, TrainingImages
from bpcbench_torch.networks import ConvBN, ConvNN
from bpcbench_torch.preprocessing import Constants, Standardize
from bpcbench_torch.zca import ZCA
from bpcbench_vbpc.method import VBPC


def batches(data: Data, size: int, **more: int) -> Batches:
    return Batches(data, toy_inputs().transform, size=size, seed=3, device="cpu", **more)


def numbered(count: int) -> Data:
    """Images that say which one they are, in their pixels and in their label."""
    numbers = np.arange(count)
    images = np.stack([numbers % 256, numbers // 256], 1).astype(np.uint8).reshape(count, 1, 1, 2)
    return Data(Facts(shape=(1, 1, 2), classes=count, sizes={"train": count}), Split(images, numbers))


@pytest.mark.parametrize("resident_bytes", [0, 10**9])
def test_every_image_once_per_epoch_with_its_label(resident_bytes: int) -> None:
    data = numbered(700)
    stream = batches(data, 100, resident_bytes=resident_bytes)
    epochs = []
    for _ in range(3):
        seen = []
        for _ in range(7):
            images, labels = stream.next()
            expected = toy_inputs().transform.apply(data.train.images[labels.numpy()])
            np.testing.assert_array_equal(images.numpy(), expected)
            seen += labels.tolist()
        assert sorted(seen) == list(range(700))
        epochs.append(seen)
    assert epochs[0] != epochs[1] != epochs[2]


def test_from_disk_come_the_same_rows_as_from_memory(tmp_path: Path) -> None:
    data = toy_data()
    path = tmp_path / "images.npy"
    np.save(path, data.train.images)
    mapped = Data(data.facts, Split(np.load(path, mmap_mode="r"), data.labels))
    memory, disk = batches(data, 16), batches(mapped, 16, resident_bytes=0)
    assert memory.resident is not None
    assert disk.resident is None
    for _ in range(9):
        (a, labels_a), (b, labels_b) = memory.next(), disk.next()
        # Reads from disk are sorted inside a batch.
        rows = [np.lexsort(images.flatten(1).numpy().T) for images in (a, b)]
        np.testing.assert_array_equal(a[rows[0]], b[rows[1]])
        np.testing.assert_array_equal(labels_a[rows[0]], labels_b[rows[1]])
    disk.load_state_dict(memory.state_dict())
    assert torch.equal(disk.rows(), memory.rows())


LARGE = """
import json, resource, sys, time
import numpy as np
from bpcbench.records import Data, Facts, Inputs, Split, Transform
from bpcbench_torch.batches import Batches
from bpcbench_torch.networks import ConvNN
from bpcbench_torch.preprocessing import Standardize
from bpcbench_vbpc.method import VBPC
from bpcbench.testing import context
from pathlib import Path

def resident():
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))

count, classes = 1_281_167, 1000
images = np.memmap(sys.argv[1], np.uint8, "r", shape=(count, 3, 64, 64))
labels = np.arange(count) % classes
data = Data(Facts(shape=(3, 64, 64), classes=classes, sizes={"train": count}), Split(images, labels))
transform = Transform(Standardize(), {"mean": np.full(3, 0.5), "std": np.full(3, 0.25)})
Batches(Data(data.facts, Split(images[:10], labels[:10])), transform, size=10, seed=0, device="cpu").next()
before, begin = resident(), time.process_time()
stream = Batches(data, transform, size=256, seed=0, device="cpu")
made = time.process_time() - begin
begin = time.process_time()
taken = [stream.next() for _ in range(4)]
each = (time.process_time() - begin) / 4
growth = resident() - before
written = {int(row) for row in json.loads(sys.argv[2])}
order = np.concatenate([np.sort(stream.order[i * 256 : (i + 1) * 256].numpy()) for i in range(4)])
values = np.concatenate([images.numpy() for images, _ in taken])
right = all((values[i] == (2.0 if int(row) in written else -2.0)).all() for i, row in enumerate(order))
right = right and np.array_equal(np.concatenate([labels.numpy() for _, labels in taken]), order % classes)
method = VBPC(steps=2, batch=64, network=ConvNN(width=2), pool=2, augmentation="none", learn_labels=False)
narrow = Data(Facts(shape=(3, 64, 64), classes=2, sizes={"train": count}), Split(images, labels % 2))
coreset = method.distil(narrow, 1, Inputs(transform), context(Path(sys.argv[3])))
print(json.dumps({"bytes": images.nbytes, "growth": growth, "made": made, "each": each, "right": bool(right),
    "shape": coreset.images.shape, "resident": stream.resident is not None, "peak_growth":
    resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before}))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux to measure memory")
def test_data_larger_than_memory_stream_from_a_memory_map(tmp_path: Path) -> None:
    """A file of ImageNet's size at 64x64, with holes instead of most images: 15.7 GB of which little is on the disk."""
    path, one = tmp_path / "imagenet64.bin", 3 * 64 * 64
    order = torch.randperm(1_281_167, generator=torch.Generator().manual_seed(0))[: 4 * 256 : 50]
    with path.open("wb") as file:
        file.truncate(1_281_167 * one)
        for row in order.tolist():
            file.seek(row * one)
            file.write(b"\xff" * one)
    assert path.stat().st_size == 15_742_980_096
    assert path.stat().st_blocks * 512 < 10_000_000
    command = [sys.executable, "-c", LARGE, str(path), json.dumps(order.tolist()), str(tmp_path / "stage")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["bytes"] == path.stat().st_size
    assert found["right"]
    assert not found["resident"]
    assert found["shape"] == [2, 3, 64, 64]
    # Labels, order and batches; a copy of the data would be 15.7 GB, or 63 GB in float32.
    assert found["growth"] < 250e6
    assert found["peak_growth"] < 1e9
    assert found["made"] < 5
    # Reading ahead around every row would take seconds.
    assert found["each"] < 0.5


PLUGINS = {"standardize": Standardize(), "zca": ZCA(), "blocks": ZCA(block=4), "constants": Constants()}


def stored(folder: Path, plugin: Preprocessing) -> tuple[Data, Transform]:
    """Colour images in a memory map, and their fitted preprocessing."""
    images = np.random.default_rng(0).integers(0, 256, (90, 3, 8, 8), np.uint8)
    np.save(folder / "images.npy", images)
    facts = Facts(shape=(3, 8, 8), classes=3, sizes={"train": 90})
    data = Data(facts, Split(np.load(folder / "images.npy", mmap_mode="r"), np.arange(90) % 3))
    return data, Transform(plugin, plugin.fit(data, context(folder / "fit")))


@pytest.mark.parametrize("name", PLUGINS)
def test_numbers_do_not_depend_on_where_the_images_are(name: str, tmp_path: Path) -> None:
    data, transform = stored(tmp_path, PLUGINS[name])
    streams: dict[Place, Batches] = {
        place: Batches(data, transform, size=20, seed=3, device="cpu", place=place)
        for place in ("whole", "bytes", "stream", "mapped")
    }
    for _ in range(9):
        found = {place: stream.next() for place, stream in streams.items()}
        images, labels = found["mapped"]
        for place in ("bytes", "stream"):
            exact = name in ("standardize", "constants")
            torch.testing.assert_close(found[place][0], images, rtol=0, atol=0 if exact else 1e-5)
            assert torch.equal(found[place][1], labels)
        assert torch.equal(found["bytes"][0], found["stream"][0])
        whole, its_labels = found["whole"]
        order, its_order = (batch.flatten(1).sum(1).double().argsort() for batch in (images, whole))
        torch.testing.assert_close(whole[its_order], images[order], rtol=0, atol=1e-5)
        assert torch.equal(its_labels[its_order], labels[order])


def test_reading_ahead_is_no_part_of_the_state(tmp_path: Path) -> None:
    data, transform = stored(tmp_path, Standardize())
    stream, other = (Batches(data, transform, size=20, seed=3, device="cpu", place="stream") for _ in range(2))
    for _ in range(3):
        stream.next()
    other.load_state_dict(stream.state_dict())
    for _ in range(6):
        (a, labels_a), (b, labels_b) = stream.next(), other.next()
        assert torch.equal(a, b)
        assert torch.equal(labels_a, labels_b)


class Counted(np.ndarray):
    """A memory map that counts the rows that are read from it."""

    read = 0

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        found = super().__getitem__(index)
        if isinstance(index, np.ndarray):
            Counted.read = max(Counted.read, len(index))
        return found


@pytest.mark.parametrize("place", ["bytes", "stream", "mapped"])
def test_a_part_of_the_rows_is_never_read_as_a_whole(place: Place) -> None:
    data = numbered(20_000)
    images = data.train.images.view(Counted)
    kept = np.arange(1, 20_000)
    Counted.read = 0
    stream = Batches(
        replace(data, train=Split(images, data.labels)),
        Transform(Constants(), {"mean": np.zeros(1), "std": np.ones(1)}),
        size=100,
        seed=0,
        device="cpu",
        rows=kept,
        place=place,
    )
    seen = torch.cat([stream.next()[1] for _ in range(100)])
    assert int(seen.min()) >= 1
    assert 0 < Counted.read <= 4096


@pytest.mark.parametrize(
    ("free", "held", "needed", "place"),
    [
        (1_000_000, 0, None, "bytes"),  # half of it is more than the images
        (390_000, 0, None, "stream"),
        (400_000, 0, 150_000, "bytes"),
        (400_000, 0, 170_000, "stream"),  # the step would run out of memory
        (300_000, 100_000, 150_000, "bytes"),  # what is held is part of what is needed
    ],
)
def test_bytes_are_kept_on_a_device_only_beside_what_the_step_needs(
    free: int, held: int, needed: float | None, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """20,000 images of ten bytes, on the device of torch that holds nothing; the sizes of its memory are made up."""
    monkeypatch.setattr(batches_module, "_memory", lambda device: (float(free), float(held)))
    images = np.zeros((20_000, 1, 2, 5), np.uint8)
    transform = Transform(Constants(), {"mean": np.zeros(1), "std": np.ones(1)})
    found = TrainingImages(images, transform, device="meta", resident_bytes=0, needed=needed)
    assert found.place == place
    assert (found.resident is not None) == (place == "bytes")


@pytest.mark.parametrize(
    ("free", "needed", "place"),
    [
        (0, None, "whole"),  # torch cannot tell
        (1_700_000, None, "whole"),
        (1_500_000, None, "bytes"),
        (300_000, None, "stream"),
        (3_300_000, 2_800_000, "whole"),  # 800,000 of them are the images
        (3_100_000, 2_800_000, "bytes"),
        (2_500_000, 2_800_000, "stream"),
    ],
)
def test_small_images_are_preprocessed_on_a_device_only_if_they_fit(
    free: int, needed: float | None, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches_module, "_memory", lambda device: (float(free), 0.0))
    images = np.zeros((20_000, 1, 2, 5), np.uint8)
    transform = Transform(Constants(), {"mean": np.zeros(1), "std": np.ones(1)})
    assert TrainingImages(images, transform, device="meta", needed=needed).place == place
    assert TrainingImages(images, transform, device="cpu", needed=needed).place == "whole"


@pytest.mark.parametrize(
    "method",
    [
        VBPC(steps=1, network=ConvBN(width=2), batch=4, pool=1),
        RCIG(steps=1, network=ConvNN(width=2), batch=4, pool=1, search=False),
    ],
    ids=lambda one: one.name,
)
def test_methods_say_what_they_need_beside_the_images(
    method: Method, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = []
    own = TrainingImages.__init__

    def noted(self: TrainingImages, *given: Any, needed: float | None = None, **more: Any) -> None:
        asked.append(needed)
        own(self, *given, needed=needed, **more)

    monkeypatch.setattr(TrainingImages, "__init__", noted)
    method.distil(toy_data(), 1, toy_inputs(), context(tmp_path))
    assert asked == [method.peak_bytes(toy_data().facts, 1)]


def test_what_whitens_is_on_the_device_only_if_it_whitens_there(tmp_path: Path) -> None:
    data, transform = stored(tmp_path, ZCA(grey=True))
    assert TrainingImages(data.train.images, transform, device="cpu")._convert is None
    assert TrainingImages(data.train.images, transform, device="cpu", place="bytes")._convert is not None


def test_what_is_not_known_to_run_on_a_device_is_said() -> None:
    with pytest.raises(ValueError, match="scale is not known to run on a device"):
        Batches(toy_data(), toy_inputs().transform, size=4, seed=0, device="cpu", place="bytes")
