"""Heads of models of one shape: a shuffled copy is matched back, unrelated heads match as by chance."""

from __future__ import annotations

from itertools import combinations, permutations

import numpy as np
import pytest
import torch
from helpers.close import close
from scipy import stats

import headroles as hr
from headroles.analysis.role_rules import Role
from headroles.analysis.seeds import by_scores, match_heads
from headroles.tables import frame

INDEX = frame.index({("enc-self", 0): 4, ("enc-self", 1): 4, ("enc-self", 2): 4, ("cross", 0): 4})
NAMES = ("confidence", "rarity", "position[-1]", "entropy")
RARE = (Role("rare", "rarity", 0.5, strictly=True), Role("positional", r"position\[([+-]1)\]", 0.9))
FAST = {"n_permutations": 99, "n_resamples": 20}


def table(values, *, draws=None, index=INDEX):
    columns = dict(zip(NAMES, np.asarray(values).T, strict=True))
    resampled = {name: draws[at:, :, at].T.astype(np.float32) for at, name in enumerate(NAMES) if draws is not None}
    return frame.table(columns, index, "model:m|weights:w|corpus:c|text:t", draws=resampled)


def drawn(seed):
    return np.random.default_rng(seed).random((len(INDEX), len(NAMES)))


def shuffled_in_layers(values, seed=0):
    """The same heads with other numbers, and where each head is now."""
    random, now = np.random.default_rng(seed), np.arange(len(INDEX))
    for start in range(0, len(INDEX), 4):
        now[start : start + 4] = start + random.permutation(4)
    moved = np.empty_like(values)
    moved[now] = values
    return moved, now


def value(result, quantity, of="all heads"):
    return result[(result["quantity"] == quantity) & (result["of"] == of)].iloc[0]


def test_a_shuffled_copy_is_matched_back_exactly():
    first = drawn(0)
    second, now = shuffled_in_layers(first)
    matches = match_heads(table(first), table(second).sample(frac=1, random_state=0))
    expected = INDEX[now].get_level_values("head")
    assert matches.loc[INDEX, "match.head"].tolist() == expected.tolist()
    assert matches.loc[INDEX, "match.layer"].tolist() == INDEX.get_level_values("layer").tolist()
    close(matches["similarity"], np.ones(len(INDEX)), dtype=torch.float64)
    result = hr.stability([table(first), table(second)], roles=RARE, **FAST)
    assert result["value"].round(12).eq(1).all()
    assert value(result, "similarity")["p"] == 0.01  # the least of 99 permutations
    assert value(result, "similarity")["chance"] < 0.8
    assert set(result["of"]) == {"all heads", "enc-self:0", "enc-self:1", "enc-self:2", "cross:0", "rare", "positional"}


@pytest.mark.slow
def test_unrelated_heads_match_as_by_chance():
    p = np.array(
        [
            value(hr.stability([table(drawn(seed)), table(drawn(1000 + seed))], n_permutations=19), "similarity")["p"]
            for seed in range(30)
        ]
    )
    assert stats.kstest(p, "uniform").pvalue > 0.01
    assert (p <= 0.05).sum() <= stats.binom.ppf(0.999, len(p), 0.05)


def test_noise_lies_in_between():
    first, noise = drawn(0), np.random.default_rng(9).normal(size=(len(INDEX), len(NAMES)))
    second, _ = shuffled_in_layers(first)
    others = [second, second + 0.1 * noise, second + 0.5 * noise, drawn(77)]
    rows = [value(hr.stability([table(first), table(other)], **FAST), "similarity") for other in others]
    similar = [row["value"] for row in rows]
    assert similar[:3] == sorted(similar[:3], reverse=True)
    assert similar[0] > rows[0]["chance.high"]
    assert rows[-1]["chance.low"] < similar[-1] < rows[-1]["chance.high"]


def test_numbers_are_those_of_a_slow_search():
    """Similarity by loops, matches by all orders of the heads of a layer, roles by counting."""
    a, b = drawn(3), drawn(4)
    result = hr.stability([table(a), table(b)], roles=RARE, n_permutations=0)
    both, near, places = [], np.zeros((16, 16)), {}
    for rows in (range(12), range(12, 16)):  # heads of a kind
        pooled = np.concatenate([a[list(rows)], b[list(rows)]])
        for i in rows:
            for j in rows:
                near[i, j] = 1 - np.mean(((a[i] - b[j]) / pooled.std(0)) ** 2) / 2
    for start in (0, 4, 8, 12):
        best = max(
            permutations(range(4)), key=lambda order: sum(near[start + i, start + j] for i, j in enumerate(order))
        )
        places |= {start + i: start + j for i, j in enumerate(best)}
    for start, name in ((0, "enc-self:0"), (4, "enc-self:1"), (8, "enc-self:2"), (12, "cross:0")):
        both.append(np.mean([near[i, places[i]] for i in range(start, start + 4)]))
        close(value(result, "similarity", name)["value"], both[-1], dtype=torch.float64)
    close(value(result, "similarity")["value"], np.mean(both), dtype=torch.float64)
    has, other = a[:, 1] > 0.5, b[:, 1] > 0.5
    matched = sum(has[i] and other[places[i]] for i in range(16))
    layers = sum(min(has[start : start + 4].sum(), other[start : start + 4].sum()) for start in (0, 4, 8, 12))
    close(value(result, "matched", "rare")["value"], 2 * matched / (has.sum() + other.sum()))
    close(value(result, "layers", "rare")["value"], 2 * layers / (has.sum() + other.sum()))
    assert value(result, "layers", "rare")["heads"] == (has.sum() + other.sum()) / 2


def test_checkpoints_are_compared_head_by_head_and_in_order():
    first = drawn(0)
    moved, _ = shuffled_in_layers(first)
    tables = {"one": table(first), "two": table(first), "three": table(moved)}
    result = hr.stability(tables, match="same", pairs="next", **FAST)
    similar = by_scores([*tables.values()], NAMES)
    known = [np.diag(similar(*pair, 0)).mean() for pair in ((0, 1), (1, 2))]
    assert known[0] == pytest.approx(1)
    assert known[1] < 1
    assert value(result, "similarity")["models"] == 3
    assert value(result, "similarity")["value"] == pytest.approx(np.mean(known))


def test_intervals_have_the_spread_of_the_sentences_and_of_the_models():
    values = [drawn(seed) for seed in range(4)]
    pairs = list(combinations(range(4), 2))
    tables = [table(part) for part in values]
    result = value(hr.stability(tables, match="same", n_permutations=0), "similarity")
    spread = np.zeros((16, 4))
    for rows in (slice(0, 12), slice(12, 16)):
        pooled = np.concatenate([part[rows] for part in values])
        spread[rows] = pooled.std(0)
    of = {(i, j): 1 - np.mean(((values[i] - values[j]) / spread) ** 2, axis=1).mean() / 2 for i, j in pairs}
    left = np.array([np.mean([of[pair] for pair in pairs if model not in pair]) for model in range(4)])
    half = stats.t.isf(0.025, 3) * np.sqrt(3 / 4 * ((left - left.mean()) ** 2).sum())
    close(result[["value", "low", "high"]], np.mean([*of.values()]) + np.array([0, -half, half]))
    noise = 0.05 * np.random.default_rng(0).normal(size=(200, 16, 4))
    sampled = hr.stability([table(values[0], draws=values[0] + noise), tables[0]], match="same", n_permutations=0)
    alone = hr.stability([tables[0], tables[0]], match="same", n_permutations=0)
    assert np.isnan(value(alone, "similarity")["low"])  # two models and no resamples
    assert np.isnan(value(sampled, "similarity")["low"])  # one of them without resamples
    both = [table(values[0], draws=values[0] + noise), table(values[1], draws=values[1] - noise)]
    ends = value(hr.stability(both, match="same", n_permutations=0), "similarity")
    assert ends["low"] < ends["value"] < ends["high"]
    assert 0.001 < ends["high"] - ends["value"] < 0.2


def test_a_score_that_some_heads_lack_is_left_out_for_their_kind():
    first, second = drawn(0), drawn(1)
    lacking = first.copy()
    lacking[12, 1] = np.nan  # of a cross head
    result = hr.stability([table(lacking), table(second)], n_permutations=0)
    whole = hr.stability([table(first), table(second)], n_permutations=0)
    without = hr.stability(
        [table(first), table(second)], columns=["confidence", "position[-1]", "entropy"], n_permutations=0
    )
    assert value(result, "similarity", "enc-self:0")["value"] == value(whole, "similarity", "enc-self:0")["value"]
    close(
        value(result, "similarity", "cross:0")["value"],
        value(without, "similarity", "cross:0")["value"],
        dtype=torch.float64,
    )


@pytest.mark.parametrize("match", ["layer", "same"])
def test_heads_that_do_not_return_are_not_stable_because_layers_differ(match):
    index, small = frame.index({("enc-self", layer): 4 for layer in range(4)}), 0
    layer = np.repeat(np.arange(4.0), 4)
    for seed in range(20):
        random = np.random.default_rng(seed)
        tables = [
            frame.table({name: layer + random.normal(size=16) for name in ("entropy", "distance")}, index, "by:hand")
            for _ in range(2)
        ]
        found = hr.stability(tables, match=match, n_permutations=59, seed=seed).set_index(["quantity", "of"])
        small += found.loc[("similarity", "all heads"), "p"] < 0.05
    assert small <= 4  # of 20; more with probability .003. All by heads that change their layer


def test_what_no_permutation_changes_has_no_p():
    index = frame.index({("enc-self", layer): 4 for layer in range(2)})
    tables = [frame.table({"rarity": np.random.default_rng(seed).random(8)}, index, "by:hand") for seed in range(2)]
    found = hr.stability(tables, match="same", n_permutations=59).set_index(["quantity", "of"])
    assert found.loc[("layers", "rare"), ["chance", "chance.low", "p", "holm"]].isna().all()
    assert found.loc[("similarity", "all heads"), "p"] > 0
