"""What commands are given: pictures, truths, and places for results, checked before anything is asked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from looktwice.asking.progress import say
from looktwice.calibration import votes as voting
from looktwice.errors import DataError
from looktwice.files import check_writable
from looktwice.model import AsyncModel
from looktwice.pictures import collection as picture
from looktwice.pictures import datasets
from looktwice.pictures.collection import Picture
from looktwice.pictures.video import is_video_file
from looktwice.report import ENDINGS as REPORTS
from looktwice.verdicts.policy import NEVER, DecisionOptions, Policy


def labelled(path: Path, truths: Path | None, column: str, take: str | None) -> Sequence[Picture]:
    """Pictures with their truths."""
    return _some(datasets.open_labelled(path, truths, column=column), take)


def found(paths: Sequence[Path], take: str | None = None) -> Sequence[Picture]:
    """Pictures, wherever they are."""
    return _some(picture.find(paths), take)


def single(paths: Sequence[Path]) -> Sequence[Picture]:
    """Pictures that are judged one by one, which a video is not."""
    if video := next((path for path in paths if is_video_file(path)), None):
        raise DataError(f"{str(video)!r} is a video; judge some of its frames as photos of one thing with --burst")
    return found(paths)


def burst(model: AsyncModel, paths: Sequence[Path], frames: int) -> Sequence[Picture]:
    """Photos of one thing, or so many frames of a video."""
    return model.frames(paths[0], frames) if len(paths) == 1 and is_video_file(paths[0]) else found(paths)


def check_places(profile: Path | None, votes: Path | None = None, report: Path | None = None) -> None:
    """Refuse places for results that cannot be written, before anything is asked."""
    for path, endings in ((profile, ()), (votes, voting.ENDINGS), (report, REPORTS)):
        if path:
            check_writable(path, endings)


def policy_of(model: AsyncModel, decide: DecisionOptions) -> Policy:
    """The policy that the options mean; says so if they guarantee what the profile cannot back."""
    policy = model.policy(decide)
    if policy.accept == NEVER:
        many = f"{len(policy.held_out.confidence)} labelled pictures"
        say(
            f"[yellow]Nothing is accepted:[/yellow] the profile's {many} cannot back an error of at most "
            f"{decide.max_error:g}; see how many could: looktwice plan --max-error {decide.max_error:g}"
        )
    return policy


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
