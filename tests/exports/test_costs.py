"""What is removed costs nothing, and the interval of a speed-up is that of a t-test."""

from __future__ import annotations

from copy import deepcopy
from functools import partial

import numpy as np
import pytest
from helpers import zoo
from helpers.llama_cpp import byte_level, tiny
from scipy import stats

import headroles as hr
from headroles.exports import costs
from headroles.models import heads as families
from headroles.pruning.rankings import Random, RankingContext


def test_cutting_saves_what_it_takes_away_and_gates_save_nothing():
    model = zoo.tiny("bert")
    line = Random("layer").order(RankingContext(None, None, None, list(families.head_index(model))))
    table = hr.efficiency(model, line, shares=(0.0, 0.5), batches=(1, 3), length=6, repeats=2)
    assert table[["share", "way", "batch"]].values.tolist() == [
        [share, way, batch] for batch in (1, 3) for share in (0.0, 0.5) for way in ("gates", "cut")
    ]
    left = hr.remove_heads(deepcopy(model), line[:4])
    cut = table[(table["way"] == "cut") & (table["share"] == 0.5)]
    assert set(cut["parameters"]) == {sum(one.numel() for one in left.parameters())}
    assert (cut["bytes"] == 4 * cut["parameters"]).all()
    rest = table.drop(cut.index)
    assert set(rest["parameters"]) == {sum(one.numel() for one in model.parameters())}
    assert (rest["allowed"] == 1).all()
    saved = rest["flops"].min() - cut["flops"].iloc[0]  # a head of 8 of 32: four maps, scores and sums of 6 x 6
    assert saved == 4 * (4 * 2 * 6 * 32 * 8 + 2 * 2 * 6 * 6 * 8)
    assert (table[["speed", "speedup", "speedup.low", "speedup.high"]] > 0).all(axis=None)


def test_reading_and_generation_are_timed_in_turn_where_a_model_runs(monkeypatch):
    tokenizer, order = byte_level(), ["L0H0", "L0H1"]
    model = tiny(tokenizer)
    table = hr.efficiency(model, order, shares=(0.0, 1 / 6), length=20, generate=8, repeats=2, tokenizer=tokenizer)
    assert table[["share", "masked", "program"]].values.tolist() == [
        [share, masked, program] for program in ("torch", "llama.cpp") for share, masked in ((0.0, 0), (1 / 6, 2))
    ]
    measured = [f"{phase}_{name}" for phase in ("prompt", "generation") for name in ("speed", "speedup")]
    assert (table[measured] > 0).all(axis=None)
    groups = np.array([6, 5, 6, 5])  # key-value heads in all layers, of 16 features, for keys and values of 28 tokens
    assert table["cache"].tolist() == (groups * 16 * 2 * 28 * np.array([4, 4, 2, 2])).tolist()
    removed = 16 * 64 * (2 + 1 + 1 + 2)  # queries, keys, values, outputs of the group
    assert table["file"].diff()[[1, 3]].round(-3).tolist() == pytest.approx([-4 * removed, -2 * removed], abs=2000)
    monkeypatch.setattr(costs, "find_spec", lambda _: None)
    alone = hr.efficiency(model, order, shares=(0.0,), length=20, generate=2, repeats=2, tokenizer=tokenizer)
    assert alone["program"].tolist() == ["torch"]


@pytest.mark.parametrize(("name", "size"), [("mistral", 1536), ("gemma3_text", 7424), ("bart", 48128)])
def test_the_cache_is_that_of_transformers_after_a_generation(name, size):
    table = hr.efficiency(hr.tiny_model(name), shares=(0.0,), length=20, generate=6, repeats=2)
    assert table["cache"].tolist() == [size]


@pytest.mark.parametrize("repeats", [2, 6])
def test_the_interval_of_a_speed_up_is_that_of_a_t_test_of_its_logarithm(repeats):
    durations = np.random.default_rng(repeats).lognormal(-3, 0.1, (2, 1 + repeats))  # the first is to warm up
    row = costs._speeds(costs._alternating(*(partial(next, iter(seconds)) for seconds in durations), repeats), 4)
    ratios = np.log(durations[1, 1:] / durations[0, 1:])
    ends = stats.ttest_1samp(ratios, 0).confidence_interval(0.95)
    assert np.log([row["speedup.low"], row["speedup.high"]]) == pytest.approx(list(ends), rel=1e-9)
    assert row["speedup"] == pytest.approx(stats.gmean(durations[1, 1:] / durations[0, 1:]), rel=1e-12)
    assert row["speed"] == pytest.approx((4 / durations[0, 1:]).mean(), rel=1e-12)
