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
    from looktwice import plots as plots
    from looktwice import ray as ray
    from looktwice import views as views
    from looktwice.blocking import Model as Model
    from looktwice.calibration import metrics as metrics
    from looktwice.classifiers.python import batched as batched
    from looktwice.classifiers.python import returns_tags as returns_tags
    from looktwice.errors import LookTwiceError as LookTwiceError
    from looktwice.model import AskOptions as AskOptions
    from looktwice.model import AsyncModel as AsyncModel
    from looktwice.model import DecisionOptions as DecisionOptions
    from looktwice.model import Evaluation as Evaluation
    from looktwice.model import Image as Image
    from looktwice.model import Jury as Jury
    from looktwice.model import LabelledVotes as LabelledVotes
    from looktwice.model import Panel as Panel
    from looktwice.model import Profile as Profile
    from looktwice.model import QueryEngine as QueryEngine
    from looktwice.model import TagVerdict as TagVerdict
    from looktwice.model import Unscored as Unscored
    from looktwice.model import Verdict as Verdict
    from looktwice.model import Votes as Votes
    from looktwice.model import connect as connect
    from looktwice.sklearn import LookTwice as LookTwice

_HOMES = {
    "QueryEngine": "engine.engine",
    "AskOptions": "model.options",
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
    "TagVerdict": "decisions.verdict",
    "Unscored": "engine.query",
    "Verdict": "decisions.verdict",
    "Votes": "calibration.votes",
    "batched": "classifiers.python",
    "connect": "model",
    "returns_tags": "classifiers.python",
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
    """Public names are imported when they are first used, so that importing looktwice costs next to nothing."""
    if name in _MODULES:
        return import_module(f"looktwice.{_MODULES[name]}")
    if name in _HOMES:
        return getattr(import_module(f"looktwice.{_HOMES[name]}"), name)
    raise AttributeError(f"looktwice has no {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
