"""YAML read with the place of every key, guarded against hostile files, and merged."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from bpcbench.errors import Mistakes, UserError
from bpcbench.suite.document import MAX_BYTES, MAX_DEPTH, Document, Place, merge, override, parse, read

TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=8)
SCALARS = (
    st.none() | st.booleans() | st.integers(-(10**12), 10**12) | st.floats(allow_nan=False, allow_infinity=False) | TEXT
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3), max_leaves=12
)
MAPPINGS = st.dictionaries(TEXT, VALUES, min_size=1, max_size=4)


def merged(below: Any, above: Any) -> Any:
    return merge(Document(below), Document(above)).values


@settings(max_examples=150, deadline=None)
@given(MAPPINGS)
def test_what_yaml_writes_is_read_back(values: dict[str, Any]) -> None:
    assert parse(yaml.safe_dump(values, allow_unicode=True), "f").values == values


def test_every_key_has_its_line_also_inside_lists() -> None:
    doc = parse("a: 1\nb:\n  c: {d: 2}\n\n  e:\n  - f: 3\n  - g: 4\n", "x.yaml")
    lines = {".".join(path): place.line for path, place in doc.places.items()}
    assert lines == {"a": 1, "b": 2, "b.c": 3, "b.c.d": 3, "b.e": 5, "b.e.0.f": 6, "b.e.1.g": 7}
    assert {place.file for place in doc.places.values()} == {"x.yaml"}


def test_the_place_of_something_unwritten_is_that_of_what_encloses_it() -> None:
    doc = parse("a:\n  b: 1\n", "f")
    assert doc.place(("a", "b", "c", "d")) == Place("f", 2)
    assert doc.place(("a", "z")) == Place("f", 1)
    assert doc.place(("q",)) is None


def test_crlf_and_a_byte_order_mark_are_harmless(tmp_path: Path) -> None:
    path = tmp_path / "dos.yaml"
    path.write_bytes("\ufeffa: 1\r\nb:\r\n  c: 2\r\n".encode())
    doc = read(path)
    assert doc.values == {"a": 1, "b": {"c": 2}}
    assert doc.place(("b", "c")) == Place(str(path), 3)


def test_an_unquoted_date_is_text() -> None:
    assert parse("a: 2024-05-01\nb: 2024-05-01 10:00:00", "f").values == {"a": "2024-05-01", "b": "2024-05-01 10:00:00"}


def test_an_alias_repeats_a_value() -> None:
    doc = parse("a: &x {n: 1}\nb: *x\n", "f")
    assert doc.values["a"] == doc.values["b"] == {"n": 1}


@pytest.mark.parametrize(
    ("text", "message", "line"),
    [
        ("a: 1\nb: [1, 2\nc: 3\n", "not valid YAML: expected ',' or ']'", 3),
        ("a: 1\n\tb: 2\n", "not valid YAML: found character '\\t'", 2),
        ("a: 'open\n", "not valid YAML: found unexpected end of stream", 2),
        ("a: *nowhere\n", "not valid YAML: found undefined alias", 1),
        ("a: 1\n---\nb: 2\n", "not valid YAML: but found another document", 2),
        ("a: \x00\n", "not valid YAML: unacceptable character #x0000", None),
        ("a: 1\nb:\n  c: 1\n  c: 2\n", "b.c: this key is written twice", 4),
        ("1: a\n", "keys must be text, got 1; quote it", 1),
        ("a:\n  yes: b\n", "a: keys must be text, got yes; quote it", 2),
        ("null: b\n", "keys must be text, got null", 1),
        ("? [a, b]\n: c\n", "keys must be text, got a sequence", 1),
        ("a: &x {b: 1}\nc:\n  <<: *x\n", "c: YAML's merge key `<<` is not supported", 3),
        ("a: !!python/object/apply:os.system [ls]\n", "python/object/apply:os.system' is not allowed here", 1),
        ("a: !!python/object:builtins.dict {b: 1}\n", "python/object:builtins.dict' is not allowed here", 1),
        ("a: !!python/name:os.system\n", "python/name:os.system' is not allowed here", 1),
        ("a: !mine b\n", "the tag '!mine' is not allowed here", 1),
        ("a: !!set {b, c}\n", "set' is not allowed here", 1),
        ("a: !!binary aGk=\n", "binary' is not allowed here", 1),
        ("a: !!int x\n", "'x' is not what its tag 'tag:yaml.org,2002:int' says", 1),
        ("a: !!bool x\n", "'x' is not what its tag 'tag:yaml.org,2002:bool' says", 1),
        ("a: !!int ''\n", "'' is not what its tag 'tag:yaml.org,2002:int' says", 1),
        ("a: [1, .nan]\n", "a.1: expected a finite number, got .nan", 1),
        ("a: -.inf\n", "a: expected a finite number, got -.inf", 1),
    ],
)
def test_what_is_not_plain_yaml_is_refused_with_its_line(text: str, message: str, line: int | None) -> None:
    with pytest.raises(Mistakes) as caught:
        parse(text, "bad.yaml")
    (found,) = caught.value.mistakes
    assert message in f"{found.path}: {found.message}"
    assert (found.line, found.file) == (line, "bad.yaml")
    assert str(found).startswith("bad.yaml:" + (f"{line}: " if line else " "))


def test_all_mistakes_of_a_file_are_reported_together() -> None:
    with pytest.raises(Mistakes) as caught:
        parse("a: 1\na: 2\n3: x\nb: !mine y\n", "bad.yaml")
    assert [mistake.line for mistake in caught.value.mistakes] == [2, 3, 4]
    assert str(caught.value).startswith("bad.yaml: 3 mistakes\n")


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n"])
def test_an_empty_file_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"f: the file is empty|a suite is a mapping"):
        parse(text, "f")


@pytest.mark.parametrize("text", ["- a\n", "just words\n", "3\n"])
def test_a_file_that_is_not_a_mapping_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="f: a suite is a mapping of keys to values"):
        parse(text, "f")


def test_billion_laughs_end_quickly() -> None:
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    begin = time.monotonic()
    with pytest.raises(UserError, match="expands to more than 50,000 values"):
        parse("\n".join(levels), "bomb.yaml")
    assert time.monotonic() - begin < 5


@pytest.mark.parametrize(
    "text",
    [
        "a: " + "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1),
        "a: " + "{b: " * (MAX_DEPTH + 1) + "1" + "}" * (MAX_DEPTH + 1),
        "a: &x [*x]",
        "a: &x {b: *x}",
        "a: " + "[" * 5000 + "]" * 5000,
    ],
    ids=["lists", "mappings", "list of itself", "mapping of itself", "beyond Python's stack"],
)
def test_deep_and_endless_nesting_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"f: nested (more than 30 levels deep|too deeply)"):
        parse(text, "f")


def test_a_mapping_that_is_its_own_key_is_refused() -> None:
    with pytest.raises(Mistakes, match="keys must be text, got a mapping"):
        parse("a: &x\n  ? *x\n  : 1\n", "f")


def test_depth_up_to_the_limit_is_read() -> None:
    value: Any = parse("a: " + "[" * (MAX_DEPTH - 1) + "7" + "]" * (MAX_DEPTH - 1), "f").values["a"]
    while isinstance(value, list):
        (value,) = value
    assert value == 7


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    binary, huge = tmp_path / "binary.yaml", tmp_path / "huge.yaml"
    binary.write_bytes(b"\x89PNG\xff\xfe\x00")
    huge.write_bytes(b"#" * (MAX_BYTES + 1))
    for path, message in (
        (binary, r"binary.yaml: cannot be read: .*utf-8"),
        (huge, r"huge.yaml: 1,000,001 bytes is too large"),
        (tmp_path, r": cannot be read: .*directory"),
        (tmp_path / "absent.yaml", r"absent.yaml: no such file"),
    ):
        with pytest.raises(UserError, match=message):
            read(path)


@pytest.mark.parametrize(
    ("below", "above", "expected"),
    [
        ({"a": {"b": 1, "c": 2}}, {"a": {"c": 3, "d": 4}}, {"a": {"b": 1, "c": 3, "d": 4}}),
        ({"ipc": [1, 10]}, {"ipc": [50]}, {"ipc": [50]}),
        ({"a": {"b": 1}}, {"a": [1]}, {"a": [1]}),
        ({"a": 1}, {"a": {"b": 2}}, {"a": {"b": 2}}),
        ({"m": {"x": {"plugin": "p", "n": 1}}}, {"m": {"x": {"plugin": "q"}}}, {"m": {"x": {"plugin": "q"}}}),
        ({"m": {"x": {"n": 1}}}, {"m": {"x": {"plugin": "q"}}}, {"m": {"x": {"plugin": "q"}}}),
        ({"m": {"x": {"n": 1}}}, {"m": {"x": {"plugin": "x", "k": 2}}}, {"m": {"x": {"n": 1, "plugin": "x", "k": 2}}}),
        ({"m": {"x": {"n": 1}}}, {"m": {"x": False}}, {"m": {"x": False}}),
        ({"m": {"x": False}}, {"m": {"x": {"n": 1}}}, {"m": {"x": {"n": 1}}}),
        ({"m": {"x": {"n": 1}}}, {"m": {"x": None, "y": None}}, {"m": {"x": {"n": 1}, "y": None}}),
        ({"m": ["x", "y"]}, {"m": {"y": {"n": 1}}}, {"m": {"x": None, "y": {"n": 1}}}),
        ({"m": "x"}, {"m": {"x": {"n": 1}}}, {"m": {"x": {"n": 1}}}),
        ({"m": {"x": {"n": 1}, "y": None}}, {"m": ["z", "x"]}, {"m": {"z": None, "x": {"n": 1}}}),
        ({"m": {"x": {"n": 1}, "y": None}}, {"m": "x"}, {"m": {"x": {"n": 1}}}),
        ({"m": {"x": False, "y": "p"}}, {"m": ["x", "y"]}, {"m": {"x": None, "y": "p"}}),
        ({"m": {"x": {"net": {"w": 1}}}}, {"m": {"x": {"net": ["p"]}}}, {"m": {"x": {"net": ["p"]}}}),
        ({"preprocessing": {"default": {"e": 1}}}, {"preprocessing": "zca"}, {"preprocessing": "zca"}),
        ({"m": {"x": "p"}}, {"m": {"x": {"n": 1}}}, {"m": {"x": {"plugin": "p", "n": 1}}}),
        ({"engine": "local"}, {"engine": {"jobs": 1}}, {"engine": {"plugin": "local", "jobs": 1}}),
        (
            {"preprocessing": "zca"},
            {"preprocessing": {"default": {"e": 1}}},
            {"preprocessing": {"default": {"plugin": "zca", "e": 1}}},
        ),
        ({"m": {"x": {"net": "p"}}}, {"m": {"x": {"net": {"n": 1}}}}, {"m": {"x": {"net": {"plugin": "p", "n": 1}}}}),
    ],
)
def test_merge_rules(below: Any, above: Any, expected: Any) -> None:
    assert merged(below, above) == expected


@settings(deadline=None)
@given(MAPPINGS)
def test_merging_with_nothing_or_with_itself_changes_nothing(values: dict[str, Any]) -> None:
    assert merged({}, values) == values
    assert merged(values, {}) == values
    assert merged(values, values) == values


def test_merging_leaves_its_inputs_alone_and_takes_the_upper_place() -> None:
    below, above = parse("a: {b: 1}\nc:\n  d: 2\n", "below"), parse("\n\na: {b: 2}\nc: [3]\n", "above")
    result = merge(below, above)
    assert result.values == {"a": {"b": 2}, "c": [3]}
    assert (below.values["a"], below.place(("c", "d"))) == ({"b": 1}, Place("below", 3))
    assert result.place(("a", "b")) == Place("above", 3)
    assert result.place(("c", "d")) == Place("above", 4)  # what was there below is gone


def test_overrides_nest_replace_and_come_last() -> None:
    doc = parse("ipc: [1]\nmethods:\n  m: {n: 1, k: 2}\n", "f")
    result = override(doc, ["ipc=[5, 7]", "methods.m.n=3", "methods.m.n=4", "methods.o.net={plugin: p, w: 1e-3}", "x="])
    assert result.values == {
        "ipc": [5, 7],
        "methods": {"m": {"n": 4, "k": 2}, "o": {"net": {"plugin": "p", "w": "1e-3"}}},
        "x": None,
    }
    assert result.place(("methods", "m", "n")) == Place("command line")
    assert result.place(("methods", "m", "k")) == Place("f", 3)


def test_a_list_of_labels_keeps_their_options_and_places() -> None:
    doc = parse("methods:\n  m: {n: 1}\n  o:\n  p: {k: 2}\nipc: [1]\n", "f")
    result = override(doc, ["methods=[p, m]", "methods.m.k=3"])
    assert result.values["methods"] == {"p": {"k": 2}, "m": {"n": 1, "k": 3}}
    assert list(result.values["methods"]) == ["p", "m"]
    assert result.place(("methods", "m", "n")) == Place("f", 2)
    assert (result.left_out, result.notes) == ({"methods": {"o"}}, ())
    assert override(doc, ["methods=o"]).values["methods"] == {"o": None}


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("methods=[m, q]", "methods.q is new in this suite and has default options (there were: m, o)"),
        ("methods={m: {k: 2}}", "methods=... drops the suite's options of methods.m: n=1"),
        ("methods={m: , o: }", "methods=... drops the suite's options of methods.m: n=1, net={'w': 4}"),
        ("methods.m={n: 2}", "methods.m=... drops the suite's options of methods.m: net={'w': 4}"),
        ("methods.m=q", "methods.m=... drops the suite's options of methods.m: n=1, net={'w': 4}"),
        ("methods.m.net={d: 3}", "methods.m.net=... drops the suite's options of methods.m: net.w=4"),
        ("preprocessing=zca", "preprocessing=... drops the suite's options of preprocessing.default: e=1"),
    ],
)
def test_what_drops_options_says_so(text: str, note: str) -> None:
    doc = parse("methods:\n  m: {n: 1, net: {w: 4}}\n  o:\npreprocessing: {default: {plugin: zca, e: 1}}\n", "f")
    (said,) = override(doc, [text]).notes
    assert note in said


@pytest.mark.parametrize(
    "text", ["methods=[o, m]", "methods=[o]", "methods.m.n=3", "methods.m=false", "methods.z={a: 1}", "ipc=[1, 2]"]
)
def test_what_was_asked_for_needs_no_note(text: str) -> None:
    doc = parse("methods:\n  m: {n: 1, net: {w: 4}}\n  o:\nipc: [1]\nmetrics: [acc]\n", "f")
    assert override(doc, [text, "metrics=[acc, nll]"]).notes == ()


@pytest.mark.parametrize(
    ("text", "value"),
    [("a=1", 1), ("a=true", True), ("a='1'", "1"), ("a=b=c", "b=c"), ("a=[x, 2]", ["x", 2]), ("a=null", None)],
)
def test_override_values_are_yaml(text: str, value: Any) -> None:
    assert override(Document({}), [text]).values == {"a": value}


def test_malformed_overrides_are_reported_together() -> None:
    wrong = ["ipc", "=3", "a..b=1", "b=[1", "c=x: y", "d=1\ne: 2", "f={g: 1, g: 2}"]
    with pytest.raises(Mistakes) as caught:
        override(Document({}), ["fine=1", *wrong])
    assert len(caught.value.mistakes) == len(wrong)
    assert "command line: cannot read override 'ipc': expected KEY=VALUE" in str(caught.value)
    assert "command line: b: '[1' is not a YAML value" in str(caught.value)
