"""The inputs of a report from saved files: a profile, votes, pictures, noise and a ledger."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from looktwice.calibration import Floats, LabelledVotes, Votes
from looktwice.errors import DataError, ImageError
from looktwice.model import Picture, Profile, descriptor, find, open_all_labelled
from looktwice.report.inputs import ReportInputs


def saved_inputs(
    profile: Profile,
    votes: Path | None = None,
    pictures: Path | None = None,
    price_micros: int = 0,
) -> ReportInputs:
    """The inputs of a report, read from the files that commands wrote."""
    shown: Sequence[Picture] = []
    if pictures:
        try:
            shown = open_all_labelled([pictures])
        except DataError:
            shown = find([pictures])
    saved = Votes.load(votes) if votes else None
    return ReportInputs(
        profile,
        None if saved is None else _labelled(saved, shown),
        shown,
        descriptors={} if saved is None else described(saved, shown, profile),
        price_micros=price_micros,
    )


def described(votes: Votes, pictures: Sequence[Picture], profile: Profile) -> dict[str, Floats]:
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
