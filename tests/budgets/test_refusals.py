"""What budgets refuse: the call, and the subject and the value that the message names."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
from helpers.budgets import PATTERN, budget, given
from helpers.errors import refuses

import headroles as hr
from headroles.budgets.calibration import Calibration, question
from headroles.data.corpus import Corpus, Sentence
from headroles.models.head_model import HeadModel
from headroles.patterns import Streaming

BUDGET = [
    ({"by": "nonsense"}, "by must be one of integrated-gradients, .*, or a column of a table, got 'nonsense'"),
    ({"recent": 0}, "recent must be .* got 0"),
    ({"points": 1}, "points must be an integer >= 2, got 1"),
    ({"by": "l0", "steps": 0}, "steps must be an integer >= 1, got 0"),
    ({"keep": 5}, "keep must be a share .* of 4, or a number from 1 to 4, got 5"),
    ({"by": hr.ablate(*given(), n_resamples=0)["ablation[loss]"].iloc[:1]}, "must have .* got none for dec-self:0:1"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "message"), BUDGET)
def test_cache_budget_of_wrong_options_measures_nothing(options, message, monkeypatch):
    monkeypatch.setattr(Calibration, "along_path", lambda *_: pytest.fail("measured"))
    with pytest.raises(ValueError, match=message):
        hr.cache_budget(*given(), **{"sink": 2, "recent": 3} | options)


MODELS = {
    "bert": "a decoder-only model, got BertForMaskedLM with enc-self",
    "marian": "a decoder-only model, got MarianMTModel with cross, dec-self, enc-self",
    "bloom": "got transformer.h.0.self_attention of BloomForCausalLM outside it",
    "gpt_oss": "without learned sinks, got sinks in model.layers.0.self_attn of GptOssForCausalLM",
    "mistral": "layers without a window, got MistralForCausalLM with 4 tokens on each",
    "gemma3_text": "recent must be at most 4, the window of Gemma3ForCausalLM, got 5",
    "qwen3_next": r"got Qwen3NextForCausalLM with 1 attention layers and a cache of 2 \(DynamicLayer, Linear",
}


@pytest.mark.parametrize("name", MODELS)
def test_calibration_of_a_model_without_budgets_is_refused(name):
    with pytest.raises(ValueError, match=MODELS[name]):
        Calibration(HeadModel(hr.tiny_model(name)), given()[2], Streaming(2, 5 if name == "gemma3_text" else 3))


def ask(sentence):
    model, tokenizer, _ = given()
    return question(sentence, 3, HeadModel(model, tokenizer))


def longer(sentence):
    return replace(sentence, ids=sentence.ids * 2)


def fused():
    model = copy.deepcopy(given()[0])
    model.config._attn_implementation_internal = "flash_attention_2"
    return model


def other(**options):
    return hr.tiny_model("llama", **{"num_key_value_heads": 2} | options)


CALLS = {
    "no answer": (lambda: ask(Sentence("5 6 7")), "text 3 must have its answer as target, got '5 6 7'"),
    "too long": (lambda: ask(longer(given()[2][0])), "text 3 must have at most 64 tokens, got 80"),
    "no text": (lambda: Calibration(HeadModel(*given()[:2]), Corpus("none", ()), PATTERN), "corpus 'none' must have"),
    "other weights": (lambda: hr.BudgetedCache(other(seed=1), budget()), "be of the weights .* got [0-9a-f]{12}"),
    "other groups": (lambda: hr.BudgetedCache(other(num_key_value_heads=4), budget()), "must have the 8 .* got 4"),
    "another table": (lambda: hr.BudgetedCache(given()[0], hr.ablate(*given(), n_resamples=0)),
                      "expected a table of hr.cache_budget, got a DataFrame"),
    "other attention": (lambda: hr.BudgetedCache(fused(), budget()), "needs eager or sdpa .* got 'flash_atten"),
}  # fmt: skip

test_wrong_arguments_are_refused = refuses(CALLS)
