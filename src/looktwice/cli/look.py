"""`looktwice look`, `burst` and `score`."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from heapq import nsmallest
from pathlib import Path

from looktwice import tables
from looktwice.asking.outcome import Cause, Unscored
from looktwice.asking.progress import say
from looktwice.asking.session import run
from looktwice.cli.console import OUT, Output, estimate, print_json, safe, watched
from looktwice.cli.following import PICTURES, cost_of_accepted, say_next, say_reach
from looktwice.cli.inputs import complain, policy_of
from looktwice.errors import DataError
from looktwice.files import ready
from looktwice.model import AsyncModel
from looktwice.pictures.collection import Picture
from looktwice.verdicts import explain
from looktwice.verdicts.files import ScoreFile
from looktwice.verdicts.look import Verdict
from looktwice.verdicts.policy import DecisionOptions
from looktwice.verdicts.profile import Profile
from looktwice.verdicts.stream import Glance, Stream
from looktwice.views import Panel

UNFAMILIAR = "They are not the kind of picture that this profile was fitted on, so their confidence means nothing."
"""What the end of a run says of unfamiliar pictures."""

LABEL_FIRST = 5
"""Pictures of a changed stream that are named as those to label first."""
MANY = 1000
"""Verdicts that are looked at together for a change."""

DECISIONS = {"accept": "green", "review": "yellow"}


@dataclass
class Decided:
    """What the verdicts of a run come to."""

    verdicts: int = 0
    accepted: int = 0
    queries: int = 0
    unfamiliar: int = 0

    def add(self, verdict: Verdict | Unscored) -> None:
        """Count it; a picture that is not scored may be so because it is unfamiliar."""
        if isinstance(verdict, Unscored):
            self.unfamiliar += verdict.cause is Cause.UNFAMILIAR
            return
        self.verdicts += 1
        self.accepted += verdict.decision == "accept"
        self.queries += verdict.queries
        self.unfamiliar += verdict.unfamiliar_because is not None


@dataclass(frozen=True)
class Following:
    """Where the verdicts of `score` come from and go to, for the command after it."""

    profile: Path
    pictures: Sequence[str]
    out: Path

    def say(self, profile: Profile, max_error: float | None, price: int, decided: Decided) -> None:
        """Tell how many verdicts are accepted and what each of them costs, or what could be; then how to go on."""
        if max_error is None:
            say_reach(profile, self.profile, price)
        if max_error is None or not decided.verdicts:
            return
        cost = cost_of_accepted(decided.queries, price, decided.accepted)
        say(f"{decided.accepted:,} of {decided.verdicts:,} verdicts are accepted{cost}.")
        folder = self.pictures[0] if len(self.pictures) == 1 else PICTURES
        if decided.accepted < decided.verdicts:
            say_next("have people look at the others", "review", self.out, folder)
        else:
            say_next("see how often they are wrong", "audit", self.out, folder)


def look(
    model: AsyncModel, pictures: Sequence[Picture], profile: Path, decide: DecisionOptions, output: Output
) -> bool:
    """Print a verdict for each picture; whether all have one."""
    policy_of(model, decide)
    if output.dry_run:
        estimate(model, pictures, None, output, decide)
        return True

    async def work() -> list[Verdict | Unscored]:
        async with watched(model, len(pictures), output):
            return [verdict async for verdict in model.score(pictures, decide)]

    verdicts = run(work)
    for verdict in verdicts:
        _show(verdict, output.json)
    if not output.json and any(isinstance(verdict, Verdict) for verdict in verdicts):
        say_reach(model.fitted(), profile, model.typical_price())
    return not any(isinstance(verdict, Unscored) for verdict in verdicts)


def burst(model: AsyncModel, photos: Sequence[Picture], profile: Path, decide: DecisionOptions, output: Output) -> bool:
    """Print the one verdict that several photos of one thing give; whether there is one."""
    if decide != DecisionOptions():
        raise DataError("a burst is judged as a whole and nothing is guaranteed about it; leave the options to act out")
    if output.dry_run:
        estimate(model, photos, Panel(()), output)
        return True

    async def work() -> Verdict | Unscored:
        async with watched(model, len(photos), output):
            return await model.score_burst(photos)

    verdict = run(work)
    _show(verdict, output.json)
    if isinstance(verdict, Verdict) and not output.json:
        say_next("take and judge such photos on a page", "serve", "-p", profile)
    return isinstance(verdict, Verdict)


def score(
    model: AsyncModel,
    pictures: Sequence[Picture],
    out: Path,
    verify: bool,
    decide: DecisionOptions,
    output: Output,
    following: Following,
) -> bool:
    """Write the verdicts of all pictures; whether all have one."""
    ready(out, tables.ENDINGS)
    profile = model.fitted()
    policy = policy_of(model, decide)
    if output.dry_run:
        estimate(model, pictures, None, output, decide)
        return True
    header: dict[str, object] = {"profile": profile.model_dump(mode="json"), "options": asdict(decide)}
    file, todo = ScoreFile(out, header, pictures, verify=verify, size=model.terms.working_size), pictures
    if file.changed:
        many = f"{len(file.changed)} pictures changed since their verdict; they are asked about again."
        say("1 picture changed since its verdict; it is asked about again." if len(file.changed) == 1 else many)
    if file.missing() < len(pictures):
        todo = [picture for place, picture in enumerate(pictures) if not file.done(place)]
        say(f"Going on: {len(pictures) - len(todo)} of {len(pictures)} pictures have their verdict.")
    unscored: dict[str, Unscored] = {}
    stream, glances = Stream.of(policy), list[Glance]()
    decided, familiarity, places = Decided(), array("d"), array("q")

    async def work() -> None:
        nonlocal stream, glances
        async with watched(model, len(todo), output):
            async for verdict in model.score(todo, decide):
                decided.add(verdict)
                if isinstance(verdict, Unscored):
                    unscored[verdict.name] = verdict
                else:
                    file.add(verdict)
                    familiarity.append(1.0 if verdict.familiarity is None else verdict.familiarity)
                    places.append(len(places) + len(unscored))
                    glances.append(Glance.at(verdict, policy))
                    if len(glances) == MANY:
                        stream, glances = stream.update(glances), []

    try:
        run(work)
    finally:
        file.finish(unscored)
    complain(list(unscored.values()))
    stream = stream.update(glances)
    since = stream.since
    began = None if since is None else todo[places[since]].name
    strangest = nsmallest(LABEL_FIRST, range(since or 0, len(places)), key=familiarity.__getitem__)
    first = [] if since is None else [todo[places[at]].name for at in strangest]
    tell_unfamiliar(decided.unfamiliar, len(todo), decide.false_alarms)
    if output.json:
        told: dict[str, object] = {
            "not_scored": file.missing(),
            "drift": stream.alarm,
            "unfamiliar": decided.unfamiliar,
        }
        told |= {"drift_since": began, "label_first": first, "expected_accuracy": asdict(stream.expected())}
        print_json({"out": str(out), "pictures": len(pictures), **told})
    tell_drift(stream, began, first)
    say(f"Verdicts: {out}" + ("; run the same command again to go on" if file.missing() else ""))
    if not (output.json or file.missing()):
        following.say(profile, decide.max_error, model.typical_price(), decided)
    return not file.missing()


def tell_unfamiliar(unfamiliar: int, pictures: int, false_alarms: float) -> None:
    """How many pictures are not like the labelled ones, where there are any."""
    if unfamiliar:
        share = f"{unfamiliar} of {pictures} pictures ({unfamiliar / pictures:.1%})"
        say(f"[yellow]Unfamiliar:[/yellow] {share}, where {false_alarms:.1%} are to be expected. {UNFAMILIAR}")


def tell_drift(stream: Stream, began: str | None, first: Sequence[str] = ()) -> None:
    """The last lines of a run: whether the pictures have changed, since which, and which to label first."""
    for line in stream.lines():
        say(f"[yellow]{line}[/yellow]" if stream.alarm else line)
    if began is not None:
        labels = f"; label these first and fit again: {safe(', '.join(first))}" if first else ""
        say(f"It began about {safe(began)}{labels}.")


def _show(verdict: Verdict | Unscored, json: bool) -> None:
    if json:
        print_json(asdict(verdict))
    elif isinstance(verdict, Unscored):
        say(f"[red]not scored:[/red] {safe(verdict.name)}: {safe(verdict.message)}")
    else:
        decision = f" [{DECISIONS[verdict.decision]}]{verdict.decision}[/]" if verdict.decision else ""
        share = f"{verdict.confidence:.1%}"
        share = f"[strike dim]{share}[/strike dim]" if verdict.unfamiliar_because else share
        line = f"[bold]{safe(verdict.label)}[/bold] {share}{decision} {safe(verdict.name)}"
        OUT.print(line, highlight=False)
        if verdict.unfamiliar_because:
            told = f"Not the kind of picture it learned from: {safe(verdict.unfamiliar_because)}."
            OUT.print(f"  [yellow]{told}[/yellow]", highlight=False, soft_wrap=True)
        OUT.print(f"  [dim]{safe(verdict.sentence())}[/dim]", highlight=False, soft_wrap=True)
        if verdict.prediction_set is not None:
            labels = explain.alternatives(verdict.prediction_set)
            OUT.print(f"  [dim]Prediction set: {safe(labels)}.[/dim]", highlight=False, soft_wrap=True)
