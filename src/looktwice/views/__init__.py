"""Ways to look again at a picture: the families, panels of them, the questions they make, and their pixels."""

from looktwice.views.base import REGISTERED, Between, Floats, Pixels, Question, View, register
from looktwice.views.families import (
    Affine,
    Again,
    Blur,
    Chain,
    Elastic,
    Gaussian,
    Mirror,
    Rotation,
    Shift,
    Tone,
    Turn,
    Zoom,
)
from looktwice.views.panels import CANDIDATES, GENERAL, GENERAL16, GRIDS, Panel, base_question, questions
from looktwice.views.rendering import RENDERER, render, render_into, renderer
from looktwice.views.text import parse
from looktwice.views.warping import Border, Interpolation, Motion, Moving, Sampled

FAMILIES: tuple[type[View], ...] = tuple(REGISTERED.values())
"""The families that come with looktwice."""

__all__ = [
    "CANDIDATES",
    "FAMILIES",
    "GENERAL",
    "GENERAL16",
    "GRIDS",
    "RENDERER",
    "Affine",
    "Again",
    "Between",
    "Blur",
    "Border",
    "Chain",
    "Elastic",
    "Floats",
    "Gaussian",
    "Interpolation",
    "Mirror",
    "Motion",
    "Moving",
    "Panel",
    "Pixels",
    "Question",
    "Rotation",
    "Sampled",
    "Shift",
    "Tone",
    "Turn",
    "View",
    "Zoom",
    "base_question",
    "parse",
    "questions",
    "register",
    "render",
    "render_into",
    "renderer",
]
