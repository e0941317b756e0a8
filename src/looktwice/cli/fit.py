"""`looktwice fit`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from looktwice.calibration import calibrators, crossfit, paper, storage
from looktwice.calibration.votes import LabelledVotes
from looktwice.cli.console import OUT, Output, complain, estimate, print_json, results_table, safe, say_reach, watched
from looktwice.cli.options import check_places
from looktwice.decisions import fitting, stopping
from looktwice.decisions.fitting import Collected
from looktwice.engine.options import run
from looktwice.engine.outcome import Cause
from looktwice.errors import FitError, UnscoredError
from looktwice.images.collection import Picture, few
from looktwice.model import AsyncModel, panel_of
from looktwice.progress import say
from looktwice.transfer.noise import NoiseFile
from looktwice.views import GENERAL

SEVERAL, MANY = 3, 0.2
"""Pictures of one true label, and the share of all pictures, that a classifier hardly gets wrong every time."""


@dataclass(frozen=True)
class FitOptions:
    """How `fit` learns, and where it puts what it learned."""

    views: str
    calibrator: str
    noise: Path | None
    adaptive: bool
    max_error: float | None
    out: Path
    votes: Path | None


def fit(model: AsyncModel, pictures: Sequence[Picture], options: FitOptions, output: Output) -> bool:
    """Learn a profile and show the figures that it reached on held-out folds; whether every picture was scored."""
    panel = panel_of(options.views, options.adaptive)
    name, noise = options.calibrator, options.noise
    if (noise is not None) != (name == paper.Transfer.name):
        raise FitError("--calibrator transfer and --noise, the file that `looktwice noise` writes, belong together")
    calibrator = calibrators.named(name) if noise is None else paper.Transfer(noise=NoiseFile.load(noise).of(panel))
    fitting.check_teachable(pictures)
    check_places(options.out, options.votes)
    if output.dry_run:
        estimate(model, pictures, panel, output)
        return True

    async def work() -> Collected:
        async with watched(model, len(pictures), output):
            return await model.ask(pictures, views=panel)

    collected = run(work)
    complain(collected.unscored)
    check_not_stopped(collected)
    causes = {item.cause for item in collected.unscored}
    if options.votes:
        storage.save(options.votes, collected.votes)
    labelled = collected.labelled()
    least = 2 * crossfit.FOLDS
    if len(labelled) < least:
        raise UnscoredError(
            f"nothing was learned: {len(labelled)} of {len(pictures):,} pictures have all their answers, and it takes "
            f"{least}; mend what is said above and run the same command again, stored answers cost nothing"
        )
    tell_mismatch(labelled)
    tell_duplicates(collected)
    fixed = len(panel) if options.views else len(GENERAL)
    profile = model.learn(collected, calibrator, fixed=fixed, max_error=options.max_error)
    model.save(options.out)
    advice = profile.advice()
    if profile.adaptive and len(profile.adaptive.views()) < len(panel):
        unknown = f"Fewer than {stopping.RANKING} answers were wrong, too few to tell which further views help"
        advice.append(f"{unknown}: --adaptive stops within {len(profile.views())} views.")
    if output.json:
        print_json(
            {
                "profile": str(options.out),
                "results": [result.model_dump() for result in profile.results],
                "advice": advice,
            }
        )
    else:
        OUT.print(results_table(profile.results, f"On {profile.pictures} pictures, by 5-fold cross-validation"))
        for line in advice:
            say(safe(line))
        say(f"Profile: {options.out}")
        if Cause.BUDGET in causes:
            known = f"{len(labelled):,} of {len(pictures):,} pictures"
            say(f"[yellow]The profile knows only {known}[/yellow]: raise the budget.")
        else:
            say_reach(profile, options.out, model.typical_price())
    return not collected.unscored


def check_not_stopped(collected: Collected) -> None:
    """Refuse to learn from the first pictures of a run that a signal ended: they would take the place of a profile."""
    if any(item.cause is Cause.STOPPED for item in collected.unscored):
        raise UnscoredError("nothing was learned because the run was stopped; run the same command again to resume")


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
