"""Trials are measured as by `evaluate`, once for what they were made from, and masked as by `mask_heads`."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from helpers import zoo
from helpers.letters import corpus, tokens_of

import headroles as hr
from headroles.ablation.metrics import as_metric
from headroles.models.head_model import HeadModel
from headroles.pruning.cached_evaluation import Trials, values

SETS = [[], [("dec-self", 0, 1)], [("dec-self", 0, 1), ("dec-self", 1, 2)], []]


def trials(folder, text=None, **rest):
    handle = HeadModel(zoo.tiny("gpt2"), tokens_of("gpt2"))
    return Trials(
        handle, text or corpus(6), corpus(12), as_metric("loss"), hr.Study(folder), kinds=None, tune={}, **rest
    )


def test_masked_heads_cost_what_a_mask_costs(tmp_path):
    model, tokens = zoo.tiny("gpt2"), tokens_of("gpt2")
    found = values(as_metric("loss"), trials(tmp_path).masked(("a",), SETS), n_resamples=20)
    assert found.shape == (4, 21)
    for heads, row in zip(SETS, found, strict=True):
        with hr.mask_heads(model, hr.head_mask(model, heads)):
            expected = hr.evaluate(model, tokens, corpus(12), ["loss"], n_resamples=0)["value"].iloc[0]
        assert row[0] == pytest.approx(expected, rel=1e-5)
    assert np.array_equal(found[0], found[3])


def test_a_trial_runs_once_for_what_it_was_made_from(tmp_path):
    calls = []

    def halved():
        calls.append(1)
        model = copy.deepcopy(zoo.tiny("gpt2"))
        with torch.no_grad():
            model.lm_head.weight.mul_(0.5)
        return model

    first, again = (trials(tmp_path).run(("half", 1), halved) for _ in range(2))
    assert (len(calls), np.array_equal(first, again)) == (1, True)
    expected = hr.evaluate(halved(), tokens_of("gpt2"), corpus(12), ["loss"], n_resamples=0)["value"].iloc[0]
    assert values(as_metric("loss"), [first], n_resamples=0)[0, 0] == pytest.approx(expected, rel=1e-5)
    for other in (trials(tmp_path, corpus(8)), trials(tmp_path, seed=1)):
        other.run(("half", 1), halved)
    trials(tmp_path).run(("half", 2), halved)
    assert len(calls) == 5
