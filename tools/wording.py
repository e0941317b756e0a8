"""Counts assertions in tests that quote a sentence, which makes rewording harder: python tools/wording.py LIMIT.

Tests assert classes, codes, exit codes and values. An assertion quotes a sentence if it has `match=`, or compares with
three or more words in a row.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parent.parent / "tests"
COMPARING = {"startswith", "endswith", "search", "match", "fullmatch", "findall", "count"}
WORDS = re.compile(r"[A-Za-z][a-z'’-]+(?: [a-z'’-]{2,}){2}")


def quotes(node: ast.AST) -> bool:
    """Whether an assertion, or the call of `raises` or `warns`, quotes a sentence."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in ("raises", "warns") and any(keyword.arg == "match" for keyword in node.keywords)
    return isinstance(node, ast.Assert) and any(WORDS.search(text) for text in texts(node.test))


def texts(node: ast.AST) -> Iterator[str]:
    """The texts with which an expression compares; keys and arguments of other functions are excluded."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    for name, value in ast.iter_fields(node):
        method = node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""
        given = isinstance(node, ast.Call) and name == "args" and method not in COMPARING
        if not given and not (isinstance(node, ast.Subscript) and name == "slice"):
            for inner in value if isinstance(value, list) else [value]:
                if isinstance(inner, ast.AST):
                    yield from texts(inner)


def main() -> int:
    limit = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    places = [
        f"{path.relative_to(TESTS.parent)}:{node.lineno}"
        for path in sorted(TESTS.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if quotes(node) and isinstance(node, ast.Assert | ast.Call)
    ]
    if len(places) > limit:
        print(*places, f"{len(places)} assertions quote a sentence, and {limit} are allowed", sep="\n", file=sys.stderr)
    return len(places) > limit


if __name__ == "__main__":
    sys.exit(main())
