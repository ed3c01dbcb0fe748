"""The page in a real browser, opened from a file: it renders, sorts and filters, and runs nothing that it was given.

With BPCBENCH_TEST_SHOTS=FOLDER the page is also saved as pictures and as PDF.
"""

from __future__ import annotations

import base64
import csv
import io
import itertools
import os
import shutil
import time
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gallery
import pytest

from bpcbench.reporting.page import report_page

pytestmark = pytest.mark.browser
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of a suite with markup in every text, as a file."""
    folder = tmp_path_factory.mktemp("browser")
    with gallery.plugins():
        assert gallery.session(folder).run().exit_code == 1
        session = gallery.session(folder)
        page = report_page(session.view())
    (folder / "page.html").write_text(page, encoding="utf-8")
    return (folder / "page.html").as_uri()


@pytest.fixture(scope="module")
def downloads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("downloads")


@pytest.fixture(scope="module")
def start(downloads: Path) -> Iterator[Callable[..., Any]]:
    """A function that starts a browser; all are closed at the end."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("chromium and its driver are not installed")
    browsers = []

    def begin(script: bool = True) -> Any:
        options = webdriver.ChromeOptions()
        for word in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1280,900"):
            options.add_argument(word)
        options.binary_location = CHROMIUM
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        settings = {"download.default_directory": str(downloads)}
        if not script:
            settings["profile.managed_default_content_settings.javascript"] = 2
        options.add_experimental_option("prefs", settings)
        browsers.append(webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER)))
        return browsers[-1]

    yield begin
    for browser in browsers:
        browser.quit()


@pytest.fixture(scope="module")
def opened(start: Callable[..., Any]) -> Any:
    return start()


@pytest.fixture
def browser(opened: Any, address: str) -> Any:
    opened.get(address)
    return opened


def test_a_leaderboard_opens_sorts_and_filters_by_source(
    opened: Any, address: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = Path(urllib.parse.urlsplit(address).path).parent
    with gallery.plugins():
        assert gallery.session(folder, "methods.fade.steps=9", "seeds.distil=1").run().exit_code == 1
    from bpcbench import cli

    first, second = (path.name for path in sorted((folder / "store" / "suites").glob("*/*")))
    words = [f"{name}={folder / 'store'}:{gallery.NAME}:{digest}" for name, digest in (("a<b>", first), ("b", second))]
    page = tmp_path_factory.mktemp("board") / "board.html"
    assert cli.main(["leaderboard", *words, "--output", str(page), "--title", gallery.NAME]) == 0
    opened.get(page.as_uri())
    assert opened.get_log("browser") == []
    assert opened.execute_script("return window.hacked === undefined && document.images.length === 0")
    assert query(opened, "h1") == [gallery.NAME]
    origins = set(query(opened, ".block tbody tr", "outerHTML"))
    assert any('data-source="a&lt;b&gt;, b"' in row for row in origins), "what both have is one line"
    before = len(seen(opened, ".block tbody tr"))
    click(opened, 'input[data-axis=source][value="b"]')
    assert 0 < len(seen(opened, ".block tbody tr")) < before
    click(opened, ".block th[data-metric=nll] button")
    assert query(opened, ".block th[data-metric=nll]", "ariaSort")[0] == "ascending"


def save(browser: Any, name: str, content: bytes | None = None) -> None:
    """Save what is seen, or a content, if pictures are wanted."""
    if folder := os.environ.get("BPCBENCH_TEST_SHOTS"):
        # The whole page, not only the first screen.
        command = ("Page.captureScreenshot", {"captureBeyondViewport": True, "format": "png"})
        shot = content or base64.b64decode(browser.execute_cdp_cmd(*command)["data"])
        (Path(folder) / f"page-{name}{'' if '.' in name else '.png'}").write_bytes(shot)


def query(browser: Any, selector: str, what: str = "textContent") -> list[str]:
    code = "return [...document.querySelectorAll(arguments[0])].map(e => String(e[arguments[1]]))"
    return list(browser.execute_script(code, selector, what))


def seen(browser: Any, selector: str) -> list[str]:
    code = (
        "return [...document.querySelectorAll(arguments[0])].filter(e => e.checkVisibility()).map(e => e.textContent)"
    )
    return list(browser.execute_script(code, selector))


def click(browser: Any, selector: str) -> None:
    browser.execute_script("document.querySelector(arguments[0]).click()", selector)


def test_it_renders_without_an_error_and_runs_nothing_it_was_given(browser: Any) -> None:
    assert browser.get_log("browser") == []
    assert browser.execute_script("return window.hacked === undefined")
    assert query(browser, "h1") == [gallery.NAME]
    assert browser.execute_script("return document.images.length") == 0
    assert browser.execute_script("return document.scripts.length") == 1
    assert len(seen(browser, ".block")) == 2
    assert len(seen(browser, ".controls fieldset")) == 5
    assert len(seen(browser, "svg.bpc-figure")) > 10
    wide = "return document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    assert browser.execute_script(wide)


def test_embedded_images_are_decoded(browser: Any) -> None:
    code = """const done = arguments[0];
    Promise.all([...document.querySelectorAll(".album image")].map(i => {
      const image = new Image(); image.src = i.getAttribute("href");
      return image.decode().then(() => image.naturalWidth > 8);
    })).then(done, (e) => done(String(e)))"""
    decoded = browser.execute_async_script(code)
    assert decoded
    assert all(value is True for value in decoded)
    boxes = "return [...document.querySelectorAll('.grid-image')].filter(e => e.checkVisibility())"
    assert browser.execute_script(f"{boxes}.every(e => e.getBoundingClientRect().width > 8)")


def test_columns_sort_both_ways_and_keep_published_numbers_below_their_line(browser: Any) -> None:
    button = ".block th[data-metric=acc] button"
    for sort, direction in (("ascending", 1), ("descending", -1)):
        click(browser, button)
        assert query(browser, ".block th[data-metric=acc]", "ariaSort")[0] == sort
        column = query(browser, ".block th[data-metric=acc]", "outerHTML")[0].partition('data-c="')[2].partition('"')[0]
        code = """const rows = [...document.querySelector(".block tbody").rows];
        const value = (row) => row.querySelector(`[data-c="${arguments[0]}"]`).dataset.v;
        return rows.map(r => [r.dataset.published || "", r.dataset.method, value(r)])"""
        rows = browser.execute_script(code, column)
        values = [float(value) for published, _, value in rows if not published and value is not None]
        assert len(values) == 6
        assert values == sorted(values, reverse=direction < 0)
        assert [value for published, _, value in rows if not published][-2:] == [None, None], "what is missing is last"
        for above, (published, method, _) in itertools.pairwise(rows):
            assert not published or above[1] == method


def test_filters_hide_lines_blocks_and_pictures(browser: Any) -> None:
    methods = ".block tbody tr:not([hidden]) th"
    cards = len(seen(browser, ".coreset"))
    click(browser, 'input[data-axis=method][value="fade"]')
    assert not [name for name in query(browser, methods) if name.startswith("fade")]
    assert len(seen(browser, ".coreset")) == cards - 2
    click(browser, 'input[data-axis=ipc][value="1"]')
    assert len(seen(browser, ".block")) == 1
    click(browser, 'input[data-axis=ipc][value="2"]')
    assert seen(browser, ".block") == []
    assert seen(browser, ".nothing") == ["No line matches the filters."]
    click(browser, "button[data-action=reset]")
    assert len(seen(browser, ".block")) == 2
    assert len(seen(browser, ".coreset")) == cards


def test_metrics_can_be_switched(browser: Any) -> None:
    heads = ".block:first-child th[data-c]"
    assert [name.split()[0] for name in seen(browser, heads)] == ["acc", "nll"]
    code = """const s = document.getElementById("metric");
    s.value = [...s.options].find(o => o.text.startsWith(arguments[0])).value;
    s.dispatchEvent(new Event("change", {bubbles: true}))"""
    browser.execute_script(code, "brier")
    assert [name.split()[0] for name in seen(browser, heads)] == ["brier"]
    browser.execute_script(code, "all")
    assert len(seen(browser, heads)) == len(query(browser, heads)) > 5


def lay_out(browser: Any, layout: str) -> None:
    click(browser, f'[data-layouts] input[value="{layout}"]')


def test_the_layout_can_be_switched(browser: Any) -> None:
    assert seen(browser, "[data-layouts] label") == ["methods as lines", "data sets as rows, methods as columns"]
    assert seen(browser, ".layout > summary") == [], "the choice stands in the controls"
    assert (len(seen(browser, ".block")), seen(browser, ".sheet")) == (2, [])
    lay_out(browser, "paper")
    assert seen(browser, ".block") == []
    assert [name.split()[0] for name in seen(browser, ".sheet h3")] == ["acc", "nll"]
    save(browser, "paper")
    assert seen(browser, ".sheet:first-child tbody tr :is(b, u)"), "best and second are marked"
    lay_out(browser, "wide")
    assert (len(seen(browser, ".block")), seen(browser, ".sheet")) == (2, [])


def test_filters_and_metrics_apply_to_both_layouts(browser: Any) -> None:
    lay_out(browser, "paper")
    heads, rows = ".sheet:first-child th[data-line]", ".sheet:first-child tbody tr"
    before = seen(browser, heads)
    click(browser, 'input[data-axis=method][value="fade"]')
    after = seen(browser, heads)
    assert after == [name for name in before if not name.startswith("fade")] != before
    cells = browser.execute_script(
        "return [...document.querySelector('.sheet tbody tr').cells].filter(e => e.checkVisibility()).length"
    )
    assert cells == 2 + len(after)
    click(browser, 'input[data-axis=ipc][value="1"]')
    assert len(seen(browser, rows)) == 1
    click(browser, 'input[data-axis=ipc][value="2"]')
    assert seen(browser, ".sheet") == []
    assert seen(browser, ".nothing") == ["No line matches the filters."]
    click(browser, "button[data-action=reset]")
    assert seen(browser, heads) == before
    click(browser, f"{heads} button")
    assert query(browser, heads, "ariaSort")[0] == "ascending"


def test_the_slider_goes_from_the_start_to_the_end(browser: Any) -> None:
    assert seen(browser, ".between") == []
    code = """const card = [...document.querySelectorAll(".coreset")].find(c => c.dataset.method === "fade");
    const range = card.querySelector("input[type=range]");
    range.value = arguments[0]; range.dispatchEvent(new Event("input"));
    const last = card.querySelector(".last");
    return [last.querySelector(".when").textContent, last.querySelector("use").getAttribute("href"),
            range.getAttribute("aria-valuetext"), range.max]"""
    shown = [browser.execute_script(code, step) for step in range(6)]
    words = [when for when, *_ in shown]
    assert words == ["start", "step 1", "step 2", "step 5", "end", "end"], "steps 10 and 12 are the last and the end"
    assert len({href for _, href, *_ in shown[:5]}) == 5
    assert all(spoken == when for when, _, spoken, _ in shown)


def test_what_is_shown_can_be_downloaded(browser: Any, downloads: Path) -> None:
    click(browser, 'input[data-axis=ipc][value="2"]')
    click(browser, 'input[data-axis=inference][value="hot"]')
    for action in ("csv", "latex"):
        # A real click: a browser refuses the second download that nobody asked for.
        browser.find_element("css selector", f"button[data-action={action}]").click()
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and len([p for p in downloads.iterdir() if p.suffix in (".csv", ".tex")]) < 2:
        time.sleep(0.1)
    rows = list(csv.DictReader(io.StringIO((downloads / "results.csv").read_text(encoding="utf-8"))))
    assert {(row["ipc"], row["inference"]) for row in rows} == {("1", "centroid")}
    assert {row["metric"] for row in rows} == {"acc", "nll"}
    printed = [row for row in rows if row["source"] == "published" and row["metric"] == "acc"]
    assert [(row["method"], float(row["mean"]), row["n"]) for row in printed] == [
        ("fade", 0.875, ""),
        (gallery.LABEL, 0.875, ""),
    ]
    best = [row for row in rows if row["best"] == "True"]
    assert {row["metric"] for row in best} == {"acc", "nll"}
    tex = (downloads / "results.tex").read_text(encoding="utf-8")
    assert r"\begin{tabular}{lcc}" in tex
    assert r"\multicolumn{2}{c}{spots ipc 1}" in tex
    assert r"evil\textless{}script\textgreater{}" in tex
    assert tex.count(r"\textbf{") == len(best)


def test_latex_has_the_layout_that_is_shown(browser: Any, downloads: Path) -> None:
    lay_out(browser, "paper")
    click(browser, 'input[data-axis=inference][value="hot"]')
    before = set(downloads.iterdir())
    browser.find_element("css selector", "button[data-action=latex]").click()
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and not [p for p in set(downloads.iterdir()) - before if p.suffix == ".tex"]:
        time.sleep(0.1)
    (file,) = set(downloads.iterdir()) - before
    tex = file.read_text(encoding="utf-8")
    assert r"\begin{tabular}{llcccccccccccc}" in tex
    assert r" &  & \multicolumn{2}{c}{real} & \multicolumn{2}{c}{fade} & \multicolumn{2}{c}{fade (published)}" in tex
    assert r"\cmidrule(lr){3-4}\cmidrule(lr){5-6}" in tex
    body = [line for line in tex.splitlines() if line.startswith(("spots & 1 &", " & 2 &"))]
    assert len(body) == 2
    assert all(line.count(" & ") == 13 for line in body)


def test_a_line_s_command_can_be_copied(browser: Any) -> None:
    browser.execute_script("""window.copied = [];
    Object.defineProperty(navigator, "clipboard", {value: {writeText: async (t) => { window.copied.push(t) }}})""")
    click(browser, ".block tbody tr .copy")
    (copied,) = browser.execute_script("return window.copied")
    assert copied == query(browser, ".block tbody tr", "outerHTML")[0].partition('data-command="')[2].partition('"')[
        0
    ].replace("&quot;", '"').replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">")
    assert copied.startswith("bpcbench run ")


def test_every_picture_says_what_it_shows(browser: Any) -> None:
    code = """return [...document.querySelectorAll("svg[role=img], .grid-image, svg.bpc-figure")].filter(e =>
      !e.closest("[aria-hidden=true]") &&
      !(e.getAttribute("aria-label") || e.querySelector("title")?.textContent || "").trim()).map(e => e.outerHTML)"""
    assert browser.execute_script(code) == []
    assert len(query(browser, "svg[role=img]", "outerHTML")) > 10


def test_everything_is_reached_by_keyboard_and_has_a_name(browser: Any) -> None:
    code = """return [...document.querySelectorAll("button, input, select, summary, a, [tabindex]")]
      .filter(e => e.checkVisibility())
      .filter(e => !(e.textContent.trim() || e.getAttribute("aria-label") || e.closest("label")?.textContent.trim())
                   || e.tabIndex < 0).map(e => e.outerHTML)"""
    assert browser.execute_script(code) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_stand_out_from_their_background(browser: Any, scheme: str) -> None:
    """WCAG 2 AA: a contrast of at least 4.5."""
    feature = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", feature)
    code = """
    const parse = (colour) => {
      const [r, g, b, a] = colour.match(/[\\d.]+/g).map(Number);
      return [r, g, b, a === undefined ? 1 : a];
    };
    const linear = (v) => (v <= 0.03928 * 255 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
    const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
    const behind = (e) => {
      for (; e; e = e.parentElement) {
        const colour = parse(getComputedStyle(e).backgroundColor);
        if (colour[3] > 0.99) return colour;
      }
      return [255, 255, 255, 1];
    };
    const low = [];
    for (const e of document.querySelectorAll("body *:not(script):not(svg *)")) {
      if (!e.checkVisibility() || ![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())) continue;
      const a = light(parse(getComputedStyle(e).color)), b = light(behind(e));
      const contrast = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
      if (contrast < 4.5) low.push([e.tagName, e.className, contrast, e.textContent.slice(0, 30)]);
    }
    for (const e of document.querySelectorAll("svg text")) {
      if (!e.checkVisibility() || !e.textContent.trim()) continue;
      const a = light(parse(getComputedStyle(e).fill)), b = light(behind(e.closest("svg")));
      const contrast = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
      if (contrast < 4.5) low.push(["svg text", e.getAttribute("class"), contrast, e.textContent.slice(0, 30)]);
    }
    return low"""
    try:
        for layout in ("wide", "paper"):
            lay_out(browser, layout)
            assert browser.execute_script(code) == []
            save(browser, f"{scheme}-{layout}")
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_a_phone_scrolls_tables_inside_their_boxes(browser: Any, address: str) -> None:
    size = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        browser.get(address)
        assert browser.execute_script("return document.documentElement.scrollWidth") == 390
        assert browser.execute_script("return document.querySelector('.controls').open") is False
        save(browser, "phone")
        lay_out(browser, "paper")
        assert browser.execute_script("return document.documentElement.scrollWidth") == 390
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_paper_shows_what_is_folded_and_no_controls(browser: Any, address: str) -> None:
    browser.execute_script("""window.printed = [];
    addEventListener("beforeprint", () => printed.push(
      [...document.querySelectorAll("main > section details")].filter(d => !d.open && !d.hidden).length));""")
    folded = "return [...document.querySelectorAll('details')].filter(d => !d.open).length"
    before = browser.execute_script(folded)
    assert before > 0
    pdf = base64.b64decode(browser.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True})["data"])
    save(browser, "print.pdf", pdf)
    assert pdf.startswith(b"%PDF")
    assert pdf.count(b"/Type /Page\n") > 1
    assert browser.execute_script("return window.printed") == [0], "everything was unfolded"
    assert browser.execute_script(folded) == before, "and is folded again"
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        for selector in (".controls", "nav", ".copies", ".slider"):
            assert seen(browser, selector) == [], selector
        assert len(seen(browser, ".block")) == 2
        assert len(seen(browser, "svg.bpc-figure")) > 10
        # Paper does not scroll: what a box would cut off has to stand outside of it.
        cut = """return [...document.querySelectorAll(".scroll")].filter(e =>
          e.checkVisibility() && getComputedStyle(e).overflowX !== "visible").length"""
        assert browser.execute_script(cut) == 0
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_without_a_script_everything_stays_readable(start: Callable[..., Any], address: str) -> None:
    browser = start(script=False)
    browser.get(address)
    body = browser.find_element("tag name", "body")
    words = body.text
    assert "brier" in words, "all metrics are shown"
    assert "Copy" not in words
    assert not browser.find_element("css selector", ".controls").is_displayed()
    blocks = browser.find_elements("css selector", ".block")
    assert [block.is_displayed() for block in blocks] == [True, True]
    summaries = browser.find_elements("css selector", ".layout > summary")
    assert [summary.is_displayed() for summary in summaries] == [True, True]
    summaries[1].send_keys("\n")
    sheets = browser.find_elements("css selector", ".sheet")
    assert len(sheets) > 5
    assert all(sheet.is_displayed() for sheet in sheets), "the other layout needs no script either"
    assert any(svg.is_displayed() for svg in browser.find_elements("css selector", ".grid-image"))
    between = browser.find_elements("css selector", ".between")
    assert between
    assert all(one.is_displayed() for one in between)
