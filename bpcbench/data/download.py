"""Download the files that a data set declares: resumed, verified, unpacked safely, and moved into place atomically.

Partial downloads lie in `.bpcbench/downloads` below the data root. An existing file or folder is never replaced.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import http.client
import os
import shutil
import stat
import sys
import tarfile
import urllib.error
import urllib.request
import uuid
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any

from bpcbench.errors import UserError
from bpcbench.records import Download
from bpcbench.text import spell_bytes

_TIMEOUT = 60.0
_ATTEMPTS = 3
"""How many connections in a row may break without delivering a byte."""
_SLICE = 1 << 18
_CUT = (http.client.HTTPException, ConnectionError, TimeoutError)


def fetch(wanted: Download, root: Path) -> Path:
    """Download one file, or the folder in its archive, below `root` and return its path; raise UserError on failure.

    A partial download is kept when the connection breaks, and the next call resumes it.
    """
    target = root / wanted.path
    if target.exists():
        raise UserError(f"{target} exists already; move it away to download it again")
    place = root / ".bpcbench" / "downloads"
    name = f"{hashlib.sha256(wanted.url.encode()).hexdigest()[:8]}-{wanted.url.rpartition('/')[2] or 'file'}"
    part = place / f"{name}.part"
    try:
        place.mkdir(parents=True, exist_ok=True)
        with _alone(part) as stream:
            _check_space(wanted, root, stream.tell())
            _complete(wanted, stream)
            target.parent.mkdir(parents=True, exist_ok=True)
            if wanted.unpack:
                _unpack(part, target, place)
                part.unlink()
            else:
                part.replace(target)
    except OSError as error:
        raise UserError(f"{target} cannot be written: {error}") from None
    finally:
        with contextlib.suppress(OSError):
            if not part.stat().st_size:
                part.unlink()
        with contextlib.suppress(OSError):
            place.rmdir()
    return target


def by_hand(wanted: Download, root: Path) -> str:
    """Return instructions for downloading the file by hand."""
    checksum = f"MD5 {wanted.md5}" if wanted.md5 else f"SHA-256 {wanted.sha256}"
    what = "unpack it as" if wanted.unpack else "place it as"
    return f"{wanted.url} ({checksum}): {what} {root / wanted.path}"


@contextlib.contextmanager
def _alone(part: Path) -> Iterator[IO[bytes]]:
    """Open the partial file for appending, locked for one process at a time."""
    with part.open("ab") as stream:
        try:
            fcntl.lockf(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"another process is downloading {part.name}") from None
        stream.seek(0, os.SEEK_END)
        yield stream


def _check_space(wanted: Download, root: Path, have: int) -> None:
    needed = ((wanted.size or 0) - have) + (wanted.size or 0) * wanted.unpack
    free = shutil.disk_usage(root).free
    if needed > free:
        raise UserError(f"{wanted.url} needs {spell_bytes(needed)} below {root}, but only {spell_bytes(free)} are free")


def _complete(wanted: Download, stream: IO[bytes]) -> None:
    """Download the rest and verify the checksum; if a resumed file does not match, download it once from the start."""
    resumed = stream.tell() > 0
    _continue(wanted, stream)
    mismatch = _checksum(wanted, stream)
    if mismatch and resumed:
        stream.truncate(0)
        stream.seek(0)
        _continue(wanted, stream)
        mismatch = _checksum(wanted, stream)
    if mismatch:
        Path(stream.name).unlink()
        raise UserError(f"{wanted.url} is not the official file: {mismatch}. Nothing of it was kept.")


def _continue(wanted: Download, stream: IO[bytes]) -> None:
    """Append to the stream until the file is complete; retry when the connection breaks."""
    idle = 0
    while True:
        before = stream.tell()
        try:
            if _receive(wanted, stream):
                break
            why = "the connection broke"
        except urllib.error.HTTPError as error:
            if error.code == 416 and before:  # complete, or too long: the checksum decides
                break
            raise UserError(f"{wanted.url} cannot be downloaded: HTTP status {error.code} {error.reason}") from None
        except urllib.error.URLError as error:
            raise UserError(f"{wanted.url} cannot be reached: {error.reason}") from None
        except _CUT as error:
            why = f"{type(error).__name__} {error}".strip()
        stream.flush()
        idle = idle + 1 if stream.tell() == before else 0
        if idle == _ATTEMPTS:
            raise UserError(
                f"{wanted.url}: {why} after {spell_bytes(stream.tell())}, which are kept; run it again to resume"
            )
    stream.flush()
    os.fsync(stream.fileno())


def _receive(wanted: Download, stream: IO[bytes]) -> bool:
    """Append one response to the stream; return whether it is complete."""
    from tqdm import tqdm

    have = stream.tell()
    headers = {"User-Agent": "bpcbench", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    request = urllib.request.Request(wanted.url, headers=headers)  # noqa: S310 - a Download is http or https
    with urllib.request.urlopen(request, timeout=_TIMEOUT) as response:  # noqa: S310
        if have and (response.status != 206 or not _starts_at(response.headers.get("Content-Range"), have)):
            stream.truncate(0)  # the server does not resume: start over
            have = stream.seek(0)
        length = response.headers.get("Content-Length")
        total = have + int(length) if length and length.isdigit() else None
        with tqdm(
            desc=wanted.url.rpartition("/")[2],
            total=total or wanted.size,
            initial=have,
            unit="B",
            unit_scale=True,
            mininterval=0.1 if sys.stderr.isatty() else 5.0,
            file=sys.stderr,
        ) as bar:
            while part := response.read(_SLICE):
                stream.write(part)
                bar.update(len(part))
    return total is None or stream.tell() >= total


def _starts_at(content_range: str | None, have: int) -> bool:
    return bool(content_range) and str(content_range).replace("bytes ", "", 1).startswith(f"{have}-")


def _checksum(wanted: Download, stream: IO[bytes]) -> str:
    """Return how the checksum differs from the official one, or an empty string."""
    name, official = ("sha256", wanted.sha256) if wanted.sha256 else ("md5", wanted.md5)
    actual: Any = hashlib.new(name, usedforsecurity=False)
    with Path(stream.name).open("rb") as content:
        while part := content.read(_SLICE):
            actual.update(part)
    return "" if actual.hexdigest() == official.lower() else f"its {name} is {actual.hexdigest()}, not {official}"


def _unpack(archive: Path, target: Path, place: Path) -> None:
    """Unpack into a temporary folder and rename the wanted folder into place; the rest of the archive is discarded."""
    temporary = place / f"tmp-{uuid.uuid4().hex}"
    try:
        temporary.mkdir()
        try:
            if zipfile.is_zipfile(archive):
                _unzip(archive, temporary)
            else:
                _untar(archive, temporary)
        except Exception as error:  # a damaged archive may fail in any way
            raise UserError(f"{archive.name} cannot be unpacked: {error}") from None
        folder = temporary / target.name
        if not folder.is_dir():
            raise UserError(f"{archive.name} contains no folder {target.name}")
        folder.rename(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _untar(archive: Path, folder: Path) -> None:
    if not hasattr(tarfile, "data_filter"):
        raise ValueError("this Python cannot unpack tar files safely; use a newer release of it")
    with tarfile.open(archive) as opened:
        opened.extractall(folder, filter="data")


def _unzip(archive: Path, folder: Path) -> None:
    with zipfile.ZipFile(archive) as opened:
        for member in opened.infolist():
            path = PurePosixPath(member.filename)
            if path.is_absolute() or ".." in path.parts or "\\" in member.filename or _is_link(member):
                raise ValueError(f"{member.filename!r} would leave the folder")
        opened.extractall(folder)  # noqa: S202 - every name was checked


def _is_link(member: zipfile.ZipInfo) -> bool:
    return stat.S_ISLNK(member.external_attr >> 16)
