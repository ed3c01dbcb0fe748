"""Pages: how the commands write them and show them in a browser."""

from __future__ import annotations

import sys
import webbrowser

from bpcbench.commands.output import write_output
from bpcbench.text import spell_bytes


def write_page(page: str, output: str | None, name: str, *, show: bool) -> None:
    """Write a page to `output`, by default NAME.html in the current folder, and open it in a browser if `show`."""
    from bpcbench.reporting.page import page_path

    path = page_path(output, name)
    write_output(path, page)
    print(f"{path} ({spell_bytes(len(page.encode()))})", file=sys.stderr)
    if show and not webbrowser.open(path.as_uri()):
        print(f"no browser was found; open {path.as_uri()}", file=sys.stderr)
