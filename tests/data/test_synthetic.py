"""The toy language: trees, spans, offsets, frequencies and the made-up grammar."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter, defaultdict

import pytest

from headroles.data import synthetic
from headroles.data.corpus import Corpus, Sentence
from headroles.data.synthetic import LENGTHS, synthetic_corpus


def words(sentence):
    return [sentence.text[slice(*span)] for span in sentence.spans if span]


def children(sentence, head, relation):
    pairs = enumerate(zip(sentence.heads, sentence.relations, strict=True))
    return [i for i, pair in pairs if pair == (head, relation)]


PAPER = ("nsubj", "obj", "amod", "advmod")
CORPUS = synthetic_corpus(2000, translated=True)
BOTH = [(s, s.target) for s in CORPUS if s.target is not None]
TARGETS = [target for _, target in BOTH]
SENTENCES = [*CORPUS, *TARGETS]


def share_of_best_offset(sentences: list[Sentence] | Corpus, relation: str) -> tuple[float, float]:
    """How often the best single offset is right: dependent to head, and head to (one of) its dependents."""
    up, down, heads = Counter(), Counter(), 0
    for sentence in sentences:
        offsets = defaultdict(set)
        for i, (head, name) in enumerate(zip(sentence.heads, sentence.relations, strict=True)):
            if name == relation:
                up[head - i] += 1
                offsets[head].add(i - head)
        heads += len(offsets)
        down.update(offset for found in offsets.values() for offset in found)
    return max(up.values()) / up.total(), max(down.values()) / heads


def test_every_sentence_is_translated_which_leaves_the_english_as_it_is():
    assert len(BOTH) == len(CORPUS) == 2000
    assert all(sentence.target is None for sentence in synthetic_corpus(10))
    assert [s.text for s in synthetic_corpus(50)] == [s.text for s in CORPUS[:50]]


def test_trees_are_trees_and_projective():
    for sentence in SENTENCES:
        assert sentence.heads.count(-1) == 1
        assert sentence.relations[sentence.heads.index(-1)] == "root"
        assert sentence.relations.count("root") == 1
        arcs = [sorted((i, head)) for i, head in enumerate(sentence.heads) if head >= 0]
        assert not any(a < c < b < d for a, b in arcs for c, d in arcs)
        for i in range(len(sentence.heads)):
            seen = set()
            while i != -1:
                assert i not in seen
                seen.add(i)
                i = sentence.heads[i]


def test_relations_are_those_of_universal_dependencies():
    names = "root nsubj obj amod advmod aux det case obl nmod acl:relcl mark advcl ccomp compound punct"
    known = {*names.split()}
    assert {name for sentence in SENTENCES for name in sentence.relations} == known | {"compound:prt"}
    assert {name for sentence in CORPUS for name in sentence.relations} == known


def test_spans_are_the_words_of_the_text_which_ends_in_a_full_stop():
    for sentence in SENTENCES:
        assert all(word and " " not in word for word in words(sentence))
        text = " ".join(words(sentence)).replace(" .", ".").replace(" ,", ",")
        assert text == sentence.text
        assert sentence.text.endswith(".")
        assert not sentence.text.endswith(" .")
        assert sentence.relations[-1] == "punct"


def test_lengths_are_varied():
    counts = Counter(len(sentence.spans) for sentence in CORPUS)
    assert (min(counts), max(counts)) == LENGTHS == (4, 25)
    assert len(counts) == 22
    assert max(counts.values()) < 0.1 * len(CORPUS)


def test_a_shorter_corpus_is_the_beginning_of_a_longer_one_and_seeds_give_different_ones():
    assert synthetic_corpus(10, translated=True).sentences == CORPUS[:10].sentences
    assert synthetic_corpus(0).sentences == ()
    assert synthetic_corpus(20, seed=1).hash != synthetic_corpus(20, seed=0).hash
    assert not {s.text for s in synthetic_corpus(200, seed=1) if len(s.spans) > 8} & {s.text for s in CORPUS}


def test_the_corpus_is_the_same_in_another_process():
    code = "from headroles import synthetic_corpus; print(synthetic_corpus(100, seed=3, translated=True).hash)"
    options = {"capture_output": True, "text": True, "check": True, "env": {"PYTHONHASHSEED": "7"}}
    told = subprocess.run([sys.executable, "-c", code], **options)
    assert told.stdout.strip() == synthetic_corpus(100, seed=3, translated=True).hash


@pytest.mark.parametrize("relation", PAPER)
def test_each_relation_of_the_paper_is_frequent_and_of_no_fixed_offset(relation: str):
    assert max(share_of_best_offset(CORPUS, relation)) < 0.5
    assert max(share_of_best_offset(TARGETS, relation)) < 0.56
    assert sum(sentence.relations.count(relation) for sentence in CORPUS) > 2000


def test_words_are_zipfian_with_a_long_tail():
    for size, rare in ((1000, 0.75), (2000, 0.75)):
        counts = Counter(word for sentence in CORPUS[:size] for word in words(sentence))
        ranked = counts.most_common()
        common = {word for word, _ in ranked[:500]}
        assert len(ranked) > 1100
        assert ranked[0][1] > 15 * ranked[99][1] > 30 * ranked[999][1]
        assert sum(not common.issuperset(words(sentence)) for sentence in CORPUS[:size]) > rare * size


def test_english_sentences_translate_one_way():
    seen: dict[str, str] = {}
    for sentence, target in BOTH:
        assert seen.setdefault(sentence.text, target.text) == target.text


def test_made_up_clauses_end_in_their_verb_and_what_describes_a_noun_follows_it():
    for target in TARGETS:
        root = target.heads.index(-1)
        assert root == len(target.spans) - 2
        for i, (head, name) in enumerate(zip(target.heads, target.relations, strict=True)):
            if name in ("nsubj", "obj", "obl", "advcl", "ccomp", "aux", "mark", "compound:prt"):
                assert i < head
            if name in ("amod", "compound", "det", "case", "nmod", "acl:relcl"):
                assert i > head


def test_made_up_nouns_carry_case():
    endings = defaultdict(set)
    for target in TARGETS:
        said = words(target)
        for i, name in enumerate(target.relations):
            if name in ("nsubj", "obj", "obl", "nmod", "compound"):
                own = [said[j] for j in children(target, i, "case") if "-" not in said[i]]
                endings[name].add(own[0] if own else said[i].split("-")[1])
    assert endings == {"nsubj": {"o"}, "obj": {"am", "esh"}, "obl": {"ir"}, "nmod": {"ir"}, "compound": {"un"}}


def test_the_verb_decides_the_case_of_its_object():
    cases = defaultdict(set)
    for target in TARGETS:
        said = words(target)
        for i, name in enumerate(target.relations):
            if name == "obj" and "-" in said[i]:
                cases[said[target.heads[i]].split("-")[0]].add(said[i].split("-")[1])
    assert {len(found) for found in cases.values()} == {1}
    assert {case for found in cases.values() for case in found} == {"am", "esh"}


def test_agreement_is_seen_on_the_made_up_verb_and_the_english_subject_alone():
    """The made-up ending of a verb follows from its English subject; its made-up subject does not show the number."""
    known = (*synthetic.PEOPLE, *synthetic.THINGS)
    nouns = {form: noun for noun in known for form in (noun, synthetic.plural_of(noun))}
    forms, checked = defaultdict(set), 0
    for sentence, target in BOTH:
        english, made = words(sentence), words(target)
        if sentence.relations.count("nsubj") != 1:
            continue
        subject, its = english[sentence.relations.index("nsubj")], made[target.relations.index("nsubj")]
        noun = nouns.get(subject, subject)
        second, plural = synthetic.second_gender(noun), subject != noun
        assert made[target.heads.index(-1)].split("-")[1] == (("el", "eln"), ("or", "orn"))[second][plural]
        forms[noun].add(its)
        checked += 1
    assert checked > 800
    assert {len(found) for found in forms.values()} == {1}


def test_made_up_adjectives_agree_with_their_noun_in_gender():
    nouns = (*synthetic.PEOPLE, *synthetic.THINGS, *synthetic.PLACES)
    genders = {synthetic.stem_of(noun): synthetic.second_gender(noun) for noun in nouns}
    for target in TARGETS:
        said = words(target)
        for i, name in enumerate(target.relations):
            if name == "amod":
                second = genders[said[target.heads[i]].split("-")[0]]
                assert said[i].split("-")[1] in (("i", "ith"), ("a", "ath"))[second]


def test_some_made_up_words_come_in_two_pieces():
    pieces = Counter(name for target in TARGETS for name in target.relations)
    verbs = sum(name in ("root", "acl:relcl", "advcl", "ccomp") for target in TARGETS for name in target.relations)
    assert 0.1 < pieces["compound:prt"] / verbs < 0.4
    named = [target for sentence, target in BOTH if {"Maria", "John"} & set(words(sentence))]
    assert named
    assert all({"Maria", "John"} & set(words(target)) for target in named)


@pytest.mark.slow
def test_no_english_verb_shows_its_subjects_number():
    """Each form of each verb and auxiliary stands with singular and plural subjects alike."""
    plurals = {synthetic.plural_of(noun) for noun in (*synthetic.PEOPLE, *synthetic.THINGS)}
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
    verbs = (*synthetic.VERBS, *synthetic.THING_VERBS, *synthetic.INTRANSITIVE, *synthetic.SAYING)
    nouns = (*synthetic.PEOPLE, *synthetic.THINGS, *synthetic.PLACES)
    others = (*synthetic.NAMES, *synthetic.ADJECTIVES, *synthetic.ADVERBS, *synthetic.DEGREES, *synthetic.AUXILIARIES)
    entries = [*others, *synthetic.MARKS, *{*synthetic.SINGULAR, *synthetic.PLURAL}, "that"]
    entries += [form for verb in verbs for form in set(synthetic.forms_of(verb))]
    entries += [form for noun in nouns for form in (noun, synthetic.plural_of(noun))]
    entries += [word for kinds in synthetic.PHRASES.values() for prepositions, _ in kinds for word in prepositions]
    assert [form for form, count in Counter(entries).items() if count > 1] == []


def test_made_up_stems_differ():
    verbs = (*synthetic.VERBS, *synthetic.THING_VERBS, *synthetic.INTRANSITIVE, *synthetic.SAYING)
    lemmas = [*synthetic.PEOPLE, *synthetic.THINGS, *synthetic.PLACES, *synthetic.ADJECTIVES, *synthetic.ADVERBS]
    lemmas += [
        *synthetic.DEGREES, *synthetic.AUXILIARIES, *synthetic.MARKS, *{*synthetic.SINGULAR, *synthetic.PLURAL}, "that"
    ]  # fmt: skip
    lemmas += [synthetic.forms_of(verb)[0] for verb in verbs]
    lemmas += [word for kinds in synthetic.PHRASES.values() for prepositions, _ in kinds for word in prepositions]
    stems = Counter(map(synthetic.stem_of, lemmas))
    assert [stem for stem, count in stems.items() if count > 1] == []


def test_plurals_and_forms_of_verbs():
    for noun, plural in [("dog", "dogs"), ("boy", "boys"), ("city", "cities"), ("box", "boxes"), ("woman", "women")]:
        assert synthetic.plural_of(noun) == plural
    verbs = {"open": "opened", "close": "closed", "carry": "carried", "destroy": "destroyed"}
    for entry, past in verbs.items():
        assert synthetic.forms_of(entry) == (entry, past, past)
    assert synthetic.forms_of("see/saw/seen") == ("see", "saw", "seen")
