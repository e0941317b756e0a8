"""Ways to look again at a picture: the families, panels of them, the questions they make, and their pixels."""

from looktwice.views.base import REGISTERED, Between, Floats, Pixels, Question, View, Worded, register
from looktwice.views.families import (
    Affine,
    Again,
    Blur,
    Chain,
    Describe,
    Elastic,
    Gaussian,
    Mirror,
    Order,
    Ranked,
    Rotation,
    Shift,
    Tone,
    Turn,
    Wording,
    Zoom,
)
from looktwice.views.panels import CANDIDATES, GENERAL, GENERAL16, GRIDS, PROMPTED, Panel, base_question, questions
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
    "PROMPTED",
    "RENDERER",
    "Affine",
    "Again",
    "Between",
    "Blur",
    "Border",
    "Chain",
    "Describe",
    "Elastic",
    "Floats",
    "Gaussian",
    "Interpolation",
    "Mirror",
    "Motion",
    "Moving",
    "Order",
    "Panel",
    "Pixels",
    "Question",
    "Ranked",
    "Rotation",
    "Sampled",
    "Shift",
    "Tone",
    "Turn",
    "View",
    "Worded",
    "Wording",
    "Zoom",
    "base_question",
    "parse",
    "questions",
    "register",
    "render",
    "render_into",
    "renderer",
]
