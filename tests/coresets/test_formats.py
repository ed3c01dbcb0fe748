"""Files of others: every format on small generated files, and hostile ones, which give a sentence."""

from __future__ import annotations

import contextlib
import io
import json
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flax_files import packed
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors.numpy import save, save_file

from bpcbench.coresets.importing import contents as reader
from bpcbench.coresets.importing.contents import read_contents
from bpcbench.errors import UserError

IMAGES = np.random.default_rng(0).normal(size=(4, 3, 5, 5)).astype(np.float32)
LABELS = np.array([0, 0, 1, 1])


def arrays_of(path: Path) -> dict[str, Any]:
    return dict(read_contents([path]).arrays)


def test_every_format_gives_the_same_arrays(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=IMAGES, labels=LABELS)
    np.savez_compressed(tmp_path / "b.npz", images=IMAGES, labels=LABELS)
    save_file({"images": IMAGES, "labels": LABELS}, tmp_path / "c.safetensors")
    torch.save({"images": torch.tensor(IMAGES), "labels": torch.tensor(LABELS)}, tmp_path / "d.pt")
    old = {"images": torch.tensor(IMAGES), "labels": torch.tensor(LABELS)}
    torch.save(old, tmp_path / "e.pt", _use_new_zipfile_serialization=False)
    (tmp_path / "checkpoint_100").write_bytes(packed({"images": IMAGES, "labels": LABELS, "step": 7}))
    paths = [path for path in tmp_path.iterdir() if path.is_file()]
    assert len(paths) == 6
    for path in paths:
        arrays = arrays_of(path)
        assert set(arrays) == {"images", "labels"}, path
        np.testing.assert_array_equal(arrays["images"], IMAGES)
        np.testing.assert_array_equal(arrays["labels"], LABELS)


def test_single_arrays_are_named_by_their_files(tmp_path: Path) -> None:
    np.save(tmp_path / "images.npy", np.asfortranarray(IMAGES))
    torch.save(torch.tensor(LABELS), tmp_path / "labels_best.pt")
    found = read_contents([tmp_path / "images.npy", tmp_path / "labels_best.pt"])
    np.testing.assert_array_equal(found.arrays["images"], IMAGES)
    np.testing.assert_array_equal(found.arrays["labels_best"], LABELS)
    assert all(len(digest) == 64 for digest in found.files.values())


def test_nested_containers_are_joined_by_slashes(tmp_path: Path) -> None:
    torch.save({"data": [[torch.tensor(IMAGES), torch.tensor(LABELS)]], "accs": {"x": [0.5]}}, tmp_path / "dc.pt")
    assert set(arrays_of(tmp_path / "dc.pt")) == {"data/0/0", "data/0/1"}
    (tmp_path / "flax").write_bytes(packed({"ema_average": {"x_proto": IMAGES}, "opt": [{"mu": LABELS}]}))
    assert set(arrays_of(tmp_path / "flax")) == {"ema_average/x_proto", "opt/0/mu"}


def test_pictures_in_folders(tmp_path: Path) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (4, 5, 5, 3)).astype(np.uint8)
    for row, name in enumerate(("10", "10", "2", "2")):
        (tmp_path / name).mkdir(exist_ok=True)
        Image.fromarray(pixels[row]).save(tmp_path / name / f"{row}.png")
    found = arrays_of(tmp_path)
    assert found["labels"].tolist() == [2, 2, 10, 10]
    np.testing.assert_array_equal(found["images"], pixels[[2, 3, 0, 1]].transpose(0, 3, 1, 2))
    (tmp_path / "2" / "2.png").write_bytes(b"\x89PNG broken")
    with pytest.raises(UserError, match="no readable PNG"):
        arrays_of(tmp_path)


class Evil:
    def __reduce__(self) -> Any:
        return (Path.touch, (Path("touched"),))


def test_pickles_are_never_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"images": Evil()}, "evil.pt")
    Path("evil.pkl").write_bytes(pickle.dumps(Evil()))
    np.savez("evil.npz", images=np.array([Evil()], object), labels=LABELS)
    np.save("evil.npy", np.array([Evil()], object), allow_pickle=True)
    for name, words in (("evil.pt", "more than tensors"), ("evil.pkl", "is a pickle"), ("evil.npy", "never opened")):
        with pytest.raises(UserError, match=words):
            arrays_of(Path(name))
    found = read_contents([Path("evil.npz")])
    assert set(found.arrays) == {"labels"}
    assert "never opened" in found.refused["images"]
    assert not Path("touched").exists()


def npy(header: str, body: bytes = b"") -> bytes:
    text = header.encode("latin1") + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + body


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (npy("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999, 9), }"), "more than"),
        (npy("{'descr': '<f4', 'fortran_order': False, 'shape': (100, 9), }", b"1234"), "too early"),
        (npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-3, 9), }"), "shape"),
        (npy("{'descr': '|O', 'fortran_order': False, 'shape': (3,), }"), "never opened"),
        (npy("(" * 3000), "cannot be read"),
        (b"PK\x03\x04 and no zip", "damaged"),
        ((2**40).to_bytes(8, "little") + b"{}", "format is not known"),
        ((50).to_bytes(8, "little") + b"{" + b"x" * 60, "damaged"),
        (b"\xdf\xff\xff\xff\xff", "ends early"),
        (b"\x81" + b"\xa1a" + b"\x91" * 60 + b"\x01", "too deeply"),
        (b"\x81\xa1a" + packed(IMAGES)[:-9], "ends early"),
        (b"hello", "format is not known"),
        (b"", "format is not known"),
    ],
)
def test_hostile_files_give_a_sentence(content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(UserError, match=words):
        read_contents([tmp_path / "file"])


def test_archives_are_measured_before_they_are_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from bpcbench.coresets.importing import numpy_files, tensors

    for module in (reader, numpy_files, tensors):
        monkeypatch.setattr(module, "FILE_BYTES", 50_000)
    np.savez_compressed(tmp_path / "bomb.npz", images=np.zeros(1_000_000, np.uint8))
    torch.save(torch.zeros(1).expand(10**9), tmp_path / "view.pt")
    with zipfile.ZipFile(tmp_path / "bomb.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data.pkl", bytes(1_000_000))
    for name in ("bomb.npz", "bomb.pt"):
        with pytest.raises(UserError, match="unpacks to"):
            read_contents([tmp_path / name])
    assert "too large" in next(iter(read_contents([tmp_path / "view.pt"]).refused.values()))
    (tmp_path / "big.npy").write_bytes(bytes(60_000))
    with pytest.raises(UserError, match="more than the 50,000"):
        read_contents([tmp_path / "big.npy"])


def seeds() -> list[bytes]:
    buffer = io.BytesIO()
    np.savez(buffer, images=IMAGES, labels=LABELS)
    single = io.BytesIO()
    np.save(single, IMAGES)
    tensors = io.BytesIO()
    torch.save({"a": torch.tensor(IMAGES)}, tensors)
    flax = packed({"params": {"x": IMAGES, "y": LABELS}})
    return [buffer.getvalue(), single.getvalue(), tensors.getvalue(), flax, save({"images": IMAGES})]


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    which=st.integers(0, 4),
    cut=st.integers(0, 2000),
    edits=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=6),
)
def test_damaged_headers_never_raise_anything_else(
    which: int, cut: int, edits: list[tuple[int, int]], tmp_path: Path
) -> None:
    content = bytearray(seeds()[which])
    for at, value in edits:
        content[at % len(content)] = value
    if cut < len(content) and cut % 3 == 0:
        del content[cut:]
    path = tmp_path / "file"
    path.write_bytes(bytes(content))
    with contextlib.suppress(UserError):
        assert all(isinstance(array, np.ndarray) for array in read_contents([path]).arrays.values())


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_as_msgpack(content: bytes) -> None:
    from bpcbench.coresets.importing.flax import decoded

    with contextlib.suppress(ValueError):
        decoded(content)


def test_bfloat16_of_flax(tmp_path: Path) -> None:
    raw = (np.array([1.5, -2.0], np.float32).view(np.uint32) >> 16).astype(np.uint16).tobytes()
    body = packed([[2], "bfloat16", raw])
    (tmp_path / "f").write_bytes(b"\x81\xa1x\xc9" + struct.pack(">Ib", len(body), 1) + body)
    assert arrays_of(tmp_path / "f")["x"].tolist() == [1.5, -2.0]


def test_json_of_an_export_is_text(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", bpcbench=np.array(json.dumps({"a": 1})), images=IMAGES)
    assert json.loads(read_contents([tmp_path / "a.npz"]).text["bpcbench"]) == {"a": 1}
