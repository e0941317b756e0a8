"""Calibrated confidence for image classifiers that return nothing but a label.

>>> import looktwice as lt
>>> sorted(lt.__all__)[:3]
['AskOptions', 'Asker', 'AsyncModel']
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from looktwice import beliefs as beliefs
    from looktwice import metrics as metrics
    from looktwice import views as views
    from looktwice.asking import Asker as Asker
    from looktwice.classifiers import connect as connect
    from looktwice.errors import LookTwiceError as LookTwiceError
    from looktwice.estimator import LookTwice as LookTwice
    from looktwice.images import Image as Image
    from looktwice.jury import Jury as Jury
    from looktwice.look import Evaluation as Evaluation
    from looktwice.look import Verdict as Verdict
    from looktwice.model import AsyncModel as AsyncModel
    from looktwice.model import Model as Model
    from looktwice.outcome import Unscored as Unscored
    from looktwice.practice import DecisionOptions as DecisionOptions
    from looktwice.profile import Profile as Profile
    from looktwice.session import AskOptions as AskOptions
    from looktwice.views import Panel as Panel
    from looktwice.votes import LabelledVotes as LabelledVotes
    from looktwice.votes import Votes as Votes

_HOMES = {
    "Asker": "asking",
    "AskOptions": "session",
    "AsyncModel": "model",
    "DecisionOptions": "practice",
    "Evaluation": "look",
    "Image": "images",
    "Model": "model",
    "Jury": "jury",
    "LabelledVotes": "votes",
    "Panel": "views",
    "Profile": "profile",
    "LookTwice": "estimator",
    "LookTwiceError": "errors",
    "Unscored": "outcome",
    "Verdict": "look",
    "Votes": "votes",
    "connect": "classifiers",
}
_MODULES = ("beliefs", "metrics", "views")

__all__ = [*_HOMES, *_MODULES]  # noqa: PLE0604


def __getattr__(name: str) -> object:
    """Public names are imported when they are first used, so that importing looktwice costs next to nothing."""
    if name in _MODULES:
        return import_module(f"looktwice.{name}")
    if name in _HOMES:
        return getattr(import_module(f"looktwice.{_HOMES[name]}"), name)
    raise AttributeError(f"looktwice has no {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
