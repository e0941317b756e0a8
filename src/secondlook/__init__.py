"""Calibrated confidence for image classifiers that return nothing but a label.

>>> import secondlook as sl
>>> sorted(sl.__all__)[:3]
['Asker', 'Image', 'Panel']
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from secondlook import beliefs as beliefs
    from secondlook import scoring as scoring
    from secondlook import views as views
    from secondlook.asking import Asker as Asker
    from secondlook.classifiers import connect as connect
    from secondlook.errors import SecondLookError as SecondLookError
    from secondlook.estimator import SecondLook as SecondLook
    from secondlook.images import Image as Image
    from secondlook.look import Verdict as Verdict
    from secondlook.profile import Profile as Profile
    from secondlook.views import Panel as Panel
    from secondlook.votes import Votes as Votes

_HOMES = {
    "Asker": "asking",
    "Image": "images",
    "Panel": "views",
    "Profile": "profile",
    "SecondLook": "estimator",
    "SecondLookError": "errors",
    "Verdict": "look",
    "Votes": "votes",
    "connect": "classifiers",
}
_MODULES = ("beliefs", "scoring", "views")

__all__ = [*_HOMES, *_MODULES]  # noqa: PLE0604


def __getattr__(name: str) -> object:
    """Public names are imported when they are first used, so that importing secondlook costs next to nothing."""
    if name in _MODULES:
        return import_module(f"secondlook.{name}")
    if name in _HOMES:
        return getattr(import_module(f"secondlook.{_HOMES[name]}"), name)
    raise AttributeError(f"secondlook has no {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
