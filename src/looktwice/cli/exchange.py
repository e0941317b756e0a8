"""`looktwice export` and `import`: to the tools in which people already label, and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from looktwice import files
from looktwice.asking.progress import say
from looktwice.cli.console import safe
from looktwice.errors import DataError
from looktwice.labelling.exchange import fiftyone, label_studio, write_labels
from looktwice.pictures.collection import few, find
from looktwice.verdicts import review
from looktwice.verdicts.profile import Profile
from looktwice.verdicts.review import Doubt


@dataclass(frozen=True)
class ExportOptions:
    """Which verdicts go out, and where."""

    prefix: str | None
    """The addresses of pictures, up to their names; None embeds them."""
    doubtful: bool
    profile: Path | None
    """Whose labels are offered beside those that the verdicts name."""
    out: Path


def export(verdicts: Path, folder: Path | None, to: str, options: ExportOptions) -> None:
    """Write verdicts in the form of a tool."""
    files.ready(options.out, (".json",))
    found = review.read(verdicts)
    if options.doubtful:
        found = review.doubtful(found, {})
    if to == "fiftyone":
        fiftyone.export(found, options.out)
        say(f"{len(found)} classifications are in {safe(str(options.out))}.")
        return
    address = _address(found, folder or (verdicts if verdicts.is_dir() else None), options.prefix)
    labels = Profile.load(options.profile).vocabulary if options.profile else ()
    config = label_studio.export(found, address, labels, options.out)
    say(f"{len(found)} tasks are in {safe(str(options.out))}; configure the project with {safe(str(config))}.")


def import_labels(result: Path, folder: Path | None, source: str, out: Path) -> None:
    """Write what people said in a tool as a new `labels.csv`."""
    if source == "fiftyone":
        if folder is None:
            raise DataError("where are the pictures? name their folder after the file: FiftyOne drops their endings")
        known = fiftyone.read(result, [picture.name for picture in find([folder])])
    else:
        found = label_studio.read(result)
        known = found.known
        if found.disputed:
            told = safe(few(found.disputed, "picture"))
            say(f"[yellow]Left out:[/yellow] people disagree about {told}; settle it there and import again.")
        if found.unnamed:
            told = f"{found.unnamed} annotations of tasks that `looktwice export` did not write"
            say(f"[yellow]Left out:[/yellow] {told}: no field `file` in their data names the picture.")
    if not known:
        raise DataError(f"{str(result)!r} holds no label; label some pictures there and export again")
    write_labels(out, known)
    say(f"Labels of {len(known)} pictures are in {safe(str(out))}.")


def _address(found: Sequence[Doubt], folder: Path | None, prefix: str | None) -> Callable[[str], str]:
    """Where Label Studio finds the pictures: at addresses that begin so, or in the tasks."""
    if prefix is not None:
        return label_studio.linked(prefix)
    if folder is None:
        raise DataError("where are the pictures? name their folder after the verdicts, or an address with --prefix")
    pictures = {picture.name: picture for picture in find([folder])}
    lost = [verdict.name for verdict in found if verdict.name not in pictures]
    if lost:
        raise DataError(f"{few(lost, 'verdict')} about a picture that is not in {str(folder)!r}; name its folder")
    return label_studio.embedded(pictures)
