"""The embedded demo: a small classifier of clothes, 2,000 pictures, and every way to believe its answers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from secondlook import console, fitting, look, report, scoring
from secondlook import pictures as picture
from secondlook import votes as voting
from secondlook.beliefs import Belief, Constant, Gaussian, Naive, Probit
from secondlook.fitting import Outcome
from secondlook.look import Polled
from secondlook.pictures import Picture
from secondlook.profile import Profile, Result
from secondlook.session import Wishes, opened
from secondlook.views import Panel

DRAWS = 10
PAPER = {"noise": "gaussian:0.1", "affine": "affine:10,0.1,0.1", "elastic": "elastic:50,5", "rotation": "rotation:20"}
"""The paper's four transformations, each from the middle of its grid."""
FIT = 1000
"""The first pictures teach, the others test."""


@dataclass(frozen=True, eq=False)
class Demo:
    """What the demo found, and where it put it."""

    results: list[Result]
    profile: Profile
    best: Outcome
    """How the best belief fared on the test pictures."""
    tested: list[Picture]
    vocabulary: tuple[str, ...]
    folder: Path


def run(folder: Path) -> Demo:
    """Ask about every picture under every transformation, fit on one half and test on the other."""
    assets = Path(str(files("secondlook") / "demo"))
    clothes = picture.labelled(assets / "pictures.npz")
    panel = Panel.parse(" ".join(f"{view}*{DRAWS}" for view in PAPER.values()))
    polled = console.run(lambda: _ask(str(assets / "fashion.toml"), clothes, panel))
    demo = _compare(polled, clothes, str(assets / "fashion.toml"), folder)
    folder.mkdir(parents=True, exist_ok=True)
    demo.profile.save(folder / "profile.json")
    voting.save(folder / "votes.npz", polled.votes, polled.truths)
    (folder / "index.html").write_text(_page(demo), "utf-8")
    return demo


async def _ask(description: str, clothes: list[Picture], panel: Panel) -> Polled:
    async with opened(description, Wishes()) as asker, console.watched(asker, len(clothes)):
        return await look.collect(asker, clothes, panel)


def _compare(polled: Polled, clothes: list[Picture], description: str, folder: Path) -> Demo:
    """Every belief on the test half; the best Probit is chosen, by its held-out folds, on the other."""
    families = {name: slice(i * DRAWS, (i + 1) * DRAWS) for i, name in enumerate(PAPER)}
    nothing = slice(0, 0)
    results = [_test(polled, nothing, belief)[1].result() for belief in (Naive(), Constant())]
    for name, views in families.items():
        results.append(replace(_test(polled, views, Gaussian())[1], name=f"paper, {name}").result())
    best = min(families, key=lambda name: _held_out_loss(polled.part(slice(FIT), families[name])))
    profile = look.learn(polled.part(slice(FIT), families[best]), Probit(), description)
    outcome = replace(_test(polled, families[best], Probit())[1], name=f"probit, {best}")
    return Demo([*results, outcome.result()], profile, outcome, clothes[FIT:], polled.votes.vocabulary, folder)


def _test(polled: Polled, views: slice, belief: Belief) -> tuple[Belief, Outcome]:
    """The belief, fitted on the first pictures, and how it fares on the others."""
    train, test = polled.part(slice(FIT), views), polled.part(slice(FIT, None), views)
    fitted = belief.fit(train.votes, train.votes.codes(train.truths or ()))
    return fitted, fitting.outcome(fitted, test.votes, test.votes.codes(test.truths or ()))


def _held_out_loss(train: Polled) -> float:
    return float(fitting.cross_fit(Probit(), train.votes, train.votes.codes(train.truths or ())).brier.mean())


def show(demo: Demo, json: bool) -> None:
    """Print the table, three pictures that are doubted and three that are trusted, and where the rest is."""
    if json:
        console.print_json({"folder": str(demo.folder), "results": [result.model_dump() for result in demo.results]})
        return
    title = f"{len(demo.tested)} pictures that took no part in fitting, with 95 % intervals"
    console.OUT.print(console.results_table(demo.results, title))
    order = np.argsort(demo.best.confidence, kind="stable")
    _gallery(demo, "Doubted", order[:3])
    _gallery(demo, "Trusted", order[::-1][:3])
    console.say(f"Report: {demo.folder / 'index.html'}   Profile: {demo.folder / 'profile.json'}")


def _gallery(demo: Demo, heading: str, places: NDArray[np.intp]) -> None:
    console.OUT.print(f"\n[bold]{heading}[/bold]")
    shown = [demo.tested[i].image().pixels for i in places]
    captions = [
        f"{demo.vocabulary[demo.best.label[i]]} {demo.best.confidence[i]:.0%}\n"
        f"[dim]{'right' if demo.best.correct[i] else f'it is a {demo.tested[i].truth}'}[/dim]"
        for i in places
    ]
    console.OUT.print(console.thumbnails(shown, captions))


def _page(demo: Demo) -> str:
    curve = scoring.reliability(demo.best.confidence, demo.best.correct)
    return report.page(f"secondlook demo: {demo.best.name}", demo.results, curve)
