"""Heads that share a key-value head as one unit: ablated, attributed, ranked and removed together, by plain loops."""

from __future__ import annotations

import copy
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from helpers.close import close
from helpers.reports import told
from transformers import LlamaConfig, LlamaForCausalLM

import headroles as hr
from headroles.testing.case import Case

GROUPS = [(layer, first) for layer in range(2) for first in (0, 2)]  # heads 0 and 1, 2 and 3 share keys


@cache
def case():
    return Case(hr.tiny_model("llama", num_key_value_heads=2))


def given():
    return case().model, case().tokenizer, case().corpus


def loss(model, ids, gates, *, mean=True):
    """The loss of a text under gates, [layer, head], by hooks on the output projections."""
    hooks = []
    for layer, row in zip(model.model.layers, gates, strict=True):
        size = layer.self_attn.head_dim

        def change(_, args, row=row, size=size):
            return (args[0] * row.repeat_interleave(size),)

        hooks.append(layer.self_attn.o_proj.register_forward_pre_hook(change))
    logits = model(input_ids=ids, use_cache=False).logits[0]
    for hook in hooks:
        hook.remove()
    return F.cross_entropy(logits[:-1], ids[0, 1:], reduction="mean" if mean else "sum")


def texts():
    return [torch.tensor([[int(word) for word in sentence.text.split()]]) for sentence in case().corpus]


def closed(*groups):
    gates = torch.ones(2, 4)
    for layer, first in groups:
        gates[layer, first : first + 2] = 0
    return gates


def of_heads(values):
    """One value for each head, of the values of the groups."""
    return [value for value in values for _ in range(2)]


def test_ablation_of_groups_is_a_plain_loop():
    table = hr.ablate(*given(), unit="group", n_resamples=20)
    count = sum(ids.shape[1] - 1 for ids in texts())
    with torch.no_grad():
        sums = [
            float(sum(loss(case().model, ids, closed(*masked), mean=False) for ids in texts())) / count
            for masked in ((), *([group] for group in GROUPS))
        ]
    close(table["ablation[loss group]"], of_heads([value - sums[0] for value in sums[1:]]), size=sums[0], operations=32)
    assert "unit:group" in hr.provenance(table, "ablation[loss group]")
    assert table["ablation[loss group].p"].nunique() == 4  # a test for each group, not for each head


def test_importance_of_groups_is_a_plain_gradient_and_ranks_them():
    table = hr.score(*given(), [hr.Importance(unit="group"), hr.Importance()], n_resamples=0)
    sizes = []
    for ids in texts():
        gates = torch.ones(2, 2, requires_grad=True)  # one for each group
        (gradient,) = torch.autograd.grad(loss(case().model, ids, gates.repeat_interleave(2, 1)), gates)
        sizes.append(gradient.abs().flatten())
    expected = torch.stack(sizes).mean(0).tolist()
    assert table["importance[group]"].tolist() == pytest.approx(of_heads(expected), rel=1e-4)
    assert "unit='group'" in hr.provenance(table, "importance[group]")
    assert "unit" not in hr.provenance(table, "importance")
    pruned = hr.prune(*given(), "importance", keep=1, unit="group", remove=False)
    order = pruned["survival[importance group 1].order"]
    assert order.tolist() == table["importance[group]"].rank(method="dense").tolist()


@pytest.mark.parametrize("strategy", ["importance", "effect", "random", "top", "confidence"])
def test_pruned_groups_are_removed_whole(strategy):
    model = copy.deepcopy(case().model)
    table = hr.prune(model, case().tokenizer, case().corpus, strategy, keep=3, unit="group")
    survival = table[f"survival[{strategy} group 3]"].to_numpy().reshape(2, 2, 2)
    assert (survival[..., 0] == survival[..., 1]).all()
    groups = [int(count) for count in survival[..., 0].sum(1)]  # of each layer
    assert sorted(groups) == [1, 2]
    sites = hr.attention_sites(model)
    assert [(site.heads, site.kv_heads, site.zeroed) for site in sites] == [(2 * count, count, ()) for count in groups]
    ids, mask = texts()[0], torch.tensor(survival.reshape(2, 4), dtype=torch.float32)
    with torch.no_grad():
        expected = loss(case().model, ids, mask)
        assert float(loss(model, ids, [torch.ones(2 * count) for count in groups])) == pytest.approx(
            float(expected), rel=1e-5
        )


def test_learnt_gates_are_one_for_each_group():
    model = copy.deepcopy(case().model)
    gates = hr.L0().gates(model, [("dec-self", 0, head) for head in range(4)], 1, unit="group")
    assert len(gates.log_alpha) == 2
    with torch.no_grad():
        gates.log_alpha[:] = torch.tensor([-1.0, 3.0])
    assert gates.for_heads(gates.final()).tolist() == [0, 0, 1, 1, 1, 1, 1, 1]


def test_without_shared_keys_a_group_is_a_head():
    plain = Case(hr.tiny_model("llama", num_key_value_heads=4))
    tables = [
        hr.ablate(plain.model, plain.tokenizer, plain.corpus, unit=unit, n_resamples=0) for unit in ("head", "group")
    ]
    assert tables[0].iloc[:, 0].tolist() == tables[1].iloc[:, 0].tolist()


def test_many_queries_of_one_key_are_one_group():
    config = LlamaConfig(
        vocab_size=96, hidden_size=64, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=1, max_position_embeddings=64,
    )  # fmt: skip
    (first, second) = hr.attention_sites(LlamaForCausalLM(config))
    assert first.groups == second.groups == [(0, 1, 2, 3)]


def test_columns_of_groups_are_in_words_on_the_report(tmp_path):
    study = hr.Study(tmp_path)
    hr.score(*given(), [hr.Importance(unit="group")], n_resamples=0, study=study)
    hr.ablate(*given(), unit="group", n_resamples=2, study=study)
    hr.prune(*given(), "importance", keep=1, unit="group", remove=False, study=study)
    data = told(hr.report(study, tmp_path / "report.html").read_text(encoding="utf-8"))
    shown = {column["name"]: column for column in data["columns"]}
    for name in ("importance[group]", "ablation[loss group]"):
        assert "share its key-value head" in shown[name]["about"]
    assert shown["importance[group]"]["label"] == "importance, group"
    (pruning,) = data["prunings"]
    assert sum(pruning["sizes"][0]["held"]) == 2  # one group of two heads
