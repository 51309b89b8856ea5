"""Sentences, with words and tree or as token ids, and corpora of them: plain data with a hash (no torch)."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any, overload

import numpy as np

Span = tuple[int, int]
SHOWN = 5  # sentences of a corpus in a notebook
RELATIONS = ("nsubj", "obj", "amod", "advmod")  # Voita et al. 2019, in Universal Dependencies' names


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence, optionally with tree, translation, label and second text.

    Args:
        text: The text.
        spans: First character and end of each word in `text`; None for a word that is not a substring of the text
            (German "zum" = "zu" + "dem").
        heads: Index of the head of each word, -1 for the root. Empty: no tree.
        relations: Dependency relation of each word to its head, in Universal Dependencies' names.
        target: The translation.
        label: The class, by name or number; several with commas between; or a value on a scale.
        second: The second text of a sentence pair (MRPC, RTE, QNLI, MNLI).

    Raises:
        ValueError: If a tree has not one head and one relation per word.
    """

    text: str
    spans: tuple[Span | None, ...] = ()
    heads: tuple[int, ...] = ()
    relations: tuple[str, ...] = ()
    target: Sentence | None = None
    label: str | None = None
    second: str | None = None

    def __post_init__(self) -> None:
        if self.label is not None and not isinstance(self.label, str):  # a number, as data sets have them
            object.__setattr__(self, "label", str(self.label))
        if not len(self.heads) == len(self.relations) or (self.heads and len(self.heads) != len(self.spans)):
            raise ValueError(
                f"malformed tree of {self.text!r}: got {len(self.spans)} words, {len(self.heads)} heads, "
                f"{len(self.relations)} relations; expected one head and one relation per word"
            )

    @property
    def has_tree(self) -> bool:
        """Whether the sentence carries a dependency tree."""
        return bool(self.heads)


@dataclass(frozen=True, slots=True)
class Tokens(Sentence):
    """A sentence given as token `ids`, so that no tokenizer changes them."""

    ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Linked(Sentence):
    """A sentence with its translation, and which of their words translate each other.

    Args:
        links: Indices from 0, in `spans`, of a source word and a target word that translate each other.

    Raises:
        ValueError: If there is no translation, or a link is beyond the words.
    """

    links: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        Sentence.__post_init__(self)
        if self.target is None:
            raise ValueError(f"sentence {self.text!r} with word links must have a translation")
        sizes = len(self.spans), len(self.target.spans)
        for link in self.links:
            if not all(0 <= place < size for place, size in zip(link, sizes, strict=True)):
                raise ValueError(
                    f"link {link[0]}-{link[1]} is beyond the {sizes[0]} words of {self.text!r} and the {sizes[1]} "
                    f"words of {self.target.text!r}"
                )


@dataclass(frozen=True, slots=True)
class Chat(Sentence):
    """A sentence that is read as a chat, in the tokenizer's chat template.

    Its text is the user's turn, `second` or `target` the assistant's answer.
    """

    @property
    def answer(self) -> str | None:
        """The assistant's turn; None if the assistant is to write it."""
        return self.second if self.target is None else self.target.text


def as_chat(sentence: Sentence) -> Chat:
    """Return a sentence as a chat, with the same tree, target, label and second text."""
    return Chat(**{field.name: getattr(sentence, field.name) for field in fields(Sentence)})


GOOD, BAD = "good", "bad"  # labels of the two sentences of a minimal pair, which follow each other


def pair(good: str, bad: str, source: str | None = None) -> tuple[Sentence, Sentence]:
    """Return the two sentences of a minimal pair; with a `source` they are its translations."""
    if source is None:
        return Sentence(good, label=GOOD), Sentence(bad, label=BAD)
    first, second = (Sentence(source, target=Sentence(text), label=label) for text, label in ((good, GOOD), (bad, BAD)))
    return first, second


@dataclass(frozen=True)
class Corpus:
    """A named sequence of sentences.

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
    def of(cls, texts: TextsLike, name: str | None = None, *, chat: bool = False) -> Corpus:
        """Build a corpus of texts or pairs; a corpus is returned as it is.

        Args:
            texts: Texts, pairs of a text and its translation, or sentences.
            name: Name of the corpus; by default "texts".
            chat: Whether each text is the user's turn of a chat, as of `headroles.read`.

        Returns:
            The corpus.

        Raises:
            TypeError: If `texts` or one of them has another type.
        """
        if chat:
            corpus = cls.of(texts, name)
            return cls(corpus.name, tuple(map(as_chat, corpus)))
        if isinstance(texts, Corpus):
            return texts if name is None else cls(name, texts.sentences)
        if isinstance(texts, str | Mapping) or not isinstance(texts, Iterable):
            hint = f"; try one of its parts: {', '.join(map(repr, texts))}" if isinstance(texts, Mapping) else ""
            raise TypeError(f"corpus must be {TAKEN}, got {type(texts).__name__}{hint}")
        return cls(name or "texts", tuple(_sentence(number, item) for number, item in enumerate(texts, 1)))

    @overload
    def __getitem__(self, item: int) -> Sentence: ...
    @overload
    def __getitem__(self, item: slice) -> Corpus: ...
    def __getitem__(self, item: int | slice) -> Sentence | Corpus:
        """Return a sentence, or a corpus of the same name over a slice."""
        if isinstance(item, slice):
            return Corpus(self.name, self.sentences[item])
        return self.sentences[item]

    def sample(self, count: int | None, *, seed: int = 0) -> Corpus:
        """Draw `count` sentences at random, in their order; None, or more than there are, gives the whole corpus."""
        if count is None or count >= len(self):
            return self
        drawn = sorted(random.Random(seed).sample(range(len(self)), count))
        return Corpus(self.name, tuple(self.sentences[place] for place in drawn))


TextsLike = Corpus | Iterable[str | Sentence | Sequence[str]]  # what `Corpus.of` takes
CorpusLike = TextsLike | str | Path | Iterable[Mapping[str, Any]]  # what functions take as a corpus
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
