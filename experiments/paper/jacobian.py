"""Proposition 1 with its Jacobian: σ_*·‖J_h(x)w‖ of Equation 1 for each picture, compared with one common a.

‖J_h(x)w‖ is the slope of the margin wᵀh(x) along noise of standard deviation 1: the root mean square, over random
directions u, of the central differences (wᵀh(x + εu) − wᵀh(x − εu)) / 2ε on the ONNX graph. The norm of a gradient of
3,072 numbers thus takes 2 × 64 answers per picture and has a relative standard error of 1/√128, about 9 %.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy.special import expit, ndtr, ndtri
from scipy.stats import spearmanr

from experiments.paper.answers import Readings
from experiments.paper.tables import Row, Study
from looktwice.calibration import metrics
from looktwice.calibration.evidence import Floats
from looktwice.calibration.latent import Cumulatives, describe

PICTURES = 100
DRAWS = 50
SIGMAS = (0.01, 0.1)


def proposition1(study: Study) -> Iterator[Row]:
    """One row for each strength of noise: Equation 1 with each picture's own slope, and with one a for all."""
    rows = study.subject.labelled(study.size)[:PICTURES]
    slope = study.answers.slopes(rows, study.size.reading)
    for view in study.size.settings.get("gaussian", ()):
        sigma = float(str(view).partition(":")[2])
        if sigma not in SIGMAS:
            continue
        yield {
            "dataset": study.subject.dataset,
            "model": study.subject.title,
            "reading": study.size.reading,
            "view": str(view),
            "pictures": len(rows),
            "draws": DRAWS,
            **compared(study.answers.noise(view, rows, DRAWS), sigma * slope),
        }


def compared(found: Readings, scale: Floats) -> Row:
    """How well σ_*·‖J_h(x)w‖ (n,), the scale of each picture's noise, explains p_A, the softmax and Var.

    `share_less_common` is the mean squared error of p_A with the Jacobian minus that with one a, with its interval over
    pictures.
    """
    common = found.plain.normal.a
    deviation = found.noise.std(axis=1, ddof=1)
    softmax, probit = expit(found.margin), ndtri((found.share * DRAWS + 0.5) / (DRAWS + 1))
    jacobian, one_a = ndtr(found.margin / scale), ndtr(found.margin / common)
    gap = metrics.paired_difference((jacobian - found.share) ** 2, (one_a - found.share) ** 2)
    alike = np.random.default_rng(0).normal(size=found.noise.shape)
    return {
        "scale": float(np.median(scale)),
        "deviation": float(np.median(deviation)),
        "scale_deviation_spearman": float(spearmanr(scale, deviation).statistic),
        "a": common,
        "share": float(found.share.mean()),
        "share_rms_jacobian": _rms(jacobian, found.share),
        "share_rms_common": _rms(one_a, found.share),
        "share_less_common": gap.mean,
        "share_less_common_low": gap.low,
        "share_less_common_high": gap.high,
        "softmax_rms_jacobian": _rms(expit(scale * probit), softmax),
        "softmax_rms_common": _rms(expit(common * probit), softmax),
        "var": found.plain.var,
        "var_scaled": _var(found.noise / scale[:, None]),
        "var_chance": _var(alike),
        "var_centred": _var(_centred(found.noise)),
        "var_centred_scaled": _var(_centred(found.noise) / scale[:, None]),
        "var_centred_chance": _var(_centred(alike)),
        "shift": float(np.mean(np.abs(found.noise.mean(axis=1)) / deviation)),
    }


def _centred(noise: Floats) -> Floats:
    """Each picture's noise less its own mean."""
    return noise - np.asarray(noise.mean(axis=1, keepdims=True), np.float64)


def _var(noise: Floats) -> float:
    return describe(Cumulatives.count(noise)).var


def _rms(one: Floats, other: Floats) -> float:
    return float(np.sqrt(np.mean((one - other) ** 2)))
