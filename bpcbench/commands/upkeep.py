"""The command `doctor`: check the environment and the store."""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path

from bpcbench.data.root import data_root
from bpcbench.errors import BpcbenchError
from bpcbench.registry.discovery import registry
from bpcbench.running.device import resolve_device, usable_cpus
from bpcbench.store import folder, provenance
from bpcbench.store.locks import Busy
from bpcbench.store.store import Store
from bpcbench.text import spell_bytes

STRAYS = 10
"""So many things that do not belong where they lie are listed."""
SLOW_IMPORT_SECONDS = 1.0
"""A plugin that takes longer to import is named: every command that looks up a name waits for it."""


def doctor(arguments: argparse.Namespace) -> int:
    """Print the state of the environment and the store; exit code 1 if something is broken."""
    from bpcbench.commands.data import examine
    from bpcbench.commands.engines import examine_engine

    broken = False
    print("versions")
    for name, value in provenance.versions().items():
        print(f"  {name:<14} {value}")
    print("machine")
    for name, value in provenance.machine().items():
        print(f"  {name:<14} {value}")
    print(f"  {'usable CPUs':<14} {usable_cpus()}")
    print(f"  {'device':<14} {_device()}")
    print("plugins")
    for plugin in registry().plugins:
        broken |= bool(plugin.error)
        state = f"NOT LOADED: {plugin.error}" if plugin.error else f"ok, {len(plugin.classes)} plugin classes"
        if plugin.seconds > SLOW_IMPORT_SECONDS:
            state += f"; its import took {plugin.seconds:.1f} s, and delays every command"
        print(f"  {plugin.name:<14} {f'{plugin.distribution} {plugin.version}'.strip()}: {state}")
    data = data_root(arguments.data)
    print(f"data sets (looked for in {data})")
    for name in registry().names("dataset"):
        holding = examine(name, data)
        print(f"  {name:<14} {holding.status}: {holding.says}")
    print(f"store {Path(arguments.out).absolute()}")
    problem, lines = _examine(Path(arguments.out))
    print("\n".join(f"  {line}" for line in lines))
    if arguments.engine:
        problem |= not examine_engine(arguments.engine, Path(arguments.out).absolute(), data, arguments)
    return 1 if broken or problem else 0


def _device() -> str:
    import importlib

    try:
        importlib.import_module("torch")
    except ImportError as error:
        return f"cpu (torch cannot be imported: {error})"
    return resolve_device("auto")


def _locks(store: Store) -> str:
    try:
        with store.turn("doctor"):
            return f"locks: {store.messages[0]}" if store.messages else "locks: working"
    except Busy:
        return "locks: working"


def _examine(root: Path) -> tuple[bool, list[str]]:
    from bpcbench.tracking.location import database, named_server, redacted, tracking_uri

    if not (root / "store.json").exists():
        return False, ["none yet; a run creates it"]
    try:
        store = Store.open(root, create=False)
        writable = os.access(root, os.W_OK)
        lines = [_locks(store) if writable else "no write permission: it can be read, and nothing can be added"]
    except BpcbenchError as error:
        return True, [str(error)]
    store.messages.clear()
    lines.append(f"members: {sum(1 for _ in store.addresses()):,}, {spell_bytes(folder.size(store.root))}")
    lines += store.messages[:STRAYS]
    if len(store.messages) > STRAYS:
        lines.append(f"and {len(store.messages) - STRAYS:,} more; `bpcbench store verify` lists them")
    damaged = list((store.root / "damaged").glob("*"))
    if damaged:
        lines.append(f"damaged: {len(damaged)} set aside in {store.root / 'damaged'}")
    free = shutil.disk_usage(store.root).free
    lines.append(f"free disk: {spell_bytes(free)}")
    try:
        uri = redacted(tracking_uri(store.root))
    except BpcbenchError as error:
        return True, [*lines, str(error)]
    made = named_server() is not None or database(store.root).exists()
    lines.append(f"MLflow: {uri}" + ("" if made else " (not created yet)"))
    return False, lines
