"""Negative controls of the papers' claims: no rule holds of an untrained or shuffled model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from controls import EXEMPT, TRIES, UNREPEATED, Control, Untrained, controls, controls_of_study
from helpers.artefacts import WANTED, put

from headroles.papers.bench import Bench, length_of_training
from headroles.papers.reproduction import artefacts
from headroles.papers.verdicts import Missing
from headroles.tables import frame as heads
from headroles.tables.io import load_table, save_table

FIGURES = Path(__file__).resolve().parents[2] / "figures"
STUDIES = {  # rules that are asked of an untrained model: all that need no pruning and no training; others are archives
    "multi30k-en-de": {
        "michel2019": "fig1 fig2 fig3 fig4 fig6 table1 table2 table5",
        "voita2019": "fig1a fig1b fig1c fig2 fig4 fig5 rare table1",
    },
}
FEW = 4  # of the shuffles, whose answers are among those of all
ASKED = [(study, paper, name) for study, rules in STUDIES.items() for paper in rules for name in rules[paper].split()]


def of_heads(**columns: object) -> pd.DataFrame:
    """A table of a translation model, six layers of eight heads of each kind, from functions of a head."""
    index = heads.index({(kind, layer): 8 for kind in ("enc-self", "dec-self", "cross") for layer in range(6)})
    return pd.DataFrame({name: [float(rule(*head)) for head in index] for name, rule in columns.items()}, index)


def effects(noise: int) -> pd.DataFrame:
    """Effects of heads that are alike on all corpora, but for a little noise."""
    random = np.random.default_rng(noise)
    found = of_heads(**{"ablation[loss]": lambda _, layer, head: layer + head + random.normal(scale=0.5)})
    return found.assign(**{"ablation[loss].p": 0.5, "ablation[loss].holm": 1.0})


def put_heads(path: Path, table: pd.DataFrame, text: str = "t") -> None:
    signature = f"model:m|corpus:{text}|text:{text}|metric:Loss()|intact:2.0"
    table.attrs["signatures"] = dict.fromkeys(table, signature)
    save_table(table, path)


@pytest.fixture
def telling(tmp_path: Path) -> Bench:
    """A study in which the kinds, the layers and the single heads that matter are plain to see."""
    for number, name in enumerate(("ablation", "other")):
        put_heads(tmp_path / name / "ablation-loss-head-zero.parquet", effects(number), name)
    columns = {"order": np.repeat(["importance", "random 0", "random 1"], 3), "masked": [0, 58, 144] * 3}
    columns |= {"share": [0, 0.4, 1] * 3, "value": [2, 2.01, 5, *[2, 3, 5] * 2], "low": 2, "high": 2}
    columns |= {"change": [0, 0.01, 3, *[0, 1, 3] * 2], "change.low": [0, 0, 2.9, *[0, 0.9, 2.9] * 2]}
    put(tmp_path / "curves-loss.parquet", columns | {"change.high": [0, 0.02, 3.1, *[0, 1.1, 3.1] * 2]})
    stays = {
        "enc-self": lambda layer, head: layer == 5 and head < 3,
        "dec-self": lambda layer, head: layer < 2 and head < 7,
        "cross": lambda layer, head: layer > 3 or (layer == 3 and head < 3),
    }
    left = {"survival[l0 36]": lambda kind, *head: stays[kind](*head)}
    put_heads(tmp_path / "survival-l0.parquet", of_heads(**left, **{"survival[l0 36].open": left["survival[l0 36]"]}))
    counts = {"heads": [144, 36], "of": 144, "enc-self": [48, 3], "dec-self": [48, 14], "cross": [48, 19]}
    put(tmp_path / "sparsity-l0.parquet", counts | {"value": 2.0, "low": 2.0, "high": 2.0})
    return Bench([tmp_path])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["voita2019 fig9", "voita2019 fig10", "michel2019 fig2"])
def test_controls_a_claim_about_heads_holds_of_no_shuffled_heads(telling, tmp_path, name):
    make = artefacts(name.partition(" ")[0])[name.partition(" ")[2]]
    for number, corpus in enumerate(("ablation", "other")):  # other heads matter on each corpus
        table = effects(number)
        table = table.sample(frac=1, random_state=number).set_axis(table.index)
        put_heads(tmp_path / "untrained" / corpus / "ablation-loss-head-zero.parquet", table, corpus)
    telling.untrained = Bench([tmp_path / "untrained"])
    assert make(telling).verdict.holds is True
    shuffled = controls(name, make, telling)["shuffled"]
    assert (shuffled.of, shuffled.passes) == (20, False)


@pytest.mark.slow
def test_a_correlation_that_an_untrained_model_reaches_shows_nothing(telling):
    make = artefacts("michel2019")["fig2"]
    assert make(telling).verdict.holds is None
    assert "the value of untrained models is unknown" in make(telling).verdict.why
    telling.untrained = telling
    told = controls("michel2019 fig2", make, telling)["untrained"]
    assert (told.of, told.passes) == (1, False)
    verdict = make(telling).verdict
    assert verdict.holds is None
    assert "untrained models reach 0.97" in verdict.why
    telling.untrained = Bench([telling.folders[0] / "ablation"])  # one corpus, no curve
    told = controls("michel2019 fig2", make, telling)["untrained"]
    assert (told.of, told.why.partition(",")[0]) == (0, "Fig. 2 compares two corpora")


def test_controls_of_curves_without_random_rankings_are_not_asked(telling):
    place = telling.folders[0] / "curves-loss.parquet"
    table = load_table(place)
    save_table(table[table["order"] == "importance"], place)
    told = controls("michel2019 fig3", artefacts("michel2019")["fig3"], telling)
    assert [control.of for control in told.values()] == [0, 0]


def test_untrained_takes_no_tables_of_training(tmp_path):
    for path in (tmp_path, tmp_path / "untrained"):
        put(path / "ablation-loss-head-zero.parquet", {"ablation[loss]": [1.0]})
    bench = Untrained(Bench([tmp_path]), [tmp_path / "untrained"])
    with pytest.raises(Missing, match="^no table of a translation model pruned to several sizes in "):
        bench.table("sizes")
    put(tmp_path / "sparsity-l0.parquet", {"cross": [48]})
    with pytest.raises(Missing, match="^pruning and training are not repeated for an untrained model$"):
        bench.table("sizes")
    assert bench.table("single")["ablation[loss]"].tolist() == [1.0]


def test_untrained_has_the_length_of_training_of_the_study_beside_it(tmp_path):
    study, untrained = tmp_path / "study", tmp_path / "study" / "untrained"
    put(untrained / "compare-pruning.parquet", {"strategy": ["importance", "random"], "tuned": [True, True]})
    put(study / "pruning" / "trainings.parquet", {"what": ["retrained"], "steps": [1000], "epochs": [2.0]})
    bench = Untrained(Bench([study]), [untrained])
    assert length_of_training(bench, bench.table("compare-pruning"), "retrained")["epochs"] == 2


def test_control_passes_beyond_one_in_twenty():
    assert [Control(yes, 20, "").passes for yes in (0, 1, 2)] == [False, False, True]
    assert [Control(0, 0, "").passes, Control(1, 1, "").passes] == [False, True]


# --- the committed table ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def committed() -> pd.DataFrame:
    return pd.read_csv(FIGURES / "engineering/quality/negative-controls.csv", keep_default_na=False)


def test_no_rule_holds_of_the_controls_that_were_run(committed):
    toys = committed[committed["study"].isin(["translation", "classifier"])]
    assert set(toys["paper"] + " " + toys["artefact"]) == {
        f"{paper} {name}" for paper, names in WANTED.items() for name in names.split()
    }
    asked = toys[toys["of"] > 0].groupby(["paper", "artefact"])["of"].sum()
    unasked = {("voita2019", "fig6"), ("michel2019", "heads_share")}  # a formula, a count
    assert set(zip(toys["paper"], toys["artefact"], strict=True)) - set(asked.index) == unasked
    assert not toys["passes"].any()
    assert not (committed["passes"] & (committed["answer"] == "yes")).any()


def test_rules_of_real_studies_are_asked_of_an_untrained_model(committed):
    real = committed[committed["study"].isin(STUDIES) & (committed["control"] == "untrained")]
    assert set(real[real["of"] == 1][["study", "paper", "artefact"]].itertuples(index=False, name=None)) == set(ASKED)
    assert not real["passes"].any()
    trained = set()
    for row in real[real["of"] == 0].itertuples():
        artefact = f"{row.paper} {row.artefact}"
        assert row.why == EXEMPT.get(artefact, UNREPEATED)
        trained |= {artefact} - EXEMPT.keys()
    figures = {f"voita2019 fig{number}" for number in (7, 8, 9, 10)} | {"michel2019 fig5", "voita2019 table2"}
    assert trained == figures | {f"budhraja2020 claim{number}" for number in (1, 2, 4)}


@pytest.mark.slow
@pytest.mark.parametrize(("study", "paper", "name"), ASKED)
def test_committed_tables_of_untrained_models_give_the_committed_answers(committed, study, paper, name):
    folder = FIGURES / "models" / study
    bench = Untrained(Bench([folder]), [folder / "untrained"])
    verdict = artefacts(paper)[name](bench).verdict
    rows = committed.set_index(["study", "paper", "artefact", "control"])
    assert rows.loc[(study, paper, name, "untrained"), "why"] == f"{verdict.answer}: {verdict.why}"
    assert verdict.holds is not True
    facts = json.loads((FIGURES / "papers" / paper / "verdicts.json").read_text())[study][name]
    weights = {
        signature.partition("|weights:")[2].partition("|")[0]
        for path in bench.used
        for signature in load_table(path).attrs["signatures"].values()
        if "untrained" in path.parts
    }
    trained = {signature.partition("|weights:")[2].partition("|")[0] for signature in facts["signatures"]}
    assert weights - {""}
    assert not weights & trained - {""}


def answers(why):
    """The answers that "no 3, yes 1" counts."""
    return {part.rpartition(" ")[0] for part in why.split(", ")}


@pytest.mark.slow
@pytest.mark.parametrize("study", STUDIES)
def test_controls_of_committed_studies_are_the_committed_ones(committed, study, monkeypatch):
    rows = committed[committed["study"] == study].set_index(["paper", "artefact"])
    verdicts = [json.loads(path.read_text()) for path in (FIGURES / "papers").glob("*/verdicts.json")]
    assert len(rows) == 2 * sum(len(each[study]) for each in verdicts)
    papers = {*rows.index.get_level_values(0)}
    only = {paper: {name: artefacts(paper)[name] for name in rows.loc[paper].index} for paper in papers}
    monkeypatch.setattr("controls.artefacts", lambda paper: only.get(paper, {}))
    monkeypatch.setattr("controls.TRIES", FEW)
    found = controls_of_study([FIGURES / "models" / study])
    kept = rows.reset_index()[list(found)]
    shuffled = kept["of"] == TRIES
    pd.testing.assert_frame_equal(found[~shuffled], kept[~shuffled])
    assert found[shuffled]["of"].eq(FEW).all()
    named = ["study", "paper", "artefact", "answer", "control", "yes", "passes"]
    pd.testing.assert_frame_equal(found.loc[shuffled, named], kept.loc[shuffled, named])
    for few, many in zip(found[shuffled]["why"], kept[shuffled]["why"], strict=True):
        assert answers(few) <= answers(many)
