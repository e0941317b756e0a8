"""`looktwice tune`: show the plan, ask the pilot, choose the views, save the profile and its curve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from rich.table import Table

from looktwice.cli.console import (
    COLUMNS,
    Output,
    complain,
    leave,
    print_json,
    results_table,
    safe,
    say,
    say_reach,
    show,
    table,
    watch,
)
from looktwice.cli.fit import record, tell_duplicates
from looktwice.cli.options import (
    ClassifierOption,
    Help,
    LabelledArgument,
    ReportOption,
    Truths,
    asks_with_truths,
    check_outputs,
    labels,
    prints,
)
from looktwice.errors import DataError
from looktwice.files import check_writable, write
from looktwice.model import (
    AskOptions,
    AsyncModel,
    LossName,
    Panel,
    Picture,
    Plan,
    Profile,
    Tuned,
    frontier,
    grid_of,
    search_queries,
)
from looktwice.report import ReportInputs
from looktwice.report import write as write_report


@labels
@asks_with_truths
@prints
def tune(
    pictures: LabelledArgument,
    classifier: ClassifierOption,
    ask: AskOptions,
    output: Output,
    truths: Truths,
    max_queries: Annotated[
        int | None,
        Help(help="Queries per picture, including the first; by default up to 9, fewer where more add little.", min=2),
    ] = None,
    loss: Annotated[Literal["brier", "log-loss"], Help(help="The loss that the chosen views minimise.")] = "log-loss",
    paper: Annotated[
        str | None,
        Help(help="Search the settings of one transformation as in the paper: gaussian, elastic, rotation or affine."),
    ] = None,
    draws: Annotated[int, Help(help="With --paper: draws per picture.", min=1)] = 20,
    sizes: Annotated[
        list[int] | None,
        Help(
            "--size",
            help="A size to try, in pixels on the longer side; repeat it for more. Smaller pictures may pay for more "
            "queries.",
            min=1,
        ),
    ] = None,
    out: Annotated[Path, Help("--out", "-o", help="Where to write the profile; the curve goes beside it.")] = Path(
        "profile.json"
    ),
    report: ReportOption = None,
) -> None:
    """Choose the views on a small pilot, then fit a profile.

    [bold]Examples[/bold]

      looktwice tune photos/ -c model.toml --dry-run

      looktwice tune photos/ -c model.toml --max-queries 5 --budget +20000

      looktwice tune photos/ -c model.toml --size 256 --size 512 --size 1024 --prices prices.toml

      looktwice tune photos/ -c model.toml --paper rotation --draws 20
    """
    check_outputs((pictures, truths.file, classifier), out, report=report)
    check_writable(out.with_suffix(".svg"))
    labelled, model = truths.open(pictures), AsyncModel(classifier, options=ask)
    if paper:
        found = _search(model, labelled, paper, draws, output)
    elif sizes:
        found = _tune_sizes(model, labelled, sizes, max_queries, loss, output)
    else:
        found = _tune(model, labelled, max_queries, loss, output)
    if found is None:
        return
    tuned, profile = found.tuned, found.tuned.profile
    complain(tuned.chosen.collected.unscored)
    tell_duplicates(tuned.chosen.collected)
    model.save(out)
    if report:
        write_report(report, ReportInputs(profile, tuned.collected.votes, labelled, price_micros=model.typical_price()))
        say(f"Report: {report}")
    if found.curve:
        write(out.with_suffix(".svg"), found.curve)
    if output.json:
        print_json({**record(profile, out), **found.figures})
    else:
        show(found.table)
        for line in found.lines:
            say(line)
        judged = f"On {profile.pictures - tuned.chosen.pilot} pictures that took no part in choosing"
        show(results_table(profile.results, judged))
        say(f"Profile: {out}" + (f"   Curve: {out.with_suffix('.svg')}" if found.curve else ""))
        say_reach(profile, out, model.typical_price())
    leave(not tuned.chosen.collected.unscored)


@dataclass(frozen=True, eq=False)
class _Found:
    """What a way of tuning found, and what is said of it."""

    tuned: Tuned
    figures: Mapping[str, object]
    table: Table
    lines: Sequence[str] = ()
    curve: str = ""
    """As SVG."""


def _tune(
    model: AsyncModel, pictures: Sequence[Picture], max_queries: int | None, loss: LossName, output: Output
) -> _Found | None:
    """Choose the views on a pilot; None for a dry run."""
    price = model.typical_price()

    async def work() -> tuple[Plan, Tuned | None]:
        plan = model.plan(len(pictures), max_queries)
        _tell(_lines(plan, price), model, output)
        return plan, None if output.dry_run else await model.tune(pictures, max_queries=max_queries, loss=loss)

    plan, tuned = watch(model, len(pictures), output, work)
    figures: dict[str, object] = {
        "pilot_pictures": plan.pilot(),
        "pilot_queries": plan.pilot_queries(),
        "everything": plan.everything(),
        "queries": plan.queries(),
    }
    if tuned:
        chosen, figures = tuned.chosen, {**figures, "gain": tuned.chosen.gain.mean}
        shown = _curve_table(tuned.profile, chosen.collected.panel, price)
        return _Found(tuned, figures, shown, chosen.sentences(loss), tuned.profile.plot_curve())
    if output.json:
        print_json(figures)
    return None


def _tune_sizes(
    model: AsyncModel,
    pictures: Sequence[Picture],
    sizes: Sequence[int],
    max_queries: int | None,
    loss: LossName,
    output: Output,
) -> _Found:
    """Choose the size of pictures along with the views, and show what each costs."""
    if output.dry_run:
        raise DataError(
            "tuning over sizes asks one pilot for each; see what one takes with --working-size and --dry-run"
        )
    work = partial(model.tune_sizes, pictures, sizes=sizes, max_queries=max_queries, loss=loss)
    sized = watch(model, len(sizes) * len(pictures), output, work)
    figures = {"taken": asdict(sized.taken), "choices": [asdict(choice) for choice in sized.choices]}
    shown = table("Worth their cost, on the pilot pictures", "longer side", "queries", COLUMNS["brier"], "per 1,000")
    for choice in frontier(sized.choices):
        mark, style = (" ◀ chosen", "bold") if choice == sized.taken else ("", None)
        cells = (str(1 + choice.views), f"{choice.brier:.3f}", f"{choice.micros / 1e3:,.2f}")
        shown.add_row(f"{choice.size} px{mark}", *cells, style=style)
    return _Found(sized.tuned, figures, shown, curve=sized.plot())


def _search(model: AsyncModel, pictures: Sequence[Picture], family: str, draws: int, output: Output) -> _Found | None:
    """The paper's search over a and the settings of one transformation; None for a dry run."""
    grid = grid_of(family)
    queries = search_queries(len(pictures), grid, draws)
    _tell([_cost("The search", queries, model.typical_price())], model, output)
    if output.dry_run:
        if output.json:
            print_json({"queries": queries})
        return None
    work = partial(model.search, pictures, family=family, draws=draws)
    tuned = watch(model, len(grid) * len(pictures), output, work)
    best = min(setting.brier for setting in tuned.settings)
    shown = table("Settings on held-out pilot pictures", "view", COLUMNS["brier"])
    for setting in tuned.settings:
        shown.add_row(str(setting.view), f"{setting.brier:.4f}", style="bold" if setting.brier == best else None)
    return _Found(tuned, {"settings": {str(setting.view): setting.brier for setting in tuned.settings}}, shown)


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


def _cost(what: str, queries: int, price: int) -> str:
    return f"{what} at most {queries:,} queries{f', {queries * price / 1e6:,.2f} in money' if price else ''}."


def _tell(lines: Sequence[str], model: AsyncModel, output: Output) -> None:
    """What tuning would ask, before it does."""
    note = [f"Nothing was sent. Ledger: {safe(model.ledger_name() or 'none')}"] if output.dry_run else []
    for line in () if output.json else (*lines, *note):
        say(line)


def _curve_table(profile: Profile, panel: Panel, price: int) -> Table:
    shown = table("View by view", "view", "queries", *COLUMNS.values(), *(["per 1,000"] if price else []))
    names = ["(the picture itself)", *map(str, panel)]
    for place, (name, point) in enumerate(zip(names, profile.curve, strict=True)):
        values = [point.figures[key].value for key in COLUMNS]
        cells = ["–" if value is None else f"{value:.3f}" for value in values]
        money = [f"{point.queries * price / 1e3:,.2f}"] if price else []
        mark, style = (" ◀ stop here", "bold") if place == len(profile.views()) else ("", None)
        shown.add_row(safe(name) + mark, f"{point.queries:g}", *cells, *money, style=style)
    return shown
