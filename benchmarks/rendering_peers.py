"""Ours beside albumentations and kornia; rendering.py runs this in the environment of the peers and reads its rows."""

import json
import warnings
from collections.abc import Callable

import albumentations
import cv2
import kornia.augmentation
import numpy as np
import torch
from numpy.typing import NDArray
from rendering import REFLECT, VIEWS, compare

Pixels = NDArray[np.uint8]
SURE = {"p": 1.0}


def main() -> None:
    cv2.setNumThreads(1)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rows = compare(ALBUMENTATIONS, "albumentations 2.0.8", lambda size, _: 3 if size == 32 else 1.2)
    rows += compare(KORNIA, f"kornia {kornia.__version__}", lambda *_: 3)
    print(json.dumps(rows))


def one_by_one(transform: Callable[..., dict[str, Pixels]]) -> Callable[[Pixels], Pixels]:
    return lambda pixels: np.stack([transform(image=pixels)["image"] for _ in range(VIEWS)])


def in_a_batch(transform: torch.nn.Module) -> Callable[[Pixels], Pixels]:
    def draw(pixels: Pixels) -> Pixels:
        batch = torch.from_numpy(pixels).permute(2, 0, 1).float().div(255).expand(VIEWS, -1, -1, -1)
        with torch.inference_mode():
            drawn = transform(batch)
        return drawn.mul(255).round().clamp(0, 255).byte().permute(0, 2, 3, 1).contiguous().numpy()

    return draw


ALBUMENTATIONS = {
    "rotation:30*10": one_by_one(albumentations.Rotate(30, border_mode=REFLECT, **SURE)),
    "affine:10,0.1,0.1*10": one_by_one(
        albumentations.Affine((0.9, 1.1), (-0.1, 0.1), rotate=(-10, 10), border_mode=REFLECT, **SURE)
    ),
    "gaussian:0.1*10": one_by_one(albumentations.GaussNoise((0.1, 0.1), **SURE)),
    "elastic:50,5*10": one_by_one(
        albumentations.ElasticTransform(25, 5, noise_distribution="uniform", border_mode=REFLECT, **SURE)
    ),
}

KORNIA = {
    "rotation:30*10": in_a_batch(kornia.augmentation.RandomRotation(30.0, **SURE)),
    "affine:10,0.1,0.1*10": in_a_batch(kornia.augmentation.RandomAffine(10.0, (0.1, 0.1), (0.9, 1.1), **SURE)),
    "gaussian:0.1*10": in_a_batch(kornia.augmentation.RandomGaussianNoise(std=0.1, **SURE)),
    "elastic:50,5*10": in_a_batch(kornia.augmentation.RandomElasticTransform((41, 41), (5.0, 5.0), **SURE)),
}


if __name__ == "__main__":
    main()
