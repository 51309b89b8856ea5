"""Probes: needles, facts, repeats, indirect objects, ordered words, and minimal pairs that differ in one word."""

from __future__ import annotations

from functools import cache
from typing import get_args

import pytest
from helpers.letters import corpus, tokens_of, with_needles, with_repeats
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import headroles as hr
from headroles.data import synthetic
from headroles.data.probes import CLASSES, Phenomenon


@cache
def words(*, digits: bool = True) -> PreTrainedTokenizerFast:
    """A tokenizer of whole words: those of the probes, digits only where asked for."""
    known = [word for name, members in CLASSES.items() for word in members if digits or name != "digits"]
    known += [*synthetic.NAMES[:20], *synthetic.PLACES, *synthetic.THINGS]
    known += ["When", "and", "walked", "to", "the", "gave", ","]
    vocabulary = {word: number for number, word in enumerate(dict.fromkeys(["<s>", "<pad>", "</s>", "<unk>", *known]))}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    names = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=made, **names)


@pytest.mark.parametrize("haystack", [None, corpus(8)])
def test_a_needle_is_in_the_haystack_and_at_the_end_and_nowhere_else(haystack):
    _, tokenizer, hidden = with_needles(haystack=haystack)
    special = {*tokenizer.all_special_ids}
    for sentence in hidden:
        start, ids = int(tokenizer.bos_token_id is not None), sentence.ids
        needle = ids[sentence.needle : sentence.needle + 4]
        assert ids[sentence.answer :] == needle
        assert ids[:start] == (tokenizer.bos_token_id,)[:start]
        hay = ids[start : sentence.needle] + ids[sentence.needle + 4 : sentence.answer]
        assert len(hay) == 12
        assert not {*hay} & {*needle}
        assert len({*needle}) == 4
        assert not {*ids[start:]} & special
    assert [sentence.needle - start for sentence in hidden] == [0, 2, 4, 7, 9, 12]
    assert with_needles(haystack=haystack)[2] == hidden
    assert with_needles(haystack=haystack, seed=1)[2].hash != hidden.hash
    if haystack:
        told = {tuple(tokenizer(one.text, add_special_tokens=False)["input_ids"]) for one in haystack}
        assert any(hidden[5].ids[start : start + len(one)] == one for one in told)


def test_a_tokenizer_without_bos_has_needles_too():
    tokenizer = words()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer, unk_token="<unk>")
    assert hr.needles(tokenizer, 2, length=5, size=3)[0].needle == 0


def test_the_indirect_object_is_the_name_that_was_mentioned_once():
    tokenizer = words()
    sentences = hr.indirect_objects(tokenizer, 20)
    for number, sentence in enumerate(sentences):
        said = sentence.text.replace(",", " ,").split()
        right, wrong = tokenizer.convert_ids_to_tokens([sentence.right, *sentence.wrong])
        assert (said.count(right), said.count(wrong)) == (1, 2)
        assert said[1 if number % 2 else 3] == right
        assert tokenizer.convert_ids_to_tokens(list(sentence.ids)) == said
    assert hr.indirect_objects(tokenizer, 20) == sentences


def test_the_right_word_is_the_next_of_its_class():
    tokenizer = words()
    sentences = hr.ordered_words(tokenizer, 60)
    assert {sentence.label for sentence in sentences} == {*CLASSES}
    for sentence in sentences:
        members, said = CLASSES[sentence.label], sentence.text.split()
        right, *wrong = tokenizer.convert_ids_to_tokens([sentence.right, *sentence.wrong])
        place = members.index(said[0])
        assert members[place : place + len(said) + 1] == [*said, right]
        assert {right, *wrong} == {*members}


def test_ordered_words_are_of_classes_that_the_tokenizer_has():
    sentences = hr.ordered_words(words(digits=False), 60)
    assert {sentence.label for sentence in sentences} == {*CLASSES} - {"digits"}


def test_facts_are_hidden_at_all_depths_and_asked_for():
    haystack = corpus(20)
    tokenizer = tokens_of("gpt2")
    hidden = hr.hidden_facts(tokenizer, 5, facts=3, length=(30, 60), haystack=haystack)
    sizes = []
    for text in hidden:
        code = text.ids[text.answer :]
        assert len(code) == text.size > 0
        assert text.ids[text.needle : text.needle + text.size] == code
        sizes.append((text.needle, text.answer))
    assert [needle for needle, _ in sizes] != sorted({needle for needle, _ in sizes})  # lengths take turns
    shares = [needle / answer for needle, answer in sizes]
    assert shares[0] < 0.2
    assert shares[-1] > 0.4
    assert hr.hidden_facts(tokenizer, 5, facts=3, length=(30, 60), haystack=haystack).hash == hidden.hash
    assert hr.hidden_facts(tokenizer, 5, facts=3, length=(30, 60), haystack=haystack, seed=1).hash != hidden.hash


def test_each_half_is_drawn_without_repeats_and_comes_twice():
    _, tokenizer, twice = with_repeats()
    for sentence in twice:
        start, ids = len(sentence.ids) % 6, sentence.ids
        assert ids[:start] == ((tokenizer.bos_token_id,) if tokenizer.bos_token_id is not None else ())
        assert ids[start : start + 6] == ids[start + 6 :]
        assert len(set(ids[start:])) == 6
        assert not set(ids[start:]) & set(tokenizer.all_special_ids)
    assert len({sentence.ids for sentence in twice}) == 4
    assert hr.repeated_tokens(tokenizer, 4, length=6) == twice
    assert hr.repeated_tokens(tokenizer, 4, length=6, seed=1).hash != twice.hash


PLURALS = {synthetic.plural_of(noun) for noun in synthetic.PEOPLE}


def words_of(sentence):
    return sentence.text.removesuffix(".").split()


@pytest.mark.parametrize("phenomenon", get_args(Phenomenon))
def test_the_sentences_of_a_pair_differ_in_one_word(phenomenon):
    corpus = hr.minimal_pairs(50, phenomenon=phenomenon)
    assert [sentence.label for sentence in corpus] == ["good", "bad"] * 50
    for good, bad in zip(corpus.sentences[::2], corpus.sentences[1::2], strict=True):
        assert sum(a != b for a, b in zip(words_of(good), words_of(bad), strict=True)) == 1
    assert corpus[:20].sentences == hr.minimal_pairs(10, phenomenon=phenomenon).sentences
    assert corpus.sentences != hr.minimal_pairs(50, phenomenon=phenomenon, seed=1).sentences


@pytest.mark.parametrize("phenomenon", ["agreement", "attractor", "relative"])
def test_the_grammatical_verb_agrees_with_its_subject_and_not_with_the_noun_between(phenomenon):
    corpus = hr.minimal_pairs(80, phenomenon=phenomenon)
    place = {"agreement": 2, "attractor": 5, "relative": 6}[phenomenon]
    bases = {synthetic.forms_of(verb)[0] for verb in synthetic.VERBS}
    for good, bad in zip(corpus.sentences[::2], corpus.sentences[1::2], strict=True):
        plural = words_of(good)[1] in PLURALS
        assert (words_of(good)[place] in bases) == plural
        assert (words_of(bad)[place] in bases) != plural
        if phenomenon != "agreement":
            assert (words_of(good)[4] in PLURALS) != plural


def test_determiners_reflexives_and_licensors():
    names = ("determiner", "reflexive", "licensing")
    made = {name: hr.minimal_pairs(60, phenomenon=name).sentences[::2] for name in names}
    found = {(words_of(good)[0], words_of(good)[1] in PLURALS) for good in made["determiner"]}
    assert found == {("This", False), ("These", True)}
    found = {(words_of(good)[1] in PLURALS, words_of(good)[-1]) for good in made["reflexive"]}
    assert found == {(True, "themselves"), (False, "himself"), (False, "herself")}
    assert {words_of(good)[0] for good in made["licensing"]} == {"No"}


def test_translated_pairs_differ_in_the_number_of_the_main_verb():
    corpus, whole = hr.minimal_pairs(40, translated=True), hr.synthetic_corpus(40, translated=True)
    for good, bad, sentence in zip(corpus.sentences[::2], corpus.sentences[1::2], whole, strict=True):
        assert (good.text, good.target.text) == (sentence.text, sentence.target.text)
        assert bad.text == good.text
        root = sentence.target.heads.index(-1)
        start, end = sentence.target.spans[root]
        changed = bad.target.text[start : len(bad.target.text) - (len(sentence.target.text) - end)]
        assert {changed, good.target.text[start:end]} in [
            {f"{changed.rpartition('-')[0]}-{form}" for form in forms} for forms in (("el", "eln"), ("or", "orn"))
        ]
