"""Probes, and the scores that need them: needles and retrieval, the token before, indirect objects, ordered words."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from helpers import zoo
from helpers.close import close
from helpers.letters import corpus, looking, observation, tokens_of, value
from helpers.messages import whole
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import headroles as hr
from headroles.data import synthetic_lexicon
from headroles.data.probes import CLASSES, Needle
from headroles.models import heads as families
from headroles.models.batching import TokenView
from headroles.scores.base import Observation
from headroles.scores.patterns.previous import Previous
from headroles.scores.patterns.retrieval import NO_NEEDLE, Retrieval


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


def small(name="gpt2", **options):
    model = zoo.tiny(name)
    return model, tokens_of(name), hr.needles(tokens_of(name), 6, length=12, size=4, **options)


# --- needles ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("haystack", [None, corpus(8)])
def test_a_needle_is_in_the_haystack_and_at_the_end_and_nowhere_else(haystack):
    _, tokenizer, hidden = small(haystack=haystack)
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
    assert small(haystack=haystack)[2] == hidden
    assert small(haystack=haystack, seed=1)[2].hash != hidden.hash
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


# --- retrieval -------------------------------------------------------------------------------------------------------


def planted(sentence: Needle, places) -> Observation:
    ids = torch.tensor([sentence.ids])
    yes = torch.ones_like(ids, dtype=torch.bool)
    side = TokenView(ids, yes, yes, torch.full_like(ids, -1), (sentence,))
    return Observation("dec-self", looking(places)[None, None], side, side, torch.ones(99), torch.arange(99))


def test_a_head_that_looks_at_the_next_token_of_the_needle_retrieves_and_no_other():
    sentence = Needle("", ids=(9, 4, 5, 6, 9, 9, 4, 5, 6), needle=1, answer=6, size=3)
    still = list(range(9))
    copying = [*still[:6], 2, 3, 8]
    assert value(Retrieval(), planted(sentence, copying)) == {"retrieval": 1}
    assert value(Retrieval(), planted(sentence, [*still[:6], 2, 0, 8])) == {"retrieval": 1 / 2}
    assert value(Retrieval(), planted(sentence, [*still[:6], 1, 2, 3])) == {"retrieval": 0}  # a duplicate-token head
    assert value(Retrieval(), planted(sentence, still)) == {"retrieval": 0}
    nothing = planted(sentence, copying)
    nothing.weights.zero_()
    assert value(Retrieval(), nothing) == {"retrieval": 0}


@pytest.mark.parametrize("name", ["gpt2", "llama-grouped", "mistral"])
def test_retrieval_and_previous_are_those_of_slow_loops(name, monkeypatch):
    model, tokenizer, hidden = small(name)
    found = hr.score(model, tokenizer, hidden, ["retrieval", "previous"], n_resamples=20)
    own = model.config._attn_implementation
    model.set_attn_implementation("eager")
    hits, count, weight, follow = 0, 0, 0, 0
    for sentence in hidden:
        with torch.no_grad():
            layers = model(torch.tensor([sentence.ids]), output_attentions=True).attentions
        attention = torch.cat([layer[0] for layer in layers]).double().numpy()  # [heads of all layers, query, key]
        for step in range(3):
            row = attention[:, sentence.answer + step]
            hits = hits + (row.argmax(-1) == sentence.needle + step + 1)
            count += 1
        for i in range(1, len(sentence.ids)):
            if not {sentence.ids[i], sentence.ids[i - 1]} & {*tokenizer.all_special_ids}:
                weight = weight + attention[:, i, i - 1]
                follow += 1
    model.set_attn_implementation(own)
    close(found["retrieval"], hits / count)
    close(found["previous"], weight / follow)
    assert (found["retrieval.low"] <= found["retrieval"]).all()
    assert (found["retrieval"] <= found["retrieval.high"]).all()
    if name == "mistral":  # its window of four tokens ends before the needle
        far = hr.score(model, tokenizer, hidden[:5], "retrieval", n_resamples=0)
        assert (far["retrieval"].to_numpy() == 0).all()
    else:
        assert found["retrieval"].to_numpy().max() > 0
    monkeypatch.setattr(families, "CELLS", 60)
    parts = hr.score(model, tokenizer, hidden, ["retrieval", "previous"], n_resamples=0)
    np.testing.assert_allclose(parts["retrieval"], found["retrieval"])
    np.testing.assert_allclose(parts["previous"], found["previous"], rtol=1e-5)


def test_without_needles_retrieval_is_nan_and_the_log_says_why(caplog):
    model, tokenizer, _ = small()
    assert hr.score(model, tokenizer, corpus(3), "retrieval", n_resamples=0)["retrieval"].isna().all()
    assert caplog.messages[0].endswith(f"is NaN: {NO_NEEDLE}")


def test_numbers_of_the_token_before():
    assert value(Previous(), observation(looking([0, 0, 1, 2]))) == {"previous": 1}
    assert value(Previous(), observation(torch.eye(4))) == {"previous": 0}
    assert value(Previous(), observation(torch.full((4, 4), 1 / 4), special=(1,))) == {"previous": 1 / 4}


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
