"""Several pruned models pooled: planted survival and planted differences between controls are found, and drawn."""

from __future__ import annotations

import re
import shutil
from functools import partial

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from make import app
from picture import specialists
from pooling import pooled_survival
from scipy import stats
from several_models import pool_models
from typer.testing import CliRunner

from headroles.analysis.role_rules import roles
from headroles.plots import role_changes
from headroles.tables import frame
from headroles.tables.io import load_table, save_table

pytestmark = pytest.mark.slow
REACHED = {"all heads": 30, "l0": 20, "importance": 20, "-importance": 14, "roles": 25, "-roles": 12, "random": 15}


def save_model(place, seed):
    """The tables of a pruned model in which positional heads survive, and its controls."""
    random = np.random.default_rng(seed)
    index = frame.index({("enc-self", layer): 8 for layer in range(3)})
    names = ("positional", "syntactic", "confidence", "sink", "importance")
    columns = {name: random.uniform(size=24) for name in names}
    for size in (12, 6, 3):
        rank = pd.Series(columns["positional"] + random.normal(size=24) / 8).rank(ascending=False)
        columns[f"survival[{size}]"] = (rank <= size).to_numpy(float)
    save_table(frame.table(columns, index, f"model:{seed}"), place / "survival.parquet")
    for gates in range(2):
        sizes = pd.DataFrame({"heads": [40, 28, 22, 19], "enc-self": [24, 12, 6, 3], "undecided": [0, 1, 2, 1]})
        sizes["value"], sizes["change"] = [30.0 - seed, 28.0, 27.0, 25.0], [0.0, -2.0, -3.0, -5.0]
        kept = place / f"gates-{gates}" / "sparsity-l0-enc-self.parquet"
        save_table(frame.signed(sizes, "metric:BLEU(beams=1)"), kept)
    rows = [
        {"strategy": name, "heads": 24 if name == "all heads" else 6, "tuned": tuned, "seed": draw}
        | {"value": value - 5 * (not tuned) + random.normal() / 4}
        for name, value in REACHED.items()
        for tuned in (False, True)
        for draw in range(3)
    ]
    table = pd.DataFrame(rows)
    strategies, seeds = table["strategy"], table["seed"]
    parts = {"controls": ~strategies.isin(["random", "l0"]), "random": strategies == "random"}
    parts |= {f"l0-6-{seed}": (strategies == "l0") & (seeds == seed) for seed in range(3)}
    for part, chosen in parts.items():
        of_part = table[chosen].reset_index(drop=True).assign(**{"seed": 0} if part.startswith("l0") else {})
        save_table(frame.signed(of_part, "simulated"), place / part / "compare-pruning-seeds.parquet")
    return place


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    place = tmp_path_factory.mktemp("several")
    return [save_model(place / f"C-{seed}", seed) for seed in range(5)]


@pytest.fixture(scope="module", autouse=True)
def _few_permutations():
    """As many as these effects need, a tenth of those of studies."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("several_models.pooled_survival", partial(pooled_survival, n_permutations=999))
        yield


@pytest.fixture(scope="module")
def pooled(folders):
    return pool_models(folders)


def test_planted_survival_is_found_where_it_is(pooled):
    table = pooled.survival.set_index(["analysis", "outcome", "predictor"])
    for outcome in ("survival[12]", "survival[6]"):
        assert table.loc[("primary", outcome, "positional"), "r.low"] > 0.2
        assert table.loc[("primary", outcome, "positional"), "holm"] < 0.05
        assert table.loc[("positional given importance", outcome, "positional"), "r.low"] > 0.2
        for analysis, name in (("primary", "syntactic"), ("importance", "importance")):
            assert table.loc[(analysis, outcome, name), "r.low"] < 0 < table.loc[(analysis, outcome, name), "r.high"]
    sizes = table.reset_index().groupby("analysis")["outcome"].agg(set)
    assert sizes["primary"] == {"survival[12]", "survival[6]"}
    assert sizes["other sizes"] == {"survival[3]"}


def test_effects_of_ablation_are_related_to_roles_and_survival(folders, tmp_path):
    places = copied(folders, tmp_path)
    for seed, place in enumerate(places):
        survival = load_table(place / "survival.parquet")
        noise = np.random.default_rng(seed).normal(size=24) / 20
        index = frame.index({(kind, layer): 8 for kind in ("enc-self", "dec-self") for layer in range(3)})
        effects = np.concatenate([survival["positional"] + noise, np.zeros(24)])
        save_table(frame.table({"ablation[loss]": effects}, index, "x"), place / "ablation-loss-head-zero.parquet")
    found = pool_models(places)
    assert found.heads["ablation[loss]"].notna().all()
    table = found.survival.set_index(["analysis", "outcome", "predictor"])["r"]
    assert table["roles and ablation[loss]", "ablation[loss]", "positional"] > 0.9
    assert table["ablation[loss]", "survival[6]", "ablation[loss]"] > 0.5
    given = found.survival[found.survival["analysis"] == "positional given ablation[loss]"]
    assert (given["r"].abs() < 0.5).all()


def test_roles_of_the_heads_that_are_left_are_compared_with_those_before(folders, tmp_path):
    """Of four positional heads one is pruned in turn; of those left the first loses its role, another takes it over."""
    index = frame.index({("enc-self", layer): 8 for layer in range(3)})
    before = np.zeros(24)
    before[:4] = 1
    places = copied(folders, tmp_path)
    for place in places:
        random = np.random.default_rng(100 + int(place.name[-1]))
        columns = {"position[-1]": before, "rarity": random.uniform(size=24)}
        save_table(frame.table(columns, index, "before"), place / "heads.parquet")
        for gates in (0, 1):
            for size, pruned in ((24, []), (12, [3, *range(8, 19)]), (6, [2, 3, *range(8, 24)]), (3, [*range(1, 22)])):
                after = before.copy()
                after[[0, 7, 23]] = 0, 1, 1
                left = index.delete(pruned)
                table = frame.table({"position[-1]": np.delete(after, pruned)}, left, f"{size} left")
                save_table(roles(table), place / f"gates-{gates}" / f"roles-l0-enc-self-{size}.parquet")
    found = pool_models(places)
    counts = found.changes.query("role == 'positional'").groupby("heads")[["kept", "lost", "removed", "new"]].agg(set)
    expected = {24: (3, 1, 0, 2), 12: (2, 1, 1, 2), 6: (1, 1, 2, 1), 3: (0, 1, 3, 1)}
    assert {heads: tuple(numbers.pop() for numbers in row) for heads, row in counts.T.items()} == expected
    assert found.changes.groupby(["model", "gates", "role"]).size().eq(4).all()
    assert len(found.changes[["model", "gates"]].drop_duplicates()) == 10
    rare = found.survival.query("analysis == 'rare words'")
    assert rare["outcome"].tolist() == ["survival[12]", "survival[6]", "survival[3]"]
    assert ((rare["r.low"] < 0) & (rare["r.high"] > 0)).all()
    half = found.changes.assign(kept=found.changes["kept"] - (found.changes["gates"] == "1"))
    (ax,) = role_changes(half[half["role"] == "positional"])
    heights = {bar.get_label(): [part.get_height() for part in bar] for bar in ax.containers}
    assert heights["kept"] == [2.5, 1.5, 0.5, -0.5]
    assert heights["pruned"] == [0, -1, -2, -3]
    plt.close("all")
    (places[-1] / "gates-1" / "roles-l0-enc-self-6.parquet").unlink()
    assert pool_models(places).changes is None


def test_planted_differences_between_retrained_controls_are_found(pooled):
    table = pooled.differences.set_index(["strategy", "against"])
    for (one, other), row in table.iterrows():
        assert row["difference"] == pytest.approx(REACHED[one] - REACHED[other], abs=0.5)  # 5 standard errors
        assert row["low"] < row["difference"] < row["high"]
        if REACHED[one] != REACHED[other]:
            assert row["p"] < 0.001
    assert table["holm"].notna().sum() == 2
    first = table.loc[[("roles", "random"), ("roles", "importance")]]
    assert first["holm"].max() == pytest.approx(min(1, max(2 * first["p"].min(), first["p"].max())))


def test_the_figure_has_every_head_every_test_and_every_model(pooled):
    drawn = specialists(*pooled[:4])
    assert len(drawn[0].collections[0].get_offsets()) == 5 * 24
    tests, values = ([text.get_text() for text in ax.get_yticklabels()] for ax in drawn[1:])
    assert tests[0] == "positional given confidence and sink (12 left)"
    assert len(tests) == 4 + 1 + 1 + 1
    assert tests[-2:] == ["positional given importance (6 left)", "importance given positional (6 left)"]
    assert values[:2] == ["12 heads, L0 gates", "6 heads, L0 gates"]
    assert len(values) == 3 + len(REACHED) - 1
    marks = drawn[2].lines[0].get_xdata()  # the differences of each model from all its heads
    np.testing.assert_allclose(sorted(marks), [28 - 30 + seed for seed in range(5)])
    without = specialists(*pooled[:3])
    assert len(without[2].get_yticks()) == 3
    with pytest.raises(ValueError, match="no model has 9 heads left: got"):
        specialists(*pooled[:3], left=9)
    plt.close("all")


def test_the_command_keeps_the_tables_and_draws(pooled, folders, tmp_path):
    done = CliRunner().invoke(app, ["pool", *map(str, folders), "--study", str(tmp_path)], catch_exceptions=False)
    assert done.exit_code == 0
    tables = {f"pooled-{name}.parquet" for name in ("heads", "survival", "sizes", "controls", "differences")}
    assert {path.name for path in tmp_path.iterdir()} == tables | {"specialists.png"}
    pd.testing.assert_frame_equal(load_table(tmp_path / "pooled-survival.parquet"), pooled.survival)
    assert "positional" in done.output


def copied(folders, place, **options):
    """Copies of the folders of models."""
    return [shutil.copytree(folder, place / folder.name, **options) for folder in folders]


def test_models_without_controls_are_pooled(folders, tmp_path):
    found = pool_models(copied(folders, tmp_path, ignore=shutil.ignore_patterns("controls")))
    assert (found.controls, found.differences) == (None, None)
    assert found.sizes.groupby("heads").size().to_dict() == {24: 10, 12: 10, 6: 10, 3: 10}
    assert found.sizes.loc[found.sizes["heads"] == 24, "change"].tolist() == [0.0] * 10


def test_one_seed_of_each_control_leaves_the_interval_over_models(folders, tmp_path):
    places = copied(folders, tmp_path)
    for path in tmp_path.rglob("compare-pruning-seeds.parquet"):
        save_table(frame.signed(load_table(path).query("seed == 0").reset_index(drop=True), "x"), path)
    found = pool_models(places)
    values = found.controls.query("tuned and strategy in ('roles', 'random')").pivot(
        index="model", columns="strategy", values="value"
    )
    row = found.differences.set_index(["strategy", "against"]).loc[("roles", "random")]
    change = values["roles"] - values["random"]
    low, high = stats.t.interval(0.95, len(change) - 1, change.mean(), change.sem())
    np.testing.assert_allclose([row["difference"], row["low"], row["high"]], [change.mean(), low, high], rtol=1e-6)
    assert found.differences["i2"].isna().all()


def test_only_controls_that_all_models_have_are_compared(folders, tmp_path):
    places = copied(folders, tmp_path)
    place = tmp_path / "C-3/controls/compare-pruning-seeds.parquet"
    table = load_table(place)
    save_table(frame.signed(table[table["strategy"] != "-importance"], "simulated"), place)
    found = pool_models(places).differences
    assert [*zip(found["strategy"], found["against"], strict=True)] == [
        *(("roles", "random"), ("roles", "importance"), ("-roles", "random"), ("l0", "random")),
        *(("importance", "random"), ("l0", "importance")),
    ]
    assert found["holm"].notna().tolist() == [True, True, False, False, False, False]


def test_sizes_of_the_primary_outcome_are_chosen(folders):
    table = pool_models(folders, tested=[3]).survival.groupby("analysis")["outcome"].agg(set)
    assert table["primary"] == {"survival[3]"}
    assert table["other sizes"] == {"survival[12]", "survival[6]"}
    with pytest.raises(ValueError, match="^no survival at 9 heads left in every model; all have survival"):
        pool_models(folders, tested=[9, 3])


def test_too_few_models_are_refused(folders, tmp_path):
    with pytest.raises(ValueError, match="^too few models to pool: got [^,]+; expected two or more folders with"):
        pool_models(folders[:1])
    message = f"no pruned model in {tmp_path / 'a'}: expected survival.parquet; make it with python figures/"
    with pytest.raises(FileNotFoundError, match=f"^{re.escape(message)}"):
        pool_models([tmp_path / "a", tmp_path / "b"], study=tmp_path)
    assert not list(tmp_path.iterdir())
