"""The parsed content of a source file: a hash of its code, and its imports."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Import:
    """`from module import names`, with `level` leading dots."""

    level: int
    module: str
    names: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Source:
    """A hash of a file's code, and its imports."""

    digest: str
    imports: tuple[Import, ...] = ()


def digest(content: bytes) -> str:
    """Return a short hash."""
    return hashlib.sha256(content).hexdigest()[:16]


def parse(content: bytes) -> Source:
    """Parse a file's content. Comments, docstrings and layout are ignored; invalid syntax is hashed byte by byte."""
    try:
        reader = _Reader()
        reader.visit(ast.parse(content))
    except (SyntaxError, ValueError, RecursionError):
        return Source(digest(content))
    return Source(digest(" ".join(reader.words).encode(errors="surrogatepass")), tuple(reader.imports()))


class _Reader:
    """Serialises a syntax tree without docstrings, equally in all versions of Python, unlike `ast.dump`."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self._imports: list[Import] = []
        self._bound: list[tuple[str, str]] = []
        self._attributes: dict[str, set[str]] = {}

    def imports(self) -> Iterator[Import]:
        """Yield the imports; `import a` with `a.b` in the code may mean the module `a.b`."""
        yield from self._imports
        for variable, module in self._bound:
            yield Import(0, module, frozenset(self._attributes.get(variable, ())))

    def visit(self, node: ast.AST) -> None:
        """Serialise a node and collect what it imports."""
        if isinstance(node, ast.If) and _names(node.test, "TYPE_CHECKING"):
            self._value(node.orelse)
            return
        self._note(node)
        self.words.append(type(node).__name__)
        for field in node._fields:
            value = getattr(node, field, None)
            # Empty fields are skipped: other versions of Python may not have them.
            if value is not None and value != [] and field not in ("ctx", "kind", "type_comment"):
                self.words.append(field)
                self._value(value)
        self.words.append(")")

    def _value(self, value: Any) -> None:
        if isinstance(value, ast.AST):
            self.visit(value)
        elif isinstance(value, list):
            self.words.append("[")
            for item in value:
                if not _is_text(item):
                    self._value(item)
            self.words.append("]")
        else:
            self.words.append(repr(value))

    def _note(self, node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                self._imports.append(Import(0, alias.name))
                top = alias.name.partition(".")[0]
                self._bound.append((alias.asname, alias.name) if alias.asname else (top, top))
        elif isinstance(node, ast.ImportFrom):
            self._imports.append(Import(node.level, node.module or "", frozenset(alias.name for alias in node.names)))
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            self._attributes.setdefault(node.value.id, set()).add(node.attr)
        elif isinstance(node, ast.Call) and node.args and _names(node.func, "import_module", "__import__"):
            name = node.args[0]
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                module = name.value.lstrip(".")
                self._imports.append(Import(len(name.value) - len(module), module))


def _names(node: ast.expr, *names: str) -> bool:
    """Return whether an expression is one of these names, or an attribute of that name."""
    return (isinstance(node, ast.Name) and node.id in names) or (isinstance(node, ast.Attribute) and node.attr in names)


def _is_text(statement: Any) -> bool:
    """Return whether a statement is a bare string: a docstring, possibly of a variable."""
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )
