"""Scores: one number per head from attention, from gradients, from relevance."""

from headroles.scores.base import Measure, Score, Seen, known, named
from headroles.scores.gradients.base import Gradient, Slopes
from headroles.scores.gradients.captum import Attribution
from headroles.scores.gradients.importance import Importance
from headroles.scores.gradients.relevance import Relevance
from headroles.scores.runner import attention, score

__all__ = [
    "Attribution",
    "Gradient",
    "Importance",
    "Measure",
    "Relevance",
    "Score",
    "Seen",
    "Slopes",
    "attention",
    "known",
    "named",
    "score",
]
