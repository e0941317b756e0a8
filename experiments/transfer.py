"""What transfers from an open model to a closed one: the noise in latent space, its cumulative, the jury's weights.

python -m experiments.transfer settings     the best setting of each transform, on ResNet-20's pilot pictures
python -m experiments.transfer noise        Var, KS and the propositions on ResNet-20 and ResNet-32
python -m experiments.transfer cumulatives  F_n of Gaussian views on ResNet-20, for `closed`
python -m experiments.transfer shapes       how close the noise of ResNet-32 is to that of ResNet-20, after `noise`
python -m experiments.transfer closed       Φ and F_n on three closed models, as in the paper's Table 3
python -m experiments.transfer jury         a jury's weights from an open model, with 0 to 1,000 labels, 20 splits

Tables go to experiments/results, figures to docs/figures. Answers are cached by experiments/collected.py. All models
run on this machine; *closed* ones are asked for labels only.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit
from scipy.stats import spearmanr

from experiments import script, writing
from experiments.collected import CACHE, MILD, MODELS, Model, votes
from experiments.writing import read
from looktwice.calibration import crossfit, metrics
from looktwice.calibration.borrow import fit_towards
from looktwice.calibration.crossfit import Outcome
from looktwice.calibration.evidence import Floats
from looktwice.calibration.jury import Jury
from looktwice.calibration.shares import Ballot, Cumulative, Gaussian, Objective, Probit, Transfer
from looktwice.calibration.votes import LabelledVotes
from looktwice.decisions.noise import Measured, NoiseFile, Probe, fold, probes
from looktwice.decisions.onnx_features import open_onnx
from looktwice.plots.figures import (
    _axes,
    _Axis,
    _clipped,
    _colour,
    _diagonal,
    _Frame,
    _heading,
    _n,
    _percent,
    _svg,
    _ticks,
)
from looktwice.report.findings import drawn
from looktwice.views import GRIDS, Panel, View, parse

RESULTS = Path(__file__).parent / "results"
FIGURES = Path(__file__).parents[1] / "docs" / "figures"
PICTURES, DRAWS, ASKED = 1000, 50, 10
OPEN = MODELS["resnet20"]
CLOSED = ("resnet32", "resnet8", "mobilenetv2")
PHOTO_VIEW = "gaussian:0.05"
"""Settled for photos, five draws of which take as long as two hundred of small pictures, and not searched."""


def main(tasks: list[str]) -> None:
    for task in tasks:
        began, cpu = time.time(), os.times()
        TASKS[task]()
        used = sum(os.times()[:2]) - sum(cpu[:2])
        print(f"{task}: {time.time() - began:.0f} s, of which {used:.0f} s on a processor", flush=True)
    if not tasks:
        sys.exit(__doc__)


# The setting of each transform ---------------------------------------------------------------------------------------


def settings() -> None:
    """For each transform of the paper the setting with the least Brier score, by its Gaussian calibrator, S = 10."""
    rows = []
    for family, views in GRIDS.items():
        losses = {view: _pilot_loss(OPEN, view) for view in views}
        best = min(losses, key=lambda view: losses[view])
        rows += [
            {"transform": family, "view": str(view), "brier": loss, "best": int(view == best)}
            for view, loss in losses.items()
        ]
    write("transfer_settings.csv", rows)


def _pilot_loss(model: Model, view: View) -> float:
    """The Brier score of the Gaussian calibrator on the pilot pictures, on which it was fitted."""
    collected = votes(model, Panel((view,) * ASKED), "pilot")
    return crossfit.outcome(Gaussian().fit(collected), collected).scores().brier


def _chosen() -> list[View]:
    return [parse(row["view"]) for row in read(RESULTS / "transfer_settings.csv") if row["best"] == "1"]


# Var, KS and the propositions ----------------------------------------------------------------------------------------


def noise() -> None:
    """The noise of the four transforms, and how well counting views tells the model's own probability."""
    views, rows = _chosen(), []
    for name in ("resnet20", "resnet32"):
        model = MODELS[name]
        opened = open_onnx(model.description())
        found = [p for p in probes(opened, model.pictures[:PICTURES], views, DRAWS) if isinstance(p, Probe)]
        survey, _ = fold(found, views, DRAWS, opened, model.title)
        survey.save(CACHE / f"noise-{name}.json")
        for place, measured in enumerate(survey.noises):
            rows.append({"model": model.title, "pictures": PICTURES, "draws": DRAWS, **_figures(measured)})
            rows[-1] |= _agreement(measured, found, place)
            if model is OPEN:
                _draw(model, measured, found, place)
        print(model.title, "done", flush=True)
    write("transfer_noise.csv", rows)


def _figures(measured: Measured) -> dict[str, object]:
    row: dict[str, object] = {"view": measured.view, "kept": measured.kept}
    for kind, noise in (("", measured.noise), ("centred_", measured.centred)):
        row |= {f"{kind}var": noise.var, f"{kind}ks": noise.normal.ks, f"{kind}a": noise.normal.a}
        row |= {f"{kind}paper_ks": noise.paper.ks, f"{kind}paper_a": noise.paper.a}
        row |= {f"{kind}{key}": value for key, value in asdict(noise.shape).items()}
    return row


def _margins(found: Sequence[Probe], place: int) -> tuple[Floats, Floats]:
    """The model's own σ(wᵀz + b) and the share of views that kept the label."""
    readings = [probe.readings[place] for probe in found]
    own = expit(np.array([reading.margin for reading in readings]))
    return own, np.array([(reading.labels == reading.label).mean() for reading in readings])


def _agreement(measured: Measured, found: Sequence[Probe], place: int) -> dict[str, float]:
    own, share = _margins(found, place)
    estimates = {
        "transfer": Transfer(1.0, noise=measured.noise.cumulative).curve(share),
        "centred": Transfer(1.0, noise=measured.centred.cumulative).curve(share),
        "gaussian": Gaussian(measured.noise.normal.a).curve(share),
        "centred_gaussian": Gaussian(measured.centred.normal.a).curve(share),
        "share": share,
    }
    row = {f"rms_{name}": float(np.sqrt(((y - own) ** 2).mean())) for name, y in estimates.items()}
    return row | {"spearman": float(spearmanr(share, own).statistic)}


def _draw(model: Model, measured: Measured, found: Sequence[Probe], place: int) -> None:
    FIGURES.mkdir(parents=True, exist_ok=True)
    stem = f"noise-{model.name}-{measured.view.partition(':')[0]}"
    title = f"{model.title}, {measured.view}"
    (FIGURES / f"{stem}.svg").write_text(drawn(measured.noise, title), "utf-8")
    (FIGURES / f"{stem}-centred.svg").write_text(drawn(measured.centred, f"{title}, centred"), "utf-8")
    own, share = _margins(found, place)
    figure = _points_svg(
        own,
        Transfer(1.0, noise=measured.noise.cumulative).curve(share),
        title=f"{title}: Proposition 2 on a real model",
        x_label="the model's own probability of A against B",
        y_label="estimated from the views",
        remarks=[f"root mean square difference {measured.transfer_error:.3f}, S = {DRAWS}, {len(own):,} pictures"],
    )
    (FIGURES / f"{stem}-proposition.svg").write_text(figure, "utf-8")


def _points_svg(x: Floats, y: Floats, *, title: str, x_label: str, y_label: str, remarks: Sequence[str]) -> str:
    """A scatter plot of two probabilities, one point per item; points on the diagonal have equal probabilities."""
    heading, top = _heading(title, remarks)
    frame, ticks = _Frame(top, 300, (0, 1), (0, 1)), _ticks(0, 1)
    places = "".join(f"M{_n(frame.x(a))} {_n(frame.y(b))}h0" for a, b in zip(x.tolist(), y.tolist(), strict=True))
    dots = f'<path d="{places}" stroke="{_colour(0)}" stroke-width="4" stroke-opacity="0.4" stroke-linecap="round"/>'
    axes = _axes(frame, _Axis(x_label, ticks, _percent), _Axis(y_label, ticks, _percent))
    about = f"{y_label} against {x_label}, {len(x):,} points; on the diagonal they agree."
    return _svg(title, about, frame.bottom + 40, [heading, axes, _diagonal(frame), _clipped(frame, [dots])])


# Φ and F_n on closed models ------------------------------------------------------------------------------------------


def cumulatives() -> None:
    """F_n of all Gaussian views of the paper's grid on the open model."""
    opened, views = open_onnx(OPEN.description()), GRIDS["gaussian"]
    probed = probes(opened, OPEN.pictures[:PICTURES], views, DRAWS)
    fold(probed, views, DRAWS, opened, OPEN.title)[0].save(CACHE / "noise-gaussian.json")


def closed() -> None:
    """Φ, F_n and others on three closed models: the same votes, read in five ways."""
    learned = {item.view: item for item in NoiseFile.load(CACHE / "noise-gaussian.json").noises}
    rows: list[dict[str, object]] = []
    for model in map(MODELS.__getitem__, CLOSED):
        view, collected, n_selection = _polled(model, learned)
        for ballot in ("base", "vote"):
            for objective in ("brier", "ece"):
                rows += _compared(model, collected, n_selection, learned[view], ballot, objective)
        write("transfer_closed.csv", rows)
        print(model.name, "done", flush=True)


def _polled(model: Model, learned: Iterable[str]) -> tuple[str, LabelledVotes, int]:
    """The view with the least Brier score on the pilot pictures, its answers, and how many pictures that rests on."""
    if model.data != OPEN.data:
        return PHOTO_VIEW, votes(model, Panel((parse(PHOTO_VIEW),) * 5), "pilot"), 0
    losses = {view: _pilot_loss(model, parse(view)) for view in learned}
    view = min(losses, key=lambda one: losses[one])
    return view, votes(model, Panel((parse(view),) * ASKED), "some"), model.pilot


def _compared(
    model: Model, collected: LabelledVotes, n_selection: int, item: Measured, ballot: Ballot, objective: Objective
) -> list[dict[str, object]]:
    """How calibrators fare on each fifth of the pictures when the others teach them, or when none does."""
    known, centred = item.noise.cumulative, item.centred.cumulative
    calibrators: dict[str, Gaussian | Transfer | Probit] = {
        "Φ": Gaussian(ballot=ballot, objective=objective),
        "F_n": Transfer(noise=known, ballot=ballot, objective=objective),
        "F_n centred": Transfer(noise=centred, ballot=ballot, objective=objective),
        "Probit": Probit(ballot=ballot),
    }
    outcomes = {
        name: crossfit.cross_fit(each, collected, n_selection=n_selection) for name, each in calibrators.items()
    }
    fitted = {name: calibrator.fit(collected).a for name, calibrator in calibrators.items()}
    unlabelled = Transfer(a=1.0, noise=known, ballot=ballot)
    outcomes["F_n, a = 1"] = crossfit.outcome(unlabelled, collected.take(slice(n_selection, None)))
    row = {"model": model.title, "ballot": ballot, "objective": objective, "view": item.view, "S": len(collected.panel)}
    return [
        row
        | {"calibrator": name, "a": fitted.get(name, 1.0), "test": len(outcome.brier)}
        | asdict(outcome.scores())
        | _less(outcome, outcomes["Φ"])
        for name, outcome in outcomes.items()
    ]


def _less(one: Outcome, other: Outcome) -> dict[str, float]:
    gap = metrics.paired_difference(one.brier, other.brier)
    return {"brier_less_phi": gap.mean, "low": gap.low, "high": gap.high}


def shapes() -> None:
    """How close the cumulative of one model is to that of another at the closest scale, beside the closest Gaussian."""
    known = {name: NoiseFile.load(CACHE / f"noise-{name}.json") for name in ("resnet20", "resnet32")}
    rows: list[dict[str, object]] = []
    for one, other in zip(known["resnet20"].noises, known["resnet32"].noises, strict=True):
        for kind, learned, own in (("as it is", one.noise, other.noise), ("centred", one.centred, other.centred)):
            ks = _gap(own.cumulative, learned.cumulative)
            rows.append({"view": one.view, "noise": kind, "ks_transferred": ks, "ks_gaussian": own.normal.ks})
    write("transfer_shapes.csv", rows)


def _gap(one: Cumulative, other: Cumulative) -> float:
    """The least of sup_x |F(x) − G(x/a)| over a."""
    x = np.array(one.x)
    scales = np.geomspace(0.05, 20, 400)
    return min(float(np.abs(np.array(one.f) - np.interp(x / s, other.x, other.f)).max()) for s in scales)


# The jury's weights --------------------------------------------------------------------------------------------------


def jury() -> None:
    """A jury fitted on an open model and used on a closed one, as it is and as the prior of a fit."""
    rows: list[dict[str, object]] = []
    for source, target in (("resnet20", "resnet32"), ("resnet20", "resnet8"), ("resnet20", "mobilenetv2")):
        rows += _splits(MODELS[source], MODELS[target])
        print(source, target, "done", flush=True)
    write("transfer_jury.csv", rows)
    write("transfer_jury_summary.csv", _summary(rows))


def _splits(source: Model, target: Model) -> list[dict[str, object]]:
    teacher, pupil = votes(source, MILD), votes(target, MILD)
    rows: list[dict[str, object]] = []
    same = source.data == target.data
    for seed in range(20):
        order = np.random.default_rng(seed).permutation(len(pupil))
        taught = order[:1000] if same else np.random.default_rng(seed).permutation(len(teacher))[:1000]
        labelled, test = _parts(order[1000:] if same else order)
        prior = Jury().fit(teacher.take(taught))
        for count in (0, 50, 200, 1000):
            row: dict[str, object] = {"from": source.title, "to": target.title, "seed": seed}
            rows += _fits(prior, pupil.take(labelled[:count]), pupil.take(test), row)
    return rows


def _parts(order: NDArray[np.intp]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Pictures to label, up to 1,000 or half, and pictures to test on."""
    count = min(1000, len(order) // 2)
    return order[:count], order[count:]


def _fits(prior: Jury, labelled: LabelledVotes, test: LabelledVotes, row: dict[str, object]) -> list[dict[str, object]]:
    juries = {"prior": fit_towards(prior, labelled)}
    if len(labelled):
        juries["scratch"] = Jury().fit(labelled)
    return [
        {**row, "labels": len(labelled), "fit": name, **asdict(crossfit.outcome(one, test).scores())}
        for name, one in juries.items()
    ]


def _summary(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """Means over the splits, their standard deviations, and in how many splits the prior helped."""
    keys = dict.fromkeys((row["from"], row["to"], row["labels"], row["fit"]) for row in rows)
    summary = []
    for source, target, labels, fit in keys:
        part = [r for r in rows if (r["from"], r["to"], r["labels"], r["fit"]) == (source, target, labels, fit)]
        line: dict[str, object] = {"from": source, "to": target, "labels": labels, "fit": fit, "splits": len(part)}
        for key in ("accuracy", "ece", "auroc", "brier", "nll"):
            values = np.array([float(str(r[key])) for r in part])
            line |= {key: values.mean(), f"{key}_sd": values.std(ddof=1)}
        summary.append(line)
    return summary


def write(name: str, rows: Iterable[dict[str, object]]) -> None:
    """A table as CSV, with six decimals."""
    rounded = ({k: round(v, 6) if isinstance(v, float) else v for k, v in row.items()} for row in rows)
    writing.write(RESULTS / name, ({k: str(v) for k, v in row.items()} for row in rounded))


TASKS = {work.__name__: work for work in (settings, noise, cumulatives, shapes, closed, jury)}


if __name__ == "__main__":
    script.run(main, __doc__, TASKS)
