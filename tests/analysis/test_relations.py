"""Studies are related: tables, figures, and the command."""

from __future__ import annotations

import re

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from helpers.relations import CONSTANT, ROLES, index, told
from scipy import optimize, stats

import headroles as hr
from headroles.analysis.relations import firth
from headroles.analysis.role_rules import roles
from headroles.tables import frame
from headroles.tables.io import load_table, save_table
from headroles.tables.study import Study


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
    assert study.names() == ["predictors", "relate", "role-changes-l0", "survival-odds"]
    assert found["outcome"].tolist() == ["importance", "survival[l0 24]", "survival[l0 10 cross]"]
    alone = hr.relate(load_table(studies / "one/roles.parquet"), load_table(studies / "one/heads.parquet"))
    numbers = ["auc", "difference", "p"]  # the importance of the first study, not of the second
    pd.testing.assert_frame_equal(found.loc[[0], numbers], alone[numbers])
    assert set(study.load("predictors")["score"]) == {"importance", "rarity"}
    assert {path.name for path in hr.plot(study)} == {
        "role-changes-l0.png",
        "survival-odds.png",
        "predictors.png",
        "relate.png",
    }


def test_a_table_of_roles_and_one_of_outcomes_will_do(studies):
    found = hr.relate(studies / "one/roles.parquet", [studies / "two/survival-l0.parquet"], study=Study(studies / "b"))
    assert found["outcome"].unique().tolist() == ["survival[l0 24]", "survival[l0 10 cross]"]
    with pytest.raises(FileNotFoundError, match=r"^no table 'roles' in .*two, which has heads, roles-l0"):
        hr.relate(studies / "two", [studies / "one"], study=Study(studies / "c"))


def test_seeds_are_one_outcome(studies):
    alive = load_table(studies / "two/survival-l0.parquet")["survival[l0 24]"]
    columns = {"survival[x 24 seed 0]": alive, "survival[x 24 seed 1]": 1 - alive, "survival[y 24 seed 0]": alive}
    save_table(frame.table(columns, frame.rows(alive.to_frame()), "s"), studies / "seeds.parquet")
    study = Study(studies / "both")
    found = hr.relate(studies / "one", [studies / "seeds.parquet"], study=study).set_index("outcome")
    assert found["note"].to_dict() == {"importance": "", "survival[x 24]": CONSTANT, "survival[y 24]": ""}
    assert set(study.load("survival-odds")["outcome"]) == {"survival[y 24]"}
    hr.relate(studies / "one", [studies / "seeds.parquet"], columns=["importance"], study=study)
    assert study.names() == ["relate"]  # nothing is left of other outcomes


def test_outcomes_can_be_chosen_by_words(studies):
    found = hr.relate(studies / "one", [studies / "two"], columns=["imp", "l0 24"], study=Study(studies / "both"))
    assert found["outcome"].tolist() == ["importance", "survival[l0 24]"]
    with pytest.raises(ValueError, match=r"^outcome must be one of importance, survival\[l0 24\], .*, got 'x'"):
        hr.relate(studies / "one", [studies / "two"], columns=["x", "y"], study=Study(studies / "both"))


@pytest.mark.slow
def test_the_forests_show_the_table(studies):
    study = Study(studies / "both")
    hr.relate(studies / "one", [studies / "two"], study=study)
    for name, drawing, column in (
        ("relate", hr.plots.relation, "auc"),
        ("survival-odds", hr.plots.survival_odds, "odds"),
        ("predictors", hr.plots.predictors, "auc"),
    ):
        table = study.load(name)
        table = table[~table["term"].str.match("kind|depth")] if name == "survival-odds" else table
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


@pytest.mark.slow
def test_the_command_says_what_was_found_and_what_cannot_be(studies):
    from helpers.commands import run

    found = run("relate", studies / "one", studies / "two", "--study", studies / "both")
    assert (found.code, found.err) == (0, "")
    assert "of 3 relations have p < 0.05 after Holm" in found.out
    assert "chance that a head with the role matters more than one without" in " ".join(found.out.split())
    nobody = frame.table({"rarity": [0.0] * 48}, index(layers=3, kinds=("enc-self", "cross")), "weights:a1")
    save_table(roles(nobody, ROLES), studies / "roles.parquet")
    found = run("relate", studies / "roles.parquet", studies / "two/survival-l0.parquet", "--study", studies / "none")
    assert "rare: no head has the role (2 outcomes)" in found.out
    assert "nan" not in found.out
    found = run("relate", studies / "two", studies / "one", "--study", studies / "both")
    assert found.code == 2
    assert re.match(r"headroles: no table 'roles' in .*two, which has ", found.err)


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


def test_predictors_are_ranked_by_what_they_say_of_survival():
    where, random = index(layers=3), np.random.default_rng(0)
    layer = where.get_level_values("layer").to_numpy(float)
    alive = (random.random(24) < 0.5).astype(float)
    scores = {"importance": alive + 0.1 * random.random(24), "confidence": layer, "entropy": [1.0] * 24}
    table = frame.table(scores | {"position[-1]": range(24), "ablation[loss]": range(24)}, where, "s")
    out = frame.table({"survival[x 12]": alive, "survival[x 12].order": range(24)}, where, "s")
    found = hr.predict_outcome(table, out, n_resamples=50, n_permutations=199)
    assert found["score"].tolist() == ["importance", "confidence", "entropy"]
    best, flat, same = (found.iloc[place] for place in range(3))
    assert best["spearman"] == pytest.approx(stats.spearmanr(scores["importance"], alive).statistic)
    assert (best["auc"], best["p"]) == (1, 1 / 200)
    assert flat["auc"] == pytest.approx(stats.mannwhitneyu(layer[alive == 1], layer[alive == 0]).statistic / (
        alive.sum() * (1 - alive).sum()))  # fmt: skip
    assert flat["note"] == "alike within each layer"
    assert np.isnan(flat["p"])
    assert same["note"] == "the score is constant"
    chosen = {"outcome_columns": ["survival[x 12].order"], "columns": ["position[-1]"]}
    turns = hr.predict_outcome(table, out, **chosen, n_permutations=99).iloc[0]
    assert turns["spearman"] == turns["within"] == pytest.approx(1)
    assert np.isnan(turns["auc"])
