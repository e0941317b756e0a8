"""What `looktwice tune` does: show the plan, ask the pilot, choose the views, save the profile and its curve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
from rich import box
from rich.table import Table

from looktwice import files
from looktwice.calibration.panels import LossName, Plan
from looktwice.cli.console import COLUMNS, OUT, Output, complain, print_json, results_table, safe, say_reach, watched
from looktwice.cli.fit import tell_duplicates
from looktwice.cli.options import check_places
from looktwice.decisions import pilot
from looktwice.decisions.fitting import check_teachable
from looktwice.decisions.pilot import Selection
from looktwice.decisions.profile import Profile, Result
from looktwice.engine.options import ledger_name, run
from looktwice.errors import DataError
from looktwice.images.collection import Picture
from looktwice.model import AsyncModel, Sized, Tuned
from looktwice.plots import figures
from looktwice.plots.figures import Line
from looktwice.progress import say
from looktwice.report import ReportInputs, write
from looktwice.views import Panel


def tune(
    model: AsyncModel,
    pictures: Sequence[Picture],
    max_queries: int | None,
    loss: LossName,
    out: Path,
    report: Path | None,
    output: Output,
) -> bool:
    """Choose the views on a pilot, and learn a profile whose figures come from the pictures left out of it.

    Whether every picture was scored.
    """
    price = model.typical_price()
    check_places(out, report=report)
    files.check_writable(out.with_suffix(".svg"))

    async def work() -> tuple[Plan, Tuned | None]:
        async with watched(model, len(pictures), output):
            plan = model.plan(len(pictures), max_queries)
            _tell([*_lines(plan, price), *_dry_run_note(model, output)], output.json)
            return plan, None if output.dry_run else await model.tune(pictures, max_queries=max_queries, loss=loss)

    plan, tuned = run(work)
    if tuned is None:
        if output.json:
            print_json(_figures(plan))
        return True
    profile, chosen = tuned.profile, tuned.chosen
    complain(chosen.collected.unscored)
    tell_duplicates(chosen.collected)
    model.save(out)
    if report:
        write(report, ReportInputs(profile, tuned.collected.votes, pictures, price_micros=price))
        say(f"Report: {report}")
    files.write(out.with_suffix(".svg"), curve_svg(profile.curve))
    if output.json:
        print_json({"profile": str(out), "panel": profile.panel, "gain": chosen.gain.mean, **_figures(plan)})
    else:
        _show(profile, price, chosen, loss)
        say(f"Profile: {out}   Curve: {out.with_suffix('.svg')}")
        say_reach(profile, out, price)
    return not chosen.collected.unscored


def tune_sizes(
    model: AsyncModel,
    pictures: Sequence[Picture],
    sizes: Sequence[int],
    max_queries: int | None,
    loss: LossName,
    out: Path,
    output: Output,
) -> bool:
    """Choose the size of pictures along with the views, and show what each costs; whether every picture was scored."""
    check_places(out)
    chart = out.with_suffix(".svg")
    files.check_writable(chart)
    if output.dry_run:
        raise DataError(
            "tuning over sizes asks one pilot for each; see what one takes with --working-size and --dry-run"
        )

    async def work() -> Sized:
        async with watched(model, len(sizes) * len(pictures), output):
            return await model.tune_sizes(pictures, sizes=sizes, max_queries=max_queries, loss=loss)

    sized = run(work)
    profile, chosen = sized.tuned.profile, sized.tuned.chosen
    complain(chosen.collected.unscored)
    model.save(out)
    lines = [
        Line(
            f"{size} px",
            np.array([choice.micros / 1e3 for choice in sized.choices if choice.size == size]),
            np.array([choice.brier for choice in sized.choices if choice.size == size]),
        )
        for size in dict.fromkeys(sizes)
    ]
    files.write(
        chart,
        figures.lines_svg(lines, title="Brier score against money", x_label="per 1,000 pictures", y_label="Brier"),
    )
    if output.json:
        print_json({"profile": str(out), "panel": profile.panel, "taken": asdict(sized.taken),
                    "choices": [asdict(choice) for choice in sized.choices]})  # fmt: skip
    else:
        OUT.print(_frontier_table(sized))
        OUT.print(results_table(profile.results, _judged(profile, chosen)))
        say(f"Profile: {out}   Frontier: {chart}")
        say_reach(profile, out, model.typical_price())
    return not chosen.collected.unscored


def _frontier_table(sized: Sized) -> Table:
    title = "Worth their cost, on the pilot pictures"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("longer side", "queries", COLUMNS["brier"], "per 1,000"):
        table.add_column(heading, justify="right")
    for choice in pilot.frontier(sized.choices):
        mark, style = (" ◀ chosen", "bold") if choice == sized.taken else ("", None)
        cells = (f"{choice.size} px{mark}", str(1 + choice.views), f"{choice.brier:.3f}", f"{choice.micros / 1e3:,.2f}")
        table.add_row(*cells, style=style)
    return table


def search(
    model: AsyncModel,
    pictures: Sequence[Picture],
    family: str,
    draws: int,
    out: Path,
    report: Path | None,
    output: Output,
) -> bool:
    """The paper's search over a and the settings of one transformation; whether every picture was scored."""
    grid = pilot.grid_of(family)
    check_places(out, report=report)
    check_teachable(pictures, pilot.SEARCHED)
    queries = pilot.search_queries(len(pictures), len(grid), draws)
    _tell([_cost("The search", queries, model.typical_price()), *_dry_run_note(model, output)], output.json)
    if output.dry_run:
        if output.json:
            print_json({"queries": queries})
        return True

    async def work() -> Tuned:
        async with watched(model, len(grid) * len(pictures), output):
            return await model.search(pictures, family=family, draws=draws)

    tuned = run(work)
    profile, collected = tuned.profile, tuned.collected
    complain(collected.unscored)
    tell_duplicates(collected)
    model.save(out)
    if report:
        write(report, ReportInputs(profile, collected.votes, pictures))
        say(f"Report: {report}")
    if output.json:
        settings = {str(setting.view): setting.brier for setting in tuned.settings}
        print_json({"profile": str(out), "settings": settings, "panel": profile.panel})
    else:
        OUT.print(_settings_table(tuned.settings))
        OUT.print(results_table(profile.results, _judged(profile, tuned.chosen)))
        say(f"Profile: {out}")
        say_reach(profile, out, model.typical_price())
    return not collected.unscored


def _lines(plan: Plan, price: int) -> list[str]:
    rungs = ", ".join(f"{rung.views} about {rung.pictures}" for rung in plan.rungs)
    share = plan.pilot_queries() / plan.everything()
    return [
        f"Pilot: {plan.pilot()} pictures, with fewer candidate views in each round: {rungs}.",
        _cost(f"It takes {100 * share:.0f} % of the cost of asking all candidates:", plan.pilot_queries(), price),
        _cost(
            f"Then the panel about {plan.rest} pictures that take no part in choosing, in all", plan.queries(), price
        ),
    ]


def _dry_run_note(model: AsyncModel, output: Output) -> list[str]:
    name = ledger_name(model.terms, model.options) or "none"
    return [f"Nothing was sent. Ledger: {safe(name)}"] if output.dry_run else []


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
    return figures.column_svg([falling, rising], "Metrics against queries per picture")


def _chart(points: Sequence[Result], keys: Sequence[str], title: str, label: str) -> str:
    queries = np.array([float(point.queries) for point in points])
    lines = []
    for key in keys:
        values = [point.figures[key].value for point in points]
        known = [place for place, value in enumerate(values) if value is not None]
        if known:
            y = np.array([values[place] for place in known], np.float64)
            lines.append(Line(COLUMNS[key].rstrip(" ↑↓."), queries[known], y))
    return figures.lines_svg(lines, title=title, x_label="queries per picture", y_label=label)


def _show(profile: Profile, price: int, chosen: Selection, loss: LossName) -> None:
    OUT.print(_curve_table(profile.curve, str(chosen.collected.panel), len(profile.views()), price))
    if not chosen.knee:
        brier = (
            f"a Brier score of {chosen.losses[0]:.3f} on the pilot pictures, {min(chosen.losses[1:]):.3f} with views"
        )
        say(f"One query with its score suffices: {brier}. Fit with --views none to ask no more.")
    score = "Brier score" if loss == "brier" else "log loss"
    gain = f"{chosen.gain.mean:+.4f} ± {chosen.gain.error:.4f} in {score}"
    if chosen.gain.convincing():
        say(f"The chosen views gain {gain} over the general panel, both on the same held-out pictures.")
    else:
        say(f"The general panel was kept: the best choice gains {gain} over it, both on the same held-out pictures.")
    OUT.print(results_table(profile.results, _judged(profile, chosen)))


def _judged(profile: Profile, chosen: Selection) -> str:
    return f"On {profile.pictures - chosen.pilot} pictures that took no part in choosing"


def _curve_table(points: Sequence[Result], panel: str, taken: int, price: int) -> Table:
    table = Table(title="View by view", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("view")
    for heading in ("queries", *COLUMNS.values(), *(["per 1,000"] if price else [])):
        table.add_column(heading, justify="right")
    names = ["(the picture itself)", *map(str, Panel.parse(panel))]
    for place, (name, point) in enumerate(zip(names, points, strict=True)):
        values = [point.figures[key].value for key in COLUMNS]
        cells = ["–" if value is None else f"{value:.3f}" for value in values]
        money = [f"{point.queries * price / 1e3:,.2f}"] if price else []
        mark, style = (" ◀ stop here", "bold") if place == taken else ("", None)
        table.add_row(safe(name) + mark, f"{point.queries:g}", *cells, *money, style=style)
    return table


def _settings_table(settings: Sequence[pilot.Setting]) -> Table:
    table = Table(
        title="Settings on held-out pilot pictures", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False
    )
    table.add_column("view")
    table.add_column(COLUMNS["brier"], justify="right")
    best = min(setting.brier for setting in settings)
    for setting in settings:
        table.add_row(str(setting.view), f"{setting.brier:.4f}", style="bold" if setting.brier == best else None)
    return table
