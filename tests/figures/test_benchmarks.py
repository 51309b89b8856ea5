"""The benchmarks against others: tools that do the same job give the same numbers; what is timed is what is told."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import attention
import growth
import pandas as pd
import peers
import plain
import pytest
import setting
import torch
from helpers.processes import Fork

import headroles as hr

PEERS = {"TransformerLens": "transformer_lens", "nnsight": "nnsight"}
RAGGED = ["w3 w4 w5 w6 w7 w8", "w9 w10", "w11 w12 w13"]
ENTRY = Path(__file__).resolve().parents[2] / "figures/engineering/benchmarks/make.py"


@pytest.fixture(params=list(setting.MODELS))
def model(request):
    return setting.MODELS[request.param](60, layers=2, width=32, heads=4)


@pytest.mark.slow
@pytest.mark.parametrize("key", list(peers.JOBS))
@pytest.mark.filterwarnings("ignore:Input Tensor 0 has a dtype of torch.int64:UserWarning")  # captum's, of token ids
def test_tools_that_do_the_same_job_give_the_same_numbers(model, key):
    job = peers.JOBS[key]
    rows = peers.compared(job, setting.setting(model, 3, 5), 1)
    assert set(rows) == {*job.tools, *job.cannot}
    failed = {name: row["why not"].split(":")[0] for name, row in rows.items() if "why not" in row}
    absent = {name for name in job.tools if name in PEERS and find_spec(PEERS[name]) is None}
    expected = dict.fromkeys(absent, "ModuleNotFoundError") | dict.fromkeys(job.cannot, "another job")
    assert failed == expected | ({"captum LRP": "TypeError"} if key == "relevance" else {})
    ran = [name for name in job.tools if name not in failed]
    assert all(rows[name]["time / ours"] > 0 for name in ran)
    agreeing = {name: rows[name]["largest difference"] for name in ran if job.tools[name].against}
    assert len(agreeing) >= 1
    assert all(apart < 1e-5 * max(1, rows[ran[0]]["largest number"]) for apart in agreeing.values()), agreeing


def test_padding_is_left_out_of_the_statistics_in_plain_torch(model):
    seq2seq = model.config.is_encoder_decoder
    targets = [hr.Sentence(text[:5]) if seq2seq else None for text in RAGGED]
    rows = (hr.Sentence(text, target=target) for text, target in zip(RAGGED, targets, strict=True))
    corpus = hr.Corpus("ragged", tuple(rows))
    of = setting.Setting(model, setting.tokenizer(60), corpus)
    assert not of.batches[0].source.attention_mask.all()
    assert peers.difference(attention.transformers(of)(), attention.ours(of)()) < 1e-5


def test_an_encoder_alone_has_the_same_statistics_in_plain_torch():
    of = setting.Setting(hr.tiny_model("bert"), setting.tokenizer(60), hr.Corpus.of(RAGGED))
    assert peers.difference(attention.transformers(of)(), attention.ours(of)()) < 1e-5
    assert list(plain._ways(of)) == ["sdpa forward", "plain loop", "hr.score"]


def test_a_tool_that_gives_something_else_is_not_compared():
    one = pd.DataFrame({"a": [1.0, 2.0], "b": [0.0, torch.nan]})
    assert peers.difference(one + 0.5, one) == 0.5
    with pytest.raises(ValueError, match=r"^these are not of the same: \['b'\]$"):
        peers.difference(one[["a"]], one)
    with pytest.raises(ValueError, match=r"^these have no number in different places$"):
        peers.difference(one.fillna(0.0), one)


def test_an_exponent_is_the_power_that_a_cost_grows_with():
    assert growth.exponent((16, 32, 64), [1.0, 4.0, 16.0]) == 2.0
    assert growth.exponent((1, 10, 100), [3.0, 3.0, 3.0]) == 0.0


@pytest.mark.slow
def test_growth_is_of_ours_and_of_those_that_are_installed():
    found = growth.grown(1, {"words": (2, 4)})["words"]
    assert list(found)[::2] == ["statistics, ours", "ablation, ours", "relevance, ours"]
    assert all(row["times / first"]["2"] == 1.0 for name, row in found.items() if name.endswith("ours"))
    said = [row["why not"] for row in found.values() if "why not" in row]
    assert said == ([] if find_spec("transformer_lens") else ["No module named 'transformer_lens'"] * 3)
    assert growth.table({"words": found}).startswith("time over that at the first point, by words\n")


@pytest.mark.slow
def test_one_command_prints_the_tables_and_keeps_them(tmp_path):
    place = tmp_path / "peers.json"
    asked = ["peers", "--tiny", "--models", "GPT-2", "--jobs", "pruning", "--no-growth", "--output", str(place)]
    process = Fork(f"import runpy\nrunpy.run_path({str(ENTRY)!r}, run_name='__main__')", *asked)
    assert process.wait() == 0, process.said()
    printed = process.said("out")
    rows = json.loads(place.read_text())["jobs"]["pruning to half"]["GPT-2"]
    assert rows["shrink"]["time / ours"] == rows["shrink"]["memory / ours"] == 1.0
    assert rows["gates at zero"]["peak MiB"] > rows["gates at zero"]["MiB of the job"] >= 0
    assert "pruning to half, GPT-2" in printed
    assert f"  inseq: {rows['inseq']['why not']}" in printed
