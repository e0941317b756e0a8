"""What `looktwice tune` does: show the plan, ask the pilot, choose the views, save the profile and its curve."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from sys import maxsize

import numpy as np
from rich import box
from rich.table import Table

from looktwice import choosing, figures, fitting, tuning
from looktwice import look as looking
from looktwice.asking import Asker
from looktwice.beliefs import Gaussian
from looktwice.choosing import Chosen
from looktwice.console import COLUMNS, OUT, print_json, results_table, run, safe, say, watched
from looktwice.errors import ViewError
from looktwice.figures import Line
from looktwice.jury import Jury
from looktwice.pictures import Picture
from looktwice.profile import Profile, Result
from looktwice.report import Material, write
from looktwice.session import Wishes, opened
from looktwice.tuning import Plan
from looktwice.views import CANDIDATES, GENERAL, GRIDS, Panel

VIEWS = 8
"""Views that a panel may have, unless --max-queries says more or fewer."""
DRAWS = 20


def tune(
    pictures: Sequence[Picture],
    classifier: str,
    max_queries: int | None,
    out: Path,
    report: Path | None,
    wishes: Wishes,
    json: bool,
) -> None:
    """Choose the views on a pilot, and learn a profile whose figures come from the pictures left out of it."""
    longest = VIEWS if max_queries is None else max_queries - 1

    async def work() -> tuple[Plan, Chosen | None, int]:
        async with opened(classifier, wishes) as asker, watched(asker, len(pictures), wishes.json_log):
            plan = tuning.plan(len(pictures), len(CANDIDATES), longest, _budget(asker))
            price = asker.classifier.terms.price_micros
            _tell(_lines(plan, price), json)
            if wishes.dry_run:
                return plan, None, price
            return plan, await choosing.choose(asker, pictures, plan, CANDIDATES, GENERAL), price

    plan, chosen, price = run(work)
    if chosen is None:
        if json:
            print_json(_figures(plan))
        return
    trials = fitting.trials(Jury(), chosen.polled.labelled(), teachers=chosen.pilot)
    points = tuple(step.point() for step in fitting.steps(trials))
    views = longest if max_queries is not None else max(1, chosen.knee)
    polled = chosen.polled.under(range(min(views, len(chosen.polled.panel))))
    profile = looking.learn(polled, Jury(), classifier, teachers=chosen.pilot)
    profile = profile.model_copy(update={"curve": points})
    profile.save(out)
    if report:
        write(report, Material(profile, polled.votes, pictures, price_micros=price))
        say(f"Report: {report}")
    out.with_suffix(".svg").write_text(curve_svg(points), "utf-8")
    if json:
        print_json({"profile": str(out), "panel": profile.panel, "gain": chosen.gain.mean, **_figures(plan)})
        return
    _show(profile, points, price, chosen)
    say(f"Profile: {out}   Curve: {out.with_suffix('.svg')}")


def search(
    pictures: Sequence[Picture],
    classifier: str,
    family: str,
    draws: int,
    out: Path,
    report: Path | None,
    wishes: Wishes,
    json: bool,
) -> None:
    """The paper's search over a and the settings of one transformation."""
    if family not in GRIDS:
        raise ViewError(f"the paper has no transformation {family!r}; it has {', '.join(GRIDS)}")
    grid = GRIDS[family]

    async def work() -> tuple[Chosen, list[choosing.Setting]] | None:
        async with opened(classifier, wishes) as asker, watched(asker, len(grid) * len(pictures), wishes.json_log):
            queries = choosing.search_queries(len(pictures), len(grid), draws)
            _tell([_cost("The search", queries, asker.classifier.terms.price_micros)], json)
            return None if wishes.dry_run else await choosing.search(asker, pictures, grid, draws)

    found = run(work)
    if found is None:
        if json:
            print_json({"queries": choosing.search_queries(len(pictures), len(grid), draws)})
        return
    chosen, settings = found
    profile = looking.learn(chosen.polled, Gaussian(), classifier, teachers=chosen.pilot)
    profile.save(out)
    if report:
        write(report, Material(profile, chosen.polled.votes, pictures))
        say(f"Report: {report}")
    if json:
        print_json({"profile": str(out), "settings": {str(s.view): s.brier for s in settings}, "panel": profile.panel})
        return
    OUT.print(_settings_table(settings))
    OUT.print(results_table(profile.results, _judged(profile, chosen)))
    say(f"Profile: {out}")


def _budget(asker: Asker) -> int | None:
    room = asker.room()
    return None if room == maxsize else room


def _lines(plan: Plan, price: int) -> list[str]:
    rungs = ", ".join(f"{rung.views} about {rung.pictures}" for rung in plan.rungs)
    share = plan.pilot_queries() / plan.everything()
    return [
        f"Pilot: {plan.pilot()} pictures, with fewer candidates from step to step: {rungs}.",
        _cost(f"It takes {share:.0%} of what asking all of them would:", plan.pilot_queries(), price),
        _cost(
            f"Then the panel about {plan.rest} pictures that take no part in choosing, in all", plan.queries(), price
        ),
    ]


def _cost(what: str, queries: int, price: int) -> str:
    return f"{what} at most {queries:,} queries{f', {queries * price / 1e6:,.2f} in money' if price else ''}."


def _tell(lines: Sequence[str], json: bool) -> None:
    for line in lines if not json else ():
        say(line)


def _figures(plan: Plan) -> dict[str, int]:
    return {
        "pilot_pictures": plan.pilot(),
        "pilot_queries": plan.pilot_queries(),
        "everything": plan.everything(),
        "queries": plan.queries(),
    }


def curve_svg(points: Sequence[Result]) -> str:
    """Two charts of figures against queries a picture: those that should fall, and those that should rise."""
    falling = _chart(points, ("brier", "ece"), "What is lost", "lower is better")
    rising = _chart(points, ("accuracy", "auroc"), "What is gained", "higher is better")
    return figures.column_svg([falling, rising], "Figures against queries a picture")


def _chart(points: Sequence[Result], keys: Sequence[str], title: str, label: str) -> str:
    queries = np.array([float(point.queries) for point in points])
    lines = []
    for key in keys:
        values = [point.figures[key].value for point in points]
        known = [place for place, value in enumerate(values) if value is not None]
        if known:
            y = np.array([values[place] for place in known], np.float64)
            lines.append(Line(COLUMNS[key].rstrip(" ↑↓."), queries[known], y))
    return figures.lines_svg(lines, title=title, x_label="queries a picture", y_label=label)


def _show(profile: Profile, points: Sequence[Result], price: int, chosen: Chosen) -> None:
    views = len(profile.views())
    OUT.print(_curve_table(points, str(chosen.polled.panel), views, price))
    gain = f"{chosen.gain.mean:+.4f} ± {chosen.gain.error:.4f}"
    if chosen.gain.convincing():
        say(f"The chosen views gain {gain} in log loss over the general panel, on pictures they were not chosen on.")
    else:
        say(f"The general panel was kept: the best choice gains {gain} in log loss over it.")
    OUT.print(results_table(profile.results, _judged(profile, chosen)))


def _judged(profile: Profile, chosen: Chosen) -> str:
    return f"On {profile.pictures - chosen.pilot} pictures that took no part in choosing"


def _curve_table(points: Sequence[Result], panel: str, taken: int, price: int) -> Table:
    table = Table(title="View by view", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("view")
    for heading in ("queries", *COLUMNS.values(), *(["per 1,000"] if price else [])):
        table.add_column(heading, justify="right")
    names = ["(the picture itself)", *map(str, Panel.parse(panel))]
    for place, (name, point) in enumerate(zip(names, points, strict=True)):
        cells = [_number(point.figures[key].value) for key in COLUMNS]
        money = [f"{point.queries * price / 1e3:,.2f}"] if price else []
        mark, style = (" ◀ stop here", "bold") if place == taken else ("", None)
        table.add_row(safe(name) + mark, f"{point.queries:g}", *cells, *money, style=style)
    return table


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _settings_table(settings: Sequence[choosing.Setting]) -> Table:
    table = Table(
        title="Settings on held-out pilot pictures", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False
    )
    table.add_column("view")
    table.add_column(COLUMNS["brier"], justify="right")
    best = min(setting.brier for setting in settings)
    for setting in settings:
        table.add_row(str(setting.view), f"{setting.brier:.4f}", style="bold" if setting.brier == best else None)
    return table
