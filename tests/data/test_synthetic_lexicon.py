"""Words of the toy languages: inflections, and stems that differ."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest
from helpers.synthetic import children, words

from headroles.data import synthetic_lexicon as lexicon
from headroles.data.synthetic import synthetic_corpus


@pytest.mark.slow
def test_no_english_verb_shows_its_subjects_number():
    """Each form of each verb and auxiliary stands with singular and plural subjects alike."""
    plurals = {lexicon.plural(noun) for noun in (*lexicon.PEOPLE, *lexicon.THINGS)}
    shares = defaultdict(Counter)
    for sentence in synthetic_corpus(4000, seed=5):
        said = words(sentence)
        for i, name in enumerate(sentence.relations):
            if name == "nsubj" and said[i] != "that":
                verb = sentence.heads[i]
                for word in [verb, *children(sentence, verb, "aux")]:
                    shares[said[word]][said[i] in plurals] += 1
    frequent = {form: counts for form, counts in shares.items() if counts.total() >= 50}
    assert len(frequent) > 20
    assert all(0.15 < counts[True] / counts.total() < 0.5 for counts in frequent.values())
    assert not {"is", "are", "was", "were", "has", "have", "does", "do"} & set(shares)


def test_an_english_form_belongs_to_one_word():
    """So that every English sentence has one translation."""
    verbs = (*lexicon.VERBS, *lexicon.THING_VERBS, *lexicon.INTRANSITIVE, *lexicon.SAYING)
    nouns = (*lexicon.PEOPLE, *lexicon.THINGS, *lexicon.PLACES)
    others = (*lexicon.NAMES, *lexicon.ADJECTIVES, *lexicon.ADVERBS, *lexicon.DEGREES, *lexicon.AUXILIARIES)
    entries = [*others, *lexicon.MARKS, *{*lexicon.SINGULAR, *lexicon.PLURAL}, "that"]
    entries += [form for verb in verbs for form in set(lexicon.forms(verb))]
    entries += [form for noun in nouns for form in (noun, lexicon.plural(noun))]
    entries += [word for kinds in lexicon.PHRASES.values() for prepositions, _ in kinds for word in prepositions]
    assert [form for form, count in Counter(entries).items() if count > 1] == []


def test_made_up_stems_differ():
    verbs = (*lexicon.VERBS, *lexicon.THING_VERBS, *lexicon.INTRANSITIVE, *lexicon.SAYING)
    lemmas = [*lexicon.PEOPLE, *lexicon.THINGS, *lexicon.PLACES, *lexicon.ADJECTIVES, *lexicon.ADVERBS]
    lemmas += [*lexicon.DEGREES, *lexicon.AUXILIARIES, *lexicon.MARKS, *{*lexicon.SINGULAR, *lexicon.PLURAL}, "that"]
    lemmas += [lexicon.forms(verb)[0] for verb in verbs]
    lemmas += [word for kinds in lexicon.PHRASES.values() for prepositions, _ in kinds for word in prepositions]
    stems = Counter(map(lexicon.stem, lemmas))
    assert [stem for stem, count in stems.items() if count > 1] == []


@pytest.mark.parametrize(
    ("noun", "plural"), [("dog", "dogs"), ("boy", "boys"), ("city", "cities"), ("box", "boxes"), ("woman", "women")]
)
def test_plurals(noun: str, plural: str):
    assert lexicon.plural(noun) == plural


@pytest.mark.parametrize(
    ("entry", "forms"),
    [
        ("see/saw/seen", ("see", "saw", "seen")),
        ("open", ("open", "opened", "opened")),
        ("close", ("close", "closed", "closed")),
        ("carry", ("carry", "carried", "carried")),
        ("destroy", ("destroy", "destroyed", "destroyed")),
    ],
)
def test_verb_forms(entry: str, forms: tuple[str, str, str]):
    assert lexicon.forms(entry) == forms
