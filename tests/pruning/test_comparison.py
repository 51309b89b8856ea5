"""Strategies are compared on the same heads, seeds and training."""

from __future__ import annotations

from copy import deepcopy
from functools import cache

import numpy as np
import pandas as pd
import pytest
from helpers.commands import run
from helpers.prunings import learnt, no_training, setting
from helpers.trainings import films, tokenizer
from scipy import stats
from tokenizers import processors

import headroles as hr
from headroles.ablation.metrics import as_metric
from headroles.analysis import intervals
from headroles.pruning.comparison import _summary, compare_pruning
from headroles.pruning.rankings import Random
from headroles.tables.io import load_table
from headroles.tables.study import Study
from headroles.training.trainer import train


def test_a_comparison_pairs_its_seeds_and_says_nothing_of_one():
    names, random = ("random", "importance"), np.random.default_rng(0)
    each = pd.DataFrame(
        [{"strategy": name, "heads": 4, "tuned": True, "seed": seed} for seed in range(3) for name in names]
    )
    luck = np.repeat([0.0, 3, -5], 2)  # of a seed, for both
    draws = (luck + np.tile([0.0, 1], 3))[:, None] + 0.01 * random.normal(size=(6, 101))
    table = _summary(each, draws, as_metric("loss"), 8).set_index("strategy")
    assert table.loc["importance", "gain"] == pytest.approx(1, abs=0.05)
    assert 0.8 < table.loc["importance", "gain.low"] < table.loc["importance", "gain.high"] < 1.2
    assert table.loc["importance", "value.low"] < -5
    differences = np.array([0.0, 1.0, 2.0])
    part = intervals.over_seeds(np.repeat(differences[:, None], 9, axis=1))  # all examples alike
    assert part == pytest.approx(stats.t.interval(0.95, 2, 1, stats.sem(differences)))
    alone = _summary(each[:2], draws[:2], as_metric("loss"), 8)
    assert alone[["value.low", "value.high", "gain.low", "seeds.sd"]].isna().all(axis=None)
    assert alone["gain"].iloc[1] == pytest.approx(1, abs=0.05)
    right = _summary(each, np.ones((6, 101)), as_metric("accuracy"), 8).set_index("strategy").loc["importance"]
    ends = [0.025 ** (1 / 8), 1, 0.025 ** (1 / 8) - 1, 1 - 0.025 ** (1 / 8)]
    assert right[["value.low", "value.high", "gain.low", "gain.high"]].tolist() == pytest.approx(ends)


TUNE = {"epochs": 1, "rate": 1e-3, "batch": 16}


@cache
def fought(folder, seeds=2):
    asked = {
        "strategies": ["importance", "random"], "keep": [0.5], "seeds": seeds, "metric": "loss", "scored": 16,
        "tune": TUNE,
    }  # fmt: skip
    return compare_pruning(learnt(), tokenizer(), films(48), films(40, 1), study=Study(folder), **asked)


@pytest.mark.slow
def test_the_comparison_masks_and_retrains_the_same_heads(tmp_path, monkeypatch):
    found, study = fought(tmp_path), Study(tmp_path)
    each, choices = study.load("compare-pruning-seeds"), study.load("compare-pruning-heads")
    assert choices.sum().tolist() == [4.0] * 4
    for seed in (0, 1):
        gone = choices.index[choices[f"survival[random 4 seed {seed}]"] == 0].tolist()
        assert gone == sorted(Random().order(setting(seed))[:4])
        with hr.mask_heads(learnt(), hr.head_mask(learnt(), gone)):
            masked = hr.evaluate(learnt(), tokenizer(), films(40, 1), ["loss"], n_resamples=0)["value"].item()
        cut = hr.remove_heads(deepcopy(learnt()), gone)
        train(cut, tokenizer(), films(48), tmp_path / f"own-{seed}", **TUNE, seed=seed)
        tuned = hr.evaluate(cut, tokenizer(), films(40, 1), ["loss"], n_resamples=0)["value"].item()
        rows = each[(each["strategy"] == "random") & (each["seed"] == seed)].set_index("tuned")["value"]
        assert rows.to_dict() == pytest.approx({False: masked, True: tuned}, rel=1e-5)
    means = each.groupby(["strategy", "tuned"])["value"].mean()
    assert found.set_index(["strategy", "tuned"])["value"].to_dict() == pytest.approx(means.to_dict())
    gains = found.set_index(["strategy", "tuned"])["gain"]
    for tuned in (False, True):
        expected = means["importance", tuned] - means["random", tuned]
        assert gains["importance", tuned] == pytest.approx(expected)
    assert ((found["value.low"] <= found["value"]) & (found["value"] <= found["value.high"])).all()
    no_training(monkeypatch)
    fought.cache_clear()
    assert fought(tmp_path).equals(found)
    fought(tmp_path, seeds=(1,))  # a seed of those that were run
    pd.testing.assert_frame_equal(study.load("compare-pruning-seeds"), each[each["seed"] == 1].reset_index(drop=True))


@pytest.mark.slow
def test_a_comparison_does_not_keep_the_trials_of_another_tokenizer(tmp_path):
    other = deepcopy(tokenizer())
    other._tokenizer.post_processor = processors.TemplateProcessing(
        "$A [SEP]", special_tokens=[("[SEP]", other.sep_token_id)]
    )
    options = {"strategies": ["random"], "keep": [4], "seeds": 1, "tune": TUNE | {"save_strategy": "no"}}
    tables = [
        compare_pruning(learnt(), each, films(16), films(40, 1), **options, study=Study(tmp_path, overwrite=True))
        for each in (tokenizer(), other)
    ]
    assert not np.allclose(*(table["value"] for table in tables))


@pytest.mark.slow
def test_comparison_is_a_command_and_its_study_is_drawn(folder):
    asked = ["--held-out", folder / "dev.tsv", "--keep", "0.5", "--seeds", "1", "--strategies", "random,top"]
    done = run("compare-pruning", folder / "model", folder / "train.tsv", *asked, "--study", folder / "compare-pruning")
    assert done.code == 0, done.err
    each = load_table(folder / "compare-pruning/compare-pruning-seeds.parquet")
    assert (set(each["strategy"]), set(each["seed"])) == ({"all heads", "random", "top"}, {0})
    model, _ = hr.load(folder / "model")
    for batch in (1, 2):
        hr.efficiency(model, batches=[batch], length=5, repeats=2, study=folder / "compare-pruning")
        assert load_table(folder / "compare-pruning/efficiency.parquet")["batch"].unique().tolist() == [batch]
    options = ["--epochs", "2", "--output", folder / "trained"]
    assert run("train", folder / "model", folder / "train.tsv", *options).code == 0
    dev = hr.read(folder / "dev.tsv")
    found = hr.dynamics(folder / "trained", dev, dev, study=folder / "compare-pruning")
    assert list(found.order["epoch"]) == [1, 2]
    names = {path.stem for path in hr.plot(folder / "compare-pruning")}
    assert {"compare-pruning", "efficiency", "dynamics", "settling"} <= names


@pytest.mark.slow
def test_gates_of_each_seed_are_others_also_beside_a_seed_of_training(tmp_path):
    corpus = hr.Corpus("films", tuple(films(16)))
    options = {"strategies": ["l0"], "keep": [4], "seeds": 2, "study": tmp_path}
    tune = {"epochs": 1, "batch": 8, "rate": 0.0, "save_strategy": "no"}
    heads = []
    for given in (tune, tune | {"seed": 5}):
        compare_pruning(deepcopy(learnt()), tokenizer(), corpus, corpus, tune=given, **options)
        heads.append(load_table(tmp_path / "compare-pruning-heads.parquet"))
    assert heads[0].iloc[:, 0].tolist() != heads[0].iloc[:, 1].tolist()
    assert heads[1].to_numpy().tolist() == heads[0].to_numpy().tolist()
