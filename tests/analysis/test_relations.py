"""Studies are related: tables, figures, and the command."""

from __future__ import annotations

import re

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from helpers.relations import CONSTANT, ROLES, index
from scipy import stats

import headroles as hr
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
    assert study.names() == ["predictors", "relate", "role-changes-l0"]
    assert found["outcome"].tolist() == ["importance", "survival[l0 24]", "survival[l0 10 cross]"]
    alone = hr.relate(load_table(studies / "one/roles.parquet"), load_table(studies / "one/heads.parquet"))
    numbers = ["auc", "difference", "p"]  # the importance of the first study, not of the second
    pd.testing.assert_frame_equal(found.loc[[0], numbers], alone[numbers])
    assert set(study.load("predictors")["score"]) == {"importance", "rarity"}
    assert {path.stem for path in hr.plot(study)} == {"role-changes-l0", "predictors", "relate"}


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
    for name, drawing in (("relate", hr.plots.relation), ("predictors", hr.plots.predictors)):
        table = study.load(name)
        ax = drawing(study.load(name))
        marks = [line for line in ax.lines if line.get_marker() != "None"]
        assert [line.get_xdata()[0] for line in marks] == pytest.approx(table["auc"].tolist())
        filled = [line.get_markerfacecolor() != "white" for line in marks]
        assert filled == (table["p"] < 0.05).tolist()
        spans = [
            line.get_xdata() for line in ax.lines if line.get_marker() == "None" and len(set(line.get_ydata())) == 1
        ]
        np.testing.assert_allclose(spans, table[["auc.low", "auc.high"]])
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
