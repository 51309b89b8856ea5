"""Pruning in rounds: layers without a head are cut, compared, saved, loaded and quantised as any other."""

from __future__ import annotations

import copy
import re
import warnings
from functools import cache
from random import Random

import pandas as pd
import pytest
import torch
import transformers
from helpers import zoo
from helpers.gates import outputs
from helpers.letters import corpus, tokens_of
from helpers.removals import closing, first_layers, mixed, numbered, reloaded, snapshot, unchanged, unpruned
from helpers.traces import NAMES, _traces

import headroles as hr
from headroles.models import heads as families
from headroles.models import masking
from headroles.models.dummy_inputs import examples
from headroles.models.head_model import HeadModel
from headroles.models.parts import width
from headroles.models.sites import recorded
from headroles.pruning import removal
from headroles.pruning.removal import layouts, remove_heads
from headroles.testing.tiny_models import tiny_model

CUT = [name for name in NAMES if name not in ("fsmt", "olmo2")]  # heads of these cannot be removed


# of what follows from the cut itself: an encoder with a decoder, two models in one, relative positions, layers that are
# one module, queries with their keys and values (side by side, or head by head), shared keys, in one map or not
SOME = ["marian", "albert", "gpt2", "llama-grouped"]
SOME += [pytest.param(name, marks=pytest.mark.slow) for name in ("bert2gpt2", "t5", "bloom", "phi3")]


def apart(one, other):
    """The largest difference, measured by the largest number if that is above 1."""
    return float((one.double() - other.double()).abs().max()) / max(float(other.abs().max()), 1.0)


def rows(*owners, size=8):
    """Runs of equal length, each of some heads."""
    return [(frozenset(heads), size * i, size * (i + 1)) for i, heads in enumerate(owners)]


@cache
def cut(name):
    """The same without its `mixed` heads: not to be changed either."""
    return remove_heads(zoo.tiny(name), mixed(unpruned(name)))


@cache
def cut_again(name):
    """That, then also without head 2 of every layer: not to be changed either."""
    return remove_heads(copy.deepcopy(cut(name)), numbered(unpruned(name), 2))


@cache
def without_first_layers(name):
    """The model of a family without any head in its first layers: not to be changed either."""
    return remove_heads(zoo.tiny(name), first_layers(unpruned(name)))


def silent(name):
    """Those of `mixed` that stay: a head of their group is open, and another group has no closed head."""
    return {
        (kind, layer, head)
        for kind, layer, heads, kv_heads, _ in zoo.EXPECTED[name]
        for head in ((0, 1) if layer == 0 else (1,))
        if 1 < kv_heads < heads and (layer > 0 or heads // kv_heads > 2)
    }


def written(model, name):
    """The tokens a model writes, and how it rates them; what a decoder goes on with is padded on the left."""
    given = {key: value for key, value in zoo.inputs(model).items() if not key.startswith("decoder")}
    if name in zoo.DECODERS:
        given = {key: value.flip(1) for key, value in given.items()}
    options = {"num_beams": 3 if name in zoo.ENCODER_DECODERS else 1, "do_sample": False, "max_new_tokens": 6}
    options |= dict.fromkeys(("output_scores", "output_logits", "return_dict_in_generate"), True)
    told = model.generate(**given, **options, pad_token_id=zoo.PAD)
    return told.sequences, torch.stack(told.logits)


def same_text(model, like, heads, name):
    """A cut model writes as `like` does with heads closed."""
    found, rated = written(model, name)
    with hr.mask_heads(like, masking.head_mask(like, heads)):
        wanted, expected = written(like, name)
    assert torch.equal(found, wanted)
    assert apart(rated, expected) <= 1e-4


# --- every family ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", zoo.each(CUT))
def test_a_pruned_model_has_the_output_of_masked_heads(name):
    model, gone, given = cut(name), mixed(unpruned(name)), zoo.inputs(unpruned(name))
    expected, intact = closing(unpruned(name), gone, given), outputs(unpruned(name), given)
    assert apart(outputs(model, given), expected) <= 1e-5
    assert apart(expected, intact) > 0.1
    assert model.num_parameters() < unpruned(name).num_parameters()
    assert _traces(model)[1:] == _traces(unpruned(name))[1:]
    left = [head for head in families.head_index(unpruned(name)) if head not in set(gone) - silent(name)]
    assert hr.attention_sites(model).gate_index.tolist() == left
    assert families.head_index(model).tolist() == [head for head in left if head not in gone]
    for one in hr.attention_sites(model):
        assert (one.heads, width(one.out)) == (len(one.numbers), one.heads * one.size)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["marian", "bert2gpt2", "albert", "gpt2"])
def test_transformers_alone_does_not_load_a_pruned_model(name, tmp_path):
    """Rather an error than a model with some weights drawn at random."""
    cut(name).save_pretrained(tmp_path)
    pair = isinstance(unpruned(name), transformers.EncoderDecoderModel)  # which is no AutoModel
    for cls in (type(unpruned(name)), transformers.AutoModelForSeq2SeqLM if pair else transformers.AutoModel):
        with pytest.raises(RuntimeError, match="^You set `ignore_mismatched_sizes` to `False`"):
            cls.from_pretrained(tmp_path)


@pytest.mark.parametrize("name", SOME)
def test_a_pruned_model_can_be_pruned_again(name):
    given, second = zoo.inputs(unpruned(name)), numbered(unpruned(name), 2)
    expected = closing(unpruned(name), mixed(unpruned(name)) + second, given)
    assert apart(closing(cut(name), second, given), expected) <= 1e-5
    assert apart(outputs(cut_again(name), given), expected) <= 1e-5
    once = remove_heads(zoo.tiny(name), mixed(unpruned(name)) + second)
    assert families.head_index(cut_again(name)).tolist() == families.head_index(once).tolist()
    assert recorded(cut_again(name).config) == recorded(once.config)
    assert torch.equal(outputs(cut_again(name), given), outputs(once, given))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "llama-grouped", "marian"])
def test_a_whole_layer_can_go(name, tmp_path):
    model, gone, given = without_first_layers(name), first_layers(unpruned(name)), zoo.inputs(unpruned(name))
    assert apart(outputs(model, given), closing(unpruned(name), gone, given)) <= 1e-5
    silent = {(*one.key, number) for one in hr.attention_sites(model) for number in one.zeroed}
    left = [head for head in families.head_index(unpruned(name)) if head not in gone or head in silent]
    assert hr.attention_sites(model).gate_index.tolist() == left
    assert families.head_index(model).tolist() == [head for head in left if head not in silent]
    assert silent <= {(*one.key, 0) for one in hr.attention_sites(unpruned(name))}
    assert silent >= {("dec-self", 0, 0)} & set(gone)  # a decoder's cache takes its length from it
    if name != "llama-grouped":  # its attention can be without any
        assert silent == {("dec-self", 0, 0)} & set(gone)
    assert torch.equal(outputs(reloaded(model, tmp_path), given), outputs(model, given))


@pytest.mark.parametrize("name", [name for name in SOME if name != "albert"])
def test_a_pruned_model_generates_what_it_does_with_masked_heads(name):
    """Also without its first layer, which a cache asks how long the text is."""
    same_text(cut(name), unpruned(name), mixed(unpruned(name)), name)
    same_text(without_first_layers(name), unpruned(name), first_layers(unpruned(name)), name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["marian", "albert", "llama-grouped"])
def test_a_copy_of_a_pruned_model_stands_alone(name):
    model, given = cut(name), zoo.inputs(unpruned(name))
    plain, before = outputs(model, given), snapshot(model)
    other = copy.deepcopy(model)
    assert torch.equal(outputs(other, given), plain)
    assert [one.numbers for one in hr.attention_sites(other)] == [one.numbers for one in hr.attention_sites(model)]
    assert not {one.module for one in hr.attention_sites(other)} & {one.module for one in hr.attention_sites(model)}
    remove_heads(other, numbered(other, 2))
    assert apart(outputs(other, given), plain) > 1e-3
    assert unchanged(model, before)
    assert torch.equal(outputs(model, given), plain)
    backward(other := copy.deepcopy(model).train(), given)
    assert torch.equal(outputs(copy.deepcopy(other).eval(), given), plain)


@pytest.mark.parametrize("name", SOME)
def test_the_gradients_of_a_pruned_model_are_those_of_masked_heads(name):
    model, like, given = copy.deepcopy(cut(name)), zoo.tiny(name), zoo.inputs(unpruned(name))
    gone = mixed(like)
    backward(model, given)
    with hr.mask_heads(like, masking.head_mask(like, gone)):
        backward(like, given)
    attention = tuple({f"{part}." for one in hr.attention_sites(model) for part in (one.name, one.out_name)})
    found, expected = ({key: value.grad for key, value in each.named_parameters()} for each in (model, like))
    assert {key for key in found if found[key] is None} == {key for key in expected if expected[key] is None}
    assert all(grad.isfinite().all() for grad in found.values() if grad is not None)
    for key in found:
        if found[key] is not None and not key.startswith(attention):
            assert apart(found[key], expected[key]) <= 1e-4, key


def backward(model, given):
    torch.manual_seed(0)
    model(**given)[0].square().mean().backward()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["marian", "albert", "deberta-v2", "gpt2"])
def test_a_pruned_model_learns_and_is_saved(name, tmp_path):
    model, given = zoo.tiny(name), zoo.inputs(unpruned(name))
    remove_heads(model.train(), mixed(model))
    assert model.training
    before = outputs(model.eval(), given)
    backward(model.train(), given)
    torch.optim.SGD(model.parameters(), lr=1e-2).step()
    learnt = outputs(model.eval(), given)
    assert learnt.isfinite().all()
    assert apart(learnt, before) > 1e-5
    assert torch.equal(outputs(reloaded(model, tmp_path), given), learnt)


# --- what cannot be cut ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "already", "error"),
    [("bert", False, ValueError), ("t5", True, RuntimeError), ("mpnet", False, IndexError),
     ("phi3", True, ZeroDivisionError), ("gpt2", False, ValueError), ("deberta-v2", True, ValueError),
     ("llama-grouped", True, ValueError), ("bert2gpt2", False, ValueError)],
)  # fmt: skip
def test_a_removal_that_fails_is_undone(name, already, error, monkeypatch):
    model, given = zoo.tiny(name), zoo.inputs(unpruned(name))
    if already:
        remove_heads(model, mixed(model))
    plain, before, sites = outputs(model, given), snapshot(model), [one.numbers for one in hr.attention_sites(model)]
    kinds = [type(one) for one in model.modules()]  # by which layers without heads are quantised

    def check(*_):
        raise error("on purpose")

    monkeypatch.setattr(removal, "_check_same", check)
    why = "on purpose" if error is ValueError else "its own code fails on fewer heads (on purpose)"
    message = f"heads cannot be removed from {type(model).__name__}; mask them instead: {why}"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        remove_heads(model, numbered(model, 2) + ([] if already else first_layers(model)))
    assert unchanged(model, before)
    assert [one.numbers for one in hr.attention_sites(model)] == sites
    assert [type(one) for one in model.modules()] == kinds
    assert torch.equal(outputs(model, given), plain)


# --- query heads that share key-value heads -------------------------------------------------------------------------

# groups: for each of two layers, the heads closed, those left and the key-value heads left; how many are silenced
FEW = [  # heads 0 and 1 share a key-value head, 2 and 3 another
    ("whole", ({0, 1}, (2, 3), 1), ({1}, (0, 1, 2, 3), 2), 1),
    ("equal", ({0, 1}, (2, 3), 1), ({1}, (0, 1, 2, 3), 2), 1),
    ("expand", ({0, 1}, (2, 3), 2), ({1}, (0, 2, 3), 3), 0),
]
MANY = [  # the same
    ("whole", ({1, 2}, (0, 1, 2, 3), 2), ({0, 1, 2}, (2, 3), 1), 3),
    ("equal", ({1, 2}, (0, 3), 2), ({0, 1, 2}, (3,), 1), 0),
    ("expand", ({1, 2}, (0, 3), 2), ({0, 1, 2}, (3,), 1), 0),
]
ALL_SHARE = [  # one key-value head
    ("whole", ({0, 1}, (0, 1, 2, 3), 1), ({1}, (0, 1, 2, 3), 1), 3),
    ("equal", ({0, 1}, (2, 3), 1), ({1}, (0, 2, 3), 1), 0),
]
# no "expand" of the falcons, which have queries, keys and values in turns
SHARING = [("llama-grouped", *case) for case in FEW + MANY] + [("phi3", *case) for case in MANY]
SHARING += [("falcon", *case) for case in ALL_SHARE] + [("falcon-grouped", *case) for case in MANY[:2]]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "groups", "first", "second", "silenced"), SHARING)
def test_which_heads_go_where_heads_share_keys_and_values(name, groups, first, second, silenced, caplog):
    model, given = zoo.tiny(name), zoo.inputs(unpruned(name))
    gone = [("dec-self", layer, head) for layer, each in enumerate((first, second)) for head in each[0]]
    expected = closing(unpruned(name), gone, given)
    remove_heads(model, gone, groups=groups)
    assert apart(outputs(model, given), expected) <= 1e-5
    assert [(one.numbers, one.kv_heads) for one in hr.attention_sites(model)] == [first[1:], second[1:]]
    cases = enumerate((first, second))
    names = [f"dec-self L{layer}H{head}" for layer, each in cases for head in sorted(each[0] & {*each[1]})]
    why = "kept as zeroed, since heads that stay need their keys, or the layer needs a head"
    assert caplog.messages == [f"{why}: {', '.join(names)} ({silenced} in all)"] * bool(silenced)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama-grouped", "qwen2", "qwen3", "gemma3", "phi3"])
def test_heads_with_keys_and_values_of_their_own_write_the_same_and_come_back(name, tmp_path):
    model, given = zoo.tiny(name), zoo.inputs(unpruned(name))
    gone = mixed(model)
    same_text(remove_heads(model, gone, groups="expand"), unpruned(name), gone, name)
    again = reloaded(model, tmp_path)
    assert torch.equal(outputs(again, given), outputs(model, given))
    assert [(one.heads, one.kv_heads) for one in hr.attention_sites(again)] == [(2, 2), (3, 3)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "groups"),
    [("llama-grouped", "whole"), ("llama-grouped", "expand"), ("phi3", "expand"), ("qwen3", "equal")]
)  # fmt: skip
def test_cutting_groups_twice_puts_out_what_cutting_once_does(name, groups):
    model, given = zoo.tiny(name), zoo.inputs(unpruned(name))
    first, second = mixed(model), numbered(model, 2)
    remove_heads(remove_heads(model, first, groups=groups), second, groups=groups)
    assert apart(outputs(model, given), closing(unpruned(name), first + second, given)) <= 1e-5


def test_heads_that_are_only_silenced_leave_the_shapes_and_are_remembered(tmp_path):
    model, given = zoo.tiny("llama-grouped"), zoo.inputs(unpruned("llama-grouped"))
    remove_heads(model, [("dec-self", 0, 1)], groups="whole")
    assert model.num_parameters() == unpruned("llama-grouped").num_parameters()
    assert not hr.attention_sites(model)[0].out.weight[:, 8:16].any()
    assert hr.attention_sites(model).gate_index.equals(families.head_index(unpruned("llama-grouped")))
    assert [one.zeroed for one in hr.attention_sites(model)] == [(1,), ()]
    model.save_pretrained(tmp_path)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()  # loads anywhere
    assert torch.equal(outputs(again, given), outputs(model, given))
    remove_heads(model, [("dec-self", 0, 0)], groups="whole")
    assert hr.attention_sites(model)[0].numbers == (2, 3)


# --- what it is given, and what it gives ----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", [float, int, bool])
def test_a_column_of_zeros_and_ones_says_what_is_removed(kind):
    listed, told = zoo.tiny("marian"), zoo.tiny("marian")
    gone = mixed(listed)
    survival = pd.Series(1, families.head_index(told)).astype(kind)
    survival.loc[gone] = kind(0)
    remove_heads(listed, gone)
    remove_heads(told, survival.iloc[::-1])
    assert recorded(told.config) == recorded(listed.config)
    assert all(torch.equal(value, listed.state_dict()[name]) for name, value in told.state_dict().items())


def test_a_head_named_twice_is_removed_once_and_none_is_none():
    model, given = zoo.tiny("bert"), zoo.inputs(unpruned("bert"))
    assert remove_heads(model, []) is model
    assert torch.equal(outputs(model, given), outputs(unpruned("bert"), given))
    remove_heads(model, iter([("enc-self", 0, 1), ["enc-self", 0, 1]]))
    assert families.head_index(model).equals(families.head_index(unpruned("bert")).drop([("enc-self", 0, 1)]))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["t5", "albert", "gpt2", "falcon-grouped"])
def test_half_precision_is_pruned_as_well(name):
    model, like = zoo.tiny(name).to(torch.bfloat16), zoo.tiny(name).to(torch.bfloat16)
    given, gone = zoo.inputs(model), mixed(model)
    expected, intact = closing(like, gone, given), outputs(like, given)
    remove_heads(model, gone)
    assert model.dtype == torch.bfloat16
    assert {value.dtype for value in model.parameters()} == {torch.bfloat16}
    assert apart(outputs(model, given), expected) <= 0.02
    assert apart(expected, intact) > 0.2


def test_what_is_frozen_stays_frozen():
    model = zoo.tiny("bert")
    model.bert.encoder.layer[0].requires_grad_(False)
    frozen = {name for name, value in model.named_parameters() if not value.requires_grad}
    remove_heads(model, mixed(model))
    assert {name for name, value in model.named_parameters() if not value.requires_grad} == frozen


@pytest.mark.slow
@pytest.mark.parametrize("name", ["albert", "llama-grouped", "marian", "t5"])
def test_scores_of_a_pruned_model_are_those_of_the_remaining_heads(name):
    model, like, gone = cut(name), unpruned(name), mixed(unpruned(name))
    found = hr.score(model, tokens_of(name), corpus(8), ["confidence", "position"], n_resamples=0)
    with hr.mask_heads(like, masking.head_mask(like, gone)):
        expected = hr.score(like, tokens_of(name), corpus(8), ["confidence", "position"], n_resamples=0)
    assert found.index.tolist() == families.head_index(model).tolist()
    assert len(found) < len(expected)
    pd.testing.assert_frame_equal(found, expected.loc[found.index], atol=1e-4)
    assert found["confidence"].notna().all()


# --- layout, by hand ------------------------------------------------------------------------------------------------

ONE_EACH = [{0}, {1}, {2}, {3}]


def test_rows_of_remaining_heads_are_known_by_their_places():
    model = zoo.tiny("gpt2")
    remove_heads(model, [("dec-self", 0, 0), ("dec-self", 0, 2)])
    first, second = layouts(HeadModel(model)).values()
    assert first == {"c_attn": rows({0}, {1}, {0}, {1}, {0}, {1})}
    assert second == {"c_attn": rows(*ONE_EACH, *ONE_EACH, *ONE_EACH)}


ROUNDS = ["marian", "t5", "bert"]


def rounds(model, like, folder):
    """Each time some of the heads that are left go, first whole layers, at last all; saved and loaded in between."""
    generator, gone = Random(0), []
    while left := families.head_index(model).tolist():
        first = [head for head in left if head[1] == 0]
        now = first if not gone else generator.sample(left, len(left) - len(left) // 2)
        gone += now
        model = reloaded(hr.remove_heads(model, now), folder)
        yield model, closing(like, gone, zoo.inputs(like))


@pytest.mark.slow
@pytest.mark.parametrize("name", ROUNDS)
def test_a_model_is_pruned_in_rounds_until_no_head_is_left(name, tmp_path):
    like, counts = zoo.tiny(name), []
    for model, expected in rounds(zoo.tiny(name), like, tmp_path):
        assert apart(outputs(model, zoo.inputs(like)), expected) <= 1e-5
        moved = hr.weight_change(like, model)
        assert moved.index.equals(families.head_index(model))
        assert (moved.filter(like="distance[") == 0).all(axis=None)
        counts.append(len(families.head_index(model)))
    assert counts[-1] == 0
    assert len(counts) >= 4


def quantised(model, which):
    with warnings.catch_warnings():  # it goes to torchao, in torch's own words; it is what people have
        warnings.simplefilter("ignore")
        return torch.ao.quantization.quantize_dynamic(copy.deepcopy(model), which, dtype=torch.qint8)


@pytest.mark.slow
@pytest.mark.parametrize("name", ROUNDS)
def test_a_model_with_a_layer_without_heads_is_quantised_right(name, tmp_path):
    model = hr.remove_heads(zoo.tiny(name), first_layers(zoo.tiny(name)))
    linear = {key: one for key, one in model.named_modules() if isinstance(one, torch.nn.Linear)}
    filled = {key for key, one in linear.items() if one.weight.numel()}
    assert 0 < len(filled) < len(linear)
    for one in (model, reloaded(model, tmp_path)):
        small = quantised(one, {torch.nn.Linear})
        assert torch.equal(outputs(small, zoo.inputs(one)), outputs(quantised(one, filled), zoo.inputs(one)))
        assert 0 < apart(outputs(small, zoo.inputs(one)), outputs(model, zoo.inputs(one))) < 0.5


@pytest.fixture
def rounded(monkeypatch):
    """Roundings as some processors make them in Gemma 3: 1.7e-5 of the largest number of an output in float32."""

    def states(handle, masked=()):
        output = before(handle, masked)
        if handle.model.dtype != torch.float32:
            return output
        draw = torch.Generator().manual_seed(sum(site.heads for site in handle.sites))
        return output + 1e-5 * float(output.abs().max()) * torch.randn(output.shape, generator=draw)

    before = removal._states
    monkeypatch.setattr(removal, "_states", states)


@pytest.mark.usefixtures("rounded")
@pytest.mark.parametrize("name", ["llama-grouped", "bert", "marian", "t5", "gpt2"])
def test_roundings_of_many_layers_are_no_other_output(name):
    model = zoo.tiny(name, **({"relative_attention_num_buckets": 4} if name == "t5" else {}))  # as many as heads
    kind = hr.attention_sites(model)[0].kind
    heads = [(kind, 0, 0), (kind, 0, 1), (kind, 1, 2), (kind, 1, 3)]
    expected = closing(model, heads, zoo.inputs(model))
    smaller = hr.remove_heads(copy.deepcopy(model), heads)
    assert apart(outputs(smaller, zoo.inputs(model)), expected) < 1e-5
    assert (len(hr.models.head_index(model)) - len(hr.models.head_index(smaller)), smaller.dtype) == (4, torch.float32)


@pytest.mark.usefixtures("rounded")
def test_another_output_is_refused_also_where_roundings_are_many(monkeypatch):
    def wrong(site, places):  # one more head is lost
        return before(site, [*places, 0])

    model, before = zoo.tiny("llama-grouped"), removal._zero_columns
    expected = outputs(model, zoo.inputs(model))
    monkeypatch.setattr(removal, "_zero_columns", wrong)
    with pytest.raises(ValueError, match="LlamaForCausalLM; mask .* would differ by"):
        hr.remove_heads(model, [("dec-self", 0, 0), ("dec-self", 0, 1)])
    assert torch.equal(outputs(model, zoo.inputs(model)), expected)


# --- layouts: no weight, no dead unit, no saturated attention changes the rows of a head ------------------------------

FAMILIES = ["bert", "marian", "t5", "gpt2", "deberta-v2", "bloom", "qwen3", "phi3"]


def rows_of(model):
    """The rows of each map in each attention module, by the order of the modules."""
    return list(layouts(HeadModel(model)).values())


@cache
def usual(name):
    return rows_of(zoo.tiny(name))


def dead_heads(_, weight):
    """The first half of the rows that a map puts out is 0, whatever comes in."""
    weight[: len(weight) // 2] = 0


def dead_inputs(_, weight):
    if weight.ndim > 1:
        weight[:, ::2] = 0


def dead(_, weight):
    weight.zero_()


def no_biases(name, weight):
    if name.endswith("bias"):
        weight.zero_()


def saturated(_, weight):
    """Attention of exactly 0 and 1: no gradient reaches queries and keys."""
    weight *= 1000


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_rows_belong_to_the_same_heads_whatever_their_weights(name):
    for spoil in (dead_heads, dead_inputs, dead, no_biases, saturated):
        model = zoo.tiny(name)
        with torch.no_grad():
            for site in hr.attention_sites(model):
                for parameter, weight in site.module.named_parameters():
                    spoil(parameter, weight)
        assert rows_of(model) == usual(name), spoil.__name__


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")  # its position embeddings
def test_a_model_with_saturated_attention_is_pruned():
    """Wide weights: which of its attention is exactly one-hot is a matter of the processor."""
    model, like = tiny_model("mobilebert"), tiny_model("mobilebert")
    for each in (model, like):
        for site in hr.attention_sites(each):
            site.module.query.weight.data *= 100
    gone, given = [("enc-self", 0, 1), ("enc-self", 1, 2)], examples(model)
    hr.remove_heads(model, gone)
    assert [site.numbers for site in hr.attention_sites(model)] == [(0, 2, 3), (0, 1, 3)]
    assert apart(outputs(model, given), closing(like, gone, given)) <= 1e-5


def test_a_map_of_one_number_for_each_head_is_pruned_row_by_row():
    model, like = tiny_model("laguna"), tiny_model("laguna")  # heads of 16 numbers, each times a gate of its own
    site = hr.attention_sites(model)[0]
    gate = site.module.g_proj.weight.detach().clone()
    assert len(gate) == site.heads
    gone, given = [(*site.key, 1)], examples(model)
    hr.remove_heads(model, gone, groups="expand")
    assert torch.equal(site.module.g_proj.weight, gate[[head for head in range(site.heads) if head != 1]])
    assert apart(outputs(model, given), closing(like, gone, given)) <= 1e-5


def test_a_model_that_draws_at_random_is_pruned():
    model = tiny_model("vit_mae")  # which patches it hides
    hr.remove_heads(model, [("enc-self", 0, 1)])
    assert hr.attention_sites(model)[0].numbers == (0, 2, 3)


def test_rows_are_found_while_anomalies_are_looked_for():
    with torch.autograd.set_detect_anomaly(True):
        found = rows_of(zoo.tiny("bert"))
        assert torch.is_anomaly_enabled()
    assert found == rows_of(zoo.tiny("bert"))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gpt2", {"c_attn": rows(*ONE_EACH, *ONE_EACH, *ONE_EACH)}),  # queries, keys, values
        ("gpt-neox", {"query_key_value": rows(*ONE_EACH, size=24)}),  # those of a head, then those of the next
        ("bloom", {"query_key_value": rows(*ONE_EACH, size=24)}),
        ("bert", {"query": rows(*ONE_EACH), "key": rows(*ONE_EACH), "value": rows(*ONE_EACH)}),
        ("llama-grouped", {"q_proj": rows(*ONE_EACH), "k_proj": rows({0, 1}, {2, 3}), "v_proj": rows({0, 1}, {2, 3})}),
        ("phi3", {"qkv_proj": rows(*ONE_EACH, {0, 1}, {2, 3}, {0, 1}, {2, 3})}),
        ("falcon-grouped", {"query_key_value": [  # two queries with their key and value, twice
            (frozenset({0}), 0, 8), (frozenset({1}), 8, 16), (frozenset({0, 1}), 16, 32),
            (frozenset({2}), 32, 40), (frozenset({3}), 40, 48), (frozenset({2, 3}), 48, 64)]}),
        ("falcon", {"query_key_value": [*rows(*ONE_EACH), (frozenset({0, 1, 2, 3}), 32, 48)]}),
    ],
)  # fmt: skip
def test_rows_belong_to_heads(name, expected):
    model = zoo.tiny(name)
    before = snapshot(model)
    found = layouts(HeadModel(model))
    assert list(found) == [one.module for one in hr.attention_sites(model)]
    assert all(each == expected for each in found.values())
    assert unchanged(model, before)


def test_heads_are_removed_under_autocast():
    model, inputs = zoo.tiny("bert"), {"input_ids": torch.arange(5, 14)[None]}
    with hr.mask_heads(model, hr.head_mask(model, ["L0H0"])):
        expected = model(**inputs).logits
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hr.remove_heads(model, ["L0H0"])
    torch.testing.assert_close(model(**inputs).logits, expected)
