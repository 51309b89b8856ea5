"""Roles meet outcomes: numbers equal scipy's, p is uniform by chance and not fooled by layers, odds are Firth's."""

from __future__ import annotations

import logging
import re
from functools import cache
from itertools import combinations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from helpers.messages import whole
from helpers.relations import ROLES, effects, index, told
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

import headroles as hr
from headroles.analysis import intervals
from headroles.analysis.logistic import firth
from headroles.analysis.role_rules import roles
from headroles.tables import frame
from headroles.tables.io import load_table, save_table
from headroles.tables.study import Study

NOBODY, EVERYBODY = "no head has the role", "all heads have the role: there is no comparison group"
NOWHERE, CONSTANT = "the role does not apply to the heads with this outcome", "the outcome is the same for all heads"
NO_SCORE = (
    "the role's score is NaN for all these heads: it does not apply to their kind, or the corpus lacks what it needs"
)
ONE_GROUP = "no layer has heads with the role and heads without: role and layer are confounded"
ALONE = "a single head on one side: no interval"
FEW_HEADS = "too few heads, or nothing varies but by the role: no interval of the difference"


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
        "rank_biserial": 2 * auc - 1,
        "point_biserial": stats.pointbiserialr(rarity >= 0.5, y).statistic,
        "spearman": stats.spearmanr(rarity - 0.5, y).statistic,
    }
    for name, value in expected.items():
        assert row[name] == pytest.approx(value, abs=1e-12)
        assert row[f"{name}.low"] < row[name] < row[f"{name}.high"]
    assert (row["rank_biserial.low"] + 1) / 2 == pytest.approx(row["auc.low"])
    assert row["spearman.high"] == pytest.approx(intervals.rank_correlation(row["spearman"], 64)[1])


def test_within_is_the_mean_difference_from_the_neighbours_of_the_layer():
    where = index(layers=2, many=3)
    table = told(where, rarity=[1, 0, 0, 1, 1, 0])
    row = hr.relate(table, effects(where, loss=[5.0, 1, 3, 9, 7, 2]), n_resamples=0, n_permutations=9).iloc[0]
    assert row["within"] == pytest.approx(((5 - 2) + (9 - 2) + (7 - 2)) / 3)


def test_p_is_that_of_all_ways_to_deal_the_role_out_within_layers():
    where, y = index(layers=2, many=4), np.array([3.0, 1, 0, 1, 10, 14, 11, 19])
    held = np.array([1, 0, 0, 0, 0, 1, 0, 1])
    row = hr.relate(told(where, rarity=held), effects(where, loss=y), n_resamples=0, n_permutations=40_000).iloc[0]

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
    """Scores and outcomes of heads, the outcomes in another order, related in three ways."""
    where, random = index(layers=3), np.random.default_rng(1)
    scores = frame.table({"rarity": random.random(24), "importance": random.random(24)}, where, "s")
    out = frame.table({"survival[x]": (random.random(24) < 0.5).astype(float)}, where, "s")
    if order is not None:
        shuffled = frame.rows(out.iloc[list(order)])
        out = frame.table({"survival[x]": out["survival[x]"].to_numpy()[list(order)]}, shuffled, "s")
    options = {"n_resamples": 20, "n_permutations": 30}
    table = roles(scores, ROLES)
    return hr.relate(table, out, **options), hr.predict_outcome(scores, out, **options), hr.survival_odds(table, out)


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
    names += ["survival[l0 8 cross]", "survival[l0 8 cross].open", "survival[importance 8].turn", "attribution[ig]"]
    out = frame.table({name: random.random(n) for name in names}, where, "s")
    found = hr.relate(told(where, rarity=random.random(n)), out, n_resamples=5, n_permutations=9).set_index("outcome")
    assert found.index.tolist() == [
        "ablation[loss]", "importance", "relevance[cp].size", "survival[l0 8 cross]", "survival[importance 8].turn",
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
        ([1] * 4 + [0] * 4, range(8), ONE_GROUP),
        ([1] + [0] * 7, range(8), ALONE),
    ],
)
def test_what_cannot_be_said_is_said_in_words(rarity, y, note):
    where = index(layers=2, many=4)
    row = hr.relate(told(where, rarity=rarity), effects(where, loss=list(y)), n_resamples=20, n_permutations=9).iloc[0]
    assert row["note"] == note
    if note == ONE_GROUP:
        assert row["p"] == 1
        assert np.isnan(row["within"])
    elif note == ALONE:
        assert np.isnan(row["auc.low"])
        assert row["auc"] == 0
    else:
        assert np.isnan(row[["auc", "p", "holm", "bh"]].astype(float)).all()


def test_notes_are_read_one_after_the_other():
    where = frame.index({("enc-self", 0): 1, ("enc-self", 1): 7})
    table = told(where, rarity=[1] + [0] * 7)
    row = hr.relate(table, effects(where, loss=range(8)), n_resamples=0, n_permutations=9).iloc[0]
    assert row["note"] == f"{ALONE}; {ONE_GROUP}"


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


def test_one_head_in_each_layer_cannot_be_separated_from_the_layer():
    where = index(layers=6, many=1)
    table, out = told(where, rarity=[1, 1, 1, 0, 0, 0]), effects(where, loss=range(6))
    for resamples in (20, 1000):  # 20: the fewest with an interval
        row = hr.relate(table, out, n_resamples=resamples, n_permutations=9).iloc[0]
        assert (row["note"], row["p"]) == (f"{ONE_GROUP}; {FEW_HEADS}", 1)


def test_p_is_corrected_over_the_rows_that_have_one():
    where, random = index(), np.random.default_rng(0)
    out = effects(where, a=random.random(32), b=random.random(32), c=[1.0] * 32)
    found = hr.relate(told(where, rarity=random.random(32)), out, n_resamples=0, n_permutations=99)
    p = found["p"].to_numpy()
    assert np.isnan(p).tolist() == [False, False, True]
    np.testing.assert_allclose(found["bh"][:2], stats.false_discovery_control(p[:2]))
    assert found["holm"].min() == pytest.approx(min(1, 2 * p[:2].min()))


def test_tables_of_different_models_are_refused_or_warned_of(caplog):
    small, large, cross = index(layers=1), index(layers=2), index(layers=1, kinds=("cross",))
    for where, sizes in (large, "8 and 16 rows, 8 in common"), (cross, "8 and 8 rows, 0 in common"):
        message = f"roles and outcomes are of different heads: got {sizes}; expected tables of one model"
        with pytest.raises(ValueError, match=f"^{message}$"):
            hr.relate(told(small, rarity=[1] * 8), effects(where, loss=range(len(where))))
    other = frame.table({"importance": range(8)}, small, "model:x|weights:b2")
    with caplog.at_level(logging.WARNING):
        hr.relate(told(small, rarity=[1, 0] * 4), other, n_resamples=0, n_permutations=9)
        hr.relate(told(small, rarity=[1, 0] * 4), effects(small, loss=range(8)), n_resamples=0, n_permutations=9)
    assert caplog.messages == ["roles and outcomes are of 2 different sets of weights: a1, b2"]


def test_bad_input_is_named():
    where = index(layers=1)
    table, out = told(where, rarity=[1, 0] * 4), effects(where, loss=range(8))
    two = effects(where, loss=range(8), accuracy=range(8))
    message = "no outcome begins with ablation[bleu]; there are: ablation[loss], ablation[accuracy]"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        hr.relate(table, two, columns=["ablation[bleu]", "ablation[loss]"])
    message = "no outcome: got columns {}; expected ablation, importance, relevance, attribution or survival"
    for columns, there in ({"confidence": range(8)}, "confidence"), ({"confidence.low": range(8)}, "none"):
        with pytest.raises(ValueError, match=f"^{re.escape(message.format(there))}$"):
            hr.relate(table, frame.table(columns, where, "s"))
    with pytest.raises(ValueError, match=r"^not a table of roles: expected columns \.stability"):
        hr.relate(out, out)
    with pytest.raises(ValueError, match=r"^the table of roles has no column rare\.margin; compute the roles again"):
        hr.relate(frame.only(table, ["rare", "rare.value", "rare.stability"]), out)
    with pytest.raises(ValueError, match=r"^unknown by: got 'kind'; expected 'family' or 'variant'$"):
        hr.relate(table, out, by="kind")  # type: ignore[arg-type]
    with pytest.raises(
        ValueError, match=r"^no outcome of 0 and 1: got ablation\[loss\]; expected some such as survival"
    ):
        hr.survival_odds(table, out)
    with pytest.raises(ValueError, match=r"^no outcome: got columns ablation\[loss\]; expected survival\[\.\.\.\]$"):
        hr.predict_outcome(frame.table({"confidence": range(8)}, where, "s"), out)
    scores = frame.table({"confidence": range(8)}, where, "s")
    with pytest.raises(ValueError, match=r"^no score: got columns confidence; expected nothing$"):
        hr.predict_outcome(scores, out, outcome_columns=["ablation[loss]"], columns=["nothing"])


def test_predictors_are_ranked_by_what_they_say_of_survival():
    where, random = index(layers=3), np.random.default_rng(0)
    layer = where.get_level_values("layer").to_numpy(float)
    alive = (random.random(24) < 0.5).astype(float)
    scores = {"importance": alive + 0.1 * random.random(24), "confidence": layer, "entropy": [1.0] * 24}
    table = frame.table(scores | {"position[-1]": range(24), "ablation[loss]": range(24)}, where, "s")
    out = frame.table({"survival[x 12]": alive, "survival[x 12].turn": range(24)}, where, "s")
    found = hr.predict_outcome(table, out, n_resamples=50, n_permutations=199)
    assert found["score"].tolist() == ["importance", "confidence", "entropy"]
    best, flat, same = (found.iloc[place] for place in range(3))
    assert best["spearman"] == pytest.approx(stats.spearmanr(scores["importance"], alive).statistic)
    assert (best["auc"], best["p"]) == (1, 1 / 200)
    assert flat["auc"] == pytest.approx(stats.mannwhitneyu(layer[alive == 1], layer[alive == 0]).statistic / (
        alive.sum() * (1 - alive).sum()))  # fmt: skip
    assert (flat["note"], flat["p"]) == ("alike within each layer", 1)
    assert same["note"] == "the score is constant"
    chosen = {"outcome_columns": ["survival[x 12].turn"], "columns": ["position[-1]"]}
    turns = hr.predict_outcome(table, out, **chosen, n_permutations=99).iloc[0]
    assert turns["spearman"] == turns["within"] == pytest.approx(1)
    assert np.isnan(turns["auc"])


@pytest.mark.parametrize("cells", [(3, 9, 12, 4), (0, 7, 9, 5), (6, 0, 1, 30)])  # the last two are separated
def test_firth_of_a_two_by_two_table_adds_half_to_each_cell(cells):
    a, b, c, d = cells
    x = np.column_stack([np.ones(sum(cells)), np.repeat([1.0, 1, 0, 0], cells)])
    y = np.repeat([1.0, 0, 1, 0], cells)
    expected = np.log((a + 0.5) * (d + 0.5) / ((b + 0.5) * (c + 0.5)))
    assert firth(x, y)[0][1] == pytest.approx(expected, abs=1e-6)


def test_firth_is_the_summit_of_the_penalised_likelihood():
    random = np.random.default_rng(0)
    x = np.column_stack([np.ones(40), random.random((40, 3)) > 0.6, random.normal(size=40)]).astype(float)
    y = (random.random(40) < 0.4).astype(float)

    def loss(beta: np.ndarray) -> float:
        chance = 1 / (1 + np.exp(-x @ beta))
        information = (x * (chance * (1 - chance))[:, None]).T @ x
        likely = (y * np.log(chance) + (1 - y) * np.log(1 - chance)).sum()
        return float(-likely - np.linalg.slogdet(information)[1] / 2)

    beta, likelihood = firth(x, y)
    slow = optimize.minimize(loss, np.zeros(5), tol=1e-12)
    np.testing.assert_allclose(beta, slow.x, atol=1e-4)
    assert likelihood == pytest.approx(-slow.fun)
    held = optimize.minimize(lambda rest: loss(np.insert(rest, 2, 0.7)), np.zeros(4), tol=1e-12)
    assert firth(x, y, fixed=2, at=0.7)[1] == pytest.approx(-held.fun)


@pytest.mark.parametrize("seed", range(3))
def test_firth_is_that_of_another_library(seed):
    """Of separated groups too, where plain likelihood has no estimate."""
    from firthmodels import FirthLogisticRegression

    random = np.random.default_rng(seed)
    x = np.column_stack([random.random((30, 2)) > 0.6, random.normal(size=30)]).astype(float)
    y = np.where(x[:, 0] == 1, 1.0, random.random(30) < 0.5).astype(float)
    other = FirthLogisticRegression(fit_intercept=False, max_iter=1000, gtol=1e-7, xtol=1e-7).fit(x, y)
    beta, likelihood = firth(x, y)
    np.testing.assert_allclose(beta, other.coef_, atol=1e-6)
    assert likelihood == pytest.approx(other.loglik_)
    other.lrt()
    p = [stats.chi2.sf(2 * (likelihood - firth(x, y, fixed=place)[1]), 1) for place in range(3)]
    np.testing.assert_allclose(p, other.lrt_pvalues_, atol=1e-5)


def test_the_ends_of_an_odds_interval_are_where_the_likelihood_ratio_says_so():
    where, random = index(layers=5, many=6), np.random.default_rng(0)
    rare = random.random(30) < 0.4
    alive = (random.random(30) < np.where(rare, 0.8, 0.3)).astype(float)
    out = frame.table({"survival[x]": alive}, where, "s")
    row = hr.survival_odds(told(where, rarity=rare), out).set_index("term").loc["rare"]
    layer = where.get_level_values("layer").to_numpy()
    mixed = np.isin(layer, [one for one in range(5) if 0 < alive[layer == one].mean() < 1])
    x = np.column_stack([rare, *(layer == one for one in np.unique(layer[mixed]))])[mixed].astype(float)
    best = firth(x, alive[mixed])[1]
    for end in ("odds.low", "odds.high"):
        fall = best - firth(x, alive[mixed], fixed=0, at=float(np.log(row[end])))[1]
        assert 2 * fall == pytest.approx(stats.chi2.ppf(0.95, 1), abs=1e-3)
    assert row["p"] == pytest.approx(stats.chi2.sf(2 * (best - firth(x, alive[mixed], fixed=0)[1]), 1))
    assert row["heads"] == rare[mixed].sum()


def odds_by_layer(seed: int) -> pd.DataFrame:
    """Role and survival are both in the middle layers, and have nothing to do with each other within them."""
    where, random = index(layers=9, many=12), np.random.default_rng(seed)
    rate = 0.05 + 0.9 * np.exp(-(((where.get_level_values("layer").to_numpy() - 4) / 1.8) ** 2))
    alive, rare = (random.random((2, len(where))) < rate).astype(float)
    out = frame.table({"survival[x]": alive}, where, "s")
    return hr.survival_odds(told(where, rarity=rare), out)


@pytest.mark.slow
def test_odds_separate_a_role_from_layers_that_differ_in_any_way():
    found = pd.concat([odds_by_layer(seed) for seed in range(40)])
    assert found["term"].unique().tolist() == ["rare"]
    assert (found["p"] < 0.05).sum() <= 5  # of 40, by chance: 2 give or take 1.4
    assert np.log(found["odds"]).mean() == pytest.approx(0, abs=0.3)


def test_odds_say_which_roles_they_cannot_separate_from_layers():
    where = index(layers=6, many=8, kinds=("dec-self", "cross"))
    kind, layer, head = (where.get_level_values(name).to_numpy() for name in ("kind", "layer", "head"))
    upper = frame.table({"survival[x]": (layer >= 3).astype(float)}, where, "s")  # the layer alone decides
    (row,) = hr.survival_odds(told(where, rarity=head < 3), upper).to_dict("records")
    assert (row["note"], row["heads"]) == (
        "no layer has surviving and pruned heads: role and layer are confounded", 0)  # fmt: skip
    assert np.isnan([row["odds"], row["odds.low"], row["odds.high"], row["p"]]).all()
    some = frame.table({"survival[x]": ((layer >= 3) | (head == 0)).astype(float)}, where, "s")
    notes = hr.survival_odds(told(where, rarity=kind == "cross", minus=layer >= 3), some).set_index("term")["note"]
    assert notes.to_dict() == {
        "rare": "collinear with the layers or other roles",
        "positional": "the same for all heads of the layers with surviving and pruned heads",
    }


def test_kinds_that_the_table_lacks_are_named():
    where = index()
    with pytest.raises(ValueError, match=r"^no heads of kind 'encself' to relate: got a table of enc-self$"):
        hr.relate(told(where, rarity=[1] * len(where)), effects(where, loss=[0] * len(where)), kinds=["encself"])


def test_drift_counts_who_kept_lost_left_and_took_over():
    before = told(index(layers=1, many=6), rarity=[1, 1, 1, 0, 0, 0])
    left = frame.index({("enc-self", 0): [0, 1, 3, 5]})
    after = told(left, rarity=[1, 0, 1, 0])
    row = hr.role_changes(before, after).iloc[0].drop("role")
    assert row.to_dict() == {"before": 3, "stayed": 1, "lost": 1, "went": 1, "new": 1, "after": 2}
    several = hr.role_changes(before, {6: before, 4: after})
    assert several[["heads", "after"]].to_numpy().tolist() == [[6, 3], [4, 2]]
    with pytest.raises(
        ValueError, match=r"^2 heads of the pruned model are not in the whole one, such as enc-self:0:2$"
    ):
        hr.role_changes(after, before)
    with pytest.raises(
        ValueError, match=r"^no table of roles after pruning: got an empty mapping; expected at least one$"
    ):
        hr.role_changes(before, {})


@pytest.fixture
def studies(tmp_path):
    """A study with scores and roles, and one with survival and the roles of what is left."""
    where, random = index(layers=3, kinds=("enc-self", "cross")), np.random.default_rng(0)
    n = len(where)
    scores = frame.table({"rarity": random.random(n), "importance": random.random(n)}, where, "weights:a1")
    save_table(scores, tmp_path / "one" / "heads.parquet")
    save_table(roles(scores, ROLES), tmp_path / "one" / "roles.parquet")
    alive = (random.random(n) < 0.5).astype(float)
    columns = {"survival[l0 24]": alive, "survival[l0 24].open": alive, "survival[l0 10 cross]": alive}
    save_table(frame.table(columns, where, "weights:a1"), tmp_path / "two" / "survival-l0.parquet")
    save_table(frame.table({"importance": random.random(n)}, where, "weights:a1"), tmp_path / "two" / "heads.parquet")
    left = frame.rows(scores[alive == 1])
    kept = frame.table({"rarity": random.random(len(left))}, left, "weights:a1")
    save_table(roles(kept, ROLES), tmp_path / "two" / f"roles-l0-{len(left)}.parquet")
    return tmp_path


@pytest.mark.slow
def test_studies_meet_in_a_folder_of_tables_and_figures(studies):
    study = Study(studies / "both")
    found = hr.relate(studies / "one", [studies / "two"], study=study)
    assert study.names() == ["drift-l0", "odds", "predictors", "relate"]
    assert found["outcome"].tolist() == ["importance", "survival[l0 24]", "survival[l0 10 cross]"]
    alone = hr.relate(load_table(studies / "one/roles.parquet"), load_table(studies / "one/heads.parquet"))
    numbers = ["auc", "difference", "p"]  # the importance of the first study, not of the second
    pd.testing.assert_frame_equal(found.loc[[0], numbers], alone[numbers])
    assert set(study.load("predictors")["score"]) == {"importance", "rarity"}
    assert {path.name for path in hr.plot(study)} == {
        "drift-l0.png",
        "odds.png",
        "predictors.png",
        "relate.png",
    }


def test_a_table_of_roles_and_one_of_outcomes_will_do(studies):
    found = hr.relate(studies / "one/roles.parquet", [studies / "two/survival-l0.parquet"], study=Study(studies / "b"))
    assert found["outcome"].unique().tolist() == ["survival[l0 24]", "survival[l0 10 cross]"]
    with pytest.raises(FileNotFoundError, match=r"^no table 'roles' in .*two; there are: heads, roles-l0"):
        hr.relate(studies / "two", [studies / "one"], study=Study(studies / "c"))


def test_seeds_are_one_outcome(studies):
    alive = load_table(studies / "two/survival-l0.parquet")["survival[l0 24]"]
    columns = {"survival[x 24 seed 0]": alive, "survival[x 24 seed 1]": 1 - alive, "survival[y 24 seed 0]": alive}
    save_table(frame.table(columns, frame.rows(alive.to_frame()), "s"), studies / "seeds.parquet")
    study = Study(studies / "both")
    found = hr.relate(studies / "one", [studies / "seeds.parquet"], study=study).set_index("outcome")
    assert found["note"].to_dict() == {"importance": "", "survival[x 24]": CONSTANT, "survival[y 24]": ""}
    assert set(study.load("odds")["outcome"]) == {"survival[y 24]"}
    hr.relate(studies / "one", [studies / "seeds.parquet"], columns=["importance"], study=study)
    assert study.names() == ["relate"]  # nothing is left of other outcomes


def test_outcomes_can_be_chosen_by_words(studies):
    found = hr.relate(studies / "one", [studies / "two"], columns=["imp", "l0 24"], study=Study(studies / "both"))
    assert found["outcome"].tolist() == ["importance", "survival[l0 24]"]
    with pytest.raises(
        ValueError, match=r"^no outcome begins with x or y; there are: importance, survival\[l0 24\], surv"
    ):
        hr.relate(studies / "one", [studies / "two"], columns=["x", "y"], study=Study(studies / "both"))


@pytest.mark.slow
def test_the_forests_show_the_table(studies):
    study = Study(studies / "both")
    hr.relate(studies / "one", [studies / "two"], study=study)
    for name, drawing, column in (
        ("relate", hr.plots.relation, "auc"),
        ("odds", hr.plots.odds, "odds"),
        ("predictors", hr.plots.predictors, "auc"),
    ):
        table = study.load(name)
        table = table[~table["term"].str.match("kind|depth")] if name == "odds" else table
        ax = drawing(study.load(name))
        marks = [line for line in ax.lines if line.get_marker() != "None"]
        assert [line.get_xdata()[0] for line in marks] == pytest.approx(table[column].tolist())
        filled = [line.get_markerfacecolor() != "white" for line in marks]
        assert filled == (table["p"] < 0.05).tolist()
        spans = [
            line.get_xdata() for line in ax.lines if line.get_marker() == "None" and len(set(line.get_ydata())) == 1
        ]
        np.testing.assert_allclose(spans, table[[f"{column}.low", f"{column}.high"]])
        plt.close(ax.figure)


def test_drift_is_drawn_as_it_is_counted():
    before = told(index(layers=1, many=6), rarity=[1, 1, 1, 0, 0, 0])
    after = told(frame.index({("enc-self", 0): [0, 1, 3, 5]}), rarity=[1, 0, 1, 0])
    (ax,) = hr.plots.drift(hr.role_changes(before, {6: before, 4: after}))
    heights = {bar.get_label(): [part.get_height() for part in bar] for bar in ax.containers}
    assert heights == {"stayed": [3, 1], "new": [0, 1], "lost": [0, -1], "pruned": [0, -1]}
    assert [label.get_text() for label in ax.get_xticklabels()] == ["6", "4"]
    assert all(tick == int(tick) for tick in ax.get_yticks())  # heads are whole
    assert ax.get_ylim()[1] > 3  # the tallest bar ends below the title
    nobody = told(index(layers=1), rarity=[0] * 8)
    with pytest.raises(ValueError, match="^nothing to draw: no head has a role, before or after$"):
        hr.plots.drift(hr.role_changes(nobody, {8: nobody}))


def test_nothing_to_draw_is_said():
    where = index(layers=1)
    nobody = hr.relate(told(where, rarity=[0] * 8), effects(where, loss=range(8)), n_resamples=0, n_permutations=9)
    with pytest.raises(ValueError, match=f"^nothing to draw: {NOBODY}$"):
        hr.plots.relation(nobody)


@pytest.mark.slow
def test_the_command_says_what_was_found_and_what_cannot_be(studies):
    from helpers.commands import run

    found = run("relate", studies / "one", studies / "two", "--study", studies / "both")
    assert (found.code, found.err) == (0, "")
    assert "of 3 relations have p < 0.05 within layers after Holm" in found.out
    assert "rare: survival[l0 24]" in found.out
    nobody = frame.table({"rarity": [0.0] * 48}, index(layers=3, kinds=("enc-self", "cross")), "weights:a1")
    save_table(roles(nobody, ROLES), studies / "roles.parquet")
    found = run("relate", studies / "roles.parquet", studies / "two/survival-l0.parquet", "--study", studies / "none")
    assert "rare: no head has the role (2 outcomes)" in found.out
    assert "nan" not in found.out
    found = run("relate", studies / "two", studies / "one", "--study", studies / "both")
    assert found.code == 2
    assert re.match(r"headroles: no table 'roles' in .*two; there are: ", found.err)


def test_what_is_related_says_of_which_models_and_corpora():
    where = index(layers=2, many=4)
    table = roles(frame.table({"rarity": [1.0, 0] * 4}, where, "model:m|weights:a1|corpus:c|text:t1|seed:0"), ROLES)
    columns = {"survival[x]": [1.0, 1, 0, 0, 1, 0, 1, 0], "importance": range(8)}
    signed = {"survival[x]": "model:m|weights:a1|trained_on:t2|keep:4", "importance": "model:m|weights:a1|text:t3"}
    out = frame.table(columns, where, signed)
    tables = [
        hr.relate(table, out, n_resamples=0, n_permutations=9),
        hr.survival_odds(table, out),
        hr.predict_outcome(out, out, n_resamples=0, n_permutations=9),
    ]
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


def test_heads_that_are_in_several_rows_are_refused():
    assigned, outcomes = (pd.concat([table, table.iloc[:1]]) for table in _two_tables())
    message = "heads are counted twice: got ('enc-self', 0, 0) in several rows; expected each head once"
    with pytest.raises(ValueError, match=whole(message)):
        hr.relate(assigned, outcomes)


def _two_tables():
    index = frame.index({("enc-self", 0): 4, ("enc-self", 1): 4})
    scores = frame.table({"position[-1]": [0.95, 0.1] * 4}, index, "score:Position()")
    return hr.roles(scores), frame.table({"importance": range(8)}, index, "score:Importance()").astype(float)
