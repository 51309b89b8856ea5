"""Offset: the token at a distance, measured by a plain loop, and imposed on every kind of self-attention."""

from __future__ import annotations

import pytest
import torch
from helpers.imposed import alike, at, imposed_equals_loop, table, tiny
from helpers.letters import observation
from helpers.messages import whole

import headroles as hr
from headroles.patterns import Offset, Previous


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
    [
        ("bert", {}, "enc-self", Offset(1)),
        ("t5", {}, "enc-self", Offset(-2)),
        ("t5", {}, "dec-self", Previous()),
        ("llama", {"num_key_value_heads": 2}, "dec-self", Previous()),
        ("llama", {"num_key_value_heads": 1}, "dec-self", Offset(0)),
        ("gemma3_text", {}, "dec-self", Previous()),
        ("marian", {}, "dec-self", Previous()),
    ],
)
def test_imposed_is_a_slow_loop(name, options, kind, pattern):
    def row(batch):
        (content,) = batch.keys(kind).content.tolist()
        (queries,) = batch.queries(kind).content.tolist()
        there = lambda key: 0 <= key < len(content) and content[key]  # noqa: E731
        return lambda query, _: (
            alike([key for key in [query + pattern.offset] if there(key)], len(content)) if queries[query] else None
        )

    imposed_equals_loop(tiny(name, **options), pattern, kind, row)


def test_a_decoder_cannot_look_ahead():
    case = tiny("llama")
    message = "a decoder cannot look ahead: got Offset(offset=1) for model.layers.0.self_attn; expected an offset of "
    zeros = torch.zeros(case.heads)
    with pytest.raises(ValueError, match=whole(message + "0 or below")), hr.mask_heads(case.model, zeros, Offset(1)):
        pass


def test_an_offset_is_a_whole_number():
    with pytest.raises(ValueError, match=whole("no whole number of tokens: got offset=-1.5; expected one such as -1")):
        Offset(-1.5)
