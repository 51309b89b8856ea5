"""Files of a budget, read as other programs read them."""

from __future__ import annotations

import json

import numpy as np
from helpers.budgets import budget, given

import headroles as hr


def read(folder):
    """What DuoAttention's `load_attn_pattern` does with a folder, and kvpress with the text of both files."""
    heads = np.clip(np.loadtxt(folder / "full_attention_heads.tsv", dtype=float, delimiter="\t"), 0, 1)
    config = json.loads((folder / "config.json").read_text())
    return heads, config["sink_size"], config["recent_size"]


def test_duo_attention_reads_its_files(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    table = budget(seed=0)
    files = hr.export_budget(table, "~/new")
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


def test_json_lists_the_groups(tmp_path):
    table = budget(seed=0)
    (path,) = hr.export_budget(table, tmp_path, "json")
    content = json.loads(path.read_text())
    for role in ("retrieval", "streaming"):
        expected = [[layer, group] for _, layer, group in table.index[table[role] == 1]]
        assert content[role] == expected
    assert {key: content[key] for key in ("sink", "recent")} == {"sink": 2, "recent": 3}
    assert content["weights"] in hr.provenance(table, "streaming")
