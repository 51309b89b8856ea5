"""A kept result belongs to exactly what was measured: each change below gives other numbers, and another key."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from copy import deepcopy

import numpy as np
import peft
import pytest
import torch
from helpers import zoo
from helpers.letters import corpus, tokens_of
from helpers.messages import whole
from peft.tuners.tuners_utils import BaseTunerLayer
from tokenizers import normalizers
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

import headroles as hr
from headroles.models.head_model import HeadModel
from headroles.models.identity.of_model import identity, unnamed, weights_digest

SCORES = ["confidence", "entropy"]


@pytest.fixture
def model():
    return deepcopy(zoo.tiny("bert"))


def scored(model, study=None, tokenizer=None):
    return hr.score(model, tokenizer or tokens_of("bert"), corpus(8), SCORES, n_resamples=0, study=study)


def changed_weights(model, _):
    model.get_input_embeddings().weight.data[9] += 1


def changed_data_of_one_row(model, _):
    weight = model.get_input_embeddings().weight
    weight.data[[9, 10]] = weight.data[[10, 9]]


def changed_scaling(model, _):
    for site in hr.attention_sites(model):
        site.module.scaling *= 3


def changed_activation(model, _):
    model.base_model.encoder.layer[0].intermediate.intermediate_act_fn = torch.nn.Tanh()


def changed_config(model, _):
    model.config.hidden_act = "relu"


def changed_dtype(model, _):
    model.to(torch.bfloat16)


def changed_length(_, tokenizer):
    tokenizer.model_max_length = 6


def changed_normaliser(_, tokenizer):
    tokenizer.backend_tokenizer.normalizer = normalizers.Replace("a", "b")


CHANGES = [
    changed_weights,
    changed_data_of_one_row,
    changed_scaling,
    changed_activation,
    changed_config,
    changed_dtype,
    changed_length,
    changed_normaliser,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_what_changes_numbers_changes_the_identity(model, change):
    tokenizer = deepcopy(tokens_of("bert"))
    before = identity(model, tokenizer)
    assert identity(model, tokenizer) == before == identity(deepcopy(model), deepcopy(tokenizer))
    change(model, tokenizer)
    assert identity(model, tokenizer) != before


@pytest.mark.parametrize("change", [changed_scaling, changed_length, changed_normaliser], ids=lambda f: f.__name__)
def test_a_study_does_not_give_back_numbers_of_something_else(model, change, tmp_path):
    tokenizer = deepcopy(tokens_of("bert"))
    first = scored(model, tmp_path, tokenizer)
    change(model, tokenizer)
    second, plain = scored(model, tmp_path, tokenizer), scored(model, None, tokenizer)
    assert not first["confidence"].equals(plain["confidence"])
    assert second["confidence"].equals(plain["confidence"])
    assert hr.provenance(first, "confidence") != hr.provenance(second, "confidence")


def test_two_one_hot_embeddings_that_change_places_are_another_model(model):
    weight = model.get_input_embeddings().weight
    weight.data.zero_()
    weight.data[9, 3] = weight.data[10, 4] = 1
    before = weights_digest(model), identity(model)
    weight.data[9, 3] = weight.data[10, 4] = 0
    weight.data[9, 4] = weight.data[10, 3] = 1
    after = weights_digest(model), identity(model)
    assert before[0] != after[0]
    assert before[1] != after[1]


def test_buffers_that_are_not_saved_are_part_of_the_identity(tmp_path):
    model = deepcopy(zoo.tiny("llama-grouped"))
    tokenizer = tokens_of("llama-grouped")
    before = identity(model)
    scores = hr.score(model, tokenizer, corpus(6), SCORES, n_resamples=0, study=tmp_path)
    (name, buffer), *_ = [(name, buffer) for name, buffer in model.named_buffers() if "inv_freq" in name]
    assert name not in model.state_dict()
    buffer.mul_(0.5)
    assert identity(model) != before
    again = hr.score(model, tokenizer, corpus(6), SCORES, n_resamples=0, study=tmp_path)
    assert not scores["confidence"].equals(again["confidence"])


@pytest.mark.filterwarnings("ignore:Already found a `peft_config` attribute")
def test_adapters_that_are_switched_off_or_changed(tmp_path):
    model = deepcopy(zoo.tiny("llama-grouped"))
    config = peft.LoraConfig(target_modules=["q_proj"], init_lora_weights=False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = peft.inject_adapter_in_model(config, model, "first")
        model = peft.inject_adapter_in_model(config, model, "second")
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


def test_autocast_and_the_default_dtype_are_part_of_the_identity(model, tmp_path):
    before, plain = identity(model), scored(model, tmp_path)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert identity(model) != before
        assert not scored(model, tmp_path)["confidence"].equals(plain["confidence"])
    torch.set_default_dtype(torch.bfloat16)
    try:
        assert identity(model) != before
    finally:
        torch.set_default_dtype(torch.float32)
    assert identity(model) == before


def steering(_, __, output):
    return (output[0] + 1, *output[1:]) if isinstance(output, tuple) else output + 1


REFUSAL = (
    "the result cannot be kept: got {} of BertForMaskedLM, which may change its numbers and stands in no provenance; "
    "leave the block or remove the hook first, or call without study="
)


def test_a_hook_of_the_user_is_refused_where_the_result_would_be_kept(model, tmp_path):
    layer = model.base_model.encoder.layer[0]
    handle = layer.register_forward_hook(steering)
    assert scored(model).shape[0] == len(hr.models.head_index(model))  # not kept: measured as it is
    with pytest.raises(ValueError, match=whole(REFUSAL.format("the hook steering on bert.encoder.layer.0"))):
        scored(model, tmp_path)
    with pytest.raises(ValueError, match="the hook steering on bert.encoder.layer.0"):
        hr.ablate(model, tokens_of("bert"), corpus(8), n_resamples=0, study=tmp_path)
    handle.remove()
    assert not unnamed(model)
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
    with blocks[block](), pytest.raises(ValueError, match="the result cannot be kept: got an open block"):
        scored(model, tmp_path)
    with blocks[block](), pytest.raises(ValueError, match="the result cannot be kept: got an open block"):
        hr.ablate(model, tokens_of("bert"), corpus(8), n_resamples=0, study=tmp_path)
    assert not list(tmp_path.glob("*.parquet"))
    scored(model, tmp_path)


def test_an_observer_changes_no_number_and_is_not_refused(model, tmp_path):
    with hr.capture_attention(model, lambda *_: None):
        scored(model, tmp_path)


def test_provenance_within_a_block_is_another_than_that_of_the_intact_model(model):
    plain = hr.provenance(scored(model), "confidence")
    with hr.mask_heads(model, hr.head_mask(model, [("enc-self", 0, 0)])):
        assert hr.provenance(scored(model), "confidence") != plain


@pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated", "ignore:torch.quantize_per_tensor")
def test_weights_that_are_packed_are_hashed(model):
    pack = torch.ao.quantization.quantize_dynamic
    packed = pack(model, {torch.nn.Linear}, dtype=torch.qint8)
    before = weights_digest(packed), identity(packed)
    assert before == (weights_digest(packed), identity(packed))
    model.base_model.encoder.layer[0].attention.self.query.weight.data[0] += 1
    changed = pack(model, {torch.nn.Linear}, dtype=torch.qint8)
    assert weights_digest(changed) != before[0]
    assert identity(changed) != before[1]


def test_the_handle_refuses_what_it_cannot_know(model):
    with pytest.raises(
        ValueError, match=whole("no tokenizer: got BertForMaskedLM alone; expected the tokenizer that belongs to it")
    ):
        HeadModel(model).encode(corpus(2))
    assert HeadModel.of(handle := HeadModel(model)) is handle


# attention sites go by the modules themselves
@pytest.mark.parametrize("name", ["bert", "llama-grouped"])
def test_layers_that_are_replaced_or_change_places_are_found_again(name):
    model = deepcopy(zoo.tiny(name))
    layers = next(part for part in model.modules() if isinstance(part, torch.nn.ModuleList) and len(part) > 1)
    kind = hr.attention_sites(model)[0].kind
    before = hr.score(model, tokens_of(name), corpus(6), ["confidence"], n_resamples=0)["confidence"]
    layers[0] = deepcopy(layers[0])
    assert hr.score(model, tokens_of(name), corpus(6), ["confidence"], n_resamples=0)["confidence"].equals(before)
    effects = hr.ablate(model, tokens_of(name), corpus(6), n_resamples=0)
    assert (effects["ablation[loss]"].loc[kind, 0].abs() > 0).all()
    first = layers[0]
    layers[0], layers[1] = layers[1], first
    swapped = hr.score(model, tokens_of(name), corpus(6), ["confidence"], n_resamples=0)["confidence"]
    fresh = deepcopy(model)  # of which nothing was found before
    expected = hr.score(fresh, tokens_of(name), corpus(6), ["confidence"], n_resamples=0)["confidence"]
    assert swapped.equals(expected)
    assert not swapped.equals(before)


# compiled models
def logits(model, inputs):
    with torch.no_grad():
        return model(**inputs, use_cache=False).logits


@pytest.mark.slow
@pytest.mark.parametrize("how", ["module", "function", "layer"])
@pytest.mark.parametrize("first", ["masked", "intact"])
def test_masks_of_compiled_models_have_their_effect(how, first):
    model = deepcopy(zoo.tiny("llama-grouped"))
    inputs = {"input_ids": torch.arange(5, 14)[None]}
    mask = hr.head_mask(model, [(hr.attention_sites(model)[0].kind, 0, 0)])
    intact = logits(model, inputs)
    with hr.mask_heads(model, mask):
        masked = logits(model, inputs)
    compiled = model
    if how == "module":
        model.compile(backend="aot_eager")
    elif how == "function":
        compiled = torch.compile(model, backend="aot_eager")
    else:
        model.model.layers[0] = torch.compile(model.model.layers[0], backend="aot_eager")
    if first == "intact":
        torch.testing.assert_close(logits(compiled, inputs), intact)
    for _ in range(2):
        with hr.mask_heads(compiled, mask):
            torch.testing.assert_close(logits(compiled, inputs), masked)
        torch.testing.assert_close(logits(compiled, inputs), intact)
    effects = hr.ablate(compiled, tokens_of("llama-grouped"), corpus(6), n_resamples=0)
    plain = hr.ablate(deepcopy(zoo.tiny("llama-grouped")), tokens_of("llama-grouped"), corpus(6), n_resamples=0)
    np.testing.assert_allclose(effects.to_numpy(float), plain.to_numpy(float), rtol=1e-5, atol=1e-6)


# copies
def test_a_copy_made_within_a_block_is_intact(model):
    inputs = {"input_ids": torch.arange(5, 14)[None]}
    intact = model(**inputs).logits
    with hr.mask_heads(model, hr.head_mask(model, [("enc-self", 0, 0)])):
        copy = deepcopy(model)
        assert not torch.equal(model(**inputs).logits, intact)
    assert torch.equal(copy(**inputs).logits, intact)
    with hr.capture_attention(model, lambda *_: None):
        copy = deepcopy(model)
    assert copy.config._attn_implementation == model.config._attn_implementation == "sdpa"
    assert type(copy.config._attn_implementation) is str
    assert torch.equal(copy(**inputs).logits, intact)


@pytest.fixture
def two_processes():
    """A group of two processes, of which this is the first, and the other answers nothing."""
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("two_processes")
def test_weights_spread_over_processes_are_refused(model):
    mesh = torch.distributed.init_device_mesh("cpu", (2,))
    query = model.base_model.encoder.layer[0].attention.self.query
    query.weight = torch.nn.Parameter(torch.distributed.tensor.distribute_tensor(query.weight.data, mesh))
    message = "the weights of BertForMaskedLM .*: got a DTensor for bert.encoder.layer.0.attention.self.query.weight; "
    for measure in (scored, lambda model: hr.ablate(model, tokens_of("bert"), corpus(4), n_resamples=0)):
        with pytest.raises(ValueError, match=message):
            measure(model)
    with pytest.raises(ValueError, match=message):
        hr.attention_sites(model)


@pytest.mark.usefixtures("two_processes")
@pytest.mark.parametrize("measure", [scored, hr.attention_sites, hr.copying], ids=["score", "sites", "copying"])
def test_weights_that_fsdp_gathers_are_refused(model, measure):
    fully_shard(model.base_model.encoder.layer[0], mesh=torch.distributed.init_device_mesh("cpu", (2,)))
    with pytest.raises(ValueError, match="BertForMaskedLM.*: got FSDP in bert.encoder.layer.0;.* try one process"):
        measure(model)


OTHER_PROCESS = """
import os, sys
import headroles as hr
from headroles.models.identity.of_model import identity
print(identity(*hr.load(sys.argv[1])))
"""


@pytest.mark.slow
def test_another_process_and_another_folder_give_the_same_identity(tmp_path):
    hr.save(zoo.tiny("marian"), tokens_of("marian"), tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "moved")
    expected = identity(*hr.load(tmp_path / "one"))
    given = [sys.executable, "-c", OTHER_PROCESS, str(tmp_path / "moved")]
    surroundings = {"HF_HUB_OFFLINE": "0", "PYTHONHASHSEED": "7"}
    done = subprocess.run(given, env=os.environ | surroundings, capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == expected
