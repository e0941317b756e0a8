"""Writes a profile and a ledger of this version to tests/releases/VERSION: python -m support.release

Run it once for a release; from then on every later version must read what it wrote.
"""

from __future__ import annotations

import tempfile
from importlib.resources import files
from pathlib import Path

import looktwice as lt
from looktwice.engine.ledger import maintenance
from looktwice.model import labelled

RELEASES = Path(__file__).parents[1] / "releases"
DEMO = Path(str(files("looktwice") / "demo"))
PICTURES = 40
"""Labelled pictures of the demo that the profile is fitted on and the ledger has answers about."""


def write(folder: Path) -> None:
    """Fit on a few pictures with a ledger, and keep both."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        ledger = Path(temporary) / "ledger.db"
        pictures = labelled(DEMO / "pictures.npz")[:PICTURES]
        with lt.Model(str(DEMO / "fashion.toml"), ledger=str(ledger)) as model:
            model.fit(pictures, views="mirror zoom:1.15")
            profile = model.fitted().model_copy(update={"classifier": "fashion.toml"})
            profile.save(folder / "profile.json")
        (folder / "ledger.db").unlink(missing_ok=True)
        maintenance.backup(ledger, folder / "ledger.db")


if __name__ == "__main__":
    write(RELEASES / lt.__version__)
