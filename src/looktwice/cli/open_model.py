"""`looktwice noise` and `transfer`: use an open model to calibrate a closed one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

from rich.progress import track
from rich.table import Table

from looktwice.cli.console import (
    ERR,
    Output,
    estimate,
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
from looktwice.cli.fit import listener
from looktwice.cli.options import (
    CLASSIFIER,
    LABELLED,
    Help,
    JsonOption,
    NewProfileOption,
    PicturesArgument,
    TakeOption,
    Truths,
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
    NoiseFile,
    Panel,
    Picture,
    check_teachable,
    files,
    measure_noise,
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
    found = find_pictures(pictures, take)
    files.check_writable(out)
    if figures:
        files.make_folder(figures)
    file = _measured(open_, found, views, draws, seed)
    file.save(out)
    if figures:
        from looktwice.report.noise import drawn

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
    check_outputs((*open_pictures, pictures, truths.file, closed, open_), out)
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
    found = watch(model, 2 * len(labelled), output, work)
    model.save(out)
    results = found.results()
    if output.json:
        figures = {"results": [result.model_dump() for result in results], "differences": found.differences()}
        print_json({"profile": str(out), "view": chosen, **figures})
    else:
        show(results_table(results, f"On {len(found.calibrator.label)} pictures, by 5-fold cross-validation"))
        for line in found.sentences():
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
    """Var, KS and other figures, one view per row: the raw noise, then the centred one."""
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
