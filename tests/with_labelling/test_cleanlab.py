"""The recipe of the documents, with a real cleanlab: labels that were made wrong on purpose are found."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
from support.serving import DEMO

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "label-elsewhere.md"
WRONG = 20


def test_the_recipe_finds_labels_that_are_wrong() -> None:
    with np.load(DEMO / "pictures.npz") as file:
        names = file["class_names"].astype(str)
        truths = [str(name) for name in names[file["labels"][:400]]]
        pictures = file["images"][:400]
    labels = list(truths)
    spoiled = set(np.random.default_rng(0).choice(400, WRONG, replace=False).tolist())
    for place in spoiled:
        labels[place] = str(names[(names.tolist().index(truths[place]) + 5) % len(names)])
    recipe = re.search(r"```py\n(import numpy as np\nfrom cleanlab.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert recipe
    space: dict[str, Any] = {"classifier": str(DEMO / "fashion.toml"), "pictures": pictures, "labels": np.array(labels)}
    exec(compile(recipe[1], PAGE.name, "exec"), space)
    assert space["pred_probs"].shape == (400, len(names))
    # By chance it would be one of them; the classifier's own confident mistakes are among the others.
    assert len(spoiled & set(space["issues"][:WRONG].tolist())) >= WRONG / 2
