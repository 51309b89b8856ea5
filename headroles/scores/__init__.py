"""What heads do: one file per score, all measured in one pass by `score`."""

from headroles.scores.base import Score, Seen, known, named
from headroles.scores.run import attention, score

__all__ = ["Score", "Seen", "attention", "known", "named", "score"]
