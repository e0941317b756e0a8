"""Counts the functions of the package: private helpers that are used once, the short ones of these, and long functions.

Run it: python tools/functions.py [--json]. A function is private if its name begins with an underscore, and used once
if it is called in one place and mentioned in no other, since a function that is passed as a value, such as a step of a
migration, cannot be inlined. Methods that override others, dunder methods, and functions that a decorator registers or
changes are not treated as helpers.
"""

from __future__ import annotations

import ast
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "looktwice"
SHORT, LONG = 5, 60  # lines of a body without its docstring; lines of a whole function
GOALS = {
    "short": 0.03,
    "once": 0.15,
    "long": 0.0,
}  # shares of all functions that should not be reached; none may be long
WORDS = {
    "short": f"private, used once, up to {SHORT} lines",
    "once": "private and used once",
    "long": f"over {LONG} lines",
}
PLAIN = {"staticmethod", "classmethod"}

Definition = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Function:
    """A function, its location, and the uses of its name."""

    file: str
    line: int
    name: str
    lines: int
    body: int
    helper: bool
    uses: int

    @property
    def faults(self) -> Iterator[str]:
        """The goals that the function does not meet."""
        if self.helper and self.uses == 1:
            yield "once"
            if self.body <= SHORT:
                yield "short"
        if self.lines > LONG:
            yield "long"


def functions(source: Path) -> list[Function]:
    """All functions below a folder, closures and methods included."""
    trees = {path: ast.parse(path.read_text("utf-8")) for path in sorted(source.rglob("*.py"))}
    bases, methods = _classes(trees.values())
    named = {path: Counter(_named(tree)) for path, tree in trees.items()}
    taken = {path: set(_taken(tree)) for path, tree in trees.items()}
    found: dict[Path, list[tuple[Definition, str | None]]] = {
        path: list(_defined(tree)) for path, tree in trees.items()
    }
    homes = {path: Counter(node.name for node, _ in listed) for path, listed in found.items()}

    def uses(name: str, home: Path, method: bool) -> int:
        """The number of places that call the function; a place that passes it as a value is counted twice."""
        users = {path for path in trees if path == home or (name, method) in taken[path]}
        calls = sum(named[path][name, method, True] + 2 * named[path][name, method, False] for path in users)
        return calls // homes[home][name]  # namesakes in a file share what is said of them

    def overrides(name: str, owner: str | None) -> bool:
        ancestors = set(bases.get(owner or "", ()))
        while new := {above for one in ancestors for above in bases.get(one, ())} - ancestors:
            ancestors |= new
        return any(name in methods[above] for above in ancestors)

    return [
        Function(
            file=str(path.relative_to(source)),
            line=node.lineno,
            name=node.name if owner is None else f"{owner}.{node.name}",
            lines=_end(node) - node.lineno + 1,
            body=_body(node),
            helper=_private(node) and not overrides(node.name, owner),
            uses=uses(node.name, path, owner is not None),
        )
        for path, listed in found.items()
        for node, owner in listed
    ]


def _classes(trees: Iterable[ast.Module]) -> tuple[dict[str, list[str]], dict[str, set[str]]]:
    """The names of each class's bases, and of its own methods."""
    bases: dict[str, list[str]] = {}
    methods: dict[str, set[str]] = defaultdict(set)
    for node in (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
        bases[node.name] = [_last(base) for base in node.bases]
        methods[node.name] |= {one.name for one in node.body if isinstance(one, Definition)}
    return bases, methods


def _defined(node: ast.AST, owner: str | None = None) -> Iterator[tuple[Definition, str | None]]:
    """Each function below a node, with the class that it is a method of."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Definition):
            yield child, owner
            yield from _defined(child)
        else:
            yield from _defined(child, child.name if isinstance(child, ast.ClassDef) else owner)


def _named(tree: ast.Module) -> Iterator[tuple[str, bool, bool]]:
    """Every use of a name: whether it is an attribute, and whether it is called."""
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
            yield _last(node), isinstance(node, ast.Attribute), id(node) in called


def _taken(tree: ast.Module) -> Iterator[tuple[str, bool]]:
    """The names that a module uses from others: imported functions, and methods of objects that are passed to it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from ((alias.name, False) for alias in node.names)
    own = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)}
    own |= {node.name for node, _ in _defined(tree)}
    yield from ((name, True) for name, method, _ in _named(tree) if method and name not in own)


def _private(node: Definition) -> bool:
    plain = node.name.startswith("_") and not node.name.endswith("__")
    return plain and all(_last(one) in PLAIN for one in node.decorator_list)


def _last(node: ast.expr) -> str:
    """The last name of an expression: `Base` of `module.Base[int]`, `cache` of `functools.cache()`."""
    while isinstance(node, ast.Subscript | ast.Call):
        node = node.value if isinstance(node, ast.Subscript) else node.func
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _body(node: Definition) -> int:
    """The lines of a body without its docstring."""
    rest = node.body[1:] if ast.get_docstring(node) is not None else node.body
    return _end(node) - rest[0].lineno + 1 if rest else 0


def _end(node: ast.stmt) -> int:
    return node.end_lineno or node.lineno


if __name__ == "__main__":
    listed = functions(SOURCE)
    against = {fault: [one for one in listed if fault in one.faults] for fault in GOALS}
    if "--json" in sys.argv:
        print(
            json.dumps(
                {"functions": len(listed)} | {f: [asdict(o) for o in ones] for f, ones in against.items()}, indent=2
            )
        )
        sys.exit()
    for fault, ones in against.items():
        for file in sorted({one.file for one in ones}, key=lambda name: -sum(one.file == name for one in ones)):
            here = [one for one in ones if one.file == file]
            print(f"{WORDS[fault]}: {len(here)} in {file}: " + ", ".join(f"{one.name}:{one.line}" for one in here))
        print()
    print(f"{len(listed)} functions")
    for fault, ones in against.items():
        goal = f"under {GOALS[fault]:.0%}" if GOALS[fault] else "none"
        print(f"{WORDS[fault]}: {len(ones)}, {len(ones) / len(listed):.1%} (goal: {goal})")
