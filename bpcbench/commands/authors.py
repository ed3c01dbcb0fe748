"""Commands for authors of plugins: new, check."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Mapping, Sequence
from typing import Any, cast

import yaml

from bpcbench.api import Dataset, Inference, Network, Plugin
from bpcbench.data.root import data_root
from bpcbench.errors import UserError, unknown
from bpcbench.records import Offer, Ref
from bpcbench.registry.discovery import KINDS, Registry, registry
from bpcbench.registry.options import build

_MANY_STEPS = 500
_TOY_NETWORK = Ref("conv-bn", {"width": 8})


def new(arguments: argparse.Namespace) -> int:
    """Write a package with a plugin that works, to be changed into one's own."""
    from bpcbench.scaffold.package import write_package

    written = write_package(registry(), arguments.kind, arguments.name, arguments.output)
    folder, name = written.folder, arguments.name
    print(f"{folder}: a package with the {arguments.kind} {name}")
    for file in written.files:
        print(f"  {file}")
    print("next:")
    print(f"  pip install -e '{folder}[test]'")
    print(f"  bpcbench check {name}{written.quick}")
    print(f"  bpcbench run {name}:example")
    print(f"  pytest {folder}")
    return 0


def check(arguments: argparse.Namespace) -> int:
    """Run the conformance tests of a plugin; 1 if one fails, or if none could tell anything."""
    loaded = registry()
    kinds = _kinds(loaded, arguments.name, arguments.kind)
    if len(kinds) > 1 and arguments.overrides:
        listed = " and ".join(f"the {kind}" for kind in kinds)
        raise UserError(f"{listed} are both named {arguments.name}: say with --kind whose options these are")
    failed = False
    for kind in kinds:
        options = _options(arguments.overrides)
        plugin = build(loaded, kind, Ref(arguments.name, options))
        failed |= _checked(loaded, kind, plugin, options, arguments)
    return int(failed)


def _kinds(loaded: Registry, name: str, wanted: str | None) -> list[str]:
    if wanted is not None:
        loaded.get(wanted, name)
        return [wanted]
    kinds = [kind for kind in KINDS if name in loaded.names(kind)]
    if not kinds:
        broken = "".join(
            f"\n  note: plugin {b.name!r} of {b.distribution} did not load: {b.error}" for b in loaded.broken()
        )
        raise UserError(unknown("plugin", name, {name for kind in KINDS for name in loaded.names(kind)}) + broken)
    return kinds


def _options(words: Sequence[str]) -> dict[str, Any]:
    """Return options from `key=value` words; a dot leads into the options of a plugin that an option names."""
    options: dict[str, Any] = {}
    for word in words:
        path, found, text = word.partition("=")
        if not found or not path:
            raise UserError(f"expected OPTION=VALUE, got {word!r}")
        *above, last = path.split(".")
        place = options
        for part in above:
            place = place.setdefault(part, {})
        try:
            place[last] = yaml.safe_load(text)
        except yaml.YAMLError:
            raise UserError(f"{path}: {text!r} is not a value in YAML") from None
    return options


def _checked(
    loaded: Registry, kind: str, plugin: Plugin, options: Mapping[str, Any], arguments: argparse.Namespace
) -> bool:
    from bpcbench.testing import CONFORMANCE, PluginConformance, check

    registered = loaded.get(kind, plugin.name)
    print(f"{kind} {plugin.name}  ({registered.distribution}, version {plugin.version})")
    _hint(plugin, options)
    base = CONFORMANCE[kind]
    tests = cast(
        "type[PluginConformance]",
        type(base.__name__, (base,), {"plugin": plugin, **_setting(loaded, kind, plugin, arguments)}),
    )
    counts = {"ok": 0, "failed": 0, "skipped": 0}
    for outcome in check(tests, starting=_starting):
        counts[outcome.status] += 1
        shown = "FAILED" if outcome.status == "failed" else outcome.status
        print(f"  {shown:<7}  {outcome.name:<22}  {outcome.seconds:5.1f} s  {outcome.subject}", flush=True)
        if outcome.message:
            print("\n".join(f"           {line}" for line in outcome.message.splitlines()), flush=True)
    print(f"{counts['ok']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
    if not counts["ok"] and not counts["failed"]:
        print("nothing was checked: every test was skipped")
    return bool(counts["failed"]) or not counts["ok"]


def _starting(name: str) -> None:
    if sys.stdout.isatty():
        print(f"  ...      {name}\r", end="", flush=True)


def _hint(plugin: Plugin, options: Mapping[str, Any]) -> None:
    for field in dataclasses.fields(plugin):
        value = getattr(plugin, field.name)
        if "steps" in field.name and isinstance(value, int) and value > _MANY_STEPS and field.name not in options:
            print(f"  {field.name} is {value}; to check it faster: bpcbench check {plugin.name} {field.name}=20")


def _setting(loaded: Registry, kind: str, plugin: Plugin, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what the conformance tests of this kind need beside the plugin."""
    if kind == "dataset":
        root = data_root(arguments.data)
        cast(Dataset, plugin).facts(root)  # says what is missing, if something is
        return {"root": root}
    if kind == "inference":
        return _inference_setting(loaded, cast(Inference, plugin), arguments)
    return {"learns": arguments.learns} if kind == "method" else {}


def _inference_setting(loaded: Registry, plugin: Inference, arguments: argparse.Namespace) -> dict[str, Any]:
    from bpcbench.testing import toy_coreset, toy_data

    ref = Ref(arguments.network) if arguments.network else _TOY_NETWORK
    network = cast(Network, build(loaded, "network", ref))
    reasons = []
    for convention in ("class", "centred", "probabilities"):
        coreset = toy_coreset(convention=convention)
        reason = plugin.accepts(Offer(toy_data().facts, 5, "toy", coreset.convention, network))
        if reason is None:
            return {"network": network, "learns": arguments.learns, "coreset": lambda self, made=coreset: made}
        reasons.append(reason)
    raise UserError(f"{plugin.name} accepts no toy coreset with the network {ref.plugin}: {reasons[0]}; try --network")
