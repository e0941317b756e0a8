"""The noise of a view in the latent space of an open model, as a figure."""

from __future__ import annotations

import numpy as np

from looktwice.model import Noise
from looktwice.plots import Line, lines_svg


def drawn(noise: Noise, title: str) -> str:
    """The mean cumulative with the band that holds 95 % of the pictures, and the closest Gaussian, as SVG."""
    from scipy.special import ndtr

    known = np.array(noise.cumulative.x)
    low, high = noise.cumulative.inverse(np.array([0.002, 0.998]))
    x = np.linspace(low, high, 240)
    mean, below, above = (np.interp(x, known, column) for column in (noise.cumulative.f, noise.low, noise.high))
    a = noise.normal.a
    lines = [
        Line("mean over pictures and 95 % of them", x, mean, below, above),
        Line(f"Φ(x / {a:.3g})", x, ndtr(x / a)),
    ]
    title = f"{title}: Var {noise.var:.3f}, KS {noise.normal.ks:.3f}"
    return lines_svg(lines, title=title, x_label="shift of the margin", y_label="share of views", y_range=(0, 1))
