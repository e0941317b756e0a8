"""The embedded demo: two small clothes classifiers, 2,000 pictures, and what the queries cost in four situations.

Half of the pictures are used for fitting, the others for testing. First, nine queries per picture are sent. Then `fit`
selects the queries that are worth their cost in three situations, with assumed prices: labels alone, labels with
scores, and a cheap and an expensive classifier.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated, Self

import numpy as np
from rich.table import Table

import looktwice as lt
from looktwice import report
from looktwice.cli import console
from looktwice.cli.console import JsonOption, say
from looktwice.cli.options import Help
from looktwice.model import GENERAL, AsyncModel, Connected, Evaluation, Picture, Result, files, labelled
from looktwice.model.runs import run as run_async

MAX_ERROR = 0.08
"""The allowed error rate in the report; with 1,000 pictures, it can be guaranteed, but not a much lower rate."""
PRICES = {"fashion": 0.0015, "small": 0.0003}
"""The assumed query prices: a typical price of image APIs, and a fifth of it."""
ASSETS = Path(str(resources.files("looktwice") / "demo"))
ALWAYS, LABELS = f"1 + {len(GENERAL)} queries, always", "labels alone"


@dataclass(frozen=True)
class Situation:
    """Results and cost in one situation, with answers accepted at a guaranteed error rate of at most MAX_ERROR."""

    name: str
    queries: float
    price: float
    """The mean price per picture."""
    accepted: float
    """The accepted share of the test pictures."""
    wrong: float | None
    """The share of wrong answers among those accepted; None if none was accepted."""

    @classmethod
    def from_evaluation(cls, name: str, evaluation: Evaluation) -> Self:
        """The results of an evaluation."""
        votes, first = evaluation.collected.votes, evaluation.profile.name
        asked = np.column_stack([np.ones(len(votes), bool), votes.views >= 0]).mean(axis=0)
        names = [first, *(text.partition("@")[0] if "@" in text else first for text in votes.panel)]
        price = sum(share * PRICES.get(name, PRICES["fashion"]) for share, name in zip(asked, names, strict=True))
        guarantees = evaluation.guarantees
        return cls(name, float(asked.sum()), float(price), guarantees.accepted or 0.0, guarantees.wrong)

    @property
    def cost(self) -> float | None:
        """The cost of 1,000 accepted pictures; None if none was accepted."""
        return 1000 * self.price / self.accepted if self.accepted else None


@dataclass(frozen=True, eq=False)
class Demo:
    """The results of the demo, and their folder."""

    results: Sequence[Result]
    """The results of the calibrator and of baselines, if `fit` selects the queries and there are labels alone."""
    situations: list[Situation]
    tested: int
    """The number of pictures used for the evaluation."""
    folder: Path


def demo(
    out: Annotated[Path, Help("--out", "-o", help="Folder for the results.")] = Path("looktwice-demo"),
    json: JsonOption = False,
) -> None:
    """Try it on bundled classifiers and 2,000 pictures."""
    show(run(out), json)


def run(folder: Path) -> Demo:
    """Fit on one half, test on the other, and save the results."""
    files.make_folder(folder)
    pictures = labelled(ASSETS / "pictures.npz")
    return run_async(lambda: _run(pictures[::2], pictures[1::2], folder))


async def _run(train: list[Picture], test: list[Picture], folder: Path) -> Demo:
    """Compare the costs in the four situations; results and report are those of labels alone."""
    situations, results = list[Situation](), tuple[Result, ...]()
    fashion, small = _connect(folder, "fashion"), _connect(folder, "small")
    for name, classifiers, views in (
        (ALWAYS, [fashion], str(GENERAL)),
        (LABELS, [fashion], ""),
        ("labels with scores", [_connect(folder, "fashion", "scores = 5\n")], ""),
        ("a cheap and an expensive classifier", [small, fashion], ""),
    ):
        say(f"Fitting and testing: {name} …")
        async with AsyncModel(classifiers) as model:
            await model.fit(train, views=views)
            evaluation = await model.evaluate(test, max_error=MAX_ERROR, all=bool(views))
            situations.append(Situation.from_evaluation(name, evaluation))
            if name == LABELS:
                results = evaluation.results
                model.save(folder / "profile.json")
                _write_report(folder, test, evaluation)
    bars = {situation.name: situation.cost for situation in situations if situation.cost is not None}
    chart = lt.plots.bars_svg(bars, title="What 1,000 accepted pictures cost", words="{:.2f}")
    (folder / "costs.svg").write_text(chart, "utf-8")
    return Demo(results, situations, len(test), folder)


def _connect(folder: Path, model: str, more: str = "") -> Connected:
    """Connect a classifier from a description in the folder, so that the printed commands can use it."""
    text = (ASSETS / "fashion.toml").read_text("utf-8").replace('"fashion.onnx"', json.dumps(f"{ASSETS / model}.onnx"))
    path = folder / f"{model}{'-scores' if more else ''}.toml"
    path.write_text(f"{more}{text}", "utf-8")
    return lt.connect(path, name=model, price=str(PRICES[model]))


def _write_report(folder: Path, test: list[Picture], evaluation: Evaluation) -> None:
    votes = evaluation.collected.votes
    votes.save(folder / "votes.npz")
    inputs = report.ReportInputs(
        evaluation.profile,
        votes,
        test,
        evaluation.policy,
        evaluation.collected.descriptors,
        evaluation.results,
        max_error=MAX_ERROR,
        title=f"looktwice on {len(test):,} pictures of clothes",
    )
    report.write(folder / "index.html", inputs)


def show(demo: Demo, as_json: bool) -> None:
    """Print the tables and the paths of the results."""
    if as_json:
        results = [result.model_dump() for result in demo.results]
        situations = [{**asdict(each), "cost": each.cost} for each in demo.situations]
        console.print_json({"folder": str(demo.folder), "results": results, "situations": situations})
        return
    title = f"{demo.tested} held-out pictures, with 95 % intervals"
    console.OUT.print(console.results_table(demo.results, title))
    console.OUT.print(_costs(demo.situations))
    say(f"Report: {demo.folder / 'index.html'}   Profile: {demo.folder / 'profile.json'}")
    called = f"{sys.executable} -m looktwice" if sys.argv[0].endswith("__main__.py") else sys.argv[0]
    program = "looktwice" if shutil.which("looktwice") else called
    say(
        "Next, serve the profile, with a page that accepts pictures by drag and drop: "
        f"{program} serve --profile {demo.folder / 'profile.json'}"
    )


def _costs(situations: Sequence[Situation]) -> Table:
    """A table that compares the situations under the same guarantee, with the cost per 1,000 accepted pictures."""
    prices = f"{PRICES['fashion']:g} a query, {PRICES['small']:g} of the cheap classifier"
    title = f"\nAccepting answers of which at most {100 * MAX_ERROR:.0f} % are wrong, at {prices}"
    table = console.table(title, "situation", "queries", "accepted", "wrong", "1,000 accepted cost")
    for each in situations:
        wrong = "–" if each.wrong is None else f"{100 * each.wrong:.1f} %"
        cost = "–" if each.cost is None else f"{each.cost:.2f}"
        table.add_row(each.name, f"{each.queries:.1f}", f"{100 * each.accepted:.0f} %", wrong, cost)
    return table
