"""`looktwice look`, `score` and `serve`: commands that give verdicts."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import asdict, dataclass, field, replace
from heapq import nsmallest
from pathlib import Path
from typing import Annotated, Literal

import typer

from looktwice import service
from looktwice.cli.console import (
    OUT,
    PICTURES,
    Output,
    complain,
    cost_of_accepted,
    estimate,
    leave,
    policy_of,
    print_json,
    safe,
    say,
    say_next,
    say_reach,
    show,
    watch,
)
from looktwice.cli.options import (
    Fleet,
    Help,
    OtherOption,
    PicturesArgument,
    ProfileOption,
    Serve,
    TakeOption,
    asks,
    check_unread,
    decides,
    find_pictures,
    gathers,
    others,
    prints,
    serves,
)
from looktwice.model import (
    AnyVerdict,
    AskOptions,
    AsyncModel,
    Cause,
    DataError,
    DecisionOptions,
    Monitor,
    Panel,
    ScoreFile,
    TagVerdict,
    Unscored,
    Verdict,
    alternatives,
    files,
    is_unfamiliar,
    percent,
    selected_by,
)
from looktwice.service import Place

UNFAMILIAR = "They are unlike the pictures that this profile was fitted on, so their confidence is not valid."
"""The remark on unfamiliar pictures after a run."""

SELECTED = (
    "another profile did not accept these pictures (see {}), so they differ from the labelled ones and the guarantee "
    "does not hold for them; fit both classifiers together: looktwice fit -c ONE -c OTHER"
)
"""The remark on pictures that another profile did not accept."""
LABEL_FIRST = 5
"""The number of pictures suggested for labelling after an alarm."""

DECISIONS = {"accept": "green", "review": "yellow"}


@dataclass
class Decided:
    """Counts of a run's verdicts."""

    verdicts: int = 0
    accepted: int = 0
    price: float = 0.0
    unfamiliar: int = 0
    held: int = 0
    provisional: int = 0
    """The number of verdicts that lack answers which the budget did not cover."""
    unscored: dict[str, Unscored] = field(default_factory=dict)
    digests: set[str] = field(default_factory=set)

    def add(self, verdict: AnyVerdict | Unscored) -> None:
        """Count a verdict."""
        self.unfamiliar += is_unfamiliar(verdict)
        if isinstance(verdict, Unscored):
            self.unscored[verdict.name] = verdict
            return
        self.verdicts += 1
        self.price += verdict.price
        self.digests.add(verdict.digest)
        self.held += verdict.held is not None
        self.provisional += verdict.stopped == "budget"
        self.accepted += verdict.decision == "accept" and verdict.held is None

    def record(self) -> dict[str, object]:
        """The numbers of verdicts by outcome, for the JSON output."""
        counts = {"accepted": self.accepted, "held": self.held, "unfamiliar": self.unfamiliar}
        counts |= {"provisional": self.provisional}
        return {"pictures": self.verdicts + len(self.unscored), "not_scored": len(self.unscored), **counts}


@decides
@asks
@prints
def look(
    pictures: PicturesArgument,
    decide: DecisionOptions,
    ask: AskOptions,
    output: Output,
    profile: ProfileOption,
    classifier: OtherOption,
    burst: Annotated[
        bool, Help("--burst", help="The pictures show the same object: give one verdict for all.")
    ] = False,
) -> None:
    """Print the label and confidence of pictures, with an explanation.

    [bold]Examples[/bold]

      looktwice look cat.jpg --profile profile.json

      looktwice look --burst front.jpg left.jpg right.jpg
    """
    model, opened = AsyncModel.load(profile, others(classifier), options=ask), find_pictures(pictures)
    if not burst:
        policy_of(model, decide)
    elif decide != DecisionOptions():
        raise DataError("guarantees do not apply to a burst; leave out the decision options", code="option-conflict")
    if output.dry_run:
        estimate(model, opened, Panel(()) if burst else None, output, None if burst else decide)
        return

    async def work() -> list[AnyVerdict | Unscored]:
        if burst:
            return [await model.score_burst(opened)]
        return [verdict async for verdict in model.score(opened, decide)]

    results = watch(model, len(opened), output, work)
    for result in results:
        _show(result, output.json)
    verdicts = [result for result in results if not isinstance(result, Unscored)]
    if burst and verdicts and not output.json:
        say_next("take photos of one object on a web page", "serve", "-p", profile)
    elif verdicts and not output.json and not decide.claims():
        say_reach(model.fitted(), profile, model.typical_price())
    leave(len(verdicts) == len(results), sum(verdict.held is not None for verdict in verdicts))


@dataclass(frozen=True)
class Machines:
    """The options of `score` for several machines."""

    engine: Annotated[Literal["here", "ray"], Fleet(help="Score in this process, or on Ray.")] = "here"
    address: Annotated[str | None, Fleet(help="Address of a Ray cluster; auto uses the cluster of this machine.")] = (
        None
    )
    """None starts a local cluster."""
    workers: Annotated[int | None, Fleet(help="Number of workers; by default one per processor.", min=1)] = None
    shard: Annotated[int, Fleet(help="Number of pictures per result file.", min=1)] = 1000


@gathers("machines", Machines)
@decides
@asks
@prints
def score(
    pictures: Annotated[
        list[str],
        typer.Argument(
            help="Pictures, folders or .npz files; on Ray, pictures and folders, also at s3:// or gs:// URLs.",
            show_default=False,
        ),
    ],
    decide: DecisionOptions,
    ask: AskOptions,
    output: Output,
    machines: Machines,
    profile: ProfileOption,
    classifier: OtherOption,
    out: Annotated[
        str, Help("--out", "-o", help="Where to write the verdicts: .csv, .jsonl or .parquet; with Ray, a folder.")
    ] = "verdicts.csv",
    take: TakeOption = None,
) -> None:
    """Write verdicts for whole folders to a file. After an interruption, run the command again to resume.

    [bold]Examples[/bold]

      looktwice score photos/

      looktwice score photos/ -o verdicts.parquet --budget +10000 --dry-run

      looktwice score s3://bucket/photos -o s3://bucket/verdicts --engine ray --address auto
    """
    if machines.engine == "ray":
        from looktwice.cli.ray import score as score_on_machines

        leave(*score_on_machines(pictures, take, profile, others(classifier), out, decide, machines, ask, output))
    place = Path(out)
    check_unread(place, (*pictures, profile, *classifier))
    opened = find_pictures([Path(path) for path in pictures], take)
    model = AsyncModel.load(profile, others(classifier), options=ask)
    files.check_writable(place, files.ENDINGS)
    policy_of(model, decide)
    if output.dry_run:
        estimate(model, opened, None, output, decide)
        return
    header: dict[str, object] = {"profile": model.fitted().model_dump(mode="json"), "options": asdict(decide)}
    file = ScoreFile(place, header, opened, kind=model.kind, size=model.limits.working_size)
    todo = [picture for at, picture in enumerate(opened) if not file.done(at)]
    if file.changed:
        say(f"{len(file.changed)} picture{'s' * (len(file.changed) > 1)} changed since the verdict: queried again.")
    if len(todo) < len(opened):
        say(f"Resuming: {len(opened) - len(todo)} of {len(opened)} pictures already have a verdict.")
    decided, monitor = Decided(), model.monitor(decide)
    monitor.left_behind = file.left_behind()
    for stored in file.verdicts():
        decided.add(stored)

    async def work() -> None:
        async for verdict in model.score(file.watched(todo), decide):
            decided.add(verdict)
            if not isinstance(verdict, Unscored):
                file.add(verdict)
        await monitor.catch_up(model.engine.ledger)

    try:
        watch(model, len(todo), output, work)
    finally:
        file.finish(decided.unscored)
    complain(list(decided.unscored.values()))
    causes = {item.cause for item in decided.unscored.values()}
    tell_doubtful(decided, decide)
    selected = bool(decide.claims()) and tell_selected(place, model.fitted().digest, decided.digests)
    drift = _tell_drift(monitor)
    if output.json:
        counts = {"pictures": len(opened), "not_scored": file.missing() - decided.provisional}
        warnings = ["pictures-selected"] if selected else []
        print_json({"out": out, **decided.record(), **counts, **drift, "warnings": warnings})
    if causes & {Cause.BUDGET, Cause.STOPPED}:
        say(
            f"Compared with the labelled pictures so far: {monitor.stream.seen:,}. After an interruption, verdicts "
            "are not a random sample."
        )
    mend = "replace the bad files and " if causes == {Cause.UNREADABLE} else ""
    left = f"; not scored: {file.missing() - decided.provisional:,}; {mend}run the same command again to complete it"
    say(f"Verdicts: {out}{left if file.missing() else ''}")
    if not (output.json or file.missing()):
        folder = pictures[0] if len(pictures) == 1 else PICTURES
        _say_following(model, profile, folder, place, decide, decided)
    leave(not file.missing(), decided.held)


def tell_doubtful(decided: Decided, decide: DecisionOptions) -> None:
    """Print the number of provisional verdicts and of unfamiliar pictures, if there are any."""
    if decided.provisional:
        say(
            f"[yellow]Provisional:[/yellow] {decided.provisional:,} verdicts lack answers that the budget did not "
            "cover; none of them is accepted. Raise the budget and run again to send the remaining queries."
        )
    if decided.unfamiliar:
        many = decided.verdicts + len(decided.unscored)
        share = f"{decided.unfamiliar} of {many} pictures ({100 * decided.unfamiliar / many:.1f} %)"
        say(f"[yellow]Unfamiliar:[/yellow] {share}; {100 * decide.false_alarms:.1f} % are expected. {UNFAMILIAR}")


def _tell_drift(monitor: Monitor) -> dict[str, object]:
    """Print whether and when the pictures changed, and what to do about it; returns the same information for JSON."""
    since, stream = monitor.changed(), monitor.stream
    first = [seen.name for seen in nsmallest(LABEL_FIRST, since, key=lambda seen: seen.familiarity)]
    accepted = [seen.name for seen in since if seen.accepted]
    for line in stream.lines():
        say(f"[yellow]{line}[/yellow]" if stream.alarm else line)
    if since:
        labels = f"; label these first and add them with fit --add: {safe(', '.join(first))}" if first else ""
        say(f"The change began at about {safe(since[0].name)}{labels}.")
    if accepted:
        say(f"Review the {len(accepted)} pictures accepted before the change was noticed: {safe(', '.join(accepted))}")
    return {
        "drift": monitor.alarm is not None,
        "drift_since": since[0].name if since else None,
        "label_first": first,
        "accepted_since": accepted,
        "expected_accuracy": asdict(stream.expected()),
    }


def _say_following(
    model: AsyncModel, profile: Path, folder: str, out: Path, decide: DecisionOptions, decided: Decided
) -> None:
    """Print how many verdicts are (or could be) accepted and the cost of each, then the next commands.

    After a drift alarm, nothing is guaranteed, and the share of correct verdicts can only be found by labelling
    pictures.
    """
    if decided.held or model.monitor(decide).alarm:
        say_next("label some of these pictures", "label", folder, "-c", model.description)
        say_next("see how many verdicts are right", "evaluate", folder, "-p", profile)
    elif not decide.claims():
        say_reach(model.fitted(), profile, model.typical_price())
    elif decided.verdicts:
        cost = cost_of_accepted(decided.price, decided.accepted)
        basis = ", based on an estimate, not a guarantee" if decide.accept == "estimate" else ""
        say(f"{decided.accepted:,} of {decided.verdicts:,} verdicts are accepted{cost}{basis}.")
        if decided.accepted < decided.verdicts:
            say_next("have people review the other verdicts", "review", out, folder)
        else:
            say_next("estimate how often accepted verdicts are wrong", "audit", out, folder)


def tell_selected(out: Path, profile: str, digests: Set[str]) -> bool:
    """Warn if another profile did not accept these pictures, since no guarantee holds for them."""
    if selecting := selected_by(out, profile, digests):
        say(f"[yellow]Warning (pictures-selected):[/yellow] {SELECTED.format(safe(str(selecting)))}")
    return selecting is not None


def _show(verdict: AnyVerdict | Unscored, json: bool) -> None:
    if json:
        print_json(asdict(verdict) if isinstance(verdict, Unscored) else verdict.to_dict())
        return
    if isinstance(verdict, Unscored):
        complain([verdict])
        return
    decision = f" [{DECISIONS[verdict.decision]}]{verdict.decision}[/]" if verdict.decision else ""
    decision += " (estimate)" if decision and verdict.basis == "estimate" else ""
    decision += f" [yellow]held for review: {verdict.held}[/yellow]" if verdict.held else ""
    if isinstance(verdict, TagVerdict):
        answer = f"[bold]{safe(', '.join(verdict.yes)) or 'no tag'}[/bold]"
    else:
        share = percent(verdict.confidence)
        share = f"[strike dim]{share}[/strike dim]" if verdict.unfamiliar_because else share
        answer = f"[bold]{safe(verdict.label)}[/bold] {share}"
    OUT.print(f"{answer}{decision} {safe(verdict.name)}", highlight=False)
    if verdict.unfamiliar_because:
        why = safe(verdict.unfamiliar_because)
        show(f"  [yellow]Unlike the pictures that the profile was fitted on: {why}.[/yellow]")
    show(f"  [dim]{safe(verdict.sentence)}[/dim]")
    if isinstance(verdict, Verdict) and verdict.prediction_set is not None:
        show(f"  [dim]Prediction set: {safe(alternatives(verdict.prediction_set))}.[/dim]")


@decides
@serves
@asks
def serve(
    decide: DecisionOptions,
    ask: AskOptions,
    place: Place,
    profile: ProfileOption,
    classifier: OtherOption,
    tls_cert: Annotated[Path | None, Serve(help="TLS certificate, for HTTPS.")] = None,
    tls_key: Annotated[Path | None, Serve(help="Private key of the certificate.")] = None,
    looks: Annotated[int, Serve(help="Maximum number of pictures in progress at a time; others wait.", min=1)] = 64,
    timeout: Annotated[float, Serve(help="Longest time that a client waits, in seconds.", min=0.1)] = 60.0,
    max_megabytes: Annotated[float, Serve(help="Maximum size of a request.", min=0.001)] = 16.0,
    max_megapixels: Annotated[float, Serve(help="Maximum size of a picture.", min=0.0001)] = 24.0,
    review: Annotated[Path | None, Serve(help="Folder for pictures that need review; see `looktwice review`.")] = None,
    most_reviews: Annotated[int, Serve(help="Maximum number of pictures in that folder.", min=1)] = 1000,
) -> None:
    """Serve verdicts over HTTP, with a web page.

    [bold]Examples[/bold]

      looktwice serve --profile profile.json

      looktwice serve --host 0.0.0.0 --new-token

      looktwice serve --host 0.0.0.0 --token-file tokens.txt --per-day 5000
    """
    limits = service.ServiceLimits(
        body=int(max_megabytes * 1e6),
        pixels=int(max_megapixels * 1e6),
        looks=looks,
        seconds=timeout,
        reviews=most_reviews,
    )
    place = replace(place, certificate=tls_cert, key=tls_key)
    service.load("looktwice.service.server").run(profile, others(classifier), decide, ask, place, limits, review)
