"""Pictures of coresets: where they start, how they go on, and how they end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from bpcbench.figures import image_grid
from bpcbench.records import FINAL
from bpcbench.reporting.anytime import kept_snapshots
from bpcbench.reporting.page.cells import filtered_by
from bpcbench.reporting.page.document import folded
from bpcbench.reporting.page.images import Album
from bpcbench.reporting.page.markup import Html, element, joined
from bpcbench.reporting.view import View
from bpcbench.store.address import Address
from bpcbench.store.manifest import CellRecord
from bpcbench.store.previews import read_preview

CORESETS = 36
SNAPSHOTS = 5
"""So many snapshots are shown between the start of a coreset and its end."""
IMAGE_BYTES = 1_000_000
"""So many bytes of images are in a page, roughly; the ends of coresets come first."""


@dataclass(eq=False)
class _Card:
    cell: CellRecord
    address: Address
    part: str
    between: Sequence[int]
    started: bool
    frames: dict[int | None, bytes] = field(default_factory=dict)


def coreset_pictures(view: View, album: Album) -> Html | None:
    """Return a grid of every coreset of the first seed, before and after; None if the store has no picture of any."""
    every = list(_cards(view))
    cards, left_out = every[:CORESETS], len(every) - CORESETS
    names = {one.label: dict(enumerate(one.class_names)) for one in view.manifest.datasets if one.class_names}
    dropped = 0
    for card, step in _wanted(cards):
        png = _grid(view, card, step, names.get(card.cell.group.dataset))
        if png is None:
            continue
        if album.size + len(png) * 4 // 3 > IMAGE_BYTES and not album.has(png):
            dropped += 1
            continue
        card.frames[step] = png
        album.show(png, "")
    shown = [_figure(card, album) for card in cards if card.frames]
    if not shown:
        return None
    notes = ["At most 100 images of each, the first of every class; seeds after the first are not shown."]
    if left_out > 0:
        notes.append(f"{left_out} further coresets are not shown.")
    if dropped:
        notes.append(f"{dropped} further pictures are left out to keep the page small.")
    return joined((element("p", " ".join(notes), class_="note"), element("div", *shown, class_="cards")))


def _cards(view: View) -> Iterator[_Card]:
    kept = kept_snapshots(view.store)
    seen: set[tuple[str, int, str]] = set()
    for cell in view.manifest.cells:
        name = (cell.group.dataset, cell.group.ipc, cell.group.method)
        if name in seen or cell.step is not None or not cell.coresets:
            continue
        if not all(view.store.has(address) for address in cell.coresets):
            continue
        seen.add(name)
        for number, address in enumerate(cell.coresets, 1):
            steps = list(kept(address.key)) if address.member == FINAL else []
            inside = [step for step in steps if step][:-1] if steps else []
            stride = max(1, -(-len(inside) // SNAPSHOTS))
            part = f", task {number} of {len(cell.coresets)}" if len(cell.coresets) > 1 else ""
            yield _Card(cell, address, part, inside[::-1][::stride][::-1], 0 in steps)


def _wanted(cards: Sequence[_Card]) -> Iterator[tuple[_Card, int | None]]:
    """Yield the pictures in the order of their worth: all ends, all starts, then snapshots, one per coreset in turn."""
    yield from ((card, None) for card in cards)
    yield from ((card, 0) for card in cards if card.started)
    for turn in range(SNAPSHOTS):
        yield from ((card, card.between[turn]) for card in cards if turn < len(card.between))


def _grid(view: View, card: _Card, step: int | None, names: dict[int, str] | None) -> bytes | None:
    address = card.address if step is None else Address(card.address.kind, card.address.key, f"step-{step}")
    shown = read_preview(view.store, address)
    return image_grid(*shown, names=names) if shown else None


def _figure(card: _Card, album: Album) -> Html:
    group = card.cell.group
    what = f"{group.method}, {group.dataset}, {group.ipc} per class{card.part}"
    start, end = card.frames.get(0), card.frames.get(None)
    frames = []
    if start is not None:
        frames.append(_frame("start", start, f"{what}: the coreset at its start", album))
    if end is not None:
        frames.append(_frame("end", end, f"{what}: the coreset at its end", album, class_="frame last"))
    inside = [
        _frame(f"step {step:,}", card.frames[step], f"{what}: the coreset after {step:,} steps", album)
        for step in card.between
        if step in card.frames
    ]
    between = folded(f"{len(inside)} in between", element("div", *inside, class_="frames"), class_="between")
    caption = element("figcaption", element("b", group.method), f" {group.dataset}, {group.ipc} per class{card.part}")
    return element(
        "figure",
        caption,
        element("div", *frames, class_="frames"),
        between if inside and start is not None and end is not None else None,
        class_="card coreset",
        data_filtered=True,
        **filtered_by(group, "dataset", "ipc", "method"),
    )


def _frame(words: str, png: bytes, label: str, album: Album, class_: str = "frame") -> Html:
    return element("div", element("span", words, class_="when"), album.show(png, label), class_=class_)
