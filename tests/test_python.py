"""From Python: suites as mappings, and a result that shows itself."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace

import gallery
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bpcbench
from bpcbench import Session, UserError
from bpcbench.errors import Mistakes
from bpcbench.suite.document import Document, assignments, override

SUITE = {
    "name": "held <b>",
    "protocol": 1,
    "datasets": ["spots"],
    "ipc": (1, 2),
    "methods": {"pick": None, "fade": {"steps": np.int64(3)}},
    "preprocessing": "scale",
    "inferences": ["centroid"],
    "networks": ["line"],
    "evaluators": ["classification"],
    "metrics": ["acc", "nll"],
    "seeds": {"distil": 2, "evaluate": 1},
}
OPTIONS = {"inline": True, "track": False, "quiet": True}


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    with gallery.plugins():
        yield bpcbench.run(SUITE, out=tmp_path_factory.mktemp("held") / "store", **OPTIONS)


def test_a_suite_that_is_a_mapping_runs_like_a_file(done, tmp_path):
    assert done.exit_code == 0
    assert done.counts["done"] > 0
    file = tmp_path / "suite.yaml"
    file.write_text(json.dumps({**SUITE, "methods": {"pick": None, "fade": {"steps": 3}}}))
    assert bpcbench.run(file, out=done.store, **OPTIONS).counts == {}, "the same keys"
    ran = bpcbench.run(SUITE, {"ipc": [1], "methods": ["pick"]}, out=done.store, **OPTIONS)
    assert [group.label for group in ran.view.manifest.groups] == ["spots ipc 1 pick / centroid / line"]
    assert ran.view.invocation.overrides == ("ipc=[1]", "methods=[pick]")
    assert bpcbench.results(SUITE, {"ipc": [1], "methods": ["pick"]}, out=done.store).method.unique() == ["pick"]


def test_the_command_of_a_suite_without_a_file_is_python_that_repeats_it(done):
    command = done.view.invocation.runs[-1].command
    assert command.startswith("bpcbench.run({'name': 'held <b>'")
    from bpcbench.reporting.page.commands import line_command, run_command

    (group,) = done.view.manifest.groups[:1]
    assert line_command(done.view.invocation, group) == run_command(done.view.invocation)
    again = eval(command, {"bpcbench": _Repeated(done.store), "np": np})
    assert again.counts == {}


class _Repeated:
    """Stands for the module in a command: runs it quietly, in this process."""

    def __init__(self, store):
        self.store = store

    def run(self, suite, out):
        assert out == str(self.store)
        return bpcbench.run(suite, out=out, **OPTIONS)


def test_mistakes_name_the_key(tmp_path):
    with pytest.raises(Mistakes, match=r"suite: methods: keys must be text, got 3"):
        bpcbench.run({"methods": {3: None}}, out=tmp_path / "store")
    with pytest.raises(Mistakes, match=r"overrides: ipc.0: expected plain values, got <object"):
        bpcbench.run(SUITE, {"ipc": [object()]}, out=tmp_path / "store")
    with gallery.plugins(), pytest.raises(Mistakes, match="did you mean 'fade'"):
        bpcbench.run({**SUITE, "methods": ["fad"]}, out=tmp_path / "store")
    assert not (tmp_path / "store").exists()


_KEYS = st.text("abcxyz_", min_size=1, max_size=5)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(_KEYS, _VALUES, max_size=3))
def test_overrides_of_a_mapping_are_read_back_as_they_are(values):
    texts = assignments(values)
    assert not any("\n" in text for text in texts)
    assert override(Document({}), texts).values == values


def test_a_result_gives_tables_frames_and_differences(done):
    frame = done.frame()
    assert set(frame.method) == {"pick", "fade"}
    table = done.table("acc")
    means = frame[(frame.metric == "acc") & (frame.ipc == 2)].groupby("method").value.mean()
    cells = [cell for cell in json.loads(table.render("json"))["cells"] if cell["ipc"] == 2]
    assert {cell["method"]: cell["mean"] for cell in cells} == pytest.approx(dict(means))
    assert str(table) == table.render("text")
    assert "Difference to pick" in str(done.against("pick"))
    assert "seconds" in str(done.costs())
    with pytest.raises(UserError, match="did you mean 'pick'"):
        done.against("pik")


def test_reprs_are_short(done):
    every = [done, done.plan, done.table(), done.coreset("fade", ipc=2)]
    assert [repr(one) for one in every] == [
        f"RunResult(held <b>: 8 of 8 evaluations have results; store {str(done.store)!r})",
        "Plan('held <b>': 8 cells, 25 stages, 25 to do)",
        "Table('held <b> (protocol 1, test split)': 2 lines, 4 columns)",
        "Coreset(4 images 1x4x4, 2 classes, 'class' targets)",
    ]


def test_notebooks_show_a_result_a_plan_and_a_table_without_markup_of_others(done):
    for shown in (done, done.plan, done.table(), done.against("pick")):
        html = shown._repr_html_()
        assert "<table" in html
        assert "<b>(" not in html
        assert "held &lt;b&gt;" in html
    best = done.table("acc")._repr_html_()
    assert "<b>" in best
    assert "±" in best


def test_a_coreset_shows_the_pixels_of_its_images(done):
    from PIL import Image

    coreset = done.coreset("fade", ipc=2, seed=1)
    pixels = bpcbench.load_transform(done.view.store.path(_address(done, "fade", 2, 1))).invert(coreset.images)
    drawn = np.asarray(Image.open(io.BytesIO(coreset._repr_png_())))
    # Images of 4 by 4 are drawn 32 by 32, inside a gap of 2.
    first = drawn[2:34:8, 2:34:8, 0]
    np.testing.assert_array_equal(first, np.rint(np.clip(pixels[0, 0], 0, 1) * 255).astype(np.uint8))
    other = replace(coreset, images=np.zeros_like(coreset.images))
    assert np.asarray(Image.open(io.BytesIO(other._repr_png_())))[2:34, 2:34].max() == 0, "not the pixels of before"


def _address(done, method, ipc, seed):
    wanted = (method, ipc, seed)
    (cell,) = [c for c in done.view.manifest.cells if (c.group.method, c.group.ipc, c.distil_seed) == wanted]
    return cell.coresets[0]


def test_coresets_are_found_by_their_labels(done):
    assert len(done.coreset("pick", "spots", 1)) == 2
    start, end = done.coreset("fade", ipc=1, step=0), done.coreset("fade", ipc=1)
    assert not np.array_equal(start.images, end.images)
    for arguments, words in (
        (("pick",), "which ipc\\? There are 1, 2"),
        (("pik",), "did you mean 'pick'"),
        (("pick", "spots", 3), "unknown ipc '3'"),
    ):
        with pytest.raises(UserError, match=words):
            done.coreset(*arguments)
    with pytest.raises(UserError, match="no coreset after step 77 of spots ipc 1 fade"):
        done.coreset("fade", ipc=1, step=77)


def test_a_result_writes_its_page(done, tmp_path):
    written = done.page(tmp_path / "page.html", "nll")
    assert written == tmp_path / "page.html"
    assert "held &lt;b&gt;" in written.read_text()


def test_a_session_of_a_mapping_reads_what_was_run(done):
    session = Session(SUITE, out=done.store)
    assert repr(session) == f"Session('held <b>', out={str(done.store)!r})"
    assert len(session.rows()) == len(done.rows())
    assert not math.isnan(session.rows()[0].value)
