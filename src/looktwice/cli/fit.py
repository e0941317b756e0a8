"""`looktwice fit`, `borrow`, `noise` and `transfer`: commands that fit a profile."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.progress import track
from rich.table import Table

from looktwice.cli.console import (
    COLUMNS,
    ERR,
    JsonOption,
    Output,
    complain,
    estimate,
    frontier_table,
    leave,
    overall,
    print_json,
    results_table,
    safe,
    say,
    say_reach,
    show,
    table,
    tag_table,
    watch,
)
from looktwice.cli.options import (
    CLASSIFIER,
    LABELLED,
    ClassifiersOption,
    Help,
    LabelledArgument,
    NewProfileOption,
    PicturesArgument,
    ReportOption,
    TakeOption,
    Truths,
    VotesOption,
    asks_with_truths,
    check_outputs,
    find_pictures,
    labels,
    prints,
)
from looktwice.model import (
    GENERAL,
    AskOptions,
    AsyncModel,
    Cause,
    Collected,
    DecisionOptions,
    FitResult,
    LabelledVotes,
    NoiseFile,
    Panel,
    Picture,
    Profile,
    Unscored,
    check_teachable,
    few,
    files,
    grid_of,
    held_out_scores,
    least_error,
    left_out,
    measure_noise,
    named,
    search_queries,
    selection_level,
)
from looktwice.report import ReportInputs, write as write_report

SEVERAL, MANY = 3, 0.2
"""Labels that were never returned are reported if one has this many pictures, or all have this share of them."""
FIXED = (
    "Query these views, such as 'mirror zoom:1.15', and no others; by default a pilot determines which views are worth "
    "their price."
)


@labels
@asks_with_truths
@prints
def fit(
    pictures: LabelledArgument,
    classifier: ClassifiersOption,
    ask: AskOptions,
    output: Output,
    truths: Truths,
    out: NewProfileOption,
    views: Annotated[str, Help(help=FIXED)] = "",
    calibrator: Annotated[
        str, Help(help="How votes become a probability: jury, probit, beta, isotonic, gaussian, transfer …")
    ] = "jury",
    noise: Annotated[
        Path | None, Help(help="For --calibrator transfer: the file written by `looktwice noise`.")
    ] = None,
    paper: Annotated[
        str | None,
        Help(help="Search the settings of one transformation as in the paper: gaussian, elastic, rotation or affine."),
    ] = None,
    add: Annotated[
        bool,
        Help(
            "--add",
            help="Add these pictures, such as those that an alarm names, to the profile at --out; no queries are sent "
            "about pictures on which it was fitted.",
        ),
    ] = False,
    draws: Annotated[int, Help(help="With --paper: draws per picture.", min=1)] = 20,
    max_price: Annotated[float | None, Help(help="Maximum average cost of a new picture.", min=0)] = None,
    max_queries: Annotated[float | None, Help(help="Maximum average number of queries per new picture.", min=1)] = None,
    votes: VotesOption = None,
    report: ReportOption = None,
) -> None:
    """Learn from labelled pictures how far to trust a classifier, and which queries to send.

    [bold]Examples[/bold]

      looktwice fit photos/ -c model.toml --dry-run

      looktwice fit photos/ -c cheap.toml -c gpt.toml --money 20

      looktwice fit test.npz --take :1000 -c model.toml --views 'rotation:20*10' --calibrator probit

      looktwice fit photos/ -c model.toml --paper rotation --draws 20
    """
    check_outputs((*pictures, truths.truths, *classifier, noise), out, votes, report=report)
    labelled, model = truths.open(*pictures), AsyncModel(named(classifier), options=ask)
    if add:
        own = Profile.load(out)
        _borrow(model, own, labelled, out, output, votes, own.vocabulary)
    if output.dry_run:
        check_teachable(labelled)
        _dry_run(model, labelled, views, paper, draws, output)
        return
    unscored, tell = listener(votes)
    work = partial(model.fit, labelled, views=views, calibrator=calibrator, noise=noise, on_collected=tell)
    work = partial(work, paper=paper, draws=draws, max_price=max_price, max_queries=max_queries)
    result = watch(model, len(labelled), output, work)
    profile = result.profile
    model.save(out)
    if output.json:
        frontier = [point.model_dump() for point in result.frontier.points]
        settings = {"settings": {str(each.view): each.brier for each in result.settings}} if result.settings else {}
        figures = {"advice": list(result.sentences), "frontier": frontier, "pilot": result.pilot, "cut": result.cut}
        least = least_error(DecisionOptions().of(profile).held_out.answers()) if profile.kind == "label" else None
        figures["guarantee"] = least and {"max_error": least[0], "level": selection_level(0.95), "accepted": least[1]}
        print_json({**record(profile, out), **figures, **settings})
    else:
        show_settings(result)
        show_profile(profile, out, list(result.sentences), result.pilot)
        if any(item.cause is Cause.BUDGET for item in unscored):
            known = f"{profile.pictures:,} of {len(labelled):,} pictures"
            say(f"[yellow]The profile was fitted on only {known}[/yellow]; raise the budget and run again to use all.")
        else:
            say_reach(profile, out, model.typical_price(profile.name))
    if result.cut:
        say(f"[yellow]Incomplete:[/yellow] {safe(result.cut)}")
    if report:
        decide, price = DecisionOptions(), model.typical_price(profile.name)
        policy = decide.of(profile)  # with early stopping, if the profile has a rule
        report_to(report, ReportInputs(profile, result.collected.votes, labelled, policy, price_micros=price), decide)
    leave(not (unscored or result.cut))


def report_to(out: Path, inputs: ReportInputs, decide: DecisionOptions) -> None:
    """Write a report, in which the guarantees are those of these options."""
    write_report(out, replace(inputs, max_error=overall(decide.max_error), level=decide.level))
    say(f"Report: {safe(str(out))}")


def _dry_run(
    model: AsyncModel, labelled: Sequence[Picture], views: str, paper: str | None, draws: int, output: Output
) -> None:
    """Print the queries and cost of `fit`, by stage."""
    if paper:
        queries = search_queries(len(labelled), grid_of(paper), draws)
        price = model.typical_price()
        money = f", {queries * price / 1e6:,.2f} in money" if price else ""
        if output.json:
            print_json({"queries": queries})
        else:
            say(f"The search: at most {queries:,} queries{money}. Nothing was sent.")
        return
    if not output.json:
        plan = model.plan(len(labelled), views)
        for line in plan.lines():
            say(line)
    estimate(model, labelled, partial(model.panel, views), output)


def show_settings(result: FitResult) -> None:
    """Print the settings as a table."""
    if not result.settings:
        return
    best = min(setting.brier for setting in result.settings)
    shown = table("Settings on held-out pilot pictures", "view", COLUMNS["brier"])
    for setting in result.settings:
        shown.add_row(str(setting.view), f"{setting.brier:.4f}", style="bold" if setting.brier == best else None)
    show(shown)


@labels
@asks_with_truths
@prints
def borrow(
    teacher: Annotated[Path, typer.Argument(help="The profile of a similar classifier.", show_default=False)],
    classifier: ClassifiersOption,
    ask: AskOptions,
    output: Output,
    truths: Truths,
    out: NewProfileOption,
    pictures: Annotated[Path | None, Help(help=f"{LABELLED} Optional; fifty pictures already help.")] = None,
) -> None:
    """Make a profile from the profile of another classifier.

    [bold]Examples[/bold]

      looktwice fit public/ -c onnx:open.onnx -o open.json

      looktwice borrow open.json -c api.toml

      looktwice borrow open.json -c api.toml --pictures fifty/
    """
    check_outputs((teacher, pictures, truths.truths, *classifier), out)
    labelled, model = truths.open(pictures) if pictures else [], AsyncModel(named(classifier), options=ask)
    _borrow(model, Profile.load(teacher), labelled, out, output)


def _borrow(
    model: AsyncModel,
    teacher: Profile,
    labelled: Sequence[Picture],
    out: Path,
    output: Output,
    votes: Path | None = None,
    known: Sequence[str] = (),
) -> NoReturn:
    """Make a profile from another one, or update it; no error is raised if tags in `known` apply to none of the
    pictures."""
    if output.dry_run:
        estimate(model, labelled, teacher.views(), output)
        leave(True)
    unscored, tell = listener(votes, known)
    profile = watch(model, len(labelled), output, partial(model.borrow, teacher, labelled, on_collected=tell))
    model.save(out)
    none = "No labelled pictures were given, so the quality of this profile is unknown and nothing is guaranteed."
    advice = profile.advice() if labelled else [none]
    if output.json:
        print_json({**record(profile, out), "advice": advice})
    else:
        show_profile(profile, out, advice)
        say_reach(profile, out, model.typical_price())
    leave(not unscored)


# What every command that learns a profile says -----------------------------------------------------------------------


def listener(
    votes: Path | None = None, known: Sequence[str] = ()
) -> tuple[list[Unscored], Callable[[Collected], None]]:
    """A callback that reports the answers before fitting and saves the votes; unscored pictures are added to the list.

    Tags in `known` are not reported as missing.
    """
    unscored: list[Unscored] = []

    def tell(collected: Collected) -> None:
        unscored.extend(collected.unscored)
        complain(collected.unscored)
        if votes:
            collected.votes.save(votes)
        if collected.kind == "label":
            tell_mismatch(collected.labelled())
        elif sentence := left_out(collected, known):
            say(
                f"[yellow]Tags:[/yellow] {safe(sentence)}. If two tags mean the same, rename one of them: see "
                "docs/pictures.md"
            )
        tell_duplicates(collected)

    return unscored, tell


def record(profile: Profile, out: Path) -> dict[str, object]:
    """The JSON output for a new profile."""
    results = [result.model_dump() for result in profile.results]
    tags = {"tags": asdict(held_out_scores(profile))} if profile.kind == "tags" else {}
    return {"profile": str(out), "kind": profile.kind, "panel": profile.panel, "results": results, **tags}


def show_profile(profile: Profile, out: Path, advice: list[str], pilot: int = 0) -> None:
    """Print the results of a new profile, remarks, and the profile's path."""
    if len(profile.frontier) > 1:
        show(frontier_table(profile))
    if profile.kind == "tags":
        scores = held_out_scores(profile)
        show(tag_table(scores, f"On {profile.pictures} pictures, by 5-fold cross-validation"))
        show(scores.sentence())
    if profile.results:
        rest = (
            f"{profile.pictures - pilot} pictures not used for selection" if pilot else f"{profile.pictures} pictures"
        )
        show(results_table(profile.results, f"On {rest}, by 5-fold cross-validation"))
    for line in advice:
        say(safe(line))
    say(f"Profile: {out}")


def tell_mismatch(labelled: LabelledVotes) -> None:
    """Print true labels that the classifier seems to name differently.

    A rare label may be absent from the answers by chance, so labels are printed only if one of them has several
    pictures, or if many pictures have such labels.
    """
    sure = zip(labelled.words, labelled.doubtful(), strict=True)
    truths, returned = Counter(word for word, doubtful in sure if not doubtful), set(labelled.vocabulary)
    never, others = truths.keys() - returned, returned - truths.keys()
    count = sum(truths[word] for word in never)
    if others and never and (max(truths[word] for word in never) >= SEVERAL or count > MANY * len(labelled)):
        mismatch = f"the classifier never returned {few(sorted(never), 'true label')}, and no picture is labelled with "
        mismatch += few(sorted(others), "label")
        say(
            f"[yellow]Label mismatch:[/yellow] {safe(mismatch)}. `looktwice labels` proposes names for labels with the "
            "same meaning."
        )


def tell_duplicates(collected: Collected) -> None:
    """Print the number of exact duplicates, and list near-duplicates and duplicates with different true labels."""
    distinct = collected.distinct()
    if distinct.repeated:
        total = len(distinct.votes) + distinct.repeated
        say(f"{distinct.repeated:,} of {total:,} pictures are exact duplicates; each picture counts once.")
    if distinct.similar:
        pairs = few([f"{one} ~ {other}" for one, other in distinct.similar], "near-duplicate")
        say(f"{safe(pairs)}: these count as different pictures; remove those that show the same photo.")
    if distinct.disputed:
        pairs = few([f"{one} = {other}" for one, other in distinct.disputed], "duplicate")
        say(
            f"[yellow]Labels:[/yellow] the true labels differ for {safe(pairs)}; the first label counts; correct the "
            "others"
        )


OpenOption = Annotated[str, Help("--open", help="The open model: model.onnx with model.toml beside it.")]
ViewsOption = Annotated[str, Help("--views", help="Random views to test, such as 'gaussian:0.05 rotation:20'.")]


def noise(
    pictures: PicturesArgument,
    open_: OpenOption,
    views: ViewsOption = "",
    draws: Annotated[int, Help(help="Draws of each view per picture.", min=2)] = 50,
    seed: Annotated[int, Help(help="Seed for the random views.", min=0)] = 0,
    out: Annotated[Path, Help("--out", "-o", help="Where to write the result.")] = Path("noise.json"),
    figures: Annotated[Path | None, Help(help="A folder for plots of the cumulative distributions, as SVG.")] = None,
    take: TakeOption = None,
    json: JsonOption = False,
) -> None:
    """Measure the noise of views inside an open model.

    [bold]Example[/bold]

      looktwice noise photos/ --open model.onnx --views 'gaussian:0.05 rotation:20' --figures noise/
    """
    opened = find_pictures(pictures, take)
    files.check_writable(out)
    if figures:
        files.make_folder(figures)
    file = _measured(open_, opened, views, draws, seed)
    file.save(out)
    if figures:
        from looktwice.report.findings import drawn

        for item in file.noises:
            stem = re.sub(r"[^a-z0-9.]+", "-", item.view)
            files.write(figures / f"{stem}.svg", drawn(item.noise, item.view))
            files.write(figures / f"{stem}-centred.svg", drawn(item.centred, f"{item.view}, centred"))
    if json:
        print_json({"noise": str(out), "views": [item.summary() for item in file.noises]})
    else:
        show(_noise_table(file))
        say(f"Noise: {out}" + (f"   Figures: {figures}" if figures else ""))


@labels
@asks_with_truths
@prints
def transfer(
    open_: OpenOption,
    open_pictures: Annotated[list[Path], Help(help="Pictures for the open model; they need no labels.")],
    closed: Annotated[str, Help("--closed", "-c", help=CLASSIFIER)],
    pictures: Annotated[Path, Help(help=LABELLED)],
    ask: AskOptions,
    output: Output,
    truths: Truths,
    out: NewProfileOption,
    views: ViewsOption = "",
    draws: Annotated[int, Help(help="Draws of each view per picture.", min=2)] = 10,
    open_take: Annotated[str | None, Help(help="Only some pictures for the open model, as a Python slice.")] = None,
) -> None:
    """Calibrate a closed model with the help of an open one.

    [bold]Example[/bold]

      looktwice transfer --open model.onnx --open-pictures public/ --closed api.toml --pictures photos/
    """
    check_outputs((*open_pictures, pictures, truths.truths, closed, open_), out)
    shown, labelled = find_pictures(open_pictures, open_take), truths.open(pictures)
    model = AsyncModel(closed, options=ask)
    check_teachable(labelled)
    file = _measured(open_, shown, views, draws, ask.seed or 0)
    if not output.json:
        show(_noise_table(file))
    chosen = file.best().view
    say(f"Selected on the open model: {chosen}, whose F_n predicts the model's own probability best.")
    if output.dry_run:
        estimate(model, labelled, Panel.parse(f"{chosen}*{draws} {GENERAL}"), output)
        return
    unscored, tell = listener()
    work = partial(model.transfer, file, labelled, draws=draws, on_collected=tell)
    transferred = watch(model, 2 * len(labelled), output, work)
    model.save(out)
    results = transferred.results()
    if output.json:
        figures = {"results": [result.model_dump() for result in results], "differences": transferred.differences()}
        print_json({"profile": str(out), "view": chosen, **figures})
    else:
        show(results_table(results, f"On {len(transferred.calibrator.label)} pictures, by 5-fold cross-validation"))
        for line in transferred.sentences():
            show(safe(line))
        say(f"Profile of the transferred calibrator: {out}")
        say_reach(model.fitted(), out, model.typical_price())
    leave(not unscored)


def _measured(model: str, pictures: Sequence[Picture], views: str, draws: int, seed: int) -> NoiseFile:
    bar = partial(track, description="pictures", total=len(pictures), console=ERR, transient=True)
    file, unread = measure_noise(model, pictures, views, draws, seed, partial(bar, disable=not ERR.is_terminal))
    if unread:
        say(f"[yellow]{len(unread)} pictures were not read:[/yellow] {safe(str(unread[0]))}")
    return file


def _noise_table(file: NoiseFile) -> Table:
    """A table of variance, KS statistic and other metrics, one view per row: first for the raw noise, then for the
    centred noise."""
    title = f"Noise of {file.pictures:,} pictures, {file.draws} draws each"
    shown = table(title, "view", "kept", "Var ↓", "KS ↓", "a", "skew", "F_n off", "Φ off")
    for item in file.noises:
        cells = [
            (f"{noise.var:.3f}", f"{noise.normal.ks:.3f}", f"{noise.normal.a:.3g}", f"{noise.shape.skewness:+.2f}")
            for noise in (item.noise, item.centred)
        ]
        both = [f"{plain}\n[dim]{centred}[/dim]" for plain, centred in zip(*cells, strict=True)]
        errors = (f"{item.transfer_error:.3f}", f"{item.gaussian_error:.3f}")
        shown.add_row(f"{item.view}\n[dim]  centred[/dim]", f"{item.kept:.3f}", *both, *errors)
    return shown
