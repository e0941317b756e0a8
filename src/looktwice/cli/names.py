"""`looktwice labels`: match labels of classifiers to true labels that are spelled differently."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from looktwice.cli.console import print_json, safe, say, say_next, show
from looktwice.cli.options import ClassifiersOption, Help, JsonOption, LabelledArgument, Truths, labels as with_truths
from looktwice.model import AsyncModel, LabelMap, Project, named, no_keys_needed, write_names


@with_truths
def labels(
    pictures: LabelledArgument,
    classifier: ClassifiersOption,
    truths: Truths,
    ledger: Annotated[
        str | None, Help(help="The ledger whose answers tell the labels, where nothing else does.")
    ] = None,
    write: Annotated[bool, Help("--write", help="Keep the proposed names in looktwice.toml.")] = False,
    json: JsonOption = False,
) -> None:
    """Propose which labels of classifiers mean which true labels. Sends no queries.

    Proposed are labels that differ only in case, spaces, hyphens, slashes or the form of letters. The labels are those
    that a classifier says it has, or that it has answered with so far.

    [bold]Examples[/bold]

      looktwice labels labelled/ -c cheap.toml -c gpt.toml

      looktwice labels labelled/ --write
    """
    true = {picture.truth for picture in truths.open(*pictures) if picture.truth is not None}
    with no_keys_needed():
        model = AsyncModel(named(classifier), ledger=ledger)
    maps = model.label_maps(true)
    proposed = {name: found.names for name, found in maps.items() if found and found.names}
    if json:
        print_json({name: found and asdict(found) for name, found in maps.items()})
    else:
        for name, found in maps.items():
            _show(name, found)
    if proposed and write:
        project = Project.here()
        write_names(project.file, proposed, tuple(classifier))
        say(f"Kept in {safe(str(project.file))}.")
    elif proposed and not json:
        given = [word for text in classifier for word in ("-c", text)]
        say_next("if they are right, keep them", "labels", *pictures, *given, "--write")


def _show(name: str, found: LabelMap | None) -> None:
    if found is None:
        show(f"[bold]{safe(name)}[/bold]: no label of it is known yet; see again after a few answers.")
        return
    show(f"[bold]{safe(name)}[/bold]: {len(found.same)} labels equal true labels")
    for label, truth in found.names.items():
        show(f"  {safe(label)} means {safe(truth)}")
    for what, left in (
        ("labels that match no true label", found.unmatched),
        ("true labels never returned", found.unsaid),
    ):
        if left:
            show(f"  [yellow]{what}:[/yellow] {safe(', '.join(left))}")
