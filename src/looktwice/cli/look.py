"""`looktwice look`, `burst` and `score`."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from heapq import nsmallest
from pathlib import Path

from looktwice import files
from looktwice.cli.console import (
    OUT,
    PICTURES,
    Output,
    complain,
    cost_of_accepted,
    estimate,
    policy_of,
    print_json,
    safe,
    say_next,
    say_reach,
    watched,
)
from looktwice.decisions.policy import DecisionOptions, Policy
from looktwice.decisions.stream import Observation, Stream
from looktwice.decisions.verdict import Verdict, alternatives, is_unfamiliar, percent
from looktwice.decisions.verdict_files import ScoreFile
from looktwice.engine.options import run
from looktwice.engine.outcome import Cause, Unscored
from looktwice.errors import DataError
from looktwice.files import check_writable
from looktwice.images.collection import Picture
from looktwice.model import AsyncModel
from looktwice.progress import say
from looktwice.views import Panel

UNFAMILIAR = "They are unlike the pictures that this profile was fitted on, so their confidence means nothing."
"""What the end of a run says of unfamiliar pictures."""

LABEL_FIRST = 5
"""Pictures of a changed stream that are named as those to label first."""
MANY = 1000
"""Verdicts that are looked at together for a change."""

DECISIONS = {"accept": "green", "review": "yellow"}


class Decided:
    """What the verdicts of a run come to, and whether the pictures change on the way."""

    def __init__(self, policy: Policy) -> None:
        self.verdicts = self.accepted = self.queries = self.unfamiliar = 0
        self.unscored: dict[str, Unscored] = {}
        self.cut_off = False
        """Whether the budget has run out: which pictures still get a verdict then depends on what was asked before, as
        about the harder ones with `--adaptive`, so that they are not compared with the labelled ones."""
        self.stream = Stream.of(policy)
        self._policy, self._observations = policy, list[Observation]()
        self._familiarity, self._places = array("d"), array("q")

    def add(self, verdict: Verdict | Unscored) -> None:
        """Count it."""
        self.unfamiliar += is_unfamiliar(verdict)
        if isinstance(verdict, Unscored):
            self.unscored[verdict.name] = verdict
            self.cut_off |= verdict.cause in (Cause.BUDGET, Cause.STOPPED)
            return
        self.verdicts += 1
        self.accepted += verdict.decision == "accept"
        self.queries += verdict.queries
        if self.cut_off:
            return
        self._familiarity.append(1.0 if verdict.familiarity is None else verdict.familiarity)
        self._places.append(len(self._places) + len(self.unscored))
        self._observations.append(Observation.at(verdict, self._policy))
        if len(self._observations) == MANY:
            self.catch_up()

    def catch_up(self) -> None:
        """Let the stream see the verdicts that it has not seen."""
        self.stream, self._observations = self.stream.update(self._observations), []

    def change(self) -> tuple[int | None, list[int]]:
        """Where a change began, and which pictures to label first, by their places; None and nothing without one."""
        since = self.stream.since
        if since is None:
            return None, []
        least_familiar = nsmallest(LABEL_FIRST, range(since, len(self._places)), key=self._familiarity.__getitem__)
        return self._places[since], [self._places[at] for at in least_familiar]


@dataclass(frozen=True)
class Following:
    """Where the verdicts of `score` come from and go to, for the command after it."""

    profile: Path
    pictures: Sequence[str]
    out: Path

    def say(self, model: AsyncModel, max_error: float | None, decided: Decided, changed: bool) -> None:
        """Tell how many verdicts are accepted and what each of them costs, or what could be; then how to go on.

        Where the pictures have changed, labels alone tell how many verdicts are right, and nothing is guaranteed.
        """
        folder = self.pictures[0] if len(self.pictures) == 1 else PICTURES
        price = model.typical_price()
        if changed:
            say_next("label some of them", "label", folder, "-c", model.description)
            say_next("see how many verdicts are right", "evaluate", folder, "-p", self.profile)
            return
        if max_error is None:
            say_reach(model.fitted(), self.profile, price)
        if max_error is None or not decided.verdicts:
            return
        cost = cost_of_accepted(decided.queries, price, decided.accepted)
        say(f"{decided.accepted:,} of {decided.verdicts:,} verdicts are accepted{cost}.")
        if decided.accepted < decided.verdicts:
            say_next("have people review the others", "review", self.out, folder)
        else:
            say_next("estimate how often they are wrong", "audit", self.out, folder)


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
    if not output.json and decide.max_error is None and any(isinstance(verdict, Verdict) for verdict in verdicts):
        say_reach(model.fitted(), profile, model.typical_price())
    return not any(isinstance(verdict, Unscored) for verdict in verdicts)


def burst(model: AsyncModel, photos: Sequence[Picture], profile: Path, decide: DecisionOptions, output: Output) -> bool:
    """Print the one verdict that several photos of one thing give; whether there is one."""
    if decide != DecisionOptions():
        raise DataError(
            "a burst is judged as a whole and nothing is guaranteed about it; leave out the decision options"
        )
    if output.dry_run:
        estimate(model, photos, Panel(()), output)
        return True

    async def work() -> Verdict | Unscored:
        async with watched(model, len(photos), output):
            return await model.score_burst(photos)

    verdict = run(work)
    _show(verdict, output.json)
    if isinstance(verdict, Verdict) and not output.json:
        say_next("take such photos on a web page", "serve", "-p", profile)
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
    check_writable(out, files.ENDINGS)
    profile = model.fitted()
    policy = policy_of(model, decide)
    if output.dry_run:
        estimate(model, pictures, None, output, decide)
        return True
    header: dict[str, object] = {"profile": profile.model_dump(mode="json"), "options": asdict(decide)}
    file, todo = ScoreFile(out, header, pictures, verify=verify, size=model.terms.working_size), pictures
    if file.changed:
        many = f"{len(file.changed)} pictures changed since their verdict; they are queried again."
        say("1 picture changed since its verdict; it is queried again." if len(file.changed) == 1 else many)
    if file.missing() < len(pictures):
        todo = [picture for place, picture in enumerate(pictures) if not file.done(place)]
        say(f"Resuming: {len(pictures) - len(todo)} of {len(pictures)} pictures already have a verdict.")
    decided = Decided(policy)

    async def work() -> None:
        async with watched(model, len(todo), output):
            async for verdict in model.score(file.watched(todo), decide):
                decided.add(verdict)
                if isinstance(verdict, Verdict):
                    file.add(verdict)

    try:
        run(work)
    finally:
        file.finish(decided.unscored)
    complain(list(decided.unscored.values()))
    decided.catch_up()
    stream, (since, least_familiar) = decided.stream, decided.change()
    began, first = None if since is None else todo[since].name, [todo[place].name for place in least_familiar]
    tell_unfamiliar(decided.unfamiliar, len(todo), decide.false_alarms)
    if output.json:
        summary: dict[str, object] = {
            "not_scored": file.missing(),
            "drift": stream.alarm,
            "unfamiliar": decided.unfamiliar,
        }
        summary |= {"drift_since": began, "label_first": first, "expected_accuracy": asdict(stream.expected())}
        print_json({"out": str(out), "pictures": len(pictures), **summary})
    tell_drift(stream, began, first)
    if stream.seen < decided.verdicts:
        say(f"Compared so far: {stream.seen:,}; verdicts after the run was cut off are no fair sample.")
    bad = decided.unscored and all(item.cause is Cause.UNREADABLE for item in decided.unscored.values())
    again = f"{'replace the bad files and ' if bad else ''}run the same command again to complete it"
    say(f"Verdicts: {out}" + (f"; not scored: {file.missing():,}; {again}" if file.missing() else ""))
    if not (output.json or file.missing()):
        following.say(model, decide.max_error, decided, stream.alarm)
    return not file.missing()


def tell_unfamiliar(unfamiliar: int, pictures: int, false_alarms: float) -> None:
    """How many pictures are not like the labelled ones, where there are any."""
    if unfamiliar:
        share = f"{unfamiliar} of {pictures} pictures ({100 * unfamiliar / pictures:.1f} %)"
        say(f"[yellow]Unfamiliar:[/yellow] {share}, where {100 * false_alarms:.1f} % are expected. {UNFAMILIAR}")


def tell_drift(stream: Stream, began: str | None, first: Sequence[str] = ()) -> None:
    """The last lines of a run: whether the pictures have changed, since which, and which to label first."""
    for line in stream.lines():
        say(f"[yellow]{line}[/yellow]" if stream.alarm else line)
    if began is not None:
        labels = f"; label these first and fit again: {safe(', '.join(first))}" if first else ""
        say(f"It began about {safe(began)}{labels}.")


def _show(verdict: Verdict | Unscored, json: bool) -> None:
    if json:
        print_json(asdict(verdict) if isinstance(verdict, Unscored) else verdict.to_dict())
    elif isinstance(verdict, Unscored):
        say(f"[red]not scored:[/red] {safe(verdict.name)}: {safe(verdict.message)}")
    else:
        decision = f" [{DECISIONS[verdict.decision]}]{verdict.decision}[/]" if verdict.decision else ""
        share = percent(verdict.confidence)
        share = f"[strike dim]{share}[/strike dim]" if verdict.unfamiliar_because else share
        line = f"[bold]{safe(verdict.label)}[/bold] {share}{decision} {safe(verdict.name)}"
        OUT.print(line, highlight=False)
        if verdict.unfamiliar_because:
            warning = f"Unlike the pictures it was fitted on: {safe(verdict.unfamiliar_because)}."
            OUT.print(f"  [yellow]{warning}[/yellow]", highlight=False, soft_wrap=True)
        OUT.print(f"  [dim]{safe(verdict.sentence)}[/dim]", highlight=False, soft_wrap=True)
        if verdict.prediction_set is not None:
            labels = alternatives(verdict.prediction_set)
            OUT.print(f"  [dim]Prediction set: {safe(labels)}.[/dim]", highlight=False, soft_wrap=True)
