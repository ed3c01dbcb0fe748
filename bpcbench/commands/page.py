"""Pages: how the commands write them and show them in a browser."""

from __future__ import annotations

import sys
import webbrowser
from pathlib import Path

from bpcbench.text import spell_bytes


def write_page(page: str, output: str | None, name: str, *, show: bool) -> None:
    """Write a page to `output`, by default NAME.html in the current folder, and open it in a browser if `show`."""
    safe = "".join(c if c.isalnum() or c in "-_.+" else "-" for c in name).lstrip(".") or "report"
    path = Path(output or f"{safe[:100]}.html").absolute()
    path.write_text(page, encoding="utf-8")
    print(f"{path} ({spell_bytes(len(page.encode()))})", file=sys.stderr)
    if show and not webbrowser.open(path.as_uri()):
        print(f"no browser was found; open {path.as_uri()}", file=sys.stderr)
