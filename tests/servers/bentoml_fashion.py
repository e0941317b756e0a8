"""BentoML with the embedded classifier: `python bentoml_fashion.py MODEL PORT`, in BentoML's environment.

The method `classify` takes an image in a form and replies with plain text, as in the `bentoml` preset.
"""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import bentoml
from fashion import Fashion
from PIL.Image import Image


@bentoml.service(workers=1)
class Service:
    """A picture in, a label out."""

    def __init__(self) -> None:
        self._model = Fashion(os.environ["FASHION_MODEL"])

    @bentoml.api
    def classify(self, image: Image) -> str:
        file = io.BytesIO()
        image.save(file, "PNG")
        return self._model.label(file.getvalue())


if __name__ == "__main__":
    # The workers are other processes, which know the environment but not the arguments.
    os.environ["FASHION_MODEL"] = sys.argv[1]
    os.environ["BENTOML_DO_NOT_TRACK"] = "True"
    os.chdir(Path(__file__).parent)
    command = [
        sys.executable,
        "-m",
        "bentoml",
        "serve",
        "bentoml_fashion:Service",
        "--host",
        "127.0.0.1",
        "--port",
        sys.argv[2],
    ]
    os.execv(sys.executable, command)
