"""Votes → probabilities, as pure functions of arrays: no network and no clock.

>>> from looktwice import calibration
>>> calibration.Probit().name
'probit'
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from looktwice.calibration.base import Calibrator as Calibrator
    from looktwice.calibration.base import ShareCalibrator as ShareCalibrator
    from looktwice.calibration.calibrators import register as register
    from looktwice.calibration.distribution import Distribution as Distribution
    from looktwice.calibration.jury import Jury as Jury
    from looktwice.calibration.paper import Cumulative as Cumulative
    from looktwice.calibration.paper import Gaussian as Gaussian
    from looktwice.calibration.paper import Naive as Naive
    from looktwice.calibration.paper import Transfer as Transfer
    from looktwice.calibration.powered import prediction_powered as prediction_powered
    from looktwice.calibration.shares import Beta as Beta
    from looktwice.calibration.shares import Constant as Constant
    from looktwice.calibration.shares import Isotonic as Isotonic
    from looktwice.calibration.shares import Probit as Probit

_HOMES = {
    **dict.fromkeys(("Calibrator", "ShareCalibrator"), "base"),
    "Distribution": "distribution",
    "Jury": "jury",
    "register": "calibrators",
    **dict.fromkeys(("Cumulative", "Gaussian", "Naive", "Transfer"), "paper"),
    "prediction_powered": "powered",
    **dict.fromkeys(("Beta", "Constant", "Isotonic", "Probit"), "shares"),
}

__all__ = [*_HOMES]  # noqa: PLE0604


def __getattr__(name: str) -> object:
    """Calibrators are imported when they are first used."""
    if name in _HOMES:
        return getattr(import_module(f"looktwice.calibration.{_HOMES[name]}"), name)
    raise AttributeError(f"looktwice.calibration has no {name!r}")
