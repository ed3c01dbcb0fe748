"""Which published number stands beside which measured one: a comparison of plugins and options, never of labels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bpcbench.records import Publication, PublishedNumber, PublishedPattern, PublishedQuery

_AXES = ("dataset", "method", "inference", "network", "native")
_OPTIONS = ("method_options", "inference_options", "network_options")


def match(publications: Iterable[Publication], query: PublishedQuery) -> PublishedNumber | None:
    """Return the number that was published for a cell, or None.

    Of several that match, the one whose pattern names most axes and options is returned, and of those the first.
    """
    best, most = None, -1
    for number in (number for publication in publications for number in publication.numbers):
        if number.ipc not in (None, query.ipc):
            continue
        for pattern in number.cells:
            if admits(pattern, query) and query.metric in (pattern.metrics or (number.metric,)):
                named = _named(pattern)
                if named > most:
                    best, most = number, named
    return best


def admits(pattern: PublishedPattern, query: PublishedQuery) -> bool:
    """Return whether a pattern matches a cell by its plugins, their options, and how its classes come."""
    if pattern.tasks != query.tasks:
        return False
    for axis in _AXES:
        wanted = getattr(pattern, axis)
        if wanted is not None and wanted != getattr(query, axis):
            return False
    return all(_within(getattr(pattern, options), getattr(query, options)) for options in _OPTIONS)


def _within(wanted: Mapping[str, Any], inputs: Mapping[str, Any]) -> bool:
    for name, value in wanted.items():
        if name not in inputs:
            return False
        if isinstance(value, Mapping) and isinstance(inputs[name], Mapping):
            if not _within(value, inputs[name]):
                return False
        elif value != inputs[name]:
            return False
    return True


def _named(pattern: PublishedPattern) -> int:
    axes = sum(getattr(pattern, axis) is not None for axis in _AXES)
    return axes + sum(_leaves(getattr(pattern, options)) for options in _OPTIONS)


def _leaves(options: Mapping[str, Any]) -> int:
    return sum(_leaves(value) if isinstance(value, Mapping) else 1 for value in options.values())
