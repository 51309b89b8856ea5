"""Which heads go and what is left: orders, schedules, sizes, the contest, movement, costs, the course of training."""

from __future__ import annotations

import json
import re
from copy import deepcopy
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import letters, zoo
from helpers.commands import run
from helpers.messages import whole
from helpers.processes import full_disk, together
from helpers.prunings import learnt, wide
from helpers.trainings import films, same_weights, tokenizer, untrained
from scipy import stats
from tokenizers import processors

import headroles as hr
from headroles.analysis import role_rules
from headroles.analysis.summaries import functions
from headroles.cli.console import show_table
from headroles.models import heads as families
from headroles.models.heads import heads_of_kinds
from headroles.models.loading import untrained as untrained_as
from headroles.pruning import costs, rankings
from headroles.pruning.comparison import compare_pruning
from headroles.pruning.rankings import (
    NAMED,
    ByEffect,
    ByPosition,
    ByRoles,
    ByScore,
    FromColumn,
    Random,
    RankingContext,
    Reverse,
)
from headroles.pruning.selection import prune, pruned_first
from headroles.pruning.sparsity import sparsity_sweep
from headroles.pruning.weight_changes import uniformity, weight_change
from headroles.tables import frame
from headroles.tables.io import load_table, save_table
from headroles.tables.places import kept_heads
from headroles.tables.study import Study
from headroles.training.trainer import train

HERE = Path(__file__).parents[1]
TUNE = {"epochs": 1, "rate": 1e-3, "batch": 16}


def setting(seed=0, kinds=None, size=24):
    return RankingContext(learnt(), tokenizer(), films(size), heads_of_kinds(learnt(), kinds), seed)


def grid(layers, per_layer, *kinds):
    return [(kind, layer, head) for kind in kinds for layer in range(layers) for head in range(per_layer)]


def placed(where, alternating=False, layers=6):
    """The layers in the order in which `Place` empties them."""
    line = ByPosition(where, alternating).order(RankingContext(None, None, None, grid(layers, 2, "enc-self")))
    return [layer for _, layer, _ in line][::2]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMED)
def test_an_order_has_every_head_once_and_its_reverse_is_the_other_way(name):
    first = rankings.ranking(name).order(setting())
    assert sorted(first) == sorted(families.head_index(learnt()))
    assert rankings.ranking(name).order(setting()) == first
    assert rankings.ranking(f"-{name}").order(setting()) == first[::-1]
    assert rankings.ranking(f"-{name}").name == f"-{name}"


@pytest.mark.parametrize(
    ("where", "alternating", "layers"),
    [
        ("bottom", False, [0, 1, 2, 3, 4, 5]),
        ("top", False, [5, 4, 3, 2, 1, 0]),
        ("middle", False, [2, 3, 1, 4, 0, 5]),
        ("ends", False, [0, 5, 1, 4, 2, 3]),
        ("bottom", True, [0, 2, 4, 1, 3, 5]),
        ("top", True, [5, 3, 1, 4, 2, 0]),
        ("middle", True, [2, 4, 0, 3, 1, 5]),
    ],
)
def test_layers_go_in_their_order(where, alternating, layers):
    assert placed(where, alternating) == layers


def test_kinds_take_turns_within_a_place():
    line = ByPosition("bottom").order(RankingContext(None, None, None, grid(2, 4, "enc-self", "cross")))
    assert [layer for _, layer, _ in line] == [0] * 8 + [1] * 8
    assert {kind for kind, _, _ in line[:2]} == {"enc-self", "cross"}


@pytest.mark.parametrize(("spread", "groups"), [("kind", 2), ("layer", 6)])
def test_chance_can_be_spread_over_kinds_or_layers(spread, groups):
    line = Random(spread).order(RankingContext(None, None, None, grid(3, 4, "enc-self", "cross"), 3))
    for start in range(0, len(line), groups):
        part = line[start : start + groups]
        assert len({head[: 1 + (spread == "layer")] for head in part}) == groups


def test_chance_depends_on_the_seed_alone():
    lines = [Random().order(setting(seed)) for seed in (0, 0, 1)]
    assert lines[0] == lines[1] != lines[2]


def test_a_score_puts_the_smallest_first():
    table = hr.score(learnt(), tokenizer(), films(24), ["importance"], n_resamples=0)
    line = ByScore("importance").order(setting())
    assert table["importance"].loc[line].is_monotonic_increasing
    assert FromColumn(table["importance"]).order(setting()) == line
    assert ByScore("importance", limit=4).order(setting()) == ByScore("importance").order(setting(size=4))


def test_sinks_go_first():
    """Heads that attend to the first token most, by a loop over the captured attention of each text."""
    model, tokens, mass = learnt(), tokenizer(), dict.fromkeys(families.head_index(learnt()), 0.0)
    for one in films(24):
        inputs = tokens(one.text, return_tensors="pt", return_special_tokens_mask=True)
        content = inputs.pop("special_tokens_mask")[0] == 0

        def add(site, weights, content=content):
            for head in range(site.heads):
                mass[*site.key, head] += float(weights[0, head, content, 0].sum())

        with torch.no_grad(), hr.capture_attention(model, add):
            model(**inputs)
    line = rankings.ranking("sink").order(setting())
    sinks = pd.Series(mass)[line]
    assert (sinks.diff().dropna() <= 1e-4 * sinks.max()).all()
    assert sinks.iloc[0] > 1.2 * sinks.iloc[-1]
    table = prune(learnt(), tokenizer(), films(24), "sink", keep=3, remove=False)
    assert list(table.index[table["survival[sink 3]"] == 1].sort_values()) == sorted(line[-3:])


def test_effect_puts_the_least_missed_first_for_either_direction_of_a_metric():
    for metric, sign in (("loss", 1), ("accuracy", -1)):
        table = hr.ablate(learnt(), tokenizer(), films(24), metric=metric, n_resamples=0)
        line = ByEffect(metric).order(setting())
        assert (sign * table.iloc[:, 0]).loc[line].is_monotonic_increasing


def test_roles_go_last_and_the_farthest_from_one_first():
    index = frame.index({("enc-self", 0): 4})
    columns = {"position[-1]": [0.95, 0.2, 0.5, 0.1], "rarity": [0.1, 0.45, 0.1, 0.2], "confidence": [0.9] * 4}
    table = frame.table(columns, index, "made up")
    assert role_rules.margins(table).tolist() == pytest.approx([0.05, -0.05, -0.4, -0.3])
    line = ByRoles(table).order(RankingContext(None, None, None, list(index)))
    assert [head for _, _, head in line] == [2, 3, 1, 0]
    with pytest.raises(
        ValueError,
        match=whole(
            "none of the roles alignment, duplicate, induction, positional, rare, retrieval, successor, syntactic can "
            "be assigned: got columns confidence"
        ),
    ):
        role_rules.margins(table[["confidence"]])


def test_a_ranking_ends_where_enough_heads_stay_and_layers_keep_some():
    line = grid(2, 3, "enc-self")
    assert pruned_first(line, 4) == line[:2]
    assert pruned_first(line, 2, 1) == [*line[:2], *line[3:5]]
    assert pruned_first(line, 6) == []
    with pytest.raises(ValueError, match=whole("1 of 6 heads cannot stay with at least 1 in each layer")):
        pruned_first(line, 1, 1)


def test_the_table_says_which_heads_stay_and_when_the_others_are_removed():
    table = prune(learnt(), tokenizer(), films(24), "random", keep=0.25, seed=5, remove=False)
    assert table.columns.tolist() == ["survival[random 2]", "survival[random 2].turn"]
    gone = table.index[table["survival[random 2]"] == 0].tolist()
    assert table["survival[random 2]"].sum() == 2
    assert sorted(table.loc[gone, "survival[random 2].turn"]) == [1, 2, 3, 4, 5, 6]
    assert gone == sorted(Random().order(setting(5))[:6])
    assert "strategy:Random(spread=None)|keep:2|kinds:all|at_least:0|train:no|seed:5" in frame.provenance(
        table, "survival[random 2]"
    )


WRONG = {
    "order": (
        {"strategy": "nonsense", "keep": 2},
        f"unknown ranking 'nonsense'; known: {', '.join(NAMED)}, reversed by a minus before it; gates: l0, exactly",
    ),
    "schedule": (
        {"schedule": "tune", "keep": 2},
        "unknown schedule 'tune'; known: prune, prune-tune, tune-prune, tune-prune-tune",
    ),
    "training": ({"train": "prune", "keep": 2}, "unknown train 'prune'; known: before, after, both, None"),
    "training of masked heads": (
        {"train": "after", "remove": False, "keep": 2},
        "train='after' is training without the pruned heads: got remove=False; expected remove=True, or "
        'train="before"',
    ),
    "kind": (
        {"kinds": ["cross"], "keep": 2},
        "BertForSequenceClassification has no heads of kind 'cross'; it has enc-self",
    ),
    "number": ({"keep": 9}, "keep is a share above 0 and below 1, or a number of heads from 1 to 8; got 9"),
    "fraction": ({"keep": 2.5}, "keep is a share above 0 and below 1, or a number of heads from 1 to 8; got 2.5"),
    "negative": ({"keep": -1}, "keep is a share above 0 and below 1, or a number of heads from 1 to 8; got -1"),
    "nothing": ({}, "ranking 'importance' needs a number of heads to keep: keep=0.5, or keep=4"),
}


@pytest.mark.parametrize(("options", "message"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_pruned_is_said(options, message):
    with pytest.raises(ValueError, match=whole(message)):
        prune(learnt(), tokenizer(), films(24), **options)


def test_values_of_other_heads_are_no_order():
    values = pd.Series([1.0], index=frame.index({("enc-self", 0): 1}), name="mine")
    with pytest.raises(
        ValueError,
        match=r"^column 'mine' lacks head \('enc-self', \d, \d\); expected values of all 8 heads to rank$",
    ):
        FromColumn(values).order(setting())


@pytest.mark.slow
@pytest.mark.parametrize("when", [None, "before", "after", "both"])
def test_pruning_trains_and_removes_as_asked(tmp_path, when):
    model = deepcopy(learnt())
    table = prune(model, tokenizer(), films(48), keep=3, train=when, folder=tmp_path, tune=TUNE)
    parts = {"tuned-before": when in ("before", "both"), "tuned-after": when in ("after", "both")}
    assert {name: (tmp_path / name).is_dir() for name in parts} == parts
    assert list(families.head_index(model)) == table.index[table.iloc[:, 0] == 1].tolist()
    if parts["tuned-after"]:
        again, _ = hr.load(tmp_path / "tuned-after")
        assert list(families.head_index(again)) == list(families.head_index(model))
    if when == "before":
        tuned = deepcopy(learnt())
        train(tuned, tokenizer(), films(48), tmp_path / "other", seed=0, **TUNE)
        expected = prune(tuned, tokenizer(), films(48), keep=3)
        assert expected.equals(table)
        same_weights(tuned, model)


@pytest.mark.parametrize("strategy", ["random", hr.L0(rate=0.5)])
def test_a_model_that_is_not_to_lose_heads_keeps_all(strategy):
    kept, smaller = deepcopy(learnt()), deepcopy(learnt())
    table = prune(kept, tokenizer(), films(48), strategy, keep=3, remove=False, tune=TUNE)
    assert prune(smaller, tokenizer(), films(48), strategy, keep=3, tune=TUNE).equals(table)
    assert len(families.head_index(kept)) == 8
    same_weights(hr.remove_heads(kept, table.iloc[:, 0]), smaller)


@pytest.mark.parametrize(
    ("schedule", "now"),
    {
        "prune": {"remove": False},
        "prune-tune": {"train": "after"},
        "tune-prune": {"train": "before", "remove": False},
        "tune-prune-tune": {"train": "both"},
    }.items(),
)
def test_a_schedule_still_means_what_it_did(schedule, now):
    then, model = deepcopy(learnt()), deepcopy(learnt())
    with pytest.deprecated_call(match=f"^schedule='{schedule}' of prune is deprecated; give train="):
        expected = prune(then, tokenizer(), films(16), keep=3, schedule=schedule, tune=TUNE)
    assert prune(model, tokenizer(), films(16), keep=3, **now, tune=TUNE).equals(expected)
    same_weights(model, then)


def test_where_all_heads_stay_none_is_removed():
    model = deepcopy(learnt())
    assert (prune(model, tokenizer(), films(16), "random", keep=8).iloc[:, 0] == 1).all()
    assert model.config.to_dict() == learnt().config.to_dict()


def test_a_study_keeps_the_survival_of_every_size_and_ranks_once(tmp_path, monkeypatch):
    tables = [prune(deepcopy(learnt()), tokenizer(), films(24), "random", keep=size, study=tmp_path) for size in (2, 5)]
    assert list(Study(tmp_path).load("survival-random")) == [*tables[0], *tables[1]]
    monkeypatch.setattr(Random, "order", lambda *_: pytest.fail("ranked again"))
    for size, table in zip((2, 5), tables, strict=True):
        model = deepcopy(learnt())
        again = prune(model, tokenizer(), films(24), "random", keep=size, study=tmp_path)
        pd.testing.assert_frame_equal(again, table, check_exact=True)
        assert again.attrs["signatures"] == table.attrs["signatures"]
        assert len(families.head_index(model)) == size


def test_a_study_keeps_the_training_of_gates(tmp_path, monkeypatch):
    model, again = deepcopy(learnt()), deepcopy(learnt())
    table = prune(model, tokenizer(), films(24), hr.L0(), keep=3, study=tmp_path, tune=TUNE)
    assert Study(tmp_path).load("survival-l0").equals(table)
    no_training(monkeypatch)
    assert prune(again, tokenizer(), films(24), hr.L0(), keep=3, study=tmp_path, tune=TUNE).equals(table)
    same_weights(again, model)


def test_a_study_of_another_model_is_refused_before_work(tmp_path, monkeypatch):
    prune(deepcopy(learnt()), tokenizer(), films(24), "random", keep=2, study=tmp_path)
    no_training(monkeypatch)
    with pytest.raises(FileExistsError, match="holds another model"):
        prune(untrained(), tokenizer(), films(24), hr.L0(), keep=2, study=tmp_path)


def test_columns_of_another_model_are_replaced_if_allowed(tmp_path):
    prune(deepcopy(learnt()), tokenizer(), films(24), "random", keep=2, study=tmp_path)
    study = Study(tmp_path, overwrite=True)
    table = prune(untrained(), tokenizer(), films(24), "random", keep=2, study=study)
    assert study.load("survival-random").equals(table)
    assert len(table) == 4


def no_training(monkeypatch):
    monkeypatch.setattr("headroles.training.trainer.fit", lambda *_, **__: pytest.fail("trained again"))


@pytest.mark.slow
def test_sizes_are_measured_against_the_same_training_without_pruning(tmp_path, monkeypatch):
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
    assert sparsity_sweep(model, tokenizer(), films(48), films(40, 1), hr.L0(rate=0.5), study=study, **asked).equals(
        table
    )


@pytest.mark.slow
def test_pruned_models_are_saved_as_they_were_trained(tmp_path, monkeypatch):
    asked = {"keep": [6, 2], "metric": "accuracy", "tune": TUNE, "study": Study(tmp_path / "study")}
    asked = [learnt(), tokenizer(), films(48), films(40, 1), hr.L0(rate=0.5)], asked
    table = sparsity_sweep(*asked[0], **asked[1])
    monkeypatch.setattr("headroles.training.trainer.fit", lambda *_, **__: pytest.fail("trained again"))
    saved = {"output": tmp_path / "smaller", "command": "headroles prune ..."}
    assert sparsity_sweep(*asked[0], **asked[1], **saved).equals(table)
    assert sorted(path.name for path in (tmp_path / "smaller").iterdir()) == ["2", "6"]  # not the control
    for size, value in zip(table["heads"][1:], table["value"][1:], strict=True):
        place = tmp_path / "smaller" / str(size)
        smaller, tokens = hr.load(place)
        measured = hr.evaluate(smaller, tokens, films(40, 1), ["accuracy"], n_resamples=0)
        assert (len(hr.models.head_index(smaller)), measured.loc["accuracy", "value"]) == (size, pytest.approx(value))
        assert "command: `headroles prune ...`" in (place / "README.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_an_order_is_followed_by_training_of_what_is_left(tmp_path):
    table = sparsity_sweep(
        learnt(), tokenizer(), films(48), films(40, 1), "random", keep=[2], tune=TUNE, study=Study(tmp_path)
    )
    model = deepcopy(learnt())
    prune(model, tokenizer(), films(48), "random", keep=2, train="after", folder=tmp_path / "own", tune=TUNE)
    value = hr.evaluate(model, tokenizer(), films(40, 1), ["loss"], n_resamples=0).loc["loss", "value"]
    assert table["value"][1] == pytest.approx(value)


def test_pruned_models_are_not_saved_into_a_study_which_is_said_before_training(tmp_path, monkeypatch):
    no_training(monkeypatch)
    save_table(frame.table({"x": [1.0]}, frame.index({("enc-self", 0): 1}), "made up"), tmp_path / "heads.parquet")
    with pytest.raises(FileExistsError, match="is a study: it holds heads.parquet; name another folder for the model"):
        sparsity_sweep(learnt(), tokenizer(), films(8), films(8, 1), keep=[2], output=tmp_path)


def test_functions_count_each_head_once():
    index = frame.index({("enc-self", 0): 4})
    columns = {"position[-1]": [0.95, 0.95, 0.5, 0.1], "rarity": [0.1, 0.6, 0.7, 0.2]}
    told = functions(hr.roles(frame.table(columns, index, "made up")))
    assert dict(zip(told["function"], told["count"], strict=True)) == {
        "none": 1,
        "positional": 1,
        "rare": 1,
        "several": 1,
    }


@cache
def fought(folder, seeds=2):
    asked = {
        "strategies": ["importance", "random"],
        "keep": [0.5],
        "seeds": seeds,
        "metric": "loss",
        "scored": 16,
        "tune": TUNE,
    }
    return compare_pruning(learnt(), tokenizer(), films(48), films(40, 1), study=Study(folder), **asked)


@pytest.mark.slow
def test_the_comparison_masks_and_retrains_the_same_heads(tmp_path, monkeypatch):
    found, study = fought(tmp_path), Study(tmp_path)
    each, choices = study.load("contest-seeds"), study.load("contest-heads")
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
    pd.testing.assert_frame_equal(study.load("contest-seeds"), each[each["seed"] == 1].reset_index(drop=True))


def test_a_comparison_does_not_keep_the_trials_of_another_tokenizer(tmp_path):
    other = deepcopy(tokenizer())
    other._tokenizer.post_processor = processors.TemplateProcessing(
        "$A [SEP]", special_tokens=[("[SEP]", other.sep_token_id)]
    )
    options = {"strategies": ["random"], "keep": [4], "seeds": 1, "tune": TUNE}
    tables = [
        compare_pruning(learnt(), each, films(16), films(40, 1), **options, study=Study(tmp_path, overwrite=True))
        for each in (tokenizer(), other)
    ]
    assert not np.allclose(*(table["value"] for table in tables))


def test_two_strategies_of_one_name_are_refused(tmp_path):
    two = [hr.L0(), hr.L0(rate=0.5)]
    with pytest.raises(ValueError, match=whole("duplicate strategy 'l0': got l0, l0; expected different names")):
        compare_pruning(learnt(), tokenizer(), films(48), films(40, 1), strategies=two, study=Study(tmp_path))


@pytest.mark.parametrize("keep", [2.5, 9, -1])
def test_sparsity_sweep_and_comparison_take_the_numbers_that_pruning_takes(tmp_path, keep):
    message = f"keep is a share above 0 and below 1, or a number of heads from 1 to 8; got {keep}"
    for run_all in (sparsity_sweep, compare_pruning):
        with pytest.raises(ValueError, match=whole(message)):
            run_all(learnt(), tokenizer(), films(48), films(40, 1), keep=[keep], study=tmp_path)


def test_what_did_not_move_did_not_move():
    table = weight_change(learnt(), deepcopy(learnt()))
    assert (table.filter(like="distance[") == 0).all(axis=None)
    assert np.allclose(table.filter(like="cosine["), 1)
    assert {name for name in table if name.startswith("moved")} == {f"moved[{part}]" for part in (*"qkvo", "all")}


@pytest.mark.parametrize(
    ("name", "where", "rows", "part"),
    [
        ("bert", "bert.encoder.layer.1.attention.self.query", slice(16, 24), "q"),
        ("marian", "model.encoder.layers.1.self_attn.v_proj", slice(16, 24), "v"),
        ("gpt-neox", "gpt_neox.layers.1.attention.query_key_value", slice(2 * 24 + 8, 2 * 24 + 16), "k"),
    ],
)
def test_movement_is_that_of_the_head_and_part(name, where, rows, part):
    before, after = zoo.tiny(name), zoo.tiny(name)
    kind = families.attention_sites(before)[0].kind
    weight = after.get_submodule(where).weight
    with torch.no_grad():
        weight[rows] *= 1.5
    table = weight_change(before, after)
    moved = table.filter(regex=r"^moved\[[^a]\]$")
    assert moved.loc[(kind, 1, 2), f"moved[{part}]"] == pytest.approx(0.5)
    assert moved.sum().sum() == pytest.approx(0.5)
    assert table.loc[(kind, 1, 2), f"cosine[{part}]"] == pytest.approx(1)


def test_what_is_left_is_compared_with_the_heads_of_the_same_numbers():
    before = zoo.tiny("bert")
    after = hr.remove_heads(deepcopy(before), [("enc-self", 0, 0), ("enc-self", 1, 2)])
    table = weight_change(before, after)
    assert len(table) == 6
    assert (table.filter(like="distance[") == 0).all(axis=None)
    message = "the model before lacks head ('enc-self', 0, 0) of the model after; try the other order"
    with pytest.raises(ValueError, match=whole(message)):
        weight_change(after, before)


def test_heads_that_share_keys_move_together():
    before, after = zoo.tiny("llama-grouped"), zoo.tiny("llama-grouped")
    with torch.no_grad():
        after.model.layers[0].self_attn.k_proj.weight[:8] *= 2
    moved = weight_change(before, after)["moved[k]"]
    assert moved.loc["dec-self", 0].tolist() == pytest.approx([1, 1, 0, 0])


def moved(values):
    index = frame.index({("enc-self", layer): len(values) // 2 for layer in (0, 1)})
    return frame.table({"moved[all]": values}, index, "made up")


def test_uniform_movement_differs_from_heads_that_always_move_most():
    rng = np.random.default_rng(0)
    base = np.linspace(1, 2, 20)
    same = uniformity([moved(base + rng.normal(0, 0.001, 20)) for _ in range(4)])
    chance = uniformity([moved(1 + rng.normal(0, 0.1, 20)) for _ in range(4)])
    assert same.loc["heads", "w"] > 0.99
    assert same.loc["heads", "p"] < 1e-6
    assert same.loc["heads", "cv"] == pytest.approx(base.std() / base.mean(), abs=1e-3)
    assert chance.loc["heads", "p"] > 0.01
    assert uniformity([moved(np.zeros(20))] * 3)[["w", "p"]].isna().all(axis=None)  # nothing moved: without a warning
    with pytest.raises(
        ValueError, match=whole("expected tables of the same heads after at least 3 fine-tunings; got 2")
    ):
        uniformity([moved(base)] * 2)


@pytest.mark.slow
def test_cutting_saves_what_it_takes_away_and_gates_save_nothing():
    model = zoo.tiny("bert")
    line = Random("layer").order(RankingContext(None, None, None, list(families.head_index(model))))
    table = hr.efficiency(model, line, shares=(0.0, 0.5), batches=(1, 3), length=6, repeats=2)
    assert table[["share", "way", "batch"]].values.tolist() == [
        [share, way, batch] for batch in (1, 3) for share in (0.0, 0.5) for way in ("gates", "cut")
    ]
    left = hr.remove_heads(deepcopy(model), line[:4])
    cut = table[(table["way"] == "cut") & (table["share"] == 0.5)]
    assert set(cut["parameters"]) == {sum(one.numel() for one in left.parameters())}
    assert (cut["bytes"] == 4 * cut["parameters"]).all()
    rest = table.drop(cut.index)
    assert set(rest["parameters"]) == {sum(one.numel() for one in model.parameters())}
    assert (rest["allowed"] == 1).all()
    saved = rest["flops"].min() - cut["flops"].iloc[0]  # a head of 8 of 32: four maps, scores and sums of 6 x 6
    assert saved == 4 * (4 * 2 * 6 * 32 * 8 + 2 * 2 * 6 * 6 * 8)
    assert (table[["speed", "speedup", "speedup.low", "speedup.high"]] > 0).all(axis=None)
    with pytest.raises(ValueError, match=whole("the ranking is too short: got 2 heads; expected at least 4")):
        hr.efficiency(model, line[:2], shares=(0.5,), batches=(1,))


class Stopwatch(costs._Forward):
    """A forward pass of planted durations."""

    def __init__(self, durations):
        self.durations = iter(durations)

    def seconds(self):
        return next(self.durations)


@pytest.mark.parametrize("repeats", [2, 6])
def test_the_interval_of_a_speed_up_is_that_of_a_t_test_of_its_logarithm(repeats):
    durations = np.random.default_rng(repeats).lognormal(-3, 0.1, (2, 1 + repeats))  # the first is to warm up
    row = costs._timed(*map(Stopwatch, durations), 4, repeats)
    ratios = np.log(durations[1, 1:] / durations[0, 1:])
    ends = stats.ttest_1samp(ratios, 0).confidence_interval(0.95)
    assert np.log([row["speedup.low"], row["speedup.high"]]) == pytest.approx(list(ends), rel=1e-9)
    assert row["speedup"] == pytest.approx(stats.gmean(durations[1, 1:] / durations[0, 1:]), rel=1e-12)
    assert row["speed"] == pytest.approx((4 / durations[0, 1:]).mean(), rel=1e-12)


@pytest.mark.slow
def test_every_checkpoint_is_pruned_and_the_last_is_compared_with_itself(tmp_path):
    train(untrained(), tokenizer(), films(60), tmp_path / "trained", epochs=2, rate=1e-3, batch=16)
    study = Study(tmp_path / "study")
    asked = {"metric": "loss", "steps": 2, "n_resamples": 20}
    curves, settled = hr.dynamics(tmp_path / "trained", films(30, 1), films(20, 2), study=study, **asked)
    assert settled["epoch"].tolist() == [1, 2]
    assert curves.groupby("epoch")["closed"].apply(list).tolist() == [[0, 2, 4]] * 2
    assert (curves.loc[curves["closed"] == 0, "kept"] == 1).all()
    last = settled.iloc[-1]
    assert (last["all"], last["within"]) == (pytest.approx(1), pytest.approx(1))
    model, _ = hr.load(tmp_path / "trained" / f"checkpoint-{settled['step'][0]}")
    value = hr.evaluate(model, tokenizer(), films(20, 2), ["loss"], n_resamples=0)["value"].item()
    assert curves["value"][0] == pytest.approx(value)
    with pytest.raises(
        FileNotFoundError, match=whole(f"no checkpoint in {tmp_path}; headroles train keeps one each epoch")
    ):
        hr.dynamics(tmp_path, films(30, 1), films(20, 2), study=study)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model and its corpora as files."""
    place = tmp_path_factory.mktemp("pruning")
    learnt().save_pretrained(place / "model")
    tokenizer().save_pretrained(place / "model")
    for name, corpus in (("train", films(48)), ("dev", films(40, 1))):
        rows = "".join(f"{one.label}\t{one.text}\n" for one in corpus)
        (place / f"{name}.tsv").write_text(f"label\tsentence\n{rows}")
    return place


@pytest.mark.slow
def test_sweep_and_remove_are_commands(folder):
    asked = ["--held-out", folder / "dev.tsv", "--keep", "4", "--gate-rate", "0.3", "--metric", "accuracy"]
    sweep = ["sparsity-sweep", folder / "model", folder / "train.tsv", *asked, "--study", folder / "study"]
    done = run(*sweep, figures=True)
    assert done.code == 0, done.err
    for name in ("sizes-l0", "sizes-l0-kinds", "survival-l0-enc-self", "gates-l0-4"):
        assert (folder / "study" / f"{name}.png").is_file()
    control = load_table(folder / "study/sizes-l0.parquet")
    for name, row in {"8, control": control.iloc[0], "4": control.iloc[1]}.items():
        assert re.search(rf"│ {name} +│ {row['value']:.3f} \[{row['low']:.3f}, {row['high']:.3f}\] │", done.out)
    survivors = load_table(folder / "study/survival-l0.parquet").iloc[:, 0]
    saved = run(*sweep, "--output", folder / "trained", "--json")  # saves the models that were trained
    assert saved.code == 0, saved.err
    assert json.loads(saved.out)["next"][0] == f"headroles score {folder / 'trained/4'} CORPUS --study smaller-study"
    trained, _ = hr.load(folder / "trained/4")
    assert list(families.head_index(trained)) == survivors.index[survivors == 1].tolist()
    done = run("remove-heads", folder / "model", folder / "study/survival-l0.parquet", "--output", folder / "smaller")
    assert done.code == 0, done.err
    assert "4 of 8 heads are removed" in done.out
    assert re.search(r"smaller, 1\d,\d{3} parameters; headroles.load loads it$", done.out.strip())
    smaller, _ = hr.load(folder / "smaller")
    assert list(families.head_index(smaller)) == survivors.index[survivors == 1].tolist()
    done = run("remove-heads", folder / "model", "enc-self:0:1,enc-self:9:0", "--output", folder / "none")
    assert done.code == 2
    assert "no head ('enc-self', 9, 0) in BertForSequenceClassification" in done.err


@pytest.mark.slow
def test_prune_is_the_function_and_saves_the_smaller_model(folder):
    asked = ["--strategy", "top", "--keep", "4", "--study", folder / "one", "--output", folder / "pruned"]
    done = run("prune", folder / "model", folder / "train.tsv", *asked)
    assert done.code == 0, done.err
    assert "4 of 8 heads are pruned" in done.out
    model, tokens = hr.load(folder / "model")
    table = hr.prune(model, tokens, hr.read(folder / "train.tsv"), "top", keep=4)
    smaller, _ = hr.load(folder / "pruned")
    assert list(families.head_index(smaller)) == list(families.head_index(model))
    kept = load_table(folder / "one/survival-top.parquet")
    assert kept.iloc[:, 0].tolist() == table.iloc[:, 0].tolist()
    left = run("prune", folder / "model", folder / "train.tsv", *asked[:-2], "--no-remove", "--json")
    assert json.loads(left.out)["lines"][-2] == "4 of 8 heads are pruned"


@pytest.mark.slow
def test_a_model_is_trained_from_scratch_without_the_removed_heads(folder):
    options = ["--epochs", "1", "--smoothing", "0.1", "--from-scratch"]
    removed = run("remove-heads", folder / "model", "enc-self:0:1,enc-self:1:3", "--output", folder / "six")
    assert removed.code == 0, removed.err
    done = run("train", folder / "six", folder / "train.tsv", *options, "--output", folder / "scratch")
    assert done.code == 0, done.err
    model, _ = hr.load(folder / "scratch")
    gone = {("enc-self", 0, 1), ("enc-self", 1, 3)}
    assert set(families.head_index(model)) == set(families.head_index(learnt())) - gone
    start = untrained_as(hr.remove_heads(deepcopy(learnt()), gone))
    assert [one.shape for one in start.parameters()] == [one.shape for one in model.parameters()]
    moved = start.bert.embeddings.word_embeddings.weight - model.bert.embeddings.word_embeddings.weight
    assert 0 < float(moved.detach().abs().max()) < 1e-3  # 3 steps from the same draw, at a small rate


@pytest.mark.slow
def test_three_fine_tunings_of_a_study_are_compared(folder):
    before, tokens = hr.load(folder / "model")
    for seed in range(3):
        after = hr.remove_heads(deepcopy(before), "enc-self:0:1")
        hr.train(after, tokens, hr.read(folder / "train.tsv"), folder / f"tuned-{seed}", epochs=1, seed=seed)
        hr.weight_change(before, after, seed=seed, study=folder / "moved")
    tables = [load_table(folder / "moved" / f"compensation-{seed}.parquet") for seed in range(3)]
    assert [len(table) for table in tables] == [7, 7, 7]
    assert all((table["moved[all]"] > 0).all() for table in tables)
    found = load_table(folder / "moved/uniformity.parquet")
    assert found.loc["moved[all] of heads"].equals(uniformity(tables).loc["heads"].rename("moved[all] of heads"))


@pytest.mark.slow
def test_comparison_is_a_command_and_its_study_is_drawn(folder):
    asked = ["--held-out", folder / "dev.tsv", "--keep", "0.5", "--seeds", "1", "--strategies", "random,top"]
    done = run("compare-pruning", folder / "model", folder / "train.tsv", *asked, "--study", folder / "contest")
    assert done.code == 0, done.err
    each = load_table(folder / "contest/contest-seeds.parquet")
    assert (set(each["strategy"]), set(each["seed"])) == ({"all heads", "random", "top"}, {0})
    model, _ = hr.load(folder / "model")
    for batch in (1, 2):
        hr.efficiency(model, batches=[batch], length=5, repeats=2, study=folder / "contest")
        assert load_table(folder / "contest/efficiency.parquet")["batch"].unique().tolist() == [batch]
    options = ["--epochs", "2", "--output", folder / "trained"]
    assert run("train", folder / "model", folder / "train.tsv", *options).code == 0
    dev = hr.read(folder / "dev.tsv")
    found = hr.dynamics(folder / "trained", dev, dev, study=folder / "contest")
    assert list(found.order["epoch"]) == [1, 2]
    names = {path.stem for path in hr.plot(folder / "contest")}
    assert {"contest", "efficiency", "dynamics", "settling"} <= names


def test_a_reverse_has_the_same_heads():
    assert Reverse(Random()).order(setting()) == Random().order(setting())[::-1]


@pytest.mark.parametrize("width", [40, 80, 200])
def test_tables_are_not_truncated_at_the_width_of_the_terminal(width, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(width))
    show_table(wide(), "wide")
    shown = capsys.readouterr().out
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= width
    table, printed = wide(), re.sub(r"[\s│┃]", "", shown)
    assert all(f"{n}.125[{n}.125,{n}.125]" in printed for n in range(6))
    assert all(re.sub(r"\s", "", name) in printed for name in table if "." not in name)
    assert shown.count("b") >= 80


def test_a_table_of_several_columns_needs_the_name_of_one(tmp_path):
    index = families.head_index(learnt())
    gone = {"survival[a]": [0.0, *[1.0] * 7], "survival[a].open": [0.5] * 8, "survival[b]": [1.0, 0.0, *[1.0] * 6]}
    path = save_table(frame.table(gone, index, "s"), tmp_path / "t.parquet")
    message = f"2 columns of pruned heads in {path}; name one of survival[a], survival[b], as {path}:survival[a]"
    with pytest.raises(ValueError, match=whole(message)):
        kept_heads(str(path))
    assert kept_heads(f"{path}:survival[b]").tolist() == gone["survival[b]"]
    one = save_table(frame.table({"survival[a]": gone["survival[a]"]}, index, "s"), tmp_path / "one.parquet")
    assert kept_heads(str(one)).tolist() == gone["survival[a]"]
    with pytest.raises(ValueError, match=r"^column 'survival\[a\].open' has the value 0.5; expected 1 "):
        hr.remove_heads(deepcopy(learnt()), load_table(path)["survival[a].open"])


# --- bad input --------------------------------------------------------------------------------------------------------


def test_a_strength_that_removes_every_head_is_logged(caplog):
    model = deepcopy(learnt())
    table = prune(model, tokenizer(), films(48), hr.L0(strength=100.0, rate=1.0), tune=TUNE | {"epochs": 3})
    assert table["survival[100]"].sum() == 0
    assert caplog.messages == ["no head is left: lower the strength, or give a number of heads to keep"]
    assert list(families.head_index(model)) == []
    output = model(**tokenizer()("the film", return_tensors="pt"))
    assert output.logits.isfinite().all()


def test_a_number_of_heads_that_is_not_reached_is_said(caplog):
    table = prune(deepcopy(learnt()), tokenizer(), films(48), hr.L0(rate=1e-4), keep=2, tune=TUNE)
    assert table["survival[l0 2]"].sum() == 2
    message = (
        "the target is 2 heads, and 8 of 8 gates are expected to be nonzero: the likeliest stay; more steps or a larger"
    )
    assert caplog.messages == [f"{message} rate of gates decide them"]


def test_a_loss_that_is_not_finite_ends_the_learning_of_gates(tmp_path):
    model = deepcopy(learnt())
    options = {"folder": tmp_path, "tune": TUNE | {"rate": 1e38, "epochs": 2}}
    with pytest.raises(
        ValueError, match=r"^the loss is (nan|inf) after \d+ steps; the checkpoints before are kept, try a "
    ):
        prune(model, tokenizer(), films(48), hr.L0(), keep=2, **options)
    assert not hasattr(model, "head_gates")
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.fixture
def smaller(tmp_path):
    """A folder with a model whose heads were cut out, and its record."""
    hr.save(hr.remove_heads(deepcopy(learnt()), [("enc-self", 0, 1)]), tokenizer(), tmp_path / "smaller")
    config = tmp_path / "smaller/config.json"
    return config.parent, json.loads(config.read_text()), config


def unloadable(folder, reason):
    hint = "a local folder needs config.json, weights, tokenizer"
    with pytest.raises(OSError, match=whole(f"could not load {str(folder)!r}: {reason} ({hint})")):
        hr.load(folder)


def test_a_record_that_does_not_fit_the_weights_is_no_model(smaller):
    folder, told, config = smaller
    told["headroles"]["sites"][0]["heads"] = [0, 2]
    config.write_text(json.dumps(told))
    unloadable(folder, "config.headroles records other sizes than the weights have")
    told["headroles"]["sites"][0] |= {"heads": [0, 2, 3], "name": "model.encoder.layers.0.self_attn"}
    config.write_text(json.dumps(told))
    other = "'model.encoder.layers.0.self_attn', which BertForSequenceClassification does not have"
    unloadable(folder, f"config.headroles refers to module {other}; the checkpoint was pruned for another class")


def test_a_full_disk_leaves_the_model_there_was(smaller):
    folder, _, _ = smaller
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    model, tokens = hr.load(folder)
    hr.remove_heads(model, [("enc-self", 1, 2)])
    message = rf"\Acould not write {re.escape(str(folder))}: .*; what was there before is unchanged\Z"
    with full_disk(10000), pytest.raises(OSError, match=message):
        hr.save(model, tokens, folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert [path.name for path in folder.parent.iterdir()] == ["smaller"]


LEARNING = """
import sys
from pathlib import Path
from helpers.trainings import films, tokenizer
from helpers.prunings import learnt
import headroles as hr  # noqa: E402
from headroles import _distributed as processes
from headroles.models.identity import weights_digest

place = Path(sys.argv[1])
tune = {"epochs": 2, "rate": 1e-3, "batch": 8}
asked = {"keep": 3, "remove": False, "folder": place / "work", "tune": tune}
table = hr.prune(learnt(), tokenizer(), films(96), hr.L0(rate=0.3), **asked)
steps = hr.load_table(place / "work/history.parquet")["step"].tolist()
(place / str(processes.rank())).write_text(repr((steps, weights_digest(learnt()), table.to_numpy().tolist())))
"""


@pytest.mark.slow
def test_two_processes_learn_the_same_gates_each_from_its_share(tmp_path):
    done = together(LEARNING, tmp_path)
    assert done.code == 0, done.err
    told = [(tmp_path / str(rank)).read_text() for rank in (0, 1)]
    assert told[0] == told[1]
    assert told[0].startswith("([6, 12], ")  # of 12 batches in an epoch each takes six
    assert load_table(tmp_path / "work/gates.parquet")["step"].max() == 12


def test_a_sweep_of_gates_on_a_frozen_model_has_the_model_as_control(tmp_path):
    asked = {"keep": [4], "tune": TUNE, "study": tmp_path, "n_resamples": 10}
    table = sparsity_sweep(learnt(), tokenizer(), films(24), films(20, 1), hr.L0(freeze="all"), **asked)
    intact = hr.evaluate(learnt(), tokenizer(), films(20, 1), ["loss"], n_resamples=0)
    assert table["heads"].tolist() == [8, 4]
    assert table["value"][0] == pytest.approx(intact.loc["loss", "value"])


@pytest.mark.parametrize("keep", ["4", True, 0, 1.5, float("nan")])
def test_keep_is_a_number_or_a_share(keep):
    message = f"keep is a share above 0 and below 1, or a number of heads from 1 to 24; got {keep!r}"
    with pytest.raises(ValueError, match=whole(message)):
        hr.prune(
            zoo.tiny("marian"), letters.tokens_of("marian"), letters.corpus(4), "importance", keep=keep, remove=False
        )
