"""Digests of rendered views, to notice when an OpenCV or a change draws other pixels.

`python tests/support/golden_views.py` records those of the installed OpenCV in golden_views.json.
"""

import hashlib
import json
from pathlib import Path

import numpy as np

from looktwice.images.image import Image
from looktwice.views import GENERAL, GRIDS, parse, questions
from looktwice.views.panels import Panel
from looktwice.views.rendering import render

FILE = Path(__file__).parents[1] / "golden_views.json"
SEED = 7
MORE = """
    mirror zoom:0.93 zoom:1.07 zoom:1.15 zoom:0.7 zoom:1.3 zoom:1.8 mirror+zoom:1.07 mirror+zoom:0.85
    mirror+zoom:1.3 mirror+zoom:1.8 turn:5 turn:-5 turn:15 turn:-20 turn:30 turn:-45 mirror+turn:-5 mirror+turn:20
    mirror+turn:-30 shift:-0.06,0 shift:0.06,0 shift:0,-0.03 shift:0,0.06 shift:-0.15,0.1 shift:0.15,-0.1
    crop:0,0,0.8 crop:1,0,0.8 crop:0,1,0.8 crop:1,1,0.8 mirror+crop:0,0.5,0.75 mirror+crop:1,0.5,0.75 crop:0,0,0.62
    crop:1,0,0.62 crop:0,1,0.62 crop:1,1,0.62 perspective:0.2,0 perspective:0,0.3 perspective:-0.35,0 elastic:20,5
    elastic:50,5 tone:contrast=0.7 mirror+tone:contrast=1.4 tone:contrast=0.4 mirror+tone:contrast=2.5
    tone:contrast=0.2 tone:brightness=0.3 tone:brightness=-0.3 tone:cast=-0.15 tone:cast=0.3 tone:cast=-0.4
    tone:grey=1 posterise:4 posterise:2 blur:0.6 blur:1.2 blur:2.4 resample:0.5 resample:0.25 jpeg:30 jpeg:10
    gaussian:0.05 gaussian:0.1 gaussian:0.2 occlude:0.4,where=grid occlude:0.4 occlude:0.5,where=left
    occlude:0.5,where=right occlude:0.6,where=grid
    again turn:30,border=constant turn:30,border=edge turn:30,interpolation=nearest zoom:0.5,border=edge
    rotation:45,interpolation=nearest,border=constant affine:30,0.3,1,border=edge elastic:50,5,interpolation=nearest
    gaussian:1 tone:brightness=0.2,contrast=0.5,grey=0.3,cast=-0.4 blur:4 mirror+rotation:20 zoom:1.3+gaussian:0.1
    rotation:10+tone:grey=0.5+rotation:10 crop:1,0.3,0.5,border=edge,interpolation=nearest crop:0.5,0,0.2
    perspective:0.45,-0.4 perspective:-0.3,0.1,border=constant perspective:0.1,0.3,interpolation=nearest
    occlude:0.3,fill=mean occlude:0.7,where=top,fill=mean occlude:0.2,where=bottom occlude:0.5,where=grid,fill=mean
    posterise:7 posterise:3 resample:0.05 resample:0.9 jpeg:1 jpeg:50 jpeg:75 jpeg:95 jpeg:100 mirror+jpeg:20+turn:10
"""


def picture() -> Image:
    """A picture with slopes, edges and fine structure, made of whole numbers alone."""
    y, x = np.mgrid[0:45, 0:60]
    red, green, blue = 4 * x + y, (x * y) % 256, 255 * ((x // 5 + y // 7) % 2)
    return Image.from_array(np.stack([red % 256, green, blue], axis=2).astype(np.uint8))


def digests() -> dict[str, str]:
    """What each view shows of the picture, as digests by the text of the view."""
    more = tuple(map(parse, MORE.split()))
    views = dict.fromkeys((*GENERAL, *sum(GRIDS.values(), ()), *more))
    asked = questions(picture(), Panel(tuple(views)), SEED)
    shown = render(picture(), asked)
    return {str(q.view): hashlib.sha256(pixels).hexdigest()[:16] for q, pixels in zip(asked, shown, strict=True)}


def opencv() -> str:
    """The major version of the installed OpenCV."""
    import cv2

    return cv2.__version__.split(".")[0]


def main() -> None:
    recorded = json.loads(FILE.read_text()) if FILE.exists() else {}
    recorded[opencv()] = digests()
    FILE.write_text(json.dumps(recorded, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
