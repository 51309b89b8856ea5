"""Relevance is the gradient of masks under rules, in steps and shares."""

from __future__ import annotations

import logging
import re
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from helpers import zoo
from helpers.close import MANY, bound, close
from helpers.explaining import measured, scored
from helpers.letters import corpus, tokens_of
from torch import nn

import headroles as hr
from headroles.data.corpus import Corpus, Sentence
from headroles.models import heads as families
from headroles.models.head_model import HeadModel
from headroles.scores.gradients.base import HeadGradients
from headroles.tables import frame
from headroles.testing.case import Case

NAMES = ["marian", "bert", "gpt2"]


# --- passes over a corpus -------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("name", "rules"), [("marian", "cp"), ("llama-grouped", "attn"), ("marian", "gradient")])
def test_one_pass_for_the_sum_gives_the_sum_of_the_steps(name, rules):
    all_, sum_ = (measured(name, hr.Relevance(rules=rules, by="logit", steps=steps)) for steps in ("all", "sum"))
    column = f"relevance[{rules} logit]"
    np.testing.assert_allclose(sum_[column], all_[column], rtol=0, atol=bound(all_[column], operations=MANY))
    assert (sum_[f"{column}.size"] < all_[f"{column}.size"] + 1e-6).all()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "steps"), [("marian", "all"), ("marian", "sum"), ("gpt2", "all"), ("bert", "sum")])
def test_by_voita_heads_are_positive_and_a_layer_has_at_most_the_target(name, steps):
    table = measured(name, hr.Relevance(rules="voita", by="logit", steps=steps))
    shares = table["relevance[voita logit]"]
    assert shares.min() > -1e-6
    assert shares.groupby(level=["kind", "layer"]).sum().max() < 1 + 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("rules", ["cp", "attn", "gradient", "voita"])
def test_relevance_of_one_step_is_the_gradient_of_gates_under_rules(rules):
    model, two = zoo.tiny("gpt2"), Corpus("two", (Sentence("a b"),))
    gate = torch.ones(1, len(families.head_index(model)), requires_grad=True)
    with hr.lrp_rules(model, rules), hr.mask_heads(model, gate):
        top = model(**tokens_of("gpt2")("a b", return_tensors="pt")).logits[0, 0].amax()
    whole_of_it = torch.autograd.grad(top, gate)[0][0] / top.detach()
    for steps in ("all", "sum"):
        found = measured("gpt2", hr.Relevance(rules, by="logit", steps=steps), two)
        close(found[f"relevance[{rules} logit]"], whole_of_it, operations=MANY)


@pytest.mark.parametrize("name", NAMES)
def test_the_signature_says_the_target_and_the_shares_of_relevance(name):
    fields = dict(frame.fields(frame.provenance(scored(name), "relevance[cp]")))
    assert fields["objective"] == "Top()"
    shares = [float(fields[part]) for part in ("inputs", "biases", "residue")]
    assert sum(shares) == pytest.approx(1, abs=2e-4)
    assert shares[2] == pytest.approx(0, abs=1e-3)  # by cp nothing is lost
    of_loss = frame.provenance(scored(name), "importance").split("|")
    assert "objective:Loss()" in of_loss
    assert not [field for field in of_loss if field.startswith(("inputs:", "residue:"))]


class Wave(nn.Module):
    """An operation that no rule knows."""

    def forward(self, x):
        return torch.sin(9 * x)


@pytest.fixture(scope="module")
def leaking():
    """A model of which one layer loses relevance."""
    model = hr.tiny_model("gpt2", activation_function="gelu")
    model.transformer.h[1].mlp.act = Wave()
    return model


def score_of(model, relevance, **options):
    case = Case(model)
    return hr.score(model, case.tokenizer, case.corpus, [relevance], n_resamples=0, **options)


def test_the_log_says_where_relevance_ends_up(caplog):
    with caplog.at_level(logging.INFO, "headroles.scores.gradients.relevance"):
        measured("bert", hr.Relevance("attn"))
    parts = ", ".join(rf"{part} (-?\d+\.\d) %" for part in ("inputs", "biases", "residue"))
    shares = re.fullmatch(rf"relevance\[attn\] of the target: {parts}", caplog.messages[-1]).groups()
    assert sum(map(float, shares)) == pytest.approx(100, abs=0.2)


@pytest.mark.parametrize("rules", ["cp", "cp-gate", "voita"])
def test_relevance_that_is_lost_is_refused(leaking, rules):
    message = (
        rf"relevance\[{rules}\] must lose or invent at most 2 % of the target, got -?[\d.]+ % in GPT2LMHeadModel and "
        rf"-?[\d.]+ % in transformer.h.1; .* by max_residue=([\d.e+]+)"
    )
    with pytest.raises(ValueError, match=message) as error:
        score_of(leaking, hr.Relevance(rules))
    limit = float(re.fullmatch(message, str(error.value))[1])
    accepted = score_of(leaking, hr.Relevance(rules, max_residue=limit))
    assert accepted.notna().all(axis=None)
    assert abs(float(re.search(r"residue:(-?[\d.]+)", hr.provenance(accepted, list(accepted)[0]))[1])) > 0.02


def test_rules_that_promise_nothing_are_not_checked(leaking):
    for relevance in (hr.Relevance("attn"), hr.Relevance("gradient")):
        assert score_of(leaking, relevance).notna().all(axis=None)


def test_rounding_of_half_precision_is_no_loss():
    model = hr.tiny_model("gpt2").to(torch.bfloat16)
    assert score_of(model, hr.Relevance()).notna().all(axis=None)


class Scaled(torch.autograd.Function):
    """Relevance that comes back, times a factor."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx, c):
        return c * ctx.factor, None


def test_what_a_layer_invents_and_another_loses_does_not_cancel_out():
    model = zoo.tiny("gpt2")
    for layer, factor in ((1, 1.25), (0, 0.8)):
        model.transformer.h[layer].register_forward_hook(lambda *given, factor=factor: Scaled.apply(given[-1], factor))
    message = (
        r"relevance\[voita\] must lose or invent at most 2 % of the target, got (\S+) % in GPT2LMHeadModel and (\S+) % "
        r"in transformer.h.[01]; .* by max_residue=(\S+)"
    )

    def score(relevance):
        hr.score(model, tokens_of("gpt2"), corpus(3), relevance, n_resamples=0)

    with pytest.raises(ValueError, match=message) as error:
        score(hr.Relevance("voita"))
    in_all, in_layer, accepted = map(float, re.fullmatch(message, str(error.value)).groups())
    assert in_all == pytest.approx(0, abs=1e-3)
    assert abs(in_layer) == pytest.approx(25, abs=0.1)
    score(hr.Relevance("voita", max_residue=accepted))
    with pytest.raises(ValueError, match="must lose or invent"):
        score(hr.Relevance("cp"))


@pytest.mark.parametrize(
    ("lowest", "dtype", "is_refused"),
    [
        (-1e-7, torch.float32, False), (-1e-3, torch.float32, True), (float("nan"), torch.float32, False),
        (-1e-3, torch.bfloat16, False), (-0.1, torch.bfloat16, True),
    ],
)  # fmt: skip
def test_relevance_below_0_is_refused_by_voita_in_any_batch(monkeypatch, lowest, dtype, is_refused):
    model = HeadModel.of(zoo.tiny("gpt2").to(dtype), tokens_of("gpt2"))
    (batch,) = model.batches(model.tokenised(corpus(2)), max_tokens=4096)
    target = hr.Relevance("voita").fit(model, [batch])
    negative = HeadGradients("dec-self", torch.tensor([[[1.0, lowest]]]), torch.ones(1, 1), torch.ones(1, 1) > 0)
    monkeypatch.setattr("headroles.scores.gradients.relevance.head_gradients", lambda *_, **__: negative)
    message = rf"relevance\[voita\] must not be below 0 .*, got {100 * lowest:.3g} % of .* GPT2LMHeadModel"
    for relevance in (hr.Relevance("cp"), hr.Relevance("voita", max_residue=0.02)):
        assert relevance.head_gradients(model, target, batch) is negative
    with pytest.raises(ValueError, match=message) if is_refused else nullcontext():
        hr.Relevance("voita").head_gradients(model, target, batch)


def test_a_model_of_which_layers_are_attention_alone_is_accepted():
    """XLM: the stream passes outside, with the biases between layers."""
    case = Case(hr.tiny_model("xlm"))
    assert hr.score(case.model, case.tokenizer, case.corpus, hr.Relevance(), n_resamples=0).notna().all(axis=None)


# --- what cannot be measured ----------------------------------------------------------------------------------------


def test_the_largest_residue_does_not_change_the_name_of_a_score():
    assert str(hr.Relevance(max_residue=1)) == str(hr.Relevance())
