"""The table of a budget: effects and tests by plain statistics, the choice by each ranking, a study, and files."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from helpers.budgets import PATTERN, budget, given
from helpers.skewness import ends_of_mean, p_of_mean

import headroles as hr
from headroles.budgets.calibration import Calibration
from headroles.budgets.selection import summary
from headroles.models.head_model import HeadModel


def calibration():
    model, tokenizer, corpus = given()
    return Calibration(HeadModel(model, tokenizer), corpus, PATTERN)


def test_effects_have_the_intervals_and_p_of_a_t_test_that_allows_for_skewness():
    effects = np.random.default_rng(0).normal([0, 1, -1], 1, (40, 3))
    columns = summary(effects)
    for group in range(3):
        ends = [columns["effect.low"][group], columns["effect.high"][group]]
        assert ends == pytest.approx(ends_of_mean(effects[:, group]))
        assert columns["effect.p"][group] == pytest.approx(max(p_of_mean(effects[:, group]), 2.0**-39))
    assert (columns["effect.holm"] >= columns["effect.p"]).all()
    nothing = summary(np.zeros((3, 2)))
    assert nothing["effect.p"].tolist() == [1, 1]
    assert np.isnan(summary(effects[:1])["effect.p"]).all()


def test_integrated_gradients_keep_the_largest_effects():
    table = budget(by="integrated-gradients")
    effects = calibration().along_path(4)
    np.testing.assert_allclose(table["effect"], effects.mean(0), rtol=1e-5)
    kept = table["effect"].rank(ascending=False) <= 2
    assert table["retrieval"].tolist() == kept.astype(float).tolist()
    assert (table["retrieval"] + table["streaming"]).tolist() == [1] * 4
    assert table["ranking[integrated-gradients]"].tolist() == table["effect"].tolist()
    fields = hr.provenance(table, "streaming").split("|")
    assert {"sink:2", "recent:3", "by:integrated-gradients", "keep:2", "points:4"} <= set(fields)


def test_ablation_measures_each_group_alone():
    table = budget(by="ablation")
    np.testing.assert_allclose(table["effect"], calibration().one_by_one().mean(0), rtol=1e-5)
    assert "points" not in hr.provenance(table, "effect")


def test_retrieval_is_the_score_of_the_best_head_of_a_group():
    heads = hr.score(*given(), "retrieval", n_resamples=0)["retrieval"].to_numpy().reshape(4, 2)
    table = budget(by="retrieval")
    assert table["ranking[retrieval]"].tolist() == heads.max(1).tolist()


def test_learnt_gates_rank_the_groups():
    table = budget(by="l0", steps=20)
    assert table["ranking[l0]"].tolist() == calibration().learned(2, steps=20, seed=0).tolist()
    assert table["retrieval"].sum() == 2
    assert "steps:20" in hr.provenance(table, "streaming")


def test_random_choices_follow_the_seed():
    choices = {tuple(budget(seed=seed)["retrieval"]) for seed in range(8)}
    assert len(choices) > 2
    assert all(sum(choice) == 2 for choice in choices)


def test_a_column_of_heads_or_of_groups_ranks_too():
    heads = hr.score(*given(), "confidence", n_resamples=0)["confidence"]
    table = hr.cache_budget(*given(), keep=0.25, by=heads, sink=2, recent=3)
    best = heads.to_numpy().reshape(4, 2).max(1)
    assert table["ranking[confidence]"].tolist() == best.tolist()
    assert table["retrieval"].tolist() == (best == best.max()).astype(float).tolist()
    again = hr.cache_budget(*given(), keep=0.25, by=table["ranking[confidence]"].rename("mine"), sink=2, recent=3)
    assert again["retrieval"].tolist() == table["retrieval"].tolist()


def test_layers_with_windows_have_no_rows():
    assert budget("gemma3_text", keep=1).index.tolist() == [("dec-self", 1, 0), ("dec-self", 1, 1)]


def test_a_study_keeps_the_table(tmp_path, monkeypatch):
    options = {"keep": 2, "sink": 2, "recent": 3, "study": tmp_path}
    table = hr.cache_budget(*given(), **options)
    assert (tmp_path / "budget-integrated-gradients.parquet").is_file()
    monkeypatch.setattr(Calibration, "along_path", lambda *_: pytest.fail("measured again"))
    pd.testing.assert_frame_equal(hr.cache_budget(*given(), **options), table)
    kept = hr.load_table(tmp_path / "budget-integrated-gradients.parquet")
    assert hr.BudgetedCache(given()[0], kept).get_seq_length() == 0


def read(folder):
    """What DuoAttention's `load_attn_pattern` does with a folder, and kvpress with the text of both files."""
    heads = np.clip(np.loadtxt(folder / "full_attention_heads.tsv", dtype=float, delimiter="\t"), 0, 1)
    config = json.loads((folder / "config.json").read_text())
    return heads, config["sink_size"], config["recent_size"]


def test_duo_attention_reads_its_files(tmp_path):
    table = budget(seed=0)
    files = hr.export_budget(table, tmp_path / "new")
    assert [path.name for path in files] == ["full_attention_heads.tsv", "config.json"]
    heads, sink, recent = read(tmp_path / "new")
    assert heads.tolist() == table["retrieval"].to_numpy().reshape(2, 2).tolist()
    assert (sink, recent) == (2, 3)


def test_kvpress_lets_the_same_heads_stream(tmp_path):
    table = budget(keep=1, seed=0)
    hr.export_budget(table, tmp_path, "kvpress")
    heads, *_ = read(tmp_path)
    ratio = json.loads((tmp_path / "config.json").read_text())["head_compression_ratio"]
    streaming = np.zeros(heads.shape, dtype=bool)  # as `DuoAttentionPress.__post_init_from_model__` chooses them
    streaming[np.unravel_index(np.argsort(heads, axis=None)[: round(heads.size * ratio)], heads.shape)] = True
    assert streaming.flatten().tolist() == (table["streaming"] == 1).tolist()


def test_layers_with_windows_keep_what_they_have(tmp_path):
    table = budget("gemma3_text", keep=1)
    hr.export_budget(table, tmp_path)
    assert read(tmp_path)[0].tolist() == [[1, 1], table["retrieval"].tolist()]  # of the model's two layers


def test_a_window_on_the_last_layer_has_its_row_too(tmp_path):
    _, tokenizer, corpus = given("gemma3_text")
    swapped = hr.tiny_model("gemma3_text", num_key_value_heads=2, layer_types=["full_attention", "sliding_attention"])
    table = hr.cache_budget(swapped, tokenizer, corpus, keep=1, by="random", sink=2, recent=3)
    hr.export_budget(table, tmp_path)
    assert read(tmp_path)[0].tolist() == [table["retrieval"].tolist(), [1, 1]]


@pytest.mark.parametrize(("name", "size"), [("llama", 2), ("gemma3_text", 2), ("gpt2", 1)])  # heads of a group
def test_vllm_hook_reads_the_query_heads(name, size, tmp_path):
    """As `HookLLM.load_config` does with its `config_file`."""
    model = hr.tiny_model("gpt2") if name == "gpt2" else given(name)[0]
    table = hr.cache_budget(model, *given(name if size > 1 else "llama")[1:], keep=2, by="random", sink=2, recent=3)
    (path,) = hr.export_budget(table, tmp_path, "vllm-hook")
    config = json.loads(path.read_text())
    kept = [(layer, group) for _, layer, group in table.index[table["retrieval"] == 1]]
    expected = [[layer, group * size + head] for layer, group in kept for head in range(size)]
    assert config["params"]["important_heads"] == expected
    assert config["model_info"]["model_id"] == type(model).__name__


def test_vllm_hook_reads_heads_by_their_old_numbers_where_groups_were_removed(tmp_path):
    model = hr.tiny_model("llama", num_attention_heads=8, num_key_value_heads=4)
    hr.remove_heads(model, [("dec-self", 0, head) for head in (2, 3)])  # the second group
    groups = {("dec-self", 0): [[0, 1], [4, 5], [6, 7]], ("dec-self", 1): [[0, 1], [2, 3], [4, 5], [6, 7]]}
    table = hr.cache_budget(model, *given()[1:], keep=4, by="random", seed=1, sink=2, recent=3)
    (path,) = hr.export_budget(table, tmp_path, "vllm-hook")
    kept = table.index[table["retrieval"] == 1]
    assert {layer for _, layer, _ in kept} == {0, 1}
    expected = [[layer, head] for kind, layer, group in kept for head in groups[kind, layer][group]]
    assert json.loads(path.read_text())["params"]["important_heads"] == expected


def test_json_lists_the_groups(tmp_path):
    table = budget(seed=0)
    (path,) = hr.export_budget(table, tmp_path, "json")
    content = json.loads(path.read_text())
    for role in ("retrieval", "streaming"):
        expected = [[layer, group] for _, layer, group in table.index[table[role] == 1]]
        assert content[role] == expected
    assert {key: content[key] for key in ("sink", "recent")} == {"sink": 2, "recent": 3}
    assert content["weights"] in hr.provenance(table, "streaming")
