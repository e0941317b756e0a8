"""`looktwice evaluate`, `report` and `plan`."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Annotated

from looktwice.cli.console import (
    PICTURES,
    Output,
    complain,
    estimate,
    guarantee,
    leave,
    policy_of,
    print_json,
    results_table,
    safe,
    say,
    say_next,
    say_reach,
    show,
    watch,
)
from looktwice.cli.fit import tell_duplicates
from looktwice.cli.options import (
    Help,
    JsonOption,
    LabelledArgument,
    OtherOption,
    ProfileOption,
    ReportOption,
    Truths,
    VotesOption,
    asks_with_truths,
    check_outputs,
    decides,
    labels,
    prints,
)
from looktwice.model import AskOptions, AsyncModel, DecisionOptions, Profile, needs, remarks, save_votes
from looktwice.report import MAX_ERROR, ReportInputs, saved_inputs, write


@labels
@decides
@asks_with_truths
@prints
def evaluate(
    pictures: LabelledArgument,
    decide: DecisionOptions,
    ask: AskOptions,
    output: Output,
    truths: Truths,
    profile: ProfileOption = Path("profile.json"),
    classifier: OtherOption = None,
    votes: VotesOption = None,
    report: ReportOption = None,
    unlabelled: Annotated[
        Path | None,
        Help(help="Verdicts of score about other pictures: their confidences narrow the interval of the accuracy."),
    ] = None,
) -> None:
    """Evaluate a profile on other labelled pictures.

    [bold]Example[/bold]

      looktwice evaluate test.npz --take 1000: --profile profile.json --report report.html
    """
    check_outputs((pictures, truths.file, classifier, profile, unlabelled), votes=votes, report=report)
    labelled, model = truths.open(pictures), AsyncModel.load(profile, classifier, options=ask)
    policy = policy_of(model, decide)
    if output.dry_run:
        estimate(model, labelled, None, output, decide)
        return
    work = partial(model.evaluate, labelled, None, decide, unlabelled=unlabelled)
    found = watch(model, len(labelled), output, work)
    collected = found.collected
    if votes:
        save_votes(votes, collected.votes)
    complain(collected.unscored)
    tell_duplicates(collected)
    if report:
        inputs = ReportInputs(found.profile, collected.votes, labelled, policy, collected.descriptors)
        _write(report, replace(inputs, days=model.days(), price_micros=model.terms.price_micros), decide)
    if output.json:
        print_json(found.record())
    else:
        show(results_table(found.results, found.title()))
        for line in (*found.lines(), *found.profile.advice(found.results)):
            show(line)
        say_reach(found.profile, profile, model.typical_price())
    leave(not collected.unscored)


@decides
def report(
    decide: DecisionOptions,
    profile: ProfileOption = Path("profile.json"),
    votes: Annotated[Path | None, Help(help="Votes that fit or evaluate saved with --votes.")] = None,
    pictures: Annotated[
        Path | None, Help(help="The pictures of these votes, to show some of them in the report.")
    ] = None,
    noise: Annotated[Path | None, Help(help="The file that `looktwice noise` wrote for an open model.")] = None,
    ledger: Annotated[Path | None, Help(help="The ledger, to report what was spent.")] = None,
    price: Annotated[str | None, Help(help="Price of one query, if the ledger does not have it.")] = None,
    out: Annotated[Path, Help("--out", "-o", help="Where to write the report.")] = Path("report.html"),
) -> None:
    """Write a report about a profile and saved votes. Sends no queries.

    [bold]Examples[/bold]

      looktwice report

      looktwice report --votes votes.npz --pictures test.npz --max-error 0.05 -o report.html
    """
    check_outputs((), report=out)
    loaded = Profile.load(profile)
    inputs = saved_inputs(loaded, votes, pictures, noise, ledger, price)
    _write(out, replace(inputs, policy=replace(decide, max_error=None).of(loaded)), decide)
    say_next("serve it, with a page on which to drop pictures", "serve", "-p", profile)


def _write(out: Path, inputs: ReportInputs, decide: DecisionOptions) -> None:
    write(out, replace(inputs, max_error=decide.max_error or MAX_ERROR, level=decide.level))
    say(f"Report: {safe(str(out))}")


def plan(
    max_error: Annotated[
        float, Help(help="Largest share of accepted answers that may be wrong, such as 0.02.", min=0, max=1)
    ],
    level: Annotated[float, Help(help="Certainty of the guarantee.", min=0, max=1)] = 0.95,
    profile: Annotated[Path | None, Help("--profile", "-p", help="Plan from the results of a first fit.")] = None,
    json: JsonOption = False,
) -> None:
    """Estimate how many labelled pictures a guarantee needs. Sends no queries.

    [bold]Examples[/bold]

      looktwice plan --max-error 0.02

      looktwice plan --max-error 0.02 --profile profile.json
    """
    loaded = Profile.load(profile) if profile else None
    found = needs(max_error, level, loaded.held_out if loaded else None)
    if json:
        print_json([asdict(need) for need in found])
        return
    say(f"To guarantee that at most {max_error:.3g} of the accepted answers are wrong, with {level:.3g} certainty:")
    for line in (*(need.line() for need in found), *(remarks(found, loaded.held_out, level) if loaded else ())):
        show(line)
    if loaded and loaded.threshold(max_error, level) is not None:
        score = ("score", PICTURES, "-p", profile, *guarantee(max_error, level), "-o", "verdicts.csv")
        say_next("accept answers under that guarantee, which its labels support", *score)
    else:
        say_next("label that many", "label", PICTURES, "-c", "CLASSIFIER")
