"""The paper's tables and figures, each by one command, on its data or yours; a run that was ended goes on."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from experiments import baselines, closed, decisions, general, guarantees, scores, sets, spread, stopping
from experiments.collected import CACHE, MILD16
from experiments.paper import claims, drawings, jacobian, pages, prescription, tables
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
from experiments.paper.writing import picture, read, write
from looktwice.errors import DataError, LookTwiceError

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "experiments" / "results"
READINGS: tuple[Reading, ...] = ("looktwice", "torchvision")
QUICK, QUICK_CIFAR = 500, 200
"""Pictures that --quick takes of the embedded ones, and of others where they are at hand."""
OPEN = ("resnet20", "resnet32")
"""The open models of Table 3."""


@dataclass(frozen=True)
class Wishes:
    """What the command line asks for."""

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
        return Study(Answers(subject, self.cache, Meter(subject.title, _planned(size))), size)

    def _smaller(self, size: Scale) -> Scale:
        """The scale with what was asked for; parts that chose or showed something stay within the labelled part."""
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
    pilot = 0 if subject.lender is None or subject.lender.name == DEMO else subject.lender.pilot
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


def table1(wishes: Wishes) -> None:
    """Every method on one model of small pictures after the other."""
    _methods(wishes, "table1", SMALL)


def table2(wishes: Wishes) -> None:
    """The same on photos."""
    if wishes.quick and wishes.data is None and not set(wishes.models) & set(PHOTOS):
        print(
            _not_judged("Table 2", "the embedded pictures are no photos, and stand in Table 1", "--model mobilenetv2")
        )
        return
    _methods(wishes, "table2", PHOTOS)


def _methods(wishes: Wishes, name: str, usual: Sequence[str]) -> None:
    path, keys = wishes.results / f"{name}.csv", ("dataset", "model", "reading")
    for subject in wishes.subjects(usual):
        for reading in wishes.readings:
            write(path, tables.results(wishes.study(subject, reading)), keys)
        print(pages.results([row for row in read(path) if row["model"] == subject.title]))


def _not_judged(what: str, why: str, instead: str) -> str:
    return f"{what} is not judged: {why}; run it without --quick, or with {instead}"


def table3(wishes: Wishes) -> None:
    """Transfer of F_n from open models of CIFAR-10 to a closed one of CIFAR-100."""
    closed = wishes.closed()
    if not closed:
        print(_not_judged("Table 3", "there is one embedded model, and to itself nothing is transferred", "--data"))
        return
    path, keys = wishes.results / "table3.csv", ("open", "dataset", "model", "reading")
    for subject, reading, source in product(closed, wishes.readings, wishes.sources):
        learned, used = wishes.study(known(source), reading), wishes.study(subject, reading)
        write(path, tables.transfer(learned, used), keys)
    print(pages.transfer(read(path)))


def table4(wishes: Wishes) -> None:
    """Correlations over the runs that Tables 1 and 2 hold."""
    rows = [row for name in ("table1", "table2") for row in _there(wishes.results / f"{name}.csv")]
    if not rows:
        raise DataError(f"Table 4 sums up Tables 1 and 2, and neither is in {str(wishes.results)!r}; run table1 first")
    ours = list(tables.correlations(rows))
    if not any(row["ece_r"] for row in ours):
        why = f"fewer than {tables.LEAST_RUNS} runs are there, each a transform on a model"
        print(_not_judged("Table 4", why, "--model resnet56 where it is at hand"))
    write(
        wishes.results / "table4.csv", [*ours, *tables.recomputed(), *tables.printed()], ("source", "reading", "ballot")
    )
    print(pages.correlations(read(wishes.results / "table4.csv")))


def _there(path: Path) -> list[dict[str, str]]:
    return read(path) if path.exists() else []


def figure2(wishes: Wishes) -> None:
    """Brier against S."""
    for study in wishes.studies(SMALL):
        rows = list(tables.growth(study))
        write(wishes.results / "figure2.csv", rows)
        picture(wishes.figures / f"paper-figure2-{study.subject.name}.svg", drawings.brier_svg(rows, "base"))
        print(f"{study.subject.title}: {wishes.figures / f'paper-figure2-{study.subject.name}.svg'}")


def figure4(wishes: Wishes) -> None:
    """Empirical cumulatives with their band and the closest Gaussian."""
    for study in wishes.studies((*SMALL, *PHOTOS)):
        write(wishes.results / "figure4.csv", drawings.cumulatives(study))
        picture(wishes.figures / f"paper-figure4-{study.subject.name}.svg", drawings.cumulatives_svg(study))
        print(f"{study.subject.title}: {wishes.figures / f'paper-figure4-{study.subject.name}.svg'}")


def illustrations(wishes: Wishes) -> None:
    """The two sources of error, and the two statistics, on real pictures."""
    for study in wishes.studies(("resnet20",)):
        write(wishes.results / "figure_illustrations.csv", drawings.illustrated(study))
        for name, svg in drawings.illustrations(study).items():
            path = wishes.figures / f"paper-{name}-{study.subject.name}.svg"
            picture(path, svg)
            print(f"{study.subject.title}: {path}")


def proposition1(wishes: Wishes) -> None:
    """Equation 1 with the Jacobian of each picture."""
    path, keys = wishes.results / "proposition1.csv", ("dataset", "model", "reading")
    for subject, reading in product(wishes.subjects(("resnet20", "resnet32", RESNET56.name)), wishes.readings):
        write(path, jacobian.proposition1(wishes.study(subject, reading)), keys)
    print(pages.proposition1(read(path)))


def prescribed(wishes: Wishes) -> None:
    """The open model's transform, noise and a on the closed one, against labels of its own."""
    closed = wishes.closed()
    if not closed:
        print(_not_judged("The prescription", "it takes an open model and a closed one, and one is embedded", "--data"))
        return
    path = wishes.results / "prescription.csv"
    for subject, source in product(closed, wishes.sources[:1]):
        found = prescription.prescribed(wishes.study(known(source)), wishes.study(subject))
        write(path, found, ("open", "dataset", "closed"))
    print(pages.prescription(read(path)))


def claimed(wishes: Wishes) -> None:
    """The paper's claims against the tables that are there."""
    found = {
        name: _there(wishes.results / f"{name}.csv") for name in ("table1", "table2", "table3", "table4", "figure2")
    }
    write(wishes.results / "claims.csv", claims.judged(found), ("claim",))
    print(pages.claims(read(wishes.results / "claims.csv")))


def page(wishes: Wishes) -> None:
    """The tables of experiments/results in docs: a screen of each, and all rows on pages of their own."""
    pages.fill(ROOT / "docs", wishes.results)
    decisions.fill(ROOT / "docs" / "method.md", wishes.results)


TASKS: dict[str, Callable[[Wishes], None]] = {
    "table1": table1,
    "table2": table2,
    "table3": table3,
    "table4": table4,
    "figure2": figure2,
    "figure4": figure4,
    "illustrations": illustrations,
    "proposition1": proposition1,
    "prescription": prescribed,
    "claims": claimed,
}
CLOSED, SCORES = "closed", "scores"
"""The tasks about real closed systems and about scores, which are no part of the paper."""
EMBEDDED = 480
"""Embedded pictures of each of two parts on which these are tried."""
DECISIONS = {
    "baselines": baselines,
    "spread": spread,
    "sets": sets,
    "stopping": stopping,
    "guarantees": guarantees,
}
"""The tasks about what the jury is worth beside others, and about sets and stops."""
HELP = """\
table1         Acc, ECE, AUROC, Brier, Var, KS on small pictures (usual models: resnet8, resnet20, resnet32, resnet56)
table2         the same on photos (usual models: efficientnet, mobilenetv2)
table3         transfer: Φ against F_n that was learned on an open model (--open)
table4         correlations of Var and KS with the calibration, over the runs in Tables 1 and 2
figure2        Brier against the number of draws
figure4        empirical cumulatives of the noise in latent space
illustrations  the paper's two sources of error, on real pictures
proposition1   Equation 1 with the Jacobian of each picture (usual models: resnet20, resnet32, resnet56)
prescription   transform, noise and a of an open model on a closed one, against 50, 200 and 1,000 labels of its own
claims         the paper's claims, each seen, not seen or unclear
all            all of these, one after the other, and the pages in docs
closed         what confidence in answers of real closed systems is worth (docs/closed-systems.md)
scores         what scores and ranked lists are worth beside views, on six models
baselines      the jury beside other ways to use the same labels, and beside what the model itself could do
spread         where the probability goes that is left for classes nobody named
sets           prediction sets of each kind, beside MAPIE's
stopping       what stopping early does to the Brier score, and what it says that it does
guarantees     how thresholds with a guarantee fare on new pictures
page           put the tables of experiments/results into docs
"""


def parsed(arguments: Sequence[str]) -> tuple[str, Wishes]:
    parser = argparse.ArgumentParser(
        "python -m experiments",
        description=__doc__,
        epilog=HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "task", choices=(*TASKS, "all", "page", CLOSED, SCORES, *DECISIONS), metavar="TASK", help="see below"
    )
    parser.add_argument(
        "--model", action="append", default=[], help=f"{', '.join(KNOWN)}, or a TOML description; may be repeated"
    )
    parser.add_argument("--data", type=Path, help="labelled pictures: CIFAR, ILSVRC2012, .npz, folders, labels.csv")
    parser.add_argument("--truths", type=Path, help="a CSV of truths, or the development kit of ILSVRC2012")
    parser.add_argument("--open", help="the open model of table3, by its name")
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
    parser.add_argument("--cache", type=Path, default=CACHE, help="where answers are kept")
    told = parser.parse_args(arguments)
    ours = not told.quick and told.data is None
    results = told.results or (RESULTS if ours else Path("paper-results"))
    figures = told.figures or (ROOT / "docs" / "figures" if ours else results)
    return told.task, Wishes(
        models=tuple(told.model),
        data=told.data,
        truths=told.truths,
        sources=(told.open,) if told.open else OPEN[:1] if told.quick else OPEN,
        quick=told.quick,
        pictures=told.pictures,
        labelled=told.labelled,
        start=told.start,
        tested=told.tested,
        draws=told.draws,
        grid=told.grid,
        mild=told.mild,
        views=told.views,
        noise=told.noise,
        readings=(told.reading,) if told.reading else READINGS[:1] if told.quick else READINGS,
        results=results,
        figures=figures,
        cache=told.cache,
    )


def main(arguments: Sequence[str]) -> int:
    """Do what the command line says; 1 and one line on the error stream where that cannot be done."""
    task, wishes = parsed(arguments)
    try:
        if task == CLOSED:
            closed.main(wishes.results, closed.PAGE)
        if task == SCORES:
            scores.main(wishes.results)
        if task in DECISIONS:
            wishes.results.mkdir(parents=True, exist_ok=True)
            models = (
                general.small(wishes.results, EMBEDDED)
                if wishes.quick
                else [each.heard() for each in general.records()]
            )
            DECISIONS[task].main(models, wishes.results, 2 if wishes.quick else DECISIONS[task].SPLITS)
        for name in TASKS if task == "all" else (task,):
            if name in TASKS:
                TASKS[name](wishes)
        if task == "page" or (task == "all" and wishes.results == RESULTS):
            page(wishes)
    except LookTwiceError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; run the same command again to resume", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
