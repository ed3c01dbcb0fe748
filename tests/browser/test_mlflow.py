"""What a person sees in MLflow's pages, in a real browser: `pytest tests/browser -m browser`.

With BPCBENCH_TEST_SHOTS=FOLDER every page is also saved as a picture.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from urllib.parse import quote

import pytest

import bpcbench
from bpcbench import Session

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs chromium and chromedriver"),
]
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--window-size=1600,1000",
)
TRAINING = "workflowType=machine_learning"
SUITE = """
name: seen
description: Three methods on digits.
protocol: 1
datasets: [digits]
ipc: [1, 10]
methods:
  random:
  kmeans:
  vbpc: {steps: 5, batch: 64, network: {plugin: conv-nn, width: 4}}
inferences: {network: {steps: 60}}
networks: {conv-nn: {width: 8}}
seeds: {distil: 2, evaluate: 1}
"""


class Page:
    """A browser at the MLflow of a store that was copied to another place after its run."""

    def __init__(self, driver, base, store, report):
        self.driver, self.base, self.store, self.report = driver, base, store, report
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        from mlflow import MlflowClient

        client = MlflowClient(f"sqlite:///{store / 'mlflow.db'}")
        self.experiment = client.get_experiment_by_name("seen").experiment_id
        runs = client.search_runs([self.experiment])
        self.runs = {run.data.tags["mlflow.runName"]: run for run in runs}
        (self.parent,) = [run for run in runs if run.data.tags["bpcbench.kind"] == "suite"]

    def text(self):
        return self.driver.execute_script("return document.body.innerText")

    def open(self, path, *expected, shot=""):
        """Open a page, wait until it shows all that is expected, and return its text."""
        self.driver.get("about:blank")
        self.driver.get(f"{self.base}/#/{path}")
        deadline = time.monotonic() + 20
        while not all(word in self.text() for word in expected):
            assert time.monotonic() < deadline, f"{expected} not all in\n{self.text()}"
            time.sleep(0.2)
        self.save(shot)
        return self.text()

    def until(self, look, seconds=20):
        """Return what `look` finds once it finds something."""
        deadline = time.monotonic() + seconds
        while not (found := look()):
            assert time.monotonic() < deadline
            time.sleep(0.2)
        return found

    def plots(self):
        """The kinds of the plots that are drawn, and how many points they have, by the titles of their cards."""
        return self.driver.execute_script("""
            const cards = [...document.querySelectorAll('[data-testid="experiment-view-compare-runs-card"]')];
            const found = cards.map(card => [card.innerText.split('\\n')[0], card.querySelector('.js-plotly-plot')]);
            const drawn = found.filter(([title, plot]) => plot?.data?.[0]?.y?.length);
            const facts = drawn.map(([title, plot]) => [title, [plot.data[0].type, plot.data[0].y.length]]);
            return Object.fromEntries(facts);
        """)

    def save(self, shot):
        folder = os.environ.get("BPCBENCH_TEST_SHOTS")
        if folder and shot:
            time.sleep(1.5)
            self.driver.save_screenshot(str(Path(folder) / f"mlflow-{shot}.png"))

    def view(self, key, *expected, more=""):
        path = f"experiments/{self.experiment}/runs?{TRAINING}{more}&viewStateShareKey={key}"
        return self.open(path, *expected, shot=key)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs the extra `browser`")
    folder = tmp_path_factory.mktemp("seen")
    (folder / "suite.yaml").write_text(SUITE)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        assert bpcbench.run(str(folder / "suite.yaml"), out=folder / "made").exit_code == 0
        # What is served is a copy in another place, and the original is gone.
        shutil.copytree(folder / "made", folder / "moved")
        shutil.rmtree(folder / "made")
        report = json.loads(Session(str(folder / "suite.yaml"), out=folder / "moved").report("json"))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = [sys.executable, "-m", "bpcbench", "ui", "--out", str(folder / "moved"), "--port", str(port)]
        with (folder / "ui.txt").open("w") as output:
            ui = subprocess.Popen([*command, "--no-browser"], stdout=output, stderr=output)
        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM
        for flag in (*FLAGS, f"--user-data-dir={folder / 'profile'}"):
            options.add_argument(flag)
        driver = None
        try:
            driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
            base, deadline = f"http://127.0.0.1:{port}", time.monotonic() + 60
            while True:
                try:
                    urllib.request.urlopen(base, timeout=2).read()
                    break
                except OSError:
                    assert time.monotonic() < deadline, (folder / "ui.txt").read_text()
                    time.sleep(0.2)
            yield Page(driver, base, folder / "moved", report)
        finally:
            if driver is not None:
                driver.quit()
            ui.terminate()
            ui.wait(20)


def test_the_results_open_as_the_table_is_without_a_click(page):
    shown = page.view("results", "vbpc ipc 10", "acc_std", "nll", "6 matching runs")
    for cell in page.report["cells"]:
        # A column is narrow: the beginning of the number is enough.
        assert str(cell["mean"])[:6] in shown
    names = re.findall(r"^(?:random|kmeans|vbpc) ipc \d+$", shown, re.M)
    assert [name.split()[-1] for name in names] == ["1"] * 3 + ["10"] * 3, "block by block"
    assert "seed" not in shown.partition("Run Name")[2], "cells are elsewhere"


def test_charts_show_metrics_and_coresets(page):
    blocks = ("ipc 1\n(4)", "ipc 10\n(4)", "All\n(5)")
    shown = page.view("charts", *blocks, "within/ipc 1/acc", "coresets", more="&compareRunsMode=CHART")
    assert "random ipc 10" in shown
    drawn = page.until(lambda: page.plots() if len(page.plots()) >= 4 else None)
    for metric in ("within/ipc 1/acc", "within/ipc 1/nll"):
        assert drawn[metric] == ["bar", 3], "a block has the bars of its own lines"
        assert drawn[f"method vs. {metric}"] == ["scatter", 3]
    ticks = "return [...document.querySelectorAll('.xtick')].map(tick => tick.textContent)"
    assert {"random", "kmeans", "vbpc"} <= set(page.driver.execute_script(ticks)), "methods are labelled"


def test_cells_and_costs_have_durations_that_are_not_negative(page):
    shown = page.view("cells", "random ipc 10 seed 1.0", "12 matching runs", "Dataset")
    assert shown.count(" seed ") == 12
    assert len(re.findall(r"^digits \(", shown, re.M)) == 12, "the data set of every cell"
    shown = page.view("costs", "Duration", "usage/coreset_seconds", "12 matching runs")
    durations = re.findall(r"^-?[\d.]+(?:ms|s|min)$", shown, re.M)
    assert len(durations) == 12
    assert not [duration for duration in durations if duration.startswith("-")]


def test_the_run_of_the_invocation_shows_the_table(page):
    path = f"experiments/{page.experiment}/runs/{page.parent.info.run_id}?{TRAINING}"
    shown = page.open(path, "Description", "best/digits ipc 10/acc", shot="parent")
    for cell in page.report["cells"]:
        assert cell["text"].partition("±")[0] in shown
    assert "Three methods on digits." in shown
    (unfold,) = page.driver.find_elements("xpath", "//*[text()='Show more']")
    page.driver.execute_script("arguments[0].scrollIntoView({block: 'end'}); arguments[0].click()", unfold)
    page.save("parent-table")


def test_the_run_of_the_invocation_shows_the_page_of_the_report(page):
    path = f"experiments/{page.experiment}/runs/{page.parent.info.run_id}/artifacts/report.html?{TRAINING}"
    page.open(path, "report.html", shot="report")
    deadline, frames = time.monotonic() + 15, []
    while not frames and time.monotonic() < deadline:
        frames = page.driver.find_elements("css selector", "iframe")
        time.sleep(0.2)
    page.driver.switch_to.frame(frames[0])
    try:
        while "Three methods on digits." not in page.text() and time.monotonic() < deadline:
            time.sleep(0.2)
        assert page.driver.execute_script("return document.querySelector('h1').textContent") == "seen"
        assert page.driver.execute_script("return document.querySelector('.controls').checkVisibility()")
    finally:
        page.driver.switch_to.default_content()


def test_a_comparison_opens_on_axes_that_mean_something(page):
    chosen = [page.runs[f"{method} ipc {ipc}"].info.run_id for method in ("random", "kmeans") for ipc in (1, 10)]
    runs, experiments = quote(json.dumps(chosen)), quote(json.dumps([page.experiment]))
    path = f"compare-runs?runs={runs}&experiments={experiments}"
    shown = page.open(path, "Comparing 4 Runs", "Parallel Coordinates Plot", shot="compare")
    axes = shown.partition("Parameters:")[2].partition("Clear All")[0].split()
    assert axes == ["ipc", "method", "Metrics:", "acc"]
    deadline = time.monotonic() + 15
    drawn = "return [...document.querySelectorAll('.js-plotly-plot .axis-title')].map(e => e.textContent)"
    while not page.driver.execute_script(drawn) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert page.driver.execute_script(drawn) == ["ipc", "method", "acc"], "acc is plotted against the method"


def test_the_coreset_of_a_store_that_was_moved_is_visible(page):
    run_id = page.runs["random ipc 10"].info.run_id
    page.open(
        f"experiments/{page.experiment}/runs/{run_id}/artifacts/coreset.png?{TRAINING}", "coreset.png", shot="coreset"
    )
    widths, deadline = [0], time.monotonic() + 10
    while max(widths) < 300 and time.monotonic() < deadline:
        widths = page.driver.execute_script("return [...document.images].map(i => i.naturalWidth).concat(0)")
        time.sleep(0.2)
    assert max(widths) >= 300


def test_the_snapshots_of_a_coreset_have_a_slider(page):
    run_id = page.runs["vbpc ipc 10"].info.run_id
    page.open(f"experiments/{page.experiment}/runs/{run_id}/model-metrics?{TRAINING}", "coresets/seed 0")

    def sliders():
        return page.driver.find_elements("css selector", "[role=slider]")

    def pictures():
        sources = page.driver.execute_script("return [...document.images].map(image => decodeURIComponent(image.src))")
        return [source for source in sources if "coresets~seed 0" in source]

    first, second = page.until(lambda: sliders() if len(sliders()) == 2 else None)
    assert first.get_attribute("aria-valuemax") == "6", "snapshots after 0, 1, 2 and 5 steps, and the end"
    assert second.get_attribute("data-disabled") is not None, "snapshots of the first coreset only"
    page.until(lambda: any("+step+0+" in source for source in pictures()))
    first.click()
    first.send_keys("\ue014")  # the right arrow
    page.until(lambda: any("+step+1+" in source for source in pictures()))
    page.save("slider")


def test_a_view_that_does_not_exist_leaves_the_page_of_the_experiment(page):
    path = f"experiments/{page.experiment}/runs?{TRAINING}&viewStateShareKey=unheard-of"
    page.open(path, "seen", "Overview")
