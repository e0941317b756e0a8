"""What the commands do: one call of a model with its progress shown, then print and save what came out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from looktwice import beliefs, checkup, datasets, explaining, ledger, planning, scorefile
from looktwice import look as looking
from looktwice import pictures as picture
from looktwice import votes as voting
from looktwice.console import OUT, Output, estimate, print_json, results_table, run, safe, watched
from looktwice.errors import DataError, FitError
from looktwice.files import ready
from looktwice.look import Evaluation, Polled, Verdict
from looktwice.model import AsyncModel, panel_of
from looktwice.noise import NoiseFile
from looktwice.outcome import Unscored
from looktwice.pictures import Picture, few
from looktwice.practice import NEVER, DecisionOptions, Practice
from looktwice.profile import Profile
from looktwice.progress import say
from looktwice.report import ENDINGS as REPORTS
from looktwice.report import MAX_ERROR, Material, write
from looktwice.scorefile import ScoreFile
from looktwice.session import ledger_name, ledger_place, micros
from looktwice.views import GENERAL, Panel
from looktwice.votes import LabelledVotes, Votes

DRIFT = (
    "[yellow]Drift:[/yellow] the votes no longer look like those that this profile was fitted on; "
    "label some of these pictures and fit again"
)
DECISIONS = {"accept": "green", "review": "yellow"}


def labelled(path: Path, truths: Path | None, column: str, take: str | None) -> Sequence[Picture]:
    """Pictures with their truths."""
    return _some(datasets.open_labelled(path, truths, column=column), take)


def found(paths: Sequence[Path], take: str | None = None) -> Sequence[Picture]:
    """Pictures, wherever they are."""
    return _some(picture.find(paths), take)


@dataclass(frozen=True)
class FitOptions:
    """How `fit` learns, and where it puts what it learned."""

    views: str
    belief: str
    noise: Path | None
    adaptive: bool
    max_error: float | None
    out: Path
    votes: Path | None


def fit(model: AsyncModel, pictures: Sequence[Picture], options: FitOptions, output: Output) -> bool:
    """Learn a profile and show the figures that it reached on held-out folds; whether every picture was scored."""
    panel = panel_of(options.views, options.adaptive)
    belief = _belief(options.belief, options.noise, panel)
    looking.check_teachable(pictures)
    check_places(options.out, options.votes)
    if output.dry_run:
        estimate(model, pictures, panel, output)
        return True

    async def work() -> Polled:
        async with watched(model, len(pictures), output):
            return await model.ask(pictures, views=panel)

    polled = run(work)
    complain(polled.unscored)
    if options.votes:
        voting.save(options.votes, polled.votes)
    _warn_of_strangers(polled.labelled())
    tell_duplicates(polled)
    fixed = len(panel) if options.views else len(GENERAL)
    profile = model.learn(polled, belief, fixed=fixed, max_error=options.max_error)
    profile.save(options.out)
    if output.json:
        print_json({"profile": str(options.out), "results": [result.model_dump() for result in profile.results]})
    else:
        OUT.print(results_table(profile.results, f"On held-out fifths of {profile.pictures} pictures"))
        say(f"Profile: {options.out}")
    return not polled.unscored


def _warn_of_strangers(labelled: LabelledVotes) -> None:
    """Truths that were never said, beside labels that are nobody's truth, may be one thing under two names."""
    truths, said = set(labelled.words), set(labelled.vocabulary)
    if truths - said and said - truths:
        never, others = few(sorted(truths - said), "truth"), few(sorted(said - truths), "label")
        told = f"{never} that the classifier never gave, and {others} that no picture has"
        say(f"[yellow]Names:[/yellow] {safe(told)}; if they mean the same, rename one: see docs/pictures.md")


def look(model: AsyncModel, pictures: Sequence[Picture], decide: DecisionOptions, output: Output) -> bool:
    """Print a verdict for each picture; whether all have one."""
    practice = practice_of(model, decide)
    if output.dry_run:
        estimate(model, pictures, practice.panel, output)
        return True

    async def work() -> list[Verdict | Unscored]:
        async with watched(model, len(pictures), output):
            return [verdict async for verdict in model.score(pictures, decide)]

    verdicts = run(work)
    for verdict in verdicts:
        _show(verdict, output.json)
    return not any(isinstance(verdict, Unscored) for verdict in verdicts)


def burst(model: AsyncModel, photos: Sequence[Picture], decide: DecisionOptions, output: Output) -> bool:
    """Print the one verdict that several photos of one thing give; whether there is one."""
    if decide != DecisionOptions():
        raise DataError("a burst is judged as a whole and nothing is promised about it; leave the options to act out")
    if output.dry_run:
        estimate(model, photos, Panel(()), output)
        return True

    async def work() -> Verdict | Unscored:
        async with watched(model, len(photos), output):
            return await model.score_burst(photos)

    verdict = run(work)
    _show(verdict, output.json)
    return isinstance(verdict, Verdict)


def score(
    model: AsyncModel, pictures: Sequence[Picture], out: Path, verify: bool, decide: DecisionOptions, output: Output
) -> bool:
    """Write the verdicts of all pictures; whether all have one."""
    ready(out, scorefile.ENDINGS)
    profile = model.fitted()
    practice = practice_of(model, decide)
    if output.dry_run:
        estimate(model, pictures, practice.panel, output)
        return True
    header: dict[str, object] = {"profile": profile.model_dump(mode="json"), "options": asdict(decide)}
    file, todo = ScoreFile(out, header, pictures, verify=verify), pictures
    if file.changed:
        many = f"{len(file.changed)} pictures changed since their verdict; they are asked about again."
        say("1 picture changed since its verdict; it is asked about again." if len(file.changed) == 1 else many)
    if file.missing() < len(pictures):
        todo = [picture for place, picture in enumerate(pictures) if not file.done(place)]
        say(f"Going on: {len(pictures) - len(todo)} of {len(pictures)} pictures have their verdict.")
    unscored: dict[str, Unscored] = {}
    kinds: list[int] = []

    async def work() -> None:
        async with watched(model, len(todo), output):
            async for verdict in model.score(todo, decide):
                if isinstance(verdict, Unscored):
                    unscored[verdict.name] = verdict
                else:
                    file.add(verdict)
                    kinds.append(practice.kind(verdict.base, [label for _, label in verdict.votes]))

    try:
        run(work)
    finally:
        file.finish(unscored)
    complain(list(unscored.values()))
    drift = practice.drift()
    drifted = drift is not None and drift.update(kinds).alarm
    if drifted:
        say(DRIFT)
    if output.json:
        print_json({"out": str(out), "pictures": len(pictures), "not_scored": file.missing(), "drift": drifted})
    say(f"Verdicts: {out}" + ("; run the same command again to go on" if file.missing() else ""))
    return not file.missing()


def evaluate(
    model: AsyncModel,
    pictures: Sequence[Picture],
    votes: Path | None,
    report: Path | None,
    decide: DecisionOptions,
    output: Output,
) -> bool:
    """Show how a profile fares on labelled pictures, beside full trust and constant trust; whether all were scored."""
    check_places(None, votes, report)
    practice = practice_of(model, decide)
    if output.dry_run:
        estimate(model, pictures, practice.panel, output)
        return True

    async def work() -> Evaluation:
        async with watched(model, len(pictures), output):
            return await model.evaluate(pictures, None, decide)

    found = run(work)
    polled, judged = found.polled, len(found.outcome.label)
    if votes:
        voting.save(votes, polled.votes)
    complain(polled.unscored)
    tell_duplicates(polled)
    if report:
        price = model.terms.price_micros
        material = Material(found.profile, polled.votes, pictures, practice, price_micros=price)
        _write(report, replace(material, days=_own_days(model)), decide)
    if output.json:
        figures = [result.model_dump() for result in found.results]
        print_json({"pictures": judged, "results": figures, "promises": asdict(found.promises)})
    else:
        OUT.print(results_table(found.results, f"On {judged} pictures that took no part in fitting"))
        for line in found.promises.lines():
            OUT.print(line, highlight=False)
    return not polled.unscored


def report(
    profile_path: Path,
    votes: Path | None,
    pictures: Path | None,
    noise: Path | None,
    books: Path | None,
    price: str | None,
    decide: DecisionOptions,
    out: Path,
) -> None:
    """Write the page about a profile and saved votes; asks nothing."""
    check_places(None, report=out)
    profile, saved = Profile.load(profile_path), voting.load(votes) if votes else None
    shown = _shown(pictures) if pictures else []
    material = Material(
        profile,
        _labelled(saved, shown) if saved else None,
        shown,
        replace(decide, max_error=None).of(profile),
        noise=NoiseFile.load(noise) if noise else None,
        days=ledger.stats(books) if books else (),
        price_micros=micros(price) if price else 0,
    )
    _write(out, material, decide)


def _write(out: Path, material: Material, decide: DecisionOptions) -> None:
    write(out, replace(material, max_error=decide.max_error or MAX_ERROR, level=decide.level))
    say(f"Report: {safe(str(out))}")


def _shown(path: Path) -> Sequence[Picture]:
    """The pictures of a collection, with their truths where it has them."""
    try:
        return datasets.open_labelled(path)
    except DataError:
        return picture.find([path])


def _labelled(votes: Votes, pictures: Sequence[Picture]) -> Votes | LabelledVotes:
    """The votes with the truths that they hold, else with those of the pictures if all are known."""
    known = {item.name: item.truth for item in pictures}
    found = [truth for name in votes.names if (truth := known.get(name)) is not None]
    return votes if isinstance(votes, LabelledVotes) or len(found) < len(votes) else votes.labelled(found)


def _own_days(model: AsyncModel) -> list[ledger.DayCost]:
    """What the ledger that a run used says of the model's classifier."""
    place = ledger_place(model.terms, model.options)
    if place is None or not Path(place).exists():
        return []
    return [day for day in ledger.stats(Path(place)) if day.fingerprint == model.classifier.fingerprint]


def check(model: AsyncModel, path: Path | None, output: Output) -> bool:
    """Print what one picture asked three times tells of a classifier; whether it gave labels."""
    if output.dry_run:
        raise DataError("a check asks about one picture three times; leave --dry-run out")

    async def work() -> checkup.Checkup:
        async with model:
            return await model.check(path)

    found, ledger = run(work), ledger_name(model.terms, model.options)
    if output.json:
        print_json({**asdict(found), "steady": found.steady(), "ledger": ledger})
        return None not in found.labels
    for heading, value in {**_facts(found), "ledger": ledger or "none"}.items():
        OUT.print(f"[bold]{heading:<13}[/bold]{safe(value)}", highlight=False, soft_wrap=True)
    return None not in found.labels


def _facts(found: checkup.Checkup) -> dict[str, str]:
    labels = ", ".join("no label could be read" if label is None else label for label in found.labels)
    steady = "the same label each time" if found.steady() else "random: the same picture got different answers"
    rate = f", {found.per_second:g} questions a second" if found.per_second else ""
    return {
        "answers": labels,
        "determinism": steady,
        "latency": f"{found.seconds * 1000:.1f} ms",
        "price": f"{found.price_micros / 1e6:g} a query" if found.price_micros else "none given",
        "limits": f"{found.concurrency} calls at a time, {found.batch} pictures a call{rate}",
        "classes": "unknown" if found.classes is None else str(found.classes),
        "fingerprint": found.fingerprint,
    }


def plan(max_error: float, level: float, profile_path: Path | None, json: bool) -> None:
    """Say how many labelled pictures a promise needs."""
    profile = Profile.load(profile_path) if profile_path else None
    needs = planning.needs(max_error, level, profile.held_out if profile else None)
    if json:
        print_json([asdict(need) for need in needs])
        return
    say(f"For accepted answers that are wrong at most {max_error:.3g} of the time, with certainty {level:.3g}:")
    for need in needs:
        OUT.print(need.line(), highlight=False)


def check_places(profile: Path | None, votes: Path | None = None, report: Path | None = None) -> None:
    """Refuse places for results that cannot be written, before anything is asked."""
    for path, endings in ((profile, ()), (votes, voting.ENDINGS), (report, REPORTS)):
        if path:
            ready(path, endings)


def practice_of(model: AsyncModel, decide: DecisionOptions) -> Practice:
    """The practice that the options mean; says so if they promise what the profile cannot back."""
    practice = model.practice(decide)
    if practice.accept == NEVER:
        many = f"{len(practice.held_out.confidence)} labelled pictures"
        say(
            f"[yellow]Nothing is accepted:[/yellow] the profile's {many} cannot back an error of at most "
            f"{decide.max_error:g}; see how many could: looktwice plan --max-error {decide.max_error:g}"
        )
    return practice


def _some(pictures: Sequence[Picture], take: str | None) -> Sequence[Picture]:
    if take is None:
        return pictures
    try:
        chosen = pictures[slice(*(int(part) if part else None for part in take.split(":")))]
    except (ValueError, TypeError):
        raise DataError(f"--take {take!r} is not a slice; write :1000, 1000: or 500:700") from None
    if not chosen:
        raise DataError(f"--take {take!r} leaves none of {len(pictures)} pictures")
    return chosen


def _belief(name: str, noise: Path | None, panel: Panel) -> beliefs.Belief:
    if (noise is not None) != (name == beliefs.Transfer.name):
        raise FitError("the belief transfer and --noise, the file that `looktwice noise` makes, belong together")
    return beliefs.named(name) if noise is None else beliefs.Transfer(noise=NoiseFile.load(noise).of(panel))


def _show(verdict: Verdict | Unscored, json: bool) -> None:
    if json:
        print_json(asdict(verdict))
    elif isinstance(verdict, Unscored):
        say(f"[red]not scored:[/red] {safe(verdict.name)}: {safe(verdict.message)}")
    else:
        decision = f" [{DECISIONS[verdict.decision]}]{verdict.decision}[/]" if verdict.decision else ""
        line = f"[bold]{safe(verdict.label)}[/bold] {verdict.confidence:.1%}{decision} {safe(verdict.name)}"
        OUT.print(line, highlight=False)
        OUT.print(f"  [dim]{safe(verdict.sentence())}[/dim]", highlight=False, soft_wrap=True)
        if verdict.prediction_set is not None:
            labels = explaining.alternatives(verdict.prediction_set)
            OUT.print(f"  [dim]Prediction set: {safe(labels)}.[/dim]", highlight=False, soft_wrap=True)


def tell_duplicates(polled: Polled) -> None:
    """Say how many pictures are copies of others or almost so, and which copies have another truth."""
    found = polled.distinct()
    if found.repeated:
        total = len(found.votes) + found.repeated
        say(f"{found.repeated:,} of {total:,} pictures are duplicates of others: each picture counts once.")
    if found.similar:
        pairs = few([f"{one} ~ {other}" for one, other in found.similar], "near-duplicate")
        say(f"{safe(pairs)}: they count as different pictures; leave out those that show the same photo.")
    if found.disputed:
        pairs = few([f"{one} = {other}" for one, other in found.disputed], "duplicate")
        say(f"[yellow]Truths:[/yellow] {safe(pairs)} with another truth; the first one counts, mend the wrong ones")


def complain(unscored: Sequence[Unscored], most: int = 5) -> None:
    """Say which pictures have no verdict: the first few, and how many more for each cause."""
    for item in unscored[:most]:
        say(f"[yellow]not scored:[/yellow] {safe(item.name)}: {safe(item.message)}")
    if len(unscored) > most:
        causes = Counter(item.cause for item in unscored[most:]).most_common()
        summary = ", ".join(f"{count} × {cause}" for cause, count in causes)
        say(f"[yellow]and {len(unscored) - most} more:[/yellow] {safe(summary)}")
