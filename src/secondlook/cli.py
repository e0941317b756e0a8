"""The command line: parse, one call, print.

Nothing heavy is imported here, so that `secondlook --help` answers at once; each command imports what it needs.
"""

import sys
from collections.abc import Callable
from functools import partial, wraps
from inspect import Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from secondlook import __version__

if TYPE_CHECKING:
    from secondlook.fleetruns import Machines
    from secondlook.practice import Use
    from secondlook.session import Wishes

NOT_SCORED = 3
"""The exit code when some pictures have no confidence: bad files, failures, or the budget ended."""
INTERRUPTED = 130


app = typer.Typer(
    name="secondlook",
    help="Calibrated confidence for image classifiers that return nothing but a label.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)

Help = typer.Option
Ask = partial(typer.Option, rich_help_panel="Asking")
Serve = partial(typer.Option, rich_help_panel="Serving")
Act = partial(typer.Option, rich_help_panel="Acting on it")
Fleet = partial(typer.Option, rich_help_panel="Many machines")
_CLASSIFIER = "The classifier: onnx:model.onnx, python:module:function, https://…, or a .toml description."
_LABELLED = "Labelled pictures: one folder a class, a folder with labels.csv, an .npz, or an official data set."
_LEDGER = (
    "Where answers are kept: a path, postgresql://…, or off. In your data folder by default; off for local models."
)
_ANYWHERE = "Pictures, folders or .npz files; on Ray also .parquet and .tar files, and s3:// or gs:// addresses."
_BUDGET = "Most queries that this ledger may ever spend on the classifier; +500 means 500 more than now."
_TRUTHS = "A CSV with the columns file and label, if it is not labels.csv among the pictures."

_MAX_ERROR = "Accept answers that are wrong at most this often, such as 0.02; the others are for review."
_ADAPTIVE = "Learn 16 views, so that look --adaptive can ask more about unsure pictures and fewer about the others."
_DECIDING = "Let --adaptive stop by whether an answer would still be accepted at this error, not by the Brier score."
_MAX_QUERIES = "Queries a picture, the first one included; by default up to 9, and fewer where more add little."
_PAPER = "Search as the paper does: the settings of one transformation, gaussian, elastic, rotation or affine."
_COVERAGE = "Name the labels of a picture that hold the truth this often, such as 0.95."

ClassifierOption = Annotated[str, Help("--classifier", "-c", help=_CLASSIFIER)]
OtherOption = Annotated[str | None, Help("--classifier", "-c", help="The classifier, if it moved since the profile.")]
ProfileOption = Annotated[Path, Help("--profile", "-p", help="What fit learned about the classifier.")]
PicturesArgument = Annotated[list[Path], typer.Argument(help="Pictures, folders or .npz files.", show_default=False)]
LabelledArgument = Annotated[Path, typer.Argument(help=_LABELLED, show_default=False)]
TruthsOption = Annotated[Path | None, Help(help=_TRUTHS)]
TakeOption = Annotated[str | None, Help(help="Only some pictures, as a Python slice: :1000 or 1000: or ::10.")]
VotesOption = Annotated[Path | None, Help("--votes", help="Keep the votes in this .npz or .parquet file.")]
ReportOption = Annotated[Path | None, Help("--report", help="Write a page for people, such as report.html.")]
JsonOption = Annotated[bool, Help("--json", help="Print JSON for machines instead of words and tables.")]


def _wishes(
    seed: Annotated[int, Ask(help="Seed of the random views.", min=0)] = 0,
    ledger: Annotated[str | None, Ask(help=_LEDGER)] = None,
    budget: Annotated[str | None, Ask(help=_BUDGET)] = None,
    money: Annotated[str | None, Ask(help="The same in money: 25, or +2.50.")] = None,
    price: Annotated[str | None, Ask(help="What one query costs, if the description does not say.")] = None,
    rate: Annotated[float | None, Ask(help="Most questions a second.", min=0.001)] = None,
    concurrency: Annotated[int | None, Ask(help="Most calls at the same time.", min=1)] = None,
    canaries: Annotated[int, Ask(help="Stored answers to ask for again, to see if the classifier changed.", min=0)] = 3,
    dry_run: Annotated[bool, Ask("--dry-run", help="Say what would be asked and what it costs; ask nothing.")] = False,
    json_log: Annotated[bool, Ask("--json-log", help="Progress as JSON lines on the error stream.")] = False,
) -> "Wishes":
    from secondlook.session import Wishes

    return Wishes(seed, ledger, budget, money, price, rate, concurrency, canaries, dry_run, json_log)


def _use(
    adaptive: Annotated[
        bool, Act(help="Stop asking about a picture once further answers would hardly matter.")
    ] = False,
    max_error: Annotated[float | None, Act(help=_MAX_ERROR, min=0, max=1)] = None,
    level: Annotated[float, Act(help="How certain that promise is.", min=0, max=1)] = 0.95,
    coverage: Annotated[float | None, Act(help=_COVERAGE, min=0, max=1)] = None,
) -> "Use":
    from secondlook.practice import Use

    return Use(adaptive, max_error, level, coverage)


def _machines(
    engine: Annotated[Literal["here", "ray"], Fleet(help="Score in this process, or on Ray.")] = "here",
    address: Annotated[str | None, Fleet(help="A Ray cluster; auto is the one of this machine.")] = None,
    workers: Annotated[int | None, Fleet(help="Workers; one a processor if left out.", min=1)] = None,
    shard: Annotated[int, Fleet(help="Pictures in one file of the result, about.", min=1)] = 1000,
    max_bad: Annotated[str | None, Fleet(help="Stop when more pictures are unreadable: 20, or 1%.")] = None,
) -> "Machines | None":
    if engine == "here":
        return None
    from secondlook.fleetruns import Machines

    return Machines(address, workers, shard, max_bad)


def _gathers(name: str, gather: Callable[..., object]) -> Callable[[Callable[..., None]], Callable[..., None]]:
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


_asks = _gathers("wishes", _wishes)
_acts = _gathers("use", _use)
_spreads = _gathers("machines", _machines)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"secondlook {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, Help("--version", is_eager=True, callback=_print_version, help="Print the version and leave.")
    ] = False,
) -> None:
    pass


@app.command()
def demo(
    out: Annotated[Path, Help("--out", "-o", help="Folder for the results.")] = Path("secondlook-demo"),
    json: JsonOption = False,
) -> None:
    """See it work on an embedded classifier and 2,000 pictures."""
    from secondlook import demonstration

    demonstration.show(demonstration.run(out), json)


@app.command()
@_asks
def fit(
    pictures: LabelledArgument,
    classifier: ClassifierOption,
    wishes: "Wishes",
    views: Annotated[str, Help(help="The views to ask, such as 'mirror zoom:1.15'; by default eight mild ones.")] = "",
    belief: Annotated[str, Help(help="How votes become a probability.")] = "jury",
    noise: Annotated[Path | None, Help(help="For --belief transfer: what `secondlook noise` measured.")] = None,
    adaptive: Annotated[bool, Help(help=_ADAPTIVE)] = False,
    max_error: Annotated[float | None, Help(help=_DECIDING, min=0, max=1)] = None,
    out: Annotated[Path, Help("--out", "-o", help="Where the profile goes.")] = Path("profile.json"),
    votes: VotesOption = None,
    truths: TruthsOption = None,
    take: TakeOption = None,
    json: JsonOption = False,
) -> None:
    """Learn how far to trust a classifier, from labelled pictures.

    [bold]Examples[/bold]

      secondlook fit photos/ -c onnx:model.onnx

      secondlook fit test.npz --take :1000 -c model.toml --views 'rotation:20*10' --belief probit
    """
    from secondlook import runs

    labelled = runs.labelled(pictures, truths, take)
    runs.fit(labelled, classifier, views, belief, noise, adaptive, max_error, out, votes, wishes, json)


@app.command()
@_asks
def tune(
    pictures: LabelledArgument,
    classifier: ClassifierOption,
    wishes: "Wishes",
    max_queries: Annotated[int | None, Help(help=_MAX_QUERIES, min=2)] = None,
    paper: Annotated[str | None, Help(help=_PAPER)] = None,
    draws: Annotated[int, Help(help="With --paper: draws a picture.", min=1)] = 20,
    out: Annotated[Path, Help("--out", "-o", help="Where the profile goes; the curve goes beside it.")] = Path(
        "profile.json"
    ),
    report: ReportOption = None,
    truths: TruthsOption = None,
    take: TakeOption = None,
    json: JsonOption = False,
) -> None:
    """Choose the views on a thrifty pilot, and fit a profile.

    [bold]Examples[/bold]

      secondlook tune photos/ -c model.toml --dry-run

      secondlook tune photos/ -c model.toml --max-queries 5 --budget +20000

      secondlook tune photos/ -c model.toml --paper rotation --draws 20
    """
    from secondlook import runs, tuneruns

    labelled = runs.labelled(pictures, truths, take)
    if paper:
        tuneruns.search(labelled, classifier, paper, draws, out, report, wishes, json)
    else:
        tuneruns.tune(labelled, classifier, max_queries, out, report, wishes, json)


@app.command()
def plan(
    max_error: Annotated[float, Help(help="How often accepted answers may be wrong, such as 0.02.", min=0, max=1)],
    level: Annotated[float, Help(help="How certain the promise is to be.", min=0, max=1)] = 0.95,
    profile: Annotated[Path | None, Help("--profile", "-p", help="What is known already, from a first fit.")] = None,
    json: JsonOption = False,
) -> None:
    """How many labelled pictures a promise needs; asks nothing.

    [bold]Examples[/bold]

      secondlook plan --max-error 0.02

      secondlook plan --max-error 0.02 --profile profile.json
    """
    from secondlook import runs

    runs.plan(max_error, level, profile, json)


@app.command()
@_acts
@_asks
def look(
    pictures: PicturesArgument,
    use: "Use",
    wishes: "Wishes",
    profile: ProfileOption = Path("profile.json"),
    classifier: OtherOption = None,
    burst: Annotated[bool, Help(help="The pictures are photos of one thing: one verdict for all.")] = False,
    json: JsonOption = False,
) -> None:
    """Label and confidence of pictures, with the reason in a sentence.

    [bold]Examples[/bold]

      secondlook look cat.jpg --profile profile.json

      secondlook look --burst front.jpg left.jpg right.jpg
    """
    from secondlook import runs

    bad = (runs.burst if burst else runs.look)(pictures, profile, classifier, use, wishes, json)
    raise typer.Exit(NOT_SCORED if bad else 0)


@app.command()
@_spreads
@_acts
@_asks
def score(
    pictures: Annotated[list[str], typer.Argument(help=_ANYWHERE, show_default=False)],
    use: "Use",
    wishes: "Wishes",
    machines: "Machines | None",
    out: Annotated[str, Help("--out", "-o", help="Where the verdicts go: .csv, .jsonl or .parquet; a folder on Ray.")],
    profile: ProfileOption = Path("profile.json"),
    classifier: OtherOption = None,
    take: TakeOption = None,
    json: JsonOption = False,
) -> None:
    """Verdicts for whole folders, into a file. Run it again after an interruption and it goes on where it was.

    [bold]Examples[/bold]

      secondlook score photos/ -o verdicts.csv

      secondlook score photos/ -o verdicts.parquet --budget +10000 --dry-run

      secondlook score s3://bucket/photos -o s3://bucket/verdicts --engine ray --address auto
    """
    if machines:
        from secondlook import fleetruns

        complete = fleetruns.score(pictures, take, profile, classifier, out, use, machines, wishes, json)
    else:
        from secondlook import runs

        found = runs.found([Path(path) for path in pictures], take)
        complete = runs.score(found, profile, classifier, Path(out), use, wishes, json)
    raise typer.Exit(0 if complete else NOT_SCORED)


@app.command()
@_acts
@_asks
def evaluate(
    pictures: LabelledArgument,
    use: "Use",
    wishes: "Wishes",
    profile: ProfileOption = Path("profile.json"),
    classifier: OtherOption = None,
    votes: VotesOption = None,
    report: ReportOption = None,
    truths: TruthsOption = None,
    take: TakeOption = None,
    json: JsonOption = False,
) -> None:
    """How good the confidences are on other labelled pictures.

    [bold]Example[/bold]

      secondlook evaluate test.npz --take 1000: --profile profile.json --report report.html
    """
    from secondlook import runs

    runs.evaluate(runs.labelled(pictures, truths, take), profile, classifier, votes, report, use, wishes, json)


@app.command()
@_acts
def report(
    use: "Use",
    profile: ProfileOption = Path("profile.json"),
    votes: Annotated[Path | None, Help(help="Votes that fit, tune or evaluate saved with --votes.")] = None,
    pictures: Annotated[Path | None, Help(help="The pictures of these votes, to show some of them.")] = None,
    noise: Annotated[Path | None, Help(help="What `secondlook noise` measured on an open model.")] = None,
    ledger: Annotated[Path | None, Help(help="The ledger, to say what was spent.")] = None,
    price: Annotated[str | None, Help(help="What one query costs, if the ledger does not say.")] = None,
    out: Annotated[Path, Help("--out", "-o", help="Where the page goes.")] = Path("report.html"),
) -> None:
    """One page for people about a profile and saved votes. Asks nothing.

    [bold]Examples[/bold]

      secondlook report

      secondlook report --votes votes.npz --pictures test.npz --max-error 0.05 -o report.html
    """
    from secondlook import runs

    runs.report(profile, votes, pictures, noise, ledger, price, use, out)


@app.command()
@_asks
def check(
    classifier: Annotated[str, typer.Argument(help=_CLASSIFIER, show_default=False)],
    wishes: "Wishes",
    picture: Annotated[Path | None, typer.Argument(help="A picture to ask about; a test card if left out.")] = None,
    json: JsonOption = False,
) -> None:
    """Ask one picture three times: reachable, fast, dear, random?

    [bold]Example[/bold]

      secondlook check my-api.toml cat.jpg
    """
    from secondlook import runs

    raise typer.Exit(0 if runs.check(classifier, picture, wishes, json) else NOT_SCORED)


books = typer.Typer(
    name="ledger", help="Every answer that was paid for: show, export, verify, merge.", no_args_is_help=True
)
app.add_typer(books)
LedgerOption = Annotated[Path | None, Help("--ledger", help="The ledger; the one in your data folder if left out.")]


@books.command("stats")
def ledger_stats(ledger: LedgerOption = None, json: JsonOption = False) -> None:
    """Queries and money by day and classifier."""
    from secondlook import accounts

    accounts.stats(ledger, json)


@books.command("export")
def ledger_export(
    out: Annotated[Path, typer.Argument(help="A .csv, .jsonl or .parquet file.")], ledger: LedgerOption = None
) -> None:
    """Every answer as a row of a file."""
    from secondlook import accounts

    accounts.export(ledger, out)


@books.command("verify")
def ledger_verify(ledger: LedgerOption = None, json: JsonOption = False) -> None:
    """Check that the file is whole and the books balance; the exit code is 1 if not."""
    from secondlook import accounts

    raise typer.Exit(0 if accounts.verify(ledger, json) else 1)


@books.command("forget")
def ledger_forget(
    fingerprint: Annotated[str, typer.Argument(help="The classifier's fingerprint, as stats shows it.")],
    ledger: LedgerOption = None,
) -> None:
    """Delete the answers of one classifier; what they cost stays counted."""
    from secondlook import accounts

    accounts.forget(ledger, fingerprint)


@books.command("merge")
def ledger_merge(
    other: Annotated[Path, typer.Argument(help="The ledger to add; it stays as it is.")], ledger: LedgerOption = None
) -> None:
    """Add the answers and the cost of another ledger; merging twice changes nothing."""
    from secondlook import accounts

    accounts.merge(other, ledger)


OpenOption = Annotated[str, Help("--open", help="The open model: model.onnx with model.toml beside it.")]
OpenViewsOption = Annotated[str, Help("--views", help="Random views to test, such as 'gaussian:0.05 rotation:20'.")]


@app.command()
def noise(
    pictures: PicturesArgument,
    open_: OpenOption,
    views: OpenViewsOption = "",
    draws: Annotated[int, Help(help="Draws of each view for each picture.", min=2)] = 50,
    seed: Annotated[int, Help(help="Seed of the random views.", min=0)] = 0,
    out: Annotated[Path, Help("--out", "-o", help="Where the noise goes.")] = Path("noise.json"),
    figures: Annotated[Path | None, Help(help="A folder for the cumulatives as SVG.")] = None,
    take: TakeOption = None,
    json: JsonOption = False,
) -> None:
    """Measure the noise of views inside an open model.

    [bold]Example[/bold]

      secondlook noise photos/ --open model.onnx --views 'gaussian:0.05 rotation:20' --figures noise/
    """
    from secondlook import openruns, runs

    openruns.noise(runs.found(pictures, take), open_, views, draws, seed, out, figures, json)


@app.command()
@_asks
def transfer(
    open_: OpenOption,
    open_pictures: Annotated[list[Path], Help(help="Pictures for the open model; no truths are needed.")],
    closed: Annotated[str, Help("--closed", "-c", help=_CLASSIFIER)],
    pictures: Annotated[Path, Help(help=_LABELLED)],
    wishes: "Wishes",
    views: OpenViewsOption = "",
    draws: Annotated[int, Help(help="Draws of each view for each picture.", min=2)] = 10,
    out: Annotated[Path, Help("--out", "-o", help="Where the profile goes.")] = Path("profile.json"),
    truths: TruthsOption = None,
    take: TakeOption = None,
    open_take: Annotated[str | None, Help(help="Only some pictures for the open model, as a slice.")] = None,
    json: JsonOption = False,
) -> None:
    """Learn on an open model, use it on a closed one, see if it helps.

    [bold]Example[/bold]

      secondlook transfer --open model.onnx --open-pictures public/ --closed api.toml --pictures photos/
    """
    from secondlook import openruns, runs

    seen = runs.found(open_pictures, open_take)
    labelled = runs.labelled(pictures, truths, take)
    openruns.transfer(open_, seen, closed, labelled, views, draws, out, wishes, json)


@app.command()
@_asks
def borrow(
    teacher: Annotated[Path, typer.Argument(help="The profile of a classifier like this one.", show_default=False)],
    classifier: ClassifierOption,
    wishes: "Wishes",
    pictures: Annotated[Path | None, Help(help=f"{_LABELLED} None are needed; fifty help.")] = None,
    out: Annotated[Path, Help("--out", "-o", help="Where the profile goes.")] = Path("profile.json"),
    truths: TruthsOption = None,
    take: TakeOption = None,
    json: JsonOption = False,
) -> None:
    """Make a profile from what was learned on another classifier.

    [bold]Examples[/bold]

      secondlook fit public/ -c onnx:open.onnx -o open.json

      secondlook borrow open.json -c api.toml

      secondlook borrow open.json -c api.toml --pictures fifty/
    """
    from secondlook import openruns, runs

    labelled = runs.labelled(pictures, truths, take) if pictures else []
    openruns.borrow(teacher, classifier, labelled, out, wishes, json)


@app.command()
@_acts
@_asks
def serve(
    use: "Use",
    wishes: "Wishes",
    profile: ProfileOption = Path("profile.json"),
    classifier: OtherOption = None,
    host: Annotated[str, Serve(help="Address to serve at; one that others can reach needs a token.")] = "127.0.0.1",
    port: Annotated[int, Serve(help="Port to serve at; 0 takes a free one.", min=0, max=65535)] = 8000,
    token_file: Annotated[Path | None, Serve(help="SHA-256 hashes of tokens that let clients in, one a line.")] = None,
    allow_host: Annotated[list[str] | None, Serve(help="A host name under which it is reached.")] = None,
    tls_cert: Annotated[Path | None, Serve(help="Certificate, for HTTPS.")] = None,
    tls_key: Annotated[Path | None, Serve(help="Key of the certificate.")] = None,
    per_day: Annotated[int | None, Serve(help="Most queries in one UTC day.", min=0)] = None,
    money_per_day: Annotated[str | None, Serve(help="The same in money.")] = None,
    looks: Annotated[int, Serve(help="Most pictures looked at or waiting at a time.", min=1)] = 64,
    timeout: Annotated[float, Serve(help="Seconds that a client waits at most.", min=0.1)] = 60.0,
    max_megabytes: Annotated[float, Serve(help="Size of a request.", min=0.001)] = 16.0,
    max_megapixels: Annotated[float, Serve(help="Size of a picture.", min=0.0001)] = 24.0,
) -> None:
    """Verdicts over HTTP, and a page to look at pictures.

    [bold]Examples[/bold]

      secondlook serve --profile profile.json

      secondlook serve --host 0.0.0.0 --token-file tokens.txt --per-day 5000
    """
    from dataclasses import replace

    from secondlook import service

    place = service.Place(host, port, token_file, tuple(allow_host or ()), tls_cert, tls_key)
    limits = service.Limits(
        body=int(max_megabytes * 1e6), pixels=int(max_megapixels * 1e6), looks=looks, seconds=timeout
    )
    wishes = replace(wishes, per_day=per_day, money_per_day=money_per_day)
    service.run(profile, classifier, use, wishes, place, limits)


def main() -> None:
    """Run the command line; an expected error is one line and an exit code, never a traceback."""
    from secondlook.errors import SecondLookError

    command = typer.main.get_command(app)
    # Drawn with rich, the list of commands takes as long as all the rest of a start; each command's own help is drawn.
    command.rich_markup_mode = None  # type: ignore[attr-defined]
    try:
        command()
    except SecondLookError as error:
        from secondlook.console import safe, say

        say(f"[red]error:[/red] {safe(str(error))}")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
