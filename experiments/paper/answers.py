"""Answers of a model, asked once and kept, a file a view: a run that was ended goes on, and nothing is asked twice."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from hashlib import blake2b
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from experiments.collected import CACHE
from experiments.paper.grids import Normalised, Tensor
from experiments.paper.subjects import Rows, Subject
from looktwice.calibration.votes import Codes, Floats, LabelledVotes, Votes
from looktwice.transfer.latent import Cumulatives, Noise, Reading, describe, read
from looktwice.transfer.onnx_features import OnnxModel, open_onnx
from looktwice.views import Panel, Question, View, render

UNASKED = -1
TOGETHER = 64
"""Answers that are computed in one piece of work."""
KEEP_EVERY = 20.0
"""Seconds after which answers go to disk."""
DIRECTIONS, STEP, SLOPE_SEED = 64, 3e-4, 24
"""Random directions along which a margin is differentiated, how far it goes along each, and their seed."""
Sheet = NDArray[np.int16]
Work = list[tuple[int, list[int]]]


class Meter:
    """Tells how far the work on one model is, and how long it will take, on the error stream."""

    def __init__(self, title: str, planned: int) -> None:
        self._title, self._planned, self._done, self._fresh = title, planned, 0, 0
        self._began = self._told = time.monotonic()

    def skip(self, answers: int) -> None:
        """So many were there already."""
        self._done += answers

    def step(self, answers: int, what: str) -> None:
        """So many more were given."""
        self._done, self._fresh = self._done + answers, self._fresh + answers
        now = time.monotonic()
        if now - self._told < (0.5 if sys.stderr.isatty() else 15.0):
            return
        self._told = now
        speed = self._fresh / (now - self._began)
        left = max(self._planned - self._done, 0) / speed
        line = f"{self._title}: {self._done:,} of about {self._planned:,} answers, {speed:,.0f}/s, {what}"
        print(f"{line}, {left // 60:.0f} min {left % 60:.0f} s left", file=sys.stderr, flush=True)


@dataclass(frozen=True, eq=False)
class Readings:
    """What views do to the margins of pictures."""

    margin: Floats
    """(n,): wᵀz + b of each picture."""
    share: Floats
    """(n,): p_A."""
    noise: Floats
    """(n, S): how far each view moves the margin."""

    @cached_property
    def plain(self) -> Noise:
        return describe(Cumulatives.of(self.noise))

    @cached_property
    def centred(self) -> Noise:
        """Each picture's noise less its own mean."""
        return describe(Cumulatives.of(self.noise - self.noise.mean(axis=1, keepdims=True)))


class Answers:
    """What a subject's model says, from the files where they are and from the model where not."""

    def __init__(self, subject: Subject, cache: Path, meter: Meter) -> None:
        self.subject, self._meter = subject, meter
        self._folder = cache / "paper" / f"{subject.name}-{_key(subject)}"
        self._folder.mkdir(parents=True, exist_ok=True)

    @cached_property
    def _open(self) -> OnnxModel:
        return open_onnx(self.subject.description)

    def votes(self, panel: Panel, rows: Rows) -> LabelledVotes:
        """The answers about some pictures under a panel, with their truths."""
        draws = {view: sum(view == other for other in panel) for view in panel}
        sheets = {view: self._sheet(view, count, rows) for view, count in draws.items()}
        columns = [sheets[view][index, rows] for view, index in panel.slots]
        views = np.stack(columns, axis=1).astype(np.int32) if columns else np.empty((len(rows), 0), np.int32)
        labels = self.subject.labels
        names = tuple(self.subject.pictures[i].name for i in rows)
        base: Codes = self.logits(rows).argmax(axis=1).astype(np.int32)
        said = Votes(names, tuple(map(str, panel)), labels, base, views, len(labels))
        return said.labelled(labels[code] for code in self.subject.truths[rows])

    def logits(self, rows: Rows) -> Floats:
        """(n, K): the model's own output about some pictures, which a closed classifier does not show."""
        path = self._folder / "logits.npy"
        known = np.load(path) if path.exists() else self._lent_logits()
        lacking = rows[np.isnan(known[rows, 0])]
        self._meter.skip(len(rows) - len(lacking))
        if len(lacking):
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                for some, output in pool.map(self._output, np.array_split(lacking, -(-len(lacking) // 32))):
                    known[some] = output
                    self._meter.step(len(some), "the pictures themselves")
            _save(path, known)
        return known[rows].astype(np.float64)

    def noise(self, view: View, rows: Rows, draws: int) -> Readings:
        """What so many draws of a view do to the margins of some pictures."""
        path = self._folder / f"noise-{_file(view)}-{len(rows)}x{draws}.npz"
        if path.exists():
            self._meter.skip(len(rows) * draws)
        else:
            self._probe(path, view, rows, draws)
        with np.load(path) as file:
            return Readings(*(file[name].astype(np.float64) for name in ("margin", "share", "noise")))

    def slopes(self, rows: Rows, reading: str) -> Floats:
        """(n,): how steeply the margin of each picture changes along noise of deviation 1, ‖J_h(x)w‖ of Equation 1."""
        path = self._folder / f"slopes-{reading}-{len(rows)}x{DIRECTIONS}.npy"
        if not path.exists():
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                _save(path, np.array(list(pool.map(partial(self._slope, reading), rows))))
        return np.asarray(np.load(path), np.float64)

    def _slope(self, reading: str, row: int) -> float:
        """The root mean square of central differences along random directions."""
        tensor, unit = self.tensor(row), np.ones(1, np.float32)
        if reading == "looktwice":  # noise of deviation 1 where white is 1, as the model takes it
            ends = self.subject.classifier.tensor([np.full(tensor.shape, level, np.uint8) for level in (0, 255)])
            unit = ends[1] - ends[0]
        directions = np.random.default_rng([SLOPE_SEED, row]).standard_normal((DIRECTIONS, *tensor.shape), np.float32)
        steps = np.float32(STEP) * unit * directions
        features = self._open.features([tensor, *(tensor + steps), *(tensor - steps)])
        noise = read(self._open.head, features[0], features[1:]).noise
        self._meter.step(2 * DIRECTIONS, "slopes of the margin")
        return float(np.sqrt(np.mean(((noise[:DIRECTIONS] - noise[DIRECTIONS:]) / (2 * STEP)) ** 2)))

    def _probe(self, path: Path, view: View, rows: Rows, draws: int) -> None:
        found = list[Reading]()
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for reading in pool.map(partial(self._read, view, range(draws)), rows):
                found.append(reading)
                self._meter.step(draws, f"noise of {view}")
        share = [np.mean(reading.labels == reading.label) for reading in found]
        noise = np.array([reading.noise for reading in found], np.float32)
        temporary = path.with_suffix(".tmp.npz")
        np.savez(temporary, margin=np.array([reading.margin for reading in found]), share=np.array(share), noise=noise)
        os.replace(temporary, path)

    def _read(self, view: View, draws: Sequence[int], row: int) -> Reading:
        features = self._open.features([self.tensor(row), *self.tensors(view, row, draws)])
        return read(self._open.head, features[0], features[1:])

    def _sheet(self, view: View, draws: int, rows: Rows) -> Sheet:
        """(draws or more, n): the label of each draw, complete for these rows."""
        path = self._folder / f"{_file(view)}.npy"
        sheet = self._lent(view, draws, _grown(np.load(path), draws) if path.exists() else self._blank(draws))
        work = [(int(row), np.flatnonzero(sheet[:draws, row] == UNASKED).tolist()) for row in rows]
        work = [(row, lacking) for row, lacking in work if lacking]
        self._meter.skip(len(rows) * draws - sum(len(lacking) for _, lacking in work))
        if work:
            self._ask(path, view, sheet, work)
        return sheet

    def _ask(self, path: Path, view: View, sheet: Sheet, work: Work) -> None:
        kept = time.monotonic()
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for some, codes in pool.map(partial(self._answer, view), _pieces(work)):
                place = [(index, row) for row, lacking in some for index in lacking]
                sheet[tuple(np.array(place).T)] = codes
                self._meter.step(len(place), str(view))
                if time.monotonic() - kept > KEEP_EVERY:
                    _save(path, sheet)
                    kept = time.monotonic()
        _save(path, sheet)

    def _answer(self, view: View, work: Work) -> tuple[Work, Codes]:
        shown = np.concatenate([self.tensors(view, row, lacking) for row, lacking in work])
        size = self.subject.classifier.terms.batch
        parts = [self.subject.classifier.run(shown[start : start + size]) for start in range(0, len(shown), size)]
        return work, np.concatenate(parts).argmax(axis=1).astype(np.int32)

    def tensor(self, row: int) -> Tensor:
        """A picture as the model takes it."""
        classifier = self.subject.classifier
        return classifier.tensor([classifier.prepare(self.subject.pictures[row].image().pixels)])[0]

    def tensors(self, view: View, row: int, draws: Sequence[int]) -> Tensor:
        """(n, …): what some draws of a view make of a picture, as the model takes it."""
        classifier, image = self.subject.classifier, self.subject.pictures[row].image()
        if isinstance(view, Normalised):
            return view.added(image, self.tensor(row), draws)
        asked = [Question(image.digest, view, 0, index) for index in draws]
        return classifier.tensor([classifier.prepare(pixels) for pixels in render(image, asked)])

    def _output(self, rows: Rows) -> tuple[Rows, NDArray[np.float32]]:
        classifier = self.subject.classifier
        return rows, classifier.logits([classifier.prepare(self.subject.pictures[i].image().pixels) for i in rows])

    def _blank(self, draws: int) -> Sheet:
        return np.full((draws, len(self.subject.pictures)), UNASKED, np.int16)

    def _lent(self, view: View, draws: int, sheet: Sheet) -> Sheet:
        """The sheet with what experiments/collected.py has asked: about all pictures, or the first of its order."""
        model = self.subject.lender
        if model is None:
            return sheet
        for index in range(draws):
            for path in (CACHE / model.name).glob(f"*/{_file(view)}@{index}.npy"):
                column = np.load(path)
                whole = len(column) == sheet.shape[1]
                sheet[index, slice(None) if whole else model.order()[: len(column)]] = column
        return sheet

    def _lent_logits(self) -> NDArray[np.float32]:
        model = self.subject.lender
        path = None if model is None else CACHE / model.name / "logits.npy"
        if path is not None and path.exists():
            return np.asarray(np.load(path), np.float32)
        return np.full((len(self.subject.pictures), len(self.subject.labels)), np.nan, np.float32)


def _key(subject: Subject) -> str:
    """Changes with the model and with the pictures; of many pictures a few are looked at."""
    some = subject.pictures[:: max(1, len(subject.pictures) // 8)]
    told = [subject.classifier.fingerprint, *(p.name for p in subject.pictures), *(p.image().digest for p in some)]
    return blake2b("\n".join(told).encode(), digest_size=6).hexdigest()


def _pieces(work: Work) -> Iterator[Work]:
    piece, size = Work(), 0
    for row, lacking in work:
        piece.append((row, lacking))
        size += len(lacking)
        if size >= TOGETHER:
            yield piece
            piece, size = Work(), 0
    if piece:
        yield piece


def _grown(sheet: Sheet, draws: int) -> Sheet:
    more = max(0, draws - len(sheet))
    return np.concatenate([sheet, np.full((more, sheet.shape[1]), UNASKED, np.int16)])


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
