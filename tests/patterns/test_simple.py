"""Patterns of positions and tokens: targets by plain loops, and imposed as slow loops."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
from helpers.imposed import alike, at, by_loop, imposed_equals_loop, lettered, table, tiny
from helpers.letters import observation
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

import headroles as hr
from headroles.data.corpus import Corpus
from headroles.models.attention_hooks import eager
from headroles.models.parts import sharing
from headroles.patterns import Duplicate, First, Induction, Offset, Previous, Rarest, Special, Streaming, Uniform


@pytest.mark.parametrize("offset", [-9, -2, -1, 0, 1, 3])
@pytest.mark.parametrize("kind", ["enc-self", "dec-self"])
def test_targets_are_content_tokens_at_the_offset(offset, kind):
    special = (0, 4, 7)
    places = [query + offset for query in range(8)]
    is_there = [0 <= key < 8 and key not in special and (kind != "dec-self" or offset <= 0) for key in places]
    expected = [at(key, 8).tolist() if there else [0.0] * 8 for key, there in zip(places, is_there, strict=True)]
    assert table(Offset(offset), observation(torch.ones(8, 8), kind=kind, special=special)) == expected


@pytest.mark.parametrize(
    ("name", "options", "kind", "pattern"),
    [("bert", {}, "enc-self", Offset(1)), ("t5", {}, "dec-self", Previous()),
     ("llama", {"num_key_value_heads": 2}, "dec-self", Previous()), ("gemma3_text", {}, "dec-self", Previous())]
)  # fmt: skip
def test_imposed_offsets_are_slow_loops(name, options, kind, pattern):
    def row(batch):
        (content,) = batch.keys(kind).content.tolist()
        (queries,) = batch.queries(kind).content.tolist()
        there = lambda key: 0 <= key < len(content) and content[key]  # noqa: E731
        return lambda query, _: (
            alike([key for key in [query + pattern.offset] if there(key)], len(content)) if queries[query] else None
        )

    imposed_equals_loop(tiny(name, **options), pattern, kind, row)


def test_the_first_token_is_not_padding():
    seen = observation(torch.ones(5, 5), special=(0,))
    assert table(First(), seen) == [at(0, 5).tolist()] * 5
    mask = torch.tensor([[False, False, True, True, True]])
    assert table(First(), replace(seen, keys=replace(seen.keys, attention_mask=mask))) == [at(2, 5).tolist()] * 5


def test_special_tokens_share_the_weight():
    for kind in ("enc-self", "dec-self", "cross"):
        seen = observation(torch.ones(5, 5), kind=kind, special=(1, 3))
        expected = []
        for query in range(5):
            places = [key for key in (1, 3) if kind != "dec-self" or key <= query]
            expected.append(alike(places, 5).tolist() if places else [0.0] * 5)
        assert table(Special(), seen) == expected


def test_imposed_first_tokens_are_slow_loops():
    for name in ("bert", "t5"):
        imposed_equals_loop(tiny(name), First(), "enc-self", lambda batch: lambda *_: at(0, batch.source.ids.shape[1]))
    # past the window a head attends by itself
    window = lambda batch: lambda query, _: at(0, batch.source.ids.shape[1]) if query < 3 else None  # noqa: E731
    imposed_equals_loop(tiny("mistral", sliding_window=3), First(), "dec-self", window)


@pytest.mark.parametrize("kind", ["enc-self", "dec-self", "cross"])
def test_every_token_alike_but_padding(kind):
    seen = observation(torch.ones(4, 4), kind=kind, special=(0,))
    padded = replace(seen, keys=replace(seen.keys, attention_mask=torch.tensor([[True, True, True, False]])))
    shares = [1, 2, 3, 3] if kind == "dec-self" else [3] * 4
    expected = [[1 / share] * share + [0] * (4 - share) for share in shares]
    assert table(Uniform(), padded) == [pytest.approx(row) for row in expected]


@pytest.mark.parametrize("kind", ["enc-self", "dec-self"])
def test_streaming_keeps_the_first_and_the_latest(kind):
    weights = torch.rand(7, 7).tril() if kind == "dec-self" else torch.rand(7, 7)
    expected = []
    for query, row in enumerate(weights.tolist()):
        kept = [weight * (key < 2 or abs(query - key) < 3) for key, weight in enumerate(row)]
        expected.append([weight / sum(kept) for weight in kept])
    (got,) = Streaming(2, 3).targets(observation(weights, kind=kind))[0].tolist()
    assert got == [pytest.approx(row) for row in expected]


def test_imposed_uniform_is_a_slow_loop():
    row = lambda _: lambda _, own: torch.full((len(own),), 1 / len(own))  # noqa: E731
    imposed_equals_loop(tiny("marian"), Uniform(), "enc-self", row)


# --- streaming, against attention under another mask ----------------------------------------------------------------

NAME = "streaming in a loop"
STREAMED = {}  # module -> heads that stream, sink, recent, first tokens of the texts


def attend(module, query, key, value, mask, **options):
    """The model's own attention, where some heads have a mask of their own: query by query, key by key."""
    mask = mask.expand(-1, query.shape[1], -1, -1).clone()
    heads, sink, recent, first = STREAMED.get(module, ((), 0, 0, ()))
    for row, start in enumerate(first):
        for place in range(mask.shape[2]):
            for other in range(mask.shape[3]):
                if other - start >= sink and place - other >= recent:
                    mask[row, list(heads), place, other] = torch.finfo(mask.dtype).min
    return eager(module)(module, query, key, value, mask, **options)


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, eager_mask)


@pytest.mark.parametrize("padding", ["left", "right", None])
@pytest.mark.parametrize("name", ["llama", "gemma3_text"])  # the first layer of Gemma 3 has a window of 4 tokens
def test_streaming_is_attention_under_a_mask(name, padding):
    model = hr.tiny_model(name, num_key_value_heads=2)
    ids = torch.randint(4, 96, (2, 19), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    if padding:
        mask[1, slice(0, 6) if padding == "left" else slice(13, 19)] = 0
    first = (0, 6) if padding == "left" else (0, 0)
    gates, heads = torch.ones(8), {0: (1, 2), 1: (0, 3)}
    for layer, streaming in heads.items():
        gates[[4 * layer + head for head in streaming]] = 0
    real = mask.bool()
    with torch.no_grad():
        own = model(input_ids=ids, attention_mask=mask).logits[real]
        with hr.mask_heads(model, gates, Streaming(2, 3)):
            imposed = model(input_ids=ids, attention_mask=mask).logits[real]
        sites = hr.attention_sites(model)
        model.set_attn_implementation(NAME)
        STREAMED.update({site.module: (heads[site.layer], 2, 3, first) for site in sites})
        expected = model(input_ids=ids, attention_mask=mask).logits[real]
        STREAMED.clear()
    size = float(expected.abs().max())
    assert float((imposed - expected).abs().max()) <= 1e-5 * size
    assert float((own - expected).abs().max()) > 1e-2 * size


@pytest.mark.parametrize("kind", ["enc-self", "dec-self", "cross"])
def test_targets_are_the_rarest_token(kind):
    """Small ids are frequent here; of two that occur as often, the first is taken."""
    seen = observation(torch.ones(5, 5), kind=kind, special=(4,), ids=[5, 30, 600, 600, 999])
    expected = [at(2, 5).tolist() if kind != "dec-self" or query >= 2 else [0.0] * 5 for query in range(5)]
    assert table(Rarest(), seen) == expected
    assert table(Rarest(700), seen) == [[0.0] * 5] * 5


def test_ablated_is_a_slow_loop():
    case, head = lettered("gpt2"), ("dec-self", 1, 2)
    rows = [case.tokenizer(sentence.text)["input_ids"] for sentence in case.corpus]
    special = set(case.tokenizer.all_special_ids)
    counts = Counter(token for row in rows for token in row if token not in special)
    changes, steps = 0.0, 0
    slow = sharing(case.model)
    site = next(site for site in hr.attention_sites(slow) if site.key == head[:2])
    for ids in rows:
        rarest = min(range(len(ids)), key=lambda place: counts[ids[place]] or len(rows) ** 3)  # noqa: B023
        row = lambda query, _: at(rarest, len(ids)) if query >= rarest and ids[query] not in special else None  # noqa: B023, E731
        inputs = torch.tensor([ids])
        labels = inputs.clone()
        with torch.no_grad(), by_loop(slow, site, head[2], row):
            imposed = slow(inputs, labels=labels).loss
        with torch.no_grad():
            changes += float(imposed - case.model(inputs, labels=labels).loss) * (len(ids) - 1)
        steps += len(ids) - 1
    table = hr.ablate(
        case.model, case.tokenizer, case.corpus, sets={"one": [head]}, replacement=Rarest(0), n_resamples=0
    )
    assert abs(changes / steps) > 1e-3
    assert table.iloc[0, 0] == pytest.approx(changes / steps, rel=1e-4)


IDS = [9, 7, 9, 9, 8, 7, 9, 8]


def places(pattern, query, ids, content):
    """Earlier content tokens with the id of the query, or the tokens after these and before the query."""
    earlier = [key for key in range(query) if ids[key] == ids[query] and content[key]]
    return [key + 1 for key in earlier if key + 1 < query] if pattern == Induction() else earlier


@pytest.mark.parametrize("pattern", [Induction(), Duplicate()])
@pytest.mark.parametrize("special", [(), (3,)])
def test_targets_are_those_of_a_loop(pattern, special):
    seen = observation(torch.ones(8, 8).tril(), kind="dec-self", ids=IDS, special=special)
    ids, content = seen.keys.ids[0].tolist(), seen.keys.content[0].tolist()
    expected = []
    for query in range(8):
        weights = alike(places(pattern, query, ids, content), 8)
        expected.append([0.0] * 8 if weights is None else weights.tolist())
    assert table(pattern, seen) == expected


@pytest.mark.parametrize("pattern", [Induction(), Duplicate()])
def test_imposed_repeats_are_slow_loops(pattern):
    case = tiny("gpt2")
    case.corpus = Corpus.of([f"{case.corpus[0].text} {case.corpus[0].text}"])

    def row(batch):
        (ids,) = batch.source.ids.tolist()
        return lambda query, _: alike(places(pattern, query, ids, [True] * len(ids)), len(ids))

    imposed_equals_loop(case, pattern, "dec-self", row)
