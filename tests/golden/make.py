"""Write the golden profile and the verdicts that it gives: python tests/golden/make.py

Whatever is rewritten around them, a stored profile with fixed views gives these verdicts to the last digit.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from looktwice import Model, Verdict
from looktwice.images.collection import Picture, labelled

HERE = Path(__file__).parent
DEMO = Path(str(files("looktwice") / "demo"))
PROFILE = HERE / "profile.json"
VERDICTS = HERE / "verdicts.csv"
VIEWS = "mirror zoom:1.15 turn:8 rotation:20*2 gaussian:0.05"


def pictures() -> Sequence[Picture]:
    """Pictures that took no part in fitting."""
    return labelled(DEMO / "pictures.npz")[1000:1060]


def rows(verdicts: Sequence[Verdict]) -> list[list[str]]:
    """What must stay the same of each verdict, as texts of full precision."""
    return [[v.name, v.label, repr(v.confidence), str(v.decision), str(v.queries)] for v in verdicts]


def read() -> list[list[str]]:
    with VERDICTS.open(newline="") as file:
        return list(csv.reader(file))


def main() -> None:
    with Model(str(DEMO / "fashion.toml")) as model:
        profile = model.fit(labelled(DEMO / "pictures.npz")[:200], views=VIEWS).profile
        profile.model_copy(update={"classifier": "fashion.toml"}).save(PROFILE)
        verdicts = [verdict for verdict in model.score(pictures(), all=True) if isinstance(verdict, Verdict)]
    with VERDICTS.open("w", newline="") as file:
        csv.writer(file).writerows(rows(verdicts))


if __name__ == "__main__":
    main()
