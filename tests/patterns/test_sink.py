"""Sinks: the first token and special tokens, also behind padding and within a window."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from helpers.imposed import alike, at, imposed_equals_loop, table, tiny
from helpers.letters import observation

import headroles as hr
from headroles.models.batching import Encoded
from headroles.models.head_model import HeadModel
from headroles.patterns import First, Offset, Shift, Special, Where


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


def test_padding_is_no_special_token():
    seen = observation(torch.ones(4, 4), special=(0, 3))
    mask = torch.tensor([[True, True, True, False]])
    assert table(Special(), replace(seen, keys=replace(seen.keys, attention_mask=mask))) == [at(0, 4).tolist()] * 4


def test_a_forward_does_not_know_which_tokens_are_special():
    case = tiny("bert")
    handle = HeadModel(case.model, case.tokenizer)
    (batch,) = handle.batches(handle.encode(case.corpus[:1]))
    for pattern in (Special(), Shift(Special(), 1), Where(Offset(1), Special())):
        block = hr.mask_heads(case.model, hr.head_mask(case.model, [("enc-self", 0, 2)]), replacement=pattern)
        with (
            block,
            pytest.raises(ValueError, match=r"^pattern .* needs the ids of special tokens, and a forward has none"),
        ):
            case.model(**batch.inputs)


def test_imposed_is_a_slow_loop():
    for name in ("bert", "t5"):
        imposed_equals_loop(tiny(name), First(), "enc-self", lambda batch: lambda *_: at(0, batch.source.ids.shape[1]))


def test_past_the_window_a_head_attends_by_itself():
    window = lambda batch: lambda query, _: at(0, batch.source.ids.shape[1]) if query < 3 else None  # noqa: E731
    imposed_equals_loop(tiny("mistral", sliding_window=3), First(), "dec-self", window)


def test_special_tokens_imposed_are_a_slow_loop():
    case = tiny("bert")
    handle = HeadModel(case.model, case.tokenizer)
    encoded: Encoded = handle.encode(case.corpus[:1])
    ids = encoded.source[0].ids
    (batch,) = handle.batches(replace(encoded, special=frozenset({ids[1], ids[4]})))
    places = [place for place, token in enumerate(ids) if token in (ids[1], ids[4])]
    gates = handle.head_mask([("enc-self", 0, 2)])
    with torch.no_grad(), handle.mask(gates, Special().of(batch)):
        imposed = case.output(case.model, batch.inputs)
    site = handle.sites[0]
    kept = {}
    site.module.value.register_forward_hook(lambda _, __, output: kept.update(value=output))

    def replaced(_, args):
        part = slice(2 * site.size, 3 * site.size)
        states = args[0].clone()
        for query in range(len(ids)):
            if query not in places:
                states[0, query, part] = kept["value"][0, places, part].mean(0)
        return (states,)

    site.out.register_forward_pre_hook(replaced)
    expected = case.output(case.model, batch.inputs)
    assert not torch.allclose(expected, hr.tiny_model("bert")(**batch.inputs).logits, rtol=1e-3)
    assert float((imposed - expected).abs().max()) <= 1e-5 * float(expected.abs().max())
