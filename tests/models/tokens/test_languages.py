"""Languages: those of a tokenizer are set, checked, named, and their codes left out of texts."""

from __future__ import annotations

import pytest
import torch
from helpers import letters
from helpers.multilingual import CODES, sentencepieces, tokenizer_of

import headroles as hr
from headroles.models.tokens import languages
from headroles.models.weights.at_hand import TRANSLATOR


@pytest.fixture(params=list(CODES))
def family(request):
    return request.param


@pytest.fixture
def tokenizer(family, tmp_path):
    sentencepieces(tmp_path)
    return tokenizer_of(family, tmp_path)


def test_languages_are_set_as_the_tokenizer_itself_does(family, tokenizer, tmp_path):
    source, target = CODES[family]
    languages.assign(tokenizer, source, target)
    assert languages.named(tokenizer) == {"source_lang": tokenizer.src_lang, "target_lang": target}
    assert not languages.is_unset(tokenizer)
    read = [tokenizer(text="cat dog")["input_ids"], tokenizer(text_target="cat dog")["input_ids"]]
    other = tokenizer_of(family, tmp_path)
    other.src_lang, other.tgt_lang = source, target
    assert read == [other(text="cat dog")["input_ids"], other(text_target="cat dog")["input_ids"]]
    assert read[0] != read[1]


def test_a_target_language_that_the_tokenizer_took_from_the_source_is_none(family, tokenizer):
    assert languages.is_unset(tokenizer)
    if family != "M2M100":  # which raises KeyError
        tokenizer(text_target="cat")
    assert languages.is_unset(tokenizer)
    assert "target_lang" not in languages.named(tokenizer)
    languages.assign(tokenizer, CODES[family][0], CODES[family][0])
    assert not languages.is_unset(tokenizer)  # said in so many words


def test_a_language_that_a_tokenizer_lacks_is_refused(family, tokenizer):
    source, target = CODES[family]
    with pytest.raises(ValueError, match=r"has no language 'klingon'; expected one of its \d+ codes, such as \w+, \w+"):
        languages.assign(tokenizer, source, "klingon")
    with pytest.raises(ValueError, match=f"no source language: got target_lang='{target}' alone; expected both"):
        languages.assign(tokenizer, None, target)
    assert languages.is_unset(tokenizer)


def test_a_tokenizer_of_two_languages_has_none_to_choose():
    with pytest.raises(ValueError, match="has no languages to choose: got 'deu_Latn'; .*try without source_lang"):
        hr.load(TRANSLATOR, target_lang="deu_Latn")
    assert languages.named(letters.tokenizer()) == languages.named(None) == {}


def test_texts_are_decoded_without_codes(family, tokenizer):
    languages.assign(tokenizer, *CODES[family])
    ids = torch.tensor([tokenizer(text_target="cat dog")["input_ids"]])
    assert [text.strip() for text in languages.decoded(tokenizer, ids)] == ["cat dog"]
