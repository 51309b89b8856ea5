"""What pruning refuses: the call, and the subject and the value that the message names."""

from __future__ import annotations

import re

import pandas as pd
import pytest
import torch
from helpers import letters, zoo
from helpers.errors import refuses
from helpers.gates import outputs
from helpers.prunings import learnt, no_training
from helpers.removals import snapshot, unchanged
from helpers.trainings import films, same_weights, tokenizer, untrained, wrapped

import headroles as hr
from headroles.pruning.learned_gates import L0
from headroles.pruning.weight_changes import uniformity, weight_change
from headroles.tables import frame

TUNE = {"epochs": 2, "batch": 8, "rate": 1e-3}  # two steps each
COUNT = r"keep must be a share .* of 8, or a number from 1 to 8"
PRUNE = [
    ("nonsense", {"keep": 2}, r"strategy must be one of importance, .*, got 'nonsense'"),
    ("importance", {}, "keep must be given for the ranking 'importance', got None"),
    *(("importance", {"keep": keep}, COUNT) for keep in (0, -1, -0.5, 1.5, 2.5, 9, float("nan"), 1.0)),
    *((L0(), {"keep": keep}, COUNT) for keep in (0, 9, float("inf"), 0.05)),
    ("random", {"keep": 2, "unit": "layer"}, "unit must be one of head, group, got 'layer'"),
    ("random", {"keep": 2, "train": "prune"}, "train must be one of before, after, both, None, got 'prune'"),
    ("random", {"keep": 2, "train": "after", "remove": False}, "remove must be True .* got train='after'"),
    ("random", {"keep": 2, "kinds": ["cross"]}, "kind must be .*'cross'"),
    (L0(rate=-1.0), {"keep": 3}, "the rate of gates must be a number > 0, got -1.0"),
    (L0(0.1), {"keep": 3}, "L0 must have either .* got strength=0.1 and keep=3"),
    (L0(-0.1), {}, "the strength of L0 must be a number >= 0, got -0.1"),
    (L0(temperature=0), {}, "the temperature of L0 must be a number > 0, got 0"),
    (L0(0.1, freeze="encoder"), {}, "freeze must be one of nothing, decoder, all, got 'encoder'"),
    (L0(0.1, freeze="decoder"), {}, "freeze='decoder' needs an encoder-decoder, got BertForSequenceClassification"),
]  # fmt: skip


@pytest.mark.parametrize(("strategy", "options", "message"), PRUNE)
def test_prune_of_wrong_options_leaves_the_model_and_the_study(strategy, options, message, tmp_path):
    model = untrained(num_hidden_layers=2)
    with pytest.raises(ValueError, match=message):
        hr.prune(model, tokenizer(), films(16), strategy, tune=TUNE, study=tmp_path, **options)
    assert not hasattr(model, "head_gates")
    same_weights(model, untrained(num_hidden_layers=2))
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("name", ["sparsity_sweep", "compare_pruning"])
@pytest.mark.parametrize(
    ("options", "message"),
    [*(({"keep": [keep]}, COUNT) for keep in (2.5, 9, -1)), ({"keep": [2], "metric": "accuracies"}, "accuracies")],
)
def test_sweep_and_comparison_of_wrong_options_train_nothing(name, options, message, tmp_path, monkeypatch):
    no_training(monkeypatch)
    with pytest.raises(ValueError, match=message):
        getattr(hr, name)(learnt(), tokenizer(), films(48), films(40, 1), study=tmp_path, **options)


def test_comparison_of_two_strategies_of_one_name_is_refused(tmp_path):
    two = {"strategies": [L0(), L0(rate=0.5)], "study": tmp_path}
    with pytest.raises(ValueError, match="different names, got .l0. among l0, l0"):
        hr.compare_pruning(learnt(), tokenizer(), films(48), films(40, 1), **two)


UNKNOWN = {
    "dec-self L0H4": ("dec-self", 0, 4), "dec-self L2H0": ("dec-self", 2, 0), "enc-self L0H0": ("enc-self", 0, 0),
    "('dec-self', 0)": ("dec-self", 0), "('x',)": ("x",),
}  # fmt: skip
REMOVE = [
    ("albert", [("enc-self", 0, 3), ("enc-self", 0, 1), ("enc-self", 1, 1)], {},
     r"must be the same in 2 layers that share .*, got layer 0: \[1, 3\], layer 1: \[1\]"),
    *(("gpt2", [("dec-self", 0, 1), head], {},
       rf"no head {re.escape(name)} in GPT2LMHeadModel, .* 2 layers of 4 heads") for name, head in UNKNOWN.items()),
    ("gpt2", pd.Series([0.5], index=frame.index({("dec-self", 0): 1}), name="x"), {},
     "column 'x' must hold 0 .* got 0.5"),
    ("fsmt", [("enc-self", 0, 1)], {},
     r"FSMTForConditionalGeneration; mask .*: its own code fails on fewer heads \(shape '\[7, 1, 32\]' is invalid for "
     "input of size 168"),  # of 7 tokens of 3 heads of 8 numbers
    ("olmo2", [("dec-self", 0, 1)], {}, "from Olmo2ForCausalLM; mask .*: row 0 of its q_proj belongs to 4 heads"),
    *((name, [("dec-self", 0, 1)], {"groups": "expand"}, "from FalconForCausalLM; mask them instead: ")
      for name in ("falcon", "falcon-grouped")),
    *((name, [("enc-self", 0, 1)], {}, r"no attention found in .* add the class to headroles\.models\.parts\.OUTSIDE")
      for name in ("prophetnet", "mamba", "fnet", "xlnet")),
    ("llama-grouped", [("dec-self", 0, 1)], {"groups": "nonsense"}, "groups must be one of .*, got 'nonsense'"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "heads", "options", "message"), REMOVE)
def test_remove_heads_of_wrong_heads_leaves_the_model(name, heads, options, message):
    model = zoo.tiny(name)
    given, before = zoo.inputs(model), snapshot(model)
    plain = outputs(model, given)
    with pytest.raises(ValueError, match=message):
        hr.remove_heads(model, heads, **options)
    assert unchanged(model, before)
    assert torch.equal(outputs(model, given), plain)


def smaller():
    return hr.remove_heads(zoo.tiny("gpt2"), [("dec-self", 0, 0), ("dec-self", 0, 1), ("dec-self", 1, 1)])


def moved(size):
    return frame.table({"moved[all]": [1.0] * size}, frame.index({("enc-self", 0): size}), "made up")


def translator():
    return hr.prune(zoo.tiny("marian"), letters.tokens_of("marian"), letters.corpus(4), "random", keep=30, remove=False)


CALLS = {
    "heads of a translator": (translator, "keep must be .* a number from 1 to 24, got 30"),
    "a head that was removed": (lambda: hr.remove_heads(smaller(), [("dec-self", 0, 1)]),
                                r"no head dec-self L0H1 .* 2 layers of 2 to 3 heads"),
    "a ranking that is too short": (lambda: hr.efficiency(zoo.tiny("bert"), ["L0H1"], shares=[0.5], batches=[1]),
                                    "order must have at least 4 heads for a share of 0.5, got 1"),
    "a share": (lambda: hr.efficiency(zoo.tiny("bert"), shares=[1.0]), "a share must be .* < 1, got 1.0"),
    "repeats": (lambda: hr.efficiency(zoo.tiny("bert"), repeats=1), "repeats must be an integer >= 2, got 1"),
    "a larger model after": (lambda: weight_change(smaller(), zoo.tiny("gpt2")),
                             r"before must have all heads of after, got none for \('dec-self', 0, 0\)"),
    "an adapter": (lambda: weight_change(zoo.tiny("llama-grouped"), wrapped()), "q_proj in Llama.* merge_and_unload"),
    "two fine-tunings": (lambda: uniformity([moved(4)] * 2), "tables must be .* at least 3 fine-tunings, got 2"),
    "tables of other heads": (lambda: uniformity([moved(4), moved(4), moved(3)]), "tables must be of the same heads"),
}  # fmt: skip

test_wrong_arguments_are_refused = refuses(CALLS)
