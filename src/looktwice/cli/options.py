"""The options that commands share: how they are named and explained, and the values they become.

Modules that commands need are imported when one is called, so that `looktwice --help` is quick.
"""

from collections.abc import Callable, Sequence
from functools import partial, wraps
from inspect import Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from looktwice.errors import DataError

if TYPE_CHECKING:
    from looktwice.cli.console import Output
    from looktwice.cli.ray import Machines
    from looktwice.decisions.policy import DecisionOptions
    from looktwice.engine.options import AskOptions
    from looktwice.images.collection import Picture
    from looktwice.model import AsyncModel
    from looktwice.service import Place

Help = typer.Option
Ask = partial(typer.Option, rich_help_panel="Queries and cost")
Serve = partial(typer.Option, rich_help_panel="Server")
Act = partial(typer.Option, rich_help_panel="Decisions")
Fleet = partial(typer.Option, rich_help_panel="Many machines")
CLASSIFIER = "The classifier: onnx:model.onnx, python:module:function, https://…, or a .toml description."
LABELLED = "Labelled pictures: one folder per class, a folder with labels.csv, an .npz file, or a standard data set."
LEDGER = (
    "Where answers are stored: a path, postgresql://…, or off. By default with the project, else in your data folder."
)
ANYWHERE = "Pictures, folders or .npz files; on Ray also .parquet and .tar files, and s3:// or gs:// URLs."
BUDGET = "Maximum number of queries that this ledger may ever spend on the classifier; +500 means 500 more than now."
PRICES = "A table of token prices for chat models; `looktwice prices` prints one to start from."
BATCH = "Use the chat vendor's batch interface: cheaper, answered within a day; stopping early takes two rounds."
LABEL_CHECK = "Labelled pictures to query first, to stop if no label is among the true labels; 0 goes on regardless."
LONGEST_WAIT = "Longest wait in seconds that the classifier may ask for; beyond it the run stops and can be resumed."
VIEWS = (
    "The views to query, such as 'mirror zoom:1.15', or none for one query per picture; by default eight general ones."
)
SCORES = "Use the classifier's own scores and ranked lists where they help on held-out folds, or ignore them."
WORKING_SIZE = (
    "Scale larger pictures down to this many pixels on the longer side; by default to what the classifier can use."
)
TRUTHS = "A CSV file with the columns file and label, if it is not labels.csv beside the pictures."
TRUTHS_COLUMN = "The column of that CSV file that holds the true labels."

MAX_ERROR = "Accept answers of which at most this share is wrong, such as 0.02; the others need review."
WANTED = "The guarantee to label for: at most this share of accepted answers is wrong."
REVIEWED = "Verdicts written by score, or a folder filled by serve --review."
LABEL_STUDIO = (
    "Act as an ML backend of this Label Studio server and fetch pictures from it; its key: LABEL_STUDIO_API_KEY."
)
PREFIX = "URL prefix under which the tool finds the pictures; by default they are embedded in the tasks."
COST = "Cost of missing a label, such as melanoma=20; others cost 1. The most costly doubts come first."
ADAPTIVE = (
    "Learn 16 views, so that look --adaptive can spend more queries on uncertain pictures and fewer on the others. "
    "Worth it from about 200 wrong answers on."
)
DECIDING = "Let --adaptive stop once it is clear whether the answer is accepted at this error, not by the Brier score."
MAX_QUERIES = "Queries per picture, including the first; by default up to 9, fewer where more add little."
SIZES = "A size to try, in pixels on the longer side; repeat it for more. Smaller pictures may pay for more queries."
LOSS = "The loss that the chosen views minimise."
PAPER = "Search the settings of one transformation as in the paper: gaussian, elastic, rotation or affine."
VERIFY = "When resuming, compare every picture with the one its verdict is about, even if the file seems unchanged."
UNFAMILIAR = (
    "What to do with pictures unlike the labelled ones: treat them as any other, never accept them, or not query them."
)
UNLABELLED = "Verdicts that score wrote about other pictures: their confidences narrow the interval of the accuracy."
SKIP_UNFAMILIAR = "Do not query pictures unlike the labelled ones; short for --unfamiliar refuse."
FALSE_ALARMS = "Share of familiar pictures that may be taken for unfamiliar ones."
COVERAGE = "Prediction sets: list labels that include the truth this often, such as 0.95. Not the share accepted."
SETS = "How a set is built: larger for doubtful pictures, with fewer labels, without randomness, or by one threshold."

ClassifierOption = Annotated[str, Help("--classifier", "-c", help=CLASSIFIER)]
OtherOption = Annotated[
    str | None,
    Help("--classifier", "-c", help="The classifier, if the profile names another place or is not yours; see trust."),
]
ProfileOption = Annotated[Path, Help("--profile", "-p", help="The profile that fit wrote.")]
PicturesArgument = Annotated[
    list[Path],
    typer.Argument(help="Pictures, folders or .npz files.", show_default=False, readable=False),  # a bad one has a row
]
LabelledArgument = Annotated[Path, typer.Argument(help=LABELLED, show_default=False)]
TruthsOption = Annotated[Path | None, Help(help=TRUTHS)]
TruthsColumnOption = Annotated[str, Help(help=TRUTHS_COLUMN, metavar="NAME")]
TakeOption = Annotated[str | None, Help(help="Only some pictures, as a Python slice: :1000, 1000: or ::10.")]
VotesOption = Annotated[Path | None, Help("--votes", help="Save the votes to this .npz or .parquet file.")]
ReportOption = Annotated[Path | None, Help("--report", help="Write a report, such as report.html.")]
UnlabelledOption = Annotated[Path | None, Help("--unlabelled", help=UNLABELLED)]
JsonOption = Annotated[bool, Help("--json", help="Print JSON instead of text and tables.")]


def _asking(
    context: typer.Context,
    seed: Annotated[int | None, Ask(help="Seed for the random views; by default the profile's, or 0.", min=0)] = None,
    ledger: Annotated[str | None, Ask(help=LEDGER)] = None,
    budget: Annotated[str | None, Ask(help=BUDGET)] = None,
    money: Annotated[str | None, Ask(help="The same limit in money: 25, or +2.50.")] = None,
    price: Annotated[str | None, Ask(help="Price of one query, if the description does not say.")] = None,
    prices: Annotated[Path | None, Ask(help=PRICES)] = None,
    rate: Annotated[float | None, Ask(help="Maximum number of queries per second.", min=0.001)] = None,
    concurrency: Annotated[int | None, Ask(help="Maximum number of concurrent calls.", min=1)] = None,
    canaries: Annotated[
        int, Ask(help="Number of stored answers to query again, to detect a changed classifier.", min=0)
    ] = 3,
    per_day: Annotated[int | None, Ask(help="Maximum number of queries per UTC day.", min=0)] = None,
    money_per_day: Annotated[str | None, Ask(help="The same limit in money.")] = None,
    longest_wait: Annotated[float, Ask(help=LONGEST_WAIT, min=0)] = 900.0,
    scores: Annotated[Literal["use", "ignore"], Ask(help=SCORES)] = "use",
    working_size: Annotated[int | None, Ask(help=WORKING_SIZE, min=1)] = None,
    batch: Annotated[bool, Ask("--batch", help=BATCH)] = False,
    label_check: Annotated[int, Ask(help=LABEL_CHECK, min=0)] = 20,
) -> "AskOptions":
    from looktwice.engine.options import AskOptions

    out = Path(str(context.params.get("out") or "")).absolute()
    return AskOptions(
        ledger, budget, money, price, prices, rate, concurrency, canaries, seed, per_day, money_per_day, longest_wait,
        scores, working_size, batch, f"{context.info_name} {out}", label_check,
    )  # fmt: skip


def _output(
    dry_run: Annotated[
        bool, Ask("--dry-run", help="Print what would be queried and what it costs; send nothing.")
    ] = False,
    json_log: Annotated[bool, Ask("--json-log", help="Write progress to stderr as JSON lines.")] = False,
    json: JsonOption = False,
) -> "Output":
    from looktwice.cli.console import Output

    return Output(json, json_log, dry_run)


def _deciding(
    adaptive: Annotated[bool, Act(help="Stop querying a picture once further answers would hardly matter.")] = False,
    max_error: Annotated[float | None, Act(help=MAX_ERROR, min=0, max=1)] = None,
    level: Annotated[float, Act(help="Certainty of that guarantee.", min=0, max=1)] = 0.95,
    coverage: Annotated[float | None, Act(help=COVERAGE, min=0, max=1)] = None,
    sets: Annotated[Literal["adaptive", "regularised", "deterministic", "threshold"], Act(help=SETS)] = "adaptive",
    unfamiliar: Annotated[Literal["accept", "review", "refuse"], Act(help=UNFAMILIAR)] = "review",
    skip_unfamiliar: Annotated[bool, Act("--skip-unfamiliar", help=SKIP_UNFAMILIAR)] = False,
    false_alarms: Annotated[float, Act(help=FALSE_ALARMS, min=0, max=1)] = 0.01,
) -> "DecisionOptions":
    from looktwice.decisions.policy import DecisionOptions

    if skip_unfamiliar and unfamiliar == "accept":
        raise typer.BadParameter("it contradicts --unfamiliar accept; give one of them", param_hint="--skip-unfamiliar")
    unfamiliar = "refuse" if skip_unfamiliar else unfamiliar
    return DecisionOptions(adaptive, max_error, level, coverage, sets, unfamiliar, false_alarms)


def _place(
    host: Annotated[str, Serve(help="Address to bind to; one that others can reach needs a token.")] = "127.0.0.1",
    port: Annotated[int, Serve(help="Port to bind to; 0 picks a free one.", min=0, max=65535)] = 8000,
    token_file: Annotated[
        Path | None, Serve(help="File of SHA-256 hashes of the tokens that are let in, one per line.")
    ] = None,
    allow_host: Annotated[
        list[str] | None, Serve(help="A host name under which the service is reached; may be repeated.")
    ] = None,
) -> "Place":
    from looktwice.service import Place

    return Place(host, port, token_file, tuple(allow_host or ()))


def _machines(
    engine: Annotated[Literal["here", "ray"], Fleet(help="Score in this process, or on Ray.")] = "here",
    address: Annotated[str | None, Fleet(help="Address of a Ray cluster; auto finds that of this machine.")] = None,
    workers: Annotated[int | None, Fleet(help="Number of workers; by default one per processor.", min=1)] = None,
    shard: Annotated[int, Fleet(help="Approximate number of pictures per result file.", min=1)] = 1000,
    max_bad: Annotated[str | None, Fleet(help="Stop when more pictures than this are unreadable: 20, or 1%.")] = None,
) -> "Machines | None":
    if engine == "here":
        return None
    from looktwice.cli.ray import Machines

    return Machines(address, workers, shard, max_bad)


def gathers(
    name: str, gather: Callable[..., object], without: Sequence[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Adds the options of `gather`, `without` some, to a command, which they reach as its one argument `name`."""
    shared = {option: p for option, p in signature(gather).parameters.items() if option not in without}

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


asks = gathers("ask", _asking, without=("label_check",))
asks_with_truths = gathers("ask", _asking)
prints = gathers("output", _output)
acts = gathers("decide", _deciding)
serves = gathers("place", _place)
spreads = gathers("machines", _machines)


# Pictures, truths and places for results -----------------------------------------------------------------------------


def find_pictures(paths: Sequence[Path], take: str | None = None) -> "Sequence[Picture]":
    """Pictures, wherever they are."""
    from looktwice.images.collection import find

    return _slice(find(paths), take)


def find_labelled(path: Path, truths: Path | None, column: str, take: str | None) -> "Sequence[Picture]":
    """Pictures with their truths."""
    from looktwice.images.datasets import open_labelled

    return _slice(open_labelled(path, truths, column=column), take)


def find_burst(model: "AsyncModel", paths: Sequence[Path], frames: int) -> "Sequence[Picture]":
    """Photos of one thing, or frames of a video."""
    from looktwice.images.video import is_video_file

    return model.frames(paths[0], frames) if len(paths) == 1 and is_video_file(paths[0]) else find_pictures(paths)


def _slice(pictures: "Sequence[Picture]", take: str | None) -> "Sequence[Picture]":
    if take is None:
        return pictures
    try:
        chosen = pictures[slice(*(int(part) if part else None for part in take.split(":")))]
    except (ValueError, TypeError):
        raise DataError(f"--take {take!r} is not a slice; write :1000, 1000: or 500:700") from None
    if not chosen:
        raise DataError(f"--take {take!r} leaves none of {len(pictures)} pictures")
    return chosen


def check_places(profile: Path | None, votes: Path | None = None, report: Path | None = None) -> None:
    """Refuse places for results that cannot be written, before anything is asked."""
    from looktwice.calibration.votes import ENDINGS
    from looktwice.files import check_writable
    from looktwice.report import ENDINGS as REPORTS

    for path, endings in ((profile, ()), (votes, ENDINGS), (report, REPORTS)):
        if path:
            check_writable(path, endings)


def spare_inputs(outputs: Sequence[Path | None], inputs: Sequence[Path | str | None]) -> None:
    """Refuse to write a result over what the same command reads."""
    for out in filter(None, outputs):
        for path in (Path(given) for given in inputs if given):
            if out.is_file() and path.is_file() and out.samefile(path):
                raise DataError(f"{str(out)!r} is read by this command, and its result would replace it; name another")
