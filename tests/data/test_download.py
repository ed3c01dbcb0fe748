"""Downloads from a server on this machine: complete, resumed, wrong, missing, and archives that want to escape."""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import shutil
import signal
import socket
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from file_server import Site, serving

from bpcbench.data import download
from bpcbench.data.download import by_hand, fetch
from bpcbench.errors import UserError
from bpcbench.records import Download

CONTENT = os.urandom(1 << 20)


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with serving() as made:
        made.files["/file.bin"] = CONTENT
        yield made


def wanted(
    site: Site, content: bytes = CONTENT, *, name: str = "file.bin", path: str = "set/file.bin", **more: Any
) -> Download:
    return Download(f"{site.url}/{name}", path, md5=hashlib.md5(content).hexdigest(), **more)


def files(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def test_a_file_is_fetched_whole_and_nothing_else_is_left(site: Site, tmp_path: Path) -> None:
    assert fetch(wanted(site), tmp_path) == tmp_path / "set" / "file.bin"
    assert (tmp_path / "set" / "file.bin").read_bytes() == CONTENT
    assert files(tmp_path) == {"set/file.bin"}
    with pytest.raises(UserError, match="exists already"):
        fetch(wanted(site), tmp_path)
    sha = Download(f"{site.url}/file.bin", "again.bin", sha256=hashlib.sha256(CONTENT).hexdigest())
    assert fetch(sha, tmp_path).read_bytes() == CONTENT


def test_a_cut_connection_is_resumed_at_once(site: Site, tmp_path: Path) -> None:
    site.cuts = [1000, 500_000]
    fetch(wanted(site), tmp_path)
    assert (tmp_path / "set" / "file.bin").read_bytes() == CONTENT
    assert site.asked == [("/file.bin", None), ("/file.bin", "bytes=1000-"), ("/file.bin", "bytes=501000-")]


def test_what_came_is_kept_and_the_next_call_goes_on(site: Site, tmp_path: Path) -> None:
    site.cuts = [300_000, 0, 0, 0]
    with pytest.raises(UserError, match=r"after 300\.0 kB, which are kept"):
        fetch(wanted(site), tmp_path)
    assert not (tmp_path / "set").exists()
    assert len(files(tmp_path)) == 1
    site.asked.clear()
    fetch(wanted(site), tmp_path)
    assert site.asked == [("/file.bin", "bytes=300000-")]
    assert files(tmp_path) == {"set/file.bin"}


def test_a_server_that_cannot_resume_starts_over(site: Site, tmp_path: Path) -> None:
    site.ranges = False
    site.cuts = [300_000]
    fetch(wanted(site), tmp_path)
    assert (tmp_path / "set" / "file.bin").read_bytes() == CONTENT


def interrupted(site: Site, root: Path, size: int) -> None:
    """Leave an unfinished download of so many bytes behind."""
    site.cuts = [size, 0, 0, 0]
    with pytest.raises(UserError):
        fetch(wanted(site), root)
    site.asked.clear()


def test_a_file_that_changed_in_between_is_fetched_anew(site: Site, tmp_path: Path) -> None:
    interrupted(site, tmp_path, 300_000)
    other = CONTENT[::-1]
    site.files["/file.bin"] = other
    assert fetch(wanted(site, other), tmp_path).read_bytes() == other
    assert [asked for _, asked in site.asked] == ["bytes=300000-", None]


@pytest.mark.parametrize("kept", [len(CONTENT), len(CONTENT) + 5])
def test_a_part_that_is_complete_or_too_long_is_checked(site: Site, tmp_path: Path, kept: int) -> None:
    interrupted(site, tmp_path, 1000)
    (part,) = tmp_path.rglob("*.part")
    part.write_bytes((CONTENT + b"extra")[:kept])
    assert fetch(wanted(site), tmp_path).read_bytes() == CONTENT


def test_a_wrong_checksum_is_an_error_and_nothing_is_kept(site: Site, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not the official file: its md5 is") as caught:
        fetch(wanted(site, b"something else"), tmp_path)
    assert hashlib.md5(CONTENT).hexdigest() in str(caught.value)
    assert files(tmp_path) == set()
    assert len(site.asked) == 1


def test_a_missing_file_is_an_error(site: Site, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="HTTP status 404"):
        fetch(wanted(site, name="nothing"), tmp_path)
    assert files(tmp_path) == set()


def test_an_unreachable_server_is_an_error(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    gone = Download(f"http://127.0.0.1:{port}/file.bin", "file.bin", md5="0" * 32)
    with pytest.raises(UserError, match="cannot be reached"):
        fetch(gone, tmp_path)
    assert files(tmp_path) == set()
    assert by_hand(gone, tmp_path) == f"{gone.url} (MD5 {gone.md5}): place it as {tmp_path / 'file.bin'}"


def test_a_silent_server_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "_TIMEOUT", 0.1)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        gone = Download(f"http://127.0.0.1:{silent.getsockname()[1]}/file.bin", "file.bin", md5="0" * 32)
        with pytest.raises(UserError, match=r"cannot be reached|which are kept"):
            fetch(gone, tmp_path)


def test_two_processes_do_not_write_into_one_file(site: Site, tmp_path: Path) -> None:
    interrupted(site, tmp_path, 1000)
    (part,) = tmp_path.rglob("*.part")
    child, parent = os.pipe()
    pid = os.fork()  # a lock is one of a process
    if pid == 0:
        with part.open("ab") as stream:
            fcntl.lockf(stream, fcntl.LOCK_EX)
            os.write(parent, b"x")
            signal.pause()
    try:
        os.read(child, 1)
        with pytest.raises(UserError, match="another process is downloading"):
            fetch(wanted(site), tmp_path)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert fetch(wanted(site), tmp_path).read_bytes() == CONTENT


def test_a_full_disk_is_noticed_before_and_during(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=10))
    with pytest.raises(UserError, match=r"needs 1\.0 MB .*10 B are free"):
        fetch(wanted(site, size=len(CONTENT)), tmp_path)
    assert not site.asked
    monkeypatch.undo()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="No space left"):
        fetch(wanted(site), tmp_path)
    assert not (tmp_path / "set").exists()


def test_a_root_that_cannot_be_written_is_an_error(site: Site, tmp_path: Path) -> None:
    (tmp_path / "root").write_text("a file")
    with pytest.raises(UserError, match="cannot be written"):
        fetch(wanted(site), tmp_path / "root")


Members = dict[str, bytes]
GOOD: Members = {"pictures/a.txt": b"a", "pictures/deep/b.txt": b"b"}


def tar(members: Members, kind: str = "w:gz") -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode=kind) as archive:  # type: ignore[call-overload]
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            if content.startswith(b"-> "):
                info.type, info.linkname, info.size = tarfile.SYMTYPE, content[3:].decode(), 0
            archive.addfile(info, io.BytesIO(content))
    return made.getvalue()


def zipped(members: Members) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            info = zipfile.ZipInfo(name)
            if content.startswith(b"-> "):
                info.external_attr = 0o120777 << 16
            archive.writestr(info, content.removeprefix(b"-> "))
    return made.getvalue()


def unpacking(site: Site, content: bytes) -> Download:
    site.files["/archive"] = content
    return wanted(site, content, name="archive", path="pictures", unpack=True)


@pytest.mark.parametrize("archive", [tar(GOOD), tar(GOOD, "w"), tar(GOOD, "w:xz"), zipped(GOOD)])
def test_archives_are_unpacked_and_removed(site: Site, tmp_path: Path, archive: bytes) -> None:
    site.cuts = [50]
    fetch(unpacking(site, archive), tmp_path)
    assert files(tmp_path) == set(GOOD)
    assert (tmp_path / "pictures" / "deep" / "b.txt").read_bytes() == b"b"
    with pytest.raises(UserError, match="exists already"):
        fetch(unpacking(site, archive), tmp_path)


@pytest.mark.parametrize("pack", [tar, zipped])
@pytest.mark.parametrize(
    "evil",
    [
        {"../escaped.txt": b"x"},
        {"pictures/../../escaped.txt": b"x"},
        {"/tmp/bpcbench-escaped.txt": b"x"},
        {"pictures/link": b"-> ../../escaped", "pictures/link/x.txt": b"x"},
        {"pictures/link": b"-> /etc"},
    ],
)
def test_archives_cannot_leave_their_folder(site: Site, tmp_path: Path, pack: Any, evil: Members) -> None:
    root = tmp_path / "root"
    root.mkdir()
    try:
        fetch(unpacking(site, pack({**GOOD, **evil})), root)
    except UserError as error:
        assert "cannot be unpacked" in str(error)  # noqa: PT017
        assert not (root / "pictures").exists()
    else:
        # tar's own filter takes the leading slash off instead of refusing.
        assert files(root) == set(GOOD)
    assert files(tmp_path) <= {str(Path("root") / name) for name in GOOD} | {
        str(path.relative_to(tmp_path)) for path in root.rglob("*.part")
    }
    assert not Path("/tmp/bpcbench-escaped.txt").exists()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"no archive at all", "cannot be unpacked"),
        (tar(GOOD)[:-40], "cannot be unpacked"),
        (zipped(GOOD)[:-4] + b"xxxx", "cannot be unpacked"),
        (tar({"else/a.txt": b"a"}), "contains no folder pictures"),
        (zipped({"pictures": b"a file"}), "contains no folder pictures"),
    ],
    # Not from the bytes, which hold the time: all processes of a test run must name a test alike.
    ids=["no archive", "half a tar", "broken zip", "other folder", "a file"],
)
def test_archives_that_are_damaged_or_hold_something_else(
    site: Site, tmp_path: Path, content: bytes, says: str
) -> None:
    with pytest.raises(UserError, match=says):
        fetch(unpacking(site, content), tmp_path)
    assert not (tmp_path / "pictures").exists()
    assert not list(tmp_path.rglob("tmp-*"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"url": "ftp://x/y"},
        {"url": "file:///etc/passwd"},
        {"path": "../x"},
        {"path": "/x"},
        {"path": ""},
        {"path": "a\\..\\b"},
        {"md5": ""},
    ],
)
def test_a_download_must_make_sense(wrong: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"path below|neither http|no checksum"):
        Download(**{"url": "https://x/y", "path": "y", "md5": "0" * 32, **wrong})  # type: ignore[arg-type]
