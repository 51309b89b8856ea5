"""Attribution patching: gradients of masks, plain loops over layers and over heads, and paths that cancel."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import zoo
from helpers.ablations import given as ablated
from helpers.close import MANY, close
from helpers.letters import batches_of, corpus, tokens_of

import headroles as hr
from headroles.ablation.metrics import Loss
from headroles.ablation.sweep import Sweep
from headroles.data.corpus import Corpus, Sentence, partners
from headroles.models.head_model import HeadModel
from headroles.models.heads import head_index, layer_of
from headroles.scores.objectives import objective

NAMES = ["marian", "bert", "gpt2", "llama-grouped"]
HEADS, SIZE, WIDTH = 4, 8, 32  # of the GPT-2 of the zoo


def attributed(model, tokenizer, text, method="AtP*", **options):
    table = hr.attribute(model, tokenizer, text, method=method, **{"n_resamples": 0, "objective": "loss"} | options)
    return table.iloc[:, :2].set_axis(["signed", "size"], axis=1)


def setting(name, size=6):
    return zoo.tiny(name), tokens_of(name), corpus(size)


def one_batch(model, tokenizer, text):
    (batch,) = batches_of(model, tokenizer, text, words=False, max_tokens=10**6)
    return batch


def example_means(model, batch, output):
    """The mean loss of each example: [batch]."""
    found = objective("loss", HeadModel(model)).fit(HeadModel(model), [batch]).targets(output, batch)
    return torch.where(found.counted, found.values, 0).sum(-1) / found.counted.sum(-1)


@pytest.mark.parametrize("name", NAMES)
def test_without_corrections_it_is_the_gradient_of_the_masks(name):
    model, tokenizer, text = setting(name)
    expected = attributed(model, tokenizer, text, "InputXGradient")
    close(attributed(model, tokenizer, text, "AtP"), expected, operations=MANY)


@pytest.mark.parametrize("name", ["marian", "gpt2"])
def test_resampled_it_predicts_what_a_sweep_predicts(name):
    model, tokenizer, text = ablated(name)
    index = list(head_index(model))
    sweep = Sweep(HeadModel(model, tokenizer), text, Loss(), replacement="resample")
    stats = sweep.predict([frozenset([head]) for head in index])
    found = attributed(model, tokenizer, text, "AtP", replacement="resample", max_tokens=40)
    changes = np.array([stats.predicted[frozenset([head])] / stats.intact[:, 1] for head in index])  # [head, example]
    close(found["signed"], -changes.mean(1), operations=MANY)
    close(found["size"], np.abs(changes).mean(1), operations=MANY)


def passing_by(layer):
    """Detach what a layer adds, written as the sum of both."""

    def hook(_, args, kwargs, output):
        before = args[0] if args else kwargs["hidden_states"]
        whole = output if isinstance(output, tuple) else (output,)
        after = before + (whole[0] - before).detach()
        return (after, *whole[1:]) if isinstance(output, tuple) else after

    return layer.register_forward_hook(hook, with_kwargs=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*NAMES, "t5"])
def test_dropped_gradients_are_those_of_a_loop_over_layers(name):
    model, tokenizer, text = setting(name)
    batch = one_batch(model, tokenizer, text)
    layers = list(dict.fromkeys(layer_of(model, site) for site in hr.attention_sites(model)))
    effects = []
    for layer in layers:
        gates = torch.ones(len(text), len(head_index(model)), requires_grad=True)
        hook = passing_by(layer)
        with hr.mask_heads(model, gates):
            target = example_means(model, batch, model(**batch.inputs)).sum()
        hook.remove()
        effects.append(torch.autograd.grad(target, gates)[0])
    expected = torch.stack(effects).double() * len(layers) / (len(layers) - 1)
    found = attributed(model, tokenizer, text)
    size = expected.abs().max()
    close(found["signed"], expected.mean((0, 1)), size=size, operations=MANY)
    close(found["size"], expected.abs().mean((0, 1)), size=size, operations=MANY)
    own = {site.key: number for site in hr.attention_sites(model) for number in [layers.index(layer_of(model, site))]}
    for place, head in enumerate(head_index(model)):
        assert not effects[own[head[:2]]][:, place].any()  # of its own layer nothing is left


def output_of(model, batch, layer, head, change):
    """The output of one head of a GPT-2 once `change` has been made to its queries, keys and values."""
    block, kept = model.transformer.h[layer].attn, []

    def changed(_, __, output):
        return change(output.clone(), head)

    with ExitStack() as stack, torch.no_grad():
        stack.callback(block.c_attn.register_forward_hook(changed).remove)
        stack.callback(block.c_proj.register_forward_pre_hook(lambda _, args: kept.append(args[0])).remove)
        model(**batch.inputs)
    return kept[0][..., head * SIZE : (head + 1) * SIZE]


def zeroed(start, output, head, size=SIZE):
    output[..., start + head * size : start + (head + 1) * size] = 0
    return output


def swapped(start, places, masks, output, head):
    part = slice(start + head * SIZE, start + (head + 1) * SIZE)
    before = output.clone()
    for row, place in enumerate(places):
        output[row, masks[place], part] = before[place, masks[place], part]
    return output


@pytest.mark.slow
@pytest.mark.parametrize("replacement", ["zero", "resample"])
@pytest.mark.parametrize("node", ["query", "key"])
def test_patched_queries_and_keys_pass_through_the_softmax(node, replacement):
    """A loop that patches one head at a time, and the gradient at its output."""
    model, tokenizer, text = setting("gpt2")
    batch, start = one_batch(model, tokenizer, text), {"query": 0, "key": WIDTH}[node]
    change = partial(zeroed, start)
    if replacement == "resample":
        order = np.argsort(batch.numbers)
        masks = batch.inputs["attention_mask"].bool()
        pairs = partners([(int(masks[row].sum()),) for row in order], seed=0)
        places = [int(order[pairs[number]]) for number in batch.numbers]
        change = partial(swapped, start, places, masks)
    outputs = {}

    def keep(layer, _, args):
        outputs[layer] = args[0].detach().requires_grad_()
        return (outputs[layer],)

    with ExitStack() as stack:
        for layer, block in enumerate(model.transformer.h):
            stack.callback(block.attn.c_proj.register_forward_pre_hook(partial(keep, layer)).remove)
        target = example_means(model, batch, model(**batch.inputs)).sum()
    expected = []
    for _, layer, head in head_index(model):
        part = slice(head * SIZE, (head + 1) * SIZE)
        with ExitStack() as stack:  # the later layers go on from this one's output
            hook = model.transformer.h[layer].attn.c_proj.register_forward_pre_hook(partial(keep, layer))
            stack.callback(hook.remove)
            target = example_means(model, batch, model(**batch.inputs)).sum()
            (gradient,) = torch.autograd.grad(target, outputs[layer])
        moved = outputs[layer].detach()[..., part] - output_of(model, batch, layer, head, change)
        expected.append((moved * gradient[..., part]).sum((1, 2)))
    expected = torch.stack(expected).double()  # [head, example]
    found = attributed(model, tokenizer, text, "AtP", node=node, replacement=replacement)
    close(found["signed"], expected.mean(1), size=expected.abs().max(), operations=MANY)
    close(found["size"], expected.abs().mean(1), size=expected.abs().max(), operations=MANY)


@pytest.mark.parametrize("kind", ["gpt_oss", "gemma2", "mistral"])  # sinks as parameters; a softcap; a window; groups
def test_patched_queries_pass_through_attention_of_a_models_own(kind):
    model, text = hr.tiny_model(kind, vocab_size=64), corpus(4)
    batch, expected = one_batch(model, tokens_of(kind), text), []
    model.set_attn_implementation("eager")  # before transformers 5.21 sdpa leaves out the softcap
    for site in hr.attention_sites(model):
        outputs = []

        def keep(_, args, outputs=outputs):
            outputs.append(args[0].detach().requires_grad_())
            return (outputs[-1],)

        with ExitStack() as stack:
            stack.callback(site.out.register_forward_pre_hook(keep).remove)
            target = example_means(model, batch, model(**batch.inputs)).sum()
            (gradient,) = torch.autograd.grad(target, outputs[0])
            for head in range(site.heads):
                part = slice(head * site.size, (head + 1) * site.size)

                def without(_, __, output, head=head, size=site.size):
                    return zeroed(0, output.clone(), head, size)

                with torch.no_grad(), site.module.q_proj.register_forward_hook(without):
                    model(**batch.inputs)
                moved = (outputs[0].detach() - outputs[-1])[..., part]
                expected.append(float((moved * gradient[..., part]).detach().sum((1, 2)).mean()))
    found = attributed(model, tokens_of(kind), text, "AtP", node="query")
    close(found["signed"], np.array(expected), size=np.abs(expected).max(), operations=MANY)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "node"),
    [("marian", "query"), ("marian", "key"), ("t5", "query"), ("albert", "query"), ("llama-grouped", "key"),
     ("gemma3", "query"), ("gemma3", "key")],
)  # fmt: skip
def test_zero_queries_and_zero_keys_attend_alike(name, node):
    """Every score is then 0 but for biases: without these it is uniform attention, also where keys are shared."""
    model, tokenizer, text = setting(name)
    found = attributed(model, tokenizer, text, node=node)
    assert found.notna().all(axis=None)
    if name != "t5":  # which adds biases
        expected = attributed(model, tokenizer, text, "InputXGradient", replacement="uniform")
        plain = attributed(model, tokenizer, text, "AtP", node=node)
        close(plain, expected, operations=MANY)


def test_a_sentence_without_a_step_changes_nothing():
    model, tokenizer, text = setting("gpt2")
    longer = Corpus(text.name, (*text, Sentence("a")))  # a decoder predicts nothing of one token
    close(attributed(model, tokenizer, longer), attributed(model, tokenizer, text), operations=1)


def test_another_seed_draws_other_partners():
    found = [attributed(*setting("gpt2"), replacement="resample", seed=seed) for seed in (0, 0, 1)]
    pd.testing.assert_frame_equal(*found[:2], check_exact=True)
    assert not np.isclose(found[0], found[2], rtol=1e-3).all()


def test_columns_say_what_was_patched_and_have_intervals():
    model, tokenizer, text = setting("gpt2")
    each = {}, {"drop": False, "replacement": "resample"}, {"node": "key"}
    scores = [hr.AttributionPatching(**options) for options in each]
    table = hr.score(model, tokenizer, text, scores, n_resamples=20)
    names = ["attribution[AtP*]", "attribution[AtP resample]", "attribution[AtP* key]"]
    assert list(table) == [
        f"{name}{size}{end}" for name in names for size in ("", ".size") for end in ("", ".low", ".high")
    ]
    assert (table["attribution[AtP*].size.low"] <= table["attribution[AtP*].size"]).all()
    assert "node='key'" in hr.provenance(table, "attribution[AtP* key]")
