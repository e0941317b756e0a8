"""Curves as SVG, for notebooks, files and pages.

>>> import os
>>> from pathlib import Path
>>> import numpy as np
>>> from looktwice import plots
>>> right = np.repeat([True, False], [80, 20])
>>> curves = plots.reliability({"constant": (np.full(100, 0.8), right), "naive": (np.ones(100), right)})
>>> curves.save(Path(os.devnull))  # or "curves.svg"; a notebook draws it
"""

from looktwice.plots.figures import (
    Line,
    bars_svg,
    lines_svg,
    reliability,
    reliability_svg,
    risk_coverage,
    risk_coverage_svg,
    upward,
)
from looktwice.plots.notebook import Drawing

__all__ = ["Drawing", "Line", "bars_svg", "lines_svg", "reliability", "risk_coverage"]
