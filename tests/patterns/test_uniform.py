"""Uniform and streaming attention, by plain loops: padding, windows of the latest tokens, and weights of one's own."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from helpers.imposed import imposed_equals_loop, table, tiny
from helpers.letters import observation
from helpers.messages import whole
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

import headroles as hr
from headroles.models.attention_hooks import eager
from headroles.patterns import Streaming, Uniform


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


def test_imposed_is_a_slow_loop():
    imposed_equals_loop(
        tiny("marian"), Uniform(), "enc-self",
        lambda _: lambda _, own: torch.full((len(own),), 1 / len(own)),
    )  # fmt: skip

    def row(query, own):
        kept = own * torch.tensor([key < 1 or query - key < 2 for key in range(len(own))])
        return kept / kept.sum()

    imposed_equals_loop(tiny("llama"), Streaming(1, 2), "dec-self", lambda _: row)
    imposed_equals_loop(tiny("llama", num_key_value_heads=2), Streaming(1, 2), "dec-self", lambda _: row)


def test_a_wide_stream_is_the_head_itself():
    case = tiny("llama")
    with torch.no_grad(), hr.mask_heads(case.model, torch.zeros(case.heads), Streaming(4, 100)):
        imposed = case.output(case.model)
    torch.testing.assert_close(imposed, case.plain, rtol=0, atol=1e-5 * float(case.plain.abs().max()))


def test_wrong_streams_are_refused():
    for sink, recent in ((-1, 1), (0, 0)):
        message = f"wrong stream: got sink={sink}, recent={recent}; expected at least 0 and at least 1"
        with pytest.raises(ValueError, match=whole(message)):
            Streaming(sink, recent)


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


def test_a_long_text_streams_in_the_numbers_of_a_short_one():
    """Tokens far behind the window change nothing, however long the text is: of one layer, what follows is the same."""
    model = hr.tiny_model("llama", num_key_value_heads=2, num_hidden_layers=1, max_position_embeddings=600)
    ids = torch.randint(4, 96, (2, 500), generator=torch.Generator().manual_seed(0))
    ids[1, :3], ids[1, 480:] = ids[0, :3], ids[0, 480:]  # the same sink, and the same end
    with torch.no_grad(), hr.mask_heads(model, torch.zeros(4), Streaming(3, 8)):
        ends = model(input_ids=ids).logits[:, 487:]
    torch.testing.assert_close(ends[0], ends[1], rtol=0, atol=1e-5 * float(ends.abs().max()))
    assert float((ends[0, 0] - ends[0, 1]).abs().max()) > 0.1
