"""YAML documents: read safely, with the file and line of every key, and merged."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from bpcbench.errors import Mistake, Mistakes, UserError, shortened
from bpcbench.reading import read_bounded

MAX_BYTES = 1_000_000
MAX_NODES = 50_000
MAX_DEPTH = 30

KeyPath = tuple[str, ...]

_TAG = "tag:yaml.org,2002:"
_PLAIN = frozenset(_TAG + name for name in ("null", "bool", "int", "float", "str"))


@dataclass(frozen=True)
class Place:
    """Where a value is written; `line` is None on the command line."""

    file: str
    line: int | None = None


@dataclass
class Document:
    """Plain values (dict, list, scalars) and the place of every key path.

    `left_out` are labels that a shorter list has left out, by key. `notes` say what overrides changed that nobody may
    have meant.
    """

    values: dict[str, Any]
    places: dict[KeyPath, Place] = field(default_factory=dict)
    left_out: dict[str, frozenset[str]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def place(self, path: KeyPath) -> Place | None:
        """Return the place of a path, or that of the nearest enclosing key that has one."""
        while path and path not in self.places:
            path = path[:-1]
        return self.places.get(path)


def read(path: Path) -> Document:
    """Read one YAML file; raise UserError or Mistakes for anything that is not a plain, small mapping."""
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise UserError(f"{path}: {size:,} bytes is too large for a suite (limit {MAX_BYTES:,})")
        text = read_bounded(path, MAX_BYTES, follow=True).decode()
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from None
    return parse(text, str(path))


def parse(text: str, file: str) -> Document:
    """Parse YAML text into a Document; refuse duplicate keys, non-text keys and aliases that expand too far."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        reason = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise Mistakes(file, [Mistake("", f"not valid YAML: {reason}", mark and mark.line + 1, file)]) from None
    except RecursionError:
        raise UserError(f"{file}: nested too deeply for a suite") from None
    reader = _Reader(file)
    if node is None:
        raise UserError(f"{file}: the file is empty")
    if not isinstance(node, yaml.MappingNode):
        raise UserError(f"{file}: a suite is a mapping of keys to values")
    values = reader.value(node, ())
    if reader.mistakes:
        raise Mistakes(file, reader.mistakes)
    return Document(values, reader.places)


def given(values: Mapping[str, Any], file: str = "suite") -> Document:
    """Return a suite that Python code holds as a mapping; raise Mistakes for what YAML could not say."""
    mistakes: list[Mistake] = []
    places: dict[KeyPath, Place] = {}
    plain = _plain(values, (), file, places, mistakes)
    if mistakes:
        raise Mistakes(file, mistakes)
    return Document(plain, places)


def assignments(overrides: Mapping[str, Any]) -> list[str]:
    """Return a mapping as the `a.b.c=value` texts that `override` takes; raise Mistakes for what YAML could not say."""
    return [f"{key}={_flow(value)}" for key, value in given(overrides, "overrides").values.items()]


def _flow(value: Any) -> str:
    """Return a plain value as YAML in one line: an override is a word of a command."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_flow(key)}: {_flow(item)}' for key, item in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_flow, value))}]"
    if isinstance(value, str) and not value.isprintable():
        escaped = (c if c.isprintable() and c not in '"\\' else f"\\U{ord(c):08x}" for c in value)
        return f'"{"".join(escaped)}"'
    # In a list, so that a comma in a text is quoted.
    return str(yaml.safe_dump([value], default_flow_style=True, width=math.inf, allow_unicode=True)).strip()[1:-1]


def _plain(value: Any, path: KeyPath, file: str, places: dict[KeyPath, Place], mistakes: list[Mistake]) -> Any:
    if path:
        places[path] = Place(file)
    if len(path) > MAX_DEPTH:
        raise UserError(f"{file}: nested more than {MAX_DEPTH} levels deep")
    if isinstance(value, Mapping):
        known = {key: item for key, item in value.items() if isinstance(key, str)}
        strange = (f"keys must be text, got {key!r}" for key in value if not isinstance(key, str))
        mistakes.extend(Mistake(".".join(path), message, file=file) for message in strange)
        return {key: _plain(item, (*path, key), file, places, mistakes) for key, item in known.items()}
    if isinstance(value, list | tuple | range):
        return [_plain(item, (*path, str(i)), file, places, mistakes) for i, item in enumerate(value)]
    if isinstance(value, Path):
        return str(value)
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
        value = value.item()
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    what = f"a finite number, got {value}" if isinstance(value, float) else f"plain values, got {value!r}"
    mistakes.append(Mistake(".".join(path), f"expected {what}", file=file))
    return None


class _Reader:
    def __init__(self, file: str) -> None:
        self.file = file
        self.places: dict[KeyPath, Place] = {}
        self.mistakes: list[Mistake] = []
        self.budget = MAX_NODES
        self.constructor = yaml.SafeLoader("")

    def value(self, node: yaml.Node, path: KeyPath) -> Any:
        # Aliases make the tree a graph: only a count of visits, not of nodes, stops a "billion laughs" file.
        self.budget -= 1
        if self.budget < 0:
            raise UserError(f"{self.file}: expands to more than {MAX_NODES:,} values (YAML aliases?)")
        if len(path) > MAX_DEPTH:
            raise UserError(f"{self.file}: nested more than {MAX_DEPTH} levels deep")
        if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
            return [self.value(item, (*path, str(i))) for i, item in enumerate(node.value)]
        if node.tag == _TAG + "timestamp":
            return node.value
        if not isinstance(node, yaml.ScalarNode) or node.tag not in _PLAIN:
            self._mistake(path, f"the tag {node.tag!r} is not allowed here", node)
            return None
        return self._scalar(node, path)

    def _scalar(self, node: yaml.ScalarNode, path: KeyPath) -> Any:
        try:
            value = self.constructor.construct_object(node)
        except (ValueError, KeyError, IndexError):
            self._mistake(path, f"{node.value!r} is not what its tag {node.tag!r} says", node)
            return None
        if isinstance(value, float) and not math.isfinite(value):
            self._mistake(path, f"expected a finite number, got {node.value}", node)
        return value

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if key_node.tag == _TAG + "merge":
                self._mistake(path, "YAML's merge key `<<` is not supported; use an alias or `extends`", key_node)
                continue
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag != _TAG + "str":
                what = key_node.value if isinstance(key_node, yaml.ScalarNode) else f"a {key_node.id}"
                self._mistake(path, f"keys must be text, got {what}; quote it", key_node)
                continue
            key = key_node.value
            inner = (*path, key)
            if key in result:
                self._mistake(inner, "this key is written twice", key_node)
            self.places[inner] = Place(self.file, key_node.start_mark.line + 1)
            result[key] = self.value(value_node, inner)
        return result

    def _mistake(self, path: KeyPath, message: str, node: yaml.Node) -> None:
        self.mistakes.append(Mistake(".".join(path), message, node.start_mark.line + 1, self.file))


def override(document: Document, assignments: list[str]) -> Document:
    """Return the document with `a.b.c=value` assignments applied; values are YAML, malformed ones are mistakes.

    A value replaces the old one, even if both are mappings: `a={b: 1}` leaves nothing else in `a`. A list of labels
    selects those that are there, with their options, and adds the others. What options are dropped, and what gets
    defaults, becomes a note.
    """
    mistakes = []
    for text in assignments:
        key, equals, raw = text.partition("=")
        path = tuple(key.split("."))
        if not equals or not all(path):
            message = f"cannot read override {shortened(text)!r}: expected KEY=VALUE"
            mistakes.append(Mistake("", message, file="command line"))
            continue
        if path[0] == "extends":
            message = "what a suite extends is read with its file; write it there"
            mistakes.append(Mistake("extends", message, file="command line"))
            continue
        if len(path) > MAX_DEPTH:
            message = f"a key of {len(path):,} parts: nothing in a suite is nested more than {MAX_DEPTH} levels deep"
            mistakes.append(Mistake(shortened(key), message, file="command line"))
            continue
        try:
            (value,) = parse(f"value: {raw}", "command line").values.values()
        except (UserError, ValueError):
            mistakes.append(Mistake(key, f"{raw!r} is not a YAML value", file="command line"))
            continue
        before = document
        places = {path[:i]: Place("command line") for i in range(1, len(path) + 1)}
        # A mapping would merge with the old one; False in between discards that.
        for layer in (False, value) if isinstance(value, Mapping) else (value,):
            nested: Any = layer
            for part in reversed(path):
                nested = {part: nested}
            document = merge(document, Document(nested, places))
        document.notes += tuple(_override_notes(before.values, document.values, path, value))
    if mistakes:
        raise Mistakes("overrides", mistakes)
    return document


def _override_notes(before: Any, after: Any, path: KeyPath, value: Any) -> Iterator[str]:
    """Say which options an override drops although their label stays, and which labels are new."""
    key = path[0]
    old, new = (_long_form(values.get(key), (key,)) for values in (before, after))
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return
    if len(path) == 1 and isinstance(value, list):
        known = [label for label, options in old.items() if options is not False]
        tuned = any(isinstance(old[label], Mapping | str) for label in known)
        for label in new if tuned else ():
            if label not in known and label != "native":
                yield f"{key}.{label} is new in this suite and has default options (there were: {', '.join(known)})"
    for label in old if len(path) < 3 else path[1:2]:
        if label in new and new[label] is not False and (len(path) == 1 or label == path[1]):
            inner = (key, label)
            dropped = list(_dropped(_long_form(old.get(label), inner), _long_form(new[label], inner)))
            if dropped:
                yield f"{'.'.join(path)}=... drops the suite's options of {key}.{label}: {', '.join(dropped)}"


def _dropped(old: Any, new: Any) -> Iterator[str]:
    """Yield the options of `old`, with their values, that `new` does not mention."""
    for name, value in old.items() if isinstance(old, Mapping) and isinstance(new, Mapping) else ():
        if name not in new:
            yield f"{name}={value}"
        elif isinstance(value, Mapping):
            yield from (f"{name}.{inner}" for inner in _dropped(value, new[name]))


def merge(below: Document, above: Document) -> Document:
    """Return `below` with the values of `above` in it.

    Mappings merge key by key, unless `above` names another `plugin`; other values replace. Where `above` has a mapping
    and `below` a name or a list of names, the short form is expanded first. Where it is the other way round, the names
    select labels of `below` with their options, and a name that is not among them is a new label. `false` in place of a
    label's options removes the label.
    """
    places, left_out = dict(below.places), dict(below.left_out)
    for key, labels in above.left_out.items():
        left_out[key] = left_out.get(key, frozenset()) | labels
    for key, value in above.values.items():
        old, chosen = below.values.get(key), _labels(value, key)
        if isinstance(old, Mapping) and chosen is not None:
            left_out[key] = left_out.get(key, frozenset()) | frozenset(old) - set(chosen)
    values = _merge(below.values, above.values, (), places)
    places.update(above.places)
    return Document(values, places, left_out, (*below.notes, *above.notes))


def _labels(value: Any, key: str) -> list[str] | None:
    """Return the labels that a list, or a single name, selects; None if the value is something else."""
    if isinstance(value, str) and key not in ("preprocessing", "engine"):
        return [value]
    return value if isinstance(value, list) and all(isinstance(item, str) for item in value) else None


def _merge(below: Any, above: Any, path: KeyPath, places: dict[KeyPath, Place]) -> Any:
    if isinstance(above, Mapping):
        below = _long_form(below, path)
    if isinstance(below, Mapping) and isinstance(above, Mapping):
        other_plugin = "plugin" in above and above["plugin"] != below.get("plugin", path[-1] if path else None)
        result = {} if other_plugin else dict(below)
        for key, value in above.items():
            result[key] = _merge(result.get(key), value, (*path, key), places)
        return result
    if above is None and isinstance(below, Mapping):
        return below
    kept: dict[str, Any] = {}
    if len(path) == 1 and isinstance(below, Mapping) and (labels := _labels(above, path[0])) is not None:
        kept = {label: below[label] for label in labels if below.get(label, False) is not False}
        above = {label: kept.get(label) for label in labels}
    for known in [known for known in places if known[: len(path)] == path and len(known) > len(path)]:
        if known[len(path)] not in kept:
            del places[known]
    return above


def _long_form(value: Any, path: KeyPath) -> Any:
    """Return the mapping that a suite's short form at this path abbreviates; return any other value unchanged."""
    if value is None:
        return {}
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return dict.fromkeys(value)
    if path == ("preprocessing",) and isinstance(value, dict) and isinstance(value.get("plugin"), str):
        return {"default": value}
    if isinstance(value, str):
        if path == ("preprocessing",):
            return {"default": {"plugin": value}}
        return {"plugin": value} if len(path) > 1 or path == ("engine",) else {value: None}
    return value
