"""Commands about coresets outside a run: import what others distilled, export what was distilled here."""

from __future__ import annotations

import argparse
import os
import re
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, cast

from bpcbench.commands.output import check_folder, under_way
from bpcbench.commands.store import existing
from bpcbench.commands.waiting import waiting
from bpcbench.coresets.export import Score, export_coreset
from bpcbench.coresets.reading import describe_coreset, open_folder
from bpcbench.errors import UserError, shortened, unknown
from bpcbench.records import FINAL, Data, Ref
from bpcbench.registry.discovery import registry
from bpcbench.registry.options import as_ref, build
from bpcbench.reporting.collect import collect
from bpcbench.reporting.rows import number, with_unit
from bpcbench.store.address import Address
from bpcbench.store.invocations import invocations
from bpcbench.store.manifest import PluginRecord
from bpcbench.store.store import STAGE, Store

if TYPE_CHECKING:
    from bpcbench.api import Dataset
    from bpcbench.coresets.importing.conversion import Imported

IMPORTED = "imported"
_NAME = re.compile(r"[A-Za-z0-9_+-][A-Za-z0-9_.+-]{0,99}")


def bring(arguments: argparse.Namespace) -> int:
    """Make a coreset of somebody else's files, say how they were understood, and write it."""
    from bpcbench.coresets.importing.conversion import Request, import_coreset
    from bpcbench.coresets.importing.layouts import LAYOUTS
    from bpcbench.running.evaluation import fit_preprocessing

    if not _NAME.fullmatch(arguments.name):
        raise UserError(f"--as: {shortened(arguments.name)!r} is no name: letters, digits, and _ . + - only")
    if arguments.layout is not None and arguments.layout not in LAYOUTS:
        raise UserError("--layout: " + unknown("layout", arguments.layout, LAYOUTS))
    target = Path(arguments.to) if arguments.to else Path(arguments.out) / IMPORTED / arguments.name
    if target.exists():
        raise UserError(f"{target} exists already")
    request = Request(
        files=tuple(map(Path, arguments.files)),
        layout=arguments.layout,
        dataset=arguments.data_set or "",
        data_range=arguments.data_range,
        mean=arguments.mean,
        std=arguments.std,
        preprocessing=_preprocessing(arguments.preprocessing),
        order=arguments.order,
        label_kind=arguments.labels_as,
        images=arguments.images,
        labels=arguments.labels,
        weights=arguments.weights,
        class_ids=arguments.class_ids,
        classes=arguments.classes,
        mirrored=arguments.mirror,
        label=arguments.name,
    )
    with waiting(f"reading {', '.join(path.name for path in request.files)}"):
        found = import_coreset(request, registry(), _training(arguments), fit_preprocessing)
    if not arguments.to:
        Store.open(Path(arguments.out))
    found.write(target)
    _tell(found, target, arguments.name)
    return 0


def _preprocessing(text: str | None) -> Ref | None:
    import yaml

    if text is None:
        return None
    try:
        return as_ref(yaml.safe_load(text))
    except yaml.YAMLError as error:
        raise UserError(f"--preprocessing: {str(error).splitlines()[0]}") from None
    except UserError as error:
        raise UserError(f"--preprocessing: {error}") from None


def _training(arguments: argparse.Namespace) -> Data | None:
    from bpcbench.data.root import data_root
    from bpcbench.data.splits import training_data

    if arguments.data_set is None:
        return None
    dataset = cast("Dataset", build(registry(), "dataset", Ref(arguments.data_set)))
    return training_data(dataset, data_root(arguments.data), holdout=False)


def _tell(found: Imported, target: Path, name: str) -> None:
    from bpcbench.coresets.importing.probe import channels

    coreset = found.coreset
    print("\n".join(found.said))
    for index, one in enumerate(channels(coreset.images)):
        beside = f"; training images in this space: {found.probe.training[index]}" if found.probe else ""
        print(f"channel {index}: {one}{beside}")
    if found.probe is not None:
        print(
            f"linear probe: {found.probe.accuracy:.1%} on {found.probe.images:,} training images "
            f"(chance: {found.probe.chance:.1%})"
        )
        for doubt in found.probe.doubts:
            print(f"warning: {doubt}", file=sys.stderr)
    else:
        print("no linear probe: name the data set with --data-set")
    stored = describe_coreset(target)
    each = f"{stored.ipc} images per class" if stored.ipc else "different numbers of images per class"
    print(f"{len(coreset)} images, {coreset.classes} classes, {each} -> {target}; look at {target / 'preview.png'}")
    print(f"in a suite: methods: {{{name}: {{plugin: file, path: {target.absolute()}, digest: {stored.digest}}}}}")


def export(arguments: argparse.Namespace) -> int:
    """Copy a coreset out of the store, or from a folder of an exported or imported one."""
    target = Path(arguments.target)
    source = Path(arguments.address)
    if (source / STAGE).is_file():
        exported = open_folder(source)
        _make_parent(target)
        with under_way():
            export_coreset(exported, target, format=arguments.format)
        print(f"{source} -> {target}")
        return 0
    store = existing(arguments.out)
    found = [a for a in store.addresses() if a.kind == "coreset" and _matches(a, arguments.address)]
    if len(found) != 1:
        what = f"{len(found)} coresets match {shortened(arguments.address)!r}"
        raise UserError(f"{what}; `bpcbench store list --kind coreset` lists all")
    (address,) = found
    with waiting("exporting"):
        scores = list(_scores(store, address))
        artefact, native = store.read(address), _native(store, address)
        _make_parent(target)
        with under_way():
            export_coreset(artefact, target, native, format=arguments.format, scores=scores)
    print(f"{address} -> {target}")
    return 0


def _make_parent(target: Path) -> None:
    """Make the folder in which a new one will lie; UserError if that is not possible."""
    check_folder("the target", target.parent)
    target.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(target.parent, os.W_OK):
        raise UserError(f"{target.parent}: no write permission")


def _native(store: Store, address: Address) -> tuple[PluginRecord, PluginRecord] | None:
    """Return the native inference and network of a coreset's method, from a manifest that has the coreset."""
    for one in invocations(store):
        for cell in one.manifest.cells:
            if any((address.kind, address.key) == (other.kind, other.key) for other in cell.coresets):
                return cell.group.own
    return None


def _scores(store: Store, address: Address) -> Iterator[Score]:
    """Yield what the coreset reached in any suite of the store, as means over seeds."""
    values: dict[tuple[str, str], dict[int, float]] = {}
    units = {}
    for one in invocations(store, "run"):
        for row in collect(one.manifest, store):
            if row.coreset == str(address):
                line = f"{row.dataset} / {row.inference} / {row.network}", row.metric
                values.setdefault(line, {})[row.evaluate_seed] = row.value
                units[line] = row.unit
    for (place, metric), seeds in values.items():
        unit = units[place, metric]
        mean = statistics.fmean(seeds.values())
        yield Score(place, with_unit(metric, unit), number(unit, mean), len(seeds))


def _matches(address: Address, text: str) -> bool:
    key, _, member = text.removeprefix("coreset:").partition("@")
    return bool(key) and address.key.startswith(key) and address.member == (member or FINAL)
