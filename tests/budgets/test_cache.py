"""The cache with a budget: the masked model's logits and texts, in prefill, in parts and by token; and its bytes."""

from __future__ import annotations

import copy
import gc
from dataclasses import replace

import pytest
import torch
from helpers.budgets import PATTERN, budget, gates_of, given

import headroles as hr
from headroles.budgets.calibration import group_index

LENGTH = 24


def inputs(padding="left"):
    ids = torch.randint(4, 96, (2, LENGTH), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    if padding:
        mask[1, :6] = 0
    return ids, mask


CASES = [("llama", 3), ("llama", 0), ("gemma3_text", 1)]  # a seed: which groups stream


def test_cases_have_layers_of_all_kinds():
    """Layers where all groups stream, none, and one of two."""
    kept = [budget(name, keep=1 if name != "llama" else 2, seed=seed)["retrieval"].tolist() for name, seed in CASES]
    layers = {tuple(row[start : start + 2]) for row in kept for start in range(0, len(row), 2)}
    assert {(1.0, 1.0), (0.0, 0.0)} <= layers
    assert {(1.0, 0.0), (0.0, 1.0)} & layers


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("padding", ["left", None])
@pytest.mark.parametrize(("name", "seed"), CASES)
def test_logits_are_those_of_the_masked_model(name, seed, padding, attention):
    model, table = copy.deepcopy(given(name)[0]), budget(name, keep=1 if name != "llama" else 2, seed=seed)
    model.set_attn_implementation(attention)
    ids, mask = inputs(padding)
    real = mask.bool()
    with torch.no_grad():
        own = model(input_ids=ids, attention_mask=mask).logits[real]
        with hr.mask_heads(model, gates_of(table), PATTERN):
            expected = model(input_ids=ids, attention_mask=mask, use_cache=False).logits[real]
        for cuts in ([LENGTH], [10, 14], [9, *[1] * 15], [3, 8, 13]):
            cache, parts, start = hr.BudgetedCache(model, table), [], 0
            for size in cuts:
                seen = slice(start, start + size)
                out = model(input_ids=ids[:, seen], attention_mask=mask[:, : seen.stop], cache=cache)
                parts.append(out.logits)
                start = seen.stop
            logits = torch.cat(parts, 1)[real]
            assert float((logits - expected).abs().max()) <= 1e-5 * float(expected.abs().max())
            assert cache.get_seq_length() == LENGTH
    assert float((own - expected).abs().max()) > 1e-2 * float(expected.abs().max())


@pytest.mark.parametrize("gone", ["L0H0", "L0H0,L0H1,L0H2,L0H3"])
def test_groups_of_a_pruned_model_are_those_with_heads_left(gone):
    model, (ids, _) = hr.remove_heads(copy.deepcopy(given()[0]), gone), inputs()
    sites = hr.attention_sites(model)
    for by in ("l0", "retrieval"):
        table = hr.cache_budget(model, *given()[1:], keep=1, by=by, sink=2, recent=3, steps=2)
        assert table.index.tolist() == [(*site.key, group) for site in sites if site.remaining for group in (0, 1)]
        with hr.mask_heads(model, gates_of(table)[-len(sites.gate_index) :], PATTERN):
            expected = model(input_ids=ids, use_cache=False).logits
        torch.testing.assert_close(model(input_ids=ids, cache=hr.BudgetedCache(model, table)).logits, expected)
    assert group_index([replace(sites[1], zeroed=(0, 1))]).tolist() == [("dec-self", 1, 1)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{}, {"do_sample": True}, {"num_beams": 3}, {"num_return_sequences": 2, "num_beams": 2}]
)
@pytest.mark.parametrize(("name", "seed"), CASES[1:])
def test_generated_texts_are_those_of_the_masked_model(name, seed, options):
    model, table = given(name)[0], budget(name, keep=1 if name != "llama" else 2, seed=seed)
    ids, mask = inputs()
    written = []
    for is_cached in (True, False):
        kept = {"cache": hr.BudgetedCache(model, table)} if is_cached else {"use_cache": False}
        gates = torch.ones(8) if is_cached else gates_of(table)
        torch.manual_seed(0)
        with hr.mask_heads(model, gates, None if is_cached else PATTERN):
            options = {"max_new_tokens": 12, "do_sample": False} | options
            text = model.generate(input_ids=ids, attention_mask=mask, **options, **kept)
        written.append(text)
    assert torch.equal(*written)


def test_bytes_are_those_of_what_is_kept():
    model, table = given()[0], budget(seed=3)
    ids, _ = inputs(None)
    cache = hr.BudgetedCache(model, table)
    assert cache.nbytes() == 0
    with torch.no_grad():
        model(input_ids=ids, cache=cache)
    per_token = 2 * 2 * 16 * 4  # two texts; keys and values; size of a head; bytes
    expected = per_token * (2 * LENGTH + 2 * (PATTERN.sink + PATTERN.recent - 1))
    assert cache.nbytes() == expected
    parts = [vars(layer) for layer in cache.layers]
    parts += [vars(part["streamed"]) for part in parts if "streamed" in part]
    held = [tensor for part in parts for tensor in part.values() if isinstance(tensor, torch.Tensor)]
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in held}
    assert sum(storages.values()) - 8 * sum(t.numel() for t in held if t.dtype == torch.long) == expected  # no views


def test_texts_are_reordered_repeated_and_chosen():
    model, table = given()[0], budget(seed=0)
    ids, mask = inputs()
    order = torch.tensor([1, 0, 1])
    with torch.no_grad():
        cache = hr.BudgetedCache(model, table)
        model(input_ids=ids[:, :20], attention_mask=mask[:, :20], cache=cache)
        cache.batch_select_indices(order)
        chosen = model(input_ids=ids[order, 20:], attention_mask=mask[order], cache=cache).logits
        cache = hr.BudgetedCache(model, table)
        model(input_ids=ids[:, :20], attention_mask=mask[:, :20], cache=cache)
        cache.batch_repeat_interleave(2)
        twice = model(
            input_ids=ids[:, 20:].repeat_interleave(2, 0), attention_mask=mask.repeat_interleave(2, 0), cache=cache
        ).logits
    torch.testing.assert_close(chosen, twice[[2, 0, 3]], rtol=0, atol=1e-5 * float(twice.abs().max()))
    cache.reset()
    assert (cache.nbytes(), cache.get_seq_length()) == (0, 0)
    with pytest.raises(ValueError, match=r"cannot be shortened, got crop\(-2\)"):
        cache.crop(-2)


def logits(model, cache=None, start=0):
    """Of the texts from a place on, 0 at padding; the cache has read what is before it."""
    ids, mask = inputs()
    with torch.no_grad():
        return model(input_ids=ids[:, start:], attention_mask=mask, cache=cache).logits * mask[:, start:, None]


def test_other_caches_and_the_model_are_as_before():
    model, table = copy.deepcopy(given()[0]), budget(seed=0)
    before, cache = logits(model), hr.BudgetedCache(model, table)
    assert torch.equal(logits(model), before)
    assert not torch.equal(logits(model, cache), before)
    assert torch.equal(logits(model), before)
    assert model.config._attn_implementation == "sdpa"


def test_a_copied_prefix_goes_on_as_the_cache_that_is_gone():
    model, table = copy.deepcopy(given()[0]), budget(seed=0)
    expected, cache = logits(model, hr.BudgetedCache(model, table)), hr.BudgetedCache(model, table)
    ids, mask = inputs()
    with torch.no_grad():
        model(input_ids=ids[:, :14], attention_mask=mask[:, :14], cache=cache)
    copied = copy.deepcopy(cache)
    del cache
    gc.collect()
    found = logits(model, copied, 14)
    assert float((found - expected[:, 14:]).abs().max()) <= 1e-5 * float(expected.abs().max())


def test_attention_is_chosen_when_the_cache_is_read():
    model, table = copy.deepcopy(given()[0]), budget(seed=0)
    expected, cache = logits(model, hr.BudgetedCache(model, table)), hr.BudgetedCache(model, table)
    model.set_attn_implementation("eager")
    assert float((logits(model, cache) - expected).abs().max()) <= 1e-5 * float(expected.abs().max())
    assert model.config._attn_implementation == "eager"


def test_a_cache_is_not_read_by_another_model_or_attention():
    model, table = copy.deepcopy(given()[0]), budget(seed=0)
    other = copy.deepcopy(model)
    for attention in ("sdpa", "eager"):
        other.set_attn_implementation(attention)
        with pytest.raises(RuntimeError, match="must be read by the model it was made for"):
            logits(other, hr.BudgetedCache(model, table))
    with hr.capture_attention(model, lambda *_: None), pytest.raises(RuntimeError, match="got another model or att"):
        logits(model, hr.BudgetedCache(model, table))
    assert model.config._attn_implementation == "sdpa"
