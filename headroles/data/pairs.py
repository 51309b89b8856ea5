"""Minimal pairs, made or read: a grammatical sentence and one that differs in one ungrammatical word (no torch)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from random import Random
from typing import Literal, get_args

from headroles.data import synthetic as lexicon
from headroles.data.corpus import Corpus, Sentence
from headroles.data.synthetic import synthetic_corpus

Phenomenon = Literal["agreement", "attractor", "relative", "determiner", "reflexive", "licensing"]
GOOD, BAD = "good", "bad"  # labels of the two sentences of a pair, which follow each other
FIELDS = ("sentence_good", "sentence_bad")  # of BLiMP
QUESTION = ("text", "answer")  # fields of a long text that ends with a question
_FEMININE = "woman mother girl sister queen princess aunt witch nun widow grandmother niece"
FEMININE = _FEMININE.split()


def minimal_pairs(
    count: int = 100, *, phenomenon: Phenomenon = "agreement", seed: int = 0, translated: bool = False
) -> Corpus:
    """Make minimal pairs of words of the toy grammar, after BLiMP (Warstadt et al. 2020, arXiv 1912.00582).

    - "agreement": the teacher likes / like the book.
    - "attractor": the same with a noun of the other number between: the teacher near the dogs likes / like the book.
    - "relative": the same across a relative clause: the teacher that the dogs saw likes / like the book.
    - "determiner": this teacher / teachers saw the book.
    - "reflexive": the teachers saw themselves / himself.
    - "licensing": no / every teacher has ever seen the book.

    Pair i depends on `seed` and i alone.

    Args:
        count: Number of pairs.
        phenomenon: What the ungrammatical sentence violates.
        seed: Seed of the pairs.
        translated: Make pairs of translations instead, of one English source each: in the made-up language the main
            verb agrees with its subject. Only for "agreement".

    Returns:
        A corpus of 2 x `count` sentences, labelled "good" and "bad" in turn.

    Raises:
        ValueError: For an unknown phenomenon, a negative count, or translated pairs of another phenomenon.

    Example:
        >>> [sentence.label for sentence in hr.minimal_pairs(1)]
        ['good', 'bad']
    """
    if phenomenon not in get_args(Phenomenon):
        raise ValueError(f"unknown phenomenon: got {phenomenon!r}; expected {', '.join(get_args(Phenomenon))}")
    if count < 0 or (translated and phenomenon != "agreement"):
        raise ValueError(
            f"no such pairs: got count={count}, phenomenon={phenomenon!r}, translated={translated}; expected 0 or more "
            f"pairs, and 'agreement' if translated"
        )
    name = f"{phenomenon}{'-translated' * translated}"
    if translated:
        sentences = synthetic_corpus(count, seed=seed, translated=True)
        return Corpus(name, tuple(chain.from_iterable(map(_translations, sentences))))
    texts = (_MADE[phenomenon](Random(f"{phenomenon} {seed} {number}")) for number in range(count))
    return Corpus(name, tuple(chain.from_iterable(pair(good, bad) for good, bad in texts)))


def pair(good: str, bad: str, source: str | None = None) -> tuple[Sentence, Sentence]:
    """Return the two sentences of a pair; with a `source` they are its translations."""
    if source is None:
        return Sentence(good, label=GOOD), Sentence(bad, label=BAD)
    first, second = (Sentence(source, target=Sentence(text), label=label) for text, label in ((good, GOOD), (bad, BAD)))
    return first, second


def pairs_of(rows: Iterable[Mapping[str, object]], where: str) -> Iterator[Sentence | None]:
    """Yield both sentences of each row with `sentence_good`, `sentence_bad` (and `source`); None for a blank text."""
    for number, row in enumerate(rows, 1):
        names = (*FIELDS, *(["source"] if "source" in row else []))
        expected = f"texts {' and '.join(FIELDS)}, and source for translations"
        texts = _texts(row, names, f"{where}, pair {number}", expected)
        yield from pair(*texts) if all(texts) else [None]


def answered(rows: Iterable[Mapping[str, object]], where: str) -> Iterator[Sentence | None]:
    """Yield the text of each row with its answer as target, from `text` and `answer`; None for a blank one."""
    for number, row in enumerate(rows, 1):
        text, answer = _texts(row, QUESTION, f"{where}, text {number}", f"texts {' and '.join(QUESTION)}")
        yield Sentence(text, target=Sentence(answer)) if text and answer else None


def _texts(row: Mapping[str, object], names: Sequence[str], where: str, expected: str) -> list[str]:
    """Return the texts of a row without spaces around them; ValueError if a field lacks or is no text."""
    if lacking := [name for name in names if name not in row]:
        fields = ", ".join(map(str, row)) or "none"
        raise ValueError(f"{where} has no {lacking[0]!r}: got the fields {fields}; expected {expected}")
    if wrong := [name for name in names if not isinstance(row[name], str)]:
        raise ValueError(f"{where} has no text in {wrong[0]!r}: got {row[wrong[0]]!r}; expected {expected}")
    return [str(row[name]).strip() for name in names]


def _translations(sentence: Sentence) -> tuple[Sentence, Sentence]:
    """A sentence with its translation, and with one where the main verb has the ending of the other number."""
    assert sentence.target is not None
    target, root = sentence.target, sentence.target.heads.index(-1)
    start, end = target.spans[root] or (0, 0)
    verb = target.text[start:end]
    other = verb.removesuffix("n") if verb.endswith("n") else f"{verb}n"
    return pair(target.text, target.text[:start] + other + target.text[end:], sentence.text)


def _agreement(rng: Random, between: Callable[[Random, bool], str] = lambda *_: "") -> tuple[str, str]:
    """A subject and its verb in the present tense, with a phrase `between` them."""
    plural, base = rng.random() < 0.5, _verb(rng)[0]
    subject, phrase, rest = _noun(rng, plural=plural), between(rng, not plural), f"the {_draw(rng, lexicon.THINGS)}."
    verbs = [base, lexicon.plural_of(base)][:: 1 if plural else -1]
    good, bad = (f"The {subject}{phrase} {verb} {rest}" for verb in verbs)
    return good, bad


def _attractor(rng: Random) -> tuple[str, str]:
    return _agreement(rng, lambda rng, plural: f" {rng.choice(_NEAR)} the {_noun(rng, plural=plural)}")


def _relative(rng: Random) -> tuple[str, str]:
    return _agreement(rng, lambda rng, plural: f" that the {_noun(rng, plural=plural)} {_verb(rng)[1]}")


def _determiner(rng: Random) -> tuple[str, str]:
    plural, lemma = rng.random() < 0.5, _draw(rng, lexicon.PEOPLE)
    rest = f"{_verb(rng)[1]} the {_draw(rng, lexicon.THINGS)}."
    nouns = [lexicon.plural_of(lemma), lemma][:: 1 if plural else -1]
    good, bad = (f"{'These' if plural else 'This'} {noun} {rest}" for noun in nouns)
    return good, bad


def _reflexive(rng: Random) -> tuple[str, str]:
    plural, lemma, verb = rng.random() < 0.5, _draw(rng, lexicon.PEOPLE), _verb(rng)[1]
    pronouns = ["themselves", "herself" if lemma in FEMININE else "himself"][:: 1 if plural else -1]
    good, bad = (f"The {lexicon.plural_of(lemma) if plural else lemma} {verb} {pronoun}." for pronoun in pronouns)
    return good, bad


def _licensing(rng: Random) -> tuple[str, str]:
    rest = f"{_noun(rng, plural=False)} has ever {_verb(rng)[2]} the {_draw(rng, lexicon.THINGS)}."
    return f"No {rest}", f"Every {rest}"


def _noun(rng: Random, *, plural: bool) -> str:
    lemma = _draw(rng, lexicon.PEOPLE)
    return lexicon.plural_of(lemma) if plural else lemma


def _verb(rng: Random) -> tuple[str, str, str]:
    return lexicon.forms_of(_draw(rng, lexicon.VERBS))


def _draw(rng: Random, words: Sequence[str]) -> str:
    return rng.choices(words, cum_weights=lexicon.zipf(len(words)))[0]


_NEAR = ("near", "behind", "beside")
_MADE: dict[Phenomenon, Callable[[Random], tuple[str, str]]] = {
    "agreement": _agreement,
    "attractor": _attractor,
    "relative": _relative,
    "determiner": _determiner,
    "reflexive": _reflexive,
    "licensing": _licensing,
}
