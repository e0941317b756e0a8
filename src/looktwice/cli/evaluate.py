"""`looktwice evaluate`, `report` and `plan`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

from looktwice.calibration import storage
from looktwice.calibration.votes import Floats, LabelledVotes, Votes
from looktwice.cli.console import (
    OUT,
    PICTURES,
    Output,
    complain,
    estimate,
    guarantee,
    policy_of,
    print_json,
    results_table,
    safe,
    say_next,
    say_reach,
    watched,
)
from looktwice.cli.fit import tell_duplicates
from looktwice.cli.options import check_places
from looktwice.decisions import planning
from looktwice.decisions.evaluation import Evaluation
from looktwice.decisions.policy import DecisionOptions
from looktwice.decisions.profile import Profile
from looktwice.engine.budget import micros
from looktwice.engine.ledger import maintenance
from looktwice.engine.ledger.places import MEMORY, OFF, POSTGRES
from looktwice.engine.options import ledger_place, run
from looktwice.errors import DataError, ImageError
from looktwice.images import datasets
from looktwice.images.collection import Picture, find
from looktwice.images.descriptor import descriptor
from looktwice.model import AsyncModel
from looktwice.progress import say
from looktwice.report import MAX_ERROR, ReportInputs, write
from looktwice.transfer.noise import NoiseFile


def evaluate(
    model: AsyncModel,
    pictures: Sequence[Picture],
    profile_path: Path,
    votes: Path | None,
    report: Path | None,
    unlabelled: Path | None,
    decide: DecisionOptions,
    output: Output,
) -> bool:
    """Show how a profile fares on labelled pictures, beside full trust and constant trust; whether all were scored."""
    check_places(None, votes, report)
    policy = policy_of(model, decide)
    if output.dry_run:
        estimate(model, pictures, None, output, decide)
        return True

    async def work() -> Evaluation:
        async with watched(model, len(pictures), output):
            return await model.evaluate(pictures, None, decide, unlabelled=unlabelled)

    found = run(work)
    collected = found.collected
    if votes:
        storage.save(votes, collected.votes)
    complain(collected.unscored)
    tell_duplicates(collected)
    if report:
        price = model.terms.price_micros
        inputs = ReportInputs(
            found.profile, collected.votes, pictures, policy, descriptors=collected.descriptors, price_micros=price
        )
        _write(report, replace(inputs, days=_own_days(model)), decide)
    if output.json:
        print_json(found.record())
    else:
        OUT.print(results_table(found.results, found.title()))
        for line in (*found.lines(), *found.profile.advice(found.results)):
            OUT.print(line, highlight=False, soft_wrap=True)
        say_reach(found.profile, profile_path, model.typical_price())
    return not collected.unscored


def report(
    profile_path: Path,
    votes: Path | None,
    pictures: Path | None,
    noise: Path | None,
    ledger_path: Path | None,
    price: str | None,
    decide: DecisionOptions,
    out: Path,
) -> None:
    """Write the page about a profile and saved votes; asks nothing."""
    check_places(None, report=out)
    profile, saved = Profile.load(profile_path), storage.load(votes) if votes else None
    shown = _shown(pictures) if pictures else []
    inputs = ReportInputs(
        profile,
        None if saved is None else _labelled(saved, shown),
        shown,
        replace(decide, max_error=None).of(profile),
        {} if saved is None else _described(saved, shown, profile),
        noise=NoiseFile.load(noise) if noise else None,
        days=maintenance.stats(ledger_path) if ledger_path else (),
        price_micros=micros(price) if price else 0,
    )
    _write(out, inputs, decide)
    say_next("serve it, with a page on which to drop pictures", "serve", "-p", profile_path)


def _write(out: Path, inputs: ReportInputs, decide: DecisionOptions) -> None:
    write(out, replace(inputs, max_error=decide.max_error or MAX_ERROR, level=decide.level))
    say(f"Report: {safe(str(out))}")


def _shown(path: Path) -> Sequence[Picture]:
    """The pictures of a collection, with their truths where it has them."""
    try:
        return datasets.open_labelled(path)
    except DataError:
        return find([path])


def _described(votes: Votes, pictures: Sequence[Picture], profile: Profile) -> dict[str, Floats]:
    """What kind of picture each of the votes' pictures is, by its digest, where the same pixels are shown here."""
    names, digests, found = set(votes.names), set(votes.digests), dict[str, Floats]()
    size = profile.familiarity.size if profile.familiarity else None
    for item in (item for item in pictures if size and item.name in names):
        with suppress(ImageError, DataError):
            image = item.image(size)
            if image.digest in digests:
                found[image.digest] = descriptor(image.pixels, image.original_size)
    return found


def _labelled(votes: Votes, pictures: Sequence[Picture]) -> Votes | LabelledVotes:
    """The votes with the truths that they hold, else with those of the pictures if all are known."""
    known = {item.name: item.truth for item in pictures}
    found = [truth for name in votes.names if (truth := known.get(name)) is not None]
    return votes if isinstance(votes, LabelledVotes) or len(found) < len(votes) else votes.labelled(found)


def _own_days(model: AsyncModel) -> list[maintenance.DayCost]:
    """What the ledger that a run used says of the model's classifier."""
    place = ledger_place(model.terms, model.options)
    if place in (None, OFF, MEMORY) or not (place.startswith(POSTGRES) or Path(place).exists()):
        return []
    return [day for day in maintenance.stats(place) if day.fingerprint == model.classifier.fingerprint]


def plan(max_error: float, level: float, profile_path: Path | None, json: bool) -> None:
    """Say how many labelled pictures a guarantee needs."""
    profile = Profile.load(profile_path) if profile_path else None
    needs = planning.needs(max_error, level, profile.held_out if profile else None)
    if json:
        print_json([asdict(need) for need in needs])
        return
    say(f"To guarantee that at most {max_error:.3g} of the accepted answers are wrong, with {level:.3g} certainty:")
    for need in needs:
        OUT.print(need.line(), highlight=False, soft_wrap=True)
    for remark in planning.remarks(needs, profile.held_out, level) if profile else ():
        OUT.print(remark, highlight=False, soft_wrap=True)
    if profile and profile.threshold(max_error, level) is not None:
        score = ("score", PICTURES, "-p", profile_path, *guarantee(max_error, level), "-o", "verdicts.csv")
        say_next("accept answers under that guarantee, which its labels support", *score)
    else:
        say_next("label that many", "label", PICTURES, "-c", "CLASSIFIER")
