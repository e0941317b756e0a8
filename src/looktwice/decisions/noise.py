"""The noise of views in the latent space of an open model, and its file."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field, ValidationError

from looktwice import files
from looktwice.calibration import Cumulative, Gaussian, Transfer
from looktwice.calibration.latent import Cumulatives, Margins, Noise, Reading, describe, read
from looktwice.decisions.onnx_features import OnnxModel, open_onnx
from looktwice.decisions.results import Part
from looktwice.errors import DataError, ImageError, ViewError, shown
from looktwice.images import Image, Picture
from looktwice.views import RENDERER, Panel, View, base_question, parse, questions, render

COMMON = "gaussian:0.02 rotation:20 elastic:20,5 affine:10,0.1,0.1"
"""The paper's four transforms, with mild settings that suit most models."""

AHEAD = 32
"""The number of pictures processed concurrently on all cores."""
HELD_BYTES = 16_000_000
"""The number of pixel bytes rendered at once."""


@dataclass(frozen=True, eq=False)
class Probe:
    """The outputs of an open model for one picture under each of some views."""

    name: str
    digest: str
    readings: tuple[Reading, ...]


def probe(model: OnnxModel, image: Image, views: Sequence[View], draws: int, seed: int) -> tuple[Reading, ...]:
    """One reading per view, from the `draws` draws that an engine with this seed would send."""
    (base,) = model.features([model.prepare(render(image, [base_question(image)])[0])])
    # Each view is a call of its own, so that its figures are the same to the digit whatever else is measured.
    readings, step = [], max(1, HELD_BYTES // image.pixels.nbytes)
    for view in views:
        asked = questions(image, Panel((view,) * draws), seed)
        parts = (asked[start : start + step] for start in range(0, draws, step))
        shown = [model.prepare(pixels) for part in parts for pixels in render(image, part)]
        readings.append(read(model.head, base, model.features(shown)))
    return tuple(readings)


def probes(
    model: OnnxModel, pictures: Sequence[Picture], views: Sequence[View], draws: int, seed: int = 0
) -> Iterator[Probe | ImageError]:
    """The readings of each picture, in order, or the error if it cannot be read."""
    fixed = [str(view) for view in views if not view.random]
    if not views or fixed:
        what = f"{fixed[0]} gives the same picture each time" if fixed else "no view is named"
        raise ViewError(f"{what}; noise comes from random views such as gaussian:0.1 or rotation:20")
    if draws < 2:
        raise ViewError(f"noise needs at least 2 draws per picture, not {draws}; 50 are usual", code="option-invalid")
    work = partial(_probe, model, views, draws, seed)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for start in range(0, len(pictures), AHEAD):
            yield from pool.map(work, pictures[start : start + AHEAD])


def fold(
    probed: Iterable[Probe | ImageError],
    views: Sequence[View],
    draws: int,
    model: OnnxModel,
    description: str,
    seed: int = 0,
) -> tuple[NoiseFile, tuple[ImageError, ...]]:
    """The noise of each view over all pictures, in memory independent of their number, and the unreadable pictures."""
    tallies, unread = [_Tally.collect([], draws) for _ in views], list[ImageError]()
    digest = pictures = 0
    for item in probed:
        if isinstance(item, ImageError):
            unread.append(item)
            continue
        seen = (_Tally.collect([reading], draws) for reading in item.readings)
        tallies = [tally + one for tally, one in zip(tallies, seen, strict=True)]
        digest, pictures = digest + int(item.digest, 16), pictures + 1
    if not pictures:
        raise DataError(f"no picture could be read: {unread[0] if unread else 'there are none'}", code="pictures-none")
    noises = tuple(tally.measured(str(view)) for tally, view in zip(tallies, views, strict=True))
    file = NoiseFile(
        model=description,
        fingerprint=model.fingerprint,
        seed=seed,
        pictures=pictures,
        digest=f"{digest % 2**128:032x}",
        draws=draws,
        noises=noises,
    )
    return file, tuple(unread)


@dataclass(frozen=True)
class Measured:
    """The noise of one view, and how well agreement predicts the model's own probability."""

    view: str
    kept: float
    """The share of views that kept their picture's label."""
    noise: Noise
    """The raw noise: views mostly lower the margin, so its mean is below 0."""
    centred: Noise
    """The noise of each picture minus its mean, which the paper's propositions assume to be 0."""
    transfer_error: float
    """The root mean square of σ(−F_n⁻¹(1 − p_A)) − σ(wᵀz + b): Proposition 2 with the mean cumulative."""
    gaussian_error: float
    """The root mean square of σ(a·Φ⁻¹(p_A)) − σ(wᵀz + b), with the a for which Φ(x/a) is closest to F_n."""

    def summary(self) -> dict[str, object]:
        """The figures, without the curves."""
        figures = asdict(self)
        for name in ("noise", "centred"):
            figures[name] = {key: figures[name][key] for key in ("var", "normal", "paper", "shape")}
        return figures


@dataclass(frozen=True, eq=False)
class _Tally:
    noise: Cumulatives
    centred: Cumulatives
    margins: Margins

    @classmethod
    def collect(cls, readings: Sequence[Reading], draws: int) -> _Tally:
        noise = np.array([reading.noise for reading in readings]).reshape(-1, draws)
        kept = np.array([(reading.labels == reading.label).sum() for reading in readings], np.intp)
        margins = Margins.collect(np.array([reading.margin for reading in readings]), kept, draws)
        centre = noise.mean(axis=1, keepdims=True)
        return cls(Cumulatives.count(noise), Cumulatives.count(noise - centre), margins)

    def __add__(self, other: _Tally) -> _Tally:
        return _Tally(self.noise + other.noise, self.centred + other.centred, self.margins + other.margins)

    def measured(self, view: str) -> Measured:
        try:
            noise, centred = describe(self.noise), describe(self.centred)
        except DataError as error:
            raise DataError(f"{view}: {error}") from None
        share = np.linspace(0.0, 1.0, self.noise.draws + 1)
        kept = float(self.margins.count @ share) / self.noise.pictures
        transfer, gaussian = Transfer(1.0, noise=noise.cumulative), Gaussian(noise.normal.a)
        errors = (self.margins.error(each.curve(share)) for each in (transfer, gaussian))
        return Measured(view, kept, noise, centred, *errors)


def _probe(model: OnnxModel, views: Sequence[View], draws: int, seed: int, picture: Picture) -> Probe | ImageError:
    try:
        image = picture.image(model.working_size)
    except ImageError as error:
        return error
    return Probe(picture.name, image.digest, probe(model, image, views, draws, seed))


# The file -----------------------------------------------------------------------------------------------------------


class NoiseFile(Part):
    """The noise measured on an open model, with the settings of the measurement; plain JSON."""

    schema_version: Literal[1] = 1
    looktwice: str = Field(default_factory=lambda: version("looktwice"))
    model: str
    """The description of the open model."""
    fingerprint: str
    seed: int
    renderer: str = RENDERER
    pictures: int = Field(ge=1)
    digest: str
    """32 hex digits that identify the set of pictures."""
    draws: int = Field(ge=2)
    noises: tuple[Measured, ...]

    def cumulative_for(self, panel: Panel) -> Cumulative:
        """F_n of the panel's only view; raises a DataError if the file does not contain it."""
        asked, known = sorted({str(view) for view in panel}), {item.view: item.noise for item in self.noises}
        if len(asked) == 1 and asked[0] in known:
            return known[asked[0]].cumulative
        raise DataError(
            f"the noise was measured for {', '.join(known)}, but the panel asks {', '.join(asked)[:200] or 'nothing'}; "
            f"use for example --views '{next(iter(known))}*10'",
            code="votes-mismatch",
        )

    def best(self) -> Measured:
        """The view whose F_n predicts the open model's own probability best."""
        return min(self.noises, key=lambda item: item.transfer_error)

    def save(self, path: Path) -> None:
        """Write the file as JSON."""
        files.write(path, self.model_dump_json() + "\n")

    @classmethod
    def load(cls, path: Path) -> NoiseFile:
        """Load the noise from a file; raises a DataError if it is invalid."""
        try:
            return cls.model_validate(json.loads(path.read_text("utf-8")))
        except FileNotFoundError:
            raise DataError(
                f"there is no noise file {str(path)!r}; make one with: looktwice noise", code="file-missing"
            ) from None
        except ValidationError as error:
            first = error.errors()[0]
            where = shown(".".join(map(str, first["loc"])) or "the top")
            raise DataError(
                f"the noise file {str(path)!r} is malformed at {where}: {first['msg']}", code="file-malformed"
            ) from None
        except (OSError, ValueError, RecursionError) as error:
            raise DataError(f"the noise file {str(path)!r} cannot be read: {error}", code="file-unreadable") from None


def measure(
    description: str,
    pictures: Sequence[Picture],
    views: str = COMMON,
    draws: int = 50,
    seed: int = 0,
    watch: Callable[[Iterable[Probe | ImageError]], Iterable[Probe | ImageError]] = iter,
) -> tuple[NoiseFile, tuple[ImageError, ...]]:
    """Measure the noise of random views in an open model; also returns an error for each unreadable picture.

    `watch` wraps the stream of probes, to show progress.
    """
    model = open_onnx(description)
    random_views = [parse(word) for word in dict.fromkeys((views or COMMON).split())]
    probed = watch(probes(model, pictures, random_views, draws, seed))
    return fold(probed, random_views, draws, model, description, seed)
