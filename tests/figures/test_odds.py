"""Odds of survival by figures/quality: Firth's penalised likelihood; roles that cannot be told from layers."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from helpers.relations import effects, index, told
from odds import firth, survival_odds
from scipy import optimize, stats

from headroles.tables import frame


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
    row = survival_odds(told(where, rarity=rare), out).set_index("term").loc["rare"]
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
    return survival_odds(told(where, rarity=rare), out)


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
    (row,) = survival_odds(told(where, rarity=head < 3), upper).to_dict("records")
    assert (row["note"], row["heads"]) == (
        "no layer has surviving and pruned heads: role and layer are confounded", 0)  # fmt: skip
    assert np.isnan([row["odds"], row["odds.low"], row["odds.high"], row["p"]]).all()
    some = frame.table({"survival[x]": ((layer >= 3) | (head == 0)).astype(float)}, where, "s")
    notes = survival_odds(told(where, rarity=kind == "cross", minus=layer >= 3), some).set_index("term")["note"]
    assert notes.to_dict() == {
        "rare": "collinear with the layers or other roles",
        "positional": "the same for all heads of the layers with surviving and pruned heads",
    }


def test_effects_have_no_odds():
    where = index()
    with pytest.raises(ValueError, match=r"of 0 and 1, .*, got ablation\[loss\]"):
        survival_odds(told(where, rarity=range(len(where))), effects(where, loss=range(len(where))))
