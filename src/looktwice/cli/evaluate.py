"""`looktwice evaluate`, `report` and `plan`."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Annotated, cast

from looktwice.cli.console import (
    PICTURES,
    JsonOption,
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
    tag_table,
    watch,
)
from looktwice.cli.fit import report_to, tell_duplicates
from looktwice.cli.options import (
    Help,
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
    numbers_by_label,
    others,
    prints,
)
from looktwice.model import (
    ANY,
    MAX_ERROR,
    AskOptions,
    AsyncModel,
    Cause,
    DecisionOptions,
    Profile,
    TagEvaluation,
    best_estimate,
    can_be_made,
    claims,
    guesses,
    missing_labels,
    missing_sentence,
    needs,
    remarks,
)
from looktwice.report import ReportInputs, saved_inputs

OUT_OF_REACH = "Even the most confident answers are wrong too often"


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
    profile: ProfileOption,
    classifier: OtherOption,
    votes: VotesOption = None,
    report: ReportOption = None,
    unlabelled: Annotated[
        Path | None,
        Help(
            help="Verdicts on other pictures, written by score: their confidences narrow the interval of the accuracy."
        ),
    ] = None,
) -> None:
    """Evaluate a profile on other labelled pictures.

    [bold]Example[/bold]

      looktwice evaluate test.npz --take 1000: --profile profile.json --report report.html
    """
    check_outputs((*pictures, truths.truths, *classifier, profile, unlabelled), votes=votes, report=report)
    labelled, model = truths.open(*pictures), AsyncModel.load(profile, others(classifier), options=ask)
    policy = policy_of(model, decide)
    if output.dry_run:
        estimate(model, labelled, None, output, decide)
        return
    work = partial(model.evaluate, labelled, None, decide, unlabelled=unlabelled)
    evaluation = watch(model, len(labelled), output, work)
    collected = evaluation.collected
    if votes:
        collected.votes.save(votes)
    complain(collected.unscored)
    tell_duplicates(collected)
    partial_run = bool({item.cause for item in collected.unscored} & {Cause.BUDGET, Cause.STOPPED})
    if partial_run:
        say(
            f"[yellow]Biased figures:[/yellow] {len(collected.unscored):,} of {len(labelled):,} pictures are missing, "
            "more often doubtful ones, because they need more queries. Run the same command again with a larger "
            "budget; a report is written once the answers are complete."
        )
    if report and not partial_run:
        inputs = ReportInputs(evaluation.profile, collected.votes, labelled, policy, collected.descriptors)
        report_to(report, replace(inputs, price_micros=model.typical_price()), decide)
    if output.json:
        print_json(evaluation.record())
    elif model.kind == "tags":
        show(tag_table(cast("TagEvaluation", evaluation).scores, evaluation.title()))
        for line in evaluation.lines():
            show(line)
    else:
        show(results_table(evaluation.results, evaluation.title()))
        for line in (*evaluation.lines(), *evaluation.profile.advice(evaluation.results)):
            show(line)
        say_reach(evaluation.profile, profile, model.typical_price())
    leave(not collected.unscored)


@decides
def report(
    decide: DecisionOptions,
    profile: ProfileOption,
    votes: Annotated[Path | None, Help(help="Votes saved by fit or evaluate with --votes.")] = None,
    pictures: Annotated[
        Path | None, Help(help="The pictures to which the votes belong; some of them are shown in the report.")
    ] = None,
    price: Annotated[float, Help(help="Price of one query.", min=0)] = 0.0,
    out: Annotated[Path, Help("--out", "-o", help="Where to write the report.")] = Path("report.html"),
) -> None:
    """Write a report about a profile and saved votes. Sends no queries.

    [bold]Examples[/bold]

      looktwice report

      looktwice report --votes votes.npz --pictures test.npz --max-error 0.05 -o report.html
    """
    check_outputs((), report=out)
    loaded = Profile.load(profile)
    inputs = saved_inputs(loaded, votes, pictures, round(1e6 * price))
    report_to(out, replace(inputs, policy=decide.of(loaded)), decide)
    say_next("serve the profile, with a page that accepts pictures by drag and drop", "serve", "-p", profile)


def plan(
    max_error: Annotated[
        list[str] | None,
        Help(help="Largest share of accepted answers that may be wrong: 0.02, or unsafe=0.01. May be repeated."),
    ] = None,
    max_miss: Annotated[
        list[str] | None,
        Help(help="Largest share of a class that may be accepted as another class: unsafe=0.02. May be repeated."),
    ] = None,
    level: Annotated[float, Help(help="Certainty that all these guarantees hold.", min=0, max=1)] = 0.95,
    profile: Annotated[Path | None, Help("--profile", "-p", help="Plan from the results of a first fit.")] = None,
    json: JsonOption = False,
) -> None:
    """Estimate how many labelled pictures guarantees need. Sends no queries.

    [bold]Examples[/bold]

      looktwice plan --max-error 0.02

      looktwice plan --max-error 0.05 --max-error unsafe=0.01 --max-miss unsafe=0.02 --profile profile.json
    """
    wanted = claims(numbers_by_label("--max-error", max_error), numbers_by_label("--max-miss", max_miss)) or claims(
        MAX_ERROR
    )
    loaded = Profile.load(profile) if profile else None
    tested = DecisionOptions().of(loaded).claim_tests(wanted, loaded, level) if loaded else []
    guessed = [(None, claim, guesses(claim, level, len(wanted))) for claim in wanted]
    needed = [(part, claim, needs(claim, part)) for part in tested for claim in part.claims] or guessed
    if json:
        table = [
            {"tag": part.tag if part else "", **asdict(claim), "needs": list(map(asdict, rows))}
            for part, claim, rows in needed
        ]
        print_json({"claims": table, "level": level, "missing": missing_labels(tested) if loaded else None})
        return
    for part, claim, rows in needed:
        if part and part.tag:
            best = min(rows, key=lambda need: need.labels, default=None)
            show(safe(f"{part.tag}, {claim.label}: {best.line(claim).strip() if best else OUT_OF_REACH}"))
            continue
        say(f"To guarantee that {safe(claim.sentence())}, with {level:.3g} certainty:")
        for need in rows:
            show(safe(need.line(claim)))
        if not rows:
            show(f"{OUT_OF_REACH}; raise --max-{claim.kind}.")
        if claim.label != ANY and not part:
            show(f"Random sampling needs 100 times as many pictures if 1 % are {safe(claim.label)}.")
        if claim.label == ANY and part:
            for line in remarks(rows, part.answers, level):
                show(line)
    if loaded:
        show(safe(missing_sentence(wanted, tested)))
        claim_any = next((claim for claim in wanted if claim.label == ANY), None)
        if claim_any and loaded.kind == "label":
            show(best_estimate(tested[0].answers, claim_any.bound))
    if tested and all(map(can_be_made, tested)):
        score = ("score", PICTURES, "-p", profile, *guarantee(wanted, level), "-o", "verdicts.csv")
        say_next("accept answers under that guarantee, which the labelled pictures support", *score)
    else:
        say_next("label that many pictures", "label", PICTURES, "-c", "CLASSIFIER")
