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
    ((0.7405, 0.0, 0.0, -0.7405, 0.0), (
        (0.03025, 0.0, 0.0, -0.03023, 0.0),
        (0.0, 2e-05, 0.0, 0.0, 0.0),
        (0.0, 0.0, 2e-05, 0.0, 0.0),
        (-0.03023, 0.0, 0.0, 0.03025, 0.0),
        (0.0, 0.0, 0.0, 0.0, 2e-05),
    )),
    ((0.6098, 0.3646, 0.9822, 0.4426, 0.9822), (
        (0.04251, 0.00685, 0.0126, -0.03116, 0.0126),
        (0.00685, 0.04761, 0.01538, -0.03225, 0.01538),
        (0.0126, 0.01538, 0.00986, -0.01379, 0.00984),
        (-0.03116, -0.03225, -0.01379, 0.04354, -0.01379),
        (0.0126, 0.01538, 0.00984, -0.01379, 0.00986),
    )),
    ((0.9636, 0.4365, 0.6157, 1.2086, 0.8825), (
        (0.04437, 0.01722, 0.01948, -0.03056, 0.0149),
        (0.01722, 0.12763, 0.04458, -0.06585, 0.04808),
        (0.01948, 0.04458, 0.02369, -0.02466, 0.01804),
        (-0.03056, -0.06585, -0.02466, 0.05445, -0.02859),
        (0.0149, 0.04808, 0.01804, -0.02859, 0.02493),
    )),
    ((0.6846, 0.1355, 0.7652, 1.5079, 1.38), (
        (0.04713, 0.0306, 0.026, -0.03069, 0.01879),
        (0.0306, 0.23596, 0.08695, -0.09443, 0.08005),
        (0.026, 0.08695, 0.04171, -0.03485, 0.02699),
        (-0.03069, -0.09443, -0.03485, 0.05844, -0.04061),
        (0.01879, 0.08005, 0.02699, -0.04061, 0.03929),
    )),
    ((0.4848, 0.0, 0.9874, 1.7404, 1.464), (
        (0.04741, 0.04513, 0.03083, -0.029, 0.02202),
        (0.04513, 0.37089, 0.13423, -0.11801, 0.11483),
        (0.03083, 0.13423, 0.05848, -0.04172, 0.03645),
        (-0.029, -0.11801, -0.04172, 0.05779, -0.04928),
        (0.02202, 0.11483, 0.03645, -0.04928, 0.05458),
    )),
    ((0.3068, 0.0, 1.0572, 2.1232, 1.5015), (
        (0.04811, 0.07212, 0.03948, -0.02907, 0.0264),
        (0.07212, 0.52904, 0.1857, -0.14566, 0.1586),
        (0.03948, 0.1857, 0.07494, -0.05008, 0.04928),
        (-0.02907, -0.14566, -0.05008, 0.05795, -0.05795),
        (0.0264, 0.1586, 0.04928, -0.05795, 0.07114),
    )),
    ((0.1272, 0.0, 1.0622, 2.1972, 1.4217), (
        (0.04743, 0.09639, 0.04536, -0.02628, 0.02725),
        (0.09639, 0.6938, 0.23177, -0.16059, 0.19569),
        (0.04536, 0.23177, 0.08731, -0.05165, 0.05693),
        (-0.02628, -0.16059, -0.05165, 0.05488, -0.06246),
        (0.02725, 0.19569, 0.05693, -0.06246, 0.08556),
    )),
    ((0.2846, 0.0604, 0.9493, 2.1972, 1.1687), (
        (0.04644, 0.09742, 0.04312, -0.02418, 0.02541),
        (0.09742, 0.85467, 0.2649, -0.17448, 0.22557),
        (0.04312, 0.2649, 0.09242, -0.0536, 0.06205),
        (-0.02418, -0.17448, -0.0536, 0.05438, -0.06537),
        (0.02541, 0.22557, 0.06205, -0.06537, 0.09526),
    )),
    ((0.3112, 0.0427, 1.0391, 2.197, 1.0605), (
        (0.04604, 0.10038, 0.04169, -0.02242, 0.02398),
        (0.10038, 1.0305, 0.29808, -0.18438, 0.24746),
        (0.04169, 0.29808, 0.09739, -0.05374, 0.0639),
        (-0.02242, -0.18438, -0.05374, 0.05325, -0.06639),
        (0.02398, 0.24746, 0.0639, -0.06639, 0.10114),
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
