"""Pictures drawn from what the store holds: coresets as grids, and the figures of evaluators."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator, Mapping

from bpcbench.figures import draw, figure_from_json, image_grid
from bpcbench.store.address import Address
from bpcbench.store.manifest import CellRecord, Manifest
from bpcbench.store.previews import read_preview
from bpcbench.store.store import Store
from bpcbench.tracking.cell import milliseconds
from bpcbench.tracking.names import allowed
from bpcbench.tracking.summary import SummaryRun

_SNAPSHOT = re.compile(r"step-(\d+)")
_MAX_SNAPSHOTS = 12
_LARGE = 700
"""Grids are enlarged by a whole number up to about so many pixels a side."""
_THUMBNAIL = 256
"""The longest side of the small copy that MLflow's image grid shows first."""


def figures_of(cell: CellRecord, store: Store) -> dict[str, bytes]:
    """Return the figures of a cell's evaluators by file name."""
    files = {}
    for label, address in cell.scores.items():
        prefix = "" if len(cell.scores) == 1 else f"{label}/"
        for name, figure in store.meta(address).get("figures", {}).items():
            # The report notes what is no figure.
            with contextlib.suppress(ValueError):
                files[f"{prefix}{allowed(name)}.svg"] = draw(figure_from_json(figure)).encode()
    return files


def coresets_of(summary: SummaryRun, manifest: Manifest, store: Store) -> dict[str, bytes]:
    """Return the grids of a group's coresets by file name, in the form of MLflow's image grid.

    A coreset is drawn once, with a row per class; the first one also with its snapshots, as steps of a slider.
    """
    names = _class_names(manifest, summary.group.dataset)
    files: dict[str, bytes] = {}
    for position, (drawn, addresses) in enumerate(summary.coresets.items()):
        for task, address in enumerate(addresses, 1):
            title = f"coresets/{drawn}" + (f" task {task}" if len(addresses) > 1 else "")
            steps = list(_snapshots(address, store)) if position == 0 else []
            last = steps[-1][0] + 1 if steps else 0
            moment = milliseconds(store.meta(address)["committed"]) if store.has(address) else 0
            for step, member in [*steps, (last, address)]:
                if grid := _draw(member, store, names):
                    # The moment is part of the name that MLflow reads; it must not change when the run is rewritten.
                    stem = f"images/{title.replace('/', '~')}+step+{step}+timestamp+{moment}+{member.key[:12]}"
                    files[f"{stem}.png"] = grid
                    files[f"{stem}+compressed.webp"] = _thumbnail(grid)
                    if member == address and position == 0:
                        files["coreset.png" if len(addresses) == 1 else f"coreset-task-{task}.png"] = grid
    return files


def _class_names(manifest: Manifest, label: str) -> Mapping[int, str]:
    names = next((dataset.class_names for dataset in manifest.datasets if dataset.label == label), ())
    return dict(enumerate(names))


def _snapshots(address: Address, store: Store) -> Iterator[tuple[int, Address]]:
    folder = store.path(address).parent
    steps = (
        sorted(int(m[1]) for path in folder.iterdir() if (m := _SNAPSHOT.fullmatch(path.name)))
        if folder.is_dir()
        else []
    )
    stride = -(-len(steps) // _MAX_SNAPSHOTS) or 1
    for step in steps[::stride]:
        yield step, Address(address.kind, address.key, f"step-{step}")


def _draw(address: Address, store: Store, names: Mapping[int, str]) -> bytes | None:
    shown = read_preview(store, address)
    return _enlarged(image_grid(*shown, names=names)) if shown else None


def _enlarged(grid: bytes) -> bytes:
    from PIL import Image

    picture = Image.open(io.BytesIO(grid))
    zoom = round(_LARGE / max(picture.size))
    if zoom < 2:
        return grid
    buffer = io.BytesIO()
    large = picture.resize((picture.width * zoom, picture.height * zoom), Image.Resampling.NEAREST)
    large.save(buffer, format="PNG", compress_level=1)
    return buffer.getvalue()


def _thumbnail(grid: bytes) -> bytes:
    from PIL import Image

    picture = Image.open(io.BytesIO(grid))
    picture.thumbnail((_THUMBNAIL, _THUMBNAIL))
    buffer = io.BytesIO()
    picture.save(buffer, format="WEBP", quality=80, method=0)
    return buffer.getvalue()
