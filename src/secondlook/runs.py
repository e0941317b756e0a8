"""What the commands do: open what they need, ask with progress shown, print and save what came out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from secondlook import beliefs, datasets
from secondlook import look as looking
from secondlook import pictures as picture
from secondlook import votes as voting
from secondlook.asking import Unscored
from secondlook.console import OUT, print_json, results_table, run, safe, say, watched
from secondlook.errors import DataError, FitError
from secondlook.look import Verdict
from secondlook.pictures import Picture
from secondlook.profile import Profile
from secondlook.scorefile import ScoreFile
from secondlook.session import Wishes, opened
from secondlook.views import GENERAL, Panel


def labelled(path: Path, truths: Path | None, take: str | None) -> list[Picture]:
    """Pictures with their truths."""
    return _some(datasets.open_labelled(path, truths), take)


def found(paths: Sequence[Path], take: str | None = None) -> list[Picture]:
    """Pictures, wherever they are."""
    return _some(picture.find(paths), take)


def fit(
    pictures: list[Picture],
    classifier: str,
    views: str,
    belief: str,
    out: Path,
    votes: Path | None,
    wishes: Wishes,
    json: bool,
) -> None:
    """Learn a profile and show the figures that it reached on held-out folds."""
    panel = Panel.parse(views) if views else GENERAL
    chosen = _belief(belief)

    async def work() -> looking.Polled:
        async with opened(classifier, wishes) as asker, watched(asker, len(pictures), wishes.json_log):
            return await looking.collect(asker, pictures, panel)

    polled = run(work)
    _complain(polled.unscored)
    if votes:
        voting.save(votes, polled.votes, polled.truths)
    profile = looking.learn(polled, chosen, classifier)
    profile.save(out)
    if json:
        print_json({"profile": str(out), "results": [result.model_dump() for result in profile.results]})
        return
    OUT.print(results_table(profile.results, f"On held-out fifths of {profile.pictures} pictures"))
    say(f"Profile: {out}")


def look(paths: list[Path], profile_path: Path, classifier: str | None, wishes: Wishes, json: bool) -> int:
    """Print a verdict for each picture; how many have none."""
    profile, pictures = Profile.load(profile_path), found(paths)

    async def work() -> list[Verdict | Unscored]:
        async with (
            opened(classifier or profile.classifier, wishes) as asker,
            watched(asker, len(pictures), wishes.json_log),
        ):
            return [verdict async for verdict in looking.look(asker, pictures, profile)]

    verdicts = run(work)
    for verdict in verdicts:
        _show(verdict, json)
    return sum(isinstance(verdict, Unscored) for verdict in verdicts)


def burst(paths: list[Path], profile_path: Path, classifier: str | None, wishes: Wishes, json: bool) -> int:
    """Print the one verdict that several photos of one thing give."""
    profile, pictures = Profile.load(profile_path), found(paths)
    if len(pictures) < 2:
        raise DataError("a burst is two or more photos of one thing; give them all")

    async def work() -> Verdict:
        async with opened(classifier or profile.classifier, wishes) as asker:
            return await looking.burst(asker, pictures, profile)

    _show(run(work), json)
    return 0


def score(
    pictures: list[Picture], profile_path: Path, classifier: str | None, out: Path, wishes: Wishes, json: bool
) -> bool:
    """Write the verdicts of all pictures; whether all have one."""
    profile = Profile.load(profile_path)
    file = ScoreFile(out, {"profile": profile.model_dump(mode="json")})
    todo = [picture for picture in pictures if not file.done(picture.name)]
    if len(todo) < len(pictures):
        say(f"Going on: {len(pictures) - len(todo)} of {len(pictures)} pictures have their verdict.")
    reasons: dict[str, str] = {}

    async def work() -> None:
        async with (
            opened(classifier or profile.classifier, wishes) as asker,
            watched(asker, len(todo), wishes.json_log),
        ):
            async for verdict in looking.look(asker, todo, profile):
                if isinstance(verdict, Unscored):
                    reasons[verdict.name] = verdict.reason
                else:
                    file.add(verdict)

    try:
        run(work)
    finally:
        complete = all(file.done(picture.name) for picture in pictures)
        file.finish([picture.name for picture in pictures], reasons, complete)
    _complain([Unscored(name, reason) for name, reason in reasons.items()])
    if json:
        missing = sum(not file.done(picture.name) for picture in pictures)
        print_json({"out": str(out), "pictures": len(pictures), "not_scored": missing})
    say(f"Verdicts: {out}" + ("" if complete else "; run the same command again to go on"))
    return complete


def evaluate(
    pictures: list[Picture],
    profile_path: Path,
    classifier: str | None,
    votes: Path | None,
    wishes: Wishes,
    json: bool,
) -> None:
    """Show how a profile fares on labelled pictures, beside full trust and constant trust."""
    profile = Profile.load(profile_path)

    async def work() -> looking.Polled:
        async with (
            opened(classifier or profile.classifier, wishes) as asker,
            watched(asker, len(pictures), wishes.json_log),
        ):
            return await looking.poll(asker, pictures, profile)

    polled = run(work)
    if votes:
        voting.save(votes, polled.votes, polled.truths)
    _complain(polled.unscored)
    results = looking.assess(polled, profile)
    if json:
        print_json({"pictures": len(polled.votes), "results": [result.model_dump() for result in results]})
        return
    OUT.print(results_table(results, f"On {len(polled.votes)} pictures that took no part in fitting"))


def _some(pictures: list[Picture], take: str | None) -> list[Picture]:
    if take is None:
        return pictures
    try:
        chosen = pictures[slice(*(int(part) if part else None for part in take.split(":")))]
    except (ValueError, TypeError):
        raise DataError(f"--take {take!r} is not a slice; write :1000, 1000: or 500:700") from None
    if not chosen:
        raise DataError(f"--take {take!r} leaves none of {len(pictures)} pictures")
    return chosen


def _belief(name: str) -> beliefs.Belief:
    family = beliefs.FAMILIES.get(name)
    if family is None:
        raise FitError(f"no belief is called {name!r}; there are {', '.join(beliefs.FAMILIES)}")
    return family()


def _show(verdict: Verdict | Unscored, json: bool) -> None:
    if json:
        print_json(asdict(verdict))
    elif isinstance(verdict, Unscored):
        say(f"[red]not scored:[/red] {safe(verdict.name)}: {safe(verdict.reason)}")
    else:
        OUT.print(f"[bold]{safe(verdict.label)}[/bold] {verdict.confidence:.1%} {safe(verdict.name)}", highlight=False)
        OUT.print(f"  [dim]{safe(verdict.sentence())}[/dim]", highlight=False, soft_wrap=True)


def _complain(unscored: Sequence[Unscored], most: int = 5) -> None:
    """Say which pictures have no verdict: the first few, and the reasons of all."""
    for item in unscored[:most]:
        say(f"[yellow]not scored:[/yellow] {safe(item.name)}: {safe(item.reason)}")
    if len(unscored) > most:
        reasons = Counter(item.reason for item in unscored[most:]).most_common(3)
        summary = "; ".join(f"{count} × {reason}" for reason, count in reasons)
        say(f"[yellow]and {len(unscored) - most} more:[/yellow] {safe(summary)}")
