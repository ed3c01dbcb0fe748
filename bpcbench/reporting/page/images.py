"""Images of a page: each is embedded once, however often it is shown."""

from __future__ import annotations

import base64
import hashlib
import struct

from bpcbench.reporting.page.markup import Html, element


class Album:
    """The PNG images of a page. `show` refers to an image; `definitions` holds them all and stands once in the page."""

    def __init__(self) -> None:
        self._pictures: dict[str, bytes] = {}

    @property
    def size(self) -> int:
        """The bytes that the images take in the page."""
        return sum(4 * len(png) // 3 for png in self._pictures.values())

    def has(self, png: bytes) -> bool:
        """Tell whether an image is among them already."""
        return _name(png) in self._pictures

    def show(self, png: bytes, label: str, **attributes: object) -> Html:
        """Return an image, to be shown at its own size or smaller; `label` tells what it shows."""
        name = _name(png)
        self._pictures[name] = png
        width, height = _size(png)
        return element(
            "svg",
            element("title", label),
            element("use", href=f"#{name}"),
            role="img",
            aria_label=label,
            class_="grid-image",
            width=width,
            height=height,
            viewBox=f"0 0 {width} {height}",
            **attributes,
        )

    def definitions(self) -> Html | None:
        """Return the images themselves, invisible."""
        images = []
        for name, png in self._pictures.items():
            width, height = _size(png)
            address = f"data:image/png;base64,{base64.b64encode(png).decode()}"
            images.append(element("image", id=name, href=Html(address), width=width, height=height))
        if not images:
            return None
        return element("svg", element("defs", *images), class_="album", width=0, height=0, aria_hidden="true")


def _name(png: bytes) -> str:
    return f"i{hashlib.sha256(png).hexdigest()[:16]}"


def _size(png: bytes) -> tuple[int, int]:
    width, height = struct.unpack(">II", png[16:24])
    return width, height
