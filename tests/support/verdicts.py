"""Verdicts for tests."""

from looktwice.decisions.verdict import AGAIN, Asked, Verdict


def verdict(name: str, label: str, confidence: float, *votes: str | None, base: str = "", **more: object) -> Verdict:
    """A verdict whose views, called 1, 2 …, have these labels; the base label is that of the verdict unless given."""
    labels = {AGAIN: base or label} | {str(place): vote for place, vote in enumerate(votes, 1)}
    asked = [Asked(classifier="test", view=view, label=answer) for view, answer in labels.items()]
    fields = {"low": confidence, "high": confidence, "asked": asked} | more
    return Verdict.model_validate({"name": name, "label": label, "confidence": confidence, **fields})
