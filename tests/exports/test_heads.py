"""Lists of heads are what the programs that read them expect."""

from __future__ import annotations

import base64
import gzip
import json

import numpy as np
import pandas as pd
import pytest
import transformers

import headroles as hr
from headroles.tables import frame

PAIRS = [[0, 1], [1, 0], [1, 2]]


def table(*, without=()):
    """A table of two layers of three cross heads, of which three are chosen; its score counts up."""
    heads = [("cross", layer, head) for layer in (0, 1) for head in (0, 1, 2) if (layer, head) not in without]
    index = pd.MultiIndex.from_tuples(heads, names=["kind", "layer", "head"])
    values = np.arange(len(heads), dtype=float)
    chosen = [float([layer, head] in PAIRS) for _, layer, head in heads]
    draws = np.random.default_rng(0).normal(values[:, None], 0.1, (len(heads), 50)).astype(np.float32)
    columns = {"links": values, "links.low": values - 1, "links.high": values + 1, "chosen": chosen}
    return frame.table(columns, index, frame.sign(model="a/b", weights="123"), draws={"links": draws})


@pytest.mark.parametrize(
    ("form", "name"), [("generation_config", "generation_config.json"), ("ctranslate2", "config.json")]
)
def test_the_list_in_a_config_is_replaced_and_nothing_else(tmp_path, form, name):
    (tmp_path / name).write_text(json.dumps({"max_length": 448, "alignment_heads": [[0, 0]]}))
    assert hr.export_heads(table(), tmp_path, form=form) == tmp_path / name
    assert json.loads((tmp_path / name).read_text()) == {"max_length": 448, "alignment_heads": PAIRS}
    if form == "generation_config":
        assert transformers.GenerationConfig.from_pretrained(tmp_path).alignment_heads == PAIRS


def test_openais_text_is_decoded_as_their_code_does(tmp_path):
    dump = hr.export_heads(table(), tmp_path / "heads.txt", form="openai").read_bytes()
    mask = np.frombuffer(gzip.decompress(base64.b85decode(dump)), dtype=bool).reshape(2, 3)
    assert np.argwhere(mask).tolist() == PAIRS


def test_whisper_cpps_array_has_the_pairs(tmp_path):
    text = hr.export_heads(table(), tmp_path / "heads.h", form="whisper.cpp").read_text()
    assert text == "static const whisper_ahead aheads[] = { { 0, 1 }, { 1, 0 }, { 1, 2 } };\n"


def test_the_first_heads_by_a_score_have_ranks_with_intervals(tmp_path):
    content = json.loads(hr.export_heads(table(), tmp_path / "a.json", column="links", count=2).read_text())
    assert (content["model"], content["weights"], content["column"]) == ("a/b", "123", "links")
    rows = content["heads"]
    assert [row["rank"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [(row["layer"], row["head"]) for row in rows[:3]] == [(1, 2), (1, 1), (1, 0)]
    assert [row["chosen"] for row in rows] == [True] * 2 + [False] * 4
    assert all(row["rank_low"] == row["rank_high"] == row["rank"] for row in rows)
    assert [row["high"] - row["low"] for row in rows] == [2] * 6


def test_chosen_heads_are_ranked_as_they_were_chosen_and_the_others_by_their_error(tmp_path):
    order, errors = [np.nan, 3, np.nan, 1, np.nan, 2], [50.0, 9, 10, 8, 30, 7]
    given = table().assign(order=order, error=errors)
    rows = json.loads(hr.export_heads(given, tmp_path / "a.json").read_text())["heads"]
    assert [(row["layer"], row["head"]) for row in rows] == [(1, 0), (1, 2), (0, 1), (0, 2), (1, 1), (0, 0)]
    assert [row["rank"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [row["error"] for row in rows] == [8, 7, 9, 10, 30, 50]
    assert [row["chosen"] for row in rows] == [True] * 3 + [False] * 3
    rows = json.loads(hr.export_heads(table(), tmp_path / "a.json").read_text())["heads"]
    assert [row["rank"] for row in rows] == [1, 1, 1, 4, 4, 4]  # a column of 0 and 1 alone says no more


def test_heads_of_any_kind_are_read_by_the_hook_of_vllm(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    hr.export_heads(table(), "~/a.json", form="vllm-hook")
    content = json.loads((tmp_path / "a.json").read_text())
    assert content == {"model_info": {"model_id": "a/b"}, "params": {"important_heads": PAIRS}}


def test_groups_with_a_head_of_the_list_keep_their_cache_in_duo_attention(tmp_path):
    """Read as `load_attn_pattern` of duo_attn/utils.py does, and `DuoAttentionPress` of kvpress."""
    index = pd.MultiIndex.from_product([["dec-self"], range(2), range(4)], names=["kind", "layer", "head"])
    others = pd.MultiIndex.from_tuples([("cross", 0, 0), ("cross", 1, 3)], names=index.names)
    values, text = [*np.arange(8.0)[::-1], -1, -1], frame.sign(model="a/b", shared="dec-self=2")
    grouped = frame.table({"retrieval": np.array(values)}, index.append(others), text)
    file = hr.export_heads(grouped, tmp_path / "duo", form="duo", column="retrieval", count=3)
    assert np.loadtxt(file, dtype=float, delimiter="\t").tolist() == [[1, 1], [0, 0]]
    assert json.loads((file.parent / "config.json").read_text()) == {"sink_size": 4, "recent_size": 256}


def test_pairs_count_the_heads_that_are_left(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    hr.export_heads(table(without=[(1, 1)]), tmp_path, form="ctranslate2")
    assert json.loads((tmp_path / "config.json").read_text()) == {"alignment_heads": [[0, 1], [1, 0], [1, 1]]}
