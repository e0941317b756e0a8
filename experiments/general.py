"""Which views to ask: the general panel, grown leaving one model out, and panels chosen for one model.

python -m experiments.general ask       query six models with their pictures under the views of TRIED
python -m experiments.general ask panels    only under the panel that was grown without them, about stored pictures
python -m experiments.general           results/general*.csv from these answers, and the panel in views/panels.py
python -m experiments.general quick DIR all of it, small, on the embedded clothes, into a folder

Answers are log probabilities of all classes; every other experiment about panels, labels or scores reads them from
here. They are stored in $LOOKTWICE_EXPERIMENTS or ~/.cache/looktwice-experiments, a file for each model and block of
pictures; stored answers are not queried again. Blocks are drawn from a permutation with a seed, the same for models
that share their pictures. A panel that is tested on a model was grown on the other five, with pictures of the even
blocks if it is tested on the odd ones, and vice versa: no tested picture took part, whatever the model. TRIED was
settled on the first three blocks, which are not tested. The panel in the package is grown on everything. *Chosen*
panels are grown on the fitting half of each split, from all views.
Set OPENBLAS_NUM_THREADS=1: the matrices are small, and threads only wait for each other.
"""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from experiments import script
from experiments.collected import CACHE, MILD
from experiments.evaluation import Figures, jury_figures, means, white_box
from experiments.models import CLOTHES, SOURCES, log_probabilities
from experiments.writing import Row, read, write
from looktwice.calibration import panels
from looktwice.calibration.evidence import Codes, Evidence, Floats
from looktwice.calibration.jury import Jury
from looktwice.calibration.votes import LabelledVotes, Votes
from looktwice.classifiers.onnx import OnnxClassifier
from looktwice.errors import DataError
from looktwice.images.image import Image
from looktwice.views import Panel, Tone, View, base_question, parse, questions, render

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "experiments" / "results"
SOURCE = ROOT / "src" / "looktwice" / "views" / "panels.py"
SPLITS = 20
TRIED = Panel.parse(
    f"""
    {MILD} mirror zoom:0.7 zoom:1.3 mirror+zoom:0.85 mirror+zoom:1.3 mirror+zoom:1.8
    turn:-20 turn:30 mirror+turn:20 mirror+turn:-30 perspective:-0.35,0 perspective:0,0.3 elastic:50,5
    crop:0,0,0.8 crop:1,0,0.8 crop:0,1,0.8 crop:1,1,0.8 mirror+crop:0,0.5,0.75 mirror+crop:1,0.5,0.75
    crop:0,0,0.62 crop:1,0,0.62 crop:0,1,0.62 crop:1,1,0.62
    tone:contrast=0.4 mirror+tone:contrast=2.5 tone:cast=-0.4 tone:cast=0.3 tone:grey=1 tone:brightness=-0.3
    resample:0.5 jpeg:30 gaussian:0.05
    """
)
"""The candidates: the mild panel, and harder views.

Of the views that changed more than half of the labels in the first three blocks, only corners stayed, which are
informative on photos. These blocks are never tested.
"""
SCREENED = 3
LISTED = 5
"""Labels that the longest list of an API has here."""
LABELLED = {"photos": 1250}
"""Pictures that fit where the panel is given; 1,000 of other sets."""
OLD = list(range(8))
SOFTMAX, MILDLY = "softmax, temperature (1 query)", "mild panel, 1+8"
FIGURES = ("accuracy", "ece", "ece_by_chance", "brier", "base_auroc")
Rows = NDArray[np.intp]


@dataclass(frozen=True, eq=False, kw_only=True)
class Record:
    """Where the answers about a model's pictures are stored, block by block."""

    name: str
    title: str
    data: str
    truths: Codes
    words: tuple[str, ...]
    block: int
    """Pictures of a block."""
    views: Panel = TRIED
    cache: Path = CACHE / "general"

    @cached_property
    def order(self) -> Rows:
        """The pictures' places, mixed; models that share their pictures have the same."""
        return np.random.default_rng(2024).permutation(len(self.truths))

    def path(self, block: int) -> Path:
        return self.cache / self.name / f"{block:03}.npz"

    def load(self) -> Answers:
        """The answers of all blocks that are stored."""
        labels, logs, rows, part = [], [], [], []
        for block in range(-(-len(self.truths) // self.block)):
            if not self.path(block).exists():
                continue
            with np.load(self.path(block)) as file:
                stored = list(file["views"])
                columns = [0, *(1 + stored.index(str(view)) for view in self.views)]
                labels.append(file["labels"][:, columns])
                logs.append(file["logs"][:, columns])
                rows.append(file["rows"])
            part.append(np.full(len(rows[-1]), block))
        if not part:
            raise DataError(_not_stored(self.name, self.cache))
        codes, places = np.concatenate(labels).astype(np.int32), np.concatenate(rows)
        names, panel = tuple(map(str, places)), tuple(map(str, self.views))
        votes = Votes(names, panel, self.words, codes[:, 0], codes[:, 1:], len(self.words))
        truths = [self.words[code] for code in self.truths[places]]
        block_of = np.concatenate(part)
        return Answers(self.name, self.title, self.data, votes.labelled(truths), np.concatenate(logs), block_of)


@dataclass(frozen=True, eq=False, kw_only=True)
class Subject(Record):
    """A model that can be queried, and its pictures."""

    images: list[Image]
    classifier: OnnxClassifier

    def ask(self, block: int) -> None:
        """Query the views of one block that are not stored yet."""
        path, views = self.path(block), list[str]()
        rows = self.order[block * self.block : (block + 1) * self.block]
        labels, logs = np.empty((len(rows), 0), np.int16), np.empty((len(rows), 0, len(self.words)), np.float16)
        if path.exists():
            with np.load(path) as file:
                views, labels, logs = list(map(str, file["views"])), file["labels"][:, 1:], file["logs"][:, 1:]
        missing = Panel(tuple(view for view in self.views if str(view) not in views))
        if not missing.views or not len(rows):
            return
        outputs = [self._outputs(self.images[row], missing) for row in rows]
        answers = np.stack([output.argmax(axis=1) for output in outputs]).astype(np.int16)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.with_suffix(".part").open("wb") as file:
            np.savez(
                file,
                rows=rows,
                labels=np.hstack([answers, labels]),
                logs=np.hstack([np.stack([log_probabilities(output) for output in outputs]).astype(np.float16), logs]),
                views=[*map(str, missing), *views],
            )
        os.replace(path.with_suffix(".part"), path)

    def _outputs(self, image: Image, panel: Panel) -> NDArray[np.float32]:
        """(1 + S, K): the model's output for the picture and its views, two photos or sixteen small ones a call."""
        shown = render(image, [base_question(image), *questions(image, panel, 0)])
        prepared = [self.classifier.prepare(pixels) for pixels in shown]
        together = 2 if max(prepared[0].shape) > 64 else 16
        calls = range(0, len(prepared), together)
        return np.concatenate([self.classifier.logits(prepared[k : k + together]) for k in calls]).astype(np.float32)


@dataclass(frozen=True, eq=False)
class Answers:
    """A model's answers about its pictures under the picture itself and each view."""

    name: str
    title: str
    data: str
    votes: LabelledVotes
    logs: NDArray[np.float16]
    """(n, 1 + S, K): log probabilities of all classes, which a closed classifier hides."""
    block: Rows
    """(n,): the block of each picture."""

    @cached_property
    def ranked(self) -> Evidence:
        """The five most probable labels of every answer, with their probabilities."""
        labels = self.votes.answers()[:, :, None]
        rest = self.logs.copy()
        np.put_along_axis(rest, labels, -np.inf, axis=2)
        width = min(LISTED, rest.shape[2]) - 1
        others = np.argpartition(-rest, width - 1, axis=2)[:, :, :width]
        order = np.argsort(-np.take_along_axis(rest, others, axis=2), axis=2, kind="stable")
        found = np.concatenate([labels, np.take_along_axis(others, order, axis=2)], axis=2).astype(np.int32)
        return Evidence(found, np.exp(np.take_along_axis(self.logs, found, axis=2).astype(np.float32)))

    def listing(self, labels: int) -> LabelledVotes:
        """The votes of an API that returns so many labels with their scores, up to five; 0 is a label alone."""
        if labels == 0:
            return self.votes
        evidence = Evidence(self.ranked.labels[:, :, :labels], self.ranked.scores[:, :, :labels])
        return replace(self.votes, evidence=evidence)

    def mean_logs(self, columns: Sequence[int]) -> Floats:
        """(n, K): the mean log probabilities over the picture itself and some views."""
        return self.logs[:, [0, *(1 + column for column in columns)]].mean(axis=1, dtype=np.float32).astype(np.float64)

    def split(self, seed: int) -> tuple[Rows, Rows]:
        """Pictures to fit and to test, half each; those that chose the candidates fit."""
        half, screened = len(self.block) // 2, np.flatnonzero(self.block < SCREENED)
        mixed = np.random.default_rng(seed).permutation(np.flatnonzero(self.block >= SCREENED))
        return np.concatenate([screened, mixed[: half - len(screened)]]), mixed[half - len(screened) :]

    def half(self, parity: int) -> LabelledVotes:
        """The pictures of the even blocks (0) or of the odd ones (1)."""
        return self.votes.take(np.flatnonzero(self.block % 2 == parity))

    def unseen(self, parity: int, seed: int) -> tuple[Rows, Rows]:
        """For a panel grown on one half of the pictures: half of the others to test, some of all the rest to fit."""
        rng, others = np.random.default_rng(seed), np.flatnonzero((self.block % 2 != parity) & (self.block >= SCREENED))
        test = rng.permutation(others)[len(others) // 2 :]
        rest = np.setdiff1d(np.arange(len(self.block)), test)
        return rng.permutation(rest)[: LABELLED.get(self.data, 1000)], test

    def white_box(self, columns: Sequence[int], fit: Rows, test: Rows) -> Figures:
        """What the model's owner gets from these queries: the mean log probabilities with a temperature."""
        return white_box(self.mean_logs(columns), self.votes.truths, self.votes.base, fit, test)

    def jury(self, columns: Sequence[int], fit: Rows, test: Rows) -> Figures:
        """The figures of a jury with some of the views."""
        votes = self.votes.under(columns)
        return jury_figures(Jury().fit(votes.take(fit)), votes.take(test))


def _not_stored(name: str, folder: Path) -> str:
    return f"no answers of {name} are stored in {str(folder)!r}; run: python -m experiments.general ask"


def stored(name: str, views: Panel = TRIED) -> LabelledVotes:
    """The stored answers about a model's pictures, with their truths; no picture is opened, and labels are numbers."""
    found, rows = [], []
    for path in sorted((CACHE / "general" / name).glob("*.npz")):
        with np.load(path) as file:
            panel = list(file["views"])
            found.append(file["labels"][:, [0, *(1 + panel.index(str(view)) for view in views)]])
            rows.append(file["rows"])
    if not found:
        raise DataError(_not_stored(name, CACHE / "general"))
    labels, places = np.concatenate(found).astype(np.int32), np.concatenate(rows)
    truths, _ = SOURCES[name].truths
    words = tuple(map(str, range(1 + max(int(labels.max()), int(truths.max())))))
    names = tuple(map(str, places.tolist()))
    votes = Votes(names, tuple(map(str, views)), words, labels[:, 0], labels[:, 1:], len(words))
    return votes.labelled(words[code] for code in truths[places])


def records() -> list[Record]:
    """Where the answers of the six models are stored."""
    missing = [path for each in SOURCES.values() for path in each.files if not path.exists()]
    if missing:
        raise DataError(
            f"six networks and their pictures are needed, and {str(missing[0])!r} is not there; with --quick, "
            "`python -m experiments` takes the embedded pictures"
        )
    return [
        Record(
            name=name,
            title=each.title,
            data=each.data,
            truths=truths,
            words=words,
            block=50 if each.data == "photos" else 100,
        )
        for name, each in SOURCES.items()
        for truths, words in [each.truths]
    ]


def panel_records() -> list[Record]:
    """Where the answers of the six models under their recorded panels are stored."""
    return [replace(record, views=recorded_panels()[record.title]) for record in records()]


def subjects(of: Sequence[Record]) -> Iterator[Subject]:
    """Models with their pictures."""
    for record in of:
        source = SOURCES[record.name]
        yield Subject(**vars(record), images=source.pictures[0], classifier=source.classifier())


def clothes(folder: Path, pictures: int = 80, parts: Sequence[str] = ("first", "second")) -> list[Subject]:
    """The embedded model, as several that see other pictures: enough to see that everything runs."""
    images, truths, words = CLOTHES.pictures
    rows = [slice(part * pictures, (part + 1) * pictures) for part in range(len(parts))]
    return [
        Subject(
            name=name,
            title=f"{name} clothes",
            data=name,
            truths=truths[part],
            words=words,
            block=pictures // 8,
            views=Panel(TRIED.views[:12]),
            cache=folder / "cache",
            images=images[part],
            classifier=CLOTHES.classifier(),
        )
        for name, part in zip(parts, rows, strict=True)
    ]


def small(folder: Path, pictures: int = 80, parts: Sequence[str] = ("first", "second")) -> list[Answers]:
    """The answers of the embedded model; those that are not stored in this folder are queried."""
    found = clothes(folder, pictures, parts)
    for each, block in product(found, range(8)):
        each.ask(block)
    return [each.load() for each in found]


# Growing -------------------------------------------------------------------------------------------------------------


def grow(models: Sequence[Answers], parts: Sequence[LabelledVotes], longest: int) -> list[int]:
    """The columns whose Brier score over some pictures of each model is least.

    It is taken relative to that without views, and every set of pictures counts the same, however many models see it.
    Random views are excluded, since paid answers about fixed ones are found again under any seed, and so are those that
    only change colours, which show nothing new of a grey picture.
    """
    suited = [column for column, view in enumerate(models[0].votes.panel) if _suits_all(parse(view))]
    shared = Counter(each.data for each in models)
    alone = [
        panels.lost(part.under([]), panels.brier) * shared[each.data] for each, part in zip(models, parts, strict=True)
    ]

    def lost(columns: list[int]) -> float:
        return sum(
            panels.lost(part.under(columns), panels.brier) / level for part, level in zip(parts, alone, strict=True)
        )

    panel: list[int] = []
    while len(panel) < min(longest, len(suited)):
        left = [column for column in suited if column not in panel]
        panel.append(min(left, key=lambda column: lost([*panel, column])))
    return panel


def _suits_all(view: View) -> bool:
    colours = isinstance(view, Tone) and (view.cast or view.grey)
    return not view.random and not colours


@dataclass(frozen=True, eq=False)
class Split:
    """A model's answers under a panel that grew without it and without the tested pictures."""

    votes: LabelledVotes
    fit: Rows
    test: Rows
    panel: list[int]
    parity: int
    """Which half of the pictures grew the panel."""


def left_out_splits(models: Sequence[Answers], each: Answers, splits: int, longest: int = 8) -> Iterator[Split]:
    """Panels grown on all models but one, on even and odd blocks in turn, and which pictures fit and test."""
    others = [other for other in models if other.name != each.name]
    grown = [grow(others, [other.half(parity) for other in others], longest) for parity in (0, 1)]
    for seed in range(splits):
        fit, test = each.unseen(seed % 2, seed)
        yield Split(each.votes.under(grown[seed % 2]), fit, test, grown[seed % 2], seed % 2)


def recorded_splits(each: Answers, splits: int) -> Iterator[tuple[Rows, Rows]]:
    """Which pictures fit and test where the panel is the recorded one, grown on the odd blocks of the other models."""
    yield from (each.unseen(1, seed) for seed in range(splits))


def recorded_panels() -> dict[str, Panel]:
    """By the title of a model: the panel that was grown on the others, on odd blocks (the last one in general.csv)."""
    rows = read(RESULTS / "general.csv")
    return {row["model"]: Panel.parse(row["panel"]) for row in rows if row["method"].startswith("grown")}


def left_out(models: Sequence[Answers], splits: int) -> Iterator[Row]:
    """For each model panels grown on the others, by half of the pictures, beside the mild one, on the other half."""
    for each in models:
        found: dict[str, list[Figures]] = {}
        for split in left_out_splits(models, each, splits):
            fit, test = split.fit, split.test
            found.setdefault(SOFTMAX, []).append(each.white_box([], fit, test))
            found.setdefault(MILDLY, []).append(each.jury(OLD, fit, test))
            found.setdefault("grown on the others, 1+8", []).append(each.jury(split.panel, fit, test))
        yield from _rows(each, found, split.panel)


def chosen(models: Sequence[Answers], splits: int) -> Iterator[Row]:
    """For each model a panel grown anew on the fitting half of each split, beside the mild one."""
    for each in models:
        found: dict[str, list[Figures]] = {}
        sizes = (8, 16) if each.data == "photos" else (8,)
        counted = Counter[int]()
        for seed in range(splits):
            fit, test = each.split(seed)
            found.setdefault(SOFTMAX, []).append(each.white_box([], fit, test))
            found.setdefault(MILDLY, []).append(each.jury(OLD, fit, test))
            panel = panels.grow(each.votes.take(fit), max(sizes))
            for size in sizes:
                counted.update(panel[:8])
                found.setdefault(f"chosen, 1+{size}", []).append(each.jury(panel[:size], fit, test))
        yield from _rows(each, found, [column for column, _ in counted.most_common(8)])


def _rows(each: Answers, found: dict[str, list[Figures]], panel: Sequence[int]) -> Iterator[Row]:
    """One row a method: the means over the splits, and the paired difference in Brier score to the mild panel."""
    mild = np.array([figures["brier"] for figures in found[MILDLY]])
    for method, splits in found.items():
        gap = np.array([figures["brier"] for figures in splits]) - mild
        views = " ".join(each.votes.panel[column] for column in panel)
        yield {
            "model": each.title,
            "method": method,
            **means(splits, FIGURES),
            "against_mild": f"{gap.mean():+.4f}",
            "splits_better": str(int((gap < 0).sum())),
            "splits": str(len(splits)),
            "pictures": str(len(each.votes)),
            "panel": views if method.startswith(("grown", "chosen")) else "",
        }


def severities(models: Sequence[Answers]) -> Iterator[Row]:
    """How often each view changes the label, on each model: what is mild and what is hard."""
    for column, view in enumerate(models[0].votes.panel):
        moved = {each.title: f"{(each.votes.views[:, column] != each.votes.base).mean():.3f}" for each in models}
        yield {"view": view, **moved}


# The files -----------------------------------------------------------------------------------------------------------


def measure(models: Sequence[Answers], results: Path, splits: int = SPLITS) -> Panel:
    """Write all CSVs; gives the general panel of sixteen views."""
    write(results / "general_moved.csv", severities(models))
    panel = Panel.parse(
        " ".join(models[0].votes.panel[column] for column in grow(models, [each.votes for each in models], 16))
    )
    write(results / "general_panel.csv", ({"place": str(k), "view": str(v)} for k, v in enumerate(panel, 1)))
    print(panel, flush=True)
    write(results / "general.csv", left_out(models, splits))
    write(results / "general_chosen.csv", chosen(models, splits))
    return panel


def regenerate(panel: Panel, source: Path = SOURCE) -> None:
    """Put the first eight views into the source of looktwice, four a line."""
    lines = [" ".join(map(str, panel.views[start : start + 4])) for start in (0, 4)]
    text = "\n".join(f"    {line}" for line in lines)
    pattern = r'(GENERAL = Panel\.parse\(\n    """\n).*?(\n    """\n\))'
    source.write_text(re.sub(pattern, rf"\g<1>{text}\g<2>", source.read_text("utf-8"), flags=re.DOTALL), "utf-8")


def main(words: Sequence[str]) -> None:
    match words:
        case ["ask", "panels"]:
            for each in subjects(panel_records()):
                for block in range(-(-len(each.images) // each.block)):
                    if each.path(block).exists():
                        each.ask(block)
                        print(f"{each.name}: block {block}", flush=True)
        case ["ask"]:
            found = list(subjects(records()))
            for block in range(max(-(-len(each.images) // each.block) for each in found)):
                for each in found:
                    each.ask(block)
                    print(f"{each.name}: block {block}", flush=True)
        case ["quick", folder]:
            measure(small(Path(folder)), Path(folder), splits=2)
        case []:
            regenerate(measure([each.load() for each in records()], RESULTS))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    script.run(main, __doc__, sys.argv[1:])
