"""Calibrated confidence for image classifiers that return nothing but a label.

>>> import looktwice as lt
>>> sorted(lt.__all__)[:3]
['AskOptions', 'AsyncModel', 'DecisionOptions']
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from looktwice import calibration as calibration
    from looktwice import ray as ray
    from looktwice import views as views
    from looktwice.blocking import Model as Model
    from looktwice.calibration import metrics as metrics
    from looktwice.calibration.jury import Jury as Jury
    from looktwice.calibration.votes import LabelledVotes as LabelledVotes
    from looktwice.calibration.votes import Votes as Votes
    from looktwice.classifiers.registry import connect as connect
    from looktwice.decisions.evaluation import Evaluation as Evaluation
    from looktwice.decisions.policy import DecisionOptions as DecisionOptions
    from looktwice.decisions.profile import Profile as Profile
    from looktwice.decisions.verdict import Verdict as Verdict
    from looktwice.engine.engine import QueryEngine as QueryEngine
    from looktwice.engine.options import AskOptions as AskOptions
    from looktwice.engine.outcome import Unscored as Unscored
    from looktwice.errors import LookTwiceError as LookTwiceError
    from looktwice.images.image import Image as Image
    from looktwice.model import AsyncModel as AsyncModel
    from looktwice.sklearn import LookTwice as LookTwice
    from looktwice.views import Panel as Panel

_HOMES = {
    "QueryEngine": "engine.engine",
    "AskOptions": "engine.options",
    "AsyncModel": "model",
    "DecisionOptions": "decisions.policy",
    "Evaluation": "decisions.evaluation",
    "Image": "images.image",
    "Model": "blocking",
    "Jury": "calibration.jury",
    "LabelledVotes": "calibration.votes",
    "Panel": "views",
    "Profile": "decisions.profile",
    "LookTwice": "sklearn",
    "LookTwiceError": "errors",
    "Unscored": "engine.outcome",
    "Verdict": "decisions.verdict",
    "Votes": "calibration.votes",
    "connect": "classifiers.registry",
}
_MODULES = {"calibration": "calibration", "metrics": "calibration.metrics", "ray": "ray", "views": "views"}

__all__ = [*_HOMES, *_MODULES]  # noqa: PLE0604


def __getattr__(name: str) -> object:
    """Public names are imported when they are first used, so that importing looktwice costs next to nothing."""
    if name in _MODULES:
        return import_module(f"looktwice.{_MODULES[name]}")
    if name in _HOMES:
        return getattr(import_module(f"looktwice.{_HOMES[name]}"), name)
    raise AttributeError(f"looktwice has no {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
