"""Scores of gradients of the zoo's models on a few sentences."""

from __future__ import annotations

from functools import cache

from helpers import zoo
from helpers.letters import corpus, sums, tokens_of, total

import headroles as hr

RULES = ["cp", "attn", "voita", "gradient"]


def finished(score, head_gradients):
    return score.compute(total(sums(score, head_gradients)))


FEW = 5  # sentences


def asked():
    """Relevance by every rule set, and importance."""
    return [*(hr.Relevance(rules=rules, steps="sum" if rules == "voita" else "all") for rules in RULES), "importance"]


def measured(name, scores, given=None, **options):
    """The scores of a model of the zoo on a few sentences, by default without resamples."""
    options = {"n_resamples": 0} | options
    return hr.score(zoo.tiny(name), tokens_of(name), given or corpus(FEW), scores, **options)


@cache
def scored(name):
    return measured(name, asked(), n_resamples=20)
