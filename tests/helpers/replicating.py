"""What several tests of replications share."""

from __future__ import annotations

from functools import cache

from headroles.data import synthetic

HALVES = {"held_out": 8, "trees": 10, "pieces": 300}


@cache
def pairs():
    """Toy sentences with trees and translations."""
    return synthetic.synthetic_corpus(100, translated=True)
