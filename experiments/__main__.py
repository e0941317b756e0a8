"""The paper's tables and figures, one command each, on its data or yours; an interrupted run is resumed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from experiments import (
    answered,
    baselines,
    cascades,
    closed,
    decisions,
    general,
    guarantees,
    manifest,
    scores,
    sets,
    stopping,
    tags,
)
from experiments.collected import CACHE, MILD16
from experiments.paper import claims, drawings, jacobian, normals, pages, prescription, selection, tables
from experiments.paper.answers import Answers, Meter
from experiments.paper.grids import Reading, listed, mild
from experiments.paper.subjects import (
    DEMO,
    KNOWN,
    PHOTOS,
    RESNET56,
    SMALL,
    Scale,
    Subject,
    at_hand,
    chosen,
    known,
    scale,
)
from experiments.paper.tables import RACE, Study
from experiments.writing import merge, read, save_svg, write
from looktwice.errors import DataError, LookTwiceError

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "experiments" / "results"
READINGS: tuple[Reading, ...] = ("looktwice", "torchvision")
QUICK, QUICK_CIFAR = 500, 200
"""Pictures that --quick takes of the embedded ones, and of others where they are at hand."""
OPEN = ("resnet20", "resnet32")
"""The open models of Table 3."""
FIGURE2_DRAWS, FIGURE2_TESTED = 50, 1000
"""Figure 2 goes to the paper's S = 50 on every dataset; where Table 1 stops earlier, on so many tested pictures."""


@dataclass(frozen=True)
class Options:
    """The options of the command line."""

    models: tuple[str, ...]
    data: Path | None
    truths: Path | None
    sources: tuple[str, ...]
    quick: bool
    pictures: int | None
    labelled: int | None
    start: int | None
    tested: int | None
    draws: int | None
    grid: int | None
    mild: bool
    views: str | None
    noise: int | None
    readings: tuple[Reading, ...]
    results: Path
    figures: Path
    cache: Path

    def subjects(self, usual: Sequence[str]) -> list[Subject]:
        return chosen(self.models, self.data, self.truths, self.quick, usual)

    def studies(self, usual: Sequence[str]) -> Iterator[Study]:
        return map(self.study, self.subjects(usual))

    def closed(self) -> list[Subject]:
        """The models to which something is transferred: never the embedded one, which is alone."""
        if self.quick and self.data is None and not self.models:
            return [known(RESNET56.name)] if at_hand(RESNET56.name) else []
        return [subject for subject in self.subjects((RESNET56.name,)) if subject.name != DEMO]

    def study(self, subject: Subject, reading: Reading = "looktwice") -> Study:
        quick = QUICK if subject.name == DEMO else QUICK_CIFAR
        limit = self.pictures or (quick if self.quick else len(subject.pictures))
        if limit < 40:
            raise DataError(f"{limit} pictures are too few to label some and test others; give 40 or more")
        size = scale(min(limit, len(subject.pictures)), len(subject.labels), self.quick, reading)
        size = self._smaller(size if self.quick else _past_pilot(size, subject))
        if self.views or self.mild:
            few = listed(self.views, reading) if self.views else mild(len(subject.labels), reading)
            size = replace(size, settings=few)
        if reading == "torchvision" and not subject.normalised:
            size = replace(size, settings={name: views for name, views in size.settings.items() if name != "gaussian"})
        return Study(Answers(subject, self.cache, Meter(subject.title, _planned(size))), size)

    def _smaller(self, size: Scale) -> Scale:
        """The scale with the sizes given as options; the search and the noise stay within the labelled part."""
        labelled, draws = min(self.labelled or size.labelled, size.labelled), self.draws or size.draws
        start = max(self.start or size.start, labelled)
        left = size.start + size.tested - start
        return replace(
            size,
            labelled=labelled,
            start=start,
            tested=min(self.tested or left, left),
            draws=draws,
            noise_draws=max(draws, 10),
            grid=min(self.grid or size.grid, labelled),
            noise=min(size.noise if self.noise is None else self.noise, labelled),
        )


def _past_pilot(size: Scale, subject: Subject) -> Scale:
    """The scale with tests only on pictures that had no part in choosing the jury's panel of general views."""
    pilot = 0 if subject.collected is None or subject.collected.name == DEMO else subject.collected.pilot
    start = max(size.start, pilot)
    return replace(size, start=start, tested=size.start + size.tested - start)


def _planned(size: Scale) -> int:
    """About how many answers Tables 1 and 2 take for one model."""
    quarter = size.grid // 4
    search = sum(
        (len(views) * quarter + min(RACE, len(views)) * (size.grid - quarter)) * size.grid_draws
        for views in size.settings.values()
    )
    asked = (size.labelled + size.tested) * (1 + len(size.settings) * size.draws + min(size.draws, len(MILD16)))
    return search + asked + len(size.settings) * size.noise * size.noise_draws


# The tasks -----------------------------------------------------------------------------------------------------------


def table1(options: Options) -> None:
    """Every method on one model of small pictures after the other."""
    _methods(options, "table1", SMALL)


def table2(options: Options) -> None:
    """The same on photos."""
    if options.quick and options.data is None and not set(options.models) & set(PHOTOS):
        print(
            _not_judged("Table 2", "the embedded pictures are no photos, and stand in Table 1", "--model mobilenetv2")
        )
        return
    _methods(options, "table2", PHOTOS)


def _methods(options: Options, name: str, usual: Sequence[str]) -> None:
    path, keys = options.results / f"{name}.csv", ("dataset", "model", "reading")
    for subject in options.subjects(usual):
        for reading in options.readings:
            merge(path, tables.results(options.study(subject, reading)), keys)
        print(pages.results([row for row in read(path) if row["model"] == subject.title]))


def _not_judged(what: str, why: str, instead: str) -> str:
    return f"{what} is not judged: {why}; run it without --quick, or with {instead}"


SELECTED = (RESNET56.name, "resnet20", *PHOTOS)
"""The usual networks of `selection`: those whose answers to every chosen setting were asked."""


def selected(options: Options) -> None:
    """Four rules of choosing setting and a, beside the paper's Tables 1 and 2."""
    path, keys = options.results / "selection.csv", ("dataset", "model", "reading")
    for subject, reading in product(options.subjects(SELECTED), options.readings):
        study = options.study(subject, reading)
        naive = study.answers.logits(subject.tested(study.size)).argmax(axis=1)
        accuracy = float((naive == subject.truths[subject.tested(study.size)]).mean())
        merge(path, selection.selected(study, accuracy), keys)
    print(pages.selection(read(path)))


def table3(options: Options) -> None:
    """Transfer of F_n from open models of CIFAR-10 to a closed one of CIFAR-100."""
    closed = options.closed()
    if not closed:
        print(_not_judged("Table 3", "there is one embedded model, and to itself nothing is transferred", "--data"))
        return
    path, keys = options.results / "table3.csv", ("open", "dataset", "model", "reading")
    for subject, reading, source in product(closed, options.readings, options.sources):
        learned, used = options.study(known(source), reading), options.study(subject, reading)
        merge(path, tables.transfer(learned, used), keys)
    print(pages.transfer(read(path)))


def table4(options: Options) -> None:
    """Correlations over the runs that Tables 1 and 2 hold."""
    rows = [row for name in ("table1", "table2") for row in _there(options.results / f"{name}.csv")]
    if not rows:
        raise DataError(f"Table 4 sums up Tables 1 and 2, and neither is in {str(options.results)!r}; run table1 first")
    ours = list(tables.correlations(rows))
    if not any(row["ece_r"] for row in ours):
        why = f"fewer than {tables.LEAST_RUNS} runs are there, each a transform on a model"
        print(_not_judged("Table 4", why, "--model resnet56 where it is at hand"))
    merge(
        options.results / "table4.csv",
        [*ours, *tables.recomputed(), *tables.printed()],
        ("source", "reading", "ballot"),
    )
    print(pages.correlations(read(options.results / "table4.csv")))


def _there(path: Path) -> list[dict[str, str]]:
    return read(path) if path.exists() else []


def figure2(options: Options) -> None:
    """Brier against S."""
    path, keys = options.results / "figure2.csv", ("dataset", "model", "reading")
    for subject, reading in product(options.subjects(SMALL), options.readings):
        study = options.study(subject, reading)
        if not options.quick and options.draws is None and study.size.draws < FIGURE2_DRAWS:
            fewer = min(study.size.tested, FIGURE2_TESTED)
            study = replace(study, size=replace(study.size, draws=FIGURE2_DRAWS, tested=fewer))
        rows = list(tables.growth(study))
        merge(path, rows, keys)
        save_svg(_figure(options, "figure2", study), drawings.brier_svg(rows, "base"))


def figure4(options: Options) -> None:
    """Empirical cumulatives with their band and the closest Gaussian."""
    path, keys = options.results / "figure4.csv", ("dataset", "model", "reading")
    for subject, reading in product(options.subjects((*SMALL, *PHOTOS)), options.readings):
        study = options.study(subject, reading)
        merge(path, drawings.cumulatives(study), keys)
        save_svg(_figure(options, "figure4", study), drawings.cumulatives_svg(study))


def _figure(options: Options, name: str, study: Study) -> Path:
    """The file of a figure; those of the second reading have its name at the end."""
    parts = ["paper", name, study.subject.name, *([study.size.reading] if study.size.reading != READINGS[0] else [])]
    return options.figures / f"{'-'.join(parts)}.svg"


def illustrations(options: Options) -> None:
    """The two sources of error, and the two statistics, on real pictures."""
    for study in options.studies(("resnet20",)):
        merge(options.results / "figure_illustrations.csv", drawings.illustrated(study), ("dataset", "model"))
        for name, svg in drawings.illustrations(study).items():
            save_svg(_figure(options, name, study), svg)


def proposition1(options: Options) -> None:
    """Equation 1 with the Jacobian of each picture."""
    path, keys = options.results / "proposition1.csv", ("dataset", "model", "reading")
    for subject, reading in product(options.subjects(("resnet20", "resnet32", RESNET56.name)), options.readings):
        merge(path, jacobian.proposition1(options.study(subject, reading)), keys)
    print(pages.proposition1(read(path)))


def prescribed(options: Options) -> None:
    """The open model's transform, noise and a on the closed one, against labels of its own."""
    closed = options.closed()
    if not closed:
        print(_not_judged("The prescription", "it takes an open model and a closed one, and one is embedded", "--data"))
        return
    path = options.results / "prescription.csv"
    for subject, source in product(closed, options.sources[:1]):
        found = prescription.prescribed(options.study(known(source)), options.study(subject))
        merge(path, found, ("open", "dataset", "closed"))
    print(pages.prescription(read(path)))


def normal(options: Options) -> None:
    """KS over the paper's grid of a beside that over every a, of the cumulatives of Figure 4."""
    write(options.results / "normals.csv", normals.compared(read(options.results / "figure4.csv")))


def claimed(options: Options) -> None:
    """The paper's claims against the tables that are there."""
    found = {
        name: _there(options.results / f"{name}.csv") for name in ("table1", "table2", "table3", "table4", "figure2")
    }
    merge(options.results / "claims.csv", claims.judged(found), ("claim",))
    print(pages.claims(read(options.results / "claims.csv")))


def page(options: Options) -> None:
    """The tables of experiments/results in docs: a screen of each, and all rows on pages of their own."""
    pages.fill(ROOT / "docs", options.results)
    decisions.fill(ROOT / "docs", options.results)
    if (options.results / "scores.csv").exists():
        scores.page(options.results)


TASKS: dict[str, Callable[[Options], None]] = {
    "table1": table1,
    "table2": table2,
    "selection": selected,
    "table3": table3,
    "table4": table4,
    "figure2": figure2,
    "figure4": figure4,
    "illustrations": illustrations,
    "proposition1": proposition1,
    "prescription": prescribed,
    "normals": normal,
    "claims": claimed,
}
CLOSED, CASCADES, TAGS = "closed", "cascades", "tags"
"""The tasks about real closed systems, which are no part of the paper."""
EMBEDDED = 480
"""Embedded pictures of each of the two parts that --quick takes for the tasks of DECISIONS."""
DECISIONS = {
    "scores": scores,
    "baselines": baselines,
    "sets": sets,
    "stopping": stopping,
    "guarantees": guarantees,
}
"""The tasks that compare juries, sets and stopping rules on the answers of experiments/general.py."""
TAKEN = {CLOSED: ("task", "results"), "page": ("task", "results")} | dict.fromkeys(
    (CASCADES, TAGS, *DECISIONS), ("task", "results", "quick")
)
"""The tasks for which other options have no meaning, and those that they take."""
ABOUT_TAKEN = "the models and pictures of this task are fixed (docs/results)"
HELP = """\
table1         Acc, ECE, AUROC, Brier, Var, KS on small pictures (usual models: resnet8, resnet20, resnet32, resnet56)
table2         the same on photos (usual models: efficientnet, mobilenetv2)
selection      four rules of choosing setting and a, beside the paper (usual models: resnet56, resnet20, photos)
table3         transfer: Φ against F_n that was learned on an open model (--open)
table4         correlations of Var and KS with the calibration, over the runs in Tables 1 and 2
figure2        Brier against the number of draws
figure4        empirical cumulatives of the noise in latent space
illustrations  the paper's two sources of error, on real pictures
proposition1   Equation 1 with the Jacobian of each picture (usual models: resnet20, resnet32, resnet56)
prescription   transform, noise and a of an open model on a closed one, against 50, 200 and 1,000 labels of its own
normals        KS over the paper's grid of a beside that over every a, of the cumulatives of Figure 4
claims         the paper's claims, each seen, not seen or unclear
all            all of these, one after the other, and the pages in docs

The following have models and pictures of their own, and take no options but --results and --quick:

closed         what confidence in answers of real closed systems is worth (docs/results/closed-systems.md)
cascades       several classifiers: which are asked, in which order and when to stop, beside other ways
tags           what confidence in tags is worth, with the answers of one, two and three APIs
scores         what scores and ranked lists are worth beside views, on six models
baselines      the jury beside other ways to use the same labels, and beside what the model itself could do
sets           prediction sets of each kind, beside MAPIE's
stopping       what `fit` pays and chooses, and how that fares, beside asking the general panel always
guarantees     how often thresholds with a guarantee hold on new pictures
page           put the tables of experiments/results into docs

stale, refresh [TASK …] and older REASON [TASK …] are about all results: which are older than the code that makes them.
"""


def parse(arguments: Sequence[str]) -> tuple[str, Options]:
    parser = argparse.ArgumentParser(
        "python -m experiments",
        description=__doc__,
        epilog=HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "task",
        choices=(*TASKS, "all", "page", CLOSED, CASCADES, TAGS, *DECISIONS),
        metavar="TASK",
        help="see below",
    )
    parser.add_argument(
        "--model", action="append", default=[], help=f"{', '.join(KNOWN)}, or a TOML description; may be repeated"
    )
    parser.add_argument("--data", type=Path, help="labelled pictures: CIFAR, ILSVRC2012, .npz, folders, labels.csv")
    parser.add_argument("--truths", type=Path, help="a CSV of truths, or the development kit of ILSVRC2012")
    parser.add_argument("--open", choices=tuple(KNOWN), metavar="OPEN", help="the open model of table3, by its name")
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"few draws; {QUICK} embedded pictures, and {QUICK_CIFAR} of CIFAR-100 where ../shared has them",
    )
    parser.add_argument("--pictures", type=int, help="take only so many pictures, labelled ones among them")
    parser.add_argument("--labelled", type=int, help="fit on only so many pictures; a tenth of all if left out")
    parser.add_argument("--start", type=int, help="test from this place of the permutation on, not from its tenth on")
    parser.add_argument("--tested", type=int, help="test on only so many pictures from there on")
    parser.add_argument("--draws", type=int, help="S; the paper's for the number of classes if left out")
    parser.add_argument("--grid", type=int, help="choose settings on only so many of the labelled pictures")
    parser.add_argument("--views", help="search only these settings, such as 'gaussian:0.01 rotation:10 rotation:20'")
    parser.add_argument("--mild", action="store_true", help="search only the mild end of the paper's grids")
    parser.add_argument(
        "--noise", type=int, help="measure Var and KS on only so many of the labelled pictures; 0 leaves them out"
    )
    parser.add_argument(
        "--reading", choices=READINGS, help="of the paper's transforms; both if left out, the first one with --quick"
    )
    parser.add_argument("--results", type=Path, help="where CSVs go")
    parser.add_argument("--figures", type=Path, help="where SVGs go")
    parser.add_argument("--cache", type=Path, default=CACHE, help="where answers are cached")
    given = parser.parse_args(arguments)
    if given.task in TAKEN:
        idle = [n for n, value in vars(given).items() if n not in TAKEN[given.task] and value != parser.get_default(n)]
        if idle:
            parser.error(f"{given.task} does not take --{idle[0]}; {ABOUT_TAKEN}")
    ours = not given.quick and given.data is None
    results = given.results or (RESULTS if ours else Path("paper-results"))
    figures = given.figures or (ROOT / "docs" / "figures" if ours else results)
    return given.task, Options(
        models=tuple(given.model),
        data=given.data,
        truths=given.truths,
        sources=(given.open,) if given.open else OPEN[:1] if given.quick else OPEN,
        quick=given.quick,
        pictures=given.pictures,
        labelled=given.labelled,
        start=given.start,
        tested=given.tested,
        draws=given.draws,
        grid=given.grid,
        mild=given.mild,
        views=given.views,
        noise=given.noise,
        readings=(given.reading,) if given.reading else READINGS[:1] if given.quick else READINGS,
        results=results,
        figures=figures,
        cache=given.cache,
    )


def main(arguments: Sequence[str]) -> int:
    """Do what the command line says; 1 and one line on the error stream where that cannot be done."""
    if arguments and arguments[0] in manifest.WORDS:
        return manifest.main(arguments)
    task, options = parse(arguments)
    try:
        if task == CLOSED:
            closed.main(options.results, closed.PAGE if options.results == RESULTS else None)
        if task == CASCADES:
            cascades.main(options.results, options.quick)
        if task == TAGS:
            tags.main(options.results, options.quick)
        if task in DECISIONS:
            options.results.mkdir(parents=True, exist_ok=True)
            records = answered.panel_records if task == "stopping" else general.panel_records
            models = (
                general.small(options.results, EMBEDDED) if options.quick else [each.load() for each in records()[:6]]
            )
            DECISIONS[task].main(models, options.results, 2 if options.quick else DECISIONS[task].SPLITS)
        for name in TASKS if task == "all" else (task,):
            if name in TASKS:
                TASKS[name](options)
        if task == "page" or (task == "all" and options.results == RESULTS):
            page(options)
        print(f"results are in {str(options.results)!r}", file=sys.stderr)
    except LookTwiceError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; run the same command again to resume", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
