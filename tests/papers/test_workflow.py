"""A workflow computes what the functions of the package compute, and its untrained model is a control."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pandas as pd
import pytest
import torch
from helpers import zoo
from helpers.letters import corpus, tokens_of

import headroles as hr
from headroles.papers import voita2019
from headroles.papers.bench import Bench
from headroles.papers.workflow import Material, Workflow, _token_attention, material
from headroles.tables import frame
from headroles.tables.io import load_table


@pytest.fixture
def flow(tmp_path):
    text = corpus(8)
    return Workflow(tmp_path, zoo.tiny("gpt2"), tokens_of("gpt2"), Material(text, text, text), n_resamples=5)


def test_its_tables_are_those_of_the_functions(flow):
    parts = flow.model, flow.tokenizer, flow.material.test
    found = load_table(flow.score(flow.study("scores"), flow.material.test, ["confidence"]))
    pd.testing.assert_frame_equal(found, hr.score(*parts, ["confidence"], n_resamples=5))
    flow.ablate(flow.study("effects"), flow.material.test)
    found = flow.study("effects").load("ablation-loss-head-zero")
    pd.testing.assert_frame_equal(found, hr.ablate(*parts, metric="loss", n_resamples=5))


def test_the_steps_of_the_model_are_those_of_the_history_in_its_folder(flow, tmp_path, monkeypatch):
    """A model that was never loaded has no folder: a history in the working directory is not its."""
    hr.save_table(frame.signed(pd.DataFrame({"step": [3, 6]}), "s"), tmp_path / "history.parquet")
    monkeypatch.chdir(tmp_path)
    flow.model.config.name_or_path = flow.model.name_or_path = ""
    assert pd.isna(flow.base)
    flow.model.name_or_path = str(tmp_path)
    assert flow.base == 6


def test_the_metric_is_what_the_model_is_made_for(flow):
    assert (flow.metric, flow.translation) == ("loss", False)
    translator = replace(flow, model=zoo.tiny("marian"), metric="")
    assert (translator.metric, translator.translation) == ("bleu", True)


def test_a_random_ranking_takes_a_head_of_each_layer_in_turn(flow):
    ranking = flow.random_ranking()
    assert sorted(ranking) == sorted(hr.models.head_index(flow.model))
    assert [len({layer for _, layer, _ in ranking[i : i + 2]}) for i in range(0, len(ranking), 2)] == [2] * 4


def test_fig5_counts_tokens_that_attend_to_the_least_frequent_and_to_one_of_the_two(flow):
    """Content tokens, counted in a plain loop over the attention of transformers; of equally rare ones the first."""
    run = replace(flow, model=zoo.tiny("bert"), tokenizer=tokens_of("bert"), counted=corpus(30))
    study, head, sentences = run.study("functions"), ("enc-self", 0, 1), corpus(5)
    study.save("attention-rare", _token_attention(run, sentences, head))
    found = voita2019.fig5(Bench([run.folder])).table
    run.model.set_attn_implementation("eager")
    counts = Counter(token for one in corpus(30) for token in run.tokenizer(one.text)["input_ids"])
    special, rows = {*run.tokenizer.all_special_ids}, []
    for sentence in sentences:
        ids = run.tokenizer(sentence.text, return_tensors="pt")
        weights = run.model(**ids, output_attentions=True).attentions[0][0, 1].detach()
        tokens = ids["input_ids"][0].tolist()
        content = [place for place, token in enumerate(tokens) if token not in special]
        ranked = sorted((counts[tokens[place]], place) for place in content)
        tops = [max(content, key=lambda key: float(weights[query, key])) for query in content]  # noqa: B023
        places = [place for _, place in ranked]
        rows.append([len(content), sum(top == places[0] for top in tops), sum(top in places[:2] for top in tops)])
    assert found[["queries", "hits", "hits.two"]].to_numpy().tolist() == rows
    assert found["hits.two"].sum() > found["hits"].sum() > 0


def test_untrained_has_other_weights_in_a_subfolder(flow):
    control = flow.untrained
    assert control.folder == flow.folder / "untrained"
    ours, theirs = (dict(one.model.named_parameters()) for one in (flow, control))
    assert ours.keys() == theirs.keys()
    assert not any(torch.equal(ours[name], theirs[name]) for name in ours if ours[name].ndim > 1)


def test_material_is_read_from_one_folder(tmp_path):
    for name in ("train", "dev", "test", "other"):
        for side in ("source", "target"):
            (tmp_path / f"{name}.{side}.txt").write_text(f"{name} {side}\n" * 3)
    found = material(tmp_path, limit=2)
    assert [len(found.train), found.other[0].text, found.other[0].target.text] == [2, "other source", "other target"]
    assert found.trees is None
    (tmp_path / "trees.text.conllu").write_text("")
    (tmp_path / "trees.more.conllu").write_text("")
    with pytest.raises(ValueError, match=r"trees\.source.* got trees\.more\.conllu, trees\.text\.conllu"):
        material(tmp_path)
    with pytest.raises(FileNotFoundError, match=f"^no train in {tmp_path / 'x'};"):
        material(tmp_path / "x")
