"""One forward discovers the attention sites of every architecture."""

from __future__ import annotations

import warnings
from copy import deepcopy

import pytest
import torch
from helpers import zoo
from helpers.close import close
from helpers.letters import tokens_of
from helpers.silenced import silenced
from helpers.trainings import wrapped
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

import headroles as hr
from headroles.models.batching import one_example_per_batch


def test_sites_are_discovered_again_after_heads_are_removed():
    model = zoo.tiny("bert")
    assert hr.attention_sites(model)[0].heads == 4
    attention = model.bert.encoder.layer[0].attention
    for part in (attention.self.query, attention.self.key, attention.self.value):
        part.weight, part.bias = torch.nn.Parameter(part.weight[:24]), torch.nn.Parameter(part.bias[:24])
    attention.output.dense.weight = torch.nn.Parameter(attention.output.dense.weight[:, :24])
    assert [site.heads for site in hr.attention_sites(model)] == [3, 4]


@pytest.mark.parametrize("name", ["bert", "marian", "llama"])
def test_transformers_still_ignores_head_masks(name):
    """The reason why we refuse them: when this fails, transformers has changed its mind."""
    model = zoo.tiny(name)
    given = zoo.inputs(model)
    with torch.no_grad():
        plain = model(**given).logits
        masked = model(**given, head_mask=torch.zeros(2, 4)).logits
    assert torch.equal(plain, masked)


TEXTS = hr.Corpus.of(["a b c d", "b d a", "c c a b d"])
PAIRS = hr.Corpus("pairs", tuple(hr.Sentence(text.text, target=text) for text in TEXTS))


def dynamic(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated, and in use
        linear = {torch.nn.Linear}
        return torch.ao.quantization.quantize_dynamic(deepcopy(zoo.tiny(name)), linear, dtype=torch.qint8)


def torchao(name):
    quantization = pytest.importorskip("torchao.quantization")
    model = deepcopy(zoo.tiny(name))
    quantization.quantize_(model, quantization.Int8WeightOnlyConfig())
    return model


def bitsandbytes(name, folder):
    """Of 8 bits, by transformers; those of 4 need layers that are wider than a toy's."""
    pytest.importorskip("bitsandbytes")
    zoo.tiny(name).save_pretrained(folder)
    config = BitsAndBytesConfig(load_in_8bit=True)
    return AutoModelForCausalLM.from_pretrained(folder, quantization_config=config, device_map="cpu")


def adapted(name, *targets):
    return wrapped(*targets, base=zoo.tiny(name)).eval()


@torch.no_grad()
def plain_loss(model, tokenizer):
    """The mean cross-entropy of all next tokens by transformers alone."""
    losses = []
    for text in TEXTS:
        ids = tokenizer(text.text, return_tensors="pt")["input_ids"]
        logits = model(input_ids=ids).logits
        losses.append(torch.nn.functional.cross_entropy(logits[0, :-1], ids[0, 1:], reduction="none"))
    return float(torch.cat(losses).mean())


@pytest.fixture(params=[dynamic, torchao, bitsandbytes], scope="module")
def quantised(request, tmp_path_factory):
    """A quantised model and its tokenizer."""
    folder = [tmp_path_factory.mktemp("eight")] if request.param is bitsandbytes else []
    return request.param("llama-grouped", *folder), tokens_of("llama-grouped")


def test_a_quantised_model_is_scored_and_ablated(quantised):
    """Each text alone and each head alone: a dynamic scale depends on all numbers of a batch."""
    model, tokenizer = quantised
    by_weights_alone = "torchao" in type(model.model.layers[0].self_attn.o_proj.weight).__module__
    assert one_example_per_batch(model) == (not by_weights_alone)
    assert not one_example_per_batch(zoo.tiny("llama-grouped"))
    assert hr.score(model, tokenizer, TEXTS, ["confidence"], n_resamples=0)["confidence"].notna().all()
    intact = plain_loss(model, tokenizer)
    options = {"n_resamples": 0}
    close(hr.evaluate(model, tokenizer, TEXTS, ["loss"], **options)["value"].iloc[0], intact)
    table = hr.ablate(model, tokenizer, TEXTS, **options)
    for layer, head in ((0, 0), (1, 3)):
        columns = slice(head * 8, (head + 1) * 8)
        with silenced(model.model.layers[layer].self_attn.o_proj, columns):
            expected = plain_loss(model, tokenizer) - intact
        close(table.loc[("dec-self", layer, head), "ablation[loss]"], expected, size=intact)


def test_what_a_quantised_model_cannot_is_one_sentence(quantised, tmp_path):
    model, tokenizer = quantised
    gradient = r"^no gradient passes through the weights of LlamaForCausalLM: got [\w. ]+, which is quantised"
    weight = r"o_proj in LlamaForCausalLM is quantised; try without quantization_config$"
    for act, message in (
        (lambda: hr.score(model, tokenizer, TEXTS, ["importance"], n_resamples=0), gradient),
        (lambda: hr.score(model, tokenizer, TEXTS, ["relevance"], n_resamples=0), gradient),
        (lambda: hr.score(model, tokenizer, TEXTS, ["direct"], n_resamples=0), gradient),
        (lambda: hr.prune(model, tokenizer, TEXTS, "importance", keep=4), gradient),
        (lambda: hr.train(model, tokenizer, PAIRS, tmp_path / "trained"), gradient),
        (lambda: hr.score(model, tokenizer, TEXTS, ["confidence"], weights="norm", n_resamples=0), weight),
        (lambda: hr.scores.copying(model), weight),
        (lambda: hr.zero_heads(model, "L0H0"), weight),
        (lambda: hr.remove_heads(model, "L0H0"), weight),
    ):
        with pytest.raises(ValueError, match=message):
            act()
    if getattr(model, "is_quantized", False):
        hr.save(model, tokenizer, tmp_path / "saved")  # with its 8 bits
        assert plain_loss(hr.load(tmp_path / "saved")[0], tokenizer) == plain_loss(model, tokenizer)
        return
    with pytest.raises(OSError, match="LlamaForCausalLM was quantised in memory, which transformers does not save"):
        hr.save(model, tokenizer, tmp_path / "saved")


@pytest.mark.parametrize(("name", "target"), [("bert", "dense"), ("llama-grouped", "o_proj"), ("marian", "out_proj")])
def test_heads_are_not_removed_beside_an_adapter_but_from_the_merged_model(name, target):
    model = adapted(name, target)
    inner, head = model.get_base_model(), hr.models.head_index(model.get_base_model())[0]
    message = r"has an adapter in addition to its weight; try the model that merge_and_unload\(\) returns$"
    for act in (hr.remove_heads, hr.zero_heads):
        with pytest.raises(ValueError, match=message):
            act(inner, [head])
    with pytest.raises(ValueError, match=message):
        hr.score(inner, tokens_of(name), TEXTS, ["confidence"], weights="norm", n_resamples=0)
    with torch.no_grad(), hr.mask_heads(inner, hr.head_mask(inner, [head])):
        expected = inner(**zoo.inputs(inner))[0]
    merged = hr.remove_heads(model.merge_and_unload(), [head])
    with torch.no_grad():
        close(merged(**zoo.inputs(merged))[0], expected)


def test_adapters_beside_the_projection_are_removed_with_their_heads():
    inner = adapted("llama-grouped", "q_proj", "v_proj").get_base_model()
    heads = [("dec-self", 0, 0), ("dec-self", 0, 1)]  # a whole group
    with torch.no_grad(), hr.mask_heads(inner, hr.head_mask(inner, heads)):
        expected = inner(**zoo.inputs(inner))[0]
    hr.remove_heads(inner, heads)
    with torch.no_grad():
        close(inner(**zoo.inputs(inner))[0], expected)


def test_a_folder_is_not_written_from_which_adapters_could_not_be_loaded(tmp_path):
    """transformers saves `q_proj.base_layer.weight`, and loads a random `q_proj` from it."""
    model, tokenizer = adapted("llama-grouped", "q_proj", "v_proj"), tokens_of("llama-grouped")
    inner, folder = model.get_base_model(), tmp_path / "new"
    message = r"LlamaForCausalLM has adapters of PEFT in addition to its weights, .*; try the model that merge"
    with pytest.raises(OSError, match=message):
        hr.save(inner, tokenizer, folder)
    assert not folder.exists()
    inputs = tokenizer("a b c", return_tensors="pt")
    with torch.no_grad():
        expected = model(**inputs).logits
        hr.save(model.merge_and_unload(), tokenizer, folder)
        close(hr.load(folder)[0](**inputs).logits, expected)


def test_the_direct_path_leads_through_an_adapter():
    model, tokenizer = adapted("llama-grouped", "o_proj", "q_proj"), tokens_of("llama-grouped")
    table = hr.score(model.get_base_model(), tokenizer, TEXTS, ["direct"], n_resamples=0)
    merged = hr.score(model.merge_and_unload(), tokenizer, TEXTS, ["direct"], n_resamples=0)
    close(table.iloc[:, 0].to_numpy(), merged.iloc[:, 0].to_numpy(), size=1)
