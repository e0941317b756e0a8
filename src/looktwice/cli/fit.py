"""`looktwice fit` and `borrow`, and what commands that learn a profile say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from looktwice.cli.console import (
    Output,
    complain,
    estimate,
    leave,
    print_json,
    results_table,
    safe,
    say,
    say_reach,
    show,
    watch,
)
from looktwice.cli.options import (
    LABELLED,
    VIEWS,
    ClassifierOption,
    Help,
    LabelledArgument,
    NewProfileOption,
    Truths,
    VotesOption,
    asks_with_truths,
    check_outputs,
    labels,
    prints,
)
from looktwice.model import (
    AskOptions,
    AsyncModel,
    Cause,
    Collected,
    LabelledVotes,
    Profile,
    Unscored,
    check_teachable,
    few,
    panel_of,
    save_votes,
)

SEVERAL, MANY = 3, 0.2
"""Pictures of one true label, and the share of all pictures, that a classifier hardly gets wrong every time."""
ADAPTIVE = (
    "Learn 16 views, so that look --adaptive can spend more queries on uncertain pictures and fewer on the others. "
    "Worth it from about 200 wrong answers on."
)


@labels
@asks_with_truths
@prints
def fit(
    pictures: LabelledArgument,
    classifier: ClassifierOption,
    ask: AskOptions,
    output: Output,
    truths: Truths,
    views: Annotated[str, Help(help=VIEWS)] = "",
    calibrator: Annotated[
        str, Help(help="How votes become a probability: jury, probit, beta, isotonic, gaussian, transfer …")
    ] = "jury",
    noise: Annotated[
        Path | None, Help(help="For --calibrator transfer: the file that `looktwice noise` wrote.")
    ] = None,
    adaptive: Annotated[bool, Help("--adaptive", help=ADAPTIVE)] = False,
    max_error: Annotated[
        float | None,
        Help(
            help="Let --adaptive stop once it is clear whether the answer is accepted at this error, not by the Brier "
            "score.",
            min=0,
            max=1,
        ),
    ] = None,
    out: NewProfileOption = Path("profile.json"),
    votes: VotesOption = None,
) -> None:
    """Learn how far to trust a classifier from labelled pictures.

    [bold]Examples[/bold]

      looktwice fit photos/ -c onnx:model.onnx

      looktwice fit test.npz --take :1000 -c model.toml --views 'rotation:20*10' --calibrator probit
    """
    check_outputs((pictures, truths.file, classifier, noise), out, votes)
    labelled, model = truths.open(pictures), AsyncModel(classifier, options=ask)
    if output.dry_run:
        check_teachable(labelled)
        estimate(model, labelled, panel_of(views, adaptive), output)
        return
    unscored, tell = listener(votes)
    work = partial(
        model.fit, labelled, views=views, calibrator=calibrator, noise=noise, adaptive=adaptive, max_error=max_error
    )
    profile = watch(model, len(labelled), output, partial(work, on_collected=tell))
    model.save(out)
    advice = profile.advice(asked=panel_of(views, adaptive))
    if output.json:
        print_json({**record(profile, out), "advice": advice})
    elif any(item.cause is Cause.BUDGET for item in unscored):
        show_profile(profile, out, advice)
        known = f"{profile.pictures:,} of {len(labelled):,} pictures"
        say(f"[yellow]The profile knows only {known}[/yellow]: raise the budget.")
    else:
        show_profile(profile, out, advice)
        say_reach(profile, out, model.typical_price())
    leave(not unscored)


@labels
@asks_with_truths
@prints
def borrow(
    teacher: Annotated[Path, typer.Argument(help="The profile of a classifier like this one.", show_default=False)],
    classifier: ClassifierOption,
    ask: AskOptions,
    output: Output,
    truths: Truths,
    pictures: Annotated[Path | None, Help(help=f"{LABELLED} Optional; fifty help.")] = None,
    out: NewProfileOption = Path("profile.json"),
) -> None:
    """Make a profile from that of another classifier.

    [bold]Examples[/bold]

      looktwice fit public/ -c onnx:open.onnx -o open.json

      looktwice borrow open.json -c api.toml

      looktwice borrow open.json -c api.toml --pictures fifty/
    """
    check_outputs((teacher, pictures, truths.file, classifier), out)
    labelled, model = truths.open(pictures) if pictures else [], AsyncModel(classifier, options=ask)
    if output.dry_run:
        estimate(model, labelled, Profile.load(teacher).views(), output)
        return
    unscored, tell = listener()
    profile = watch(model, len(labelled), output, partial(model.borrow, teacher, labelled, on_collected=tell))
    model.save(out)
    if output.json:
        print_json(record(profile, out))
    else:
        none = "No labelled pictures were given, so its quality here is unknown and nothing is guaranteed."
        show_profile(profile, out, [] if profile.results else [none])
        say_reach(profile, out, model.typical_price())
    leave(not unscored)


# What every command that learns a profile says -----------------------------------------------------------------------


def listener(votes: Path | None = None) -> tuple[list[Unscored], Callable[[Collected], None]]:
    """Tells of answers before they teach and saves their votes; the list gets the pictures that have none."""
    unscored: list[Unscored] = []

    def tell(collected: Collected) -> None:
        unscored.extend(collected.unscored)
        complain(collected.unscored)
        if votes:
            save_votes(votes, collected.votes)
        tell_mismatch(collected.labelled())
        tell_duplicates(collected)

    return unscored, tell


def record(profile: Profile, out: Path) -> dict[str, object]:
    """What a machine is told of a new profile."""
    results = [result.model_dump() for result in profile.results]
    return {"profile": str(out), "panel": profile.panel, "results": results}


def show_profile(profile: Profile, out: Path, advice: list[str]) -> None:
    """The figures of a new profile, advice, and where it is."""
    if profile.results:
        show(results_table(profile.results, f"On {profile.pictures} pictures, by 5-fold cross-validation"))
    for line in advice:
        say(safe(line))
    say(f"Profile: {out}")


def tell_mismatch(labelled: LabelledVotes) -> None:
    """Name true labels that the classifier seems to call otherwise.

    A rare one may never be returned by chance; it counts where it has several pictures, or where many are like it.
    """
    sure = zip(labelled.words, labelled.doubtful(), strict=True)
    truths, returned = Counter(word for word, doubtful in sure if not doubtful), set(labelled.vocabulary)
    never, others = truths.keys() - returned, returned - truths.keys()
    count = sum(truths[word] for word in never)
    if others and never and (max(truths[word] for word in never) >= SEVERAL or count > MANY * len(labelled)):
        found = f"the classifier never returned {few(sorted(never), 'true label')}, and no picture is labelled with "
        found += few(sorted(others), "label")
        say(f"[yellow]Label mismatch:[/yellow] {safe(found)}. If some mean the same, rename one: see docs/pictures.md")


def tell_duplicates(collected: Collected) -> None:
    """Say how many pictures are copies of others or almost so, and which copies have another truth."""
    found = collected.distinct()
    if found.repeated:
        total = len(found.votes) + found.repeated
        say(f"{found.repeated:,} of {total:,} pictures are exact duplicates; each picture counts once.")
    if found.similar:
        pairs = few([f"{one} ~ {other}" for one, other in found.similar], "near-duplicate")
        say(f"{safe(pairs)}: they count as different pictures; remove those that show the same photo.")
    if found.disputed:
        pairs = few([f"{one} = {other}" for one, other in found.disputed], "duplicate")
        say(f"[yellow]Truths:[/yellow] {safe(pairs)} with different truths; the first one counts; correct the others")
