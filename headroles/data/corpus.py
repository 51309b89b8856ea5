"""A sentence, with words and tree or as tokens, and a corpus of sentences with its hash: plain data, no torch."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import overload

Span = tuple[int, int]
RELATIONS = ("nsubj", "obj", "amod", "advmod")  # Voita et al. 2019, in Universal Dependencies' names


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence: its text, optionally its words and dependency tree, its translation, a label.

    `spans[i]` are the first character of word i in `text` and the one after its last; None for a word that is no
    stretch of the text (German "zum" = "zu" + "dem"). `heads[i]` is the index of the word that governs word i, -1 for
    the root.
    """

    text: str
    spans: tuple[Span | None, ...] = ()
    heads: tuple[int, ...] = ()
    relations: tuple[str, ...] = ()
    target: Sentence | None = None
    label: str | None = None
    second: str | None = None  # the other text of a sentence pair (MRPC, RTE, QNLI, MNLI)

    def __post_init__(self) -> None:
        if not len(self.heads) == len(self.relations) or (self.heads and len(self.heads) != len(self.spans)):
            raise ValueError(
                f"a tree needs one head and one relation per word; got {len(self.spans)} words, "
                f"{len(self.heads)} heads, {len(self.relations)} relations in {self.text!r}"
            )

    @property
    def has_tree(self) -> bool:
        """Whether the sentence carries a dependency tree."""
        return bool(self.heads)


@dataclass(frozen=True, slots=True)
class Tokens(Sentence):
    """A sentence that is read as the tokens `ids`, whatever a tokenizer would make of its text."""

    ids: tuple[int, ...] = ()


def digested(sentences: Iterable[Sentence]) -> str:
    """The first 12 hexadecimal digits of the SHA-256 of everything the sentences hold."""
    digest = hashlib.sha256()
    for sentence in sentences:
        digest.update(repr(sentence).encode())
    return digest.hexdigest()[:12]


@dataclass(frozen=True)
class Corpus:
    """A named sequence of sentences."""

    name: str
    sentences: tuple[Sentence, ...]

    @cached_property
    def hash(self) -> str:
        """The first 12 hexadecimal digits of the SHA-256 of everything the sentences hold."""
        return digested(self.sentences)

    def __len__(self) -> int:
        return len(self.sentences)

    def __iter__(self) -> Iterator[Sentence]:
        return iter(self.sentences)

    @classmethod
    def of(cls, texts: Iterable[str], name: str = "texts") -> Corpus:
        """A corpus of plain strings, each read as it is. Raises TypeError for one string in place of several."""
        if isinstance(texts, str):
            raise TypeError(f"expected several texts, got one string {texts[:40]!r}; put it in a list")
        return cls(name, tuple(map(Sentence, texts)))

    @overload
    def __getitem__(self, item: int) -> Sentence: ...
    @overload
    def __getitem__(self, item: slice) -> Corpus: ...
    def __getitem__(self, item: int | slice) -> Sentence | Corpus:
        """A sentence, or a corpus of the same name over a slice of the sentences."""
        if isinstance(item, slice):
            return Corpus(self.name, self.sentences[item])
        return self.sentences[item]

    def sample(self, count: int | None, *, seed: int = 0) -> Corpus:
        """So many sentences drawn by chance, in their order; all where there are no more, or none is asked for.

        Files of examples are often in an order, and their first lines are of a kind: not a sample to learn from.
        """
        if count is None or count >= len(self):
            return self
        drawn = sorted(random.Random(seed).sample(range(len(self)), count))
        return Corpus(self.name, tuple(self.sentences[place] for place in drawn))
