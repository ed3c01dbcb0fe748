"""A web server on this machine that serves files from memory, resumes, and breaks off when told to."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Site:
    """What is served, and what happened: `cuts` are after how many bytes the next responses break off."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    cuts: list[int] = field(default_factory=list)
    ranges: bool = True
    asked: list[tuple[str, str | None]] = field(default_factory=list)


@contextmanager
def serving() -> Iterator[Site]:
    """Serve until the end of the block."""
    site = Site()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            site.asked.append((self.path, wanted))
            content = site.files.get(self.path)
            if content is None:
                self.send_error(404)
                return
            start = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1]) if wanted and site.ranges else 0  # type: ignore[index]
            if start and start >= len(content):
                self.send_error(416)
                return
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            cut = site.cuts.pop(0) if site.cuts else None
            self.wfile.write(content[start:] if cut is None else content[start : start + cut])
            self.close_connection = True

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    site.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield site
    finally:
        server.shutdown()
        server.server_close()
