"""`looktwice check`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from looktwice.cli.console import OUT, PICTURES, Output, print_json, safe, say_next, taking
from looktwice.engine.check import Checkup
from looktwice.engine.options import ledger_name, run
from looktwice.errors import DataError
from looktwice.model import AsyncModel


def check(model: AsyncModel, path: Path | None, output: Output) -> bool:
    """Print what one picture asked three times tells of a classifier; whether it gave labels."""
    if output.dry_run:
        raise DataError("a check sends three queries about one picture; leave out --dry-run")

    async def work() -> Checkup:
        async with model:
            return await model.check(path)

    found, ledger = run(work), ledger_name(model.terms, model.options)
    if output.json:
        print_json({**asdict(found), "steady": found.steady(), "ledger": ledger})
        return None not in found.labels
    steady = "the same label each time" if found.steady() else "none: the same picture got different answers"
    rate = f", {found.per_second:g} queries per second" if found.per_second else ""
    noun = "picture" if found.batch == 1 else "pictures"
    facts = {
        "picture": "a test image, since none was given" if path is None else str(path),
        "answers": ", ".join("no label could be read" if label is None else label for label in found.labels),
        "scores": _scores(found),
        "determinism": steady,
        "latency": f"{found.seconds * 1000:.1f} ms",
        "price": f"{found.price_micros / 1e6:g} per query" if found.price_micros else "not given",
        **({"tokens": _tokens(found)} if any(found.tokens) or found.billed else {}),
        "limits": f"{found.concurrency} concurrent calls, {found.batch} {noun} per call{rate}",
        "classes": "unknown" if found.classes is None else str(found.classes),
        "working size": found.working_size,
        "question": f"{found.width} x {found.height} px{taking(found.question_bytes)}",
        "fingerprint": found.fingerprint,
        "ledger": ledger or "none",
    }
    for heading, value in facts.items():
        OUT.print(f"[bold]{heading:<13}[/bold]{safe(value)}", highlight=False, soft_wrap=True)
    say_next("see what fitting would cost", "fit", "LABELLED", "-c", model.description, "--dry-run")
    say_next("if no pictures are labelled yet, label some", "label", PICTURES, "-c", model.description)
    return None not in found.labels


def _tokens(found: Checkup) -> str:
    """What was expected of questions and answers, and what they came to by the classifier's own count."""
    expected = "{:,} + {:,} expected, ".format(*found.tokens) if any(found.tokens) else ""
    counts = ", ".join(f"{asked:,} + {answered:,}" for asked, answered in dict.fromkeys(found.billed))
    return f"{expected}{counts or 'none'} by its own count (question + answer)"


def _scores(found: Checkup) -> str:
    """What an answer holds beside its label."""
    score, ranked = found.scores[0] if found.scores else (None, 0)
    listed = f"a ranked list of {ranked} labels" if ranked else "no ranked list"
    if score is None and not ranked:
        return "none: fit learns from labels alone; if the reply has a score, the description can name it"
    if score is None:
        return listed
    steady = "" if len({each for each, _ in found.scores}) == 1 else ", different each time"
    return f"{score:.3g}{steady}; {listed}; fit tells whether they help"
