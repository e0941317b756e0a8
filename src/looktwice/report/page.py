"""Render the page: text, charts and tables; all external text is escaped."""

from __future__ import annotations

import platform
import re
from importlib.metadata import version
from pathlib import Path
from typing import cast

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from looktwice.model import (
    Claim,
    DataError,
    DecisionOptions,
    TagPolicy,
    calibration,
    files,
    metrics,
    missing_sentence,
    plots,
    selection_level,
    sets_lines,
    tagging,
)
from looktwice.report import findings, gallery
from looktwice.report.findings import Guarantee
from looktwice.report.inputs import Judged, ReportInputs, judge, tag_evidence, weigh

FIGURES = {
    "accuracy": ("Accuracy", "↑", "how often the answer is right"),
    "ece": ("ECE", "↓", "mean absolute difference between confidence and accuracy"),
    "auroc": ("AUROC", "↑", "how often a right answer has a higher confidence than a wrong one; 0.5 is chance"),
    "brier": ("Brier", "↓", "squared distance between the distribution and the true label, from 0 to 2"),
    "nll": ("NLL", "↓", "negative log-likelihood of the true label; a single confident mistake is penalised heavily"),
}
SPACE = "\u00a0"
"""A no-break space, which keeps a number and its unit on one line."""
PARTS = ("numpy", "scipy", "opencv-python-headless", "pillow")


ENDINGS = (".html", ".htm")
"""The endings of reports."""


def write(path: Path, inputs: ReportInputs) -> None:
    """Write the page atomically; raises a DataError if it cannot be written."""
    files.write(path, page(inputs))


def page(inputs: ReportInputs) -> str:
    """One self-contained HTML file, without scripts or external resources."""
    if inputs.profile.kind == "tags":
        return _tag_page(inputs)
    judged = judge(inputs)
    evidence = weigh(inputs, judged)
    asked = judged.confidence if judged else evidence.confidence
    guarantees = findings.guarantees(evidence, asked, inputs.max_error, inputs.level)
    chosen = next(guarantee for guarantee in guarantees if guarantee.max_error == inputs.max_error)
    curve = metrics.risk_coverage(evidence.confidence, evidence.correct)
    # Only pictures that took no part in the fit show how the profile's guarantee turns out.
    labelled = judged.labelled() if judged else None
    fresh = judged is not None and judged.correct is not None and not judged.taught
    kept = findings.kept(inputs.using().held_out, evidence, inputs.max_error, inputs.level) if fresh else None
    # look and score accept by the profile's guarantee: it leads the page where the pictures here bear it out.
    borne_out = kept is not None and kept.wrong is not None and kept.wrong <= kept.max_error
    leading = kept if kept and borne_out else chosen
    classes = findings.classes(judged) if judged else []
    context = {
        "inputs": inputs,
        "profile": inputs.profile,
        "evidence": evidence,
        "advice": inputs.profile.advice(evidence.results),
        "judged": judged,
        "guarantees": guarantees,
        "ladder_level": selection_level(inputs.level),
        "chosen": chosen,
        "leading": leading,
        "headline": headline(leading),
        "kept": kept,
        "sets": sets_lines(inputs.using(), labelled) if labelled and fresh else [],
        "looser": next((guarantee for guarantee in guarantees if guarantee.threshold is not None), None),
        "figures": FIGURES,
        "reliability": _drawn(plots.reliability_svg(metrics.reliability(evidence.confidence, evidence.correct))),
        "risk": _drawn(plots.risk_coverage_svg(curve, leading.threshold)),
        "enough": findings.enough(inputs.profile.curve),
        "gain": _drawn(inputs.profile.plot_curve()) if len(inputs.profile.curve) > 1 else None,
        "classes": classes[: findings.CLASSES],
        "more_classes": max(0, len(classes) - findings.CLASSES),
        **_pictures(inputs, judged),
        "prices": inputs.prices() if inputs.price_micros else None,
        "verdict_price": inputs.verdict_price(evidence.believed.queries),
        "asked": (judged.votes.answers() != calibration.MISSING).sum(axis=0) if judged else None,
        "facts": _facts(inputs),
    }
    return _environment().get_template("report.html").render(context)


def _tag_page(inputs: ReportInputs) -> str:
    """The page about a tag profile."""
    profile, policy = inputs.profile, cast("TagPolicy", inputs.policy or DecisionOptions().of(inputs.profile))
    probability, truths, source = tag_evidence(inputs, policy)
    claims = policy.claims or (Claim(inputs.max_error),)
    expected = policy.accepting(claims, profile, inputs.level, "estimate")
    context = {
        "inputs": inputs,
        "profile": profile,
        "source": source,
        "scores": tagging.scores(probability, truths, policy),
        "missing": missing_sentence(claims, policy.claim_tests(claims, profile, inputs.level)),
        "expected": tagging.scores(probability, truths, expected).done,
        "basis": policy.basis,
        "reliability": _drawn(tagging.reliability_svg(probability, truths)),
        "facts": _facts(inputs),
    }
    return _environment().get_template("tags.html").render(context)


def headline(guarantee: Guarantee) -> str:
    """The recommendation, in one sentence.

    >>> headline(Guarantee(0.02, 0.8701, 0.7, 0.011, None)).replace(SPACE, " ")
    'Accept above 0.871: at most 2 % wrong'
    """
    error, expected = percent(guarantee.max_error), guarantee.estimate
    if guarantee.threshold is None:
        if expected is None:
            return f"No guarantee yet that at most {error} are wrong"
        which = "every answer" if expected.threshold == 0 else f"above {plots.upward(expected.threshold)}"
        return f"Best estimate: accept {which}, with about {percent(expected.error)} wrong"
    if guarantee.threshold == 0:
        return f"Accept every answer: at most {error} wrong"
    return f"Accept above {plots.upward(guarantee.threshold)}: at most {error} wrong"


def percent(share: float | None) -> str:
    """Format a share as a percentage, with one decimal if needed.

    >>> percent(0.02).replace(SPACE, " "), percent(None)
    ('2 %', '–')
    """
    return "–" if share is None else f"{round(100 * share, 1):g}{SPACE}%"


# Parts of the page ---------------------------------------------------------------------------------------------------


def _pictures(inputs: ReportInputs, judged: Judged | None) -> dict[str, object]:
    names = set(judged.votes.names) if judged else set()
    known = [item for item in inputs.pictures if item.name in names]
    if inputs.pictures and judged and not known:
        raise DataError(
            f"none of the pictures is in the votes: they begin with {inputs.pictures[0].name!r} and the votes with "
            f"{judged.votes.names[0]!r}; give the same folder or file as when they were queried",
            code="votes-mismatch",
        )
    policy = inputs.using()
    rows = gallery.panel(policy, inputs.profile.seed, judged, gallery.sample(known or inputs.pictures))
    top = max((abs(row.weight) for row in rows if row.weight is not None), default=1.0) or 1.0
    galleries, note = [], ""
    if judged:
        described = [inputs.descriptors.get(digest) for digest in judged.votes.digests]
        compared = None if judged.taught else policy.compare(judged.votes, described)
        galleries = gallery.galleries(judged, known, compared.reasons if compared else {}, policy.false_alarms)
    if judged and not judged.taught:
        if policy.familiarity is None and policy.answers is None:
            note = "This profile cannot tell whether pictures are like the labelled ones; fit again for that."
        elif policy.familiarity and all(descriptor is None for descriptor in described):
            by = "by their answers alone" if policy.answers else "not at all"
            note = (
                f"Pictures were compared with the labelled ones {by}: votes hold no pixels; give the pictures as well."
            )
    return {
        "panel": rows,
        "top_weight": top,
        "more_views": len(set(policy.panel)) - len(rows) + 1,
        "own_sample": bool(inputs.pictures),
        "galleries": galleries,
        "familiarity_note": note,
    }


# To do it again ------------------------------------------------------------------------------------------------------


def _facts(inputs: ReportInputs) -> dict[str, str]:
    profile = inputs.profile
    packages = ", ".join(f"{name} {version(name)}" for name in PARTS)
    return {
        "classifier": profile.classifier,
        "fingerprint": profile.fingerprint,
        "classes": f"{profile.classes:,}",
        "views": str(profile.views()) or "none",
        "seed of random views": str(profile.seed),
        "renderer": profile.renderer,
        "calibrator": str(profile.calibrator["family"]),
        "labelled pictures": f"{profile.pictures:,}",
        "profile made by": f"looktwice {profile.looktwice}",
        "report made by": f"looktwice {version('looktwice')}, Python {platform.python_version()}, {packages}",
    }


# Words ---------------------------------------------------------------------------------------------------------------


def _drawn(svg: str) -> Markup:
    """A figure without escaping, since `figures` has escaped all text in it."""
    return Markup(svg)  # noqa: S704


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("looktwice.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "percent": percent,
        "tenths": lambda share: "–" if share is None else f"{100 * share:.1f}{SPACE}%",
        "three": lambda value: "–" if value is None else f"{value:.3f}",
        "upward": plots.upward,
        "whole": lambda count: f"{count:,}",
        "signed": lambda value: f"{value:.2f}".replace("-", "\N{MINUS SIGN}"),
        "money": lambda price: f"{price:,.2f}" if price >= 1 else f"{price:,.4f}",
        "ends": lambda f: "" if f.low is None or f.high is None else f"{f.low:.3f} to {f.high:.3f}",
        "fewer": lambda value: f"{value:g}" if float(value).is_integer() else f"{value:.1f}",
        "breakable": lambda name: Markup("<wbr>").join(re.split(r"(?=[#/_])", name)),
    }
    return environment
