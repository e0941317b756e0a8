"""Console output during and after a run, as text or JSON, and the suggested next command."""

from __future__ import annotations

import asyncio
import errno
import json
import shlex
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar, cast

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from looktwice.model import (
    ANY,
    LADDER,
    MAX_ERROR,
    NEVER,
    AsyncModel,
    Claim,
    DecisionOptions,
    Estimate,
    LookTwiceError,
    Panel,
    Picture,
    Policy,
    Profile,
    Result,
    TagPolicy,
    TagScores,
    Unscored,
    UnscoredError,
    best_estimate,
    few,
    least_error,
    missing_sentence,
    runs,
    selection_level,
)

T = TypeVar("T")
Ask = partial(typer.Option, rich_help_panel="Queries and cost")
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text and tables.")]
OUT, ERR, say = Console(), runs.ERR, runs.say

HELD = 4
"""The exit code if all pictures were scored, but some verdicts are held after a drift alarm."""
NOT_SCORED = 3
"""The exit code if some pictures were not scored, for any reason."""

PICTURES = "PICTURES"
"""The placeholder in a command for a value that only the user knows."""

COLUMNS = {"accuracy": "acc. ↑", "ece": "ECE ↓", "auroc": "AUROC ↑", "brier": "Brier ↓"}


def safe(text: str) -> str:
    """Escape untrusted text for a terminal: control characters become visible."""
    return escape("".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text))


def say_error(message: str, code: str) -> None:
    """Format an error with its code as one line."""
    ERR.quiet = ERR.gone  # an error is said even with --quiet
    say(f"[red]error\\[{code}]:[/red] {safe(message)}")


def say_failure(error: Exception) -> int | None:
    """Print an expected error and return the exit code; returns None for an unexpected error."""
    if isinstance(error, LookTwiceError):
        say_error(str(error), error.code)
        if "--json" in sys.argv:
            print_json({"error": {"code": error.code, "message": str(error)}})
        return exit_code(NOT_SCORED if isinstance(error, UnscoredError) else 1)
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        say_error("no space is left for the output; free some space and run the same command again", "disk-full")
        return 1
    return None


def show(line: object) -> None:
    """Print a line or a table on standard output."""
    OUT.print(line, highlight=False, soft_wrap=isinstance(line, str))


def table(title: str, left: str, *right: str) -> Table:
    """An empty table with one text column and several columns of figures."""
    blank = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    blank.add_column(left, overflow="fold")  # where the terminal is narrow, texts give way to figures
    for heading in right:
        blank.add_column(heading, justify="right", no_wrap=True)
    return blank


def print_json(value: object) -> None:
    """Print a result as one line of JSON."""
    # Names of files that are not UTF-8 hold halves of characters, which JSON writes as it should: \udcff.
    sys.stdout.write(json.dumps(value, ensure_ascii=False).encode("utf-8", "backslashreplace").decode() + "\n")


def show_estimate(total: Estimate, ledger: str | None, as_json: bool, expected: float | None = None) -> None:
    """Describe the queries and cost of a run, given the answers in this ledger; `expected` is the cost with early
    stopping."""
    if as_json:
        print_json({**asdict(total), "ledger": ledger, "expected": expected})
        return
    hours = "" if total.seconds is None else f", at least {total.seconds / 3600:.1f} hours at the allowed rate"
    unknown = (
        " How long this takes is unknown until the first queries are sent; the run then shows it." if not hours else ""
    )
    unfamiliar = f" and {total.unfamiliar} unlike the labelled pictures" if total.unfamiliar else ""
    tokens = f", about {total.input_tokens:,} + {total.output_tokens:,} tokens" if total.input_tokens else ""
    most = f" (at most {total.most_micros / 1e6:.4f})" if total.input_tokens else ""
    cost = f"{total.micros / 1e6:.4f}{most}"
    cost = cost if expected is None else f"at most {cost}, about {expected:.4f} expected"
    say(
        f"{total.pictures:,} pictures, {total.unreadable:,} of them unreadable{unfamiliar}: {total.questions:,} queries"
        f", {total.hits:,} of them already in the ledger. "
        f"The other {total.queries:,} cost {cost}{tokens}{hours}.{unknown}"
    )
    say(f"Nothing was sent. Ledger: {safe(ledger or 'none')}")


@dataclass(frozen=True)
class Output:
    """The output options of a command."""

    dry_run: Annotated[bool, Ask("--dry-run", help="Print what would be queried and what it costs; send nothing.")] = (
        False
    )
    json_log: Annotated[bool, Ask("--json-log", help="Write progress to stderr as JSON lines.")] = False
    json: JsonOption = False


def estimate(
    model: AsyncModel,
    pictures: Sequence[Picture],
    panel: Callable[[], Panel] | Panel | None,
    output: Output,
    decide: DecisionOptions | None = None,
) -> None:
    """Print the estimated cost of querying these pictures, without sending anything; early stopping may reduce the
    cost."""

    async def work() -> tuple[Estimate, int | None]:
        async with model:
            views = panel() if callable(panel) else panel
            total = await model.estimate(pictures, decide or DecisionOptions(), views=views)
            return total, model.engine.money_left()

    total, left = runs.run(work)
    expected = expected_cost(total, model.fitted(), decide) if panel is None and decide else None
    show_estimate(total, model.ledger_name(), output.json, expected)
    needed = total.micros if expected is None else round(1e6 * expected)
    if left is not None and needed > left:
        say(f"[yellow]The budget does not cover this:[/yellow] {needed / 1e6:.4f} is needed, {left / 1e6:.4f} is left.")
    elif total.remaining is not None and total.queries > total.remaining and expected is None:
        say(f"[yellow]The budget does not cover this:[/yellow] about {total.remaining:,} queries are left.")
    if (places := model.sends_to()) and not output.json:
        say(f"Pictures would be sent to {safe(', '.join(places))}")


def expected_cost(total: Estimate, profile: Profile, decide: DecisionOptions) -> float | None:
    """The expected cost, with early stopping, of the queries without stored answers; None without early stopping."""
    if decide.all or profile.kind == "tags" or not total.micros:
        return None
    stopping = profile.within(decide.max_price, decide.max_queries)
    if stopping is None:
        return None
    most = total.micros / 1e6
    if profile.others:
        return min(most, stopping.price * total.pictures * total.queries / total.questions)
    return most * stopping.queries / (1 + len(stopping.views()))


@asynccontextmanager
async def watched(model: AsyncModel, total: int, output: Output) -> AsyncIterator[None]:
    """Show the progress of a run; the first signal stops it gracefully, the second at once. Closes the model."""
    show = runs.log_json if output.json_log else runs.show_bar if ERR.is_terminal else runs.log_lines
    asyncio.get_running_loop().set_exception_handler(_report_error)
    with stopping(model.engine.stop):
        async with model, runs.shown(model.engine, total, show):
            yield


@contextmanager
def stopping(halt: Callable[[str], None]) -> Iterator[None]:
    """Call `halt` with the reason on the first signal to stop, and exit at once on the second."""
    loop, signals = asyncio.get_running_loop(), runs.stopping_signals()
    try:
        for each in signals:
            loop.add_signal_handler(each, stop, each, halt)
        yield
    finally:
        for each in signals:
            loop.remove_signal_handler(each)


def watch(model: AsyncModel, total: int, output: Output, work: Callable[[], Awaitable[T]]) -> T:
    """Run the model on this many pictures and show the progress; returns the result."""

    async def main() -> T:
        async with watched(model, total, output):
            return await work()

    return runs.run(main)


def _report_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Print on one line the errors of an immediate exit, such as answers that could not be saved."""
    if isinstance(error := context.get("exception"), LookTwiceError):
        say_error(str(error), error.code)
    else:
        loop.default_exception_handler(context)


received = runs.ReceivedSignals()
"""The signals received; the first one determines the exit code."""


def stop(number: int, halt: Callable[[str], None]) -> None:
    """Stop a run with `halt` on the first signal, and exit at once on a later one."""
    if received.is_first(number):
        name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        halt(f"the run was stopped by {name}; run the same command again to resume")
        say(f"Stopping: waiting for queries in flight ({name} again to exit now) ...")
    elif received.is_later():
        runs.leave_soon(128 + number)
        raise SystemExit(128 + number)


def exit_code(usual: int) -> int:
    """128 plus the signal's number if a signal other than Ctrl-C stopped the run, as supervisors expect."""
    return usual if received.first in (None, signal.SIGINT) else 128 + received.first


def leave(complete: bool, held: int = 0) -> NoReturn:
    """Exit with a code that indicates whether every picture was scored and whether verdicts are held."""
    if held:
        say(f"The pictures have changed: {held:,} verdict{'s' * (held != 1)} held for review (column held).")
    raise typer.Exit(exit_code(NOT_SCORED) if not complete else exit_code(HELD) if held else 0)


def policy_of(model: AsyncModel, decide: DecisionOptions) -> Policy:
    """The policy for the options; prints a warning if the profile does not support their guarantee."""
    policy = model.policy(decide)
    if model.kind == "tags":
        _say_undecided(cast("TagPolicy", policy), model.fitted(), decide)
        return policy
    if policy.accept and policy.accept.least == NEVER:
        many = f"{len(policy.held_out.confidence)} labelled pictures"
        cannot = "cannot guarantee" if decide.accept == "guarantee" else "give no reason to expect"
        what = " and ".join(claim.sentence() for claim in policy.accept.claims)
        tested = policy.claim_tests(policy.accept.claims, model.fitted(), decide.level)
        missing = missing_sentence(policy.accept.claims, tested)
        say(f"[yellow]Nothing is accepted:[/yellow] the profile's {many} {cannot} that {safe(what)}. {safe(missing)}")
        if decide.accept == "guarantee" and decide.max_error is not None:
            say(best_estimate(tested[0].answers, overall(decide.max_error)))
        plan = shlex.join(["looktwice", "plan", *guarantee(policy.accept.claims, decide.level)])
        say(f"To see how many labelled pictures are needed: {safe(plan)}")
    return policy


def _say_undecided(policy: TagPolicy, profile: Profile, decide: DecisionOptions) -> None:
    """Print the tags for which nothing can be guaranteed."""
    undecided = [tag for tag, least in zip(policy.jury.tags, policy.least, strict=True) if NEVER in least]
    if undecided:
        what = "cannot be guaranteed" if decide.accept == "guarantee" else "cannot be expected"
        tags = f"{few(undecided, 'tag')} of {len(policy.jury.tags)}"
        say(f"[yellow]For review:[/yellow] a yes or a no {what} for {safe(tags)}.")
        if decide.accept == "guarantee":
            missing = missing_sentence(decide.claims(), policy.claim_tests(decide.claims(), profile, decide.level))
            say(f"{safe(missing)} With --accept estimate, tags are decided by the best estimate.")


def overall(max_error: float | Mapping[str, float] | None) -> float:
    """The allowed error for all labels."""
    share = max_error.get(ANY) if isinstance(max_error, Mapping) else max_error
    return share or MAX_ERROR


def guarantee(claims: Sequence[Claim], level: float) -> list[str]:
    """Format claims as command-line options; the level is included only if it is not the default."""
    named = [word for claim in claims for word in claim.option()]
    return named if level == DecisionOptions.level else [*named, "--level", f"{level:.10g}"]


def results_table(results: Sequence[Result], title: str) -> Table:
    """A table of the metrics with their 95 % intervals, one calibrator per row."""
    shown = table(title, "calibrator", "queries", *COLUMNS.values())
    for result in results:
        cells = []
        for f in (result.figures[key] for key in COLUMNS):
            interval = "" if f.low is None or f.high is None else f"\n[dim]{_short(f.low)}–{_short(f.high)}[/dim]"
            cells.append("–" if f.value is None else f"{f.value:.3f}{interval}")
        shown.add_row(safe(result.title()), f"{result.queries:.3g}", *cells)
    return shown


def tag_table(scores: TagScores, title: str) -> Table:
    """A table of the results for each tag, most frequent first."""
    shown = table(title, "tag", "true", "prec.", "recall", "missed", "review", "ECE", "yes ≥", "no <")
    for row in sorted(scores.tags, key=lambda row: -row.pictures):
        shares = (row.precision, row.recall, row.missed, row.review, row.ece, row.yes_from, row.no_below)
        shown.add_row(safe(row.tag), f"{row.pictures:,}", *("–" if x is None else f"{x:.3f}" for x in shares))
    return shown


def _short(value: float) -> str:
    """Format a number with three decimals and no leading zero, so that the table fits 80 columns."""
    return f"{value:.3f}".removeprefix("0")


def complain(unscored: Sequence[Unscored], most: int = 5) -> None:
    """Print the first few pictures without a verdict, and the number of further ones for each cause."""
    for item in unscored[:most]:
        say(f"[yellow]not scored:[/yellow] {safe(item.name)}: {safe(item.message)}")
    if len(unscored) > most:
        causes = Counter(item.cause for item in unscored[most:]).most_common()
        summary = ", ".join(f"{count} × {cause}" for cause, count in causes)
        say(f"[yellow]and {len(unscored) - most} more:[/yellow] {safe(summary)}")


def say_next(purpose: str, *words: object) -> None:
    """Print the next command, ready to be copied."""
    say(f"Next, {purpose}: {safe(shlex.join(['looktwice', *map(str, words)]))}")


def say_reach(profile: Profile, path: Path, price: int = 0) -> None:
    """Print a profile's strictest guarantee, the accepted share and its cost; `price` is in millionths.

    If this guarantee is weaker than the default one, also print the estimated results for the default guarantee and the
    number of labels that it needs.
    """
    wanted = [Claim(MAX_ERROR)]
    tested = DecisionOptions().of(profile).claim_tests(wanted, profile)
    if profile.kind == "tags":
        say(missing_sentence(wanted, tested))
        score = ("score", PICTURES, "-p", path, "--max-error", MAX_ERROR, "-o", "verdicts.csv")
        say_next("decide tags under a guarantee", *score)
        return
    answers = tested[0].answers
    labels, least = f"{len(answers.confidence):,} labelled pictures", least_error(answers)
    if least is None or least[0] > MAX_ERROR:
        say(f"{best_estimate(answers)} {missing_sentence(wanted, tested)}")
    if least is None:
        say(f"The {labels} are too few to guarantee anything about accepted answers.")
        say_next("see how many labelled pictures are needed", "plan", "--max-error", MAX_ERROR, "-p", path)
        return
    (error, accepted), level, stopping = least, selection_level(0.95), profile.adaptive
    queries = profile.results[-1].queries if profile.results else 1.0 + len(profile.views())
    chosen = next((point.price for point in profile.frontier if point.chosen), queries * price / 1e6)
    cost = cost_of_accepted(chosen if price else 0.0, accepted)
    early = (
        f", stopping early after {queries:.3g} queries on average"
        if stopping and queries < len(stopping.views()) + 1
        else ""
    )
    say(
        f"The strictest of {len(LADDER)} guarantees that the {labels} support: at most {100 * error:g} % of "
        f"accepted answers are wrong, with 95 % certainty. Because this guarantee was chosen from {len(LADDER)}, each "
        f"was tested at --level {level:g}. It accepts {100 * accepted:.0f} % of such pictures{early}{cost}."
    )
    options = guarantee([Claim(error)], level)
    say_next("serve the profile, with a page that accepts pictures by drag and drop", "serve", "-p", path)
    say_next("accept answers under that guarantee", "score", PICTURES, "-p", path, *options, "-o", "verdicts.csv")


def cost_of_accepted(money: float, accepted: float) -> str:
    """The price of an accepted answer, including the cost of answers that are not accepted."""
    return f", at {money / accepted:.4g} per accepted picture" if money and accepted else ""


POINTS = 10
"""The approximate number of frontier points printed, in addition to points without views and the chosen point."""


def frontier_table(profile: Profile) -> Table:
    """The frontier of error against price, with the chosen point."""
    shown = table(
        "Queries worth their price, on held-out pictures",
        "asked",
        "queries",
        "price of 1,000",
        COLUMNS["brier"],
        "to buy",
    )
    step = 1 + len(profile.frontier) // POINTS
    for place, point in enumerate(profile.frontier):
        views = any(not source.endswith("@base") for source in point.sources[1:])
        if place % step and not point.chosen and views:
            continue
        mark, style = (" ◀ chosen", "bold") if point.chosen else ("", None)
        brier = f"{point.brier.value or 0:.3f}"
        if point.brier.low is not None and point.brier.high is not None:
            brier += f" ({point.brier.low:.3f} to {point.brier.high:.3f})"
        cells = (
            f"{point.queries:.2f}",
            f"{1000 * point.price:,.2f}",
            brier,
            f"{point.to_buy:,}" if point.to_buy else "",
        )
        shown.add_row(safe(_named(point.sources, point.enough)) + mark, *cells, style=style)
    return shown


def _named(sources: Sequence[str], enough: Sequence[float]) -> str:
    """Summarise a frontier point: the number of queries to each classifier, in order, and the confidence at which
    querying stops."""
    names = [source.rpartition("@")[0] for source in sources]
    groups = [(name, list(group)) for name, group in groupby(range(len(names)), key=names.__getitem__)]
    turns = [sources[group[0]] if len(group) == 1 else f"{name} ×{len(group)}".strip() for name, group in groups]
    level = min(enough, default=1.0)
    return ", then ".join(turns) + (f", until {level:.3f} certain" if level < 1.0 else "")
