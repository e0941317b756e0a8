"""`looktwice check`, `labels`, `trust` and `prices`: commands that inspect a classifier before use."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from looktwice.cli.console import PICTURES, JsonOption, Output, leave, print_json, safe, say, say_next, show
from looktwice.cli.options import (
    CLASSIFIER,
    ClassifiersOption,
    Help,
    LabelledArgument,
    Truths,
    asks,
    labels as with_truths,
    prints,
)
from looktwice.model import (
    PROJECT_FILE,
    AskOptions,
    AsyncModel,
    Checkup,
    DataError,
    LabelMap,
    Profile,
    Project,
    approve,
    example_prices,
    named,
    no_keys_needed,
    reach,
    resolve,
    write_names,
)
from looktwice.model.runs import run

SEVERAL = 'the reply lists {} …; if several labels may apply to a picture, describe the classifier with answer = "tags"'
YES_OR_NO = 'state in the description what the replies mean, for example rename = { true = "unsafe", false = "safe" }'


@asks
@prints
def check(
    classifier: Annotated[str, typer.Argument(help=CLASSIFIER, show_default=False)],
    ask: AskOptions,
    output: Output,
    picture: Annotated[Path | None, typer.Argument(help="A picture to query; a test image by default.")] = None,
) -> None:
    """Query one picture three times: latency, price, repeatability.

    [bold]Example[/bold]

      looktwice check my-api.toml cat.jpg
    """
    model = AsyncModel(classifier, options=ask)
    if output.dry_run:
        raise DataError("a check sends three queries about one picture; leave out --dry-run", code="option-conflict")

    async def work() -> Checkup:
        async with model:
            return await model.check(picture)

    checkup = run(work)
    if output.json:
        print_json({**asdict(checkup), "steady": checkup.steady(), "ledger": model.ledger_name()})
    else:
        shown = "a test image, because no picture was given" if picture is None else str(picture)
        for heading, value in {"picture": shown, **_facts(checkup), "ledger": model.ledger_name() or "none"}.items():
            show(f"[bold]{heading:<13}[/bold]{safe(value)}")
        say_next("see what fitting would cost", "fit", "LABELLED", "-c", model.description, "--dry-run")
        say_next("label some pictures, if none are labelled yet", "label", PICTURES, "-c", model.description)
    leave(None not in checkup.labels)


def _facts(checkup: Checkup) -> dict[str, str]:
    rate = f", {checkup.per_second:g} queries per second" if checkup.per_second else ""
    noun = "picture" if checkup.batch == 1 else "pictures"
    same = "the same label each time" if checkup.steady() else "none: the same picture got different answers"
    proposed = (
        {"several": SEVERAL.format(", ".join(checkup.listed))} if checkup.kind == "label" and checkup.listed else {}
    )
    if checkup.unread:
        proposed["unread"] = "; ".join(dict.fromkeys(checkup.unread))
    if {label for label in checkup.labels if label} <= {"true", "false"} and not checkup.unread:
        proposed["yes or no"] = YES_OR_NO
    size = "" if checkup.question_bytes is None else f", {checkup.question_bytes:,} bytes"
    return {
        "answers": ", ".join(
            "no label could be read" if label is None else label or "no tag" for label in checkup.labels
        ),
        **proposed,
        "scores": _scores(checkup),
        "determinism": "unknown, because some answers have no label" if None in checkup.labels else same,
        "latency": f"{checkup.seconds * 1000:.1f} ms",
        "price": f"{checkup.price_micros / 1e6:g} per query" if checkup.price_micros else "not given",
        **({"tokens": _tokens(checkup)} if any(checkup.tokens) or checkup.billed else {}),
        "limits": f"{checkup.concurrency} concurrent calls, {checkup.batch} {noun} per call{rate}",
        "classes": "unknown" if checkup.classes is None else str(checkup.classes),
        "working size": checkup.working_size,
        "question": f"{checkup.width} x {checkup.height} px{size}",
        "fingerprint": checkup.fingerprint,
    }


def _tokens(checkup: Checkup) -> str:
    """The expected token counts of queries and answers, and the counts that the classifier reported."""
    expected = "{:,} + {:,} expected, ".format(*checkup.tokens) if any(checkup.tokens) else ""
    counts = ", ".join(f"{asked:,} + {answered:,}" for asked, answered in dict.fromkeys(checkup.billed))
    return f"{expected}{counts or 'none'} counted by the classifier (question + answer)"


def _scores(checkup: Checkup) -> str:
    """Describe the scores of an answer."""
    score, ranked = checkup.scores[0] if checkup.scores else (None, 0)
    listed = f"a ranked list of {ranked} labels" if ranked else "no ranked list"
    if score is None:
        none = "none, so fit uses labels alone; if the reply contains a score, add its path to the description"
        return listed if ranked else none
    steady = "" if len({each for each, _ in checkup.scores}) == 1 else ", different each time"
    return f"{score:.3g}{steady}; {listed}; fit determines whether they help"


def trust(
    file: Annotated[
        Path,
        typer.Argument(help="A profile, a project file, or the .toml file of a classifier.", show_default=False),
    ],
    yes: Annotated[bool, Help("--yes", "-y", help="Approve without asking.")] = False,
) -> None:
    """Approve the classifiers that a file from somebody else names.

    Shows the programs that it would run, the environment variables that it reads and the addresses to which it sends
    pictures. Nothing is run or sent before approval. Profiles that you fit are approved by fit.

    [bold]Example[/bold]

      looktwice trust profile.json
    """
    if file.name == PROJECT_FILE:
        texts = [text for _, text in Project.read(file).descriptions()]
    else:
        texts = [str(file)] if file.suffix == ".toml" else [text for _, text in Profile.load(file).described()]
    for described in map(resolve, texts):
        would = reach(described).lines()
        if not would:
            say(f"{safe(described.text)} needs no approval: it runs no program, reads no variable and reaches no host.")
            continue
        show(f"[bold]{safe(described.text)}[/bold] would")
        for line in would:
            show(f"  {safe(line)}")
        if not yes:
            typer.confirm("Approve this?", abort=True)
        say(f"Approved; to withdraw it, delete {safe(str(approve(described)))}")


def prices() -> None:
    """Print a table of token prices for --prices. Compare them with your vendor's page before use.

    [bold]Example[/bold]

      looktwice prices > prices.toml
    """
    typer.echo(example_prices(), nl=False)


@with_truths
def labels(
    pictures: LabelledArgument,
    classifier: ClassifiersOption,
    truths: Truths,
    ledger: Annotated[
        str | None, Help(help="The ledger whose answers provide the labels of a classifier, if no other source does.")
    ] = None,
    write: Annotated[bool, Help("--write", help="Save the proposed names in looktwice.toml.")] = False,
    json: JsonOption = False,
) -> None:
    """Propose which classifier labels mean which true labels. Sends no queries.

    Labels are matched if they differ only in case, spaces, hyphens, slashes or Unicode form. The labels are those that
    a classifier declares, or has returned so far.

    [bold]Examples[/bold]

      looktwice labels labelled/ -c cheap.toml -c gpt.toml

      looktwice labels labelled/ --write
    """
    true = {picture.truth for picture in truths.open(*pictures) if picture.truth is not None}
    with no_keys_needed():
        model = AsyncModel(named(classifier), ledger=ledger)
    maps = model.label_maps(true)
    proposed = {name: label_map.names for name, label_map in maps.items() if label_map and label_map.names}
    if json:
        print_json({name: label_map and asdict(label_map) for name, label_map in maps.items()})
    else:
        for name, label_map in maps.items():
            _show(name, label_map)
    if proposed and write:
        project = Project.here()
        write_names(project.file, proposed, tuple(classifier))
        say(f"Kept in {safe(str(project.file))}.")
    elif proposed and not json:
        given = [word for text in classifier for word in ("-c", text)]
        say_next("save these names if they are right", "labels", *pictures, *given, "--write")


def _show(name: str, label_map: LabelMap | None) -> None:
    if label_map is None:
        show(f"[bold]{safe(name)}[/bold]: no label of this classifier is known yet; try again after a few answers.")
        return
    show(f"[bold]{safe(name)}[/bold]: {len(label_map.same)} labels equal true labels")
    for label, truth in label_map.names.items():
        show(f"  {safe(label)} means {safe(truth)}")
    for what, left in (
        ("labels that match no true label", label_map.unmatched),
        ("true labels that the classifier never returned", label_map.unsaid),
    ):
        if left:
            show(f"  [yellow]{what}:[/yellow] {safe(', '.join(left))}")
