"""Options: cast to their declared types, refused when they do not fit, named exactly."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Union

import pytest
import toys
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from toys import Centroid, Everything, Line, Pick

from bpcbench import Method, option, refers
from bpcbench.errors import UserError
from bpcbench.planning.spec import Spec
from bpcbench.records import Ref
from bpcbench.registry.discovery import Registry
from bpcbench.registry.options import (
    OptionError,
    as_ref,
    build,
    cast,
    documentation,
    plugins_within,
    readable_type,
    ready,
    summary,
)
from bpcbench.store.address import PLUGIN, Address, canonical, digest, keyed

Install = Callable[..., Registry]


@pytest.mark.parametrize(
    ("hint", "value", "expected"),
    [
        (float, 3, 3.0),
        (float, "1e-3", 1e-3),  # YAML reads 1e-3 as text
        (int, "12", 12),
        (bool, False, False),
        (str, "word", "word"),
        (int | None, None, None),
        (Union[float, None], 2, 2.0),  # noqa: UP007 - authors write it so
        (str | None, "word", "word"),
        (Literal["a", "b"], "b", "b"),
        (Literal["a"] | None, None, None),
        (tuple[int, ...], [1, 2], (1, 2)),
        (tuple[int, ...], [], ()),
        (tuple[float, ...] | None, [1], (1.0,)),
        (tuple[str, float], ["a", 1], ("a", 1.0)),
        (tuple[tuple[int, int], ...], [[1, 2]], ((1, 2),)),
        (list[float], [1, 2.5], [1.0, 2.5]),
        (dict[str, float], {"a": 1}, {"a": 1.0}),
        (int | str, "3", "3"),
        (Path, "a/b", Path("a/b")),
    ],
)
def test_casting(hint: Any, value: Any, expected: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = cast(hint, value)
    assert found == expected
    assert repr(found) == repr(expected)  # 1 == 1.0 == True, but they are not the same option


@pytest.mark.parametrize(
    ("hint", "value", "expected"),
    [
        (int, 3.5, "int"),
        (int, 3.0, "int"),
        (int, True, "int"),
        (int, "many", "int"),
        (int, None, "int"),
        (int, [1], "int"),
        (int, "???", "int"),
        (int, "${steps}", "int"),
        (float, True, "float"),
        (float, "nan", "float"),
        (float, float("inf"), "float"),
        (bool, 1, "bool"),
        (bool, "yes", "bool"),
        (str, 3, "str"),
        (str, ["a"], "str"),
        (str, "${oc.env:HOME}", "str"),
        (str | None, 3, "str or null"),
        (int | None, "none", "int or null"),
        (Literal["a", "b"], "c", "'a' | 'b'"),
        (Literal[1, 2], True, "1 | 2"),
        (tuple[int, ...], 3, "list of int"),
        (tuple[int, ...], [1, "x"], "list of int"),
        (tuple[int, int], [1, 2, 3], "[int, int]"),
        (list[str], [1], "list of str"),
        (list[float], [1, float("nan")], "list of float"),
        (dict[str, int], {"a": "x"}, "dict"),
        (dict[str, str], {"a": 1}, "dict"),
    ],
)
def test_what_does_not_fit_is_refused_in_words(hint: Any, value: Any, expected: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is compared in full
        cast(hint, value)
    assert str(caught.value) == f"expected {expected}, got {value!r}"
    assert readable_type(hint) == expected


@pytest.fixture
def found(install: Install) -> Registry:
    return install(toys)


def test_all_problems_of_a_plugin_are_found(found: Registry) -> None:
    ref = Ref("pick", {"steps": "x", "rat": 1, "net": {"plugin": "line", "width": "w", "depth": 1}})
    with pytest.raises(OptionError) as caught:
        build(found, "method", ref)
    problems = {problem.path: problem.message for problem in caught.value.problems}
    assert problems == {
        ("steps",): "expected int, got 'x'",
        ("rat",): "unknown option of pick 'rat'; did you mean 'rate'? (allowed: chunk, net, rate, steps, style)",
        ("net", "width"): "expected int, got 'w'",
        ("net", "depth"): "unknown option of line 'depth'; did you mean 'width'? (allowed: height, width)",
    }
    assert "pick.net.width: expected int" in str(caught.value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("line", Line()),
        ({"plugin": "line", "width": 7}, Line(width=7)),
        (Ref("line", {"height": 2}), Line(height=2)),
        ({"height": 5}, Line(width=3, height=5)),
        (None, None),
    ],
)
def test_references_become_plugins(found: Registry, value: Any, expected: Any) -> None:
    assert build(found, "method", Ref("pick", {"net": value})).net == expected


def test_a_reference_that_is_not_set_is_its_default_with_its_options(found: Registry) -> None:
    assert build(found, "method", Ref("pick")).net == Line(width=3)
    assert list(plugins_within(build(found, "method", Ref("pick")))) == [build(found, "method", Ref("pick")), Line(3)]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("lime", "unknown network 'lime'; did you mean 'line'?"),
        (3, "expected a plugin's name or a mapping with `plugin`, got 3"),
        ([3], "expected a plugin's name or a mapping with `plugin`, got [3]"),
    ],
)
def test_references_to_nothing(found: Registry, value: Any, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        build(found, "method", Ref("pick", {"net": value}))
    (problem,) = caught.value.problems
    assert problem.path == ("net",)
    assert message in problem.message


def key(plugin: Any) -> str:
    return Spec.of(plugin).digest


def test_a_spec_keys_what_can_matter_and_nothing_else() -> None:
    plain = Pick(net=Line())
    spec = Spec.of(plain)
    net = spec.options["net"]
    assert {**spec.options, "net": None} == {"steps": 2, "rate": 0.1, "net": None}
    assert spec.unkeyed == {"chunk": 8, "style": "plain"}
    assert (net.kind, net.package, net.name, net.version) == ("network", "toys", "line", 1)
    assert (net.options, net.unkeyed) == ({"width": 4, "height": 1}, {})
    assert key(dataclasses.replace(plain, chunk=99)) == key(plain)
    assert Spec.of(dataclasses.replace(plain, style="new")).options["style"] == "new"
    others = [
        dataclasses.replace(plain, steps=3),
        dataclasses.replace(plain, rate=0.2),
        dataclasses.replace(plain, style="new"),
        dataclasses.replace(plain, net=Line(width=5)),
        dataclasses.replace(plain, net=None),
        Everything(net=Line()),
    ]
    assert len({key(plugin) for plugin in [plain, *others]}) == 7


def test_the_spec_of_a_fixed_plugin_does_not_change(registry: Registry) -> None:
    # Every stored result has a key made like this: a change loses them all, so it must be deliberate.
    plugin = build(registry, "inference", Ref("ensemble", {"members": 3, "lr": 1}))
    expected = (
        '{"kind":"inference","name":"ensemble",'
        '"options":{"batch_size":256,"cosine":false,"lr":1.0,"members":3,"steps":300,"weight_decay":0.0},'
        '"package":"bpcbench_torch","version":1}'
    )
    assert canonical(keyed(Spec.of(plugin).to_json()[PLUGIN])) == expected
    assert Spec.of(plugin).digest == hashlib.sha256(expected.encode()).hexdigest()[:32]
    fixed = {"options": {"a": 0.1, "b": [1, 2.0, None], "ü": True}, "plugin": "x:y", "version": 1}
    assert digest(fixed) == "d0ffdd550544772def914f0d93a6dd45"


def test_the_version_is_part_of_the_key() -> None:
    @dataclass(frozen=True)
    class Newer(Centroid):
        name = "newer"
        version = 2

    newer = Spec.of(Newer())
    assert newer.version == 2
    assert newer.digest != dataclasses.replace(newer, version=1).digest


def test_a_default_and_the_same_value_written_out_have_one_key(found: Registry) -> None:
    # Centroid.heat is declared float with the default 1.
    keys = {key(build(found, "inference", Ref("centroid", o))) for o in ({}, {"heat": 1}, {"heat": 1.0})}
    assert len(keys) == 1
    assert isinstance(build(found, "inference", Ref("centroid")).heat, float)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.integers(),
    rate=st.floats(allow_nan=False, allow_infinity=False),
    style=st.text(max_size=5).filter(lambda text: "${" not in text),
    net=st.none() | st.builds(Line, width=st.integers(), height=st.integers()),
)
def test_a_description_builds_the_same_plugin(found: Registry, steps: int, rate: float, style: str, net: Any) -> None:
    plugin = Pick(steps=steps, rate=rate, style=style, net=net)
    spec = Spec.of(plugin)
    again = build(found, "method", as_ref(spec.reference()))
    assert again == plugin
    assert key(again) == key(plugin)
    carried = json.loads(canonical(spec.to_json()))  # it is plain JSON
    assert Spec.from_json(carried).digest == spec.digest
    assert Spec.from_json(carried).build(found) == plugin


@dataclass(frozen=True)
class Many(Method):
    """All types of options."""

    name = "many"
    sizes: tuple[int, ...] = option((1, 2), "some sizes")
    weights: dict[str, float] = option({}, "by name")
    names: list[str] = option(["a"], "in a list")
    mode: Literal["x", "y"] = option("x", "a choice")
    limit: float | None = option(None, "perhaps")
    folder: Path = option(Path("a"), "somewhere")
    net: Any = refers("network", "line", "a network", width=3)

    def distil(self, data: Any, ipc: int, inputs: Any, ctx: Any) -> Any:
        raise NotImplementedError


def test_containers_round_trip_and_are_not_shared(install: Install) -> None:
    found = install(toys, Many)
    options = {"sizes": [3], "weights": {"b": 2, "a": 1}, "names": ["c"], "mode": "y", "limit": 1, "folder": "b"}
    plugin: Any = build(found, "method", Ref("many", options))
    assert (plugin.sizes, plugin.weights, plugin.folder) == ((3,), {"b": 2.0, "a": 1.0}, Path("b"))
    assert Spec.of(plugin).build(found) == plugin
    swapped = build(found, "method", Ref("many", {**options, "weights": {"a": 1, "b": 2}}))
    assert key(swapped) == key(plugin)
    one, two = (build(found, "method", Ref("many")) for _ in range(2))
    assert one.names is not two.names
    assert Many().names is not Many().names


def test_documentation_for_people() -> None:
    rows = {name: (kind, default, text) for name, kind, default, text in documentation(Many)}
    assert rows["sizes"] == ("list of int", "(1, 2)", "some sizes")
    assert rows["mode"] == ("'x' | 'y'", "'x'", "a choice")
    assert rows["limit"] == ("float or null", "None", "perhaps")
    assert rows["net"] == ("network", "line {'width': 3}", "a network")
    assert summary(Many) == "All types of options."

    @dataclass(frozen=True)
    class Silent(Pick):
        name = "silent"

    assert summary(Silent) == ""


def test_as_ref_refuses_what_names_no_plugin() -> None:
    assert as_ref({"plugin": "a", "b": 1}) == Ref("a", {"b": 1})
    for wrong in (None, 3, {}, {"plugin": 3}, ["a"]):
        with pytest.raises(UserError, match="expected a plugin's name or a mapping with `plugin`"):
            as_ref(wrong)


def test_canonical_json_is_one_text_for_one_value() -> None:
    assert canonical({"b": 1.0, "a": [None, True, "é"]}) == '{"a":[null,true,"\\u00e9"],"b":1.0}'
    with pytest.raises(ValueError, match="JSON compliant"):
        canonical({"a": float("nan")})


@given(st.from_regex(r"[a-z]{1,8}", fullmatch=True), st.from_regex(r"[0-9a-f]{8}", fullmatch=True), st.text(min_size=1))
def test_addresses_are_read_back(kind: str, hexadecimal: str, member: str) -> None:
    address = Address(kind, hexadecimal, member)
    assert Address.parse(str(address)) == address
    assert "/" not in address.folder


@pytest.mark.parametrize("text", ["", "a", "a:b", "a@b", ":b@c", "a:@c", "a:b@"])
def test_what_is_not_an_address(text: str) -> None:
    with pytest.raises(ValueError, match="not an address"):
        Address.parse(text)


def test_what_is_built_by_hand_is_made_ready_like_by_the_harness(found: Registry) -> None:
    assert isinstance(Pick().net, Ref)
    assert ready(found, Pick()) == build(found, "method", Ref("pick"))
    assert ready(found, Pick(net=Line(9))).net == Line(9)
