"""Tasks of the harness, offline over a small file: the numbers with and without heads are those of a plain loop."""

from __future__ import annotations

import json
from copy import deepcopy

import numpy as np
import pytest
import torch
from helpers.close import close
from helpers.letters import tokenizer, tokens_of
from helpers.messages import whole
from helpers.zoo import tiny

import headroles as hr

HEADS = "L0H1,L1H2"
DOCS = [
    {"text": f"{first} {second}", "choices": [first, second, "cd"], "gold": number % 3}
    for number, (first, second) in enumerate(zip("abcdefghijklmn", "opqrstuvwxyzab", strict=True))
]


@pytest.fixture
def task(tmp_path):
    """The config of a task of multiple choice, as in a YAML file."""
    path = tmp_path / "docs.json"
    path.write_text("\n".join(map(json.dumps, DOCS)))
    return {
        "task": "letters",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(path)}, "cache_dir": str(tmp_path / "cache")},
        "output_type": "multiple_choice",
        "test_split": "test",
        "doc_to_text": "{{text}}",
        "doc_to_target": "gold",
        "doc_to_choice": "{{choices}}",
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
    }


def model_of():
    return hr.tiny_model("llama", max_position_embeddings=128)


def without_heads(model):
    """The model with the heads' rows of the output projections zero."""
    model, size = deepcopy(model), 16
    for layer, head in ((0, 1), (1, 2)):
        model.model.layers[layer].self_attn.o_proj.weight.data[:, head * size : (head + 1) * size] = 0
    return model


@torch.no_grad()
def right(model, tokens):
    """Of each example, whether the right choice is the most likely after its text."""
    rows = []
    for doc in DOCS:
        worth = []
        for choice in doc["choices"]:
            context, ids = (tokens(text)["input_ids"] for text in (doc["text"], f"{doc['text']} {choice}"))
            logs = model(torch.tensor([ids])).logits[0].log_softmax(-1)
            worth.append(sum(float(logs[place - 1, ids[place]]) for place in range(len(context), len(ids))))
        rows.append(float(np.argmax(worth) == doc["gold"]))
    return np.array(rows)


@pytest.mark.slow
def test_accuracy_with_and_without_heads_is_that_of_a_plain_loop(task):
    pytest.importorskip("lm_eval")
    model, tokens = model_of(), tokenizer("$A")
    state, before = torch.get_rng_state(), deepcopy(tokens.special_tokens_map)
    table = hr.evaluate_tasks(model, tokens, [task], HEADS)
    intact, ablated = right(model, tokens), right(without_heads(model), tokens)
    assert (intact != ablated).any()
    row = table.loc[("letters", "acc")]
    changes = ablated - intact
    error = changes.std(ddof=1) / len(DOCS) ** 0.5
    close(row, [intact.mean(), ablated.mean(), changes.mean(), error, len(DOCS)])
    assert list(table) == ["intact", "ablated", "difference", "se", "examples"]
    assert "|heads:dec-self:0:1,dec-self:1:2|" in hr.provenance(table, "se")
    assert torch.equal(torch.get_rng_state(), state)
    assert tokens.special_tokens_map == before
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.slow
def test_a_limit_takes_the_first_examples(task):
    pytest.importorskip("lm_eval")
    model, tokens = model_of(), tokenizer("$A")
    table = hr.evaluate_tasks(model, tokens, [task], HEADS, limit=5)
    close(table.loc[("letters", "acc"), ["intact", "examples"]], [right(model, tokens)[:5].mean(), 5])
    assert "|limit:5|" in hr.provenance(table, "se")


def test_nothing_to_compare_and_models_that_write_nothing_are_refused():
    with pytest.raises(ValueError, match=whole("nothing to compare: got 1 heads and 0 tasks; expected some of both")):
        hr.evaluate_tasks(model_of(), tokenizer("$A"), [], "L0H1")
    with pytest.raises(ValueError, match="no head"):
        hr.evaluate_tasks(model_of(), tokenizer("$A"), ["letters"], "L7H1")
    pytest.importorskip("lm_eval")
    with pytest.raises(ValueError, match="BertModel writes no text"):
        hr.evaluate_tasks(tiny("bert").base_model, tokens_of("bert"), ["letters"], "L0H1")
