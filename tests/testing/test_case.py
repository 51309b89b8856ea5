"""A case holds a copy of a model, inputs for it, and what transformers and the library make of both."""

from __future__ import annotations

import torch
from helpers import zoo

import headroles as hr
from headroles.testing.case import Case, cast, difference, first
from headroles.testing.checks import zero


def test_a_case_leaves_the_model_that_it_was_given():
    model = zoo.tiny("gpt2").half().train()
    case = Case(model)
    assert (model.dtype, model.training) == (torch.float16, True)
    assert (case.model.dtype, case.model.training, case.precise.dtype) == (torch.float32, False, torch.float64)
    assert zero(case) < 1e-5  # which replaces weights of a copy that shares their memory
    assert torch.equal(case.output(case.model), case.plain)


def test_masked_is_the_output_under_the_mask():
    case = Case(zoo.tiny("marian"))
    gates = hr.head_mask(case.model, case.sample)
    assert int((gates == 0).sum()) == len(case.sites)
    with hr.mask_heads(case.model, gates):
        expected = case.model(**case.inputs).logits
    assert torch.equal(case.masked(gates), expected)


def test_words_of_the_corpus_are_the_numbers_of_tokens():
    case = Case(zoo.tiny("gpt2"))
    for sentence in case.corpus:
        assert case.tokenizer(sentence.text).input_ids == [int(word) for word in sentence.text.split()]


def test_numbers_and_tensors():
    ones = torch.ones(2, 3)
    assert difference(ones * 1.5, ones * 2) == 0.25
    assert difference(ones, torch.ones(3)) == float("inf")
    assert cast({"a": ones, "b": ones.long()}, torch.float64)["a"].dtype == torch.float64
    assert cast({"b": ones.long()}, torch.float64)["b"].dtype == torch.long
    assert first((ones.long(), None, ones)) is ones
