"""A kept number belongs to what was measured: sites that moved, copies, compiled models, other options, other files."""

from __future__ import annotations

from copy import deepcopy
from functools import wraps
from types import ModuleType

import numpy as np
import pytest
import torch
from helpers import zoo
from helpers.letters import corpus, tokens_of, writing
from tokenizers import pre_tokenizers
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import headroles as hr

# attention sites go by the modules, their order and their options


def layers(model):
    return next(part for part in model.modules() if isinstance(part, torch.nn.ModuleList) and len(part) > 1)


def swapped(model):
    both = layers(model)
    both[0], both[1] = both[1], both[0]


def another_list(model):
    both = layers(model)
    parent, name = next(
        (part, key) for part in model.modules() for key, child in part.named_children() if child is both
    )
    setattr(parent, name, torch.nn.ModuleList(reversed(both)))


def twice(model):
    layers(model)[1] = layers(model)[0]


def moved_twice(model):  # first, second, second, first: the modules in order of their first place stay as they were
    first, second = layers(model)
    layers(model)[1] = first
    layers(model).append(second)
    model.config.num_hidden_layers = 3


def deleted(model):
    del layers(model)[0]


def fewer(model):  # Llama's forward goes through the first so many layers
    model.config.num_hidden_layers = 1


def exchanged_attention(model):
    first, second = hr.attention_sites(model)[:2]
    for site, other in ((first, second), (second, first)):
        place, _, name = site.name.rpartition(".")
        setattr(model.get_submodule(place), name, other.module)


def another_projection(model):
    site = hr.attention_sites(model)[0]
    place, _, name = site.out_name.rpartition(".")
    setattr(model.get_submodule(place), name, deepcopy(site.out))


def skipped(model):
    layers(model)[0].forward = lambda hidden, *_, **__: hidden


CHANGES = (swapped, another_list, twice, moved_twice, deleted, fewer, exchanged_attention, another_projection, skipped)


def measured(model, name):
    given = model, tokens_of(name), corpus(6)
    scores = hr.score(*given, ["confidence"], n_resamples=0)
    return scores.join(hr.ablate(*given, n_resamples=0)[["ablation[loss]"]])


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("name", ["llama-grouped", "bert"])
def test_a_model_that_was_rebuilt_is_measured_as_a_copy_that_was_never_seen(name, change):
    model = deepcopy(zoo.tiny(name))
    before = measured(model, name)
    change(model)
    expected = measured(deepcopy(model), name)
    assert not np.isnan(expected).any(axis=None)
    found = measured(model, name)
    assert found.equals(expected)
    assert found.equals(before) == (change is another_projection or (change is fewer and name == "bert"))


# what is of the user goes by its code and by all that it uses


def run_again(code, module="__main__", **given):
    """A cell of a notebook, run after an edit."""
    namespace = {"hr": hr, "torch": torch, "np": np, "__name__": module, **given}
    exec(code, namespace)  # noqa: S102
    return namespace


SCORE = """
{before}
class Own(hr.Score):
    kinds = ("enc-self",)
    def update(self, observation):
        return {{"sum": observation.over_queries(observation.on_real.amax(-1) ** ({power}))}}
    def compute(self, sums):
        return {{"own": sums["sum"] / sums["queries"]}}
"""
USED = {  # what a score uses -> how it says so
    "a number in a namespace": ("import types; options = types.SimpleNamespace(power={0})", "options.power"),
    "an attribute of an object": (
        "class Options:\n    def __init__(self): self.power = {0}\noptions = Options()",
        "options.power",
    ),
    "a cached function": ("import functools\n@functools.cache\ndef power(): return {0}", "power()"),
    "a partial function": ("import functools\npower = functools.partial(lambda p: p, {0})", "power()"),
    "weights": ("layer = torch.nn.Linear(1, 1, bias=False); layer.weight.data.fill_({0})", "layer.weight.item()"),
    "a column of a table": ("import pandas as pd; powers = pd.Series([0] * 200 + [{0}] + [0] * 200)", "powers[200]"),
    "a function of another module": ("", "own_module.power()"),
    "a number of another module": ("", "own_module.POWER"),
    "an imported function": ("", "power()"),
}


@pytest.mark.parametrize("used", USED)
def test_a_score_is_computed_again_if_what_it_uses_was_edited(used, tmp_path):
    before, power = USED[used]
    tables = []
    for number in (1, 3):
        module = ModuleType("own_module")
        module.__dict__.update(run_again(f"def power(): return {number}\nPOWER = {number}", "own_module"))
        code = SCORE.format(before=before.format(number), power=power)
        own = run_again(code, own_module=module, **({"power": module.power} if "imported" in used else {}))["Own"]()
        given = zoo.tiny("bert"), tokens_of("bert"), corpus(4), own
        tables.append(hr.score(*given, n_resamples=0, study=tmp_path)["own"])
    assert tables[1].equals(hr.score(*given, n_resamples=0)["own"])
    assert not tables[0].equals(tables[1])


METRIC = """
from headroles.ablation.metrics import Metric
class Size(Metric):
    name = "size"
    def __init__(self, factor=1):
        self.factor = factor
    def update(self, observation):
        sizes = observation.output.logits.abs().mean((1, 2)).numpy() * self.factor * {0}
        return np.stack([sizes, np.ones_like(sizes)], axis=1)
    def compute(self, sums):
        return sums[..., 0] / sums[..., 1]
"""
MEASURES = {
    "ablate": lambda given, metric, study: hr.ablate(*given, metric=metric, n_resamples=0, study=study).iloc[:, 0],
    "evaluate": lambda given, metric, study: hr.evaluate(*given, [metric], n_resamples=0, study=study)["value"],
}


@pytest.mark.parametrize("name", MEASURES)
@pytest.mark.parametrize("change", ["code", "attribute"])
def test_a_metric_is_computed_again_if_it_was_edited(name, change, tmp_path):
    given = zoo.tiny("bert"), tokens_of("bert"), corpus(4)
    first = run_again(METRIC.format(1))["Size"]()
    second = run_again(METRIC.format(3))["Size"]() if change == "code" else type(first)(3)
    before = MEASURES[name](given, first, tmp_path)
    after = MEASURES[name](given, second, tmp_path)
    assert after.equals(MEASURES[name](given, second, None))
    assert not after.equals(before)


RANKING = """
from headroles.pruning.rankings import Ranking
class Own(Ranking):
    name = "own"
    def order(self, setting):
        return list(setting.among)[::{0}]
"""


@pytest.mark.slow
def test_a_ranking_is_asked_again_if_it_was_edited(tmp_path):
    tables = []
    given = writing("marian"), tokens_of("marian"), corpus(12), corpus(6)
    options = {"keep": (0.5,), "seeds": 1, "metric": "loss", "tune": {"max_steps": 1}}
    for step in (1, -1):
        strategies = [run_again(RANKING.format(step))["Own"]()]
        tables.append(hr.compare_pruning(*given, strategies=strategies, **options, study=tmp_path).select_dtypes(float))
    assert not tables[0].equals(tables[1])


# what the model runs goes by its code, too


def scale(factor):
    code = f"class Scale(torch.nn.Module):\n    def forward(self, x): return x * {factor}"
    return run_again(code)["Scale"]()


def attention(factor):
    code = f"""def own(*args, **kwargs):
    out, weights = sdpa(*args, **kwargs)
    return out * {factor}, weights"""
    return run_again(code, sdpa=ALL_ATTENTION_FUNCTIONS["sdpa"])["own"]


def test_a_module_of_the_user_that_was_edited_is_another_model(tmp_path):
    model = deepcopy(zoo.tiny("llama-grouped"))
    norm, tables = model.model.norm, []
    for factor in (1, 3):
        model.model.norm = torch.nn.Sequential(norm, scale(factor))
        given = model, tokens_of("llama-grouped"), corpus(4)
        tables.append(hr.ablate(*given, n_resamples=0, study=tmp_path)["ablation[loss]"])
    assert tables[1].equals(hr.ablate(*given, n_resamples=0)["ablation[loss]"])
    assert not tables[0].equals(tables[1])


def test_functions_in_the_place_of_those_of_transformers_are_another_model(monkeypatch, tmp_path):
    from transformers.models.llama import modeling_llama

    model = deepcopy(zoo.tiny("llama-grouped"))
    forward = modeling_llama.LlamaAttention.forward

    def louder(self, *args, **kwargs):
        out, weights = forward(self, *args, **kwargs)
        return 3 * out, weights

    def measured(study):
        return hr.ablate(model, tokens_of("llama-grouped"), corpus(4), n_resamples=0, study=study)["ablation[loss]"]

    tables = [measured(tmp_path)]
    for place, name, function in (
        (modeling_llama.LlamaAttention, "forward", louder),
        (modeling_llama.LlamaAttention, "forward", wraps(forward)(louder)),
        (modeling_llama, "apply_rotary_pos_emb", lambda query, key, *_: (query, key)),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(place, name, function)
            tables.append(measured(tmp_path))
            assert tables[-1].equals(measured(None))
    assert not any(table.equals(tables[0]) for table in tables[1:])


def test_an_attention_function_that_was_registered_again_is_another_model(tmp_path):
    model, tables = deepcopy(zoo.tiny("llama-grouped")), []
    AttentionMaskInterface.register("own", ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])
    for factor in (1, 3):
        AttentionInterface.register("own", attention(factor))
        model.set_attn_implementation("own")
        given = model, tokens_of("llama-grouped"), corpus(4)
        tables.append(hr.ablate(*given, n_resamples=0, study=tmp_path)["ablation[loss]"])
    assert tables[1].equals(hr.ablate(*given, n_resamples=0)["ablation[loss]"])
    assert not tables[0].equals(tables[1])


class Split:
    """A pre-tokeniser in Python, as of Japanese or Chinese."""

    def pre_tokenize(self, text):
        text.split(lambda _, part: part.split(" ", "removed"))


def test_a_tokenizer_with_a_part_in_python_is_used_and_its_results_are_not_kept(tmp_path):
    tokenizer = deepcopy(tokens_of("bert"))
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.PreTokenizer.custom(Split())
    given = zoo.tiny("bert"), tokenizer, corpus(4), ["confidence"]
    plain = hr.score(zoo.tiny("bert"), tokens_of("bert"), corpus(4), ["confidence"], n_resamples=0)
    assert hr.score(*given, n_resamples=0)["confidence"].equals(plain["confidence"])
    said = "the result cannot be kept: got a .* with a part written in Python, which cannot be serialised"
    with pytest.raises(ValueError, match=said):
        hr.score(*given, n_resamples=0, study=tmp_path)
