"""Layers that reuse the keys and values of earlier ones: what a replay leaves out, a later layer misses."""

from __future__ import annotations

import collections

import architectures
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers.close import close
from helpers.sweeps import swept

import headroles as hr
from headroles.ablation import forward_cache
from headroles.models.batching import Batch
from headroles.models.head_model import HeadModel
from headroles.testing.case import Case

NAMES = ["gemma3n, shared keys", "gemma4, shared keys"]  # layers 2 and 3 read what 0 and 1 write


def losses(model, corpus, silenced=(), replaced=None):
    """The loss of each sentence in a plain loop, with the input of output projections changed by hand.

    `silenced`: layer -> heads whose slice is zero; `replaced`: what stands there instead, layer -> [heads, size].
    """
    values = []
    for sentence in corpus:
        ids = torch.tensor([[int(word) for word in sentence.text.split()]])
        hooks = []
        for layer, head in silenced:
            attention = model.model.layers[layer].self_attn

            def change(_, args, layer=layer, head=head, size=attention.head_dim):
                z = args[0].clone()
                new = 0.0 if replaced is None else replaced[layer][head]
                z[..., head * size : (head + 1) * size] = new
                return (z,)

            hooks.append(attention.o_proj.register_forward_pre_hook(change))
        with torch.no_grad():
            logits = model(input_ids=ids, use_cache=False).logits[0]
        for hook in hooks:
            hook.remove()
        values.append(F.cross_entropy(logits[:-1], ids[0, 1:], reduction="sum"))
    return float(torch.stack(values).sum()) / sum(len(sentence.text.split()) - 1 for sentence in corpus)


@pytest.fixture(scope="module", params=NAMES)
def case(request):
    return Case(architectures.build(request.param))


SETS = {
    "below": [("dec-self", 1, 0)],  # a layer that writes keys and values
    "first": [("dec-self", 0, 3)],
    "above": [("dec-self", 3, 1)],  # a layer that reads them
    "reader": [("dec-self", 2, 2)],
    "both": [("dec-self", 1, 2), ("dec-self", 3, 0), ("dec-self", 2, 3)],
}


@pytest.mark.parametrize("size", [4, 3])  # Gemma 3n has four streams: a batch of four may be taken for them
def test_effects_are_those_of_a_plain_loop(case, size):
    corpus = case.corpus[:size]
    table = hr.ablate(case.model, case.tokenizer, corpus, sets=SETS, n_resamples=0)
    intact = losses(case.model, corpus)
    expected = [losses(case.model, corpus, [place[1:] for place in places]) - intact for places in SETS.values()]
    assert np.abs(expected).min() > 1e-4
    close(table["ablation[loss]"], expected, size=intact)


def test_effects_by_means_are_those_of_a_plain_loop(case):
    """The mean output of a head over the tokens of the corpus takes its place."""
    outputs = collections.defaultdict(list)
    hooks = [
        layer.self_attn.o_proj.register_forward_pre_hook(lambda _, args, i=i: outputs[i].append(args[0][0]))
        for i, layer in enumerate(case.model.model.layers)
    ]
    intact = losses(case.model, case.corpus)
    for hook in hooks:
        hook.remove()
    means = {layer: torch.cat(rows).mean(0).view(4, -1) for layer, rows in outputs.items()}
    table = hr.ablate(case.model, case.tokenizer, case.corpus, sets=SETS, replacement="mean", n_resamples=0)
    expected = [
        losses(case.model, case.corpus, [place[1:] for place in places], means) - intact for places in SETS.values()
    ]
    close(table["ablation[loss]"], expected, size=intact)


def test_many_variants_at_once_are_those_one_by_one(case):
    one, many = (swept(case.model, case.tokenizer, case.corpus, variants_at_once=size) for size in (1, 8))
    close(one, many, size=losses(case.model, case.corpus))


def test_a_curve_is_that_of_a_plain_loop(case):
    """Heads are masked one after the other, from the top: at first the lower half of the model is replayed."""
    order = [("dec-self", layer, head) for layer in (3, 2) for head in (0, 1)]
    replay = forward_cache.Replay
    handle = HeadModel.of(case.model, case.tokenizer)
    (batch,) = handle.batches(handle.tokenised(case.corpus[:3]), max_tokens=4096)
    with handle.evaluating():
        kept = replay(handle, batch)
        for count in range(1, len(order) + 1):
            gates = hr.head_mask(case.model, order[:count])[None]
            output, whole = kept.run(gates)
            with torch.no_grad(), hr.mask_heads(case.model, gates[0]):
                expected = case.model(**whole.inputs, use_cache=False)
            mask = batch.source.attention_mask
            close(output.logits[mask], expected.logits[mask])
    assert isinstance(batch, Batch)
    assert len(kept.kept) > len(kept.layers)


def test_what_a_layer_writes_is_repeated_for_each_variant(case):
    handle = HeadModel.of(case.model, case.tokenizer)
    (batch,) = handle.batches(handle.tokenised(case.corpus[:3]), max_tokens=4096)
    with handle.evaluating():
        kept = forward_cache.Replay(handle, batch)
    writers = [layer for layer in kept.layers if kept.written.get(layer)]
    assert writers == kept.layers[:2]
    (entries,) = kept.written[writers[0]].values()
    (states,) = entries.values()
    shared, size = collections.UserDict(), len(batch.numbers)
    output, written = kept.kept[writers[0]], kept.written[writers[0]]
    forward_cache._replayed(output, written, 0, 3, size, shared_kv_states=shared)
    ((keys, values),) = shared.values()
    for repeated, once in zip((keys, values), states, strict=True):
        assert torch.equal(repeated, torch.cat([once] * 3))


def test_a_layer_may_return_a_list():
    """GPT's layers do: a batch of several variants met the states of one."""
    case = Case(hr.tiny_model("openai-gpt"))
    one, many = (swept(case.model, case.tokenizer, case.corpus, variants_at_once=size) for size in (1, 8))
    close(one, many, size=10)
