"""Sweeps: what is kept belongs to what was measured, and no number of it is NaN."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import zoo
from helpers.ablations import terse
from helpers.letters import corpus, tokens_of
from helpers.objectives import classifier, labelled

import headroles as hr
from headroles.data.corpus import Corpus, Tokens

FEW = {"n_resamples": 20, "max_tokens": 80}  # several batches


def given(name="gpt2"):
    return zoo.tiny(name), tokens_of(name), corpus(6)


def alone(*ids, target=None):
    return Tokens("", ids=ids, target=target)


# --- what is kept ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["study", "folder"])
def test_nothing_is_kept_in_an_open_mask(place, tmp_path):
    model, *rest = given()
    with (
        hr.mask_heads(model, hr.head_mask(model, [("dec-self", 0, 1)])),
        pytest.raises(ValueError, match=r"cannot be kept: got an open block of headroles"),
    ):
        hr.ablate(model, *rest, **{place: tmp_path}, **FEW)
    assert not list(tmp_path.rglob("*.npy")) + list(tmp_path.rglob("*.parquet"))
    found = hr.ablate(model, *rest, **{place: tmp_path}, **FEW)
    pd.testing.assert_frame_equal(found, hr.ablate(model, *rest, **FEW), check_like=True)


def test_nothing_is_kept_beside_a_hook_of_the_user(tmp_path):
    model, *rest = given()
    hook = model.transformer.h[0].register_forward_hook(lambda *_: None)
    with pytest.raises(ValueError, match=r"cannot be kept: got the hook .*lambda.* on transformer\.h\.0"):
        hr.ablate(model, *rest, folder=tmp_path, **FEW)
    hook.remove()


def test_kept_batches_are_of_the_model_as_it_is_now(tmp_path):
    model, *rest = given("bert")
    before = hr.ablate(model, *rest, folder=tmp_path, **FEW)
    for module in model.modules():
        if hasattr(module, "scaling"):
            module.scaling *= 2  # an option of a module, in no config and no weight
    found = hr.ablate(model, *rest, folder=tmp_path, **FEW)
    expected = hr.ablate(model, *rest, **FEW)
    pd.testing.assert_frame_equal(found, expected)
    assert np.abs(found.iloc[:, 0] - before.iloc[:, 0]).max() > 1e-4


def test_kept_batches_are_of_the_code_of_a_metric(tmp_path):
    def doubled(factor):
        class Mine(hr.ablation.metrics.Loss):
            name = "mine"

            def update(self, observation):
                return super().update(observation) * [factor, 1]

        return Mine()

    model, *rest = given()
    one, two = (hr.ablate(model, *rest, metric=doubled(factor), folder=tmp_path, **FEW) for factor in (1, 2))
    np.testing.assert_allclose(two.iloc[:, 0], 2 * one.iloc[:, 0], rtol=1e-12)


@pytest.mark.parametrize("made", [np.zeros((3, 1, 2)), np.zeros((9, 2)), np.zeros((9, 6, 2), np.float32)])
def test_a_kept_array_of_another_shape_is_refused(made, tmp_path):
    model, *rest = given()
    hr.ablate(model, *rest, folder=tmp_path, n_resamples=0)
    (path,) = tmp_path.iterdir()
    np.save(path, made)
    shape, dtype = re.escape(str(list(made.shape))), made.dtype
    said = rf"{path.name} is damaged: got numbers {shape} of {dtype}; expected \[9, 6, statistics\]; remove the file"
    with pytest.raises(ValueError, match=said):
        hr.ablate(model, *rest, folder=tmp_path, n_resamples=0)


# --- numbers that are none ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "sentences"),
    [
        ("gpt2", [alone(5), alone(6)]),  # nothing comes after the only token
        ("gpt2", [alone(), alone()]),
        ("bert", [alone(), alone()]),
        ("marian", [alone(5, 6, target=alone()), alone(7, target=alone())]),
    ],
)
@pytest.mark.parametrize("options", [{}, {"early": True}, {"precision": 1.5}])
def test_what_has_nothing_to_measure_is_refused_with_its_examples(name, sentences, options):
    said = "loss has no value: got nothing to measure in example 1, 2 of 2; expected a token or label"
    with pytest.raises(ValueError, match=said):
        hr.ablate(zoo.tiny(name), tokens_of(name), Corpus("x", tuple(sentences)), n_resamples=10, **options)


def test_an_example_that_has_nothing_adds_nothing():
    model, tokenizer, _ = given()
    some = [alone(5, 6, 7), alone(8), alone(6, 7, 9, 10)]
    found = hr.ablate(model, tokenizer, Corpus("x", tuple(some)), n_resamples=0)
    expected = hr.ablate(model, tokenizer, Corpus("x", (some[0], some[2])), n_resamples=0)
    np.testing.assert_allclose(found.iloc[:, 0], expected.iloc[:, 0], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("metric", ["loss", "agreement"])
def test_a_single_example_has_no_interval(metric):
    model, tokenizer, text = given()
    table = hr.ablate(model, tokenizer, text[:1], metric=metric, n_resamples=30)
    name = f"ablation[{metric}]"
    assert table[name].notna().all()
    assert table[[f"{name}.low", f"{name}.high"]].isna().all(axis=None)
    assert (table[f"{name}.p"] == 1).all()
    assert hr.evaluate(model, tokenizer, text[:1], [metric], n_resamples=30)[["low", "high"]].isna().all(axis=None)


@pytest.mark.parametrize(
    ("name", "metric"),
    [("gpt2", "agreement"), ("classifier", "agreement"), ("classifier", "accuracy"), ("classifier", "f1"),
     ("classifier", "matthews"), ("marian", "bleu"), ("marian", "chrf")],
)  # fmt: skip
def test_logits_that_are_no_number_are_no_agreement(name, metric):
    model = classifier() if name == "classifier" else terse() if name == "marian" else zoo.tiny(name)
    text = labelled() if name == "classifier" else corpus(6)
    with torch.no_grad():
        if name == "marian":
            model.final_logits_bias[:] = float("nan")
        else:
            (model.classifier if name == "classifier" else model.lm_head).weight[:] = float("nan")
    tokenizer = tokens_of("bert" if name == "classifier" else name)
    with pytest.raises(ValueError, match=rf"^{metric} of the intact model is not finite on sentence \d"):
        hr.ablate(model, tokenizer, text, metric=metric, n_resamples=0)
