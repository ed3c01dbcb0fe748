"""The file of verified members: read once per process and line, whoever writes to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bpcbench.store import caches


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    seen: list[bytes] = []
    objects = caches._objects

    def noted(content: bytes):
        seen.append(content)
        return objects(content)

    monkeypatch.setattr(caches, "_objects", noted)
    return seen


def test_only_new_lines_are_read(tmp_path: Path, parsed: list[bytes]) -> None:
    path = tmp_path / caches.VERIFIED
    caches.append(path, [{"a": "one", "id": [1]}])
    assert caches.verified(path) == {"one": [1]}
    caches.append(path, [{"a": "two", "id": [2]}])
    with path.open("ab") as stream:
        stream.write(b'{"a": "three", "id"')
    assert caches.verified(path) == {"one": [1], "two": [2]}
    with path.open("ab") as stream:
        stream.write(b": [3]}\nnonsense\n")
    assert caches.verified(path) == {"one": [1], "two": [2], "three": [3]}
    assert [content.count(b'"a"') for content in parsed] == [1, 1, 1]


def test_a_file_that_is_new_shorter_or_gone_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / caches.VERIFIED
    assert caches.verified(path) == {}
    path.write_text('{"a": "one", "id": [1]}\n{"a": "two", "id": [2]}\n')
    assert set(caches.verified(path)) == {"one", "two"}
    path.write_text('{"a": "two", "id": [3]}\n')
    assert caches.verified(path) == {"two": [3]}
    path.rename(tmp_path / "other")
    path.write_text('{"a": "new", "id": [4]}\n')
    assert caches.verified(path) == {"new": [4]}
    path.unlink()
    assert caches.verified(path) == {}
