"""Sizes are measured against the same training without pruning."""

from __future__ import annotations

import json
import re
from copy import deepcopy

import pytest
from helpers.commands import run
from helpers.prunings import learnt, no_training
from helpers.trainings import films, tokenizer

import headroles as hr
from headroles.models import heads as families
from headroles.pruning.selection import prune
from headroles.pruning.sparsity import sparsity_sweep
from headroles.tables import frame
from headroles.tables.io import load_table, save_table
from headroles.tables.study import Study
from headroles.training.trainer import train

TUNE = {"epochs": 1, "rate": 1e-3, "batch": 16}


@pytest.mark.slow
def test_sizes_are_measured_against_the_same_training_without_pruning_and_saved_as_trained(tmp_path, monkeypatch):
    study, model = Study(tmp_path), learnt()
    asked = {"keep": [6, 0.25], "metric": "accuracy", "tune": TUNE, "scored": films(30, 2)}
    table = sparsity_sweep(model, tokenizer(), films(48), films(40, 1), hr.L0(rate=0.5), study=study, **asked)
    assert table["heads"].tolist() == table["enc-self"].tolist() == [8, 6, 2]
    assert table["change"].tolist() == pytest.approx((table["value"] - table["value"][0]).tolist())
    assert (table["low"] <= table["value"]).all()
    assert (table["value"] <= table["high"]).all()
    control = deepcopy(model)
    train(control, tokenizer(), films(48), tmp_path / "control", seed=0, **TUNE)
    value = hr.evaluate(control, tokenizer(), films(40, 1), ["accuracy"], n_resamples=0).loc["accuracy", "value"]
    assert table["value"][0] == pytest.approx(value)
    survival = study.load("survival-l0")
    assert survival[["survival[l0 6]", "survival[l0 2]"]].sum().tolist() == [6, 2]
    told = study.load("functions-l0")
    assert told.groupby("heads")["count"].sum().to_dict() == {8: 8, 6: 6, 2: 2}
    assert study.load("gates-l0-6")["step"].min() == 0
    no_training(monkeypatch)
    asked |= {"study": study, "output": tmp_path / "smaller"}
    assert sparsity_sweep(model, tokenizer(), films(48), films(40, 1), hr.L0(rate=0.5), **asked).equals(table)
    assert sorted(path.name for path in (tmp_path / "smaller").iterdir()) == ["2", "6"]  # not the control
    for size, value in zip(table["heads"][1:], table["value"][1:], strict=True):
        smaller, tokens = hr.load(tmp_path / "smaller" / str(size))
        measured = hr.evaluate(smaller, tokens, films(40, 1), ["accuracy"], n_resamples=0)
        assert (len(hr.models.head_index(smaller)), measured.loc["accuracy", "value"]) == (size, pytest.approx(value))


@pytest.mark.slow
def test_an_order_is_followed_by_training_of_what_is_left(tmp_path):
    table = sparsity_sweep(
        learnt(), tokenizer(), films(48), films(40, 1), "random", keep=[2], tune=TUNE, study=Study(tmp_path)
    )
    model = deepcopy(learnt())
    prune(model, tokenizer(), films(48), "random", keep=2, train="after", tune=TUNE)
    value = hr.evaluate(model, tokenizer(), films(40, 1), ["loss"], n_resamples=0).loc["loss", "value"]
    assert table["value"][1] == pytest.approx(value)


def test_pruned_models_are_not_saved_into_a_study_which_is_said_before_training(tmp_path, monkeypatch):
    no_training(monkeypatch)
    monkeypatch.setenv("HOME", str(tmp_path.parent))
    save_table(frame.table({"x": [1.0]}, frame.index({("enc-self", 0): 1}), "made up"), tmp_path / "heads.parquet")
    with pytest.raises(FileExistsError, match="is a study: it holds heads.parquet; name another folder for the model"):
        sparsity_sweep(learnt(), tokenizer(), films(8), films(8, 1), keep=[2], output=f"~/{tmp_path.name}")


@pytest.mark.slow
def test_sweep_and_remove_are_commands(folder):
    asked = ["--held-out", folder / "dev.tsv", "--keep", "4", "--gate-rate", "0.3", "--metric", "accuracy"]
    sweep = ["sparsity-sweep", folder / "model", folder / "train.tsv", *asked, "--study", folder / "study"]
    done = run(*sweep, figures=True)
    assert done.code == 0, done.err
    drawn = {path.name for path in (folder / "study").glob("*.png")}
    assert "gates-l0-4.png" in drawn
    assert not {name for name in drawn if name.startswith(("sizes", "survival"))}  # of one size: no line, no map
    control = load_table(folder / "study/sparsity-l0.parquet")
    for _, row in control.iterrows():
        value = rf"{row['value']:.3f} \[{row['low']:.3f}, {row['high']:.3f}\]"
        assert re.search(rf"^ *{row['heads']:.0f} +{value} ", done.out, re.M)
    survivors = load_table(folder / "study/survival-l0.parquet").iloc[:, 0]
    saved = run(*sweep, "--output", folder / "trained", "--json")  # saves the models that were trained
    assert saved.code == 0, saved.err
    assert json.loads(saved.out)["next"][0] == f"headroles score {folder / 'trained/4'} CORPUS --study smaller-study"
    trained, _ = hr.load(folder / "trained/4")
    assert list(families.head_index(trained)) == survivors.index[survivors == 1].tolist()
    done = run("remove-heads", folder / "model", folder / "study/survival-l0.parquet", "--output", folder / "smaller")
    assert done.code == 0, done.err
    assert "4 of 8 heads are removed" in done.out
    assert re.search(r"smaller, 1\d,\d{3} parameters; in Python: hr\.load\(.*\)$", done.out.strip())
    smaller, _ = hr.load(folder / "smaller")
    assert list(families.head_index(smaller)) == survivors.index[survivors == 1].tolist()
    done = run("remove-heads", folder / "model", "enc-self:0:1,enc-self:9:0", "--output", folder / "none")
    assert done.code == 2
    assert "no head enc-self L9H0 in BertForSequenceClassification, which has enc-self 2 layers" in done.err


def test_a_sweep_of_gates_on_a_frozen_model_has_the_model_as_control(tmp_path):
    asked = {"keep": [4], "tune": TUNE, "study": tmp_path}
    table = sparsity_sweep(learnt(), tokenizer(), films(24), films(20, 1), hr.L0(freeze="all"), **asked)
    intact = hr.evaluate(learnt(), tokenizer(), films(20, 1), ["loss"], n_resamples=0)
    assert table["heads"].tolist() == [8, 4]
    assert table["value"][0] == pytest.approx(intact.loc["loss", "value"])
