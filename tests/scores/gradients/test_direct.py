"""Direct logit attribution: planted writers, slow loops over the weights, and models without an unembedding."""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np
import pytest
import torch
from helpers import zoo
from helpers.close import MANY, close
from helpers.letters import batches_of, corpus, tokens_of
from helpers.worded import of_words
from transformers import GPT2Config, GPT2LMHeadModel

import headroles as hr
from headroles.data.probes import CLASSES
from headroles.models.attention_hooks import without_cache
from headroles.scores.gradients.direct import Difference, Direct


def read(model, tokenizer, sentences, names):
    """For each sentence the ids, the inputs of some modules, and the logits."""
    for batch in batches_of(model, tokenizer, sentences, max_tokens=1):
        inputs: dict[str, torch.Tensor] = {}
        hooks = [model.get_submodule(name).register_forward_pre_hook(_kept(inputs, name)) for name in names]
        with torch.no_grad():
            logits = model(**batch.inputs, **without_cache(model)).logits[0].double()
        for hook in hooks:
            hook.remove()
        yield batch, inputs, logits


def _kept(inputs, name):
    return lambda _, args: inputs.__setitem__(name, args[0][0].detach().double())


def frozen(vector, at, norm, rms):
    """A vector through a norm with the scale that it has at `at`."""
    if rms:
        scale = (at.square().mean() + norm.variance_epsilon).rsqrt()
        return vector * scale * norm.weight.detach().double()
    scale = (at.var(unbiased=False) + norm.eps).rsqrt()
    return (vector - vector.mean()) * scale * norm.weight.detach().double()


PRE_NORM = {  # output projection of a layer, final norm, whether it is RMS, whether the projection is a Conv1D
    "gpt2": ("transformer.h.{}.attn.c_proj", "transformer.ln_f", False),
    "llama-grouped": ("model.layers.{}.self_attn.o_proj", "model.norm", True),
}


@pytest.mark.parametrize("name", PRE_NORM)
def test_every_contribution_is_that_of_slow_loops(name):
    model, tokenizer, (path, last, rms) = zoo.tiny(name), tokens_of(name), PRE_NORM[name]
    outs, norm = [path.format(layer) for layer in (0, 1)], model.get_submodule(last)
    unembedding = model.get_output_embeddings().weight.detach().double()
    sums, steps, sizes = torch.zeros(8, dtype=torch.float64), 0, torch.zeros(8, dtype=torch.float64)
    for batch, inputs, _ in read(model, tokenizer, corpus(5), [*outs, last]):
        ids = batch.source.ids[0].tolist()
        for step, token in enumerate(ids[1:]):
            steps += 1
            for layer, out in enumerate(outs):
                weight = model.get_submodule(out).weight.detach().double()
                weight = weight.mT if name == "gpt2" else weight
                for head in range(4):
                    part = slice(8 * head, 8 * head + 8)
                    written = weight[:, part] @ inputs[out][step, part]
                    value = frozen(written, inputs[last][step], norm, rms) @ unembedding[token]
                    sums[4 * layer + head] += value
                    sizes[4 * layer + head] += value.abs()
    found = hr.score(model, tokenizer, corpus(5), "direct", n_resamples=20)
    close(found["direct[reference]"], sums / steps, size=(sizes / steps).max(), operations=MANY)
    close(found["direct[reference].size"], sizes / steps, operations=MANY)
    assert (found["direct[reference].low"] <= found["direct[reference].high"]).all()


def test_in_a_post_norm_decoder_the_path_leads_through_the_norms():
    model, tokenizer = zoo.tiny("marian"), tokens_of("marian")
    layer = model.model.decoder.layers[1]
    names = [f"model.decoder.layers.1.{part}" for part in
             ("encoder_attn.out_proj", "encoder_attn_layer_norm", "final_layer_norm")]  # fmt: skip
    unembedding = model.get_output_embeddings().weight.detach().double()
    weight, sums, steps = layer.encoder_attn.out_proj.weight.detach().double(), torch.zeros(4).double(), 0
    for batch, inputs, _ in read(model, tokenizer, corpus(3), names):
        for step, token in enumerate(batch.labels[0].tolist()):
            if token >= 0:
                steps += 1
                for head in range(4):
                    part = slice(8 * head, 8 * head + 8)
                    y = weight[:, part] @ inputs[names[0]][step, part]
                    y = frozen(y, inputs[names[1]][step], layer.encoder_attn_layer_norm, False)
                    y = frozen(y, inputs[names[2]][step], layer.final_layer_norm, False)
                    sums[head] += y @ unembedding[token]
    found = hr.score(model, tokenizer, corpus(3), "direct", n_resamples=0)["direct[reference]"]
    close(found.loc[("cross", 1)], sums / steps, operations=MANY)
    assert found.loc["enc-self"].isna().all()  # an encoder has no direct path to the logits


# --- planted writers -------------------------------------------------------------------------------------------------


def ordered_model():
    """A GPT-2 without MLPs: of three heads one writes the next word of its class, one the same word, one nothing."""
    known = ["<s>", *CLASSES["days"], *CLASSES["months"], "to"]
    width = 96
    tokenizer = of_words(known, "<s>")
    config = GPT2Config(vocab_size=len(known), n_embd=width, n_layer=1, n_head=3, n_positions=16, n_inner=8,
                        bos_token_id=0, eos_token_id=0)  # fmt: skip
    model = GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.fill_(float(name.endswith(("ln_1.weight", "ln_f.weight"))))
        for number in range(len(known)):  # a feature and its negative: the mean is 0
            model.transformer.wte.weight[number, 2 * number : 2 * number + 2] = torch.tensor([1.0, -1.0])
        attention = model.transformer.h[0].attn
        for number in range(len(known)):
            for head, written in ((0, number + 1), (1, number)):
                place = 32 * head + number
                attention.c_attn.weight[2 * number, 2 * width + place] = 1.0  # all attention is uniform
                if written < len(known):
                    attention.c_proj.weight[place, 2 * written : 2 * written + 2] = torch.tensor([1.0, -1.0])
    return model, tokenizer


def test_a_successor_head_writes_the_next_word_a_copying_head_another_and_a_mute_head_none():
    model, tokenizer = ordered_model()
    sentences = hr.ordered_words(tokenizer, 40, classes=["days", "months"])
    table = hr.score(model, tokenizer, sentences, Direct(objective=Difference()), n_resamples=100)
    successor, copying, mute = table["direct[difference]"]
    assert table["direct[difference].low"].iloc[0] > 0
    assert successor > 0 > copying
    assert mute == 0
    logits, embeddings = 0.0, 0.0
    norm, unembedding = model.transformer.ln_f, model.lm_head.weight.detach().double()
    for batch, inputs, out in read(model, tokenizer, sentences, ["transformer.h.0.ln_1", "transformer.ln_f"]):
        (sentence,) = batch.source.sentences
        direction = unembedding[sentence.right] - unembedding[list(sentence.wrong)].mean(0)
        logits += float(out[-1, sentence.right] - out[-1, list(sentence.wrong)].mean()) / len(sentences)
        at, embedding = inputs["transformer.ln_f"][-1], inputs["transformer.h.0.ln_1"][-1]
        embeddings += float(frozen(embedding, at, norm, False) @ direction) / len(sentences)
    close(successor + copying + embeddings, logits, size=abs(successor) + abs(embeddings), operations=MANY)


# --- what is refused -------------------------------------------------------------------------------------------------


def test_heads_that_nothing_reads_write_nothing():
    model = zoo.tiny("gpt2")
    hook = model.transformer.h[1].attn.register_forward_hook(lambda _, __, out: (out[0].detach(), *out[1:]))
    table = hr.score(model, tokens_of("gpt2"), corpus(3), "direct", n_resamples=0).droplevel("kind")
    hook.remove()
    assert (table.loc[1, "direct[reference].size"] == 0).all()
    assert (table.loc[0, "direct[reference].size"] > 0).all()


@pytest.mark.parametrize("kind", ["gpt_oss", "gemma2", "mistral"])  # sinks as parameters; a softcap; a window; groups
def test_models_of_today_by_hand(kind):
    """Outputs of heads times their projection, the scales of norms, the unembedding and the share a cap leaves."""
    model, text, ratios = hr.tiny_model(kind, vocab_size=64), corpus(4), {}
    model.set_attn_implementation("eager")  # before transformers 5.21 sdpa leaves out the softcap
    sites = hr.attention_sites(model)
    (batch,) = batches_of(model, tokens_of(kind), text, words=False, max_tokens=10**6)
    norms = {model.model.norm: "final"}
    if kind == "gemma2":
        norms |= {layer.post_attention_layernorm: number for number, layer in enumerate(model.model.layers)}
    with ExitStack() as stack, torch.no_grad():
        for norm, name in norms.items():
            hook = norm.register_forward_hook(lambda _, args, out, name=name: ratios.update({name: out / args[0]}))
            stack.callback(hook.remove)
        for site in sites:
            hook = site.out.register_forward_pre_hook(lambda _, args, key=site.key: ratios.update({key: args[0]}))
            stack.callback(hook.remove)
        logits = model(**batch.inputs).logits
        stack.callback(model.lm_head.register_forward_hook(lambda *call: ratios.update(raw=call[-1])).remove)
        model(**batch.inputs)
    following, real = batch.inputs["input_ids"][:, 1:, None], batch.inputs["attention_mask"][:, 1:].bool()
    capped = (logits / ratios["raw"])[:, :-1].gather(-1, following)[..., 0]
    words, expected = model.lm_head.weight.detach()[following[..., 0]], []
    for site in sites:
        weight = site.out.weight.detach().unflatten(1, (site.heads, site.size))
        written = torch.einsum("bthd,whd->bthw", ratios[site.key].unflatten(-1, (site.heads, site.size)), weight)
        written = written * ratios.get(site.layer, torch.ones(1))[..., None, :] * ratios["final"][..., None, :]
        direct = torch.einsum("bthw,btw->bth", written[:, :-1], words) * capped[..., None]
        expected += direct[real].mean(0).tolist()
    found = hr.score(model, tokens_of(kind), text, "direct", n_resamples=0)["direct[reference]"]
    close(found, np.array(expected), size=np.abs(expected).max(), operations=MANY)
