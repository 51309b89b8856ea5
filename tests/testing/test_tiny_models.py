"""Tiny models have a layer of each kind and the same weights each time."""

from __future__ import annotations

import re

import architectures
import pytest
import torch
import transformers
from helpers import zoo as grown
from helpers.checking import built
from helpers.messages import whole

import headroles as hr
from headroles.models.dummy_inputs import examples
from headroles.testing.tiny_models import tiny_model

READ = "input_ids, pixel_values, input_features, input_values"


@pytest.mark.parametrize("name", ["gemma3_text", "qwen3_next", "jamba"])
def test_tiny_model_has_a_layer_of_each_kind(name):
    model = built(name)
    whole_ones = type(model.config)(**architectures.OPTIONS.get(name, {}))
    assert set(model.config.layer_types) == set(whole_ones.layer_types)
    assert sum(one.numel() for one in model.parameters()) < 1_000_000


def test_tiny_model_of_a_config_is_deterministic():
    config = transformers.LlamaConfig(num_key_value_heads=8, num_attention_heads=32, num_hidden_layers=32)
    one, other = tiny_model(config), tiny_model(config)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    assert [(site.heads, site.kv_heads, site.size) for site in hr.attention_sites(one)] == [(4, 2, 16)] * 2


def test_tiny_model_unknown_architecture_raises():
    version = transformers.__version__
    message = f"transformers {version} knows no architecture 'no'; expected a model_type"
    with pytest.raises(ValueError, match=whole(message)):
        tiny_model("no")
    with pytest.raises(ValueError, match=r"^no tiny model of 'ministral': .*; try options of its config$"):
        tiny_model("ministral")


def test_submodel_by_kind_and_by_module_name():
    model = tiny_model("llava")
    text = hr.submodel(model, "text")
    assert text is model.model.language_model
    assert hr.submodel(model, "language_model") is hr.submodel(model, "model.language_model") is text
    assert hr.submodel(model, "vision") is model.model.vision_tower
    assert {site.kind for site in hr.attention_sites(text)} == {"dec-self"}
    assert {site.kind for site in hr.attention_sites(hr.submodel(model, "vision"))} == {"enc-self"}
    for given, name, message in [
        (model, "audio", "no submodel 'audio' in LlavaForConditionalGeneration; expected one of: vision "
         "(model.vision_tower), text (model.language_model)"),
        (tiny_model("bert"), "text", "no submodel 'text' in BertForMaskedLM; expected one of: none"),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match=whole(message)):
            hr.submodel(given, name)


def test_attention_sites_without_dummy_inputs_raises():
    message = "LayoutLMv3Model does not run on input_ids alone (The size of tensor a (64) must match the size of ten"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        hr.attention_sites(tiny_model("layoutlmv3"))
    message = (
        f"TimesFmModel reads 'past_values', for which headroles has no dummy input; expected one of: {READ}; try "
        f"hr.attention_sites(model, inputs) with the inputs of one small forward"
    )
    with pytest.raises(ValueError, match=whole(message)):
        examples(tiny_model("timesfm"))


def test_causal_multimodal_model():
    """Its class name does not end with CausalLM, and its labels have to be shifted all the same."""
    from headroles.models.head_model import HeadModel

    assert HeadModel(tiny_model("llava")).kinds == {"dec-self"}
    assert HeadModel(tiny_model("bart")).kinds == {"enc-self", "dec-self", "cross"}
    assert HeadModel(grown.tiny("bert")).kinds == {"enc-self"}
