"""The options that commands share: how they are named and explained, and the values they become."""

from collections.abc import Callable
from functools import partial, wraps
from inspect import Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from looktwice.asking.session import AskOptions
    from looktwice.cli.console import Output
    from looktwice.cli.fleet import Machines
    from looktwice.service import Place
    from looktwice.verdicts.policy import DecisionOptions

Help = typer.Option
Ask = partial(typer.Option, rich_help_panel="Asking")
Serve = partial(typer.Option, rich_help_panel="Serving")
Act = partial(typer.Option, rich_help_panel="Acting on it")
Fleet = partial(typer.Option, rich_help_panel="Many machines")
CLASSIFIER = "The classifier: onnx:model.onnx, python:module:function, https://…, or a .toml description."
LABELLED = "Labelled pictures: one folder a class, a folder with labels.csv, an .npz, or an official data set."
LEDGER = "Where answers are kept: a path, postgresql://…, or off. By default with the project, or with your data."
ANYWHERE = "Pictures, folders or .npz files; on Ray also .parquet and .tar files, and s3:// or gs:// addresses."
BUDGET = "Most queries that this ledger may ever spend on the classifier; +500 means 500 more than now."
PRICES = "A table of prices by the token, for chat models; `looktwice prices` prints one to start from."
BATCH = "Ask a chat model in its vendor's batches: within a day, at a lower price; stopping early takes two rounds."
LONGEST_WAIT = "Seconds of the longest wait that the classifier may ask for; beyond it the run stops, saved."
VIEWS = "The views to ask, such as 'mirror zoom:1.15', or none for one query a picture; by default eight general ones."
SCORES = "Use the classifier's own scores and ranked lists where they help on held-out folds, or ignore them."
WORKING_SIZE = (
    "Scale larger pictures down to so many pixels of the longer side; by default what the classifier can use."
)
TRUTHS = "A CSV with the columns file and label, if it is not labels.csv among the pictures."
TRUTHS_COLUMN = "The column of that CSV that holds the truths."

MAX_ERROR = "Accept answers that are wrong at most this often, such as 0.02; the others are for review."
WANTED = "The guarantee that the labels are to back: accepted answers are wrong at most this often."
REVIEWED = "Verdicts that score wrote, or a folder that serve --review filled."
LABEL_STUDIO = "Be an ML backend for this Label Studio, and fetch pictures from it; its key: LABEL_STUDIO_API_KEY."
PREFIX = "Where the tool finds the pictures, up to their names; by default they are embedded in the tasks."
COST = "What missing a label costs, such as melanoma=20; others cost 1. The dearest doubts come first."
ADAPTIVE = "Learn 16 views, so that look --adaptive can ask more about unsure pictures and fewer about the others."
DECIDING = "Let --adaptive stop by whether an answer would still be accepted at this error, not by the Brier score."
MAX_QUERIES = "Queries a picture, the first one included; by default up to 9, and fewer where more add little."
SIZES = (
    "A size to try, in pixels of the longer side, for each time it is given: smaller pictures may pay for more looks."
)
LOSS = "What the views are chosen to lower."
PAPER = "Search as the paper does: the settings of one transformation, gaussian, elastic, rotation or affine."
VERIFY = "When going on, compare every picture with the one its verdict is about, also if its file seems unchanged."
UNFAMILIAR = (
    "What becomes of pictures unlike the labelled ones: judged as any other, never accepted, or not asked about."
)
UNLABELLED = "Verdicts that score wrote about other pictures: their confidences narrow the interval of the accuracy."
SKIP_UNFAMILIAR = "Ask nothing about pictures unlike the labelled ones; short for --unfamiliar refuse."
FALSE_ALARMS = "How often a picture that is like the labelled ones may be taken for an unfamiliar one."
COVERAGE = "Prediction sets: name the labels that hold the truth this often, such as 0.95. Not the share accepted."
SETS = "How such a set is chosen: larger for doubtful pictures, with fewer labels, without a draw, or by one threshold."

ClassifierOption = Annotated[str, Help("--classifier", "-c", help=CLASSIFIER)]
OtherOption = Annotated[str | None, Help("--classifier", "-c", help="The classifier, if it moved since the profile.")]
ProfileOption = Annotated[Path, Help("--profile", "-p", help="What fit learned about the classifier.")]
PicturesArgument = Annotated[list[Path], typer.Argument(help="Pictures, folders or .npz files.", show_default=False)]
LabelledArgument = Annotated[Path, typer.Argument(help=LABELLED, show_default=False)]
TruthsOption = Annotated[Path | None, Help(help=TRUTHS)]
TruthsColumnOption = Annotated[str, Help(help=TRUTHS_COLUMN, metavar="NAME")]
TakeOption = Annotated[str | None, Help(help="Only some pictures, as a Python slice: :1000 or 1000: or ::10.")]
VotesOption = Annotated[Path | None, Help("--votes", help="Keep the votes in this .npz or .parquet file.")]
ReportOption = Annotated[Path | None, Help("--report", help="Write a page for people, such as report.html.")]
UnlabelledOption = Annotated[Path | None, Help("--unlabelled", help=UNLABELLED)]
JsonOption = Annotated[bool, Help("--json", help="Print JSON for machines instead of words and tables.")]


def _asking(
    context: typer.Context,
    seed: Annotated[int | None, Ask(help="Seed of the random views; the profile's, or 0.", min=0)] = None,
    ledger: Annotated[str | None, Ask(help=LEDGER)] = None,
    budget: Annotated[str | None, Ask(help=BUDGET)] = None,
    money: Annotated[str | None, Ask(help="The same in money: 25, or +2.50.")] = None,
    price: Annotated[str | None, Ask(help="What one query costs, if the description does not say.")] = None,
    prices: Annotated[Path | None, Ask(help=PRICES)] = None,
    rate: Annotated[float | None, Ask(help="Most questions a second.", min=0.001)] = None,
    concurrency: Annotated[int | None, Ask(help="Most calls at the same time.", min=1)] = None,
    canaries: Annotated[int, Ask(help="Stored answers to ask for again, to see if the classifier changed.", min=0)] = 3,
    per_day: Annotated[int | None, Ask(help="Most queries in one UTC day.", min=0)] = None,
    money_per_day: Annotated[str | None, Ask(help="The same in money.")] = None,
    longest_wait: Annotated[float, Ask(help=LONGEST_WAIT, min=0)] = 900.0,
    scores: Annotated[Literal["use", "ignore"], Ask(help=SCORES)] = "use",
    working_size: Annotated[int | None, Ask(help=WORKING_SIZE, min=1)] = None,
    batch: Annotated[bool, Ask("--batch", help=BATCH)] = False,
) -> "AskOptions":
    from looktwice.asking.session import AskOptions

    return AskOptions(
        ledger, budget, money, price, prices, rate, concurrency, canaries, seed, per_day, money_per_day, longest_wait,
        scores, working_size, batch, command=str(context.info_name),
    )  # fmt: skip


def _output(
    dry_run: Annotated[bool, Ask("--dry-run", help="Say what would be asked and what it costs; ask nothing.")] = False,
    json_log: Annotated[bool, Ask("--json-log", help="Progress as JSON lines on the error stream.")] = False,
    json: JsonOption = False,
) -> "Output":
    from looktwice.cli.console import Output

    return Output(json, json_log, dry_run)


def _deciding(
    adaptive: Annotated[
        bool, Act(help="Stop asking about a picture once further answers would hardly matter.")
    ] = False,
    max_error: Annotated[float | None, Act(help=MAX_ERROR, min=0, max=1)] = None,
    level: Annotated[float, Act(help="How certain that guarantee is.", min=0, max=1)] = 0.95,
    coverage: Annotated[float | None, Act(help=COVERAGE, min=0, max=1)] = None,
    sets: Annotated[Literal["adaptive", "regularised", "deterministic", "threshold"], Act(help=SETS)] = "adaptive",
    unfamiliar: Annotated[Literal["accept", "review", "refuse"], Act(help=UNFAMILIAR)] = "review",
    skip_unfamiliar: Annotated[bool, Act("--skip-unfamiliar", help=SKIP_UNFAMILIAR)] = False,
    false_alarms: Annotated[float, Act(help=FALSE_ALARMS, min=0, max=1)] = 0.01,
) -> "DecisionOptions":
    from looktwice.verdicts.policy import DecisionOptions

    if skip_unfamiliar and unfamiliar == "accept":
        raise typer.BadParameter("it contradicts --unfamiliar accept; give one of them", param_hint="--skip-unfamiliar")
    unfamiliar = "refuse" if skip_unfamiliar else unfamiliar
    return DecisionOptions(adaptive, max_error, level, coverage, sets, unfamiliar, false_alarms)


def _place(
    host: Annotated[str, Serve(help="Address to serve at; one that others can reach needs a token.")] = "127.0.0.1",
    port: Annotated[int, Serve(help="Port to serve at; 0 takes a free one.", min=0, max=65535)] = 8000,
    token_file: Annotated[Path | None, Serve(help="SHA-256 hashes of tokens that let clients in, one a line.")] = None,
    allow_host: Annotated[list[str] | None, Serve(help="A host name under which it is reached.")] = None,
) -> "Place":
    from looktwice.service import Place

    return Place(host, port, token_file, tuple(allow_host or ()))


def _machines(
    engine: Annotated[Literal["here", "ray"], Fleet(help="Score in this process, or on Ray.")] = "here",
    address: Annotated[str | None, Fleet(help="A Ray cluster; auto is the one of this machine.")] = None,
    workers: Annotated[int | None, Fleet(help="Workers; one a processor if left out.", min=1)] = None,
    shard: Annotated[int, Fleet(help="Pictures in one file of the result, about.", min=1)] = 1000,
    max_bad: Annotated[str | None, Fleet(help="Stop when more pictures are unreadable: 20, or 1%.")] = None,
) -> "Machines | None":
    if engine == "here":
        return None
    from looktwice.cli.fleet import Machines

    return Machines(address, workers, shard, max_bad)


def gathers(name: str, gather: Callable[..., object]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Adds the options of `gather` to a command, which they reach as its one argument `name`."""
    shared = signature(gather).parameters

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = [p for p in signature(command).parameters.values() if p.name != name]

        @wraps(command, assigned=("__name__", "__doc__"))
        def gathered(**given: object) -> None:
            value = gather(**{option: given.pop(option) for option in shared})
            command(**given, **{name: value})

        keyword = [p.replace(kind=p.KEYWORD_ONLY) for p in (*own, *shared.values())]
        gathered.__signature__ = Signature(keyword)  # type: ignore[attr-defined]
        gathered.__annotations__ = {p.name: p.annotation for p in keyword}
        return gathered

    return decorate


asks = gathers("ask", _asking)
prints = gathers("output", _output)
acts = gathers("decide", _deciding)
serves = gathers("place", _place)
spreads = gathers("machines", _machines)
