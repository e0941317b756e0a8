"""Typical weights: a prior for every jury, from the models in experiments/typical.py.

The prior counts as PICTURES labelled pictures: with few labels a jury is close to the typical one, with many close to a
fit without prior. It constrains the mean weight of the views, not single views, and the ratios of the weights more than
their common scale.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from looktwice.calibration.logit import Patterns, Prior

PICTURES = 100.0
"""The weight of the prior, in labelled pictures."""
Typical = tuple[tuple[float, ...], tuple[tuple[float, ...], ...]]
"""The weight of the base label, the mean weight of the views, γ, b₀, b₁; and the information of one picture, (5, 5)."""
# fmt: off
TYPICAL: tuple[Typical, ...] = (
    ((0.7455, 0.0, 0.0, -0.7455, 0.0), (
        (0.03001, 0.0, 0.0, -0.03001, 0.0),
        (0.0, 0.0, 0.0, 0.0, 0.0),
        (0.0, 0.0, 0.00032, 0.0, 0.0),
        (-0.03001, 0.0, 0.0, 0.03001, 0.0),
        (0.0, 0.0, 0.0, 0.0, 0.0),
    )),
    ((0.8076, 0.7878, 0.0164, 0.7988, 1.6595), (
        (0.04424, 0.00638, 0.01323, -0.03153, 0.01323),
        (0.00638, 0.04461, 0.01345, -0.03159, 0.01345),
        (0.01323, 0.01345, 0.00957, -0.01335, 0.00924),
        (-0.03153, -0.03159, -0.01335, 0.04386, -0.01335),
        (0.01323, 0.01345, 0.00924, -0.01335, 0.00925),
    )),
    ((0.7037, 0.4293, 0.7744, 1.0585, 0.915), (
        (0.04515, 0.0139, 0.01968, -0.02761, 0.01401),
        (0.0139, 0.11266, 0.03745, -0.05983, 0.04184),
        (0.01968, 0.03745, 0.02175, -0.02161, 0.01551),
        (-0.02761, -0.05983, -0.02161, 0.05051, -0.02584),
        (0.01401, 0.04184, 0.01551, -0.02584, 0.02243),
    )),
    ((0.4944, 0.1658, 0.8988, 1.2833, 1.1779), (
        (0.04626, 0.02436, 0.02429, -0.02598, 0.01688),
        (0.02436, 0.20531, 0.0734, -0.08282, 0.07083),
        (0.02429, 0.0734, 0.03663, -0.0294, 0.02316),
        (-0.02598, -0.08282, -0.0294, 0.05203, -0.03627),
        (0.01688, 0.07083, 0.02316, -0.03627, 0.03642),
    )),
    ((0.378, 0.042, 1.0098, 1.5348, 1.2832), (
        (0.04657, 0.0367, 0.028, -0.02466, 0.01968),
        (0.0367, 0.32925, 0.11693, -0.10377, 0.10327),
        (0.028, 0.11693, 0.05183, -0.03571, 0.03192),
        (-0.02466, -0.10377, -0.03571, 0.0517, -0.04457),
        (0.01968, 0.10327, 0.03192, -0.04457, 0.05104),
    )),
    ((0.2024, 0.0551, 0.9958, 1.8289, 1.3083), (
        (0.04688, 0.0606, 0.03562, -0.02373, 0.02239),
        (0.0606, 0.45609, 0.15851, -0.12341, 0.13766),
        (0.03562, 0.15851, 0.06541, -0.04112, 0.04118),
        (-0.02373, -0.12341, -0.04112, 0.05081, -0.0513),
        (0.02239, 0.13766, 0.04118, -0.0513, 0.06508),
    )),
    ((0.0408, 0.0775, 0.9477, 2.0548, 1.2955), (
        (0.04703, 0.08943, 0.0431, -0.02327, 0.02484),
        (0.08943, 0.62051, 0.20798, -0.14382, 0.17618),
        (0.0431, 0.20798, 0.07981, -0.0458, 0.05065),
        (-0.02327, -0.14382, -0.0458, 0.05041, -0.0574),
        (0.02484, 0.17618, 0.05065, -0.0574, 0.0794),
    )),
    ((0.1809, 0.1158, 0.9085, 2.0749, 1.0446), (
        (0.0463, 0.09004, 0.04079, -0.0217, 0.02353),
        (0.09004, 0.76811, 0.23804, -0.15803, 0.20561),
        (0.04079, 0.23804, 0.08419, -0.04827, 0.0561),
        (-0.0217, -0.15803, -0.04827, 0.0503, -0.06058),
        (0.02353, 0.20561, 0.0561, -0.06058, 0.08904),
    )),
    ((0.2195, 0.0968, 0.9755, 2.1085, 0.9509), (
        (0.0461, 0.09451, 0.03991, -0.02052, 0.02281),
        (0.09451, 0.94017, 0.27219, -0.17002, 0.23084),
        (0.03991, 0.27219, 0.08989, -0.04958, 0.05974),
        (-0.02052, -0.17002, -0.04958, 0.04966, -0.06241),
        (0.02281, 0.23084, 0.05974, -0.06241, 0.09583),
    )),
)
# fmt: on
"""For 0, 1 … views; written by experiments/typical.py."""


def with_typical_weights(patterns: Patterns) -> Patterns:
    """Add this prior to patterns; beyond the views it covers, the total weight of all views is kept.

    Sources that never answered are not counted.
    """
    heard = int(patterns.options[:, : 1 + patterns.views].any(axis=0).sum())
    known = min(max(heard - 1, 0), len(TYPICAL) - 1)
    (base, view, *others), information = TYPICAL[known]
    mean = np.zeros((5, patterns.options.shape[1]))
    mean[0, 0] = 1.0
    mean[1, 1 : 1 + patterns.views] = 1.0 / max(known, 1)
    mean[2:, -3:] = np.eye(3)
    precision = PICTURES * mean.T @ np.array(information) @ mean
    centre = [base, *[view * known / max(patterns.views, 1)] * patterns.views, *others]
    return replace(patterns, prior=Prior(precision, np.array(centre)))
