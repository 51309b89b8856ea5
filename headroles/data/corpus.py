"""Corpora of sentences: plain data with a hash (no torch)."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any, overload

import numpy as np
import pandas as pd

from headroles.data.sentences import (
    BAD,
    GOOD,
    RELATIONS,
    Chat,
    Linked,
    Prompt,
    Sentence,
    Span,
    Tokens,
    as_chat,
    complete,
    pair,
    sentences,
)
from headroles.data.speech import undecoded

__all__ = ["BAD", "GOOD", "RELATIONS", "Chat", "Corpus", "CorpusLike", "Linked", "Prompt", "Sentence", "Span", "Tokens"]
__all__ += ["as_chat", "pair", "partners"]
SHOWN = 5  # sentences of a corpus in a notebook


@dataclass(frozen=True)
class Corpus:
    """A named sequence of sentences, which is not edited: its hash is computed once, and kept tables go by it.

    Args:
        name: The name that tables and their provenance mention.
        sentences: The sentences.

    Example:
        >>> corpus = Corpus.of(["The dog sleeps.", "It dreams."], name="two")
        >>> len(corpus), corpus[0].text
        (2, 'The dog sleeps.')
    """

    name: str
    sentences: tuple[Sentence, ...]

    @cached_property
    def hash(self) -> str:
        """First 12 hexadecimal digits of the SHA-256 of the sentences with all their fields."""
        digest = hashlib.sha256()
        for sentence in self:
            digest.update(repr(sentence).encode())
        return digest.hexdigest()[:12]

    @property
    def chat(self) -> bool:
        """Whether the tokenizer's chat template is written around sentences."""
        return any(isinstance(sentence, Chat) for sentence in self)

    def __len__(self) -> int:
        return len(self.sentences)

    def __iter__(self) -> Iterator[Sentence]:
        return iter(self.sentences)

    def __repr__(self) -> str:
        return f"<Corpus {self.name!r}: {len(self)} sentence{'s' * (len(self) != 1)}>"

    def _repr_html_(self) -> str:
        """Show the size of the corpus and its first sentences in a notebook."""
        from headroles.tables.frame import shown

        counts = {
            "with a tree": sum(sentence.has_tree for sentence in self),
            "with a translation": sum(sentence.target is not None for sentence in self),
            "with a label": sum(sentence.label is not None for sentence in self),
        }
        facts = [f"{count} {what}" for what, count in counts.items() if count]
        caption = ", ".join([f"Corpus {self.name}: {len(self)} sentences", *facts])
        rows = [
            {"text": s.text, "second text": s.second, "translation": s.target and s.target.text, "label": s.label}
            for s in self[:SHOWN]
        ]
        used = [name for name in ("text", "second text", "translation", "label") if any(row[name] for row in rows)]
        return shown(caption, ({name: row[name] or "" for name in used} for row in rows))

    @classmethod
    def of(
        cls, texts: TextsLike | Rows, name: str | None = None, *, chat: bool = False, answer_only: bool = True
    ) -> Corpus:
        """Build a corpus of texts, pairs or rows; a corpus is returned as it is.

        Args:
            texts: Texts, pairs of a text and its translation, sentences; or a data frame, a `datasets.Dataset` or other
                rows with columns as of `headroles.read`.
            name: Name of the corpus; by default "texts".
            chat: Whether each text is the user's turn of a chat, as of `headroles.read`.
            answer_only: Whether of texts with answers the answer alone has a loss, as of `headroles.read`.

        Returns:
            The corpus.

        Raises:
            TypeError: If `texts` or one of them has another type.
        """
        if chat or not answer_only:
            corpus = cls.of(texts, name)
            read: Iterable[Sentence] = map(as_chat, corpus) if chat else corpus
            kept = (replace(row, answer_only=answer_only) if isinstance(row, Prompt) else row for row in read)
            return cls(corpus.name, tuple(kept))
        if isinstance(texts, Corpus):
            return texts if name is None else cls(name, texts.sentences)
        if isinstance(texts, str | Mapping) or not isinstance(texts, Iterable):
            hint = f"; try one of its parts: {', '.join(map(repr, texts))}" if isinstance(texts, Mapping) else ""
            raise TypeError(f"corpus must be {TAKEN}, got {type(texts).__name__}{hint}")
        if isinstance(texts, pd.DataFrame):
            texts = [{str(column): value for column, value in row.items()} for row in texts.to_dict("records")]
        name = name or getattr(texts, "name", None) or "texts"
        items: list[Any] = list(undecoded(texts))
        if items and all(isinstance(item, Mapping) for item in items):
            columns = dict.fromkeys(column for item in items for column in item)
            rows = sentences(items, columns, name, features=getattr(texts, "features", None))
            return cls(name, tuple(complete(rows, name)))
        return cls(name, tuple(_sentence(number, item) for number, item in enumerate(items, 1)))

    @overload
    def __getitem__(self, item: int) -> Sentence: ...
    @overload
    def __getitem__(self, item: slice) -> Corpus: ...
    def __getitem__(self, item: int | slice) -> Sentence | Corpus:
        """Return a sentence, or a corpus of the same name over a slice."""
        if isinstance(item, slice):
            return Corpus(self.name, self.sentences[item])
        return self.sentences[item]

    def joined(self, between: str = " ") -> Corpus:
        """Join each sentence and its translation to one text, which a language model reads.

        Args:
            between: The text between the two.

        Returns:
            The texts, with the words of both, their links and labels; without trees.

        Raises:
            ValueError: If a sentence has no translation.
        """  # noqa: DOC502
        return replace(self, sentences=tuple(_joined(pair, between) for pair in self))

    def sample(self, count: int | None, *, seed: int = 0) -> Corpus:
        """Draw `count` sentences at random, in their order; None, or more than there are, gives the whole corpus."""
        if count is None or count >= len(self):
            return self
        drawn = sorted(random.Random(seed).sample(range(len(self)), count))
        return Corpus(self.name, tuple(self.sentences[place] for place in drawn))


TextsLike = Corpus | Iterable[str | Sentence | Sequence[str]]
Rows = Iterable[Mapping[str, Any]]
CorpusLike = TextsLike | Rows | str | Path  # what functions take as a corpus
TAKEN = "a corpus, texts in a list, pairs of texts, a path, or a data set"


def _sentence(number: int, item: object) -> Sentence:
    """Return a text as a sentence, and a pair as one with a translation."""
    if isinstance(item, Sentence):
        return item
    match [item] if isinstance(item, str) else item:
        case [str(text)]:
            return Sentence(text)
        case [str(text), str(target)]:
            return Sentence(text, target=Sentence(target))
    raise TypeError(f"entry {number} must be a text, a pair (text, translation) or a Sentence, got {item!r:.60}")


def _joined(pair: Sentence, between: str) -> Linked:
    """Return a sentence and its translation as one text, with the words of both."""
    if pair.target is None:
        raise ValueError(
            f"sentence {pair.text!r} must have a translation to be joined, got none; try hr.read(source, target)"
        )
    start, words = len(pair.text) + len(between), len(pair.spans)
    moved = tuple(span and (span[0] + start, span[1] + start) for span in pair.target.spans)
    links = tuple((source, words + target) for source, target in getattr(pair, "links", ()))
    return Linked(f"{pair.text}{between}{pair.target.text}", (*pair.spans, *moved), label=pair.label, links=links)


def partners(lengths: Sequence[tuple[int, ...]], seed: int) -> list[int]:
    """Draw for each example another one of similar length; each is drawn once. Returns their indices."""
    if len(lengths) < 2:
        raise ValueError(f"replacement 'resample' needs two or more examples, got {len(lengths)}; try another")
    buckets: list[list[int]] = []  # of examples of the same lengths; one alone is merged with the next longer ones
    for _, group in groupby(sorted(range(len(lengths)), key=lengths.__getitem__), key=lengths.__getitem__):
        if buckets and len(buckets[-1]) < 2:
            buckets[-1] += group
        else:
            buckets.append(list(group))
    if len(buckets[-1]) < 2:
        buckets[-2:] = [buckets[-2] + buckets[-1]]
    places = np.empty(len(lengths), dtype=int)
    draws = np.random.default_rng(seed)
    for bucket in buckets:  # the partner is the next one in the shuffled bucket
        shuffled = draws.permutation(bucket)
        places[shuffled] = np.roll(shuffled, -1)
    return [int(place) for place in places]
