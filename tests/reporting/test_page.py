"""The page of a suite: complete, self-contained, and safe whatever texts plugins and suites bring."""

from __future__ import annotations

import base64
import hashlib
import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import gallery
import pytest

from bpcbench import Session, cli
from bpcbench.figures.svg import STYLE
from bpcbench.reporting.formats import Layout
from bpcbench.reporting.page import report_page
from bpcbench.reporting.page.charts import Dot, Key, front
from bpcbench.reporting.page.comparisons import agreement_charts
from bpcbench.reporting.page.images import Album
from bpcbench.reporting.page.markup import Html, element, text
from bpcbench.reporting.page.ranks import mean_ranks
from bpcbench.reporting.rows import Row
from bpcbench.reporting.table import build
from bpcbench.reporting.view import View


class Outline(HTMLParser):
    """Every element with its attributes, texts outside of script and style, and whether tags are balanced."""

    VOID = ("meta", "input", "br")

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.raw: dict[str, str] = {}
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("script", "style"):
            self.raw[self.open[-1]] = self.raw.get(self.open[-1], "") + data
        else:
            self.words.append(data)

    def having(self, tag: str, **attributes: str) -> list[dict[str, str | None]]:
        wanted = {name.replace("_", "-"): value for name, value in attributes.items()}
        return [have for name, have in self.elements if name == tag and wanted.items() <= have.items()]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Session:
    return gallery.filled(tmp_path_factory.mktemp("page"))


@pytest.fixture(scope="module")
def view(made: Session) -> View:
    return made.view()


@pytest.fixture(scope="module")
def page(view: View) -> str:
    return report_page(view)


@pytest.fixture(scope="module")
def outline(page: str) -> Outline:
    return Outline(page)


def test_texts_enter_as_texts(outline: Outline, page: str) -> None:
    assert [tag for tag, _ in outline.elements if tag == "img"] == []
    assert len(outline.having("script")) == 1
    assert "hacked" not in outline.raw["script"] + outline.raw["style"]
    assert not [name for _, attributes in outline.elements for name in attributes if name.startswith("on")]
    words = " ".join(outline.words)
    assert gallery.NAME in words
    assert "described </script><script>window.hacked=1</script>" in words
    for origin in ("torn apart ", "noted ", "Author ", "Printed "):
        assert f"{origin}{gallery.EVIL[:20]}" in words, origin
    assert gallery.LABEL in words
    helped = [th.get("title") or "" for th in outline.having("th", data_metric="right")]
    assert any(title.startswith(f"share {gallery.EVIL[:20]}") for title in helped)


def test_nothing_is_loaded_and_only_its_own_script_may_run(outline: Outline, page: str) -> None:
    (policy,) = (str(m["content"]) for m in outline.having("meta", http_equiv="Content-Security-Policy"))
    for kind in ("script", "style"):
        digest = base64.b64encode(hashlib.sha256(outline.raw[kind].encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    addresses = [
        str(value)
        for _, attributes in outline.elements
        for name, value in attributes.items()
        if name in ("src", "href", "xlink:href", "action", "data")
    ]
    assert addresses
    assert {address[0] if address[0] == "#" else address[:22] for address in addresses} == {
        "#",
        "data:image/png;base64,"[:22],
    }
    assert not [tag for tag, attributes in outline.elements if "style" in attributes]
    assert page.count(STYLE) == 1, "the rules of figures stand once"


def test_every_number_of_the_table_is_there(outline: Outline, view: View) -> None:
    table = view.table(("acc", "nll"), published=True)
    shown = {(cell["data-c"], cell.get("data-v")) for cell in outline.having("td") if "data-c" in cell}
    for line in table.lines:
        for cell in line.cells:
            if cell.summary is not None:
                assert any(value == repr(cell.summary.mean) for _, value in shown), line
    rows = [row for row in outline.having("tr") if "data-method" in row]
    assert len([row for row in rows if "data-published" in row]) == 4
    assert {row["data-method"] for row in rows} == {"real", "fade", "torn", gallery.LABEL}
    assert len(outline.having("section", data_dataset="spots")) == 2, "nothing of 16 per class is there to show"


def test_marks_of_best_second_and_tied_are_those_of_the_table(page: str, view: View) -> None:
    metrics = dict.fromkeys(row.metric for row in view.rows())
    table = view.table(tuple(metrics), published=True)
    cells = [cell for line in table.lines for cell in line.cells]
    for part in layouts(page).values():
        bodies = "".join(re.findall(r"<tbody>(.*?)</tbody>", part, re.S))
        assert bodies.count("<b>") == sum(cell.best for cell in cells) > 0
        assert bodies.count("<u>") == sum(cell.second and not cell.best for cell in cells)
        assert bodies.count('<i title="not distinguishable') == sum(cell.tied for cell in cells) > 0


def layouts(page: str) -> dict[str, str]:
    """The tables of a page by their layout, in its order."""
    parts = page.partition('id="unfinished"')[0].split("<details")[1:]
    named = [(re.search('data-layout="(.*?)"', part.partition(">")[0]), part) for part in parts]
    return {found[1]: part for found, part in named if found}


def test_the_paper_s_layout_has_a_table_per_metric_with_methods_as_columns(page: str, view: View) -> None:
    sheets = layouts(page)["paper"].split('<section class="sheet"')[1:]
    assert len(sheets) == len({row.metric for row in view.rows()})
    (acc,) = (sheet for sheet in sheets if ">acc % ↑</h3>" in sheet)
    heads = re.findall(r"<th [^>]*data-line[^>]*><span>(.*?)</span><small> (.*?)</small>", acc)
    table = view.table(("acc",), published=True)
    assert [method for method, _ in heads] == [text(line.label("method")) for line in table.lines]
    rows = re.findall(r'<tr data-filtered data-dataset="spots" data-ipc="(.)">(.*?)</tr>', acc)
    assert [ipc for ipc, _ in rows] == ["1", "2"]
    for at, (_, row) in enumerate(rows):
        cells = row.partition("</th>")[2].split("<td")[2:]
        shown = [re.search(r"<(b|u|span)>(.*?)</", cell)[2] for cell in cells]  # type: ignore[index]
        means = [line.cells[at].mean for line in table.lines]
        printed = [bool(line.published) for line in table.lines]
        assert shown == ["" if mean == "—" and p else mean for mean, p in zip(means, printed, strict=True)]


@pytest.mark.parametrize("layout", ["wide", "paper"])
def test_the_layout_asked_for_comes_first_and_alone_is_unfolded(view: View, layout: Layout) -> None:
    found = layouts(report_page(view, layout=layout))
    assert next(iter(found)) == layout
    assert [" open" in part.partition(">")[0] for part in found.values()] == [True, False]


def test_states_and_reasons_are_listed(outline: Outline) -> None:
    words = " ".join(outline.words)
    assert "56 of 64 evaluations have results, 8 failed, 32 skipped" in words
    assert "at most 15 per class" in words
    for mark in ("generated", "reconstruction"):
        assert mark in outline.words
    for fact in ("2 of distillation, 2 of evaluation for each", "digest", "version of numpy", "started (UTC)"):
        assert fact in words, fact


def test_pictures_have_texts_and_are_embedded_once(outline: Outline) -> None:
    images = outline.having("image")
    assert images
    assert len({image["href"] for image in images}) == len(images)
    ids = {f"#{image['id']}" for image in images}
    uses = [use["href"] for use in outline.having("use")]
    assert set(uses) == ids
    assert len(uses) > len(images), "the start of one method's coreset is also that of another"
    assert not [svg for svg in outline.having("svg") if not svg.get("aria-label") and svg.get("aria-hidden") != "true"]
    figures = [svg["aria-label"] or "" for svg in outline.having("svg", role="img")]
    assert any("the coreset after 5 steps" in label for label in figures)
    assert any("the coreset at its start" in label for label in figures)


def test_every_figure_of_the_evaluators_is_drawn(outline: Outline) -> None:
    words = " ".join(outline.words)
    for title in ("Reliability (classification)", "Risk and coverage (classification)"):
        assert title in words
    for name in ("Curve", "Bars", "Matrix", "Calibrated"):
        assert f"{name} (shapes)" in words


def test_anytime_curves_stand_in_the_page_of_the_same_request(tmp_path: Path) -> None:
    with gallery.plugins():
        session = gallery.session(tmp_path, "methods.torn=false", "ipc=[1]")
        seen, _ = session.anytime((0, 5, 12))
        assert seen is not None
        drawn = report_page(session.view())
    assert "Quality over time" in drawn
    assert 'aria-label="spots, 1 per class: acc % against CPU seconds of distillation' in drawn
    with gallery.plugins():
        other = gallery.session(tmp_path, "methods.torn=false", "ipc=[2]")
        assert other.run().exit_code == 0
        assert "Quality over time" not in report_page(other.view())


def test_a_command_makes_its_line_and_nothing_else(view: View, outline: Outline, made: Session) -> None:
    rows = outline.having("tr", data_method="fade", data_inference="hot")
    command = next(str(row["data-command"]) for row in rows if "data-command" in row)
    words = shlex.split(command)
    assert words[:2] == ["bpcbench", "run"]
    arguments = cli.parser().parse_args(words[1:])
    with gallery.plugins():
        cells = Session(arguments.suite, arguments.overrides, out=made.out).plan().cells
    kept = {(cell.at.method, cell.at.inference, cell.at.ipc) for cell in cells}
    # A label with such characters cannot be named in an override, and stays.
    assert kept == {("fade", "hot", 1), (gallery.LABEL, "hot", 1)}
    mine = {cell.coresets for cell in view.manifest.cells if (cell.group.method, cell.group.ipc) == ("fade", 1)}
    assert mine == {cell.coresets for cell in cells if cell.at.method == "fade"}


def test_a_page_of_no_results_says_so(view: View, tmp_path: Path) -> None:
    empty = replace(view.store, root=tmp_path, _meta={}, _verified={})
    assert "The store has no results of this suite yet." in report_page(View(empty, view.invocation))


def test_the_command_writes_a_file(
    made: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or True)
    monkeypatch.chdir(tmp_path)
    words = ["report", made.suite, "--out", str(made.out), "--format", "html"]
    assert cli.main([*words, "--output", "page.html", "--open"]) == 0
    assert (tmp_path / "page.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert opened == [(tmp_path / "page.html").as_uri()]
    assert cli.main([*words, "--layout", "paper", "--output", "paper.html"]) == 0
    assert next(iter(layouts((tmp_path / "paper.html").read_text(encoding="utf-8")))) == "paper"
    (tmp_path / "paper.html").unlink()
    assert cli.main(words) == 0
    (other,) = (path for path in tmp_path.iterdir() if path.name != "page.html")
    assert other.name == "-img-src-x-onerror-window.hacked-1-.html"
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--open"], "--open shows a page: add --format html"),
        (["--format", "html", "--costs"], "costs can be written as"),
        (["--format", "html", "--metrics", "ac"], "did you mean 'acc'"),
        (["--format", "html", "--output", "nowhere/page.html"], "its folder does not exist"),
    ],
)
def test_wrong_requests_write_nothing(
    more: list[str],
    message: str,
    made: Session,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["report", made.suite, "--out", str(made.out), *more]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_metrics_named_are_shown_first(view: View) -> None:
    outline = Outline(report_page(view, ("brier",)))
    shown = {th["data-metric"] for th in outline.having("th") if "data-shown" in th}
    assert shown == {"brier"}
    assert {"acc", "nll"} <= {th.get("data-metric") for th in outline.having("th")}


def test_elements_escape_everything_but_html() -> None:
    made = element("p", "<b>", Html("<i></i>"), None, title='"&', hidden=True, id=None)
    assert made == '<p title="&quot;&amp;" hidden>&lt;b&gt;<i></i></p>'
    assert text("\x00\x1b") == "\ufffd\ufffd"


def test_an_image_shown_twice_is_kept_once() -> None:
    png = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + (3).to_bytes(4, "big") + (5).to_bytes(4, "big")
    album = Album()
    first, second = album.show(png, "one"), album.show(png, "two")
    assert 'viewBox="0 0 3 5"' in first
    assert re.search('href="#(.*?)"', first)[1] == re.search('href="#(.*?)"', second)[1]  # type: ignore[index]
    assert str(album.definitions()).count("<image ") == 1


def test_the_front_has_what_no_other_beats_in_both() -> None:
    values = {"cheap": (1, 0.5), "worse": (2, 0.4), "dear": (9, 0.9), "twin": (9, 0.8), "equal": (10, 0.9)}
    dots = [Dot(name, "m", "i", x, y) for name, (x, y) in values.items()]
    assert [dot.label for dot in front(dots, True)] == ["cheap", "dear"]
    assert [dot.label for dot in front(dots, False)] == ["cheap", "worse"]


def test_agreement_is_drawn_beside_what_all_data_reach() -> None:
    values = {"a": [[0.7, 0.8]], "b": [[0.9, 0.9]], "whole": [[0.95, 0.95]]}
    rows = [
        *rank_rows(values, metric="agreement", evaluator="posterior"),
        *rank_rows({"a": [[0.3, 0.2]]}, metric="total_variation", evaluator="posterior", higher_is_better=False),
        *rank_rows(values),
    ]
    key = Key(("a", "b", "whole"), ("i",))
    table = build(rows, ("acc", "agreement", "total_variation"))
    drawn = str(agreement_charts(table, ["whole"], key))
    assert drawn.count("<figure") == 2
    first, second = drawn.split("<figure")[1:]
    assert "whole / i 0.95; b / i 0.9; a / i 0.75" in first, "the closest first"
    assert first.count('class="line level"') == 1
    assert first.count("<title>whole / i</title>") == 1
    assert "a / i 0.25" in second
    assert 'class="line level"' not in second
    assert "Lines down: whole, all training data" in drawn
    assert "Lines down" not in str(agreement_charts(table, [], key))
    assert agreement_charts(build(rows, ("acc",)), ["whole"], key) is None


def test_looks_are_of_methods_and_inferences() -> None:
    key = Key(tuple(f"m{i}" for i in range(9)), ("a", "b"))
    assert key.colour("m0") == key.colour("m7") != key.colour("m1")
    assert key.marker("m0") != key.marker("m7"), "methods that share a colour have other markers"
    assert key.dash("a") != key.dash("b")


def rank_rows(values: dict[str, list[list[float]]], **changes: object) -> Iterator[Row]:
    """Yield rows of values[method][block][seed]."""
    for method, blocks in values.items():
        for block, seeds in enumerate(blocks):
            for seed, value in enumerate(seeds):
                row = Row("d", block, method, "i", "n", f"{method}{block}{seed}", seed, 0, "e", "acc", value, True)
                yield replace(row, **changes)  # type: ignore[arg-type]


def test_mean_ranks_are_averaged_over_blocks_then_seeds() -> None:
    values = {"a": [[0.9, 0.9], [0.9, 0.1]], "b": [[0.5, 0.5], [0.5, 0.5]], "c": [[0.1, 0.1], [0.1, 0.9]]}
    found = {one.method: one for one in mean_ranks(list(rank_rows(values)), "acc")}
    assert {name: one.mean for name, one in found.items()} == {"a": 1.5, "b": 2.0, "c": 2.5}
    assert (found["b"].low, found["b"].high, found["b"].n) == (2.0, 2.0, 2)
    # Seeds give 1 and 2: 1.5 ± 12.706 · 0.7071 / √2.
    assert found["a"].low == pytest.approx(1.5 - 12.7062 / 2, abs=1e-3)


def test_ranks_need_two_lines_that_every_block_has() -> None:
    values = {"a": [[0.9], [0.8]], "b": [[0.5]]}
    assert mean_ranks(list(rank_rows(values)), "acc") == []
    assert mean_ranks(list(rank_rows({"a": [[0.9]], "b": [[0.5]]}, ranked=False)), "acc") == []
    assert mean_ranks(list(rank_rows({"a": [[0.9]], "b": [[0.5]]})), "nll") == []
