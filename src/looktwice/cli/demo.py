"""The embedded demo: a small classifier of clothes, 2,000 pictures, and every way to believe its answers.

Every other picture teaches and the rest test. As in the paper, each transformation's setting and a are searched
on the pictures that teach; which Probit is the best one is decided there too, by its held-out folds. Then the
same guarantee is bought in four ways, as if each query cost money.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Self

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

import looktwice as lt
from looktwice import report
from looktwice.cli import console
from looktwice.cli.console import say
from looktwice.cli.options import Help, JsonOption
from looktwice.files import make_folder
from looktwice.model import (
    GENERAL,
    AsyncModel,
    Calibrator,
    Collected,
    Evaluation,
    Outcome,
    Picture,
    Profile,
    Result,
    cross_fit,
    evaluation,
    labelled,
    outcome,
    percent,
    save_votes,
)
from looktwice.model import run as run_async

FIT = 1000
DRAWS = 10
MAX_ERROR = 0.08
"""The guarantee that the report is about: 1,000 pictures are enough for it, though not for a much stricter one."""
PRICE = 0.0015
"""What a query is taken to cost: about what image APIs charge."""
SCORES = "scores.toml"
"""The same classifier, described as one that returns its five best labels with scores."""
PAPER = {
    "noise": ("gaussian:0.05", "gaussian:0.1", "gaussian:0.2"),
    "affine": ("affine:0,0.1,0.1", "affine:10,0,0.1", "affine:10,0.1,0.1"),
    "elastic": ("elastic:20,5", "elastic:50,5", "elastic:70,10"),
    "rotation": ("rotation:10", "rotation:20", "rotation:30"),
}
"""The paper's four transformations, each with three settings of its grid."""
SETTINGS = tuple(setting for settings in PAPER.values() for setting in settings)
JURY = "jury"


@dataclass(frozen=True, eq=False)
class Demo:
    """What the demo found, and where it put it."""

    results: list[Result]
    ways: list[Way]
    best: Outcome
    """How the jury fared on the test pictures."""
    tested: list[Picture]
    vocabulary: tuple[str, ...]
    folder: Path


@dataclass(frozen=True)
class Way:
    """What a way of asking brings, with answers accepted as long as at most MAX_ERROR of them are wrong."""

    name: str
    queries: float
    """A picture, on average."""
    accepted: float
    """The share of the test pictures."""
    wrong: float | None
    """The share of the accepted answers; None if none was accepted."""

    @classmethod
    def of(cls, name: str, found: Evaluation) -> Self:
        """The figures of an evaluation."""
        guarantees = found.guarantees
        return cls(name, float(found.outcome.queries), guarantees.accepted or 0.0, guarantees.wrong)

    @property
    def cost(self) -> float | None:
        """What 100 accepted pictures cost; None if none was accepted."""
        return 100 * self.queries * PRICE / self.accepted if self.accepted else None


@dataclass(frozen=True, eq=False)
class _Halves:
    """The answers under one panel about the pictures that teach and those that test."""

    train: Collected
    test: Collected

    def judge(self, calibrator: Calibrator, name: str) -> Outcome:
        """How the calibrator, fitted on one half, fares on the other."""
        return outcome(calibrator.fit(self.train.labelled()), self.test.labelled(), name)


def demo(
    out: Annotated[Path, Help("--out", "-o", help="Folder for the results.")] = Path("looktwice-demo"),
    json: JsonOption = False,
) -> None:
    """Try it on an embedded classifier and 2,000 pictures."""
    show(run(out), json)


def run(folder: Path) -> Demo:
    """Ask, fit on one half, test on the other, and save what came out."""
    make_folder(folder)
    assets = Path(str(files("looktwice") / "demo"))
    pictures = labelled(assets / "pictures.npz")
    clothes = pictures[::2] + pictures[1::2]
    description = str(assets / "fashion.toml")
    text = (assets / "fashion.toml").read_text("utf-8")
    scoring = "scores = 5\n" + text.replace('"fashion.onnx"', json.dumps(str(assets / "fashion.onnx")))
    (folder / SCORES).write_text(scoring, "utf-8")
    demo, profile, jury = run_async(lambda: _compare(description, clothes, folder))
    profile.save(folder / "profile.json")
    save_votes(folder / "votes.npz", jury.test.votes)
    title = f"looktwice on {len(demo.tested):,} pictures of clothes"
    inputs = report.ReportInputs(profile, jury.test.votes, demo.tested, results=demo.results, max_error=MAX_ERROR)
    report.write(folder / "index.html", replace(inputs, descriptors=jury.test.descriptors, title=title))
    return demo


async def _compare(description: str, clothes: list[Picture], folder: Path) -> tuple[Demo, Profile, _Halves]:
    train, test = clothes[:FIT], clothes[FIT:]
    model = AsyncModel(description)
    async with console.watched(model, len(clothes), console.Output()):
        taught = _parted(await model.ask(train, views=_together(SETTINGS)), SETTINGS)
        fared = {view: _held_out(lt.calibration.Gaussian(), taught[view]) for view in SETTINGS}
        best = {name: min(views, key=fared.__getitem__) for name, views in PAPER.items()}
        chosen = tuple(best.values())
        tested = _parted(await model.ask(test, views=_together(chosen)), chosen)
    jury = _Halves(taught[JURY], tested[JURY])
    tuned = {name: _Halves(taught[view], tested[view]) for name, view in best.items()}
    outcomes = [jury.judge(lt.calibration.Naive(), "naive"), jury.judge(lt.calibration.Constant(), "constant")]
    outcomes += [halves.judge(lt.calibration.Gaussian(), f"paper, {name}") for name, halves in tuned.items()]
    likely = min(tuned, key=lambda name: _held_out(lt.calibration.Probit(), tuned[name].train))
    outcomes.append(tuned[likely].judge(lt.calibration.Probit(), f"probit, {likely}"))
    outcomes.append(jury.judge(lt.Jury(), "jury"))
    profile = model.learn(jury.train, lt.Jury())
    whole = evaluation(jury.test, profile, model.policy(max_error=MAX_ERROR))
    ways = [Way.of(f"labels of 1 + {len(GENERAL)} queries", whole), *await _ways(description, clothes, folder)]
    results = [Result.of(outcome) for outcome in outcomes]
    return Demo(results, ways, outcomes[-1], test, jury.test.votes.vocabulary, folder), profile, jury


def _together(settings: Sequence[str]) -> str:
    """One panel of the jury's views and all draws of each setting, so that a picture is opened once."""
    return " ".join([str(GENERAL), *(f"{setting}*{DRAWS}" for setting in settings)])


def _parted(collected: Collected, settings: Sequence[str]) -> dict[str, Collected]:
    """The answers that were asked together, under the jury's panel and under each setting."""
    starts = range(len(GENERAL), len(collected.panel), DRAWS)
    parts = {setting: range(start, start + DRAWS) for setting, start in zip(settings, starts, strict=True)}
    return {name: collected.under(columns) for name, columns in {JURY: range(len(GENERAL)), **parts}.items()}


async def _ways(description: str, clothes: list[Picture], folder: Path) -> list[Way]:
    """What else the same guarantee could rest on."""
    say("Comparing cheaper ways to ask …")
    train, test = clothes[:FIT], clothes[FIT:]
    found = []
    async with AsyncModel(description) as stopping:
        await stopping.fit(train, max_error=MAX_ERROR)
        early = await stopping.evaluate(test, adaptive=True, max_error=MAX_ERROR)
        found.append(Way.of("labels, stopping early", early))
    async with AsyncModel(str(folder / SCORES)) as scored:
        for name, views in ((f"scores of 1 + {len(GENERAL)} queries", GENERAL), ("the score of one query", "none")):
            await scored.fit(train, views=views)
            found.append(Way.of(name, await scored.evaluate(test, max_error=MAX_ERROR)))
    return found


def _held_out(calibrator: Calibrator, collected: Collected) -> float:
    return float(cross_fit(calibrator, collected.labelled()).brier.mean())


def show(demo: Demo, as_json: bool) -> None:
    """Print the tables, three pictures that are doubted and three that are trusted, and where the rest is."""
    if as_json:
        results = [result.model_dump() for result in demo.results]
        ways = [{**asdict(way), "cost": way.cost} for way in demo.ways]
        console.print_json({"folder": str(demo.folder), "results": results, "ways": ways})
        return
    title = f"{len(demo.tested)} held-out pictures, with 95 % intervals"
    console.OUT.print(console.results_table(demo.results, title))
    order = np.argsort(demo.best.confidence, kind="stable")
    _gallery(demo, "Least confident", order[:3])
    _gallery(demo, "Most confident", order[::-1][:3])
    console.OUT.print(_costs(demo.ways))
    say(f"Report: {demo.folder / 'index.html'}   Profile: {demo.folder / 'profile.json'}")
    called = f"{sys.executable} -m looktwice" if sys.argv[0].endswith("__main__.py") else sys.argv[0]
    program = "looktwice" if shutil.which("looktwice") else called
    say(f"Next, drop pictures on a web page: {program} serve --profile {demo.folder / 'profile.json'}")


def _costs(ways: list[Way]) -> Table:
    """The ways to the same guarantee, and what 100 accepted pictures cost."""
    title = f"\nAccepting answers of which at most {100 * MAX_ERROR:.0f} % are wrong, at {PRICE:g} a query"
    table = console.table(title, "what is used", "queries", "accepted", "wrong", "100 accepted cost")
    for way in ways:
        wrong = "–" if way.wrong is None else f"{100 * way.wrong:.1f} %"
        cost = "–" if way.cost is None else f"{way.cost:.2f}"
        table.add_row(way.name, f"{way.queries:.1f}", f"{100 * way.accepted:.0f} %", wrong, cost)
    return table


def _gallery(demo: Demo, heading: str, places: NDArray[np.intp]) -> None:
    console.OUT.print(f"\n[bold]{heading}[/bold]")
    captions = []
    for i in places.tolist():
        outcome = "right" if demo.best.correct[i] else f"wrong: {demo.tested[i].truth}"
        verdict = f"{demo.vocabulary[demo.best.label[i]]} {percent(float(demo.best.confidence[i]))}"
        captions.append(f"{verdict}\n[dim]{outcome}[/dim]")
    console.OUT.print(console.thumbnails([demo.tested[i].image().pixels for i in places], captions))
