"""A page of HTML from saved numbers; asks nothing and fetches nothing."""

from __future__ import annotations

from collections.abc import Sequence

from secondlook import figures
from secondlook.profile import Result
from secondlook.scoring import Reliability

HEADINGS = {"accuracy": "Accuracy", "ece": "ECE", "auroc": "AUROC", "brier": "Brier", "nll": "NLL"}


def page(title: str, results: Sequence[Result], curve: Reliability) -> str:
    """One self-contained file: the table of results and the reliability diagram of the best."""
    from jinja2 import Environment, PackageLoader

    environment = Environment(loader=PackageLoader("secondlook"), autoescape=True)
    template = environment.get_template("page.html")
    return template.render(
        title=title, results=results, headings=HEADINGS, reliability=figures.reliability_svg(curve, title=title)
    )
