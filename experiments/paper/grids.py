"""The paper's grids of settings, in two readings of its text.

The text does not say whether Gaussian noise is added to pixels or to the normalised input of a network, nor what a
rotated picture shows beyond its border. `looktwice` adds noise to pixels, reflects at the border and interpolates
linearly. `torchvision` follows the defaults of its transforms: noise after normalisation, black beyond the border,
nearest neighbour (elastic fields: linear).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from looktwice.errors import DataError, ViewError
from looktwice.images.image import Image
from looktwice.views import GRIDS, Panel, Question, View
from looktwice.views.base import Between, Pixels, register
from looktwice.views.families import Affine, Elastic, Gaussian, Rotation
from looktwice.views.rendering import words

Reading = Literal["looktwice", "torchvision"]
Settings = Mapping[str, Sequence[View]]
"""The settings of each transform."""
Tensor = NDArray[np.float32]


@register
@dataclass(frozen=True)
class Normalised(View):
    """Normal noise of standard deviation sigma on the normalised input of a network.

    It is neither rounded nor clipped. `added` draws it, because it does not change pixels.
    """

    random: ClassVar[bool] = True
    adjective = "noisy"
    sigma: Annotated[float, Between(0, 1)]

    def draw(self, part: int, questions: Sequence[Question], picture: Pixels, out: Pixels) -> None:
        raise ViewError(f"{self} changes the normalised input of a network, not pixels; only experiments can ask it")

    def added(self, image: Image, tensor: Tensor, draws: Sequence[int]) -> Tensor:
        """(n, …): the picture's tensor with the noise of each draw."""
        asked = [Question(image.digest, self, 0, index) for index in draws]
        bits = words(asked, 0, -(-tensor.size // 4)).view(np.uint16)[:, : tensor.size]
        noise = np.float32(self.sigma) * _normals().take(bits)
        return tensor + noise.reshape(-1, *tensor.shape)


@lru_cache(maxsize=1)
def _normals() -> Tensor:
    return ndtri((np.arange(65_536) + 0.5) / 65_536).astype(np.float32)


SMALL_GRIDS = {
    "gaussian": "gaussian:0.01 gaussian:0.05 gaussian:0.1",
    "elastic": "elastic:10,2 elastic:10,10 elastic:20,5 elastic:20,10 elastic:50,5 elastic:70,10",
    "rotation": "rotation:10 rotation:20 rotation:30",
    "affine": "affine:0,0,0.1 affine:0,0.1,0.1 affine:10,0,0.1 affine:10,0.1,0 affine:10,0.1,0.1",
}
PHOTO_GRIDS = {
    "gaussian": "gaussian:0.05 gaussian:0.1",
    "elastic": "elastic:20,5 elastic:50,5",
    "rotation": "rotation:10 rotation:20",
    "affine": "affine:10,0.1,0 affine:10,0.1,0.1",
}


def whole(reading: Reading) -> Settings:
    """The paper's whole grids."""
    return _read(GRIDS, reading)


def mild(classes: int, reading: Reading) -> Settings:
    """A few settings of each transform from the mild end of the paper's grids."""
    grids = SMALL_GRIDS if classes <= 100 else PHOTO_GRIDS
    return _read({family: Panel.parse(views).views for family, views in grids.items()}, reading)


def listed(views: str, reading: Reading) -> Settings:
    """The settings that a text names, by their transform, such as `gaussian:0.01 rotation:10`."""
    found: dict[str, tuple[View, ...]] = {}
    for view in Panel.parse(views):
        family = str(view).partition(":")[0]
        if family not in GRIDS:
            raise DataError(f"{str(view)!r} is none of the paper's transforms, {', '.join(GRIDS)}")
        found[family] = (*found.get(family, ()), view)
    return _read(found, reading)


def _read(settings: Settings, reading: Reading) -> Settings:
    if reading == "looktwice":
        return settings
    return {family: tuple(map(_as_torchvision, views)) for family, views in settings.items()}


def _as_torchvision(view: View) -> View:
    match view:
        case Gaussian():
            return Normalised(view.sigma)
        case Elastic():
            return replace(view, border="constant")
        case Rotation() | Affine():
            return replace(view, border="constant", interpolation="nearest")
    raise DataError(f"{str(view)!r} has no counterpart in torchvision")
