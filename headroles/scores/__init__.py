"""What heads do: one file per score, those of attention measured in one pass by `score`."""

from headroles.scores.attribution import Attribution
from headroles.scores.base import Measure, Score, Seen, known, named
from headroles.scores.gradient import Gradient, Slopes
from headroles.scores.importance import Importance
from headroles.scores.relevance import Relevance
from headroles.scores.run import attention, score

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
