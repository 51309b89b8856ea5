"""Texts are split by stock llama.cpp as by the tokenizer: 200 lines of six languages, code and emoji."""

from __future__ import annotations

import pytest
from helpers.llama_cpp import LINES, SENTENCES, TEMPLATE, Running, byte_level, sentence_piece, tiny

import headroles as hr
from headroles.exports.vocabulary import SPLITS


def running(tokenizer, folder):
    hr.export_model(tiny(tokenizer, num_hidden_layers=1), tokenizer, folder / "model.gguf")
    return Running(folder / "model.gguf")


@pytest.mark.parametrize("name", SPLITS)
def test_words_of_byte_level_tokenizers_are_split_alike(name, tmp_path):
    way, ignores = SPLITS[name]
    tokenizer = byte_level(way, ignore_merges=ignores)
    served = running(tokenizer, tmp_path)
    assert [line for line in LINES if served.tokens(line) != tokenizer(line).input_ids] == []


def test_sentencepiece_is_split_alike(tmp_path):
    tokenizer = sentence_piece(tmp_path)
    served = running(tokenizer, tmp_path)
    assert tokenizer("Hello 世").input_ids[0] == tokenizer.bos_token_id
    lines = [line.lstrip(" ") for line in LINES]  # llama.cpp adds a space before a space, too
    assert [line for line in lines if served.tokens(line) != tokenizer(line).input_ids] == []


def test_added_tokens_special_tokens_and_the_chat_template_are_kept(tmp_path):
    tokenizer = byte_level()
    served = running(tokenizer, tmp_path)
    chat = [{"role": "user", "content": f"{SENTENCES[0]} <tool> x"}, {"role": "assistant", "content": "是"}]
    chat.append({"role": "user", "content": "again"})
    text = served.ask("apply-template", messages=chat)["prompt"]
    assert text == tokenizer.apply_chat_template(chat, tokenize=False)
    assert served.tokens(text) == tokenizer(text).input_ids
    assert served.ask("props")["chat_template"] == TEMPLATE
