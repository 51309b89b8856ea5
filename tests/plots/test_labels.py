"""Columns and rankings are said in words."""

from __future__ import annotations

from headroles.plots.labels import label_of

LABELS = {
    "relevance[cp].size": "size of relevance (cp)", "relevance[cp logit].size": "size of relevance (cp), of the whole",
    "-importance": "−importance", "importance, again": "importance, recomputed",
    "cross by importance": "cross-attention, by importance", "survival[l0 36]": "survival at 36 heads (L0)",
    "survival[l0 24 enc-self]": "survival at 24 heads (L0, encoder)", "survival[6]": "survival at 6 heads",
    "syntax[obj dep>head]": "object → its verb", "l0": "L0", "random per layer": "random per layer"
}  # fmt: skip


def test_columns_and_rankings_are_in_words():
    assert {name: label_of(name) for name in LABELS} == LABELS
