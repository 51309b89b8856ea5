"""What exports refuse: the call, and the subject and the value that the message names."""

from __future__ import annotations

import pandas as pd
import pytest
import torch
from helpers.budgets import budget, given
from helpers.llama_cpp import byte_level, tiny
from peft import LoraConfig, inject_adapter_in_model
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import headroles as hr

HEADS = [("cross", 0, 0), ("enc-self", 0, 1)]
INDEX = pd.MultiIndex.from_tuples(HEADS, names=["kind", "layer", "head"])
DECODER = pd.MultiIndex.from_tuples([("dec-self", 0, 0), ("dec-self", 2, 0)], names=["kind", "layer", "head"])
LIST = pd.DataFrame({"chosen": [1.0, 1.0], "score": [0.5, 0.2]}, INDEX)
CALLS = {
    "a form": (lambda place: hr.export_budget(budget(), place, "csv"), "form must be one of duo, .*, got 'csv'"),
    "uneven layers": (lambda place: hr.export_budget(budget().iloc[1:], place), "equally many .* got 1, 2;"),
    "no budget": (lambda place: hr.export_budget(hr.ablate(*given(), n_resamples=0), place), "got a DataFrame"),
    "a list in no form": (lambda place: hr.export_heads(LIST, place, "xml"), "form must be one of json, .*, got 'xml'"),
    "no such column": (lambda place: hr.export_heads(LIST, place, column="x"), "column must be one of chosen, score"),
    "a score without a number": (lambda place: hr.export_heads(LIST, place, column="score"), "or give count=, got 0.5"),
    "another kind in a cache": (
        lambda place: hr.export_heads(LIST, place, "duo"), "form 'duo' must be dec-self heads, got cross heads"),
    "a layer without heads": (
        lambda place: hr.export_heads(LIST.set_axis(DECODER), place, "duo"), "equally many for form='duo', got a pr"),
    "groups of a pruned layer": (
        lambda place: hr.export_heads(
            hr.score(uneven("llama", num_hidden_layers=1), byte_level(), hr.Corpus.of(["a b c"]), "confidence"),
            place, "duo", column="confidence", count=1), "many for form='duo', got a pr"),
    "other kinds": (lambda place: hr.export_heads(LIST, place, "openai"), "must be cross heads, got enc-self heads"),
}  # fmt: skip


@pytest.mark.parametrize("case", CALLS)
def test_wrong_arguments_are_refused(case, tmp_path):
    call, message = CALLS[case]
    with pytest.raises(ValueError, match=message):
        call(tmp_path)
    assert not [*tmp_path.iterdir()]


ONES = pre_tokenizers.Sequence([pre_tokenizers.Split("1", "isolated"), pre_tokenizers.ByteLevel()])


def split(model=None, *, normalizer=None, way=None):
    """A tokenizer whose parts llama.cpp does not have."""
    backend = Tokenizer(model or models.BPE({"a": 0, "b": 1}, []))
    backend.normalizer, backend.pre_tokenizer = normalizer, way or pre_tokenizers.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def adapted():
    return inject_adapter_in_model(LoraConfig(target_modules=["q_proj"]), tiny(byte_level()))


def dynamic():
    return tiny(byte_level(), rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0})


class Whole(torch.nn.Linear):
    """A linear map of whole numbers."""

    def __init__(self, *sizes):
        super().__init__(*sizes, bias=False)
        self.weight = torch.nn.Parameter(self.weight.data.to(torch.int8), requires_grad=False)

    def forward(self, inputs):
        return torch.nn.functional.linear(inputs, self.weight.float())


def quantised():
    model = tiny(byte_level())
    model.model.layers[1].mlp.up_proj = Whole(64, 96)
    return model


def uneven(name, **options):
    return hr.remove_heads(tiny(byte_level(), name, **options), "L0H0,L0H1")


EXPORTS = {
    "a form": (lambda: tiny(byte_level()), byte_level, {"form": "onnx"}, "form must be one of gguf, got 'onnx'"),
    "a precision": (lambda: tiny(byte_level()), byte_level, {"precision": "q4"}, "precision must be one of .*'q4'"),
    "an encoder": (lambda: hr.tiny_model("bert"), byte_level, {}, r"of llama, .*, got BertForMaskedLM \(bert\)"),
    "an encoder-decoder": (lambda: hr.tiny_model("marian"), byte_level, {}, "got MarianMTModel"),
    "experts": (lambda: hr.tiny_model("mixtral"), byte_level, {}, "got MixtralForCausalLM"),
    "no output": (lambda: tiny(byte_level()).model, byte_level, {}, "got LlamaModel"),
    "an activation": (lambda: tiny(byte_level(), hidden_act="gelu"), byte_level, {}, "with silu, .* differs"),
    "rotations": (dynamic, byte_level, {}, "got dynamic rotations of 16 of 16 features"),
    "layers": (lambda: uneven("qwen3"), byte_level, {}, "equally many heads in each layer .* got dec-self 3 layers"),
    "an adapter": (adapted, byte_level, {}, "q_proj in LlamaForCausalLM has an adapter .* merge_and_unload"),
    "quantised": (quantised, byte_level, {}, "up_proj in LlamaForCausalLM is quantised"),
    "another tokenizer": (lambda: tiny(byte_level(), vocab_size=40), byte_level, {}, "tokenizer does not fit"),
    "pieces": (lambda: tiny(split()), lambda: split(models.WordLevel({"a": 0}, "a")), {}, "got .* with WordLevel"),
    "lower case": (lambda: tiny(split()), lambda: split(normalizer=normalizers.Lowercase()), {}, "normalizer of Tok"),
    "words": (lambda: tiny(split()), lambda: split(way=ONES), {}, "is none of gpt-2, smollm"),
    "letters": (lambda: tiny(split()), lambda: split(way=pre_tokenizers.Whitespace()), {}, "others in Tok"),
}  # fmt: skip


@pytest.mark.parametrize("case", EXPORTS)
def test_models_that_llama_cpp_does_not_compute_are_refused(case, tmp_path):
    model, tokenizer, options, message = EXPORTS[case]
    with pytest.raises(ValueError, match=message):
        hr.export_model(model(), tokenizer(), tmp_path / "model.gguf", **options)
    assert not [*tmp_path.iterdir()]


def test_a_file_that_exists_is_left_as_it_is(tmp_path):
    (tmp_path / "model.gguf").write_text("mine")
    with pytest.raises(FileExistsError, match="model.gguf exists; name another file"):
        hr.export_model(tiny(byte_level()), byte_level(), tmp_path / "model.gguf")
    assert (tmp_path / "model.gguf").read_text() == "mine"


def test_a_missing_package_is_named_before_the_work(tmp_path, monkeypatch):
    monkeypatch.setattr("headroles.exports.llama_cpp.find_spec", lambda _: None)
    with pytest.raises(ModuleNotFoundError, match=r"needs the package gguf.*'\.\[llamacpp\]'"):
        hr.export_model(tiny(byte_level()), byte_level(), tmp_path / "model.gguf")
