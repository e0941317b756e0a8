"""Answers of a model to the paper's questions, cached in one file per view: nothing is asked twice.

An interrupted run loses a few seconds of answers at most; the same command resumes it.
"""

from __future__ import annotations

import os
import sys
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from hashlib import blake2b
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from experiments.collected import CACHE
from experiments.paper.grids import Normalised, Tensor
from experiments.paper.subjects import Rows, Subject
from looktwice.calibration.evidence import Codes, Floats
from looktwice.calibration.latent import Cumulatives, Noise, describe, read
from looktwice.calibration.votes import LabelledVotes, Votes
from looktwice.decisions.onnx_features import OnnxModel, open_onnx
from looktwice.views import Panel, Question, View, render

UNASKED = -1
PIECE = 64
"""Answers that one piece of work computes."""
SAVE_EVERY = 20.0
"""Seconds between two saves of a file that is being filled."""
DIRECTIONS, STEP, SLOPE_SEED = 64, 3e-4, 24
"""Random directions along which a margin is differentiated, the step along each, and their seed."""
Sheet = NDArray[np.int16]
"""(draws, n): the label of each draw of one view for each picture, UNASKED where it is not known yet."""
Work = list[tuple[int, list[int]]]
"""Pictures, each with the draws that are still to be asked."""
Index = Rows | tuple[Rows, Rows]
Piece = TypeVar("Piece")


class Meter:
    """Prints the progress of one model, and the time it still needs, to standard error."""

    def __init__(self, title: str, planned: int) -> None:
        self.done = 0
        """Answers that were needed so far, cached or computed, each counted once."""
        self._title, self._planned, self._fresh = title, planned, 0
        self._needed: dict[Path, NDArray[np.intp]] = {}
        """The places of each file that were needed so far."""
        self._began = self._printed = time.monotonic()

    def need(self, file: Path, places: NDArray[np.intp], missing: int, answers: int = 1) -> None:
        """Count the answers at these places of a file, so many at each, but for those that are missing there."""
        before = self._needed.get(file, np.empty(0, np.intp))
        self.done += answers * (len(np.setdiff1d(places, before)) - missing)
        self._needed[file] = np.union1d(before, places)

    def step(self, answers: int, what: str) -> None:
        """Count answers that were just computed."""
        self.done, self._fresh = self.done + answers, self._fresh + answers
        now = time.monotonic()
        if now - self._printed < (0.5 if sys.stderr.isatty() else 15.0):
            return
        self._printed = now
        speed = self._fresh / (now - self._began)
        left = max(self._planned - self.done, 0) / speed
        line = f"{self._title}: {self.done:,} of about {self._planned:,} answers, {speed:,.0f}/s, {what}"
        print(f"{line}, {left // 60:.0f} min {left % 60:.0f} s left", file=sys.stderr, flush=True)


@dataclass(frozen=True, eq=False)
class Readings:
    """What a view does to the margins of pictures."""

    margin: Floats
    """(n,): wᵀz + b of each picture."""
    share: Floats
    """(n,): p_A."""
    noise: Floats
    """(n, S): how far each draw moves the margin."""

    @cached_property
    def plain(self) -> Noise:
        return describe(Cumulatives.count(self.noise))

    @cached_property
    def centred(self) -> Noise:
        """Of the noise minus each picture's own mean."""
        return describe(Cumulatives.count(self.noise - self.noise.mean(axis=1, keepdims=True)))


class Answers:
    """The answers of a subject's model: from the cache where they are, else from the model."""

    def __init__(self, subject: Subject, cache: Path, meter: Meter) -> None:
        self.subject, self._meter = subject, meter
        self._folder = cache / "paper" / f"{subject.name}-{_key(subject)}"
        self._folder.mkdir(parents=True, exist_ok=True)

    @cached_property
    def _open(self) -> OnnxModel:
        return open_onnx(self.subject.description)

    # Labels and logits -----------------------------------------------------------------------------------------------

    def votes(self, panel: Panel, rows: Rows) -> LabelledVotes:
        """The labels of some pictures under a panel, with their truths."""
        draws = {view: sum(view == other for other in panel) for view in panel}
        sheets = {view: self._complete_sheet(view, count, rows) for view, count in draws.items()}
        columns = [sheets[view][index, rows] for view, index in panel.slots]
        views = np.stack(columns, axis=1).astype(np.int32) if columns else np.empty((len(rows), 0), np.int32)
        labels = self.subject.labels
        names = tuple(self.subject.pictures[i].name for i in rows)
        base: Codes = self.logits(rows).argmax(axis=1).astype(np.int32)
        votes = Votes(names, tuple(map(str, panel)), labels, base, views, len(labels))
        return votes.labelled(labels[code] for code in self.subject.truths[rows])

    def _complete_sheet(self, view: View, draws: int, rows: Rows) -> Sheet:
        sheet = self._sheet(view, draws)
        missing = [(int(row), np.flatnonzero(sheet[:draws, row] == UNASKED).tolist()) for row in rows]
        work = [(row, indices) for row, indices in missing if indices]
        places = np.add.outer(sheet.shape[1] * np.arange(draws), rows).ravel()
        self._meter.need(self._path(view), places, sum(len(indices) for _, indices in work))
        if work:
            self._fill(self._path(view), sheet, partial(self._answer, view), _pieces(work), str(view))
        return sheet

    def _sheet(self, view: View, draws: int) -> Sheet:
        """(draws or more, n): the labels that are known, also those that experiments/collected.py has asked for."""
        path, model, n = self._path(view), self.subject.collected, len(self.subject.pictures)
        sheet = np.load(path) if path.exists() else np.empty((0, n), np.int16)
        sheet = np.concatenate([sheet, np.full((max(0, draws - len(sheet)), n), UNASKED, np.int16)])
        if model is None:
            return sheet
        for index in range(draws):
            for column in map(np.load, (CACHE / model.name).glob(f"*/{path.stem}@{index}.npy")):
                sheet[index, slice(None) if len(column) == n else model.order()[: len(column)]] = column
        return sheet

    def _answer(self, view: View, work: Work) -> tuple[Index, Codes, int]:
        shown = np.concatenate([self.tensors(view, row, indices) for row, indices in work])
        size = self.subject.classifier.limits.batch
        parts = [self.subject.classifier.run(shown[start : start + size]) for start in range(0, len(shown), size)]
        place = np.array([(index, row) for row, indices in work for index in indices], np.intp)
        return (place[:, 0], place[:, 1]), np.concatenate(parts).argmax(axis=1).astype(np.int32), len(shown)

    def logits(self, rows: Rows) -> Floats:
        """(n, K): the model's own output for some pictures, which a closed classifier does not show."""
        path = self._folder / "logits.npy"
        known = np.load(path) if path.exists() else self._collected_logits()
        missing = rows[np.isnan(known[rows, 0])]
        self._meter.need(path, rows, len(missing))
        if len(missing):
            pieces = np.array_split(missing, -(-len(missing) // 32))
            self._fill(path, known, self._output, pieces, "the pictures themselves")
        return known[rows].astype(np.float64)

    def _collected_logits(self) -> NDArray[np.float32]:
        model = self.subject.collected
        path = None if model is None else CACHE / model.name / "logits.npy"
        if path is not None and path.exists():
            return np.asarray(np.load(path), np.float32)
        return np.full((len(self.subject.pictures), len(self.subject.labels)), np.nan, np.float32)

    def _output(self, rows: Rows) -> tuple[Index, Tensor, int]:
        classifier = self.subject.classifier
        pixels = [classifier.prepare(self.subject.pictures[i].image().pixels) for i in rows]
        return rows, classifier.logits(pixels), len(rows)

    # Noise in latent space -------------------------------------------------------------------------------------------

    def noise(self, view: View, rows: Rows, draws: int) -> Readings:
        """What so many draws of a view do to the margins of some pictures; their labels serve `votes` as well."""
        path = self._folder / f"noise-{_file(view)}-{len(rows)}x{draws}.npy"
        known = np.load(path) if path.exists() else np.full((len(rows), 2 + 2 * draws), np.nan)
        missing = np.flatnonzero(np.isnan(known[:, 0]))
        self._meter.need(path, np.arange(len(rows)), len(missing), draws)
        if len(missing):
            self._fill(path, known, partial(self._probe, view, rows, draws), missing, f"noise of {view}")
            sheet = self._sheet(view, draws)
            sheet[:draws, rows] = known[:, 2 : 2 + draws].T
            _save(self._path(view), sheet)
        margin, label, labels = known[:, 0], known[:, 1:2], known[:, 2 : 2 + draws]
        return Readings(margin, np.mean(labels == label, axis=1), known[:, 2 + draws :])

    def _probe(self, view: View, rows: Rows, draws: int, place: int) -> tuple[Index, Floats, int]:
        """Margin and label of a picture, then the label of each draw, then how far each moves the margin."""
        row = int(rows[place])
        features = self._open.features([self.tensor(row), *self.tensors(view, row, range(draws))])
        found = read(self._open.head, features[0], features[1:])
        noise = found.noise.astype(np.float32)
        return np.array([place]), np.concatenate([[found.margin, found.label], found.labels, noise]), draws

    def slopes(self, rows: Rows, reading: str) -> Floats:
        """(n,): how steeply the margin of each picture changes along noise of deviation 1, ‖J_h(x)w‖ of Equation 1."""
        path = self._folder / f"slopes-{reading}-{len(rows)}x{DIRECTIONS}.npy"
        known = np.load(path) if path.exists() else np.full(len(rows), np.nan)
        missing = np.flatnonzero(np.isnan(known))
        if len(missing):
            self._fill(path, known, partial(self._slope, reading, rows), missing, "slopes of the margin")
        return np.asarray(known, np.float64)

    def _slope(self, reading: str, rows: Rows, place: int) -> tuple[Index, Floats, int]:
        """The root mean square of central differences along random directions."""
        row = int(rows[place])
        tensor, unit = self.tensor(row), np.ones(1, np.float32)
        if reading == "looktwice":  # noise of deviation 1 where white is 1, as the model takes it
            ends = self.subject.classifier.tensor([np.full(tensor.shape, level, np.uint8) for level in (0, 255)])
            unit = ends[1] - ends[0]
        directions = np.random.default_rng([SLOPE_SEED, row]).standard_normal((DIRECTIONS, *tensor.shape), np.float32)
        steps = np.float32(STEP) * unit * directions
        features = self._open.features([tensor, *(tensor + steps), *(tensor - steps)])
        noise = read(self._open.head, features[0], features[1:]).noise
        slopes = (noise[:DIRECTIONS] - noise[DIRECTIONS:]) / (2 * STEP)
        return np.array([place]), np.sqrt(np.mean(slopes**2, keepdims=True)), 2 * DIRECTIONS

    # Pixels and files ------------------------------------------------------------------------------------------------

    def tensor(self, row: int) -> Tensor:
        """A picture as the model takes it."""
        classifier = self.subject.classifier
        return classifier.tensor([classifier.prepare(self.subject.pictures[row].image().pixels)])[0]

    def tensors(self, view: View, row: int, draws: Sequence[int]) -> Tensor:
        """(n, …): some draws of a view of a picture, as the model takes them."""
        classifier, image = self.subject.classifier, self.subject.pictures[row].image()
        if isinstance(view, Normalised):
            return view.added(image, self.tensor(row), draws)
        questions = [Question(image.digest, view, 0, index) for index in draws]
        return classifier.tensor([classifier.prepare(pixels) for pixels in render(image, questions)])

    def _fill(
        self,
        path: Path,
        known: NDArray[np.generic],
        compute: Callable[[Piece], tuple[Index, NDArray[np.generic], int]],
        pieces: Iterable[Piece],
        what: str,
    ) -> None:
        """Put what `compute` returns for each piece into `known`: where, the values, and how many answers they took.

        The file is saved as it grows, and once more when the run is interrupted.
        """
        saved = time.monotonic()
        try:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                for place, values, answers in pool.map(compute, pieces):
                    known[place] = values
                    self._meter.step(answers, what)
                    if time.monotonic() - saved > SAVE_EVERY:
                        _save(path, known)
                        saved = time.monotonic()
        finally:
            _save(path, known)

    def _path(self, view: View) -> Path:
        return self._folder / f"{_file(view)}.npy"


def _key(subject: Subject) -> str:
    """Changes with the model, its description and the pictures; of many pictures a few are looked at."""
    description = Path(subject.description.removeprefix("onnx:")).with_suffix(".toml")
    model = description.parent / tomllib.loads(description.read_text("utf-8"))["model"]
    some = subject.pictures[:: max(1, len(subject.pictures) // 8)]
    key = blake2b(description.read_bytes() + model.read_bytes(), digest_size=6)
    key.update("\n".join([*(p.name for p in subject.pictures), *(p.image().digest for p in some)]).encode())
    return key.hexdigest()


def _pieces(work: Work) -> Iterator[Work]:
    piece, size = Work(), 0
    for row, indices in work:
        piece.append((row, indices))
        size += len(indices)
        if size >= PIECE:
            yield piece
            piece, size = Work(), 0
    if piece:
        yield piece


def _file(view: View) -> str:
    return str(view).replace(":", "_")


def _save(path: Path, array: NDArray[np.generic]) -> None:
    temporary = path.with_suffix(".tmp")
    with temporary.open("wb") as file:
        np.save(file, array)
    os.replace(temporary, path)


def draws_of(view: View, count: int) -> Panel:
    """So many draws of one view."""
    return Panel((view,) * count)
