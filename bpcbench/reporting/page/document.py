"""The HTML document around a page's content: style, script and the policy that admits nothing else."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib.resources import files

from bpcbench.figures.svg import STYLE
from bpcbench.reporting.page.markup import Html, element, joined

_PICTURE_STYLE = re.compile(r"<style>.*?</style>", re.S)


def document(title: str, content: Html) -> str:
    """Return a complete document: one file, without network access.

    Only this style and this script are admitted, by their hashes, so that a text that came to stand in the page as
    markup by mistake could still not run. There are no style attributes for the same reason.
    """
    style, script = _resource("style.css") + STYLE, _resource("script.js")
    policy = "; ".join(
        (
            "default-src 'none'",
            "img-src data:",
            f"style-src '{_hash(style)}'",
            f"script-src '{_hash(script)}'",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="generator", content="bpcbench"),
        element("title", title),
        element("style", Html(style)),
    )
    body = element("body", content, element("script", Html(script)))
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def picture(svg: str) -> Html:
    """Return a drawn figure to stand in a page, which states the style of all figures once."""
    return Html(_PICTURE_STYLE.sub("", svg, count=1).strip())


def section(anchor: str, title: str, *content: object) -> Html:
    """Return a section of a page; its parts that are None are left out."""
    return element("section", element("h2", title), joined(content), id=anchor, aria_label=title)


def folded(title: str, *content: object, opened: bool = False, **attributes: object) -> Html:
    """Return content below a title that shows and hides it, without any script."""
    return element("details", element("summary", title), joined(content), open=opened, **attributes)


@cache
def _resource(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")


def _hash(content: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
