"""Suites that are right: what they mean, where they are found, what wins over what."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import toys
import yaml
from toys import TOYS

from bpcbench.errors import Mistakes
from bpcbench.planning.plan import make
from bpcbench.registry.discovery import Registry
from bpcbench.running.engines import Inline, Local
from bpcbench.suite.document import override, parse
from bpcbench.suite.files import load, locate, read, shipped
from bpcbench.suite.keys import AXES, KEYS, PROTOCOLS
from bpcbench.suite.model import Suite
from bpcbench.suite.schema import suite_schema
from bpcbench.suite.validation import validate
from bpcbench_baselines.kmeans import KMeans
from bpcbench_torch.inferences import Ensemble
from bpcbench_torch.preprocessing import Standardize
from bpcbench_torch.zca import ZCA

SMALL = "protocol: 1\ndatasets: digits\nipc: 1\nmethods: random\n"

Write = Callable[..., str]
Install = Callable[..., Registry]


def test_the_shortest_suite_and_its_defaults(registry: Registry, write_suite: Write) -> None:
    suite = load(registry, write_suite(SMALL, "short.yaml"))
    setting = suite.settings["digits", 1]
    assert suite.name == "short"
    assert (suite.distil_seeds, suite.evaluate_seeds, suite.split, suite.timeout) == (1, 1, "test", None)
    assert setting.inferences == {"native": None}
    assert setting.networks == {"native": None}
    assert setting.preprocessing == {"default": Standardize()}
    assert setting.methods["random"].preprocessing == "default"
    assert list(suite.evaluators) == ["classification"]
    assert suite.engine == Local()


def test_the_protocol_of_a_suite_that_names_none_is_the_current_one_and_is_kept(
    registry: Registry, write_suite: Write
) -> None:
    suite = load(registry, write_suite(SMALL.replace("protocol: 1\n", "")))
    assert suite.protocol == PROTOCOLS[-1] == suite.source["protocol"]


def test_a_plugin_declares_itself_the_default(install: Install, write_suite: Write) -> None:
    text = SMALL + "evaluators: [right]\nmetrics: [right]\n"

    @dataclass(frozen=True)
    class Usual(toys.Scale):
        name = "usual"
        default = True

    @dataclass(frozen=True)
    class Heir(Usual):
        name = "heir"

    found = install(Usual, Heir, toys.Right)
    with pytest.raises(Mistakes) as caught:
        load(found, write_suite(text))
    (mistake,) = caught.value.mistakes
    assert str(mistake) == (
        "preprocessing: missing: 2 installed plugins are the default preprocessing; name one "
        "(allowed: standardize, usual)"
    )
    del found.classes["preprocessing", "standardize"]
    assert load(found, write_suite(text)).settings["digits", 1].preprocessing == {"default": Usual()}
    chosen = load(found, write_suite(text + "preprocessing: heir\n")).settings["digits", 1].preprocessing
    assert chosen == {"default": Heir()}


def test_without_a_default_a_suite_must_name_one(install: Install, write_suite: Write) -> None:
    found = install(toys.Right)
    del found.classes["evaluator", "classification"]
    with pytest.raises(Mistakes, match=r"evaluators: missing: no installed plugin is the default evaluator; name one"):
        load(found, write_suite(SMALL))
    assert list(load(found, write_suite(SMALL + "evaluators: right\nmetrics: [right]\n")).evaluators) == ["right"]


def test_every_key_has_a_help_line_and_is_read_by_the_table_or_names_plugins(registry: Registry) -> None:
    elsewhere = {"extends", "cases", "exclude", "tune"}
    assert {name for name, key in KEYS.items() if not key.read and not key.kind} == elsewhere
    fields = {field.name for field in dataclasses.fields(Suite)}
    assert {name for key in KEYS for name in KEYS[key].fields or (key,)} - fields <= {*elsewhere, *AXES}
    properties = suite_schema(registry)["properties"]
    assert {name: schema["description"] for name, schema in properties.items()} == {
        name: key.help for name, key in KEYS.items()
    }
    assert all(key.help for key in KEYS.values())


def test_the_only_preprocessing_may_stand_alone_with_its_options(registry: Registry, write_suite: Write) -> None:
    text = "protocol: 1\ndatasets: [digits]\nipc: [1]\nmethods: [random]\n"
    for short in ("{plugin: zca, centred: false}", "{default: {plugin: zca, centred: false}}"):
        suite = load(registry, write_suite(text + f"preprocessing: {short}\n"))
        assert suite.settings["digits", 1].preprocessing == {"default": ZCA(centred=False)}
    document = override(parse(text + "preprocessing: {plugin: zca}\n", "s"), ["preprocessing.default.grey=true"])
    assert validate(registry, document).settings["digits", 1].preprocessing == {"default": ZCA(grey=True)}


def test_all_keys(registry: Registry, write_suite: Write) -> None:
    text = """
    name: full
    description: all of it
    protocol: 1
    datasets: {mine: digits}
    ipc: [10, 1, 10]
    methods: {a: kmeans, b: {plugin: kmeans, iterations: 7, preprocessing: other}}
    preprocessing: {default: standardize, other: {plugin: standardize}}
    inferences: {e: {plugin: ensemble, members: 2, lr: 1}, native: }
    networks: [conv-bn, native]
    evaluators: {c: {plugin: classification, bins: 5}}
    seeds: {distil: 2, evaluate: 3}
    split: validation
    examples: 500
    cases: [{when: {ipc: 1}, set: {methods.a.iterations: 3}}]
    exclude: [{method: b, ipc: [1]}]
    tasks: {steps: 2, orders: [3, natural]}
    threads: 2
    precision: bf16
    deterministic: true
    device: cpu
    timeout: 1.5h
    engine: {plugin: inline}
    metrics: [acc]
    tune: {space: {a: {iterations: [1, 2]}}}
    tuned: {a: {trials: 2}}
    """
    suite = load(registry, write_suite(text))
    assert set(KEYS) - set(suite.source) == {"extends"}
    assert suite.examples == 500
    assert suite.ipc == (1, 10)
    assert suite.settings["mine", 10].methods["b"].plugin == KMeans(7)
    assert suite.settings["mine", 10].methods["b"].preprocessing == "other"
    assert suite.settings["mine", 10].inferences["e"] == Ensemble(members=2, lr=1.0)
    assert suite.settings["mine", 10].inferences["native"] is None
    assert (suite.name, suite.distil_seeds, suite.evaluate_seeds) == ("full", 2, 3)
    assert (suite.threads, suite.precision, suite.device, suite.timeout) == (2, "bf16", "cpu", 5400.0)
    assert suite.engine == Inline()
    assert suite.metrics == ("acc",)
    assert suite.excluded(dataset="mine", ipc=1, method="b", inference="e", network="conv-bn")
    assert not suite.excluded(dataset="mine", ipc=10, method="b", inference="e", network="conv-bn")


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("30m", 1800), ("2h", 7200), ("1d", 86400), ("null", None)])
def test_timeouts(registry: Registry, write_suite: Write, text: str, seconds: float | None) -> None:
    assert load(registry, write_suite(SMALL + f"timeout: {text}\n")).timeout == seconds


def test_one_number_of_seeds_is_for_both_axes(registry: Registry, write_suite: Write) -> None:
    suite = load(registry, write_suite(SMALL + "seeds: 4\n"))
    assert (suite.distil_seeds, suite.evaluate_seeds) == (4, 4)


def test_overrides_win_over_the_suite_which_wins_over_what_it_extends(registry: Registry, write_suite: Write) -> None:
    write_suite("name: base\nthreads: 1\ndevice: cpu\nprecision: bf16\ndescription: base\n", "base.yaml")
    write_suite("extends: base.yaml\nname: middle\nthreads: 2\ndevice: mps\nprecision: tf32\n", "middle.yaml")
    write_suite("precision: float32\ndevice: cuda\n", "second.yaml")
    top = write_suite(SMALL + "extends: [middle.yaml, ./second.yaml]\ndevice: xpu\n", "top.yaml")
    suite = load(registry, top, ["device=cuda:1", "device=cuda:2"])
    assert (suite.description, suite.threads, suite.precision, suite.device) == ("base", 2, "float32", "cuda:2")
    assert suite.name == "top"  # a name is not inherited
    assert load(registry, top).device == "xpu"


def test_extending_changes_options_replaces_plugins_and_removes_labels(registry: Registry, write_suite: Write) -> None:
    write_suite(
        """
        protocol: 1
        datasets: [digits]
        ipc: [1, 10]
        methods:
          random:
          few: {plugin: kmeans, iterations: 5}
          gone: kmeans
        inferences: {it: {plugin: ensemble, members: 4, steps: 9}}
        """,
        "base.yaml",
    )
    top = write_suite("extends: base.yaml\nmethods: {few: {iterations: 6}, gone: false}\ninferences: {it: network}\n")
    setting = load(registry, top, ["inferences.it.steps=8", "methods.new.plugin=herding"]).settings["digits", 1]
    assert list(setting.methods) == ["random", "few", "new"]
    assert setting.methods["few"].plugin == KMeans(6)
    assert setting.inferences["it"].name == "network"
    assert setting.inferences["it"].steps == 8
    assert list(load(registry, top, ["methods=[whole]"]).settings["digits", 10].methods) == ["whole"]


def test_short_forms_can_be_overridden_option_by_option(registry: Registry, write_suite: Write) -> None:
    text = SMALL.replace("methods: random", "methods: {few: kmeans}") + "engine: local\n"
    suite = load(registry, write_suite(text), ["methods.few.iterations=3", "engine.jobs=2", "datasets.more=digits"])
    assert suite.settings["more", 1].methods["few"].plugin == KMeans(3)
    assert suite.engine == Local(jobs=2)
    assert list(suite.datasets) == ["digits", "more"]


def test_cases_hold_for_their_cells_and_later_ones_win(registry: Registry, write_suite: Write) -> None:
    text = """
    protocol: 1
    datasets: {a: digits, b: digits}
    ipc: [1, 10]
    methods: {kmeans: {iterations: 1}}
    inferences: {fit: network}
    cases:
    - {when: {ipc: [1, 10]}, set: {methods.kmeans.iterations: 2}}
    - {when: {dataset: b}, set: {methods.kmeans.iterations: 3, inferences.fit.plugin: ensemble}}
    - {when: {dataset: b, ipc: 10}, set: {methods.kmeans.iterations: 4, inferences.fit.members: 2}}
    """
    settings = load(registry, write_suite(text)).settings
    iterations = {cell: setting.methods["kmeans"].plugin.iterations for cell, setting in settings.items()}
    assert iterations == {("a", 1): 2, ("a", 10): 2, ("b", 1): 3, ("b", 10): 4}
    assert [settings[cell].inferences["fit"].name for cell in (("a", 10), ("b", 1))] == ["network", "ensemble"]
    assert settings["b", 10].inferences["fit"] == Ensemble(members=2)


def test_shipped_suites_are_found_by_name_and_by_path(registry: Registry, tmp_path: Path, monkeypatch: Any) -> None:
    names = shipped()
    assert "quickstart" in names
    assert locate(registry, "quickstart") == names["quickstart"]
    monkeypatch.chdir(tmp_path)
    assert locate(registry, "suites/quickstart.yaml") == names["quickstart"]
    (tmp_path / "suites").mkdir()
    (tmp_path / "suites" / "quickstart.yaml").touch()
    assert locate(registry, "suites/quickstart.yaml").resolve() == tmp_path / "suites" / "quickstart.yaml"


def test_a_plugins_suite_is_run_as_plugin_and_name(install: Install, plugin_module: Any, write_suite: Write) -> None:
    from bpcbench import hookimpl

    path = write_suite(SMALL, "their/tiny.yaml")
    module = plugin_module(name="theirs", bpcbench_suites=hookimpl(lambda: {"tiny": Path(path)}))
    found = install(module)
    assert locate(found, "theirs:tiny") == Path(path)
    assert load(found, write_suite("extends: theirs:tiny\nseeds: 2\n")).distil_seeds == 2


def test_paths_of_extends_are_relative_to_the_file_that_says_so(
    registry: Registry, write_suite: Write, monkeypatch: Any, tmp_path: Path
) -> None:
    write_suite(SMALL, "a/base.yaml")
    top = write_suite("extends: ../a/base.yaml\n", "b/top.yaml")
    monkeypatch.chdir("/")
    assert load(registry, top).ipc == (1,)
    monkeypatch.chdir(tmp_path)
    assert load(registry, "b/top.yaml").ipc == (1,)


def cells(suite: Suite, found: Registry) -> dict[str, Any]:
    return {cell.label: (cell.skipped, cell.scores) for cell in make(found, suite, None, Path("/none")).cells}


def test_the_order_of_everything_is_irrelevant(install: Install, write_suite: Write) -> None:
    found = install(toys)
    values = yaml.safe_load(TOYS)
    values |= {
        "datasets": {"dots": None, "other": {"plugin": "blobs"}},
        "methods": {"pick": {"steps": 3, "rate": 0.5, "net": {"plugin": "line", "width": 2}}, "everything": None},
        "networks": {"line": None, "wide": {"plugin": "line", "width": 9}},
        "evaluators": {"right": None, "elsewhere": None},
        "exclude": [{"method": "pick", "ipc": 2}, {"dataset": "other", "network": "wide"}],
    }
    straight = cells(load(found, write_suite(yaml.safe_dump(values))), found)
    assert len(straight) == 4 * (3 * 2 + 3)
    shuffled = cells(load(found, write_suite(yaml.safe_dump(shuffle(values), sort_keys=False))), found)
    assert shuffled == straight
    assert list(shuffled) != list(straight)


def shuffle(value: Any) -> Any:
    rng = random.Random(3)
    if isinstance(value, dict):
        items = list(value.items())
        rng.shuffle(items)
        return {key: shuffle(item) for key, item in items}
    return value[::-1] if isinstance(value, list) and isinstance(value[0], dict) else value


def test_a_suite_survives_being_kept_as_json(registry: Registry, write_suite: Write) -> None:
    doc, path = read(registry, "quickstart", ["seeds=2", "description=2024-01-01"])
    suite = validate(registry, doc, path)
    doc.values = json.loads(json.dumps(suite.source))
    assert validate(registry, doc, path) == suite
    assert suite.description == "2024-01-01"
    assert suite.source["preprocessing"] == {"default": {"plugin": "standardize"}}


def test_an_override_may_leave_out_what_cases_and_exclude_speak_of(registry: Registry) -> None:
    suite = load(registry, "paper/main", ["datasets=[mnist]", "methods=[random]"])
    assert list(suite.datasets) == ["mnist"]
    assert list(suite.settings["mnist", 10].methods) == ["random"]


def test_a_list_of_labels_selects_them_with_their_options(registry: Registry) -> None:
    whole = load(registry, "quickstart")
    chosen = load(registry, "quickstart", ["methods=[vbpc, frepo, bpc-w]", "inferences=[vi]", "networks=conv-bn"])
    for (label, ipc), setting in chosen.settings.items():
        there = whole.settings[label, ipc]
        assert list(setting.methods) == ["vbpc", "frepo", "bpc-w"]
        assert [setting.methods[m] for m in ("vbpc", "frepo")] == [there.methods[m] for m in ("vbpc", "frepo")]
        assert (setting.inferences, setting.networks) == ({"vi": there.inferences["vi"]}, there.networks)
    (note,) = chosen.notes
    assert note.startswith("methods.bpc-w is new in this suite and has default options")


def test_a_suite_that_extends_another_selects_labels_in_the_same_way(registry: Registry, write_suite: Write) -> None:
    extending = load(registry, write_suite("extends: quickstart\nmethods: [frepo, herding]\n"))
    there = load(registry, "quickstart").settings["digits", 1].methods["frepo"]
    assert extending.settings["digits", 1].methods["frepo"] == there
    assert extending.notes == ()


def test_labels_left_out_by_a_list_may_stay_in_cases_and_exclude(registry: Registry, write_suite: Write) -> None:
    file = write_suite(
        "datasets: [digits]\nipc: [1]\nmethods: {random: , long: {plugin: kmeans}}\n"
        "cases: [{when: {ipc: [1]}, set: {methods.long.iterations: 7}}]\nexclude: [{method: long, ipc: 1}]\n"
    )
    assert list(load(registry, file, ["methods=[random]"]).settings["digits", 1].methods) == ["random"]
    with pytest.raises(Mistakes, match=r"unknown method 'lnog'.*; did you mean 'long'"):
        load(registry, file, ["methods=[lnog]"])
