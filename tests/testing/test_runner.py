"""`check_model` says yes, no and not asked, of whole models and of parts."""

from __future__ import annotations

import json

import pytest
import torch
import transformers
from helpers.checking import results
from helpers.commands import run
from helpers.traces import _traces
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

import headroles as hr
from headroles.testing import CHECKS
from headroles.testing.case import TEXTS
from headroles.testing.tiny_models import tiny_model

# --- results ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["llama, grouped", "bart", "llava", "gemma3n, shared keys", "gemma4, shared keys", "gemma4_text"]
)
def test_check_model_of_text_models_all_yes(name):
    found = results(name)
    assert list(found.index) == list(CHECKS)
    assert list(found) == ["area", "holds", "off", "allowed", "why"]
    assert set(found["holds"]) == {"yes"}
    assert (found["off"] <= found["allowed"]).all()
    assert set(found["why"]) == {""}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "options", "refused"),
    [
        ("doge", {}, ["cut"]),
        ("swin", {"image_size": 32, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 4], "window_size": 4}, ["cut"]),
    ],
)
def test_check_model_of_models_with_biases_in_masks_nothing_is_wrong(kind, options, refused):
    found = hr.check_model(hr.tiny_model(kind, **options))
    assert "no" not in set(found["holds"])
    assert list(found.index[found["holds"] == "refused"]) == refused


def test_check_model_of_an_image_model_not_asked():
    found = results("vit")
    asked = found["holds"] != "not asked"
    assert set(found["holds"][asked]) == {"yes"}
    reasons = dict.fromkeys(["confidence", "effects", "loss", "chosen"], "ViTForImageClassification reads no text")
    reasons |= {"generation": "ViTForImageClassification does not generate"}
    assert found["why"][~asked].to_dict() == reasons


def test_check_model_refused_has_the_reason():
    found = results("olmo2")
    assert found["holds"].to_dict() == dict.fromkeys(CHECKS, "yes") | {"cut": "refused"}
    assert found["why"]["cut"] == (
        "heads cannot be removed from Olmo2ForCausalLM; mask them instead: heads cannot be removed from "
        "model.layers.0.self_attn: row 0 of its q_proj belongs to 4 heads (as in a norm over several heads)"
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("clip", "CLIPModel has no table of token embeddings; try a submodel, such as hr.submodel(model, 'text')"),
        (
            "diffllama",
            "model.layers.0.self_attn in DiffLlamaForCausalLM attends 2 times before its output projection, "
            "which mixes the outputs of its heads; such attention is not supported",
        ),
        (
            "t5gemma2",
            "model.decoder.layers.0.self_attn in T5Gemma2ForConditionalGeneration attends from 5 queries to 12 self "
            "and cross keys in one call; such mixed attention is not supported",
        ),
    ],
)
def test_check_model_without_sites_all_refused(name, message):
    found = results(name)
    assert set(found["holds"]) == {"refused"}
    assert set(found["why"]) == {message}


def test_check_model_of_a_failing_model_no_with_the_error(monkeypatch):
    model = tiny_model("llama")
    monkeypatch.setattr(model.lm_head, "forward", lambda _: (_ for _ in ()).throw(ArithmeticError("on purpose")))
    found = hr.check_model(model)
    assert set(found["holds"]) == {"no"}
    assert set(found["why"]) == {"ArithmeticError: on purpose"}


@pytest.mark.slow
def test_check_model_with_inputs_leaves_the_model_unchanged(tmp_path):
    tiny_model("gemma3_text").save_pretrained(tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16).train()
    before, weights = _traces(model), {name: one.clone() for name, one in model.state_dict().items()}
    ids = torch.randint(4, 90, (2, 9), generator=torch.Generator().manual_seed(5))
    assert set(hr.check_model(model, {"input_ids": ids})["holds"]) == {"yes"}
    assert _traces(model) == before
    assert all(torch.equal(one, weights[name]) for name, one in model.state_dict().items())


# --- commands --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_check_model_command_for_a_folder_and_a_config(tmp_path):
    tiny_model("siglip").save_pretrained(tmp_path / "model")
    told = run("check-model", tmp_path / "model", "--submodel", "text")
    assert told.code == 0
    assert "SiglipTextModel: which checks hold" in told.out
    assert "SiglipTextModel does not generate" in told.out
    (tmp_path / "config.json").write_text(json.dumps(transformers.OPTConfig().to_dict()))
    told = run("check-model", "--config", tmp_path / "config.json")
    assert told.code == 0
    assert "OPTForCausalLM: which checks hold" in told.out
    assert told.out.count(" yes ") == len(CHECKS)


def test_check_model_command_without_a_model_or_with_two_fails(tmp_path):
    for given in ([], ["one", "--config", tmp_path / "config.json"]):
        told = run("check-model", *given)
        assert (told.code, told.out) == (2, "")
        assert told.err == "headroles: give either a model or --config CONFIG.json, from which a tiny model is made\n"
    told = run("check-model", "--config", tmp_path / "none.json")
    assert told.code == 2
    assert told.err.startswith(f"headroles: could not read the config '{tmp_path / 'none.json'}': ")
    assert told.err.count("\n") == 1


ASKED = ["confidence", "effects", "loss", "chosen"]


def own_tokenizer(template):
    """Byte-level BPE with special tokens, whose ids are not those of numbers written as words."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    names = ["<pad>", "<s>", "</s>"]
    trainer = trainers.BpeTrainer(vocab_size=300, show_progress=False, initial_alphabet=alphabet, special_tokens=names)
    inner.train_from_iterator(TEXTS, trainer)
    inner.post_processor = processors.TemplateProcessing(single=template, special_tokens=[("<s>", 1), ("</s>", 2)])
    roles = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, **roles)


@pytest.fixture(
    params=[("llama", "<s> $A"), ("flaubert", "<s> $A </s>"), ("marian", "$A </s>")], ids=lambda case: case[0]
)
def loaded(request, tmp_path):
    kind, template = request.param
    tokenizer = own_tokenizer(template)
    options = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    options |= {"decoder_start_token_id": 0, "decoder_vocab_size": len(tokenizer)} if kind == "marian" else {}
    model = hr.tiny_model(kind, vocab_size=len(tokenizer), **options)
    hr.save(model, tokenizer, tmp_path)
    return hr.load(tmp_path)[0]


@pytest.mark.slow
def test_checks_of_a_folder_use_its_tokenizer(loaded):
    before = {name: value.clone() for name, value in loaded.state_dict().items()}
    flags = [parameter.requires_grad for parameter in loaded.parameters()]
    table = hr.check_model(loaded)
    assert table.loc[ASKED, "holds"].to_dict() == dict.fromkeys(ASKED, "yes"), table.loc[ASKED, "why"].to_dict()
    assert "no" not in set(table["holds"])
    assert all(torch.equal(value, before[name]) for name, value in loaded.state_dict().items())
    assert [parameter.requires_grad for parameter in loaded.parameters()] == flags
    assert all(parameter.grad is None for parameter in loaded.parameters())
