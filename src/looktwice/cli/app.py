"""The command line: commands, imported on use, and error handling."""

import errno
import gc
import os
import sys
from functools import cache
from importlib import import_module
from typing import Annotated, Any, TextIO

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group

COMMANDS = {
    "demo": ("demo", "Try it on bundled classifiers and 2,000 pictures."),
    "check": ("check", "Query one picture three times: latency, price, repeatability."),
    "label": ("label", "Label pictures in the browser."),
    "fit": ("fit", "Learn from labelled pictures how far to trust a classifier, and which queries to send."),
    "labels": ("check", "Propose which classifier labels mean which true labels. Sends no queries."),
    "plan": ("evaluate", "Estimate how many labelled pictures guarantees need. Sends no queries."),
    "evaluate": ("evaluate", "Evaluate a profile on other labelled pictures."),
    "look": ("look", "Print the label and confidence of pictures, with an explanation."),
    "score": (
        "look",
        "Write verdicts for whole folders to a file. After an interruption, run the command again to resume.",
    ),
    "serve": ("look", "Serve verdicts over HTTP, with a web page."),
    "review": ("label", "Accept or correct doubtful verdicts in the browser. fit and evaluate read the corrections."),
    "audit": ("label", "Estimate from few labels how often accepted verdicts are wrong."),
    "report": ("evaluate", "Write a report about a profile and saved votes. Sends no queries."),
    "prices": ("check", "Print a table of token prices for --prices. Compare them with your vendor's page before use."),
    "trust": ("check", "Approve the classifiers that a file from somebody else names."),
    "noise": ("fit", "Measure the noise of views inside an open model."),
    "transfer": ("fit", "Calibrate a closed model with the help of an open one."),
    "borrow": ("fit", "Make a profile from the profile of another classifier."),
    "ledger": ("ledger", "Show, export, verify, back up or forget the answers you paid for."),
}
"""The module of each command, and the first line of its help."""
INTERRUPTED = 130
COLLECT_AFTER = 20_000
"""The number of allocations between garbage collections. Queries in flight allocate thousands of objects, which
reference counting frees."""
FIRST = (
    "--classifier", "--profile", "--out", "--open", "--pictures", "--budget", "--money", "--dry-run", "--max-error",
    "--views", "--all", "--report", "--truths", "--take", "--port", "--host", "--token-file", "--max-price",
    "--max-queries", "--votes", "--json", "--ledger",
)  # fmt: skip
"""The most important options, in order. Short help shows nine of them, --help-all shows all options."""
SHOWN, FEW = 9, 12
"""The number of options in short help; commands with at most FEW options have no short help."""


class Command(TyperCommand):
    """A command with --help, --help-all, and -q for results and errors only."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        own = args[: args.index("--")] if "--" in args else args
        ctx.meta["all options"] = "--help-all" in own
        if "-q" in own or "--quiet" in own:
            from looktwice.model.runs import ERR

            ERR.quiet = True
        flags = {"--help-all": "--help", "-q": None, "--quiet": None}
        kept = [flags.get(word, word) for word in own]
        return super().parse_args(ctx, [word for word in kept if word] + args[len(own) :])

    def format_help(self, ctx: Any, formatter: Any) -> None:
        options: list[Any] = [param for param in self.params if param.param_type_name == "option"]
        options = [option for option in options if not option.hidden]
        best = sorted(options, key=_rank)[:SHOWN]
        left_out = [] if ctx.meta.get("all options") or len(options) <= FEW else [o for o in options if o not in best]
        for option in left_out:
            option.hidden = True
        if left_out:
            self.epilog = f"{len(left_out)} more options: {ctx.command_path} --help-all"
        super().format_help(ctx, formatter)
        for option in left_out:
            option.hidden = False


def _rank(option: Any) -> int:
    """The rank of an option in the help text; required options come first."""
    places = [FIRST.index(name) for name in option.opts if name in FIRST]
    return -1 if option.required else min(places, default=len(FIRST))


@cache
def built(name: str) -> Any:
    """A click command or group."""
    command = getattr(import_module(f"looktwice.cli.{COMMANDS[name][0]}"), name)
    if isinstance(command, typer.Typer):
        return get_group(command)
    alone = typer.Typer(add_completion=False, rich_markup_mode="rich")
    alone.command(name, cls=Command)(command)
    return get_command(alone)


class Commands(TyperGroup):
    """The command group, which lists the commands with their help texts without importing their modules."""

    def __init__(self, **settings: Any) -> None:
        listed = {name: TyperCommand(name, help=text) for name, (_, text) in COMMANDS.items()}
        super().__init__(**settings | {"commands": listed})

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, _, rest = super().resolve_command(ctx, args)
        command = name and built(name)
        from looktwice.model import require_posix  # which the command has imported

        require_posix("the command line")
        return name, command, rest


app = typer.Typer(
    name="looktwice",
    cls=Commands,
    help="Calibrated confidence for image classifiers that return nothing but a label.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"looktwice {version('looktwice')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line; an expected error is printed as one line and sets the exit code, without a traceback."""
    gc.set_threshold(COLLECT_AFTER)
    _open_streams()
    command = get_command(app)
    # Without rich, which would double the start-up time for the list of commands; help of commands uses it.
    command.rich_markup_mode = None  # type: ignore[attr-defined]
    try:
        try:
            command()
        finally:
            _flush_streams()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:
        from looktwice.cli.console import say_failure

        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            _discard(sys.stdout)
        code = say_failure(error)
        if code is None:
            raise
        _flush_streams()
        sys.exit(code)


def _flush_streams() -> None:
    """Flush the output now, since a failure at interpreter exit would change the exit code."""
    try:
        sys.stderr.flush()
    except OSError:  # nobody is there to be told
        _discard(sys.stderr)
    try:
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads it has seen enough
        _discard(sys.stdout)


def _discard(stream: TextIO) -> None:
    """Redirect a broken stream to the null device, since flushing its buffered output would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _open_streams() -> None:
    """Open closed standard streams on the null device, so that no other file gets their descriptors."""
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
