"""Commands about data sets: list and check them, download one. No framework is imported."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from bpcbench.api import Dataset
from bpcbench.data.root import data_root
from bpcbench.errors import MissingData, UserError
from bpcbench.records import Facts, Ref
from bpcbench.registry.discovery import registry
from bpcbench.registry.options import build
from bpcbench.store import folder
from bpcbench.text import spell_bytes

PRESENT, UNOFFICIAL, MISSING, UNREADABLE = "present", "not official", "missing", "not readable"
_SHOWN = 3


@dataclass(frozen=True)
class Holding:
    """The state of a data set on this machine. `says` is its content, or why it cannot be used as it is."""

    name: str
    status: str
    where: tuple[str, ...]
    bytes: int
    licence: str
    says: str
    notes: tuple[str, ...] = ()
    downloads: bool = False


def examine(name: str, root: Path) -> Holding:
    """Check a data set with its default options; checksums are computed once, nothing is converted."""
    plugin: Dataset | None = None
    facts: Facts | None = None
    try:
        plugin = _built(name)
        facts = plugin.facts(root)
        official = facts.official
        status = PRESENT if official else UNOFFICIAL
        says = _content(facts) if official else plugin.differs(root) or "its facts say so"
    except MissingData as error:
        status, says = MISSING, str(error)
    except Exception as error:  # plugin code may raise anything
        status, says = UNREADABLE, str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
    where = _places(plugin, root)
    return Holding(
        name,
        status,
        tuple(map(str, where)),
        sum(map(_size, where)),
        registry().get("dataset", name).cls.licence,  # type: ignore[attr-defined]
        says,
        facts.marks if facts else (),
        bool(plugin and plugin.downloads),
    )


def _built(name: str) -> Dataset:
    plugin = build(registry(), "dataset", Ref(name))
    assert isinstance(plugin, Dataset)
    return plugin


def _content(facts: Facts) -> str:
    parts = [f"{size:,} {split}" for split, size in facts.sizes.items()]
    more = [f"{len(parts) - _SHOWN} more"] if len(parts) > _SHOWN + 1 else []
    shown = parts[:_SHOWN] if more else parts
    return f"{'x'.join(map(str, facts.shape))}, {facts.classes} classes, {', '.join(shown + more)}"


def _places(plugin: Dataset | None, root: Path) -> list[Path]:
    try:
        return list(plugin.places(root)) if plugin else []
    except Exception:  # plugin code; `facts` has reported the problem already
        return []


def _size(path: Path) -> int:
    try:
        return folder.size(path) if path.is_dir() else path.stat().st_size
    except OSError:
        return 0


def listing(arguments: argparse.Namespace) -> int:
    """List every data set: its status, where it is looked for, its size on disk, its licence."""
    root = data_root(arguments.data)
    holdings = [examine(name, root) for name in registry().names("dataset")]
    if arguments.json:
        print(json.dumps([asdict(one) for one in holdings], indent=1))
        return 0
    print(f"data sets (looked for in {root})")
    width = max((len(one.name) for one in holdings), default=0)
    indent = " " * (width + 4)
    for one in holdings:
        size = spell_bytes(one.bytes) if one.bytes else "-"
        print(f"  {one.name:<{width}}  {one.status:<12}  {size:>9}  {', '.join(one.where) or '-'}")
        get = f" (`bpcbench data get {one.name}` fetches it)" if one.status == MISSING and one.downloads else ""
        marks = f" [{', '.join(one.notes)}]" if one.notes else ""
        print(f"{indent}{one.says}{marks}{get}")
        print(f"{indent}licence: {one.licence}")
    return 0


def get(arguments: argparse.Namespace) -> int:
    """Download the files that a data set declares, and check the result."""
    from bpcbench.data.download import by_hand, fetch

    root = data_root(arguments.data)
    plugin = _built(arguments.name)
    before = examine(arguments.name, root)
    if before.status == PRESENT:
        print(f"{plugin.name} is present: {before.says}, {', '.join(before.where) or root}")
        return 0
    if before.status != MISSING:
        raise UserError(f"data set {plugin.name} exists, but is {before.status}: {before.says}. Move it away first.")
    if not plugin.downloads:
        raise UserError(f"data set {plugin.name} has no public download. {before.says}")
    print(f"{plugin.name}, licence: {plugin.licence}")
    wanted = [one for one in plugin.downloads if one.unpack or not (root / one.path).exists()]
    for number, one in enumerate(wanted):
        try:
            print(f"{one.url} -> {fetch(one, root)}", flush=True)
        except UserError as error:
            rest = "\n".join(f"  {by_hand(left, root)}" for left in wanted[number:])
            raise UserError(f"{error}\nBy hand:\n{rest}") from None
    after = examine(arguments.name, root)
    if after.status != PRESENT:
        raise UserError(f"data set {plugin.name} was downloaded, but is {after.status}: {after.says}")
    print(f"{plugin.name} is present: {after.says}")
    return 0
