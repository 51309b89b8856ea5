"""A kept result belongs to exactly what was measured: each change below gives other numbers, and another key."""

from __future__ import annotations

import shutil
from copy import deepcopy
from dataclasses import dataclass
from types import ModuleType

import numpy as np
import pandas as pd
import peft
import pytest
import torch
from helpers import zoo
from helpers.letters import corpus, tokens_of, writing
from helpers.processes import Fork
from peft.tuners.tuners_utils import BaseTunerLayer
from tokenizers import normalizers, pre_tokenizers
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import headroles as hr
from headroles.ablation.metrics.base import Of
from headroles.models.identity import fingerprint, identity, unkeyed, weights_digest
from headroles.pruning.rankings import ByEffect, ByScore, Reverse
from headroles.scores import Importance

SCORES = ["confidence", "entropy"]


@pytest.fixture
def model():
    return deepcopy(zoo.tiny("bert"))


def scored(model, study=None, tokenizer=None):
    return hr.score(model, tokenizer or tokens_of("bert"), corpus(8), SCORES, n_resamples=0, study=study)


def run_again(code, module="__main__", **given):
    """A cell of a notebook, run after an edit."""
    namespace = {"hr": hr, "torch": torch, "np": np, "dataclass": dataclass, "__name__": module, **given}
    exec(code, namespace)  # noqa: S102
    return namespace


# what the numbers of a model depend on


def exchanged_rows(model, _):
    weight = model.get_input_embeddings().weight
    weight.data[[9, 10]] = weight.data[[10, 9]]


def changed_scaling(model, _):
    for site in hr.attention_sites(model):
        site.module.scaling *= 3


def changed_normaliser(_, tokenizer):
    tokenizer.backend_tokenizer.normalizer = normalizers.Replace("a", "b")


def first_layer(model):
    return model.base_model.encoder.layer[0]


CHANGES = {
    "weights": lambda model, _: model.get_input_embeddings().weight.data[9].add_(1),
    "rows": exchanged_rows,
    "scaling": changed_scaling,
    "activation": lambda model, _: setattr(first_layer(model).intermediate, "intermediate_act_fn", torch.nn.Tanh()),
    "config": lambda model, _: setattr(model.config, "hidden_act", "relu"),
    "dtype": lambda model, _: model.to(torch.bfloat16),
    "buffer": lambda model, _: model.base_model.embeddings.position_ids.add_(1),
    "forward": lambda model, _: setattr(first_layer(model), "forward", lambda hidden, *_, **__: hidden),
    "length": lambda _, tokenizer: setattr(tokenizer, "model_max_length", 6),
    "normaliser": changed_normaliser,
}


@pytest.mark.parametrize("change", CHANGES)
def test_identity_changes_with_what_changes_numbers(model, change):
    tokenizer = deepcopy(tokens_of("bert"))
    before, weights = identity(model, tokenizer), weights_digest(model)
    assert identity(model, tokenizer) == before == identity(deepcopy(model), deepcopy(tokenizer))
    CHANGES[change](model, tokenizer)
    assert identity(model, tokenizer) != before
    assert (weights_digest(model) != weights) == (change in ("weights", "rows", "dtype"))


@pytest.mark.parametrize("change", [changed_scaling, changed_normaliser], ids=lambda change: change.__name__)
def test_a_study_does_not_give_back_numbers_of_something_else(model, change, tmp_path):
    tokenizer = deepcopy(tokens_of("bert"))
    first = scored(model, tmp_path, tokenizer)
    change(model, tokenizer)
    second, plain = scored(model, tmp_path, tokenizer), scored(model, None, tokenizer)
    assert not first["confidence"].equals(plain["confidence"])
    assert second["confidence"].equals(plain["confidence"])
    assert hr.provenance(first, "confidence") != hr.provenance(second, "confidence")


def test_identity_of_a_generating_model_has_its_generation_config():
    model = deepcopy(zoo.tiny("gpt2"))
    before = identity(model)
    model.generation_config.num_beams = 4
    assert identity(model) != before


@pytest.mark.filterwarnings("ignore:Already found a `peft_config` attribute")
def test_adapters_that_are_switched_off_or_changed(tmp_path):
    model = deepcopy(zoo.tiny("llama-grouped"))
    config = peft.LoraConfig(target_modules=["q_proj"], init_lora_weights=False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for name in ("first", "second"):
            model = peft.inject_adapter_in_model(config, model, name)
    layers = [layer for layer in model.modules() if isinstance(layer, BaseTunerLayer)]
    tables, digests = [], []
    for adapter in ("first", "second", None):
        for layer in layers:
            layer.set_adapter(adapter) if adapter else layer.enable_adapters(enabled=False)
        study = hr.Study(tmp_path, overwrite=True)
        table = hr.score(model, tokens_of("llama-grouped"), corpus(6), SCORES, n_resamples=0, study=study)
        tables.append(table["confidence"])
        digests.append(weights_digest(model))
    assert len(set(digests)) == 3
    assert not any(tables[i].equals(tables[j]) for i, j in ((0, 1), (0, 2), (1, 2)))


def test_autocast_and_the_default_dtype_are_part_of_the_identity(model):
    before = identity(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert identity(model) != before
    torch.set_default_dtype(torch.bfloat16)
    try:
        assert identity(model) != before
    finally:
        torch.set_default_dtype(torch.float32)
    assert identity(model) == before


class Form:
    """The form of a weight, which a module changes to write it and at the next forward, with loss."""

    def __init__(self):
        self.packed = True


class Converted(torch.nn.Linear):
    """As bitsandbytes' of 4 bit on a CPU."""

    def _save_to_state_dict(self, *args):
        if self.weight.form.packed:
            self.weight.data, self.weight.form.packed = self.weight.data.T.contiguous(), False
        super()._save_to_state_dict(*args)

    def forward(self, given):
        if not self.weight.form.packed:
            self.weight.data, self.weight.form.packed = self.weight.data.T * 0.9, True
        return super().forward(given)


def test_a_digest_changes_no_weights_that_their_module_converts_to_write_them(model):
    block = model.base_model.encoder.layer[0].attention.output
    block.dense.__class__, block.dense.weight.form = Converted, Form()
    ids = torch.arange(5, 15)[None]
    before, weight = model(ids).logits, block.dense.weight.data.clone()
    first = weights_digest(model), identity(model)
    assert torch.equal(block.dense.weight, weight)
    assert torch.equal(model(ids).logits, before)
    assert (weights_digest(model), identity(model)) == first
    scored(model)
    assert torch.equal(model(ids).logits, before)


@pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated", "ignore:torch.quantize_per_tensor")
def test_digests_of_packed_weights_follow_their_values(model):
    def digests():
        packed = torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8)
        return weights_digest(packed), identity(packed)

    before = digests()
    assert digests() == before
    model.base_model.encoder.layer[0].attention.self.query.weight.data[0] += 1
    assert not {*digests()} & {*before}


def scale(factor):
    return run_again(f"class Scale(torch.nn.Module):\n    def forward(self, x): return x * {factor}")["Scale"]()


def attention(factor):
    code = f"def own(*args, **kwargs):\n    out, weights = sdpa(*args, **kwargs)\n    return out * {factor}, weights"
    return run_again(code, sdpa=ALL_ATTENTION_FUNCTIONS["sdpa"])["own"]


def test_identity_has_the_code_of_modules_and_attention_functions_of_the_user():
    model = deepcopy(zoo.tiny("llama-grouped"))
    norm, names = model.model.norm, []
    for factor in (1, 3, 1):
        model.model.norm = torch.nn.Sequential(norm, scale(factor))
        names.append(identity(model))
    AttentionMaskInterface.register("own", ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])
    for factor in (1, 3):
        AttentionInterface.register("own", attention(factor))
        model.set_attn_implementation("own")
        names.append(identity(model))
    assert names[0] == names[2]
    assert len(set(names)) == 4


OTHER_PROCESS = """
import sys
import headroles as hr
from headroles.models.identity import identity
print(identity(*hr.load(sys.argv[1])), hash("a"))
"""


@pytest.mark.slow
def test_another_process_and_another_folder_give_the_same_identity(tmp_path):
    hr.save(zoo.tiny("marian"), tokens_of("marian"), tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "moved")
    expected = identity(*hr.load(tmp_path / "one"))
    other = Fork(OTHER_PROCESS, tmp_path / "moved")
    assert other.wait() == 0, other.said()
    found, hashed = other.said("out").split()
    assert found == expected
    assert int(hashed) != hash("a")


# what is in no key: the result is not kept


def steering(_, __, output):
    return (output[0] + 1, *output[1:]) if isinstance(output, tuple) else output + 1


def test_a_hook_of_the_user_is_refused_where_the_result_would_be_kept(model, tmp_path):
    handle = model.base_model.encoder.layer[0].register_forward_hook(steering)
    assert len(scored(model)) == len(hr.models.head_index(model))  # not kept: measured as it is
    refused = "the result cannot be kept: got the hook steering on bert.encoder.layer.0 of BertForMaskedLM"
    with pytest.raises(ValueError, match=refused):
        scored(model, tmp_path)
    with pytest.raises(ValueError, match=refused):
        hr.ablate(model, tokens_of("bert"), corpus(8), n_resamples=0, study=tmp_path)
    handle.remove()
    assert not unkeyed(model)
    scored(model, tmp_path)


def test_a_hook_on_every_module_is_refused(model, tmp_path):
    handle = torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        with pytest.raises(ValueError, match="on every module"):
            scored(model, tmp_path)
    finally:
        handle.remove()


@pytest.mark.parametrize("block", ["mask", "uniform", "rules"])
def test_an_open_block_is_refused_where_the_result_would_be_kept(model, block, tmp_path):
    mask = hr.head_mask(model, [("enc-self", 0, 0)])
    blocks = {
        "mask": lambda: hr.mask_heads(model, mask),
        "uniform": lambda: hr.mask_heads(model, mask, "uniform"),
        "rules": lambda: hr.lrp_rules(model, "cp"),
    }
    plain = hr.provenance(scored(model), "confidence")
    for measure in (scored, lambda model, study: hr.ablate(model, tokens_of("bert"), corpus(8), study=study)):
        with blocks[block](), pytest.raises(ValueError, match="the result cannot be kept: got an open block"):
            measure(model, tmp_path)
    with blocks["mask"]():
        assert hr.provenance(scored(model), "confidence") != plain
    assert not list(tmp_path.glob("*.parquet"))
    scored(model, tmp_path)


def test_an_observer_changes_no_number_and_is_not_refused(model, tmp_path):
    with hr.capture_attention(model, lambda *_: None):
        scored(model, tmp_path)


class Split:
    """A pre-tokeniser in Python, as of Japanese or Chinese."""

    def pre_tokenize(self, text):
        text.split(lambda _, part: part.split(" ", "removed"))


def test_a_tokenizer_with_a_part_in_python_is_used_and_its_results_are_not_kept(model, tmp_path):
    tokenizer = deepcopy(tokens_of("bert"))
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.PreTokenizer.custom(Split())
    assert scored(model, None, tokenizer)["confidence"].equals(scored(model)["confidence"])
    with pytest.raises(ValueError, match="the result cannot be kept: got a part written in Python"):
        scored(model, tmp_path, tokenizer)


# what is of the user goes by its code and by all that it uses

SCORE = """
{before}
@dataclass(frozen=True{options})
class Own(hr.Score):
    factor: int = 1
    kinds = ("enc-self",)
    def update(self, observation):
        return {{"sum": observation.over_queries(observation.on_real.amax(-1) ** ({power}))}}
    def compute(self, sums):
        return {{"own": self.factor * sums["sum"] / sums["queries"]}}
"""
USED = {  # what a score uses -> how it says so
    "its code": ("", "{0}"),
    "a function of the notebook": ("def power(): return {0}", "power()"),
    "a number in a namespace": ("import types; options = types.SimpleNamespace(power={0})", "options.power"),
    "an attribute of an object": ("class Options:\n    def __init__(self): self.power = {0}\noptions = Options()",
        "options.power"),
    "a bound method": ("class A:\n    n = 1\n    def power(self): return self.n\na = A(); a.n = {0}; f = a.power",
        "f()"),
    "a closure": ("def outer(n):\n    return lambda: n\npower = outer({0})", "power()"),
    "a cached function": ("import functools\n@functools.cache\ndef power(): return {0}", "power()"),
    "a partial function": ("import functools\npower = functools.partial(lambda p: p, {0})", "power()"),
    "weights": ("layer = torch.nn.Linear(1, 1, bias=False); layer.weight.data.fill_({0})", "layer.weight.item()"),
    "a column of a table": ("import pandas as pd; powers = pd.Series([0] * 200 + [{0}] + [0] * 200)", "powers[200]"),
    "a function of another module": ("", "own_module.power()"),
    "a number of another module": ("", "own_module.POWER"),
    "an imported function": ("", "power()"),
}  # fmt: skip


def own_score(used, number, *, factor=1, options=""):
    before, power = USED[used]
    module = ModuleType("own_module")
    module.__dict__.update(run_again(f"def power(): return {number}\nPOWER = {number}", "own_module"))
    given = {"own_module": module} | ({"power": module.power} if "imported" in used else {})
    code = SCORE.format(before=before.format(number), power=power.format(number), options=options)
    return run_again(code, **given)["Own"](factor)


@pytest.mark.parametrize("used", USED)
def test_fingerprint_follows_what_a_score_uses(used):
    assert fingerprint(own_score(used, 1)) == fingerprint(own_score(used, 1)) != fingerprint(own_score(used, 3))


def test_fingerprint_ignores_global_names_that_a_function_does_not_read():
    code = "def f(x): return x.model + 1"
    assert fingerprint(run_again(code, model=1)["f"]) == fingerprint(run_again(code, model=2)["f"])


@pytest.mark.parametrize("options", ["", ", slots=True"])
def test_fingerprint_follows_the_fields_of_a_score(options):
    one, other = (own_score("its code", 1, factor=factor, options=options) for factor in (1, 2))
    assert fingerprint(one) != fingerprint(other)


def test_fingerprint_of_values_is_of_their_content():
    one, other = {"b": {3, 1}, "a": [torch.zeros(2)]}, {"a": [torch.zeros(2)], "b": {1, 3}}
    assert fingerprint(one) == fingerprint(other)
    assert fingerprint(np.arange(3000)) != fingerprint(np.arange(3000)[::-1])
    assert fingerprint(np.array(["a", None], object)) != fingerprint(np.array(["b", None], object))
    assert fingerprint(object()) == fingerprint(object())
    assert fingerprint(hr.Score) == fingerprint(hr.Score) != fingerprint(Importance)


@pytest.mark.parametrize("used", ["a function of the notebook", "a closure"])
def test_a_score_is_computed_again_if_what_it_uses_was_edited(used, tmp_path):
    given, tables = (zoo.tiny("bert"), tokens_of("bert"), corpus(4)), []
    for number in (1, 3):
        tables.append(hr.score(*given, own_score(used, number), n_resamples=0, study=tmp_path)["own"])
    assert tables[1].equals(hr.score(*given, own_score(used, 3), n_resamples=0)["own"])
    assert not tables[0].equals(tables[1])


def own_objective(power):
    return run_again(f"""
from headroles.scores import outputs
from headroles.scores.objectives import Explained, Objective
@dataclass(frozen=True)
class Mine(Objective):
    name = "mine"
    def targets(self, output, batch, /):
        labels = outputs.labels(self.model, batch)
        logits = outputs.picked(outputs.logits(self.model, output), labels.clamp(min=0))
        return Explained(logits ** {power}, labels >= 0)
""")["Mine"]()


def pruned(given, strategy, study):
    return hr.prune(*given, strategy, keep=4, remove=False, study=study)


KEPT = {  # functions whose results are kept, of an object of headroles with an objective of the user's
    "score": lambda given, mine, study: hr.score(*given, [Importance(objective=mine)], study=study),
    "evaluate": lambda given, mine, study: hr.evaluate(*given, [Of(mine)], study=study),
    "ablate": lambda given, mine, study: hr.ablate(*given, metric=Of(mine), study=study),
    "by score": lambda given, mine, study: pruned(given, ByScore(Importance(objective=mine)), study),
    "by effect, reversed": lambda given, mine, study: pruned(given, Reverse(ByEffect(Of(mine))), study),
}


@pytest.mark.parametrize("name", KEPT)
def test_a_function_computes_again_if_a_part_of_the_user_was_edited(name, tmp_path):
    given = zoo.tiny("gpt2"), tokens_of("gpt2"), corpus(12)
    first, again, edited = (KEPT[name](given, own_objective(power), tmp_path / "kept") for power in (1, 1, 2))
    pd.testing.assert_frame_equal(again, first)
    assert not edited.equals(first)
    expected = KEPT[name](given, own_objective(2), tmp_path / "new")
    pd.testing.assert_frame_equal(edited, expected, rtol=1e-4, check_names=False)


def test_a_training_with_an_edited_metric_is_refused(tmp_path):
    def trained(power):
        options = {"held_out": corpus(12), "metrics": [Of(own_objective(power))], "epochs": 1, "rate": 1e-3}
        return hr.train(deepcopy(zoo.tiny("gpt2")), tokens_of("gpt2"), corpus(12), tmp_path / "kept", **options)

    pd.testing.assert_frame_equal(trained(1), trained(1))
    with pytest.raises(ValueError, match="holds training of another model, corpus or options"):
        trained(2)


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
