"""What the commands do: open what they need, ask with progress shown, print and save what came out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from looktwice import beliefs, checkup, datasets, ledger, planning
from looktwice import look as looking
from looktwice import pictures as picture
from looktwice import votes as voting
from looktwice.asking import Unscored
from looktwice.console import OUT, estimate, print_json, results_table, run, safe, say, watched
from looktwice.errors import DataError, FitError
from looktwice.images import Image, load
from looktwice.look import Verdict
from looktwice.noise import NoiseFile
from looktwice.pictures import Picture, few
from looktwice.practice import NEVER, Practice, Use
from looktwice.profile import Profile
from looktwice.report import MAX_ERROR, Material, write
from looktwice.scorefile import ScoreFile
from looktwice.session import OFF, Wishes, micros, opened
from looktwice.views import GENERAL, GENERAL16, Panel
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


def fit(
    pictures: Sequence[Picture],
    classifier: str,
    views: str,
    belief: str,
    noise: Path | None,
    adaptive: bool,
    max_error: float | None,
    out: Path,
    votes: Path | None,
    wishes: Wishes,
    json: bool,
) -> None:
    """Learn a profile and show the figures that it reached on held-out folds."""
    panel = Panel.parse(views) if views else GENERAL16 if adaptive else GENERAL
    fixed = len(panel) if views else len(GENERAL)
    chosen = _belief(belief, noise, panel)
    if wishes.dry_run:
        estimate(pictures, classifier, panel, wishes, json)
        return

    async def work() -> looking.Polled:
        async with opened(classifier, wishes) as asker, watched(asker, len(pictures), wishes.json_log):
            return await looking.collect(asker, pictures, panel)

    polled = run(work)
    _complain(polled.unscored)
    if votes:
        voting.save(votes, polled.votes)
    _warn_of_strangers(polled.labelled())
    profile = looking.learn(polled, chosen, classifier, fixed=fixed, max_error=max_error)
    profile.save(out)
    if json:
        print_json({"profile": str(out), "results": [result.model_dump() for result in profile.results]})
        return
    OUT.print(results_table(profile.results, f"On held-out fifths of {profile.pictures} pictures"))
    say(f"Profile: {out}")


def _warn_of_strangers(labelled: LabelledVotes) -> None:
    """Truths that were never said, beside labels that are nobody's truth, may be one thing under two names."""
    truths, said = set(labelled.words), set(labelled.vocabulary)
    if truths - said and said - truths:
        never, others = few(sorted(truths - said), "truth"), few(sorted(said - truths), "label")
        told = f"{never} that the classifier never gave, and {others} that no picture has"
        say(f"[yellow]Names:[/yellow] {safe(told)}; if they mean the same, rename one: see docs/pictures.md")


def look(paths: list[Path], profile_path: Path, classifier: str | None, use: Use, wishes: Wishes, json: bool) -> int:
    """Print a verdict for each picture; how many have none."""
    profile, pictures = Profile.load(profile_path), found(paths)
    practice = practice_of(use, profile)
    if wishes.dry_run:
        estimate(pictures, classifier or profile.classifier, practice.panel, wishes, json)
        return 0

    async def work() -> list[Verdict | Unscored]:
        async with (
            opened(classifier or profile.classifier, wishes) as asker,
            watched(asker, len(pictures), wishes.json_log),
        ):
            return [verdict async for verdict in looking.look(asker, pictures, profile, practice)]

    verdicts = run(work)
    for verdict in verdicts:
        _show(verdict, json)
    return sum(isinstance(verdict, Unscored) for verdict in verdicts)


def burst(paths: list[Path], profile_path: Path, classifier: str | None, use: Use, wishes: Wishes, json: bool) -> int:
    """Print the one verdict that several photos of one thing give."""
    profile, pictures = Profile.load(profile_path), found(paths)
    if use != Use():
        raise DataError("a burst is judged as a whole and nothing is promised about it; leave the options to act out")
    if len(pictures) < 2:
        raise DataError("a burst is two or more photos of one thing; give them all")
    if wishes.dry_run:
        estimate(pictures, classifier or profile.classifier, Panel(()), wishes, json)
        return 0

    async def work() -> Verdict:
        async with opened(classifier or profile.classifier, wishes) as asker:
            return await looking.burst(asker, pictures, profile)

    _show(run(work), json)
    return 0


def score(
    pictures: Sequence[Picture],
    profile_path: Path,
    classifier: str | None,
    out: Path,
    use: Use,
    wishes: Wishes,
    json: bool,
) -> bool:
    """Write the verdicts of all pictures; whether all have one."""
    profile = Profile.load(profile_path)
    practice = practice_of(use, profile)
    if wishes.dry_run:
        estimate(pictures, classifier or profile.classifier, practice.panel, wishes, json)
        return True
    header: dict[str, object] = {"profile": profile.model_dump(mode="json"), "use": asdict(use)}
    file, todo = ScoreFile(out, header, pictures), pictures
    if file.missing() < len(pictures):
        todo = [picture for place, picture in enumerate(pictures) if not file.done(place)]
        say(f"Going on: {len(pictures) - len(todo)} of {len(pictures)} pictures have their verdict.")
    reasons: dict[str, str] = {}
    kinds: list[int] = []

    async def work() -> None:
        async with (
            opened(classifier or profile.classifier, wishes) as asker,
            watched(asker, len(todo), wishes.json_log),
        ):
            async for verdict in looking.look(asker, todo, profile, practice):
                if isinstance(verdict, Unscored):
                    reasons[verdict.name] = verdict.reason
                else:
                    file.add(verdict)
                    kinds.append(practice.kind(verdict.base, [label for _, label in verdict.votes]))

    try:
        run(work)
    finally:
        file.finish(reasons)
    _complain([Unscored(name, reason) for name, reason in reasons.items()])
    drifted = practice.drifted(kinds)
    if drifted:
        say(DRIFT)
    if json:
        print_json({"out": str(out), "pictures": len(pictures), "not_scored": file.missing(), "drift": drifted})
    say(f"Verdicts: {out}" + ("; run the same command again to go on" if file.missing() else ""))
    return not file.missing()


def evaluate(
    pictures: Sequence[Picture],
    profile_path: Path,
    classifier: str | None,
    votes: Path | None,
    report: Path | None,
    use: Use,
    wishes: Wishes,
    json: bool,
) -> None:
    """Show how a profile fares on labelled pictures, beside full trust and constant trust, and keeps its promises."""
    profile = Profile.load(profile_path)
    practice = practice_of(use, profile)
    if wishes.dry_run:
        estimate(pictures, classifier or profile.classifier, practice.panel, wishes, json)
        return

    async def work() -> tuple[looking.Polled, int]:
        async with (
            opened(classifier or profile.classifier, wishes) as asker,
            watched(asker, len(pictures), wishes.json_log),
        ):
            return await looking.poll(asker, pictures, profile, practice), asker.classifier.terms.price_micros

    polled, price = run(work)
    if votes:
        voting.save(votes, polled.votes)
    _complain(polled.unscored)
    results, kept = looking.assess(polled, profile, practice), looking.promises(polled, practice)
    if report:
        material = Material(profile, polled.votes, pictures, practice, price_micros=price)
        _write(report, replace(material, days=_own_days(wishes.ledger, profile)), use)
    if json:
        figures = [result.model_dump() for result in results]
        print_json({"pictures": len(polled.votes), "results": figures, "promises": asdict(kept)})
        return
    OUT.print(results_table(results, f"On {len(polled.votes)} pictures that took no part in fitting"))
    for line in kept.lines():
        OUT.print(line, highlight=False)


def report(
    profile_path: Path,
    votes: Path | None,
    pictures: Path | None,
    noise: Path | None,
    books: Path | None,
    price: str | None,
    use: Use,
    out: Path,
) -> None:
    """Write the page about a profile and saved votes; asks nothing."""
    profile, saved = Profile.load(profile_path), voting.load(votes) if votes else None
    shown = _shown(pictures) if pictures else []
    material = Material(
        profile,
        _labelled(saved, shown) if saved else None,
        shown,
        practice_of(replace(use, max_error=None), profile),
        noise=NoiseFile.load(noise) if noise else None,
        days=ledger.stats(books) if books else (),
        price_micros=micros(price) if price else 0,
    )
    _write(out, material, use)


def _write(out: Path, material: Material, use: Use) -> None:
    write(out, replace(material, max_error=use.max_error or MAX_ERROR, level=use.level))
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


def _own_days(wish: str | None, profile: Profile) -> list[ledger.DayCost]:
    """What the ledger that a run used says of the profile's classifier."""
    path = Path(wish) if wish else ledger.default_path()
    if wish == OFF or not path.exists():
        return []
    return [day for day in ledger.stats(path) if day.fingerprint == profile.fingerprint]


def check(classifier: str, path: Path | None, wishes: Wishes, json: bool) -> bool:
    """Print what one picture asked three times tells of a classifier; whether it gave labels."""
    if wishes.dry_run:
        raise DataError("a check asks about one picture three times; leave --dry-run out")
    image = load(path) if path else Image.of(_test_card())

    async def work() -> checkup.Checkup:
        async with opened(classifier, wishes) as asker:
            return await checkup.examine(asker, image)

    found = run(work)
    if json:
        print_json({**asdict(found), "steady": found.steady()})
        return None not in found.labels
    for heading, value in _facts(found).items():
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


def _test_card() -> NDArray[np.uint8]:
    """A picture of 256 × 256 with edges, colours and a gradient, for classifiers that are only to be reached."""
    ramp = np.linspace(0, 255, 256, dtype=np.uint8)
    card = np.stack(
        [np.tile(ramp, (256, 1)), np.tile(ramp[:, None], (1, 256)), np.full((256, 256), 96, np.uint8)], axis=2
    )
    card[64:192, 64:192] = 255 - card[64:192, 64:192]
    return card


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


def practice_of(use: Use, profile: Profile) -> Practice:
    """The practice that the options mean; says so if they promise what the profile cannot back."""
    practice = use.of(profile)
    if practice.accept == NEVER:
        many = f"{len(practice.held_out.confidence)} labelled pictures"
        say(
            f"[yellow]Nothing is accepted:[/yellow] the profile's {many} cannot back an error of at most "
            f"{use.max_error:g}; see how many could: looktwice plan --max-error {use.max_error:g}"
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
    family = beliefs.FAMILIES.get(name)
    if family is None:
        raise FitError(f"no belief is called {name!r}; there are {', '.join(beliefs.FAMILIES)}")
    if (noise is not None) != (family is beliefs.Transfer):
        raise FitError("the belief transfer and --noise, the file that `looktwice noise` makes, belong together")
    return family() if noise is None else beliefs.Transfer(noise=NoiseFile.load(noise).of(panel))


def _show(verdict: Verdict | Unscored, json: bool) -> None:
    if json:
        print_json(asdict(verdict))
    elif isinstance(verdict, Unscored):
        say(f"[red]not scored:[/red] {safe(verdict.name)}: {safe(verdict.reason)}")
    else:
        decision = f" [{DECISIONS[verdict.decision]}]{verdict.decision}[/]" if verdict.decision else ""
        line = f"[bold]{safe(verdict.label)}[/bold] {verdict.confidence:.1%}{decision} {safe(verdict.name)}"
        OUT.print(line, highlight=False)
        OUT.print(f"  [dim]{safe(verdict.sentence())}[/dim]", highlight=False, soft_wrap=True)
        if verdict.options is not None:
            OUT.print(f"  [dim]May be: {safe(_either(verdict.options))}.[/dim]", highlight=False, soft_wrap=True)


def _either(options: Sequence[str | None]) -> str:
    return " or ".join("something else" if option is None else option for option in options)


def _complain(unscored: Sequence[Unscored], most: int = 5) -> None:
    """Say which pictures have no verdict: the first few, and the reasons of all."""
    for item in unscored[:most]:
        say(f"[yellow]not scored:[/yellow] {safe(item.name)}: {safe(item.reason)}")
    if len(unscored) > most:
        reasons = Counter(item.reason for item in unscored[most:]).most_common(3)
        summary = "; ".join(f"{count} × {reason}" for reason, count in reasons)
        say(f"[yellow]and {len(unscored) - most} more:[/yellow] {safe(summary)}")
