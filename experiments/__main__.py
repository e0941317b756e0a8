"""The paper's tables and figures, each by one command, on its data or yours; a run that was ended goes on."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from experiments import baselines, closed, scores, sets, stopping
from experiments.collected import CACHE, MODELS
from experiments.outputs import CLOTHES, SOURCES
from experiments.paper import claims, drawings, pages, tables
from experiments.paper.answers import Answers, Meter
from experiments.paper.subjects import DEMO, PHOTOS, SMALL, Scale, Subject, chosen, known, listed, mild, scale
from experiments.paper.tables import RACE, Study
from experiments.paper.writing import picture, read, write
from looktwice.errors import DataError, LookTwiceError
from looktwice.views import GENERAL16

ROOT = Path(__file__).parents[1]
QUICK = 500
"""Pictures that --quick takes."""


@dataclass(frozen=True)
class Wishes:
    """What the command line asks for."""

    models: tuple[str, ...]
    data: Path | None
    truths: Path | None
    source: str | None
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
    results: Path
    figures: Path
    cache: Path

    def studies(self, usual: Sequence[str]) -> Iterator[Study]:
        for subject in chosen(self.models, self.data, self.truths, self.quick, usual):
            yield self.study(subject)

    def study(self, subject: Subject) -> Study:
        limit = self.pictures or (QUICK if self.quick else len(subject.pictures))
        if limit < 40:
            raise DataError(f"{limit} pictures are too few to label some and test others; give 40 or more")
        size = scale(min(limit, len(subject.pictures)), len(subject.labels), self.quick)
        size = self._smaller(size if self.quick else _past_pilot(size, subject))
        if self.views or self.mild:
            size = replace(size, settings=listed(self.views) if self.views else mild(len(subject.labels)))
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
    asked = (size.labelled + size.tested) * (1 + len(size.settings) * size.draws + min(size.draws, len(GENERAL16)))
    return search + asked + len(size.settings) * size.noise * size.noise_draws


# The tasks -----------------------------------------------------------------------------------------------------------


def table(name: str, usual: Sequence[str]) -> Callable[[Wishes], None]:
    """Tables 1 and 2: every method on one model after the other."""

    def task(wishes: Wishes) -> None:
        for study in wishes.studies(usual):
            write(wishes.results / f"{name}.csv", tables.results(study))
            print(pages.results(_mine(wishes.results / f"{name}.csv", study)))

    return task


def _mine(path: Path, study: Study) -> list[dict[str, str]]:
    about = (study.subject.dataset, study.subject.title)
    return [row for row in read(path) if (row["dataset"], row["model"]) == about]


def table3(wishes: Wishes) -> None:
    """Transfer of F_n from the open model to the others."""
    source = wishes.study(known(wishes.source or ("resnet20" if not wishes.quick else DEMO)))
    for study in wishes.studies(("resnet32", "resnet8")):
        write(wishes.results / "table3.csv", tables.transfer(source, study))
    print(pages.transfer(read(wishes.results / "table3.csv")))


def table4(wishes: Wishes) -> None:
    """Correlations over the runs that Tables 1 and 2 hold."""
    rows = [row for name in ("table1", "table2") for row in _there(wishes.results / f"{name}.csv")]
    if not rows:
        raise DataError(f"Table 4 sums up Tables 1 and 2, and neither is in {str(wishes.results)!r}; run table1 first")
    found = [*tables.correlations(rows), *tables.recomputed(), *tables.printed()]
    write(wishes.results / "table4.csv", found, ("source", "ballot"))
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


def claimed(wishes: Wishes) -> None:
    """The paper's claims against the tables that are there."""
    found = {
        name: _there(wishes.results / f"{name}.csv") for name in ("table1", "table2", "table3", "table4", "figure2")
    }
    write(wishes.results / "claims.csv", claims.judged(found), ("claim",))
    print(pages.claims(read(wishes.results / "claims.csv")))


def page(wishes: Wishes) -> None:
    """docs/reproduction.md with the tables of experiments/results."""
    docs = ROOT / "docs"
    pages.fill(docs / "reproduction.md", wishes.results, docs / "tables" / "reproduction.md")


TASKS: dict[str, Callable[[Wishes], None]] = {
    "table1": table("table1", SMALL),
    "table2": table("table2", PHOTOS),
    "table3": table3,
    "table4": table4,
    "figure2": figure2,
    "figure4": figure4,
    "illustrations": illustrations,
    "claims": claimed,
}
CLOSED, SCORES = "closed", "scores"
"""The tasks about real closed systems and about scores, which are no part of the paper."""
DECISIONS = {"baselines": baselines.main, "sets": sets.main, "stopping": stopping.main}
"""The tasks about what the jury is worth beside others, and about sets and stops."""
HELP = """\
table1         Acc, ECE, AUROC, Brier, Var and KS on small pictures (usual models: resnet8, resnet20, resnet32)
table2         the same on photos (usual models: efficientnet, mobilenetv2)
table3         transfer: Φ against F_n that was learned on an open model (--open)
table4         correlations of Var and KS with the calibration, over the runs in Tables 1 and 2
figure2        Brier against the number of draws
figure4        empirical cumulatives of the noise in latent space
illustrations  the paper's two sources of error, on real pictures
claims         the paper's claims, each seen, not seen or mixed
all            all of these, one after the other
closed         what confidence in answers of real closed systems is worth (docs/closed-systems.md)
scores         what scores and ranked lists are worth beside views, on six models
baselines      the jury beside other ways to use the same labels, and beside what the model itself could do
sets           prediction sets of each kind, beside MAPIE's
stopping       what stopping early does to the Brier score, and what it says that it does
page           put the tables of experiments/results into docs/reproduction.md
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
        "--model", action="append", default=[], help=f"{', '.join(MODELS)}, or a TOML description; may be repeated"
    )
    parser.add_argument("--data", type=Path, help="labelled pictures: CIFAR, ILSVRC2012, .npz, folders, labels.csv")
    parser.add_argument("--truths", type=Path, help="a CSV of truths, or the development kit of ILSVRC2012")
    parser.add_argument("--open", help="the open model of table3, by its name")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} pictures, few draws, the embedded clothes")
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
    parser.add_argument("--results", type=Path, help="where CSVs go")
    parser.add_argument("--figures", type=Path, help="where SVGs go")
    parser.add_argument("--cache", type=Path, default=CACHE, help="where answers are kept")
    told = parser.parse_args(arguments)
    ours = not told.quick and told.data is None
    results = told.results or (ROOT / "experiments" / "results" if ours else Path("paper-results"))
    figures = told.figures or (ROOT / "docs" / "figures" if ours else results)
    return told.task, Wishes(
        models=tuple(told.model),
        data=told.data,
        truths=told.truths,
        source=told.open,
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
        results=results,
        figures=figures,
        cache=told.cache,
    )


def main(arguments: Sequence[str]) -> int:
    """Do what the command line says; 1 and one line on the error stream where that cannot be done."""
    task, wishes = parsed(arguments)
    try:
        if task == "page":
            page(wishes)
        if task == CLOSED:
            closed.main(wishes.results, closed.PAGE)
        if task == SCORES:
            scores.main(wishes.results)
        if task in DECISIONS:
            wishes.results.mkdir(parents=True, exist_ok=True)
            named = [SOURCES[name] for name in wishes.models or SOURCES]
            DECISIONS[task]([CLOTHES] if wishes.quick else named, wishes.results, 2 if wishes.quick else 20)
        for name in TASKS if task == "all" else (task,):
            if name in TASKS:
                TASKS[name](wishes)
    except LookTwiceError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; run the same command again to go on", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
