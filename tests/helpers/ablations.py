"""Sweeps and effects of tiny models by plain loops."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import replace
from functools import cache, partial

import numpy as np
import pandas as pd
import torch
from helpers import zoo
from helpers.close import bound
from helpers.letters import batches_of, corpus, tokens_of, writing
from helpers.objectives import classifier, labelled

import headroles as hr
from headroles.ablation.example_stats import ExampleStats
from headroles.ablation.metrics import Loss
from headroles.ablation.sweep import Sweep
from headroles.data.corpus import Corpus, partners
from headroles.models import batching, heads, masking
from headroles.models.attention_hooks import without_cache
from headroles.models.batching import Batch, TokenView
from headroles.models.head_model import HeadModel
from headroles.scores.objectives import objective

ALL = 10**6  # tokens: one batch


def by_hand(name, **options):
    """A model of the zoo, and a batch of the inputs it takes: ids, pixels or sounds."""
    model = zoo.tiny(name, **options)
    inputs = zoo.inputs(model)
    read = inputs[model.main_input_name]
    source = side(read if read.ndim == 2 else torch.zeros(2, 3, dtype=torch.long), inputs.get("attention_mask"))
    written = inputs.get("decoder_input_ids")
    target = None if written is None else side(written, inputs.get("decoder_attention_mask"))
    return model, Batch((0, 1), inputs, source, target)


def side(ids, mask):
    present = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()
    return TokenView(ids, present, present, torch.zeros_like(ids), (None,) * len(ids))


def naive(model, batch, row, replacement):
    with torch.inference_mode(), hr.mask_heads(model, row, replacement=replacement):
        return model(**batch.inputs, **without_cache(model)).logits


def near(found, expected):
    torch.testing.assert_close(found, expected, rtol=0, atol=bound(float(expected.abs().max())))


@cache
def given(name):
    """A model, which nobody changes, its tokenizer and a corpus."""
    if name == "classifier":
        return classifier(), tokens_of("bert"), labelled()
    return zoo.tiny(name), tokens_of(name), corpus(6)


@cache
def groups(name):
    """The corpus as one batch."""
    model, tokenizer, text = given(name)
    return batches_of(model, tokenizer, text, words=False, max_tokens=ALL)


@cache
def means(name):
    """The mean output of each head."""
    return masking.mean(given(name)[0], groups(name))


@cache
def partner_outputs(name):
    """A fill: what heads put out for the partner of each sentence, read alone, at the tokens that both have."""
    model, tokenizer, text = given(name)
    (batch,), encoded = groups(name), HeadModel(model, tokenizer).encode(text, words=False)
    sides = [side for side in (encoded.source, encoded.target) if side]
    places = partners([tuple(map(len, row)) for row in zip(*sides, strict=True)], seed=0)
    found = {}
    for row, number in enumerate(batch.numbers):
        alone = batching.make_batch([places[number]], encoded, model)
        with torch.no_grad(), ExitStack() as stack:
            for site in hr.attention_sites(model):
                stack.callback(site.out.register_forward_pre_hook(partial(_keep, found, (row, *site.key))).remove)
            model(**alone.inputs, **without_cache(model))

    def fill(site, z):
        instead = z.clone()
        for row in range(len(z)):
            other = found[row, *site.key].unflatten(-1, (site.heads, site.size))[0]
            both = min(len(other), z.shape[1])
            instead[row, :both] = other[:both]
        return instead

    return fill


def _keep(found, key, _, args):
    found[key] = args[0]


@cache
def looped(name, masked, replacement="zero", metric="loss"):
    """Sums and counts of each sentence in a plain forward with heads closed: two of [sentence]."""
    model = given(name)[0]
    (batch,) = groups(name)
    fitted = objective(metric, HeadModel(model)).fit(HeadModel(model), groups(name))
    made = {"mean": lambda: means(name), "rescale": lambda: "zero", "resample": lambda: partner_outputs(name)}
    instead = made.get(replacement, lambda: replacement)()
    row = masking.head_mask(model, masked)
    if replacement == "rescale":
        layer = pd.Series(row.numpy(), heads.head_index(model)).groupby(["kind", "layer"])
        row *= torch.tensor(layer.transform(wider).to_numpy())
    with torch.no_grad(), hr.mask_heads(model, row, replacement=instead):
        found = fitted.targets(model(**batch.inputs, **without_cache(model)), batch)
    back = np.argsort(batch.numbers)
    sums = torch.where(found.counted, found.values, 0.0).sum(-1)[back]
    return sums.double().numpy(), found.counted.sum(-1)[back].double().numpy()


def wider(row):
    return len(row) / max(row.sum(), 1)


def mean(name, *masked, **options):
    sums, counts = looped(name, *masked, **options)
    return sums.sum() / counts.sum()


MASKS = {  # unit: whether it masks a head for another
    "head": lambda head, other: head == other,
    "all_but_one": lambda head, other: head[:2] == other[:2] and head != other,
    "group": lambda head, other: head == other,  # no keys are shared in these models
    "layer": lambda head, other: head[:2] == other[:2],
    "kind": lambda head, other: head[0] == other[0],
}


def closing(name, unit):
    """The heads that a unit masks for each head of a model, in the order of the rows."""
    index = list(heads.head_index(given(name)[0]))
    return [frozenset(other for other in index if MASKS[unit](head, other)) for head in index]


def column(unit, metric="loss", replacement="zero"):
    how = [word for word, usual in ((unit, "head"), (replacement, "zero")) if word != usual]
    return f"ablation[{' '.join([metric, *how])}]"


def measured(counts, changes, metric=None, seed=0):
    """A sweep of made-up statistics: `changes` [variant, example] of the sums."""
    rng = np.random.default_rng(seed)
    intact = np.stack([counts * rng.normal(3, 1, len(counts)), counts], axis=1)
    masked = {frozenset([("dec-self", 0, i)]): intact + np.stack([one, 0 * one], 1) for i, one in enumerate(changes)}
    return ExampleStats(intact, masked, list(range(len(counts))), 0, metric or Loss())


class Stopping(Loss):
    """The loss, which fails, or is not a number, once it was read `after` times: a number in no cache key."""

    fails = True

    @property
    def after(self):
        return int(os.environ.get("STOPPING_AFTER", 10**9))

    @after.setter
    def after(self, number):
        os.environ["STOPPING_AFTER"] = str(number)

    def __init__(self):
        self.after = 10**9

    def update(self, observation):
        self.after -= 1
        if self.after < 0 and self.fails:
            raise InterruptedError("stopped")
        return super().update(observation) * (np.nan if self.after < 0 else 1)


def sweep(model, tokenizer, text, variants, metric, *, rows=None, **options):
    """The statistics of a sweep over a corpus."""
    return Sweep(HeadModel(model, tokenizer), text, metric, **options).run(variants, rows)


def files(folder):
    """When each file was written, and what is in it."""
    return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.iterdir() if path.is_file()}


def terse(seed=0, most=4):
    """A translator that writes little."""
    model = zoo.tiny("marian", seed=seed)
    model.generation_config.max_new_tokens = most
    return model


def generated(texts, row, beams):
    """What the gated translator writes."""
    model, tokenizer = writing("marian"), tokens_of("marian")
    inputs = tokenizer(texts, return_tensors="pt", padding=True)
    with torch.no_grad(), hr.mask_heads(model, row):
        written = model.generate(**inputs, num_beams=beams, do_sample=False)
    return tokenizer.batch_decode(written, skip_special_tokens=True)


@cache
def translated():
    """Sentences of which every second has for its reference what the intact model writes."""
    texts = [sentence.text for sentence in corpus(6)]
    written = generated(texts, torch.ones(24), 1)
    own = [replace(one.target, text=text) for one, text in zip(corpus(6), written, strict=True)]
    rows = [replace(one, target=own[i] if i % 2 and own[i].text else one.target) for i, one in enumerate(corpus(6))]
    return Corpus("translated", tuple(rows))
