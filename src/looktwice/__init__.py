"""Calibrated confidence for image classifiers that return nothing but a label.

>>> import looktwice as lt
>>> sorted(lt.__all__)[:3]
['AskOptions', 'Asker', 'AsyncModel']
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from looktwice import calibration as calibration
    from looktwice import views as views
    from looktwice.asking.asker import Asker as Asker
    from looktwice.asking.outcome import Unscored as Unscored
    from looktwice.asking.session import AskOptions as AskOptions
    from looktwice.calibration import metrics as metrics
    from looktwice.calibration.jury import Jury as Jury
    from looktwice.calibration.votes import LabelledVotes as LabelledVotes
    from looktwice.calibration.votes import Votes as Votes
    from looktwice.classifiers.registry import connect as connect
    from looktwice.errors import LookTwiceError as LookTwiceError
    from looktwice.estimator import LookTwice as LookTwice
    from looktwice.model import AsyncModel as AsyncModel
    from looktwice.model import Model as Model
    from looktwice.pictures.image import Image as Image
    from looktwice.verdicts.evaluate import Evaluation as Evaluation
    from looktwice.verdicts.look import Verdict as Verdict
    from looktwice.verdicts.policy import DecisionOptions as DecisionOptions
    from looktwice.verdicts.profile import Profile as Profile
    from looktwice.views import Panel as Panel

_HOMES = {
    "Asker": "asking.asker",
    "AskOptions": "asking.session",
    "AsyncModel": "model",
    "DecisionOptions": "verdicts.policy",
    "Evaluation": "verdicts.evaluate",
    "Image": "pictures.image",
    "Model": "model",
    "Jury": "calibration.jury",
    "LabelledVotes": "calibration.votes",
    "Panel": "views",
    "Profile": "verdicts.profile",
    "LookTwice": "estimator",
    "LookTwiceError": "errors",
    "Unscored": "asking.outcome",
    "Verdict": "verdicts.look",
    "Votes": "calibration.votes",
    "connect": "classifiers.registry",
}
_MODULES = {"calibration": "calibration", "metrics": "calibration.metrics", "views": "views"}

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
