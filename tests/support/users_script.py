"""What a user writes; `make check` has mypy and pyright accept it in strict mode, and nobody runs it."""

from pathlib import Path

import looktwice as lt


def doubtful(folder: Path) -> list[str]:
    """The pictures of a folder that are for review, each with what the views said."""
    with lt.Model("my-api.toml", budget=5000) as model:
        profile: lt.Profile = model.fit("labelled/").profile
        print(profile.threshold(max_error=0.02))
        evaluation: lt.Evaluation = model.evaluate("others/", max_error=0.02)
        print(evaluation.outcome.scores().brier)
        first: lt.Verdict = model.look(folder / "cat.jpg")
        print(first.label.upper(), f"{first.confidence:.3f}")
        verdicts = list(model.score(folder, lt.DecisionOptions(max_error=0.02)))
    return [v.sentence for v in verdicts if isinstance(v, lt.Verdict) and v.decision == "review"]


def from_votes(base: list[str], views: list[list[str]], truths: list[str]) -> float:
    """The calibration error of a jury on votes that one already has."""
    labelled = lt.Votes.from_labels(base, views, truths)
    jury = lt.Jury().fit(labelled)
    right = jury.predict(labelled) == labelled.truths
    return lt.metrics.ece(jury.confidence(labelled), right)
