"""Draws sentences of docstrings, messages and documents at random, for review: python tools/sentences.py SEED

Twenty of each kind, without replacement. Reword a sentence that a newcomer has to read twice, and similar ones.
`python tools/sentences.py all` prints every sentence.
"""

from __future__ import annotations

import ast
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
EACH, FEWEST_WORDS = 20, 5
END = re.compile(r"(?<=[.!?:])\s+(?=[A-Z`])|\n\s*\n|\n\s*[-*|>]\s|\n\s*\d+\.\s")
NOT_PROSE = re.compile(r"(?ms:^```.*?^```)|(?m:^ {4}.*$|^\|.*$|^#.*$)|(?s:<!--.*?-->)|!\[[^\]]*\]\([^)]*\)")
LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
CODE = re.compile(
    r">>>|#|(SELECT|INSERT|UPDATE|DELETE|CREATE|SET) |.*(\b(INTEGER|WHERE|COALESCE)\b|[<>]\S*[<>]|=\"|→ free)"
)
GENERATED = ("docs/tables/", "docs/reference/", "docs/bibliography.md")


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Docstrings of modules, classes, functions and values."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else []:
            match statement:
                case ast.Expr(ast.Constant(str(text))):
                    yield statement.lineno, text


def messages(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """String literals that are not docstrings, with {…} for inserted values."""
    inside = {part for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    bare = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "{…}" for part in node.values]
            yield node.lineno, "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in inside | bare:
            yield node.lineno, node.value


def documents() -> Iterator[tuple[str, str]]:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))]:
        name = page.relative_to(ROOT).as_posix()
        if not name.startswith(GENERATED):
            yield name, LINK.sub(r"\1", NOT_PROSE.sub("", page.read_text("utf-8")))


def sentences(text: str) -> Iterator[str]:
    for sentence in END.split(text):
        words = " ".join(sentence.split())
        if len(re.findall(r"[A-Za-z’']{2,}", words)) >= FEWEST_WORDS and not CODE.match(words):
            yield words


def collected() -> dict[str, list[tuple[str, str]]]:
    """Every sentence with its place, by kind."""
    kinds: dict[str, list[tuple[str, str]]] = {"docstring": [], "message": [], "document": []}
    for path in sorted((ROOT / "src").rglob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        for kind, texts in (("docstring", docstrings(tree)), ("message", messages(tree))):
            places = ((f"{path.relative_to(ROOT / 'src/looktwice')}:{line}", text) for line, text in texts)
            kinds[kind] += [(place, sentence) for place, text in places for sentence in sentences(text)]
    kinds["document"] = [(name, sentence) for name, text in documents() for sentence in sentences(text)]
    return kinds


def main(seed: str) -> None:
    chance = random.Random(seed)
    for kind, places in collected().items():
        chosen = places if seed == "all" else chance.sample(places, EACH)
        print(f"{kind}s, {len(chosen)} of {len(places)}")
        print(*(f"  {place}  {sentence}" for place, sentence in chosen), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1])
