"""Probes, and the scores that need them: needles and retrieval, the token before, indirect objects, ordered words."""

from __future__ import annotations

from functools import cache

import pytest
from helpers.letters import corpus, tokens_of, with_needles
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import headroles as hr
from headroles.data import synthetic
from headroles.data.probes import CLASSES


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


REFUSALS = [
    (hr.needles, {"count": 0}, "count .* got 0"),
    (hr.needles, {"length": 0}, "length .* got 0"),
    (hr.needles, {"size": 1}, "size .* got 1"),
    (hr.needles, {"size": 10_000}, r"size must be an integer >= 2 and < \d+, got 10000"),
    (hr.hidden_facts, {"count": 0}, "count .* got 0"),
    (hr.hidden_facts, {"facts": 0}, "facts .* got 0"),
    (hr.hidden_facts, {"facts": 10_000}, "facts .* got 10000"),
    (hr.hidden_facts, {"length": 0}, "length .* got 0"),
    (hr.hidden_facts, {"length": ()}, "length .* got 0"),
    (hr.indirect_objects, {}, "names that are one token must be an integer >= 2, got 0"),
    (hr.ordered_words, {"count": 0}, "count .* got 0"),
    (hr.ordered_words, {"classes": ["planets"]}, "class must be one of days, .*, got 'planets'"),
    (hr.ordered_words, {"classes": ("digits", "days")}, "no ordered words: got none of digits, days with 3 words"),
]


@pytest.mark.parametrize(("probe", "options", "message"), REFUSALS)
def test_probes_that_cannot_be_are_refused(probe, options, message):
    with pytest.raises(ValueError, match=message):
        probe(tokens_of("gpt2"), **options)
