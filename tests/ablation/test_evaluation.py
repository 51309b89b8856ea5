"""Metrics of an intact model are those of plain loops, and a study keeps them."""

from __future__ import annotations

from functools import cache

import numpy as np
import pandas as pd
import pytest
import sacrebleu
import torch
from helpers import zoo
from helpers.close import close
from helpers.letters import corpus, tokens_of, writing
from helpers.letters import corpus as letters
from helpers.trainings import films, pairs, tokenised, tokenizer, untrained

import headroles as hr
from headroles.ablation.effects import evaluate
from headroles.ablation.sweep import Sweep
from headroles.analysis.intervals import bootstrap_counts
from headroles.tables import frame


@cache
@torch.no_grad()
def looped(name):
    """Of each sentence: its loss, how many tokens or labels that is the mean of, and whether the choice is right."""
    model, tokens, text = measured(name)
    rows = []
    for number, one in enumerate(text):
        inputs = {"input_ids": tokens(one.text, return_tensors="pt")["input_ids"]}
        if name == "translations":
            labels = tokens(one.target.text, return_tensors="pt")["input_ids"]
        else:
            inputs, labels = tokenised(tokens, text, [number]), torch.tensor([model.config.label2id[one.label]])
        found = model(**inputs, labels=labels)
        right = found.logits.argmax(-1)[0] == labels[0] if labels.ndim == 1 else False
        rows.append((float(found.loss), labels.numel(), float(right)))
    return np.array(rows).T


def measured(name):
    if name == "translations":
        return writing("marian"), tokens_of("marian"), letters(12)
    return untrained(2, initializer_range=0.3), tokenizer(), films(40, 1) if name == "sentences" else pairs()


KINDS = {"sentences": ["accuracy", "loss"], "pairs": ["loss", "accuracy"], "translations": ["loss"]}


@pytest.mark.slow
@pytest.mark.parametrize("max_tokens", [60, 4096])
@pytest.mark.parametrize("name", KINDS)
def test_values_and_intervals_are_those_of_a_plain_loop(name, max_tokens):
    losses, counts, right = looped(name)
    table = evaluate(*measured(name), KINDS[name], max_tokens=max_tokens, n_resamples=200, seed=3)
    assert list(table.index) == KINDS[name]
    assert (table.index.name, list(table)) == ("metric", ["value", "low", "high"])
    weights = bootstrap_counts(range(len(losses)), 200, 3)
    sums = {"loss": (losses * counts, counts), "accuracy": (right, np.ones(len(right)))}
    for metric, row in table.iterrows():
        one, many = sums[metric]
        draws = weights @ one / (weights @ many)
        expected = [draws[0], *np.quantile(draws[1:], [0.025, 0.975])]
        close(row, expected)
        assert 0 < row["low"] < row["value"] < row["high"]


@pytest.mark.slow
def test_what_is_written_is_worth_what_sacrebleu_says():
    model, tokens, text = measured("translations")
    hypotheses = []
    for one in text:
        inputs = tokens(one.text, return_tensors="pt", return_token_type_ids=False)
        ids = model.generate(**inputs, num_beams=1, do_sample=False)
        hypotheses += tokens.batch_decode(ids, skip_special_tokens=True)
    references = [[one.target.text for one in text]]
    expected = [score(hypotheses, references).score for score in (sacrebleu.corpus_chrf, sacrebleu.corpus_bleu)]
    table = evaluate(model, tokens, text, ["chrf", "bleu"], n_resamples=50)
    assert table["value"].tolist() == pytest.approx(expected, abs=1e-9)
    assert expected[0] > 0
    assert (table["low"] <= table["value"]).all()
    assert (table["value"] <= table["high"]).all()


CHOOSING = ["accuracy", "f1", "matthews", "loss", "perplexity", "agreement", "class"]


def test_rows_are_named_after_the_metrics_and_lie_within_their_intervals():
    table = evaluate(*measured("sentences"), CHOOSING)
    assert list(table.index) == CHOOSING
    pd.testing.assert_frame_equal(evaluate(*measured("sentences"), "accuracy"), table.loc[["accuracy"]])
    assert (table["low"] <= table["value"]).all()
    assert (table["value"] <= table["high"]).all()
    fields = {"corpus:films", f"text:{films(40, 1).hash}", "resamples:1000", "seed:0"}
    for column in table:
        assert fields <= set(frame.provenance(table, column).split("|"))


def test_without_resamples_there_are_no_intervals():
    asked = *measured("sentences"), ["loss", "accuracy"]
    found = evaluate(*asked, n_resamples=0)
    assert found[["low", "high"]].isna().all(axis=None)
    assert found["value"].tolist() == evaluate(*asked)["value"].tolist()


@pytest.mark.parametrize("training", [True, False])
def test_evaluation_is_without_dropout_and_leaves_the_model_as_it_was(training):
    model, tokens, text = measured("sentences")
    expected = evaluate(model, tokens, text, ["loss"])
    model.train(training)
    pd.testing.assert_frame_equal(evaluate(model, tokens, text, ["loss"]), expected)
    assert all(module.training == training for module in model.modules())


@pytest.mark.parametrize("metrics", [["loss"], ["loss", "accuracy"]])
def test_metrics_are_kept(tmp_path, monkeypatch, metrics):
    model, tokens, text = zoo.tiny("gpt2"), tokens_of("gpt2"), corpus(6)
    if "accuracy" in metrics:
        metrics = ["loss", "perplexity"]
    alone = hr.evaluate(model, tokens, text, metrics, n_resamples=20)
    pd.testing.assert_frame_equal(hr.evaluate(model, tokens, text, metrics, n_resamples=20, study=tmp_path), alone)
    monkeypatch.setattr(Sweep, "run", lambda *_, **__: pytest.fail("computed again"))
    pd.testing.assert_frame_equal(hr.evaluate(model, tokens, text, metrics, n_resamples=20, study=tmp_path), alone)
