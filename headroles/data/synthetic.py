"""Synthetic corpora: English sentences with gold trees, and their translations into a made-up language.

English verbs have forms that hide the subject's number ("saw", "had seen", "could see"); nouns show it. The made-up
language hides it on nouns and shows it on verbs and adjectives, so a translator must find the subject of each verb:

    order      verb last, its auxiliary before it, otherwise the English order; but the words before a noun, an
               adjective or an adverb follow it, mirrored: "for my old dog" becomes "dog old my for"
    noun       stem-case: -o subject, -am or -esh object (the verb decides), -ir with an adposition, -un genitive
    verb       stem-agreement with its subject in number and gender; every fourth has a particle, a separate word
    adjective  stem-agreement with its noun in number and gender
    adverb     stem-class of the word it modifies
    name       kept as it is, its case a separate word; "the" and "a" have no translation

Gender, class, particle and stem of a word follow from its English lemma alone.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from itertools import accumulate, chain
from random import Random
from typing import Literal

from headroles.data.corpus import Corpus, Sentence
from headroles.tables.arguments import number

_LISTS = tomllib.loads((files("headroles") / "data" / "synthetic_lexicon.toml").read_text("utf-8"))
IRREGULAR_PLURALS: dict[str, str] = _LISTS.pop("irregular_plurals")
_WORDS: dict[str, tuple[str, ...]] = {name: tuple(words.split()) for name, words in _LISTS.items()}
PEOPLE, THINGS, PLACES, NAMES = (_WORDS[name] for name in ("people", "things", "places", "names"))
VERBS, THING_VERBS, INTRANSITIVE, SAYING = (_WORDS[name] for name in ("verbs", "thing_verbs", "intransitive", "saying"))
ADJECTIVES, ADVERBS, DEGREES = (_WORDS[name] for name in ("adjectives", "adverbs", "degrees"))
AUXILIARIES, MARKS, SINGULAR, PLURAL = (_WORDS[name] for name in ("auxiliaries", "marks", "singular", "plural"))
ONSETS = _WORDS["onsets"]
CODAS = ("", "", "", "l", "m", "n", "r", "s")
PHRASES = {  # prepositions and their nouns, of a phrase inside a noun phrase and of one beside the verb
    "nmod": ((("of", "from"), PLACES), (("with",), THINGS)),
    "obl": ((("in", "near", "behind", "outside", "beside", "beyond"), PLACES), (("for", "without", "against"), PEOPLE)),
}
Part = Literal["noun", "name", "pronoun", "verb", "adjective", "adverb", "other"]
LENGTHS = (4, 25)  # the fewest and the most words of an English sentence, its full stop included
_FRAMES = ((VERBS, PEOPLE), (VERBS, THINGS), (THING_VERBS, THINGS), (INTRANSITIVE, ()))  # verbs and their objects
_CASES = {"nsubj": "o", "obl": "ir", "nmod": "ir", "compound": "un"}
_OBJECT, _ADVERB = ("am", "esh"), ("li", "vu")  # by the class of the verb, and of the word that the adverb modifies
_ADJECTIVE = (("i", "ith"), ("a", "ath"))  # by the noun's gender, singular and plural
_VERB = (("el", "eln"), ("or", "orn"))  # by the subject's gender, singular and plural


@dataclass(eq=False)
class _Word:
    """A word and the phrases it governs on either side, in written order."""

    form: str
    relation: str
    lemma: str = ""  # by default the form
    part: Part = "other"
    plural: bool = False
    before: list[_Word] = field(default_factory=list)
    after: list[_Word] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.lemma = self.lemma or self.form

    def __iter__(self) -> Iterator[_Word]:
        yield from chain(*self.before)
        yield self
        yield from chain(*self.after)


def synthetic_corpus(sentences: int = 1000, *, seed: int = 0, translated: bool = False) -> Corpus:
    """Generate English sentences with gold trees from the toy grammar.

    Sentence i depends on `seed` and i alone: a shorter corpus is the beginning of a longer one.

    Args:
        sentences: Number of sentences.
        seed: Seed of the corpus.
        translated: Whether each sentence has its translation into the made-up language, with a tree.

    Returns:
        A corpus named "toy".

    Raises:
        ValueError: If `sentences` is negative.

    Example:
        >>> from headroles import synthetic_corpus
        >>> len(synthetic_corpus(10, translated=True))
        10
    """  # noqa: DOC502
    number("sentences", sentences, whole=True)
    return Corpus("toy", tuple(_sentence(Random(f"{seed} {i}"), translated) for i in range(sentences)))


def _sentence(rng: Random, translated: bool) -> Sentence:
    tree = _whole(rng)
    while not LENGTHS[0] <= len(list(tree)) <= LENGTHS[1]:
        tree = _whole(rng)
    return _written(tree, _written(_made_up(tree, tree)) if translated else None)


def _written(tree: _Word, target: Sentence | None = None) -> Sentence:
    """Write the sentence of a tree, with spans and heads; no space before punctuation."""
    words = list(tree)
    place = {id(word): i for i, word in enumerate(words)}
    heads, text, spans = [-1] * len(words), "", []
    for i, word in enumerate(words):
        for child in word.before + word.after:
            heads[place[id(child)]] = i
        text += " " if text and word.relation != "punct" else ""
        spans.append((len(text), len(text) + len(word.form)))
        text += word.form
    return Sentence(text, tuple(spans), tuple(heads), tuple(word.relation for word in words), target)


def _whole(rng: Random) -> _Word:
    """Draw a main clause, sometimes with a subordinate clause before or after it."""
    verb = _clause(rng, "root")
    if rng.random() < 0.15 and not any(child.relation == "ccomp" for child in verb.after):
        second = _clause(rng, "advcl", mark=draw_word(rng, MARKS))
        if rng.random() < 0.5:
            second.after.append(_Word(",", "punct"))
            verb.before.insert(0, second)
        else:
            verb.after.append(second)
    verb.after.append(_Word(".", "punct"))
    return verb


def _clause(rng: Random, relation: str, *, mark: str = "") -> _Word:
    """Draw a verb with everything it governs; a clause with a mark before it contains no other clause."""
    saying = not mark and rng.random() < 0.1
    verbs, objects = (SAYING, ()) if saying else rng.choice(_FRAMES)
    verb = _verb(rng, relation, verbs)
    verb.before.insert(0, _noun(rng, "nsubj", PEOPLE, tail=0.0 if mark else 0.6))
    if saying:
        verb.after.append(_clause(rng, "ccomp", mark="that"))
    if objects:
        verb.after.append(_noun(rng, "obj", objects, tail=0.0 if mark else 0.25))
    _modify(rng, verb, clause_follows=any(inner.part == "verb" for word in verb.after for inner in (word, *word.after)))
    if mark:
        verb.before.insert(0, _Word(mark, "mark"))
    return verb


def _modify(rng: Random, verb: _Word, *, clause_follows: bool) -> None:
    """Add an adverb and a phrase of place or purpose, not at the end if a clause before it would absorb it."""
    place = rng.choices(("none", "first", "second", "near", "last"), (26, 22, 8, 14, 30))[0]
    if place != "none":
        adverb = _modifier(rng, "advmod", "adverb", ADVERBS)
        if place == "last" and not clause_follows:
            verb.after.append(adverb)
        else:
            verb.before.insert({"first": 0, "second": 1}.get(place, len(verb.before)), adverb)
    if not clause_follows and rng.random() < 0.3:
        verb.after.append(_phrase(rng, "obl"))


def _verb(rng: Random, relation: str, verbs: Sequence[str]) -> _Word:
    """Draw a verb in the past tense, or with an auxiliary: no form shows the subject's number."""
    base, past, participle = forms_of(draw_word(rng, verbs))
    if rng.random() < 0.65:
        return _Word(past, relation, base, "verb")
    auxiliary = rng.choice(AUXILIARIES)
    form = participle if auxiliary == AUXILIARIES[0] else base
    return _Word(form, relation, base, "verb", before=[_Word(auxiliary, "aux")])


def _noun(rng: Random, relation: str, nouns: Sequence[str], *, tail: float = 0.0) -> _Word:
    """Draw a noun phrase; with probability `tail` a prepositional phrase or a relative clause follows its noun."""
    if nouns is PEOPLE and rng.random() < 0.15:
        return _Word(draw_word(rng, NAMES), relation, part="name")
    lemma, plural = draw_word(rng, nouns), rng.random() < 0.35
    noun = _Word(plural_of(lemma) if plural else lemma, relation, lemma, "noun", plural)
    noun.before = _before_noun(rng, noun)
    if rng.random() < tail:
        noun.after.append(_phrase(rng, "nmod") if rng.random() < 0.4 else _relative(rng, noun, nouns))
    return noun


def _before_noun(rng: Random, noun: _Word) -> list[_Word]:
    adjectives = rng.choices((0, 1, 2), (50, 36, 14))[0]
    compounds = rng.choices((0, 1, 2), (46, 37, 17) if adjectives else (90, 10, 0))[0]
    words = [_modifier(rng, "amod", "adjective", ADJECTIVES) for _ in range(adjectives)]
    words += [_Word(draw_word(rng, PLACES), "compound", part="noun") for _ in range(compounds)]
    words = list({word.lemma: word for word in words if word.lemma != noun.lemma}.values())  # none twice
    if noun.plural and rng.random() < 0.3:
        return words
    article = rng.choice(PLURAL if noun.plural else SINGULAR)
    following = next(iter([*words, noun][0])).form
    form = "an" if article == "a" and following[0] in "aeiou" else article
    return [_Word(form, "det", article), *words]


def _modifier(rng: Random, relation: str, part: Part, words: Sequence[str]) -> _Word:
    """Draw an adjective or adverb, sometimes with "very" before it."""
    word = _Word(draw_word(rng, words), relation, part=part)
    if rng.random() < 0.07:
        word.before.append(_Word(draw_word(rng, DEGREES), "advmod", part="adverb"))
    return word


def _phrase(rng: Random, relation: str) -> _Word:
    """Draw a preposition and its noun."""
    prepositions, nouns = rng.choice(PHRASES[relation])
    noun, preposition = _noun(rng, relation, nouns), rng.choice(prepositions)
    noun.before.insert(0, _Word(preposition, "case"))
    return noun


def _relative(rng: Random, noun: _Word, nouns: Sequence[str]) -> _Word:
    """Draw a relative clause: "that saw the teacher" after people, "that the teacher saw" after anything."""
    that = _Word("that", "nsubj", noun.lemma, "pronoun", noun.plural)
    if nouns is PEOPLE and rng.random() < 0.5:
        verbs, objects = rng.choice(_FRAMES)
        verb = _verb(rng, "acl:relcl", verbs)
        verb.after.append(_noun(rng, "obj", objects) if objects else _phrase(rng, "obl"))
        verb.before.insert(0, that)
    else:
        that.relation = "obj"
        verb = _verb(rng, "acl:relcl", rng.choice([verbs for verbs, objects in _FRAMES if objects is nouns]))
        verb.before[:0] = [that, _noun(rng, "nsubj", PEOPLE)]
    if rng.random() < 0.15:
        verb.before.append(_modifier(rng, "advmod", "adverb", ADVERBS))
    return verb


def draw_word(rng: Random, words: Sequence[str]) -> str:
    """Draw a word of a list; its probability falls with its rank after Zipf and Mandelbrot."""
    return rng.choices(words, cum_weights=_zipf(len(words)))[0]


@cache
def _zipf(size: int) -> tuple[float, ...]:
    return tuple(accumulate(1 / (rank + 2.7) for rank in range(1, size + 1)))


def _made_up(word: _Word, governor: _Word) -> _Word:
    """Return the made-up phrase for an English one; the root is its own governor."""
    before = [_made_up(child, word) for child in word.before if child.lemma not in ("the", "a")]
    after = [_made_up(child, word) for child in word.after]
    new = _Word(_inflected(word, governor), word.relation, word.lemma, word.part)
    if word.part == "verb":
        particle = particle_of(word.lemma)
        new.before = [child for child in before + after if child.relation not in ("aux", "punct")]
        new.before += [child for child in before if child.relation == "aux"]
        new.before += [_Word(particle, "compound:prt")] if particle else []
        new.after = [child for child in after if child.relation == "punct"]
    else:
        new.after = [_Word(_case(word, governor), "case")] if word.part == "name" else []
        new.after += before[::-1] + after
    return new


def _inflected(word: _Word, governor: _Word) -> str:
    """Return the made-up form of a word."""
    if word.part == "name" or word.relation == "punct":
        return word.form
    stem = stem_of("that" if word.part == "pronoun" else word.lemma)
    if word.part in ("noun", "pronoun"):
        return f"{stem}-{_case(word, governor)}"
    if word.part == "adjective":
        return f"{stem}-{_agreement(governor, _ADJECTIVE)}"
    if word.part == "verb":
        subject = next(child for child in word.before if child.relation == "nsubj")
        return f"{stem}-{_agreement(subject, _VERB)}"
    return f"{stem}-{_ADVERB[second_class(governor.lemma)]}" if word.part == "adverb" else stem


def _case(noun: _Word, governor: _Word) -> str:
    return _CASES.get(noun.relation) or _OBJECT[second_class(governor.lemma)]


def _agreement(noun: _Word, endings: tuple[tuple[str, str], tuple[str, str]]) -> str:
    return endings[second_gender(noun.lemma)][noun.plural]


def plural_of(noun: str) -> str:
    """Return the English plural of a noun."""
    if noun in IRREGULAR_PLURALS:
        return IRREGULAR_PLURALS[noun]
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + ("es" if noun.endswith(("s", "x", "ch", "sh")) else "s")


def forms_of(verb: str) -> tuple[str, str, str]:
    """Return base, past and participle of an entry: "see/saw/seen", or a regular "open"."""
    base, *irregular = verb.split("/")
    if irregular:
        return base, irregular[0], irregular[1]
    root = base[:-1] + "i" if base.endswith("y") and base[-2] not in "aeiou" else base.removesuffix("e")
    return base, root + "ed", root + "ed"


@cache
def stem_of(lemma: str) -> str:
    """Draw the made-up stem of an English lemma: two syllables."""
    rng = Random(f"stem {lemma}")
    return "".join(rng.choice(ONSETS) + rng.choice("aeiou") + rng.choice(CODAS) for _ in range(2))


@cache
def particle_of(verb: str) -> str:
    """Draw the particle of a made-up verb, empty for three verbs of four."""
    return Random(f"particle {verb}").choice(("",) * 9 + ("ul", "ye", "wa"))


@cache
def second_gender(noun: str) -> bool:
    """Draw whether a made-up noun or name has the second gender."""
    return Random(f"gender {noun}").random() < 0.5


@cache
def second_class(lemma: str) -> bool:
    """Draw whether a made-up verb, adjective or adverb has the second class."""
    return Random(f"class {lemma}").random() < 0.5
