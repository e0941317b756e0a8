"""The definitions that a result rests on: those that a function of its module uses, and all that these use in turn.

Definitions are the functions, classes and values at the top of a module. Of a module without that function, and of one
that is used as a whole, all count; so do all of looktwice.views, whose views register themselves.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
HOMES = {"experiments": ROOT / "experiments", "looktwice": ROOT / "src" / "looktwice"}
PACKAGES = ("experiments", *(f"looktwice.{name}" for name in ("calibration", "decisions")))
WHOLE = "looktwice.views"
APART = {
    *(f"experiments.{name}" for name in ("manifest", "official", "reach", "script", "writing")),
    *(f"looktwice.calibration.{name}" for name in ("calibrators", "storage")),
}
"""Modules that neither ask nor compute."""
Name = tuple[str, str]
"""A module and a name in it; an empty one stands for statements that bind none."""


@dataclass(frozen=True)
class Definition:
    """The statements that bind a name, and what they name of their own module and of others."""

    text: str
    names: frozenset[Name]


def reached(module: str, entry: str) -> dict[Name, str]:
    """The definitions that the result of a module rests on, without comments, docstrings and white space."""
    found, open_ends = dict[Name, str](), list(_all(module, entry if entry in definitions(module) else ""))
    while open_ends:
        name = open_ends.pop()
        if name in found or name[0] in APART or not name[0].startswith((*PACKAGES, WHOLE)):
            continue
        definition = definitions(name[0]).get(name[1])
        if definition:
            found[name] = definition.text
            open_ends += [*definition.names, *(_all(name[0], "") if name[0].startswith(WHOLE) else ())]
        elif not name[1]:
            open_ends += _all(name[0], "")
    return {name: text for name, text in found.items() if text}


def _all(module: str, name: str) -> Iterator[Name]:
    yield from ((module, each) for each in ([name] if name else definitions(module)))


@cache
def definitions(module: str) -> dict[str, Definition]:
    """What a module defines or imports, by name."""
    source = path(module).read_text("utf-8")
    lines, tree = source.splitlines(), ast.parse(source)
    imported = {alias: name for node in tree.body for alias, name in _imports(node)}
    found = {alias: Definition("", frozenset([name])) for alias, name in imported.items()}
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom) or _is_text(node):
            continue
        first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", []))])
        text = plain("\n".join(lines[first - 1 : node.end_lineno]))
        names = frozenset(_used(node, module, imported))
        for name in _bound(node) or [f"line {node.lineno}"]:
            before = found.get(name, Definition("", frozenset()))
            found[name] = Definition(before.text + text, before.names | names)
    return found


def _used(node: ast.stmt, module: str, imported: dict[str, Name]) -> Iterator[Name]:
    """The names of this module and of imported ones that a statement uses."""
    known = imported | {alias: name for each in ast.walk(node) for alias, name in _imports(each)}
    attributes = {id(each.value) for each in ast.walk(node) if isinstance(each, ast.Attribute)}
    for each in ast.walk(node):
        if isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name):
            of = known.get(each.value.id, ("", "."))
            yield (of[0], each.attr) if not of[1] else (module, each.value.id)
        elif isinstance(each, ast.Name) and id(each) not in attributes:
            yield known.get(each.id, (module, each.id))
        yield from (name for _, name in _imports(each) if name[1])


def _imports(node: ast.AST) -> Iterator[tuple[str, Name]]:
    """What an import binds: a name of a module, or a module itself."""
    if isinstance(node, ast.ImportFrom) and node.module:
        for alias in node.names:
            inner = f"{node.module}.{alias.name}"
            yield alias.asname or alias.name, (inner, "") if _is_module(inner) else (node.module, alias.name)


def _bound(node: ast.stmt) -> list[str]:
    """The names that a statement binds; those of an import are not counted."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)]


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _is_module(name: str) -> bool:
    return name.partition(".")[0] in HOMES and path(name).is_file()


def path(module: str) -> Path:
    """The file of a module or package."""
    home, *parts = module.split(".")
    base = HOMES[home].joinpath(*parts)
    return base / "__init__.py" if base.is_dir() else base.with_suffix(".py")


def plain(source: str) -> str:
    """The code without comments, docstrings, errors that it raises, names of local variables, and white space."""
    lines = source.splitlines()
    tree = ast.parse(source)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            line, column = token.start
            lines[line - 1] = lines[line - 1][:column]
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) or (isinstance(node, ast.stmt) and _is_text(node)):
            for number in range(node.lineno - 1, node.end_lineno or node.lineno):
                lines[number] = ""
    for node in _functions(tree):
        start, end = node.lineno - 1, node.end_lineno or node.lineno
        body = "\n".join(lines[start:end])
        for number, name in enumerate(_locals(node)):
            body = re.sub(rf"(?<![\w.]){name}\b", f"_{number}_", body)
        lines[start:end] = body.split("\n")
    return "".join("".join(lines).split())


def _functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Functions and methods, without those inside of others."""
    for node in tree.body:
        for each in node.body if isinstance(node, ast.ClassDef) else [node]:
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
                yield each


def _locals(function: ast.AST) -> dict[str, None]:
    """The names that a function assigns, in the order of their places; its parameters are part of its interface."""
    names = [node for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    parameters = {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}
    outer = {name for node in ast.walk(function) if isinstance(node, ast.Global) for name in node.names}
    ordered = sorted(names, key=lambda node: (node.lineno, node.col_offset))
    return dict.fromkeys(node.id for node in ordered if node.id not in parameters | outer)
