"""Commands about the installed plugins: list, show, schema."""

from __future__ import annotations

import argparse
import inspect
import json
from typing import Any

from bpcbench import hooks
from bpcbench.errors import UserError, unknown
from bpcbench.registry.discovery import KINDS, Registry, registry
from bpcbench.registry.options import documentation, summary
from bpcbench.suite.files import shipped


def listing(arguments: argparse.Namespace) -> int:
    """List plugins by kind, or the packages they come from."""
    loaded = registry()
    catalogue = {f"{kind}s": _of_kind(loaded, kind) for kind in KINDS}
    catalogue["plugins"] = [
        {
            "name": plugin.name,
            "distribution": plugin.distribution,
            "version": plugin.version,
            "module": plugin.module,
            "error": plugin.error,
            "api": plugin.api,
            "brings": list(plugin.classes),
            "seconds": round(plugin.seconds, 3),
        }
        for plugin in loaded.plugins
    ]
    suites = {**{name: str(path) for name, path in shipped().items()}, **{k: str(v) for k, v in loaded.suites.items()}}
    catalogue["suites"] = [{"name": name, "summary": path} for name, path in sorted(suites.items())]
    chosen = {arguments.kind: catalogue[arguments.kind]} if arguments.kind else catalogue
    if arguments.json:
        print(json.dumps(chosen, indent=1))
        return 0
    for kind, items in chosen.items():
        print(kind)
        width = max((len(item["name"]) for item in items), default=0)
        for item in items:
            print(f"  {item['name']:<{width}}  {_line(kind, item)}".rstrip())
    return 0


def _of_kind(loaded: Registry, kind: str) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "summary": summary(loaded.get(kind, name).cls),
            "version": loaded.get(kind, name).cls.version,
            "distribution": loaded.get(kind, name).distribution,
        }
        for name in loaded.names(kind)
    ]


def _line(kind: str, item: dict[str, Any]) -> str:
    if kind != "plugins":
        other = item.get("distribution", "bpcbench") != "bpcbench"
        return str(item["summary"]) + (f"  [{item['distribution']}]" if other else "")
    state = f"NOT LOADED: {item['error']}" if item["error"] else ", ".join(item["brings"])
    if item["api"] is not None and item["api"] < hooks.API_VERSION:
        state += f"  (written for API {item['api']} of {hooks.API_VERSION})"
    return f"{item['distribution']} {item['version']} ({item['seconds']:.2f} s)  {state}"


def show(arguments: argparse.Namespace) -> int:
    """Describe every plugin with a given name: its documentation and its options."""
    loaded = registry()
    kinds = [kind for kind in KINDS if arguments.name in loaded.names(kind)]
    if not kinds:
        every = {name for kind in KINDS for name in loaded.names(kind)}
        broken = "".join(
            f"\n  note: plugin {b.name!r} of {b.distribution} did not load: {b.error}" for b in loaded.broken()
        )
        raise UserError(unknown("plugin", arguments.name, every) + broken)
    described = []
    for kind in kinds:
        registered = loaded.get(kind, arguments.name)
        described.append(
            {
                "kind": kind,
                "name": arguments.name,
                "distribution": registered.distribution,
                "version": registered.cls.version,
                "documentation": inspect.cleandoc(registered.cls.__dict__.get("__doc__") or ""),
                "options": [
                    {"name": name, "type": kind_, "default": default, "help": text}
                    for name, kind_, default, text in documentation(registered.cls)
                ],
            }
        )
    if arguments.json:
        print(json.dumps(described, indent=1))
        return 0
    print("\n\n".join(_page(item) for item in described))
    return 0


def _page(item: dict[str, Any]) -> str:
    lines = [f"{item['kind']} {item['name']}  ({item['distribution']}, version {item['version']})", ""]
    lines += [item["documentation"], ""]
    options = item["options"]
    if not options:
        return "\n".join([*lines, "no options"])
    widths = [max(len(option[key]) for option in options) for key in ("name", "type", "default")]
    lines.append("options:")
    for option in options:
        cells = [option[key].ljust(width) for key, width in zip(("name", "type", "default"), widths, strict=True)]
        lines.append(f"  {cells[0]}  {cells[1]}  = {cells[2]}  {option['help']}".rstrip())
    return "\n".join(lines)


def schema(arguments: argparse.Namespace) -> int:
    """Print the JSON schema of suites."""
    from bpcbench.suite.schema import suite_schema

    print(json.dumps(suite_schema(registry()), indent=1))
    return 0
