"""Calibrated confidence for image classifiers that return nothing but a label.

>>> import looktwice as lt
>>> sorted(lt.__all__)[:3]
['AskOptions', 'AsyncModel', 'DecisionOptions']
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from looktwice import calibration as calibration, plots as plots, ray as ray, views as views
    from looktwice.model import (
        AskOptions as AskOptions,
        AsyncModel as AsyncModel,
        DecisionOptions as DecisionOptions,
        Evaluation as Evaluation,
        Image as Image,
        Jury as Jury,
        LabelledVotes as LabelledVotes,
        LookTwiceError as LookTwiceError,
        Model as Model,
        Panel as Panel,
        Profile as Profile,
        QueryEngine as QueryEngine,
        TagVerdict as TagVerdict,
        Unscored as Unscored,
        Verdict as Verdict,
        Votes as Votes,
        batched as batched,
        connect as connect,
        metrics as metrics,
        returns_tags as returns_tags,
    )
    from looktwice.sklearn import LookTwice as LookTwice

_HOMES = {
    **dict.fromkeys(
        (
            "AskOptions",
            "AsyncModel",
            "DecisionOptions",
            "Evaluation",
            "Image",
            "Jury",
            "LabelledVotes",
            "LookTwiceError",
            "Model",
            "Panel",
            "Profile",
            "QueryEngine",
            "TagVerdict",
            "Unscored",
            "Verdict",
            "Votes",
            "batched",
            "connect",
            "returns_tags",
        ),
        "model",
    ),
    "LookTwice": "sklearn",
}
_MODULES = {
    "calibration": "calibration",
    "metrics": "calibration.metrics",
    "plots": "plots",
    "ray": "ray",
    "views": "views",
}

__all__ = [*_HOMES, *_MODULES]  # noqa: PLE0604


def __getattr__(name: str) -> object:
    """Public names are imported on first use, so that importing looktwice is fast."""
    if name in _MODULES:
        return import_module(f"looktwice.{_MODULES[name]}")
    if name in _HOMES:
        return getattr(import_module(f"looktwice.{_HOMES[name]}"), name)
    raise AttributeError(f"looktwice has no {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
