"""The attention statistics of an encoder again, one sentence at a time in plain loops: the reference of the tests."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pandas as pd
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from headroles.data.corpus import Corpus, Sentence

OFFSETS = (-2, -1, 0, 1, 2)
AT = {d: f"position[{d:+d}]" if d else "position[0]" for d in OFFSETS}
RELATIONS = ("nsubj", "obj", "amod", "advmod")
FREQUENT = 500
Matrix = list[list[float]]  # [query, key]
Query = tuple[int, set[int]]  # a word, and the words it stands in the relation with
Ratio = dict[str, list[float]]  # column -> numerator, denominator


class Encoded(NamedTuple):
    """A sentence as the model sees it."""

    sentence: Sentence
    ids: list[int]
    real: list[int]  # the indices of the tokens that are not special
    special: set[int]  # and of those that are
    words: list[list[int]]  # the pieces of each word; none of a word that shares its piece or has none
    asked: dict[str, list[Query]]  # column -> its queries


def scores(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    corpus: Corpus,
    *,
    relations: Sequence[str] = RELATIONS,
    frequent: int = FREQUENT,
) -> pd.DataFrame:
    """One row per head of an encoder; `attrs`: how many sentences rarity counts and syntax leaves out."""
    encoded = [encode(sentence, tokenizer, relations) for sentence in corpus]
    counts = Counter(e.ids[token] for e in encoded for token in e.real)
    common = _most_frequent(counts, frequent)
    sums: dict[tuple[str, int, int], Ratio] = defaultdict(lambda: defaultdict(lambda: [0.0, 0.0]))
    for one, layers in zip(encoded, attentions(model, encoded), strict=True):
        for layer, heads in enumerate(layers):
            for head, weights in enumerate(heads):
                _add(sums["enc-self", layer, head], weights, one, _rarest(one, counts, common))
    table = _table(sums)
    for name, value in _baselines(encoded).items():
        table[f"{name}.baseline"] = value
    rare = sum(_rarest(e, counts, common) is not None for e in encoded)
    left_out = sum(e.sentence.has_tree and not all(e.words) for e in encoded)
    table.attrs = {"rarity.sentences": rare, "syntax.left_out": left_out}
    return table


def encode(sentence: Sentence, tokenizer: PreTrainedTokenizerFast, relations: Sequence[str] = RELATIONS) -> Encoded:
    """The ids of a sentence, its real tokens, the pieces of each of its words, and what syntax asks of it."""
    made = tokenizer(sentence.text, return_offsets_mapping=True)
    ids = made["input_ids"]
    not_words = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    special = {token for token, number in enumerate(ids) if number in not_words}
    real = [token for token in range(len(ids)) if token not in special]
    words: list[list[int]] = [[] for _ in sentence.spans]
    for token in real:
        word = _word_at(sentence, *made["offset_mapping"][token])
        if word is not None:
            words[word].append(token)
    missing = {word for word, own in enumerate(words) if not own}
    for token in real:
        held = _words_in(sentence, *made["offset_mapping"][token])
        if held & missing:
            for word in held:
                words[word] = []
    return Encoded(sentence, ids, real, special, words, _asked(sentence, words, relations))


def _most_frequent(counts: Counter[int], number: int) -> set[int]:
    return set(sorted(counts, key=lambda token: (-counts[token], token))[:number])  # of equals the smaller id


def _word_at(sentence: Sentence, start: int, end: int) -> int | None:
    """The word that holds the first character of a piece that is not a space."""
    while start < end and sentence.text[start].isspace():
        start += 1
    for word, span in enumerate(sentence.spans):
        if span is not None and span[0] <= start < span[1] and start < end:
            return word
    return None


def _words_in(sentence: Sentence, start: int, end: int) -> set[int]:
    """The words that have a character in a piece."""
    spans = enumerate(sentence.spans)
    return {word for word, span in spans if span is not None and max(start, span[0]) < min(end, span[1])}


def _asked(sentence: Sentence, words: list[list[int]], relations: Sequence[str]) -> dict[str, list[Query]]:
    found = {}
    for relation in relations:
        pairs = [(h, d) for d, h in enumerate(sentence.heads) if sentence.relations[d] == relation and h >= 0]
        pairs = [(h, d) for h, d in pairs if words[h] and words[d]]
        found[f"syntax[{relation} dep>head]"] = [(d, {h}) for h, d in pairs]
        governors = sorted({h for h, _ in pairs})
        found[f"syntax[{relation} head>dep]"] = [(g, {d for h, d in pairs if h == g}) for g in governors]
    return found


def attentions(model: PreTrainedModel, encoded: list[Encoded]) -> Iterator[list[list[Matrix]]]:
    """For each sentence, for each layer, for each head: the weights, by the model's own eager attention."""
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        for one in encoded:
            with torch.no_grad():
                seen = model(input_ids=torch.tensor([one.ids]), output_attentions=True).attentions
            yield [layer[0].double().tolist() for layer in seen]
    finally:
        model.set_attn_implementation(before)


def _add(sums: Ratio, weights: Matrix, one: Encoded, rarest: int | None) -> None:
    for query in one.real:
        best = _largest(weights[query], one.real)
        _count(sums, "confidence", weights[query][best])
        _count(sums, "sink[special]", sum(weights[query][key] for key in one.special))
        for d in OFFSETS:
            if 0 <= query + d < len(one.ids) and query + d not in one.special:
                _count(sums, AT[d], best == query + d)
        if rarest is not None:
            _count(sums, "rarity", best == rarest)
    best_word = [_largest(row, range(len(row))) for row in _between_words(weights, one.words)]
    for name, queries in one.asked.items():
        for query, partners in queries:
            _count(sums, name, best_word[query] in partners)


def _rarest(one: Encoded, counts: Counter[int], common: set[int]) -> int | None:
    """The first of the rarest tokens of a sentence, or None where even that is frequent in the corpus."""
    if not one.real:
        return None
    rarest = one.real[0]
    for token in one.real:
        if counts[one.ids[token]] < counts[one.ids[rarest]]:
            rarest = token
    return None if one.ids[rarest] in common else rarest


def _between_words(weights: Matrix, words: list[list[int]]) -> Matrix:
    """Sum over the pieces of the key word, mean over those of the query word."""
    return [
        [sum([weights[q][k] for q in query for k in key]) / max(1, len(query)) for key in words]
        for query in words
    ]  # fmt: skip


def _baselines(encoded: list[Encoded]) -> dict[str, float]:
    """For each relation and way the share of queries that have a partner at the best single offset."""
    right: dict[str, Counter[int]] = defaultdict(Counter)
    total: Counter[str] = Counter()
    for one in encoded:
        for name, queries in one.asked.items():
            total[name] += len(queries)
            for query, partners in queries:
                right[name].update(p - query for p in partners if abs(p - query) <= 20)
    return {name: max(right[name].values(), default=0) / total[name] for name in total if total[name]}


def _largest(weights: list[float], keys: Sequence[int]) -> int:
    return max(keys, key=weights.__getitem__)  # the first of equals


def _count(sums: Ratio, column: str, value: float) -> None:
    sums[column][0] += value
    sums[column][1] += 1


def _table(sums: dict[tuple[str, int, int], Ratio]) -> pd.DataFrame:
    index = pd.MultiIndex.from_tuples(sums, names=["kind", "layer", "head"])
    rows = [{name: top / bottom for name, (top, bottom) in ratio.items()} for ratio in sums.values()]
    return pd.DataFrame(rows, index=index).sort_index()
