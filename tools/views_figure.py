"""Draws docs/views.png, one picture under many views: python tools/views_figure.py"""

from pathlib import Path

import numpy as np
from PIL import Image as Pillow, ImageDraw, ImageFont

from looktwice.images.image import Image
from looktwice.views import Panel, questions, render

TARGET = Path(__file__).parents[1] / "docs" / "views.png"
SIDE, GAP, CAPTION, COLUMNS = 128, 8, 16, 6
PANEL = Panel.parse("""
    again mirror turn:10 shift:0.12,0.06 zoom:1.3 zoom:0.75
    turn:25,border=edge turn:25,border=constant tone:brightness=0.2 tone:contrast=1.6 tone:grey=1 tone:cast=0.3
    blur:2 mirror+turn:10 gaussian:0.05 gaussian:0.2 rotation:30*2
    affine:10,0.1,0.3*2 elastic:50,5*2 elastic:200,10 mirror+rotation:30
    crop:0,0,0.6 mirror+crop:1,0.5,0.75 perspective:0.3,0 perspective:0,-0.35 posterise:4 posterise:2
    occlude:0.4 occlude:0.5,where=left occlude:0.5,fill=mean occlude:0.5,where=grid resample:0.2 jpeg:5
""")


def main() -> None:
    image = Image.from_array(scene())
    shown = render(image, questions(image, PANEL, seed=1))
    sheet = Pillow.new(
        "RGB", (COLUMNS * (SIDE + GAP) + GAP, -(-len(PANEL) // COLUMNS) * (SIDE + CAPTION + GAP)), "white"
    )
    for place, (view, pixels) in enumerate(zip(PANEL, shown, strict=True)):
        row, column = divmod(place, COLUMNS)
        left, top = GAP + column * (SIDE + GAP), row * (SIDE + CAPTION + GAP)
        sheet.paste(Pillow.fromarray(pixels), (left, top + CAPTION))
        font = ImageFont.load_default(10 if len(str(view)) < 26 else 9)
        ImageDraw.Draw(sheet).text((left, top + 2), str(view), fill="black", font=font)
    sheet.quantize(128).save(TARGET, optimize=True)


def scene() -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """A house under the sun, drawn at four times the size and scaled down for smooth edges."""
    big = 4 * SIDE
    picture = Pillow.new("RGB", (big, big), (150, 200, 235))
    draw = ImageDraw.Draw(picture)
    draw.rectangle((0, 350, big, big), fill=(110, 160, 80))
    draw.ellipse((40, 40, 130, 130), fill=(250, 215, 80))
    draw.rectangle((150, 220, 390, 420), fill=(225, 205, 170))
    draw.polygon([(120, 225), (270, 95), (420, 225)], fill=(170, 60, 45))
    draw.rectangle((330, 110, 365, 190), fill=(150, 55, 45))
    draw.rectangle((180, 260, 240, 320), fill=(70, 110, 160), outline="white", width=8)
    draw.rectangle((285, 280, 350, 420), fill=(95, 60, 40))
    draw.ellipse((425, 210, 505, 330), fill=(45, 110, 55))
    draw.rectangle((458, 320, 472, 400), fill=(95, 70, 45))
    return np.asarray(picture.resize((SIDE, SIDE), Pillow.Resampling.LANCZOS))


if __name__ == "__main__":
    main()
