"""A causal model whose texts begin otherwise than in its training is warned of once; what can't be known is silent."""

from __future__ import annotations

import gc
import logging

import pytest
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

import headroles as hr
from headroles.models.tokens import beginning

TEXTS = hr.Corpus.of(["a b", "b a a"])


def tokenizer_of(template="$A", *, bos=True, **options):
    """Words a and b, after a beginning token where the template has it."""
    inner = Tokenizer(models.WordLevel({"<pad>": 0, "<s>": 1, "<u>": 2, "a": 3, "b": 4, "<x>": 5}, unk_token="<u>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.post_processor = processors.TemplateProcessing(single=template, special_tokens=[("<s>", 1), ("<x>", 5)])
    roles = {"bos_token": "<s>"} if bos else {}
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, unk_token="<u>", pad_token="<pad>", **(roles | options)
    )


def model_of(kind="llama", **options):
    return hr.tiny_model(kind, vocab_size=6, **({"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0} | options))


def warned(caplog, model, tokenizer):
    caplog.clear()
    with caplog.at_level(logging.WARNING, "headroles"):
        for _ in range(2):
            hr.score(model, tokenizer, TEXTS, ["confidence"], n_resamples=0)
    return [record.getMessage() for record in caplog.records if record.name.endswith("beginning")]


@pytest.mark.parametrize("begins", [True, False])
def test_another_beginning_than_that_of_the_checkpoint_is_warned_of_once(begins, caplog, tmp_path):
    own, other = tokenizer_of("<s> $A"), tokenizer_of("$A")
    own, other = (own, other) if begins else (other, own)
    hr.save(model_of(), own, tmp_path)
    model, loaded = hr.load(tmp_path)
    assert warned(caplog, model, loaded) == []
    (message,) = warned(caplog, model, other)
    assert f"was trained {'with' if begins else 'without'} it: the tokenizer of its checkpoint does so" in message
    assert message.endswith(f"or set add_bos_token={begins}")


def test_a_chat_template_with_a_beginning_token_says_it(caplog):
    template = "{{ bos_token }}{% for message in messages %}{{ message['content'] }}{% endfor %}"
    (message,) = warned(caplog, model_of(), tokenizer_of("$A", chat_template=template))
    assert "does not begin a text with its token <s>, and LlamaForCausalLM was trained with it" in message
    assert "its chat template begins with it" in message


def test_another_token_than_that_of_the_config_is_warned_of(caplog):
    (message,) = warned(caplog, model_of(), tokenizer_of("<x> $A", bos_token="<x>"))
    assert "begins a text with token 5 (<x>), and the config of LlamaForCausalLM names token 1" in message


def test_nothing_is_said_where_nothing_is_known(caplog):
    silent = [
        (model_of(), tokenizer_of("$A")),  # GPT-2, SmolLM2: a token with a name that never begins a text
        (model_of(), tokenizer_of("$A", bos=False)),  # Qwen2: a config with a token that the tokenizer lacks
        (model_of(), tokenizer_of("<s> $A")),  # Gemma, Llama
        (model_of(), tokenizer_of("$A", add_bos_token=False, chat_template="{{ bos_token }}")),
        (model_of("bert"), tokenizer_of("$A", add_bos_token=True)),  # does not generate
    ]
    assert [warned(caplog, *pair) for pair in silent] == [[]] * len(silent)


def test_what_was_warned_of_is_forgotten_with_its_tokenizer(caplog):
    """Another tokenizer may take the place of a freed one in memory."""
    model, template = model_of(), "{{ bos_token }}"
    assert [len(warned(caplog, model, tokenizer_of("$A", chat_template=template))) for _ in range(3)] == [1] * 3
    gc.collect()
    assert len(beginning._checked[model]) == 0
