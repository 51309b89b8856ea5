"""Masks of ones change nothing, masked heads contribute nothing, and masks apply in batches and under beams."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import zoo
from helpers.close import bound, close
from helpers.gates import outputs
from helpers.letters import corpus, tokens_of
from helpers.messages import whole
from helpers.traces import NAMES, _traces

import headroles as hr
from headroles._changes import Changes
from headroles.models import batching, heads, masking
from headroles.testing import checks

GENERATING = [("marian", 1), ("marian", 3), ("t5", 3), ("gpt2", 3), ("llama-grouped", 1), ("bloom", 3)]


def number(model):
    return len(heads.head_index(model))


@pytest.mark.parametrize("name", zoo.each(NAMES))
def test_mask_of_ones_is_bit_identical(name):
    assert checks.identity(zoo.case(name)) == 0


@pytest.mark.parametrize("name", zoo.each(NAMES))
def test_a_masked_head_has_no_influence(name):
    """Noise in one head's slice of the output projection changes the output only while the head is not masked."""
    model = zoo.tiny(name)
    given, site = zoo.inputs(model), heads.attention_sites(model)[-1]
    masked = masking.head_mask(model, [(*site.key, 1)])
    with hr.mask_heads(model, masked):
        before = outputs(model, given)
    plain = outputs(model, given)
    weight = site.out.weight.data if type(site.out).__name__ != "Conv1D" else site.out.weight.data.T
    weight[:, site.size : 2 * site.size] += torch.randn(
        len(weight), site.size, generator=torch.Generator().manual_seed(0)
    )
    if site.call_index == 0 and len({s.out for s in heads.attention_sites(model)}) == len(heads.attention_sites(model)):
        with hr.mask_heads(model, masked):
            assert torch.equal(outputs(model, given), before)
    assert not torch.allclose(outputs(model, given), plain, atol=1e-4)
    assert not torch.allclose(before, plain, atol=1e-4)


@pytest.mark.parametrize(("name", "beams"), GENERATING)
def test_masks_per_example_also_in_generation(name, beams):
    model = zoo.tiny(name)
    assert checks.batched(zoo.case(name)) <= bound(1)
    given = {k: v for k, v in zoo.inputs(model, padded=False).items() if not k.startswith("decoder")}
    options = {"num_beams": beams, "do_sample": False, "max_new_tokens": 6, "pad_token_id": zoo.PAD}
    torch.manual_seed(1)
    both = (torch.rand(2, number(model)) > 0.5).float()
    with hr.mask_heads(model, both):
        batched = model.generate(**given, **options)
    for row in range(2):
        with hr.mask_heads(model, both[row]):
            alone = model.generate(**given, **options)[row]
        shared = min(len(alone), batched.shape[1])
        assert torch.equal(alone[:shared], batched[row, :shared])
    plain = model.generate(**given, **options)
    assert plain.shape != batched.shape or not torch.equal(plain, batched)


@pytest.mark.parametrize("name", ["marian", "bert", "t5", "gpt2", "llama-grouped", "fsmt", "bloom", "albert", "opt"])
def test_replacing_heads_by_their_own_output_changes_nothing(name):
    model = zoo.tiny(name)
    given = zoo.inputs(model, padded=False)
    alone = {key: value[:1] for key, value in given.items()}
    seen = {}
    with torch.no_grad(), _reading(model, seen):
        model(**alone)
    plain = outputs(model, alone)
    with hr.mask_heads(model, torch.zeros(number(model)), replacement=seen):
        close(outputs(model, alone), plain)


@pytest.mark.parametrize("padded", [True, False])  # without padding an encoder has no mask at all
@pytest.mark.parametrize("name", ["marian", "bert", "gpt2", "llama-grouped", "t5"])
def test_replacement_uniform(name, padded):
    """A head that attends uniformly by itself (queries of zero) is not changed by the replacement "uniform"."""
    model = zoo.tiny(name)
    given = zoo.inputs(model, padded=padded)
    mask = torch.zeros(number(model))
    with hr.mask_heads(model, mask, replacement="uniform"):
        filled = outputs(model, given)
    assert not torch.allclose(filled, outputs(model, given), atol=1e-3)
    _silence_queries(model)
    torch.testing.assert_close(outputs(model, given), filled, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["gpt2", "llama-grouped"])
def test_replacement_uniform_without_allowed_keys_is_finite(name):
    """The first tokens of a text that is padded on the left may attend to no token."""
    model = zoo.tiny(name)
    given = zoo.inputs(model, padded=False)
    given["attention_mask"] = torch.ones_like(given["input_ids"])
    given["attention_mask"][1, :2] = 0
    with hr.mask_heads(model, torch.zeros(number(model)), replacement="uniform"):
        assert outputs(model, given).isfinite().all()


def test_a_gate_of_one_half_averages_output_and_replacement():
    """In the first layer, whose inputs no gate changes; a function takes the next example (the last: the first)."""
    model = zoo.tiny("bert")
    given, g = zoo.inputs(model, batch=3, padded=False), torch.linspace(-0.5, 1.5, 8)
    made = {site.key: torch.rand(site.heads, site.size) for site in heads.attention_sites(model)}
    plain, mixed = {}, {}
    with torch.no_grad(), _reading(model, plain):
        model(**given)
    z, first = plain["enc-self", 0], g[:4, None]
    for replacement, instead in ("zero", 0), (lambda _, z: z.roll(-1, 0), z[[1, 2, 0]]), (made, made["enc-self", 0]):
        with torch.no_grad(), hr.mask_heads(model, g, replacement=replacement), _reading(model, mixed):
            model(**given)
        torch.testing.assert_close(mixed["enc-self", 0], first * z + (1 - first) * instead)


def test_a_shared_projection_is_masked_layer_by_layer():
    model, silent = zoo.tiny("albert", num_hidden_layers=3), []
    (out,) = {site.out for site in heads.attention_sites(model)}
    with hr.mask_heads(model, masking.head_mask(model, [("enc-self", 1, head) for head in range(4)])):
        out.register_forward_pre_hook(lambda _, args: silent.append(not args[0].any()))
        outputs(model, zoo.inputs(model))
    assert silent == [False, True, False]


@pytest.mark.parametrize("replacement", ["zero", "uniform"])
def test_gates_may_be_more_precise_than_the_model(replacement):
    """The output of a head keeps the model's dtype; the gradient of its gate is accumulated in the gate's dtype."""
    model = zoo.tiny("bert").bfloat16()
    given = zoo.inputs(model)
    both = torch.rand(2, number(model), generator=torch.Generator().manual_seed(0))
    for g in (both[0].requires_grad_(), both.detach().requires_grad_()):
        with hr.mask_heads(model, g, replacement=replacement):
            found = model(**given)[0]
        assert found.dtype == torch.bfloat16
        found.float().square().sum().backward()
        assert (g.grad.dtype, g.grad.isfinite().all(), g.grad.all()) == (torch.float32, True, True)
    z, c = torch.rand(2, 2, 100, 4, 8, generator=torch.Generator().manual_seed(1)).bfloat16()
    for shape, over in ((4, 1), (0, 1, 3)), ((2, 1, 4, 1), (1, 3)):
        g = torch.full(shape, 0.5, requires_grad=True)
        masking.Gate.apply(z, g).backward(c)
        torch.testing.assert_close(g.grad, (z.float() * c.float()).sum(over).reshape(shape))


@pytest.mark.parametrize("kept", [torch.bfloat16, torch.float32])
def test_mean_is_accumulated_in_float64(kept):
    model = zoo.tiny("bert").to(kept)
    given, seen = zoo.inputs(model, batch=16, source=30, padded=False), {}
    side = batching.TokenView(
        given["input_ids"], *[given["attention_mask"].bool()] * 2, given["input_ids"], (None, None)
    )
    found = masking.mean(model, [batching.Batch(tuple(range(16)), given, side, side)])
    with torch.no_grad(), _reading(model, seen):
        model(**given)
    for key, z in seen.items():
        rounded = {"rtol": torch.finfo(kept).eps, "atol": 0}  # once: to this or the next number
        torch.testing.assert_close(found[key], z.double().mean((0, 1)).to(kept), **rounded)


@pytest.mark.parametrize("name", ["marian", "fsmt"])  # with a cache FSMT's decoder would see the words to come
def test_mean_leaves_out_padding(name):
    model = zoo.tiny(name)
    given = zoo.inputs(model)
    pairs = [[given[f"{side}{what}"] for what in ("input_ids", "attention_mask")] for side in ("", "decoder_")]
    sides = [batching.TokenView(ids, mask.bool(), mask.bool(), ids, (None, None)) for ids, mask in pairs]
    found = masking.mean(model, [batching.Batch((0, 1), given, *sides)])
    seen = {}
    with torch.no_grad(), _reading(model, seen):
        model(**given, use_cache=False)
    for site in heads.attention_sites(model):
        present = sides[site.kind != "enc-self"].attention_mask
        torch.testing.assert_close(found[site.key], seen[site.key][present].mean(0))


@pytest.mark.parametrize("each", [False, True], ids=["gates", "gates of each example"])
def test_gates_and_replacements_by_means_have_right_gradients(each):
    model = zoo.tiny("bert").double()
    given, sites = zoo.inputs(model), heads.attention_sites(model)
    draw = torch.Generator().manual_seed(0)
    size = (len(given["input_ids"]), 8) if each else (8,)
    gates = torch.rand(size, generator=draw, dtype=torch.float64, requires_grad=True)
    means = [torch.rand(s.heads, s.size, generator=draw, dtype=torch.float64, requires_grad=True) for s in sites]

    def total(gates, *means):
        with hr.mask_heads(model, gates, replacement={s.key: mean for s, mean in zip(sites, means, strict=True)}):
            return model(**given)[0].square().sum()

    assert torch.autograd.gradcheck(total, (gates, *means), fast_mode=True)


@pytest.mark.parametrize("name", ["bert", "marian"])
def test_gates_carry_gradients_in_a_block_that_began_without(name):
    model = zoo.tiny(name)
    ones = torch.ones(number(model), requires_grad=True)
    with hr.mask_heads(model, ones):
        plain = outputs(model, zoo.inputs(model))
        model(**zoo.inputs(model))[0].square().sum().backward()
        assert torch.equal(outputs(model, zoo.inputs(model)), plain)
    assert (ones.grad != 0).all()


def test_replacement_may_be_more_precise_than_the_model_or_an_array():
    model = zoo.tiny("bert")
    replacement = {
        site.key: torch.rand(site.heads, site.size, dtype=torch.float64) for site in heads.attention_sites(model)
    }
    found = []
    single = {key: value.float() for key, value in replacement.items()}
    for given in (replacement, single, {key: value.numpy() for key, value in single.items()}):
        with hr.mask_heads(model, torch.zeros(8), replacement=given):
            found.append(outputs(model, zoo.inputs(model)))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[1], found[2])
    assert not torch.allclose(found[0], outputs(model, zoo.inputs(model)), atol=1e-3)


def test_blocks_leave_no_trace_even_by_an_exception_and_touch_no_other_model():
    model, other = zoo.tiny("bert"), zoo.tiny("bert", seed=1)
    given = zoo.inputs(model)
    before, plain = _traces(model), outputs(other, given)

    def fail():
        with hr.mask_heads(model, torch.zeros(number(model)), replacement="uniform"):
            assert torch.equal(outputs(other, given), plain)
            raise KeyError("on purpose")

    with pytest.raises(KeyError, match="on purpose"):
        fail()
    assert _traces(model) == before


def test_head_mask_is_zero_at_the_named_heads():
    model = zoo.tiny("marian")
    closed = [("dec-self", 1, 2), ("cross", 0, 3)]
    mask = masking.head_mask(model, closed)
    assert [head for head, gate in zip(heads.head_index(model), mask, strict=True) if gate != 1] == closed
    assert mask.sum() == number(model) - 2


def test_fixed_gates_get_no_gradient_and_pass_it_on():
    model = zoo.tiny("bert")
    fixed, given = torch.full((8,), 0.5), zoo.inputs(model)
    with hr.mask_heads(model, fixed):
        model(**given)[0].square().sum().backward()
    assert fixed.grad is None
    by_gate = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    model.zero_grad()
    for site in heads.attention_sites(model):
        site.out.weight.data *= 0.5  # half of every head
    model(**given)[0].square().sum().backward()
    weights = {site.out.weight for site in heads.attention_sites(model)}
    others = [parameter for parameter in model.parameters() if parameter.grad is not None]
    for parameter, grad in zip(others, by_gate, strict=True):
        factor = 0.5 if parameter in weights else 1
        torch.testing.assert_close(factor * parameter.grad, grad, atol=1e-5, rtol=1e-4)


def _reading(model, seen):
    sites = heads.attention_sites(model)

    def begin(changes):
        masking.read_heads(changes, sites, lambda site, z: seen.update({site.key: z.clone()}))

    return Changes(model, begin)


def _silence_queries(model):
    """Set queries (and position biases) to zero, so that every head attends uniformly."""
    for name, parameter in model.named_parameters():
        parts = ("q_proj", ".query.", "SelfAttention.q.", "EncDecAttention.q.", "relative_attention")
        if any(part in name for part in parts):
            parameter.data.zero_()
        if "c_attn" in name:
            parameter.data[..., : parameter.shape[-1] // 3].zero_()


@pytest.mark.parametrize(
    "convert",
    [
        *(torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.double, torch.Tensor.bool, pd.Series),
        lambda gates: tuple(map(int, gates)),
        lambda gates: lambda: gates.tolist(),
        lambda gates: pd.Series(gates).to_numpy(),  # read-only
    ],
)
def test_gates_may_be_any_numbers(convert):
    model, inputs = zoo.tiny("bert"), {"input_ids": torch.arange(5, 12)[None]}
    gates = hr.head_mask(model, [("enc-self", 0, 1)])
    with hr.mask_heads(model, gates):
        expected = model(**inputs).logits
    with hr.mask_heads(model, convert(gates)):
        assert torch.equal(model(**inputs).logits, expected)


@pytest.mark.parametrize("function", ["evaluate", "ablate", "score", "importance"])
def test_functions_refuse_gates_of_each_example(function):
    """They read batches of their own, sorted by length: the gates would go to other examples."""
    case = zoo.case("gpt2")
    gates = torch.ones(2, number(case.model))
    call = {"importance": "score"}.get(function, function)
    options = {"importance": {"scores": ["importance"]}}.get(function, {})
    message = (
        f"a block of hr.mask_heads is open on {type(case.model).__name__} with gates per example: got a function "
        "that makes its own batches; expected one gate per head; try it outside the block"
    )
    with hr.mask_heads(case.model, gates), pytest.raises(ValueError, match=whole(message)):
        getattr(hr, call)(case.model, case.tokenizer, case.corpus, **options)
    with hr.mask_heads(case.model, gates[0]):
        assert len(getattr(hr, call)(case.model, case.tokenizer, case.corpus, **options))


def uncached(model, inputs):
    with torch.no_grad():
        return model(**inputs, use_cache=False).logits


@pytest.mark.slow
@pytest.mark.parametrize("how", ["module", "function", "layer"])
@pytest.mark.parametrize("first", ["masked", "intact"])
def test_masks_of_compiled_models_have_their_effect(how, first):
    model = deepcopy(zoo.tiny("llama-grouped"))
    inputs = {"input_ids": torch.arange(5, 14)[None]}
    mask = hr.head_mask(model, [(hr.attention_sites(model)[0].kind, 0, 0)])
    intact = uncached(model, inputs)
    with hr.mask_heads(model, mask):
        masked = uncached(model, inputs)
    compiled = model
    if how == "module":
        model.compile(backend="aot_eager")
    elif how == "function":
        compiled = torch.compile(model, backend="aot_eager")
    else:
        model.model.layers[0] = torch.compile(model.model.layers[0], backend="aot_eager")
    if first == "intact":
        torch.testing.assert_close(uncached(compiled, inputs), intact)
    for _ in range(2):
        with hr.mask_heads(compiled, mask):
            torch.testing.assert_close(uncached(compiled, inputs), masked)
        torch.testing.assert_close(uncached(compiled, inputs), intact)
    effects = hr.ablate(compiled, tokens_of("llama-grouped"), corpus(6), n_resamples=0)
    plain = hr.ablate(deepcopy(zoo.tiny("llama-grouped")), tokens_of("llama-grouped"), corpus(6), n_resamples=0)
    np.testing.assert_allclose(effects.to_numpy(float), plain.to_numpy(float), rtol=1e-5, atol=1e-6)
