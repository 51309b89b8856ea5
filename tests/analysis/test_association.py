"""Roles meet outcomes: numbers equal scipy's, p is uniform by chance and not fooled by layers."""

from __future__ import annotations

import itertools
import logging
from fractions import Fraction
from functools import cache
from itertools import combinations

import numpy as np
import pandas as pd
import pytest
from helpers.relations import CONSTANT, EVERYBODY, NOBODY, ROLES, effects, index, told
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import headroles as hr
from headroles.analysis import intervals
from headroles.analysis.association import matters
from headroles.analysis.role_rules import roles
from headroles.tables import frame

NO_SCORE = (
    "the role's score is NaN for all these heads: it does not apply to their kind, or the corpus lacks what it needs"
)
ONE_GROUP = "no layer has heads with the role and heads without: role and layer are confounded"
FEW = "too few heads on one side (5 are the least, 2 of outcomes of 0 and 1): no p and no interval"


def test_the_numbers_are_those_of_scipy():
    where, random = index(kinds=("enc-self", "cross")), np.random.default_rng(0)
    rarity, y = random.random(len(where)), random.normal(size=len(where)).round(1)  # with ties
    row = hr.relate(told(where, rarity=rarity), effects(where, loss=y), n_resamples=50, n_permutations=99).iloc[0]
    one, other = y[rarity >= 0.5], y[rarity < 0.5]
    assert (row["with"], row["without"]) == (len(one), len(other))
    auc = stats.mannwhitneyu(one, other).statistic / len(one) / len(other)
    expected = {
        "difference": one.mean() - other.mean(),
        "median": np.median(one) - np.median(other),
        "auc": auc,
        "spearman": stats.spearmanr(rarity - 0.5, y).statistic,
    }
    for name, value in expected.items():
        assert row[name] == pytest.approx(value, abs=1e-12)
        assert row[f"{name}.low"] < row[name] < row[f"{name}.high"]
    assert row["spearman.high"] == pytest.approx(intervals.rank_correlation(row["spearman"], 64)[1])


def test_within_is_the_mean_difference_from_the_neighbours_of_the_layer():
    where = index(layers=2, many=3)
    table = told(where, rarity=[1, 0, 0, 1, 1, 0])
    row = hr.relate(table, effects(where, loss=[5.0, 1, 3, 9, 7, 2]), n_resamples=0, n_permutations=9).iloc[0]
    assert row["within"] == pytest.approx(((5 - 2) + (9 - 2) + (7 - 2)) / 3)


def test_p_is_that_of_all_ways_to_deal_the_role_out_within_layers():
    y, held = np.array([3.0, 1, 0, 1, 10, 14, 11, 19]), np.array([1, 0, 0, 0, 0, 1, 0, 1], bool)
    row = intervals.relation(held, np.zeros(8), y, np.repeat([0, 1], 4), 0, 40_000, 0)

    def ratio(first: tuple[int, ...], second: tuple[int, ...]) -> float:
        one, two = y[list(first)], y[[4 + i for i in second]]
        rest, others = y[[i for i in range(4) if i not in first]], y[[4 + i for i in range(4) if i not in second]]
        distances = np.concatenate([one - rest.mean(), two - others.mean()])
        shared = others.var(ddof=1) / 2  # of the two heads compared with the same others
        return float(distances.mean() / np.sqrt(distances.var(ddof=1) / 3 + 2 * shared / 6))

    every = [ratio(a, b) for a in combinations(range(4), 1) for b in combinations(range(4), 2)]
    exact = np.mean(np.abs(every) >= abs(ratio((0,), (1, 3))) - 1e-9)
    assert row["p"] == pytest.approx(exact, abs=0.01)


def simulated(seed: int, effect: float, *, confounded: bool) -> pd.Series:
    """One study: outcomes rise with the layer; roles are dealt out anywhere, or mostly in the upper layers."""
    where, random = index(layers=6, many=8), np.random.default_rng(seed)
    layer = where.get_level_values("layer").to_numpy()
    held = random.random(len(where)) < (layer / 6 if confounded else 0.3)
    y = layer + random.normal(size=len(where)) + effect * held
    return hr.relate(
        told(where, rarity=held), effects(where, loss=y), n_resamples=0, n_permutations=199, seed=seed
    ).iloc[0]


@pytest.mark.slow
@pytest.mark.parametrize("confounded", [False, True])
def test_p_is_uniform_where_the_role_does_nothing(confounded):
    found = pd.DataFrame([simulated(seed, 0.0, confounded=confounded) for seed in range(90)])
    assert stats.kstest(found["p"], "uniform").pvalue > 0.01
    assert stats.binomtest(int((found["p"] < 0.05).sum()), len(found), 0.05).pvalue > 0.01
    assert (found["auc"].mean() > 0.7) == confounded  # the layer alone makes heads with the role look important


def test_planted_effects_are_found():
    found = pd.DataFrame([simulated(seed, 1.5, confounded=True) for seed in range(30)])
    assert (found["p"] < 0.05).mean() > 0.8
    assert found["within"].mean() == pytest.approx(1.5, abs=0.2)


@cache
def related(order=None):
    """Scores and outcomes of heads, the outcomes in another order, related in two ways."""
    where, random = index(layers=3), np.random.default_rng(1)
    scores = frame.table({"rarity": random.random(24), "importance": random.random(24)}, where, "s")
    out = frame.table({"survival[x]": (random.random(24) < 0.5).astype(float)}, where, "s")
    if order is not None:
        shuffled = frame.rows(out.iloc[list(order)])
        out = frame.table({"survival[x]": out["survival[x]"].to_numpy()[list(order)]}, shuffled, "s")
    options = {"n_resamples": 20, "n_permutations": 30}
    table = roles(scores, ROLES)
    return hr.relate(table, out, **options), hr.predict_outcome(scores, out, **options)


@pytest.mark.slow
@settings(max_examples=8, deadline=None, derandomize=True)
@given(st.permutations(range(24)))
def test_the_order_of_the_heads_does_not_matter(order):
    for found, expected in zip(related(tuple(order)), related(), strict=True):
        pd.testing.assert_frame_equal(found, expected)


def test_variants_are_joined_or_distinguished_and_any_joins_special_roles():
    where = index(layers=1, many=6)
    scores = {"minus": [1, 0, 0, 0, 0, 0], "plus": [0, 1, 0, 0, 0, 0], "rarity": [0, 0, 1, 0, 0, 0]}
    out = effects(where, loss=[6.0, 5, 4, 3, 2, 1])
    options = {"n_resamples": 0, "n_permutations": 9}
    joined = hr.relate(told(where, **scores), out, **options).set_index("role")["with"]
    assert joined.to_dict() == {"rare": 1, "positional": 2, "any": 3}
    apart = hr.relate(told(where, **scores), out, by="variant", **options).set_index("role")["with"]
    assert apart.to_dict() == {"rare": 1, "positional[-1]": 1, "positional[+1]": 1, "any": 3}
    first = {"sink[first]": [0, 0, 0, 0, 1, 1], "rarity": [0, 1, 0, 0, 0, 0], "position[-1]": [1, 0, 0, 0, 0, 0]}
    some = hr.relate(roles(frame.table(first, where, "s")), out, **options)
    assert some.set_index("role")["with"].to_dict() == {"sink": 2, "rare": 1, "positional": 1, "any": 2}
    one = hr.relate(told(where, rarity=scores["rarity"], minus=[0] * 6), out, **options)
    assert one["role"].tolist() == ["rare", "positional"]  # any would be the same as rare


def test_outcomes_are_measurements_and_heads_that_could_not_go_are_left_out():
    where = index(layers=2, many=4, kinds=("enc-self", "cross"))
    n, random = len(where), np.random.default_rng(0)
    names = ["ablation[loss]", "ablation[loss].p", "importance", "importance.low", "confidence", "relevance[cp].size"]
    names += ["survival[l0 8 cross]", "survival[l0 8 cross].open", "survival[importance 8].order", "attribution[ig]"]
    out = frame.table({name: random.random(n) for name in names}, where, "s")
    found = hr.relate(told(where, rarity=random.random(n)), out, n_resamples=5, n_permutations=9).set_index("outcome")
    assert found.index.tolist() == [
        "ablation[loss]", "importance", "relevance[cp].size", "survival[l0 8 cross]", "survival[importance 8].order",
        "attribution[ig]",
    ]  # fmt: skip
    both = found["with"] + found["without"]
    assert both.tolist() == [16, 16, 16, 8, 16, 16]
    assigned = told(where, rarity=random.random(n))
    own = hr.relate(assigned, out, kinds=["enc-self"], columns=["confidence"], n_resamples=0)
    assert own[["outcome", "with", "without"]].iloc[0].tolist()[0] == "confidence"
    assert own["with"][0] + own["without"][0] == 8


@pytest.mark.parametrize(
    ("rarity", "y", "note"),
    [
        ([0] * 8, range(8), NOBODY),
        ([1] * 8, range(8), EVERYBODY),
        ([1, 0] * 4, [2.0] * 8, CONSTANT),
        ([np.nan] * 8, range(8), NO_SCORE),
        ([1] * 4 + [0] * 4, range(8), f"{FEW}; {ONE_GROUP}"),
        ([1] + [0] * 7, [0.0, *range(1, 8)], FEW),
        ([1] + [0] * 7, [1.0] + [0.0] * 7, FEW),
    ],
)
def test_what_cannot_be_said_is_said_in_words(rarity, y, note):
    where = index(layers=2, many=4)
    row = hr.relate(told(where, rarity=rarity), effects(where, loss=list(y)), n_resamples=20, n_permutations=9).iloc[0]
    assert row["note"] == note
    if note.endswith(ONE_GROUP):
        assert row[["p", "holm", "bh", "within"]].isna().all()
    elif note == FEW:
        assert row[["auc.low", "p", "holm", "bh"]].isna().all()
        assert row["auc"] == (y[0] == max(y))
    else:
        assert np.isnan(row[["auc", "p", "holm", "bh"]].astype(float)).all()


def test_of_fewer_than_five_heads_and_of_heads_alike_there_is_no_p():
    """With the role three times as spread, p was below 0.05 in a fifth of draws, where often 0 in half."""
    where, random = index(layers=2, many=12), np.random.default_rng(0)
    for count, alike in ((4, False), (5, False), (5, True)):
        held = np.isin(np.arange(24) % 12, range(count - 2)) & (np.arange(24) < 12)
        held[[13, 17]] = True
        y = random.normal(size=24) * ~held if alike else random.normal(size=24)
        row = hr.relate(told(where, rarity=held), effects(where, loss=y), n_permutations=999).iloc[0]
        assert row["with"] == count
        said = ["p", "holm", "within.low", "difference.high"]
        assert row[said].notna().tolist() == [count == 5 and not alike] * 4
        assert row["auc.low":"auc.high"].notna().all() == (count == 5 and not alike)
        assert row[["spearman.low", "difference"]].notna().all()
    share = hr.relate(told(where, rarity=np.arange(24) % 12 == 3), effects(where, loss=np.arange(24) % 3 // 2))
    assert share[["p", "within.low"]].notna().all(axis=None)  # two heads: equal means of 0 and 1 are equal spreads


def test_how_far_heads_are_from_the_threshold_says_something_where_nobody_reaches_it():
    where = index(layers=2, many=4)
    row = hr.relate(told(where, rarity=np.arange(8) / 100), effects(where, loss=range(8)), n_permutations=9).iloc[0]
    assert row["note"] == NOBODY
    assert row["spearman"] == pytest.approx(1)
    for many, expected in (3, 1.0), (2, np.nan):  # two are always in order
        where = index(layers=1, many=many)
        few = hr.relate(told(where, rarity=np.arange(many) / 100), effects(where, loss=range(many)), n_permutations=9)
        assert few["spearman"][0] == pytest.approx(expected, nan_ok=True)


def test_how_far_heads_are_above_the_threshold_is_that_of_the_nearest_variant():
    where, random = index(kinds=("enc-self", "cross")), np.random.default_rng(0)
    minus, plus, rarity, y = random.random((4, len(where)))
    rarity[: len(where) // 2] = np.nan  # the role is for heads of one kind only
    table = told(where, minus=minus, plus=plus, rarity=rarity)
    found = hr.relate(table, effects(where, loss=y), n_resamples=0, n_permutations=9).set_index("role")
    positional = np.maximum(minus, plus)
    expected = {
        "positional": stats.spearmanr(positional, y).statistic,
        "rare": stats.spearmanr(rarity, y, nan_policy="omit").statistic,
        "any": stats.spearmanr(np.fmax(positional, rarity), y).statistic,
    }
    assert found["spearman"].to_dict() == pytest.approx(expected)
    assert (found["with"] + found["without"]).to_dict() == {"rare": 32, "positional": 64, "any": 64}


def test_p_is_corrected_over_the_rows_that_have_one():
    where, random = index(), np.random.default_rng(0)
    out = effects(where, a=random.random(32), b=random.random(32), c=[1.0] * 32)
    found = hr.relate(told(where, rarity=random.random(32)), out, n_resamples=0, n_permutations=99)
    p = found["p"].to_numpy()
    assert np.isnan(p).tolist() == [False, False, True]
    np.testing.assert_allclose(found["bh"][:2], stats.false_discovery_control(p[:2]))
    assert found["holm"].min() == pytest.approx(min(1, 2 * p[:2].min()))


def test_tables_of_different_models_are_warned_of(caplog):
    small = index(layers=1)
    other = frame.table({"importance": range(8)}, small, "model:x|weights:b2")
    with caplog.at_level(logging.WARNING):
        hr.relate(told(small, rarity=[1, 0] * 4), other, n_resamples=0, n_permutations=9)
        hr.relate(told(small, rarity=[1, 0] * 4), effects(small, loss=range(8)), n_resamples=0, n_permutations=9)
    assert caplog.messages == ["roles and outcomes are of 2 different sets of weights: a1, b2"]


def test_what_is_related_says_of_which_models_and_corpora():
    where = index(layers=2, many=4)
    table = roles(frame.table({"rarity": [1.0, 0] * 4}, where, "model:m|weights:a1|corpus:c|text:t1|seed:0"), ROLES)
    columns = {"survival[x]": [1.0, 1, 0, 0, 1, 0, 1, 0], "importance": range(8)}
    signed = {"survival[x]": "model:m|weights:a1|trained_on:t2|keep:4", "importance": "model:m|weights:a1|text:t3"}
    out = frame.table(columns, where, signed)
    options = {"n_resamples": 0, "n_permutations": 9}
    tables = [hr.relate(table, out, **options), hr.predict_outcome(out, out, **options)]
    for found in tables:
        text = frame.provenance(found, "p")
        assert "model:m|weights:a1|trained_on:t2" in text
        assert "seed:0|keep" not in text
    assert "roles:model:m|weights:a1|corpus:c|text:t1" in frame.provenance(tables[0], "auc")
    for name in tables[0]:
        assert frame.provenance(tables[0], name).startswith("relate:family|resamples:0|permutations:9|seed:0|roles:")
        assert "|outcomes:model:m|weights:a1|" in frame.provenance(tables[0], name)
    usual = frame.provenance(hr.relate(table, out), "p")
    assert usual.startswith("relate:family|resamples:1000|permutations:9999|seed:0|")
    assert frame.sources(pd.DataFrame({"a": [1]}), ["a"]) == "unsigned"


def test_which_way_an_outcome_matters():
    expected = {
        "ablation[loss]": "higher", "ablation[bleu]": "lower", "ablation[loss all_but_one]": "lower",
        "ablation[bleu all_but_one mean]": "higher", "ablation[accuracy layer early]": "lower",
        "ablation[own]": "unknown",
        "survival[l0 12]": "higher", "survival[importance 8].order": "higher", "importance": "higher",
        "relevance[cp].size": "higher", "confidence": "unknown",
    }  # fmt: skip
    assert {name: matters(name) for name in expected} == expected
    where = index(layers=1)
    table = hr.relate(told(where, rarity=[1, 0] * 4), effects(where, bleu=range(8)), n_resamples=0, n_permutations=9)
    assert table["matters"].tolist() == ["lower"]


def _exact_p(held, y, layers):
    """Permutation p of a role within layers by all permutations in fractions, not studentised."""
    y, layer_sums, observed = [Fraction(float(value)) for value in y], [], Fraction(0)
    for layer in np.unique(layers):
        places = np.flatnonzero(layers == layer).tolist()
        count = int(held[places].sum())
        if not 0 < count < len(places):
            continue
        total = sum(y[place] for place in places)

        def distance(chosen, total=total, places=places):
            inside = sum(y[place] for place in chosen)
            return inside - len(chosen) * (total - inside) / (len(places) - len(chosen))

        layer_sums.append([distance(chosen) for chosen in itertools.combinations(places, count)])
        observed += distance([place for place in places if held[place]])
    permuted = [abs(sum(sums)) for sums in itertools.product(*layer_sums)]
    return float(np.mean([value >= abs(observed) for value in permuted]))


@pytest.mark.parametrize(
    ("seed", "heads", "offset", "dtype"),
    [(1, 2, 100, float), (7, 2, 1e4, float), (4, 2, 1e4, float), (3, 5, 0.3, float), (4, 3, 100, np.float32)],
)
def test_p_of_a_role_of_one_head_is_that_of_all_permutations(seed, heads, offset, dtype):
    random = np.random.default_rng(seed)
    y = (offset + random.normal(size=3 * heads) * 1e-3).astype(dtype)
    held = np.zeros(3 * heads, bool)
    held[heads + seed % heads] = True
    row = intervals.relation(held, np.zeros(3 * heads), y, np.repeat(range(3), heads), 0, 4000, 0)
    assert row["p"] == pytest.approx(_exact_p(held, y, np.repeat(range(3), heads)), abs=0.03)
