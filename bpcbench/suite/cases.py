"""The keys of a suite that apply to some cells only: `cases` sets options for them, `exclude` leaves them out."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from bpcbench.errors import unknown
from bpcbench.suite.document import KeyPath
from bpcbench.suite.keys import Report

Pattern = Mapping[str, tuple[Any, ...]]
"""The matching values by key (`dataset`, `ipc`, ...); a cell matches if all its values do."""

_Axes = Mapping[str, Mapping[str, Any]]
_Known = Mapping[str, Collection[str]]
_SETTABLE = ("methods", "preprocessing", "inferences", "networks")


@dataclass(frozen=True)
class Case:
    """Options for the cells that `when` matches, by axis and label, each with the path that sets it."""

    when: Pattern
    options: Mapping[tuple[str, str], Mapping[str, tuple[Any, KeyPath]]]

    def matches(self, dataset: str, ipc: int) -> bool:
        """Return whether the options apply to the cells of a data set and ipc."""
        cell = {"dataset": dataset, "ipc": ipc}
        return all(cell[key] in values for key, values in self.when.items())


def read_cases(raw: Any, axes: _Axes, known: _Known, mistake: Report) -> list[Case]:
    """Return the cases; report what is wrong with them to `mistake`.

    `known` are names of plugins by axis. A case may name one that is not in the suite, because an override removed it;
    such a case has no effect.
    """
    result: list[Case] = []
    for path, item in _items("cases", raw, mistake):
        if not isinstance(item, Mapping) or set(item) != {"when", "set"} or not isinstance(item["set"], Mapping):
            mistake(path, "expected {when: {dataset, ipc}, set: {KEY: value}}")
            continue
        when = _pattern(
            (*path, "when"), item["when"], {"dataset": _names("datasets", axes, known), "ipc": None}, mistake
        )
        options: dict[tuple[str, str], dict[str, tuple[Any, KeyPath]]] = {}
        for key, value in item["set"].items():
            where = (*path, "set", key)
            parts = key.split(".")
            if len(parts) != 3 or parts[0] not in _SETTABLE:
                mistake(where, f"expected {'|'.join(_SETTABLE)}.LABEL.OPTION")
            elif parts[1] not in _names(parts[0], axes, known):
                mistake(where, unknown("label", parts[1], axes[parts[0]]))
            elif parts[1] in axes[parts[0]]:
                options.setdefault((parts[0], parts[1]), {})[parts[2]] = (value, where)
        result.append(Case(when, options))
    return result


def read_exclude(raw: Any, axes: _Axes, known: _Known, mistake: Report) -> tuple[Pattern, ...]:
    """Return the patterns of cells to leave out; report what is wrong with them to `mistake`."""
    allowed = {
        "dataset": _names("datasets", axes, known),
        "ipc": None,
        "method": _names("methods", axes, known),
        "inference": _names("inferences", axes, known),
        "network": _names("networks", axes, known),
    }
    return tuple(_pattern(path, item, allowed, mistake) for path, item in _items("exclude", raw, mistake))


def _names(axis: str, axes: _Axes, known: _Known) -> set[str]:
    return {*axes[axis], *known.get(axis, ())}


def _items(key: str, raw: Any, mistake: Report) -> list[tuple[KeyPath, Any]]:
    if raw is None:
        return []
    if not isinstance(raw, list):
        mistake((key,), f"expected a list, got {raw!r}")
        return []
    return [((key, str(i)), item) for i, item in enumerate(raw)]


def _pattern(path: KeyPath, raw: Any, allowed: Mapping[str, set[str] | None], mistake: Report) -> Pattern:
    if not isinstance(raw, Mapping) or not raw:
        mistake(path, f"expected a mapping of {', '.join(allowed)}")
        return {}
    result = {}
    for key, value in raw.items():
        if key not in allowed:
            mistake((*path, key), unknown("key", key, allowed))
            continue
        values = tuple(value) if isinstance(value, list) else (value,)
        names = allowed[key]
        for item in values:
            if names is None:
                if type(item) is not int:
                    mistake((*path, key), f"expected an integer or a list of them, got {value!r}")
            elif not isinstance(item, str) or item not in names:
                mistake((*path, key), unknown(key, item, names))
        result[key] = values
    return result
