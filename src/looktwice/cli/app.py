"""The command line: parse, one call, print.

Nothing heavy is imported here, so that `looktwice --help` answers at once; each command imports what it needs.
"""

import errno
import os
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn, TextIO

import typer

from looktwice import __version__
from looktwice.cli.lazy import LazyGroup
from looktwice.cli.options import (
    ADAPTIVE,
    ANYWHERE,
    CLASSIFIER,
    COST,
    DECIDING,
    LABEL_STUDIO,
    LABELLED,
    LOSS,
    MAX_QUERIES,
    PAPER,
    PREFIX,
    REVIEWED,
    SIZES,
    VERIFY,
    VIEWS,
    WANTED,
    ClassifierOption,
    Help,
    JsonOption,
    LabelledArgument,
    OtherOption,
    PicturesArgument,
    ProfileOption,
    ReportOption,
    Serve,
    TakeOption,
    TruthsColumnOption,
    TruthsOption,
    UnlabelledOption,
    VotesOption,
    acts,
    asks,
    asks_with_truths,
    find_burst,
    find_labelled,
    find_pictures,
    prints,
    serves,
    spare_inputs,
    spreads,
)

if TYPE_CHECKING:
    from looktwice.cli.console import Output
    from looktwice.cli.ray import Machines
    from looktwice.decisions.policy import DecisionOptions
    from looktwice.engine.options import AskOptions
    from looktwice.service import Place

NOT_SCORED = 3
"""The exit code when some pictures were not scored, whatever the cause."""
INTERRUPTED = 130


commands = typer.Typer(rich_markup_mode="rich")


class Commands(LazyGroup):
    source = commands


app = typer.Typer(
    name="looktwice",
    cls=Commands,
    help="Calibrated confidence for image classifiers that return nothing but a label.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def _exit(complete: bool) -> NoReturn:
    from looktwice.cli.console import exit_code

    raise typer.Exit(0 if complete else exit_code(NOT_SCORED))


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"looktwice {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, Help("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


@commands.command()
def demo(
    out: Annotated[Path, Help("--out", "-o", help="Folder for the results.")] = Path("looktwice-demo"),
    json: JsonOption = False,
) -> None:
    """Try it on an embedded classifier and 2,000 pictures."""
    from looktwice.cli import demo

    demo.show(demo.run(out), json)


@commands.command()
@asks
@prints
def check(
    classifier: Annotated[str, typer.Argument(help=CLASSIFIER, show_default=False)],
    ask: "AskOptions",
    output: "Output",
    picture: Annotated[Path | None, typer.Argument(help="A picture to query; a test image by default.")] = None,
) -> None:
    """Query one picture three times: latency, price, repeatability.

    [bold]Example[/bold]

      looktwice check my-api.toml cat.jpg
    """

    from looktwice.cli.check import check
    from looktwice.model import AsyncModel

    _exit(check(AsyncModel(classifier, options=ask), picture, output))


@commands.command()
@serves
@asks
def label(
    pictures: Annotated[Path, typer.Argument(help="A folder of pictures, or an .npz file.", show_default=False)],
    classifier: ClassifierOption,
    ask: "AskOptions",
    place: "Place",
    views: Annotated[str, Help(help=VIEWS)] = "",
    asking: Annotated[bool, Help(help="Query the classifier meanwhile, a few pictures ahead.")] = True,
    max_error: Annotated[float, Help(help=WANTED, min=0.0001, max=0.9999)] = 0.05,
    level: Annotated[float, Help(help="Certainty of that guarantee.", min=0.0001, max=0.9999)] = 0.95,
    out: Annotated[
        Path | None, Help("--out", "-o", help="Where to write the labels; by default labels.csv in the folder.")
    ] = None,
    take: TakeOption = None,
) -> None:
    """Label pictures in the browser.

    Every click is saved to labels.csv at once, so fit can read the labels at any time.

    [bold]Examples[/bold]

      looktwice label photos/ -c my-api.toml --budget 5000

      looktwice label photos/ -c my-api.toml --no-asking
    """
    from looktwice.classifiers.secrets import no_keys_needed
    from looktwice.cli.label import LabelOptions, label
    from looktwice.model import AsyncModel

    options = LabelOptions(views, asking, max_error, level, out)
    with nullcontext() if asking else no_keys_needed():
        model = AsyncModel(classifier, options=ask)
    label(pictures, find_pictures([pictures], take), model, options, place)


@commands.command()
@asks_with_truths
@prints
def fit(
    pictures: LabelledArgument,
    classifier: ClassifierOption,
    ask: "AskOptions",
    output: "Output",
    views: Annotated[str, Help(help=VIEWS)] = "",
    calibrator: Annotated[
        str, Help(help="How votes become a probability: jury, probit, beta, isotonic, gaussian, transfer …")
    ] = "jury",
    noise: Annotated[
        Path | None, Help(help="For --calibrator transfer: the file that `looktwice noise` wrote.")
    ] = None,
    adaptive: Annotated[bool, Help(help=ADAPTIVE)] = False,
    max_error: Annotated[float | None, Help(help=DECIDING, min=0, max=1)] = None,
    out: Annotated[Path, Help("--out", "-o", help="Where to write the profile.")] = Path("profile.json"),
    votes: VotesOption = None,
    truths: TruthsOption = None,
    truths_column: TruthsColumnOption = "label",
    take: TakeOption = None,
) -> None:
    """Learn how far to trust a classifier from labelled pictures.

    [bold]Examples[/bold]

      looktwice fit photos/ -c onnx:model.onnx

      looktwice fit test.npz --take :1000 -c model.toml --views 'rotation:20*10' --calibrator probit
    """
    from looktwice.cli.fit import FitOptions, fit
    from looktwice.model import AsyncModel

    spare_inputs((out, votes), (pictures, truths, classifier, noise))
    labelled = find_labelled(pictures, truths, truths_column, take)
    options = FitOptions(views, calibrator, noise, adaptive, max_error, out, votes)
    _exit(fit(AsyncModel(classifier, options=ask), labelled, options, output))


@commands.command()
@asks_with_truths
@prints
def tune(
    pictures: LabelledArgument,
    classifier: ClassifierOption,
    ask: "AskOptions",
    output: "Output",
    max_queries: Annotated[int | None, Help(help=MAX_QUERIES, min=2)] = None,
    loss: Annotated[Literal["brier", "log-loss"], Help(help=LOSS)] = "log-loss",
    paper: Annotated[str | None, Help(help=PAPER)] = None,
    draws: Annotated[int, Help(help="With --paper: draws per picture.", min=1)] = 20,
    sizes: Annotated[list[int] | None, Help("--size", help=SIZES, min=1)] = None,
    out: Annotated[Path, Help("--out", "-o", help="Where to write the profile; the curve goes beside it.")] = Path(
        "profile.json"
    ),
    report: ReportOption = None,
    truths: TruthsOption = None,
    truths_column: TruthsColumnOption = "label",
    take: TakeOption = None,
) -> None:
    """Choose the views on a small pilot, then fit a profile.

    [bold]Examples[/bold]

      looktwice tune photos/ -c model.toml --dry-run

      looktwice tune photos/ -c model.toml --max-queries 5 --budget +20000

      looktwice tune photos/ -c model.toml --size 256 --size 512 --size 1024 --prices prices.toml

      looktwice tune photos/ -c model.toml --paper rotation --draws 20
    """
    from looktwice.cli import tune
    from looktwice.model import AsyncModel

    spare_inputs((out, report), (pictures, truths, classifier))
    labelled, model = find_labelled(pictures, truths, truths_column, take), AsyncModel(classifier, options=ask)
    if paper:
        _exit(tune.search(model, labelled, paper, draws, out, report, output))
    if sizes:
        _exit(tune.tune_sizes(model, labelled, sizes, max_queries, loss, out, output))
    _exit(tune.tune(model, labelled, max_queries, loss, out, report, output))


@commands.command()
def plan(
    max_error: Annotated[
        float, Help(help="Largest share of accepted answers that may be wrong, such as 0.02.", min=0, max=1)
    ],
    level: Annotated[float, Help(help="Certainty of the guarantee.", min=0, max=1)] = 0.95,
    profile: Annotated[Path | None, Help("--profile", "-p", help="Plan from the results of a first fit.")] = None,
    json: JsonOption = False,
) -> None:
    """Estimate how many labelled pictures a guarantee needs. Sends no queries.

    [bold]Examples[/bold]

      looktwice plan --max-error 0.02

      looktwice plan --max-error 0.02 --profile profile.json
    """

    from looktwice.cli.evaluate import plan

    plan(max_error, level, profile, json)


@commands.command()
@acts
@asks_with_truths
@prints
def evaluate(
    pictures: LabelledArgument,
    decide: "DecisionOptions",
    ask: "AskOptions",
    output: "Output",
    profile: ProfileOption = Path("profile.json"),
    classifier: OtherOption = None,
    votes: VotesOption = None,
    report: ReportOption = None,
    unlabelled: UnlabelledOption = None,
    truths: TruthsOption = None,
    truths_column: TruthsColumnOption = "label",
    take: TakeOption = None,
) -> None:
    """Evaluate a profile on other labelled pictures.

    [bold]Example[/bold]

      looktwice evaluate test.npz --take 1000: --profile profile.json --report report.html
    """

    from looktwice.cli.evaluate import evaluate
    from looktwice.model import AsyncModel

    spare_inputs((votes, report), (pictures, truths, classifier, profile, unlabelled))
    labelled = find_labelled(pictures, truths, truths_column, take)
    model = AsyncModel.load(profile, classifier, options=ask)
    _exit(evaluate(model, labelled, profile, votes, report, unlabelled, decide, output))


@commands.command()
@acts
@asks
@prints
def look(
    pictures: PicturesArgument,
    decide: "DecisionOptions",
    ask: "AskOptions",
    output: "Output",
    profile: ProfileOption = Path("profile.json"),
    classifier: OtherOption = None,
    burst: Annotated[
        bool, Help(help="The pictures show the same object, or are a video: give one verdict for all.")
    ] = False,
    frames: Annotated[int, Help(help="Frames to take from a video, evenly spaced.", min=2, max=64)] = 8,
) -> None:
    """Print the label and confidence of pictures, with an explanation.

    [bold]Examples[/bold]

      looktwice look cat.jpg --profile profile.json

      looktwice look --burst front.jpg left.jpg right.jpg

      looktwice look --burst turned.mp4 --frames 8
    """

    from looktwice.cli import look as looking
    from looktwice.model import AsyncModel

    model = AsyncModel.load(profile, classifier, options=ask)
    found = find_burst(model, pictures, frames) if burst else find_pictures(pictures)
    _exit((looking.burst if burst else looking.look)(model, found, profile, decide, output))


@commands.command()
@spreads
@acts
@asks
@prints
def score(
    pictures: Annotated[list[str], typer.Argument(help=ANYWHERE, show_default=False)],
    decide: "DecisionOptions",
    ask: "AskOptions",
    output: "Output",
    machines: "Machines | None",
    out: Annotated[
        str, Help("--out", "-o", help="Where to write the verdicts: .csv, .jsonl or .parquet; with Ray, a folder.")
    ],
    profile: ProfileOption = Path("profile.json"),
    classifier: OtherOption = None,
    take: TakeOption = None,
    verify: Annotated[bool, Help("--verify", help=VERIFY)] = False,
) -> None:
    """Write verdicts for whole folders to a file. After an interruption, run it again to resume.

    [bold]Examples[/bold]

      looktwice score photos/ -o verdicts.csv

      looktwice score photos/ -o verdicts.parquet --budget +10000 --dry-run

      looktwice score s3://bucket/photos -o s3://bucket/verdicts --engine ray --address auto
    """
    from looktwice.cli.look import Following, score
    from looktwice.cli.ray import score as score_on_machines

    if machines:
        _exit(score_on_machines(pictures, take, verify, profile, classifier, out, decide, machines, ask, output))

    from looktwice.model import AsyncModel

    spare_inputs((Path(out),), (*pictures, profile, classifier))
    found = find_pictures([Path(path) for path in pictures], take)
    following = Following(profile, pictures, Path(out))
    model = AsyncModel.load(profile, classifier, options=ask)
    _exit(score(model, found, Path(out), verify, decide, output, following))


@commands.command()
@acts
@serves
@asks
def serve(
    decide: "DecisionOptions",
    ask: "AskOptions",
    place: "Place",
    profile: ProfileOption = Path("profile.json"),
    classifier: OtherOption = None,
    tls_cert: Annotated[Path | None, Serve(help="TLS certificate, for HTTPS.")] = None,
    tls_key: Annotated[Path | None, Serve(help="Private key of the certificate.")] = None,
    looks: Annotated[
        int, Serve(help="Maximum number of pictures in progress at a time; others wait for their turn.", min=1)
    ] = 64,
    timeout: Annotated[float, Serve(help="Longest time that a client waits, in seconds.", min=0.1)] = 60.0,
    max_megabytes: Annotated[float, Serve(help="Maximum size of a request.", min=0.001)] = 16.0,
    max_megapixels: Annotated[float, Serve(help="Maximum size of a picture.", min=0.0001)] = 24.0,
    review: Annotated[
        Path | None, Serve(help="Folder in which to keep pictures that need review; see `looktwice review`.")
    ] = None,
    most_reviews: Annotated[int, Serve(help="Maximum number of pictures in that folder.", min=1)] = 1000,
    label_studio: Annotated[str | None, Serve(help=LABEL_STUDIO, metavar="ADDRESS")] = None,
) -> None:
    """Serve verdicts over HTTP, with a web page.

    [bold]Examples[/bold]

      looktwice serve --profile profile.json

      looktwice serve --host 0.0.0.0 --token-file tokens.txt --per-day 5000

      looktwice serve --label-studio http://localhost:8080 --port 9090
    """
    from looktwice import service

    limits = service.Limits(
        body=int(max_megabytes * 1e6),
        pixels=int(max_megapixels * 1e6),
        looks=looks,
        seconds=timeout,
        reviews=most_reviews,
    )
    place = replace(place, certificate=tls_cert, key=tls_key)
    service.run(profile, classifier, decide, ask, place, limits, review, label_studio)


@commands.command()
@serves
def review(
    verdicts: Annotated[Path, typer.Argument(help=REVIEWED, show_default=False)],
    place: "Place",
    pictures: Annotated[Path | None, typer.Argument(help="The folder that was scored, or its .npz file.")] = None,
    cost: Annotated[list[str] | None, Help(help=COST)] = None,
    out: Annotated[
        Path | None,
        Help("--out", "-o", help="Where to write corrections; by default corrections.csv beside the verdicts."),
    ] = None,
) -> None:
    """Accept or correct doubtful verdicts in the browser. fit and evaluate read the corrections.

    [bold]Examples[/bold]

      looktwice review verdicts.csv photos/

      looktwice review verdicts.csv photos/ --cost melanoma=20

      looktwice review kept-by-the-service/
    """
    from looktwice.cli.label import review

    review(verdicts, pictures, cost or (), out, place)


@commands.command()
@serves
def audit(
    verdicts: Annotated[Path, typer.Argument(help="Verdicts written by score.", show_default=False)],
    pictures: Annotated[Path, typer.Argument(help="The folder that was scored, or its .npz file.", show_default=False)],
    place: "Place",
    out: Annotated[
        Path | None, Help("--out", "-o", help="Where to write the labels; by default audit.csv beside the verdicts.")
    ] = None,
    seed: Annotated[int, Help(help="Seed for the choice of pictures.", min=0)] = 0,
) -> None:
    """Estimate how often accepted verdicts are wrong, from few labels.

    The page shows the most informative pictures first.

    [bold]Example[/bold]

      looktwice audit verdicts.csv photos/
    """
    from looktwice.cli.label import audit

    audit(verdicts, pictures, out, seed, place)


@commands.command()
@acts
def report(
    decide: "DecisionOptions",
    profile: ProfileOption = Path("profile.json"),
    votes: Annotated[Path | None, Help(help="Votes that fit or evaluate saved with --votes.")] = None,
    pictures: Annotated[
        Path | None, Help(help="The pictures of these votes, to show some of them in the report.")
    ] = None,
    noise: Annotated[Path | None, Help(help="The file that `looktwice noise` wrote for an open model.")] = None,
    ledger: Annotated[Path | None, Help(help="The ledger, to report what was spent.")] = None,
    price: Annotated[str | None, Help(help="Price of one query, if the ledger does not have it.")] = None,
    out: Annotated[Path, Help("--out", "-o", help="Where to write the report.")] = Path("report.html"),
) -> None:
    """Write a report about a profile and saved votes. Sends no queries.

    [bold]Examples[/bold]

      looktwice report

      looktwice report --votes votes.npz --pictures test.npz --max-error 0.05 -o report.html
    """

    from looktwice.cli.evaluate import report

    report(profile, votes, pictures, noise, ledger, price, decide, out)


@commands.command()
def export(
    verdicts: Annotated[Path, typer.Argument(help=REVIEWED, show_default=False)],
    pictures: Annotated[Path | None, typer.Argument(help="The folder that was scored, or its .npz file.")] = None,
    prefix: Annotated[str | None, Help(help=PREFIX, metavar="ADDRESS")] = None,
    doubtful: Annotated[
        bool, Help("--doubtful", help="Only verdicts that need review, least confident first.")
    ] = False,
    profile: Annotated[Path | None, Help("--profile", "-p", help="Offer every label that this profile knows.")] = None,
    out: Annotated[
        Path, Help("--out", "-o", help="Where to write the tasks; the project configuration goes beside it.")
    ] = Path("tasks.json"),
) -> None:
    """Export verdicts to Label Studio.

    They become predictions with their confidence.

    [bold]Examples[/bold]

      looktwice export verdicts.csv photos/ -o tasks.json

      looktwice export verdicts.csv --prefix http://localhost:9000/photos/ --doubtful
    """
    from looktwice.cli.label import ExportOptions, export

    export(verdicts, pictures, ExportOptions(prefix, doubtful, profile, out))


@commands.command("import")
def import_(
    result: Annotated[Path, typer.Argument(help="The JSON file that Label Studio exported.", show_default=False)],
    out: Annotated[
        Path, Help("--out", "-o", help="Where to write the labels; an existing file is never overwritten.")
    ] = Path("labels.csv"),
) -> None:
    """Import labels from Label Studio, as a labels.csv.

    [bold]Examples[/bold]

      looktwice import result.json -o labels.csv
    """
    from looktwice.cli.label import import_labels

    import_labels(result, out)


ledger_commands = typer.Typer(
    name="ledger",
    help="Show, export, verify, back up or forget the answers you paid for.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
)
commands.add_typer(ledger_commands)
BOOKS = "The ledger; by default that of the project if there is one, else the one in your data folder."
LedgerOption = Annotated[str | None, Help("--ledger", help=BOOKS)]


@ledger_commands.command("stats")
def ledger_stats(
    ledger: LedgerOption = None,
    by: Annotated[
        Literal["day", "classifier"] | None,
        Help(help="Group by this; by default by day and classifier."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Show queries and money by day and classifier."""
    from looktwice.cli.ledger import stats

    stats(ledger, by, json)


@ledger_commands.command("export")
def ledger_export(
    out: Annotated[Path, typer.Argument(help="A .csv, .jsonl or .parquet file.")],
    ledger: LedgerOption = None,
    pictures: Annotated[list[Path] | None, Help(help="Where the pictures are, to add their names.")] = None,
) -> None:
    """Write every answer as a row of a file."""

    from looktwice.cli.ledger import export

    export(ledger, out, find_pictures(pictures) if pictures else ())


@ledger_commands.command("verify")
def ledger_verify(ledger: LedgerOption = None, json: JsonOption = False) -> None:
    """Check that the file is intact and its counts add up; the exit code is 1 if not."""
    from looktwice.cli.ledger import verify

    raise typer.Exit(0 if verify(ledger, json) else 1)


FORGOTTEN = "The classifier as shown by stats: its fingerprint or description, or a prefix of one."


@ledger_commands.command("forget")
def ledger_forget(
    classifier: Annotated[str | None, typer.Argument(help=FORGOTTEN, show_default=False)] = None,
    pictures: Annotated[list[Path] | None, Help(help="Forget what was answered about these alone.")] = None,
    ledger: LedgerOption = None,
) -> None:
    """Delete the answers of one classifier, or about some pictures; what they cost stays counted."""
    from looktwice.cli.ledger import forget

    if classifier is None and not pictures:
        raise typer.BadParameter("name a classifier, or --pictures")
    forget(ledger, classifier, find_pictures(pictures) if pictures else None)


@ledger_commands.command("backup")
def ledger_backup(
    out: Annotated[Path, typer.Argument(help="Where to write the copy.")], ledger: LedgerOption = None
) -> None:
    """Copy a ledger as it is now, while others write; copying its file by hand may miss the last answers."""
    from looktwice.cli.ledger import backup

    backup(ledger, out)


@commands.command()
def prices() -> None:
    """Print a table of token prices for --prices. Compare it with your vendor's page first.

    [bold]Example[/bold]

      looktwice prices > prices.toml
    """
    from looktwice.classifiers.prices import example

    typer.echo(example(), nl=False)


@commands.command()
def trust(
    file: Annotated[Path, typer.Argument(help="A profile, or the .toml file of a classifier.", show_default=False)],
    yes: Annotated[bool, Help("--yes", "-y", help="Approve without asking.")] = False,
) -> None:
    """Approve the classifier that a file from somebody else names.

    Shows what it would run, which environment variables it reads and where pictures go. Until it is approved, nothing
    of it is run or sent. Profiles that you fit are approved by fit.

    [bold]Example[/bold]

      looktwice trust profile.json
    """
    from looktwice.cli.trust import trust

    trust(file, yes)


OpenOption = Annotated[str, Help("--open", help="The open model: model.onnx with model.toml beside it.")]
OpenViewsOption = Annotated[str, Help("--views", help="Random views to test, such as 'gaussian:0.05 rotation:20'.")]


@commands.command()
def noise(
    pictures: PicturesArgument,
    open_: OpenOption,
    views: OpenViewsOption = "",
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
    from looktwice.cli import open_model

    open_model.noise(find_pictures(pictures, take), open_, views, draws, seed, out, figures, json)


@commands.command()
@asks_with_truths
@prints
def transfer(
    open_: OpenOption,
    open_pictures: Annotated[list[Path], Help(help="Pictures for the open model; they need no labels.")],
    closed: Annotated[str, Help("--closed", "-c", help=CLASSIFIER)],
    pictures: Annotated[Path, Help(help=LABELLED)],
    ask: "AskOptions",
    output: "Output",
    views: OpenViewsOption = "",
    draws: Annotated[int, Help(help="Draws of each view per picture.", min=2)] = 10,
    out: Annotated[Path, Help("--out", "-o", help="Where to write the profile.")] = Path("profile.json"),
    truths: TruthsOption = None,
    truths_column: TruthsColumnOption = "label",
    take: TakeOption = None,
    open_take: Annotated[str | None, Help(help="Only some pictures for the open model, as a Python slice.")] = None,
) -> None:
    """Calibrate a closed model with what an open model teaches.

    [bold]Example[/bold]

      looktwice transfer --open model.onnx --open-pictures public/ --closed api.toml --pictures photos/
    """
    from looktwice.cli import open_model
    from looktwice.model import AsyncModel

    spare_inputs((out,), (*open_pictures, pictures, truths, closed, open_))
    opened = open_model.Opened(open_, find_pictures(open_pictures, open_take), views)
    labelled = find_labelled(pictures, truths, truths_column, take)
    _exit(open_model.transfer(opened, AsyncModel(closed, options=ask), labelled, draws, out, output))


@commands.command()
@asks_with_truths
@prints
def borrow(
    teacher: Annotated[Path, typer.Argument(help="The profile of a classifier like this one.", show_default=False)],
    classifier: ClassifierOption,
    ask: "AskOptions",
    output: "Output",
    pictures: Annotated[Path | None, Help(help=f"{LABELLED} Optional; fifty help.")] = None,
    out: Annotated[Path, Help("--out", "-o", help="Where to write the profile.")] = Path("profile.json"),
    truths: TruthsOption = None,
    truths_column: TruthsColumnOption = "label",
    take: TakeOption = None,
) -> None:
    """Make a profile from that of another classifier.

    [bold]Examples[/bold]

      looktwice fit public/ -c onnx:open.onnx -o open.json

      looktwice borrow open.json -c api.toml

      looktwice borrow open.json -c api.toml --pictures fifty/
    """
    from looktwice.cli import open_model
    from looktwice.model import AsyncModel

    spare_inputs((out,), (teacher, pictures, truths, classifier))
    labelled = find_labelled(pictures, truths, truths_column, take) if pictures else []
    _exit(open_model.borrow(teacher, AsyncModel(classifier, options=ask), labelled, out, output))


def main() -> None:
    """Run the command line; an expected error is one line and an exit code, never a traceback."""
    from looktwice.errors import LookTwiceError, UnscoredError

    _open_streams()
    command = typer.main.get_command(app)
    # Drawn with rich, the list of commands takes as long as all the rest of a start; each command's own help is drawn.
    command.rich_markup_mode = None  # type: ignore[attr-defined]
    try:
        try:
            command()
        finally:
            _flush_streams()
    except LookTwiceError as error:
        from looktwice.cli.console import exit_code, safe
        from looktwice.progress import say

        say(f"[red]error:[/red] {safe(str(error))}")
        sys.exit(exit_code(NOT_SCORED if isinstance(error, UnscoredError) else 1))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        from looktwice.progress import say

        _discard(sys.stdout)
        say("[red]error:[/red] no space is left where this is printed; free some and run the same command again")
        sys.exit(1)


def _flush_streams() -> None:
    """Print what waits to be printed; at the very end, Python would change the exit code if that failed."""
    try:
        sys.stderr.flush()
    except OSError:  # nobody is there to be told
        _discard(sys.stderr)
    try:
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads it has seen enough
        _discard(sys.stdout)


def _discard(stream: TextIO) -> None:
    """Let a stream that cannot be written to lead nowhere, or what waits in it fails again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _open_streams() -> None:
    """Let streams that were closed by whoever started this lead nowhere, so that no other file gets their numbers."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115


if __name__ == "__main__":
    main()
