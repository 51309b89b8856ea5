"""What cannot be used is refused in words of the caller, before work is done, and what can be used is."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import zoo
from helpers.letters import corpus, tokens_of, writing
from helpers.messages import whole

import headroles as hr

GATES = [0.0, *[1.0] * 7]


@pytest.fixture
def model():
    return deepcopy(zoo.tiny("bert"))


def given(model, size=4):
    return model, tokens_of("bert"), corpus(size)


def translating(size=8):
    return deepcopy(writing("marian")), tokens_of("marian"), corpus(size)


def logits(model, gates, replacement=None):
    with hr.mask_heads(model, gates, replacement), torch.no_grad():
        return model(input_ids=torch.arange(5, 14)[None]).logits


@pytest.mark.parametrize(
    "gates",
    [GATES, tuple(map(int, GATES)), np.array(GATES), np.array(GATES, bool), pd.Series(GATES), lambda: GATES,
     lambda: np.array(GATES)],
)  # fmt: skip
def test_gates_may_be_any_numbers(model, gates):
    assert torch.equal(logits(model, gates), logits(model, torch.tensor(GATES)))


def test_replacements_may_be_arrays(model):
    values = {("enc-self", layer): np.full((4, 8), 0.5, np.float32) for layer in (0, 1)}
    expected = logits(model, GATES, {key: torch.tensor(value) for key, value in values.items()})
    assert torch.equal(logits(model, GATES, values), expected)


@pytest.mark.parametrize("heads", [None, 3, [3]])
def test_heads_that_are_none(model, heads):
    with pytest.raises(
        ValueError, match=r"^heads must be \(kind, layer, head\) or text such as enc-self:0:2, got (None|3)$"
    ):
        hr.head_mask(model, heads)


NUMBERS = {
    "n_resamples": (-1, "10", 2.5),
    "max_tokens": (0, -5, "9"),
}


@pytest.mark.parametrize(("name", "number"), [(name, number) for name, all_ in NUMBERS.items() for number in all_])
@pytest.mark.parametrize("function", [hr.score, hr.ablate], ids=lambda function: function.__name__)
def test_numbers_that_are_no_numbers(model, function, name, number):
    scores = [["confidence"]] if function is hr.score else []
    with pytest.raises(ValueError, match=f"got .*{number!r}"):
        function(*given(model), *scores, **{name: number})


@pytest.mark.parametrize("precision", ["a", None, 0, float("nan")])
def test_precisions_that_are_no_numbers(model, precision):
    with pytest.raises(ValueError, match="^precision must be a number >= 1, got "):
        hr.ablate(*given(model), precision=precision)


def test_train_of_a_model_made_in_inference_mode_is_refused(tmp_path):
    with torch.inference_mode():
        made = translating()
    with pytest.raises(ValueError, match="^no gradient passes the weights of MarianMTModel: got a model made in infer"):
        hr.train(*made, tmp_path)


def test_gradients_within_inference_mode(model):
    expected = hr.score(*given(model), ["importance"], n_resamples=0)
    precise = hr.ablate(*given(model, 40), precision=2, n_resamples=0)
    with torch.inference_mode():
        pd.testing.assert_frame_equal(hr.score(*given(model), ["importance"], n_resamples=0), expected)
        pd.testing.assert_frame_equal(hr.ablate(*given(model, 40), precision=2, n_resamples=0), precise)


@pytest.mark.parametrize(
    "measure", [lambda given: hr.score(*given, ["importance"]), lambda given: hr.ablate(*given, precision=2)]
)
def test_gradients_of_a_model_that_was_made_in_inference_mode(measure):
    with torch.inference_mode():
        made = deepcopy(zoo.tiny("bert"))
    assert hr.score(*given(made), ["confidence"], n_resamples=0).notna().all(axis=None)
    with pytest.raises(ValueError, match="^no gradient passes the weights of BertForMaskedLM: got a model made in inf"):
        measure(given(made, 40))


def test_relevance_under_autocast(model):
    said = "rules need the precision of the weights of BertForMaskedLM, got autocast"
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(ValueError, match=whole(said)):
        hr.score(*given(model), ["relevance"])


def test_heads_are_removed_under_autocast(model):
    inputs = {"input_ids": torch.arange(5, 14)[None]}
    expected = logits(model, GATES)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hr.remove_heads(model, [("enc-self", 0, 0)])
    torch.testing.assert_close(model(**inputs).logits, expected)


def test_heads_that_are_counted_twice(model):
    table = hr.score(*given(model), ["importance", "entropy", "position"], n_resamples=0)
    roles = hr.roles(table)
    twice, roles_twice = (hr.tables.frame.only(part, list(part)).iloc[[0, *range(8)]] for part in (table, roles))
    said = r"^heads are counted twice: got \('enc-self', 0, 0\) in several rows; expected each head once$"
    for call in (
        lambda: hr.relate(roles_twice, table),
        lambda: hr.relate(roles, twice),
        lambda: hr.relate(roles_twice, twice),
        lambda: hr.score_correlations(twice),
        lambda: hr.join(twice, twice.rename(columns="{}-2".format)),
    ):
        with pytest.raises(ValueError, match=said):
            call()


EMPTY = hr.Corpus("empty", tuple(hr.Sentence(text, target=hr.Sentence(" ")) for text in ("a b c", "a b")))


def test_targets_without_tokens_have_the_end_alone():
    model, tokenizer, _ = translating()
    scores = hr.score(model, tokenizer, EMPTY, ["confidence", "importance"], n_resamples=0)
    assert scores.loc["enc-self"].notna().all(axis=None)
    assert hr.ablate(model, tokenizer, EMPTY, n_resamples=0)["ablation[loss]"].notna().all()
