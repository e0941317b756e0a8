"""What the commands about open models do: measure noise, and carry what was learned over to a closed classifier."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich import box
from rich.progress import track
from rich.table import Table

from looktwice import __version__, files
from looktwice.calibration import crossfit, metrics
from looktwice.calibration.base import Calibrator
from looktwice.calibration.calibrators import dump
from looktwice.calibration.crossfit import Outcome
from looktwice.calibration.jury import Jury
from looktwice.calibration.paper import Gaussian, Naive, Transfer
from looktwice.calibration.shares import Constant, Probit
from looktwice.classifiers.base import names_of, reading
from looktwice.cli.console import OUT, Output, complain, estimate, print_json, results_table, safe, say_reach, watched
from looktwice.cli.fit import check_not_stopped, tell_duplicates
from looktwice.decisions import fitting
from looktwice.decisions.fitting import Collected
from looktwice.decisions.profile import HeldOut, Profile, Result
from looktwice.engine.options import run
from looktwice.engine.outcome import Unscored
from looktwice.errors import DataError
from looktwice.images.collection import Picture
from looktwice.model import AsyncModel
from looktwice.progress import ERR, say
from looktwice.transfer.borrow import Pupil, fit_towards
from looktwice.transfer.noise import Measured, NoiseFile, drawn, filed, fold, probes
from looktwice.transfer.onnx_features import open_onnx
from looktwice.views import GENERAL, Panel, parse, renderer

COMMON = "gaussian:0.02 rotation:20 elastic:20,5 affine:10,0.1,0.1"
"""The paper's four transforms, each as mild as suits most models."""


def noise(
    pictures: Sequence[Picture],
    model: str,
    views: str,
    draws: int,
    seed: int,
    out: Path,
    figures: Path | None,
    json: bool,
) -> None:
    """Measure the noise that views make in an open model, keep it, and show Var and KS."""
    files.check_writable(out)
    if figures:
        files.make_folder(figures)
    file = _measured(model, pictures, views, draws, seed)
    file.save(out)
    if figures:
        for item in file.noises:
            stem = re.sub(r"[^a-z0-9.]+", "-", item.view)
            files.write(figures / f"{stem}.svg", drawn(item.noise, item.view))
            files.write(figures / f"{stem}-centred.svg", drawn(item.centred, f"{item.view}, centred"))
    if json:
        print_json({"noise": str(out), "views": [_summary(item) for item in file.noises]})
        return
    OUT.print(_noise_table(file))
    say(f"Noise: {out}" + (f"   Figures: {figures}" if figures else ""))


@dataclass(frozen=True, eq=False)
class Transferred:
    """How a calibrator that was learned on an open model fares on a closed one, by 5-fold cross-validation."""

    chosen: Measured
    calibrator: Outcome
    others: tuple[Outcome, ...]
    """Naive and constant trust, then Gaussian and Probit on the same votes, then the jury on its own."""


@dataclass(frozen=True)
class Opened:
    """An open model, the pictures that it is shown, and the views that are tested on it."""

    model: str
    pictures: Sequence[Picture]
    views: str


def transfer(
    opened: Opened, model: AsyncModel, pictures: Sequence[Picture], draws: int, out: Path, output: Output
) -> bool:
    """The paper's prescription: test views on an open model, take the best and its F_n to a closed one, and compare.

    Whether every picture was scored.
    """
    files.check_writable(out)
    fitting.check_teachable(pictures)
    file = _measured(opened.model, opened.pictures, opened.views, draws, model.options.seed or 0)
    chosen = min(file.noises, key=lambda item: item.transfer_error)
    if not output.json:
        OUT.print(_noise_table(file))
    say(f"Selected on the open model: {chosen.view}, whose F_n predicts the model's own probability best.")
    if output.dry_run:
        estimate(model, pictures, Panel.parse(f"{chosen.view}*{draws} {GENERAL}"), output)
        return True

    async def work() -> tuple[Collected, Collected]:
        async with watched(model, 2 * len(pictures), output):
            drawn = await model.ask(pictures, views=Panel.parse(f"{chosen.view}*{draws}"))
            return drawn, await model.ask(pictures, views=GENERAL)

    drawn, jury = run(work)
    complain(drawn.unscored)
    check_not_stopped(drawn)
    check_not_stopped(jury)
    tell_duplicates(drawn)
    found = compare(chosen, drawn, jury)
    profile = model.learn(drawn, Transfer(noise=chosen.noise.cumulative))
    model.save(out)
    results = [Result.of(outcome) for outcome in (*found.others, found.calibrator)]
    if output.json:
        figures = {"results": [result.model_dump() for result in results], "differences": _differences(found)}
        print_json({"profile": str(out), "view": chosen.view, **figures})
    else:
        OUT.print(results_table(results, f"On {len(found.calibrator.label)} pictures, by 5-fold cross-validation"))
        for line in judged(found):
            OUT.print(line, highlight=False, soft_wrap=True)
        say(f"Profile of the transferred calibrator: {out}")
        say_reach(profile, out, model.typical_price())
    return not drawn.unscored


def borrow(teacher: Path, model: AsyncModel, pictures: Sequence[Picture], out: Path, output: Output) -> bool:
    """Make a profile for one classifier out of the jury of another, and of labelled pictures if there are any.

    Whether every picture was scored.
    """
    taught_by = Profile.load(teacher)
    prior = taught_by.restored_calibrator()
    if not isinstance(prior, Jury):
        family = taught_by.calibrator["family"]
        raise DataError(
            f"the profile {str(teacher)!r} holds a {family}, and only a jury can be borrowed; fit it as one"
        )
    files.check_writable(out)
    if pictures:
        fitting.check_teachable(pictures)
    if output.dry_run:
        estimate(model, pictures, taught_by.views(), output)
        return True
    unscored: tuple[Unscored, ...] = ()
    if pictures:

        async def work() -> Collected:
            async with watched(model, len(pictures), output):
                return await model.ask(pictures, views=taught_by.views())

        collected = run(work)
        unscored = collected.unscored
        complain(unscored)
        check_not_stopped(collected)
        tell_duplicates(collected)
        profile = taught(prior, collected, model.description)
    else:
        profile = untaught(taught_by, model)
    model.profile = profile
    model.save(out)
    if output.json:
        print_json({"profile": str(out), "results": [result.model_dump() for result in profile.results]})
        return not unscored
    if profile.results:
        OUT.print(results_table(profile.results, f"On {profile.pictures} pictures, by 5-fold cross-validation"))
    else:
        say("No labelled pictures were given, so its quality here is unknown and nothing is guaranteed.")
    say(f"Profile: {out}")
    say_reach(profile, out, model.typical_price())
    return not unscored


def untaught(teacher: Profile, model: AsyncModel) -> Profile:
    """The teacher's panel and jury for another classifier, of which no labelled picture is known."""
    labels = model.classifier.labels
    return Profile(
        looktwice=__version__,
        classifier=model.description,
        fingerprint=model.classifier.fingerprint,
        reading=reading(model.classifier),
        renames=dict(names_of(model.classifier).renames),
        vocabulary=labels or teacher.vocabulary,
        classes=len(labels) if labels else teacher.classes,
        panel=teacher.panel,
        seed=model.options.seed or 0,
        renderer=renderer(teacher.views()),
        calibrator=teacher.calibrator,
        pictures=0,
        results=(),
        held_out=HeldOut(confidence=(), correct=()),
    )


def taught(prior: Jury, collected: Collected, description: str) -> Profile:
    """What labelled pictures teach a jury that begins with another's weights, judged by 5-fold cross-validation."""
    profile = fitting.learn(collected, Pupil(prior), description)
    return profile.model_copy(update={"calibrator": dump(fit_towards(prior, collected.labelled()))})


def compare(chosen: Measured, drawn: Collected, jury: Collected) -> Transferred:
    """How the transferred calibrator and the others fare on pictures that they were not fitted on."""
    labelled = drawn.labelled()
    if jury.votes.names != drawn.votes.names:
        raise DataError("some pictures were answered under one panel only; run the same command again")

    def held_out(calibrator: Calibrator) -> Outcome:
        return crossfit.cross_fit(calibrator, labelled)

    others = [held_out(calibrator) for calibrator in (Naive(), Constant(), Gaussian(), Probit())]
    others.append(replace(crossfit.cross_fit(Jury(), jury.labelled()), name="jury, general panel"))
    return Transferred(chosen, held_out(Transfer(noise=chosen.noise.cumulative)), tuple(others))


def judged(found: Transferred) -> list[str]:
    """A sentence for each other calibrator: whether the transferred one has the better Brier score."""
    sentences = []
    for name, gap in _differences(found).items():
        figures = f"Brier {gap.mean:+.4f}, 95 % between {gap.low:+.4f} and {gap.high:+.4f}"
        verdict = "beats" if gap.high < 0 else "loses to" if gap.low > 0 else "cannot be distinguished from"
        sentences.append(f"The transferred calibrator [bold]{verdict}[/bold] {name} ({figures}).")
    return sentences


def _differences(found: Transferred) -> dict[str, metrics.Difference]:
    return {
        other.name: metrics.paired_difference(found.calibrator.brier, other.brier)
        for other in found.others
        if other.name not in (Naive.name, Constant.name)
    }


def _measured(model: str, pictures: Sequence[Picture], views: str, draws: int, seed: int) -> NoiseFile:
    open_model = open_onnx(model)
    random_views = [parse(word) for word in dict.fromkeys((views or COMMON).split())]
    found = probes(open_model, pictures, random_views, draws, seed)
    watched = track(found, "pictures", len(pictures), console=ERR, transient=True, disable=not ERR.is_terminal)
    survey = fold(watched, random_views, draws)
    if survey.unread:
        first = survey.unread[0]
        say(f"[yellow]{len(survey.unread)} pictures were not read:[/yellow] {safe(first.name)}: {safe(first.message)}")
    return filed(survey, open_model, model, seed)


def _summary(item: Measured) -> dict[str, object]:
    """The figures of a view without its curves."""
    short: dict[str, object] = {key: asdict(item)[key] for key in ("view", "kept", "transfer_error", "gaussian_error")}
    for name, noise in (("noise", item.noise), ("centred", item.centred)):
        figures = asdict(noise)
        short[name] = {key: figures[key] for key in ("var", "normal", "paper", "shape")}
    return short


def _noise_table(file: NoiseFile) -> Table:
    """Var, KS and the rest, one view a row, the noise as it is above the centred one."""
    title = f"Noise of {file.pictures:,} pictures, {file.draws} draws each"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("view", no_wrap=True)
    for heading in ("kept", "Var ↓", "KS ↓", "a", "skew", "F_n off", "Φ off"):
        table.add_column(heading, justify="right", no_wrap=True)
    for item in file.noises:
        cells = [
            (f"{noise.var:.3f}", f"{noise.normal.ks:.3f}", f"{noise.normal.a:.3g}", f"{noise.shape.skewness:+.2f}")
            for noise in (item.noise, item.centred)
        ]
        both = [f"{plain}\n[dim]{centred}[/dim]" for plain, centred in zip(*cells, strict=True)]
        errors = (f"{item.transfer_error:.3f}", f"{item.gaussian_error:.3f}")
        table.add_row(f"{item.view}\n[dim]  centred[/dim]", f"{item.kept:.3f}", *both, *errors)
    return table
