"""Shared options of commands, generated from `AskOptions` and `DecisionOptions`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial, wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, get_args, get_origin, get_type_hints

import typer

from looktwice.cli.console import Ask, Output
from looktwice.model import (
    ANY,
    BOUNDS,
    VOTES,
    AskOptions,
    Connected,
    DataError,
    DecisionOptions,
    Picture,
    Project,
    files,
    find,
    named,
    open_all_labelled,
)
from looktwice.service import Place

Help = typer.Option
Serve = partial(typer.Option, rich_help_panel="Server")
Act = partial(typer.Option, rich_help_panel="Decisions")
Fleet = partial(typer.Option, rich_help_panel="Many machines")
CLASSIFIER = "The classifier: onnx:model.onnx, python:module:function, https://…, or a .toml description."
LABELLED = "Labelled pictures: one folder per class, a folder with labels.csv, an .npz file, or a standard data set."
VIEWS = "The views to query, such as 'mirror zoom:1.15'; by default eight general ones."
HELP = {
    "ledger": "Where answers are stored: a path, postgresql://…, or off. By default LOOKTWICE_LEDGER, else with "
    "the project, else in your data folder.",
    "budget": "Maximum number of queries that this ledger may ever spend on the classifier; +500 means 500 more than "
    "now.",
    "money": "Maximum amount of money that this ledger may ever spend on the classifier: 25; +2.50 means 2.50 more "
    "than now.",
    "price": "Price of one query, if the description does not state it.",
    "prices": "A table of token prices for chat models; `looktwice prices` prints a template.",
    "rate": "Maximum number of queries per second.",
    "concurrency": "Maximum number of concurrent calls.",
    "canaries": "Number of stored answers to query again, to detect a changed classifier.",
    "seed": "Seed for the random views; by default the profile's, or 0.",
    "per_day": "Maximum number of queries per UTC day.",
    "money_per_day": "Maximum amount of money per UTC day.",
    "longest_wait": "Longest wait in seconds that the classifier may ask for; if it asks for more, the run stops and "
    "can be resumed.",
    "scores": "Use the classifier's own scores and ranked lists where they help on held-out folds, or ignore them.",
    "working_size": "Scale larger pictures down to this many pixels on the longer side; by default to what the "
    "classifier can use.",
    "batch": "Use the chat vendor's batch interface, which is cheaper and answers within a day; stopping early takes "
    "two rounds.",
    "label_check": "Number of labelled pictures to query first; the run stops if no answer is among the true "
    "labels. 0 turns this check off.",
    "all": "Send all queries about each picture, even if further answers would have little effect.",
    "max_price": "Maximum average price per picture, reached by stopping earlier.",
    "max_queries": "Maximum average number of queries per picture, reached by stopping earlier.",
    "max_error": "Accept answers of which at most this share is wrong, such as 0.02, or unsafe=0.01 for the answer "
    "unsafe; the others need review. May be repeated.",
    "max_miss": "Accept at most this share of a class as another class: unsafe=0.02. May be repeated.",
    "level": "Certainty that all these guarantees hold.",
    "accept": "Accept based on a guarantee, or on the best estimate, which is not a guarantee.",
    "coverage": "Prediction sets: list labels that include the true one for at least this share of the "
    "pictures, such as 0.95; this is not the share accepted.",
    "sets": "How a prediction set is built: larger for doubtful pictures, with fewer labels, without randomness, or by "
    "one threshold.",
    "unfamiliar": "What to do with pictures unlike the labelled ones: treat them like any other, never accept them, or "
    "not query them.",
    "false_alarms": "Share of familiar pictures that may be flagged as unfamiliar.",
    "on_drift": "What to do once the pictures have changed: hold all further verdicts for review, or accept as before.",
}
"""The help text of each field."""

ClassifiersOption = Annotated[
    list[str],
    Help(
        "--classifier",
        "-c",
        help=f"{CLASSIFIER} Repeatable; by default those of the project.",
        default_factory=list,
        show_default=False,
    ),
]
OtherOption = Annotated[
    list[str],
    Help(
        "--classifier",
        "-c",
        help="The classifier, if it has moved since the fit or if the profile is not yours; see trust. Repeatable.",
        default_factory=list,
        show_default=False,
    ),
]
_PROFILE = partial(typer.Option, default_factory=lambda: Project.here().profile_path(), show_default="profile.json")
ProfileOption = Annotated[Path, _PROFILE("--profile", "-p", help="The profile written by fit.")]
NewProfileOption = Annotated[Path, _PROFILE("--out", "-o", help="Where to write the profile.")]
PicturesArgument = Annotated[
    list[Path],
    typer.Argument(help="Pictures, folders or .npz files.", show_default=False, readable=False),  # a bad one has a row
]
LabelledArgument = Annotated[list[Path], typer.Argument(help=f"{LABELLED} Repeatable.", show_default=False)]
TakeOption = Annotated[str | None, Help(help="Only some pictures, as a Python slice: :1000, 1000: or ::10.")]
VotesOption = Annotated[Path | None, Help("--votes", help="Save the votes to this .npz or .parquet file.")]
ReportOption = Annotated[Path | None, Help("--report", help="Write a report, such as report.html.")]

Command = Callable[..., None]


def gathers(
    name: str, make: Callable[..., object], parameters: Iterable[Parameter] = ()
) -> Callable[[Command], Command]:
    """Decorator that adds parameters to a command, by default the parameters of `make`; the result of `make` is passed
    to the command as `name`."""
    shared = list(parameters) or list(signature(make, eval_str=True).parameters.values())

    def decorate(command: Command) -> Command:
        own = [p for p in signature(command, eval_str=True).parameters.values() if p.name != name]

        @wraps(command, assigned=("__name__", "__doc__"))
        def gathered(**given: object) -> None:
            value = make(**{option.name: given.pop(option.name) for option in shared})
            command(**given, **{name: value})

        keyword = [p.replace(kind=p.KEYWORD_ONLY) for p in (*own, *shared)]
        gathered.__signature__ = Signature(keyword)  # type: ignore[attr-defined]
        gathered.__annotations__ = {p.name: p.annotation for p in keyword}
        return gathered

    return decorate


def from_fields(options: type, option: Callable[..., object], without: Sequence[str] = ()) -> list[Parameter]:
    """A parameter for each field of an options class, with its type, default and bounds; union types become strings."""
    hints, parameters = get_type_hints(options), []
    for field in fields(options):
        name, kind = field.name, hints[field.name]
        if name not in without:
            if any(get_origin(part) is Mapping for part in get_args(kind)):
                kind = list[str] | None
            kind = str | None if str in get_args(kind) else kind
            names = [f"--{name.replace('_', '-')}"] if kind is bool else []
            least, most = BOUNDS.get(name, (None, None))
            annotation = Annotated[kind, option(*names, help=HELP[name], min=least, max=most)]  # type: ignore[valid-type]
            parameters.append(Parameter(name, Parameter.KEYWORD_ONLY, default=field.default, annotation=annotation))
    return parameters


def _ask(context: typer.Context, **given: object) -> AskOptions:
    """Set the scope of a relative budget to this command and its output, so that a rerun continues the same budget."""
    out = Path(str(context.params.get("out") or "")).absolute()
    return AskOptions(**given, scope=f"{context.info_name} {out}").or_project()  # type: ignore[arg-type]


def numbers_by_label(option: str, given: Sequence[str] | None) -> dict[str, float] | None:
    """Parse numbers by label; a number without a label applies to all other labels.

    >>> numbers_by_label("--max-error", ["0.05", "unsafe=0.01"])
    {'*': 0.05, 'unsafe': 0.01}
    """
    numbers: dict[str, float] = {}
    for text in given or ():
        label, _, value = text.rpartition("=")
        try:
            numbers[label or ANY] = float(value)
        except ValueError:
            raise typer.BadParameter(
                f"{text!r} is not a number; write for example 0.05, or LABEL=0.01", param_hint=option
            ) from None
    return numbers or None


def _decide(max_error: list[str] | None, max_miss: list[str] | None, **given: object) -> DecisionOptions:
    errors = numbers_by_label("--max-error", max_error)
    given["max_error"] = errors[ANY] if errors and set(errors) == {ANY} else errors
    return DecisionOptions(max_miss=numbers_by_label("--max-miss", max_miss), **given)  # type: ignore[arg-type]


def _place(
    host: Annotated[str, Serve(help="Address to bind to; a token is required if others can reach it.")] = "127.0.0.1",
    port: Annotated[int, Serve(help="Port; 0 picks a free one.", min=0, max=65535)] = 8000,
    token_file: Annotated[
        Path | None, Serve(help="File with the SHA-256 hashes of accepted tokens, one per line.")
    ] = None,
    new_token: Annotated[
        bool,
        Serve("--new-token", help="Create a token, print a link with it once, and add its SHA-256 to the token file."),
    ] = False,
    allow_host: Annotated[list[str] | None, Serve(help="A host name of the service; may be repeated.")] = None,
) -> Place:
    return Place(host, port, token_file, new_token, tuple(allow_host or ()))


@dataclass(frozen=True)
class Truths:
    """Options for the source of true labels and the selection of pictures."""

    truths: Annotated[
        Path | None,
        Help(help="A CSV file with the columns file and label, if not labels.csv beside the pictures."),
    ] = None
    truths_column: Annotated[str, Help(help="The column of the CSV file with the true labels.", metavar="NAME")] = (
        "label"
    )
    take: TakeOption = None

    def open(self, *pictures: Path) -> Sequence[Picture]:
        """The pictures with their true labels."""
        return sliced(open_all_labelled(pictures, self.truths, self.truths_column), self.take)


_CONTEXT = Parameter("context", Parameter.KEYWORD_ONLY, annotation=typer.Context)
_ASK = from_fields(AskOptions, Ask, without=("scope", "label_check"))
_LABEL_CHECK = from_fields(AskOptions, Ask, without=[p.name for p in _ASK] + ["scope"])
asks = gathers("ask", _ask, [_CONTEXT, *_ASK])
asks_with_truths = gathers("ask", _ask, [_CONTEXT, *_ASK, *_LABEL_CHECK])
decides = gathers("decide", _decide, from_fields(DecisionOptions, Act))
prints = gathers("output", Output)
serves = gathers("place", _place)
labels = gathers("truths", Truths)


def others(classifier: Sequence[str]) -> list[Connected] | None:
    """The classifiers that replace a profile's classifiers; None if the user specified none."""
    return named(classifier) if classifier else None


# Pictures and places for results -------------------------------------------------------------------------------------


def find_pictures(paths: Sequence[Path], take: str | None = None) -> Sequence[Picture]:
    """Open pictures from paths."""
    return sliced(find(paths), take)


def sliced(pictures: Sequence[Picture], take: str | None) -> Sequence[Picture]:
    """Select pictures by a Python slice."""
    if take is None:
        return pictures
    try:
        chosen = pictures[slice(*(int(part) if part else None for part in take.split(":")))]
    except (ValueError, TypeError):
        raise DataError(
            f"--take {take!r} is not a slice; write :1000, 1000: or 500:700", code="option-invalid"
        ) from None
    if not chosen:
        raise DataError(f"--take {take!r} selects none of {len(pictures)} pictures", code="pictures-none")
    return chosen


def check_outputs(
    inputs: Sequence[Path | str | None],
    profile: Path | None = None,
    votes: Path | None = None,
    report: Path | None = None,
) -> None:
    """Check, before any query, that results can be written and do not replace inputs."""
    from looktwice.report import ENDINGS

    for out, endings in ((profile, ()), (votes, VOTES), (report, ENDINGS)):
        if out:
            check_unread(out, inputs)
            files.check_writable(out, endings)


def check_unread(out: Path, inputs: Sequence[Path | str | None]) -> None:
    """Raise an error if a result would replace an input."""
    for path in (Path(given) for given in inputs if given):
        if out.is_file() and path.is_file() and out.samefile(path):
            raise DataError(
                f"{str(out)!r} is an input of this command and would be replaced by its result; specify another file",
                code="file-exists",
            )
