"""Attention scores without the sink, one query at a time in plain loops: the reference of the tests."""

from __future__ import annotations

import math
from collections import defaultdict
from itertools import combinations

import torch

OFFSETS = (-2, -1, 0, 1, 2)


def scores(model, tokenizer, corpus, least):
    """(kind, layer, head) -> column -> value, by the weights that `output_attentions` gives of each sentence alone."""
    sums = defaultdict(lambda: defaultdict(lambda: [0.0, 0]))
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        for sentence in corpus:
            for kind, layers, queries, keys in _seen(model, tokenizer, sentence):
                for layer, weights in enumerate(layers):
                    for head, rows in enumerate(weights[0].double().tolist()):
                        _add(sums[kind, layer, head], kind, rows, queries, keys, least)
    finally:
        model.set_attn_implementation(before)
    return {head: {name: top / n for name, (top, n) in columns.items()} for head, columns in sums.items()}


def _seen(model, tokenizer, sentence):
    """Kind, weights of the layers, and the tokens of queries and keys, each as (id, whether it is special)."""
    not_words = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    ids = tokenizer(sentence.text)["input_ids"]
    source = [(token, token in not_words) for token in ids]
    if not model.config.is_encoder_decoder:
        kind = "dec-self" if model.config.model_type not in ("bert",) else "enc-self"
        with torch.no_grad():
            yield kind, model(input_ids=torch.tensor([ids]), output_attentions=True).attentions, source, source
        return
    written = [model.config.decoder_start_token_id, *tokenizer(text_target=sentence.target.text)["input_ids"][:-1]]
    target = [(token, token in not_words) for token in written]
    with torch.no_grad():
        out = model(
            input_ids=torch.tensor([ids]), decoder_input_ids=torch.tensor([written]), output_attentions=True
        )  # fmt: skip
    yield "enc-self", out.encoder_attentions, source, source
    yield "dec-self", out.decoder_attentions, target, target
    yield "cross", out.cross_attentions, target, source


def _add(sums, kind, rows, queries, keys, least):
    others = [key for key, (_, special) in enumerate(keys) if key > 0 and not special]
    best = {}
    for query, (token, special) in enumerate(queries):
        if special or (kind == "dec-self" and query == 0):
            continue
        left = sum(rows[query][key] for key in others)
        _count(sums, "resting", left < least)
        if left < least:
            continue
        row = {key: rows[query][key] / left for key in others}
        best[query] = max(others, key=row.__getitem__)  # the first of equals
        _count(sums, "confidence-nosink", row[best[query]])
        _count(sums, "entropy-nosink", -sum(value * math.log(value) for value in row.values() if value))
        if kind != "cross":
            _add_places(sums, kind, query, row, best[query])
        if kind == "dec-self":
            _add_repeats(sums, token, query, row, keys)
    if kind == "cross" and len(best) > 1:
        pairs = list(combinations(sorted(best), 2))
        _count(sums, "alignment-nosink[monotone]", sum(_sign(best[b] - best[a]) for a, b in pairs) / len(pairs))


def _add_places(sums, kind, query, row, best):
    _count(sums, "distance-nosink", sum(value * abs(query - key) for key, value in row.items()))
    if query - 1 in row:
        _count(sums, "previous-nosink", row[query - 1])
    for d in OFFSETS:
        if query + d in row and not (kind == "dec-self" and d > 0):
            _count(sums, f"position-nosink[{d:+d}]" if d else "position-nosink[0]", best == query + d)


def _add_repeats(sums, token, query, row, keys):
    same = [key for key in row if key < query and keys[key][0] == token]
    if same:
        _count(sums, "duplicate-nosink", sum(row[key] for key in same))
        _count(sums, "induction-nosink", sum(row.get(key + 1, 0) for key in same if key + 1 < query))


def _sign(number):
    return (number > 0) - (number < 0)


def _count(sums, column, value):
    sums[column][0] += value
    sums[column][1] += 1
