"""A replay computes what masked heads can change, and nothing else, with the numbers of the whole forward."""

from __future__ import annotations

import collections
import gc
import weakref
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from itertools import combinations_with_replacement

import architectures
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from accelerate.hooks import ModelHook, add_hook_to_module
from helpers import zoo
from helpers.ablations import by_hand, naive, near
from helpers.close import close
from helpers.letters import corpus, tokens_of
from helpers.silenced import silenced
from helpers.sweeps import swept, traces
from torch.overrides import TorchFunctionMode

import headroles as hr
from headroles.ablation.forward_cache import Replay, layers
from headroles.models import heads as families
from headroles.models import masking
from headroles.models.head_model import HeadModel
from headroles.tables import frame
from headroles.testing.case import Case

WHOLE = ["albert", "fsmt"]  # whose layers cannot be handed back: one module for all, and time first


def several(model):
    """Heads alone, pairs across layers and kinds, whole layers, all heads and none: sets of heads."""
    index = list(families.head_index(model))
    pairs = [(one, other) for one in index[::4] for other in index[::4] if one < other]
    whole_layers = [[head for head in index if head[:2] == key] for key in dict.fromkeys(head[:2] for head in index)]
    return [[head] for head in index] + pairs + whole_layers + [index, []]


def fills(model):
    return ["zero"] if any(site.outside for site in families.attention_sites(model)) else ["zero", "uniform"]


# what a replay hands back differs: two stacks (of which one may not be handed back), one, one module for all layers, a
# layer's output that is a tuple, attention of another form, sounds, pictures
REPLAYED = [*zoo.USUAL, "marian-asymmetric", "whisper", "bert2gpt2", "deberta-v2", "vit"]
REPLAYED += ["modernbert", "gemma3", "phi3", "mixtral"]


@pytest.mark.parametrize("name", zoo.variants(REPLAYED))
def test_variants_are_those_of_the_gated_model(name):
    model, batch = by_hand(name)
    every = torch.stack([masking.head_mask(model, masked) for masked in several(model)])
    if name not in ("marian", "gpt2"):
        every = torch.cat([every[:-1:2], every[-1:]])
    for replacement in fills(model):
        rows = every if replacement == "zero" else torch.cat([every[:-1:3], every[-1:]])
        replay = Replay(HeadModel(model), batch, replacement)
        expected = torch.stack([naive(model, batch, row, replacement) for row in rows])
        assert all(not torch.allclose(one, replay.output.logits, atol=1e-4) for one in expected[:-1])
        near(expected[-1], replay.output.logits)
        together = replay.run(rows)[0].logits
        near(together.reshape(expected.shape), expected)
        parts = zip(rows.split(3), expected.split(3), strict=True) if name in ("marian", "gpt2") else ()
        for some, one in parts:
            near(replay.run(some)[0].logits.reshape(one.shape), one)


def test_rows_are_all_examples_of_the_first_variant_and_then_of_the_second():
    model, batch = by_hand("marian")
    found = Replay(HeadModel(model), batch).run(torch.ones(3, len(families.head_index(model))))[1]
    assert found.numbers == (0, 1) * 3
    assert torch.equal(found.inputs["input_ids"], batch.inputs["input_ids"].repeat(3, 1))


@pytest.mark.parametrize("rule", [{}, {"encoder_no_repeat_ngram_size": 1}, {"encoder_repetition_penalty": 5.0}])
def test_what_is_written_obeys_rules_that_read_the_source(rule):
    handle = HeadModel.of(zoo.tiny("marian"), tokens_of("marian"))
    model, batch = handle.model, next(handle.batches(handle.encode(corpus(4), words=False)))
    inputs = {name: value for name, value in batch.inputs.items() if not name.startswith("decoder")}
    options = {"max_new_tokens": 8, "num_beams": 1, "do_sample": False, **rule}
    expected = model.generate(**inputs, **options)
    assert not rule or not torch.equal(expected, model.generate(**inputs, **options | dict.fromkeys(rule)))
    written = Replay(handle, batch).write(torch.ones(2, len(families.head_index(model))), **options)[0]
    assert torch.equal(written, expected.repeat(2, 1))


def calls(model, replay, row):
    """How often the heads of each (kind, layer) are run again for a variant."""
    found = Counter()
    with ExitStack() as stack:
        for site in families.attention_sites(model):
            hook = site.out.register_forward_hook(lambda *_, key=site.key: found.update([key]))
            stack.callback(hook.remove)
        replay.run(row[None])
    return dict(found)


@pytest.mark.parametrize("name", zoo.each(name for name in REPLAYED if name not in WHOLE))
def test_what_lies_below_the_first_masked_head_is_not_run(name):
    model, batch = by_hand(name)
    keys = [site.key for site in families.attention_sites(model)]
    replay = Replay(HeadModel(model), batch)
    height = {(kind, layer): (kind != "enc-self", layer) for kind, layer in keys}
    for key in keys:
        row = masking.head_mask(model, [(*key, 0)])
        assert calls(model, replay, row) == {other: 1 for other in keys if height[other] >= height[key]}


@pytest.mark.parametrize("name", ["bert", "llama-grouped", "marian", *WHOLE])
def test_all_layers_are_known_or_none(name):
    model = zoo.tiny(name)
    expected = {(site.kind == "enc-self", site.layer) for site in families.attention_sites(model)}
    assert len(layers(HeadModel(model))) == (0 if name in WHOLE else len(expected))


@pytest.mark.parametrize("name", ["marian", "bert", "gpt2", "albert"])
def test_a_replay_leaves_no_trace_even_by_an_exception(name):
    model, batch = by_hand(name)
    before = traces(model)
    last = masking.head_mask(model, [families.head_index(model)[-1]])[None]
    Replay(HeadModel(model), batch).run(last)
    assert traces(model) == before
    with pytest.raises(KeyError):  # in the last layer: the filling has nothing for it
        Replay(HeadModel(model), batch, lambda site, _: {}[site.key]).run(last)
    assert traces(model) == before
    beyond = batch.inputs | {"input_ids": batch.inputs["input_ids"] + 10**4}
    with pytest.raises(IndexError):
        Replay(HeadModel(model), replace(batch, inputs=beyond))
    assert traces(model) == before


# --- what is multiplied again ---------------------------------------------------------------------------------------

LAYERS = 3  # one more than the zoo has, so that a layer has one below and one above
DEEP = {"marian": {"encoder_layers": LAYERS, "decoder_layers": LAYERS}, "bert": {"num_hidden_layers": LAYERS}}
DEEP |= {"gpt2": {"n_layer": LAYERS}}
SOURCE, TARGET = 2 * 7, 2 * 5  # tokens of a batch, padding included


def deep(name):
    """A model of the zoo with three layers, and a batch of what it reads."""
    model, batch = by_hand(name, **DEEP[name])
    families.attention_sites(model)  # looked for here, not while rows are counted
    return model, batch


class Multiplied(TorchFunctionMode):
    """Counts the rows that go through every linear map of a model: `rows[name]`."""

    def __init__(self, model):
        super().__init__()
        maps = [pair for pair in model.named_modules() if type(pair[1]).__name__ in ("Linear", "Conv1D")]
        self.names, self.rows = {id(module.weight): name for name, module in maps}, Counter()

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function in (F.linear, torch.addmm):  # Conv1D adds its bias first
            inputs_of, weight = args[:2] if function is F.linear else args[1:3]
            self.rows[self.names[id(weight)]] += inputs_of.shape[:-1].numel()
        return function(*args, **kwargs or {})


def multiplied(model, replay, *variants):
    """The rows of each linear map while variants, sets of heads, run as one batch."""
    with Multiplied(model) as counting:
        replay.run(torch.stack([masking.head_mask(model, masked) for masked in variants]))
    return dict(counting.rows)


QKV, OUT = [f"self_attn.{name}_proj" for name in "qkv"], ["self_attn.out_proj"]
FEED_FORWARD = ["fc1", "fc2"]
READING = ["encoder_attn.k_proj", "encoder_attn.v_proj"]  # the encoder's states
ASKING, CROSS_OUT = ["encoder_attn.q_proj"], ["encoder_attn.out_proj"]
ENCODER_LAYER, DECODER_LAYER = QKV + OUT + FEED_FORWARD, QKV + OUT + ASKING + CROSS_OUT + FEED_FORWARD


def in_marian(key):
    """What runs when a head of (kind, layer) is closed: rows by the name of the map, as one reads it off the model."""
    kind, layer = key
    encoder, decoder = {}, dict.fromkeys(range(layer + 1, LAYERS), DECODER_LAYER)
    if kind == "enc-self":
        encoder = {layer: OUT + FEED_FORWARD} | dict.fromkeys(range(layer + 1, LAYERS), ENCODER_LAYER)
        # what layer 0 asks the changed states is told by the target alone
        decoder = {0: READING + CROSS_OUT + FEED_FORWARD}
        decoder |= dict.fromkeys(range(1, LAYERS), DECODER_LAYER + READING)
    elif kind == "dec-self":
        decoder[layer] = OUT + ASKING + CROSS_OUT + FEED_FORWARD
    else:
        decoder[layer] = CROSS_OUT + FEED_FORWARD
    found = {f"model.encoder.layers.{layer}.{name}": SOURCE for layer, names in encoder.items() for name in names}
    for number, names in decoder.items():
        rows = {f"model.decoder.layers.{number}.{name}": SOURCE if name in READING else TARGET for name in names}
        found |= rows
    return found | {"lm_head": TARGET}


KEYS = [(kind, layer) for kind in frame.KINDS for layer in range(LAYERS)]


@pytest.mark.slow
def test_masking_heads_computes_only_what_they_can_change():
    model, batch = deep("marian")
    replay = Replay(HeadModel(model), batch)
    for one, other in combinations_with_replacement(KEYS, 2):
        assert multiplied(model, replay, [(*one, 3)]) == in_marian(one), one
        assert multiplied(model, replay, [(*one, 0), (*other, 1)]) == in_marian(one) | in_marian(other), (one, other)


def test_each_variant_has_rows_of_its_own():
    model, batch = deep("marian")
    replay = Replay(HeadModel(model), batch)
    for key in KEYS:
        found = multiplied(model, replay, *([(*key, head)] for head in range(3)))
        assert found == {name: 3 * rows for name, rows in in_marian(key).items()}


BODY = {  # out, feed-forward and, of later layers, what comes first; then what stands at the end
    "bert": ("bert.encoder.layer", ["attention.self.query", "attention.self.key", "attention.self.value"],
             ["attention.output.dense", "intermediate.dense", "output.dense"],
             ["cls.predictions.transform.dense", "cls.predictions.decoder"]),
    "gpt2": ("transformer.h", ["attn.c_attn"], ["attn.c_proj", "mlp.c_fc", "mlp.c_proj"], ["lm_head"]),
}  # fmt: skip


@pytest.mark.parametrize("name", BODY)
def test_in_one_stack_what_is_after_the_heads_is_multiplied_again(name):
    model, batch = deep(name)
    replay = Replay(HeadModel(model), batch)
    place, before, after, end = BODY[name]
    for kind, layer, head in families.head_index(model):
        own = [f"{place}.{layer}.{one}" for one in after]
        later = [f"{place}.{number}.{one}" for number in range(layer + 1, LAYERS) for one in before + after]
        assert multiplied(model, replay, [(kind, layer, head)]) == dict.fromkeys(own + later + end, SOURCE)


@pytest.mark.parametrize("name", DEEP)
def test_the_intact_model_runs_once_and_nothing_masked_runs_the_end_alone(name):
    model, batch = deep(name)
    with Multiplied(model) as counting:
        replay = Replay(HeadModel(model), batch)
    assert set(counting.rows) == set(counting.names.values())
    assert set(counting.rows.values()) == ({SOURCE, TARGET} if name == "marian" else {SOURCE})
    assert set(multiplied(model, replay, [])) == set(BODY[name][3] if name in BODY else ["lm_head"])


@pytest.mark.parametrize("name", zoo.variants(["marian", "t5", "fsmt", "whisper", "bert2gpt2"]))
def test_an_encoder_head_and_a_head_of_the_first_decoder_layer_are_both_masked(name):
    model, batch = by_hand(name)
    index = list(families.head_index(model))
    first, starts = [head for head in index if head[:2] == ("dec-self", 0)], [head for head in index if head[2] == 0]
    pairs = [{one, other} for one in starts if one[0] == "enc-self" for other in first]
    more = [pair | {head} for pair in pairs[:2] for head in starts if head[0] != "enc-self"]
    rows = torch.stack([masking.head_mask(model, masked) for masked in pairs + more])
    for replacement in ["zero", "uniform"] if name in ("marian", "t5") else ["zero"]:
        expected = torch.stack([naive(model, batch, row, replacement) for row in rows])
        for (one,) in ({head for head in pair if head[0] == "enc-self"} for pair in pairs[::4]):
            alone = naive(model, batch, masking.head_mask(model, [one]), replacement)  # without the decoder's head
            assert not any(torch.allclose(alone, logits, atol=1e-4) for logits in expected)
        replay = Replay(HeadModel(model), batch, replacement)
        near(replay.run(rows)[0].logits.reshape(expected.shape), expected)
        for row, logits in zip(rows[::3], expected[::3], strict=True):
            near(replay.run(row[None])[0].logits, logits)


# --- what a replay leaves behind ------------------------------------------------------------------------------------


def test_a_replay_is_free_as_soon_as_nobody_has_it():
    """Without the garbage collector: its logits are gigabytes for a large vocabulary (20 GB of Gemma 3 in an hour)."""
    model = zoo.tiny("llama")
    handle = HeadModel(model, Case(model).tokenizer)
    batch = next(iter(handle.batches(handle.encode(Case(model).corpus))))
    replay = Replay(handle, batch)
    gates = torch.ones(1, len(handle.index))
    gates[0, 0] = 0
    replay.run(gates)
    logits = weakref.ref(replay.output.logits)
    gc.disable()
    try:
        del replay
        assert logits() is None
    finally:
        gc.enable()


def raising(*_):
    raise InterruptedError("stopped")


def test_a_layer_keeps_the_forward_that_accelerate_gave_it_also_when_a_run_is_stopped():
    model, batch = by_hand("gpt2")
    first, last = model.transformer.h
    add_hook_to_module(first, ModelHook())
    own, row = first.forward, masking.head_mask(model, [("dec-self", 1, 0)])[None]
    replay = Replay(HeadModel(model), batch)
    replay.run(row)
    assert vars(first).get("forward") is own
    last.attn.c_proj.register_forward_hook(raising)
    with pytest.raises(InterruptedError):
        replay.run(row)
    assert vars(first)["forward"] is own
    assert "forward" not in vars(last)


# --- layers that reuse the keys and values of earlier ones: what a replay leaves out, a later layer misses ----------


def losses(model, corpus, zeroed=(), replaced=None):
    """The loss of each sentence in a plain loop, with the input of output projections changed by hand.

    `zeroed`: layer -> heads whose slice is zero; `replaced`: what stands there instead, layer -> [heads, size].
    """
    values = []
    with torch.no_grad(), ExitStack() as stack:
        for layer, head in zeroed:
            attention = model.model.layers[layer].self_attn
            columns = slice(head * attention.head_dim, (head + 1) * attention.head_dim)
            instead = 0.0 if replaced is None else replaced[layer][head]
            stack.enter_context(silenced(attention.o_proj, columns, instead))
        for sentence in corpus:
            ids = torch.tensor([[int(word) for word in sentence.text.split()]])
            logits = model(input_ids=ids, use_cache=False).logits[0]
            values.append(F.cross_entropy(logits[:-1], ids[0, 1:], reduction="none"))
    return float(torch.cat(values).mean())


@pytest.fixture(scope="module", params=["gemma3n, shared keys", "gemma4, shared keys"])
def case(request):
    """Layers 2 and 3 read the keys and values that 0 and 1 write."""
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
    with ExitStack() as stack:
        for i, layer in enumerate(case.model.model.layers):
            keep = layer.self_attn.o_proj.register_forward_pre_hook(lambda _, args, i=i: outputs[i].append(args[0][0]))
            stack.callback(keep.remove)
        intact = losses(case.model, case.corpus)
    means = {layer: torch.cat(rows).mean(0).view(4, -1) for layer, rows in outputs.items()}
    table = hr.ablate(case.model, case.tokenizer, case.corpus, sets=SETS, replacement="mean", n_resamples=0)
    expected = [
        losses(case.model, case.corpus, [place[1:] for place in places], means) - intact for places in SETS.values()
    ]
    close(table["ablation[loss]"], expected, size=intact)


def test_a_curve_is_that_of_a_plain_loop(case):
    """Heads are masked one after the other, from the top: at first the lower half of the model is replayed."""
    order = [("dec-self", layer, head) for layer in (3, 2) for head in (0, 1)]
    handle = HeadModel.of(case.model, case.tokenizer)
    (batch,) = handle.batches(handle.tokenised(case.corpus[:3]), max_tokens=4096)
    with handle.evaluating():
        kept = Replay(handle, batch)
        for count in range(1, len(order) + 1):
            gates = hr.head_mask(case.model, order[:count])[None]
            output, whole = kept.run(gates)
            with torch.no_grad(), hr.mask_heads(case.model, gates[0]):
                expected = case.model(**whole.inputs, use_cache=False)
            mask = batch.source.attention_mask
            close(output.logits[mask], expected.logits[mask])
    assert len(kept.kept) > len(kept.layers)


def test_a_layer_may_return_a_list():
    """GPT's layers do: a batch of several variants met the states of one."""
    case = Case(hr.tiny_model("openai-gpt"))
    one, many = (swept(case.model, case.tokenizer, case.corpus, variants_at_once=size) for size in (1, 8))
    close(one, many, size=10)
