"""The LaTeX of reports compiles, whatever names suites and plugins bring."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import gallery
import pytest

from bpcbench.reporting import render
from bpcbench.reporting.formats import Layout
from bpcbench.reporting.table import Table
from bpcbench.reporting.view import View

COMPILERS = {
    "pdflatex": ["-halt-on-error", "-interaction=nonstopmode", "-no-shell-escape"],
    "tectonic": ["--untrusted"],
}
COMPILER = next((name for name in COMPILERS if shutil.which(name)), None)
pytestmark = pytest.mark.skipif(COMPILER is None, reason="neither pdflatex nor tectonic is installed")
DOCUMENT = r"""\documentclass{article}
\usepackage[landscape,paperwidth=60cm,paperheight=90cm]{geometry}
\usepackage[utf8]{inputenc}
\usepackage{booktabs}
\begin{document}
%s
\end{document}
"""


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> View:
    return gallery.filled(tmp_path_factory.mktemp("latex")).view()


def compiled(text: str, folder: Path) -> bytes:
    (folder / "report.tex").write_text(DOCUMENT % text, encoding="utf-8")
    assert COMPILER is not None
    command = [COMPILER, *COMPILERS[COMPILER], "report.tex"]
    done = subprocess.run(command, cwd=folder, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout.decode(errors="replace")[-2000:]
    return (folder / "report.pdf").read_bytes()


@pytest.mark.parametrize("layout", ["wide", "paper"])
@pytest.mark.parametrize("what", ["results", "differences", "costs"])
def test_it_compiles(what: str, layout: Layout, view: View, tmp_path: Path) -> None:
    tables: dict[str, Table] = {
        "results": view.table(published=True),
        "differences": view.differences("real"),
        "costs": view.costs(),
    }
    assert compiled(render(tables[what], "latex", layout=layout), tmp_path).startswith(b"%PDF")
