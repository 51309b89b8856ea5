"""Words and dependents of toy sentences."""

from __future__ import annotations

from headroles.data.corpus import Sentence


def words(sentence: Sentence) -> list[str]:
    return [sentence.text[slice(*span)] for span in sentence.spans if span]


def children(sentence: Sentence, head: int, relation: str) -> list[int]:
    pairs = enumerate(zip(sentence.heads, sentence.relations, strict=True))
    return [i for i, pair in pairs if pair == (head, relation)]
