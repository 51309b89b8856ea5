"""The context of LRP rules, and rule sets against slow references."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from helpers import zoo
from helpers.relevance import TOKEN, allowed, begun, close, exact, explained, relevance
from helpers.traces import NAMES, _traces
from reference import lrp as slow_lrp
from torch import nn

import headroles as hr
from headroles.models import attention_hooks, masking
from headroles.models import heads as families
from headroles.models.attention_hooks import without_cache
from headroles.scores.lrp import RULES, context, lrp_rules
from headroles.scores.lrp.context import table

# --- the forward -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", zoo.each(NAMES))
def test_the_forward_is_that_of_eager_attention_to_the_bit(name):
    model = zoo.tiny(name).requires_grad_(False)
    inputs = zoo.inputs(model)
    ones = torch.ones(2, len(families.head_index(model)), requires_grad=True)

    def output():
        torch.manual_seed(0)  # of experts' routing noise
        with hr.mask_heads(model, ones):
            return model(**inputs, **without_cache(model))[0]

    own = output()
    with attention_hooks.attending(model, lambda _: None):
        eager = output()
    for rules in allowed(name) if name in zoo.USUAL else {"cp", "voita"} & {*allowed(name)}:
        with lrp_rules(model, rules):
            assert torch.equal(output(), own if rules == "gradient" else eager), rules
    torch.testing.assert_close(eager, own, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("rules", ["cp", "attn", "voita"])
@pytest.mark.parametrize("operation", ["add", "mul", "div"])
@pytest.mark.parametrize("grows", [True, False])
def test_operations_in_place_are_what_they_are_elsewhere(rules, operation, grows):
    generator = torch.Generator().manual_seed(0)
    x, constant = torch.randn(2, 2, 3, 4, dtype=torch.float64, generator=generator)
    x.requires_grad_()

    def results(name):
        first, second = x * 1, x * 2 + constant if grows else constant
        found = getattr(first, name)(second)
        return first if name.endswith("_") else found

    with context._Mode(table(rules)):
        found, expected = results(f"{operation}_"), results(operation)
    assert torch.equal(found, results(operation))
    close(*(torch.autograd.grad(each.sum(), x)[0] for each in (found, expected)), 1e-12)


# --- no trace --------------------------------------------------------------------------------------------------------


def traces(model):
    return _traces(model), torch._C._len_torch_function_stack()


def stop(*_):
    raise ArithmeticError("stop")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "rules"),
    [("marian", rules) for rules in RULES]
    + [("bert2gpt2", "voita"), ("albert", "voita"), ("gpt2", "cp"), ("llama", "attn")],
)
def test_all_is_as_it_was(name, rules):
    model = zoo.tiny(name)
    for frozen in list(model.parameters())[::3]:
        frozen.requires_grad_(False)
    inputs = zoo.inputs(model)
    families.attention_sites(model)
    before = traces(model)
    with lrp_rules(model, rules):
        model(**inputs)
        assert not any(p.requires_grad for p in model.parameters())
        assert torch._C._len_torch_function_stack() == 0  # between calls
    assert traces(model) == before
    with pytest.raises(ArithmeticError), lrp_rules(model, rules):  # noqa: PT012
        model(**inputs)
        stop()
    assert traces(model) == before
    hook = families.attention_sites(model)[-1].out.register_forward_hook(stop)
    within = traces(model)
    with lrp_rules(model, rules):
        for _ in range(2):
            with pytest.raises(ArithmeticError):
                model(**inputs)
            assert torch._C._len_torch_function_stack() == 0
    assert traces(model) == within
    hook.remove()
    assert traces(model) == before


@pytest.mark.parametrize("rules", ["cp", "voita"])
def test_blocks_on_two_models_nest(rules):
    first, second = zoo.tiny("marian"), zoo.tiny("marian", seed=1)
    inputs, ones = zoo.inputs(first), [torch.ones(2, 24, requires_grad=True) for _ in range(2)]
    alone = [relevance(first, inputs, rules), relevance(second, inputs, "attn")]
    before = traces(first), traces(second)
    one, two = ones
    with lrp_rules(first, rules), hr.mask_heads(first, one), lrp_rules(second, "attn"), hr.mask_heads(second, two):
        outputs = [explained(model(**inputs)) for model in (second, first)][::-1]
    for output, one, own, given_rules in zip(outputs, ones, alone, (rules, "attn"), strict=True):
        assert torch.equal(torch.autograd.grad(begun(output, given_rules), one)[0], own)
    assert (traces(first), traces(second)) == before


@pytest.mark.parametrize("rules", ["cp", "voita"])
def test_another_model_within_the_block_has_its_own_gradients(rules):
    model, other = zoo.tiny("bert"), zoo.tiny("bert", seed=1)
    inputs = zoo.inputs(other)

    def gradients():
        return torch.autograd.grad(explained(other(**inputs)).sum(), list(other.parameters()), allow_unused=True)

    plain = gradients()
    with lrp_rules(model, rules):
        model(**inputs)
        within = gradients()
    assert all(a is b is None or torch.equal(a, b) for a, b in zip(plain, within, strict=True))


# --- what is refused -------------------------------------------------------------------------------------------------


def test_masked_heads_can_be_explained():
    """A gate of 0 is an ablation; what its head would add if opened a little is finite."""
    model, inputs = exact("marian")
    masked = masking.head_mask(model, [("cross", 1, 2)]).double().expand(2, -1).clone().requires_grad_()
    with lrp_rules(model, "cp"), hr.mask_heads(model, masked):
        values = explained(model(**inputs, **without_cache(model)))
    found = torch.autograd.grad(values.sum(), masked)[0]
    assert found.isfinite().all()
    assert (found * masked)[:, list(families.head_index(model)).index(("cross", 1, 2))].abs().max() == 0


def test_an_activation_of_ones_own_is_known_by_its_name_unless_it_has_parameters():
    made = [type(name, (nn.Module,), {})() for name in ("FancyGelu", "PReluLike", "Plain")]
    made[1].slope = nn.Parameter(torch.ones(1))
    found = {type(one).__name__: context.is_activation(one) for one in (*made, nn.GELU())}
    assert found == {"FancyGelu": True, "PReluLike": False, "Plain": False, "GELU": True}


def small(name, **options):
    """A model of the zoo with another config, in float64; buffers of biases are not 0 either."""
    model, draw = zoo.tiny(name, **options).double(), torch.Generator().manual_seed(0)
    for name, buffer in model.named_buffers():
        if name.endswith("bias") and buffer.is_floating_point():
            buffer.normal_(generator=draw)
    return model


# --- the textbook ----------------------------------------------------------------------------------------------------

WAYS = ("cp", "attn", "voita")


SMALL = {"d_model": 8, "encoder_attention_heads": 2, "decoder_attention_heads": 2, "scale_embedding": True}
SMALL |= {"encoder_ffn_dim": 12, "decoder_ffn_dim": 12}


def compared(model, inputs, textbook, rules):
    found = relevance(model, inputs, rules)[0]
    with torch.no_grad():
        torch.testing.assert_close(model(**inputs).logits[0], textbook.logits, atol=1e-12, rtol=1e-12)
    close(found, torch.cat([textbook.heads[site.key] for site in families.attention_sites(model)]), 1e-12)


@pytest.mark.parametrize(
    ("rules", "activation"), [(rules, "swish") for rules in WAYS] + [("cp", "relu"), ("voita", "relu")]
)
def test_marian_by_the_textbook(rules, activation):
    model = small("marian", **SMALL, encoder_layers=2, decoder_layers=2, activation_function=activation)
    source, target = torch.tensor([5, 9, 20, 7, zoo.EOS]), torch.tensor([zoo.EOS, 11, 30, 6])
    inputs = {"input_ids": source[None], "decoder_input_ids": target[None]}
    compared(model, inputs, slow_lrp.marian(model, source, target, 2, TOKEN, rules), rules)


@pytest.mark.slow
@pytest.mark.parametrize("rules", WAYS)
def test_gpt2_by_the_textbook(rules):
    model = small("gpt2", n_embd=8, n_head=2, n_inner=12, n_layer=2)
    ids = torch.tensor([5, 9, 20, 7])
    compared(model, {"input_ids": ids[None]}, slow_lrp.gpt2(model, ids, 2, TOKEN, rules), rules)


SHARES = {  # of the relevance of an operation on a and b: what each takes
    "product": (lambda a, b: a * b, 0.5, 0.5),
    "torch.multiply": (torch.multiply, 0.5, 0.5),
    "multiply": (lambda a, b: a.multiply(b), 0.5, 0.5),
    "einsum": (lambda a, b: torch.einsum("btd,btd->btd", a, b), 0.5, 0.5),
    "einsum of a list": (lambda a, b: torch.einsum("btd,btd->btd", [a, b]), 0.5, 0.5),
    "matrix product": (lambda a, b: a @ b, 0.5, 0.5),
    "matrix product and sum": (lambda a, b: torch.baddbmm(torch.zeros_like(a), a, b), 0.5, 0.5),
    "the same as a method": (lambda a, b: torch.zeros_like(a).baddbmm(a, b), 0.5, 0.5),
    "quotient": (lambda a, b: a / b, 1, 0),
    "gate": (lambda a, b: a * b.sigmoid(), 1, 0),
    "gated unit": (lambda a, b: F.glu(torch.cat([a, b], -1)), 1, 0),
    "root": (lambda a, b: a * (b * b).rsqrt(), 1, 0),
    "activation": (lambda a, _: torch.tanh(a), 1, 0),
}


@pytest.mark.parametrize("name", SHARES)
@pytest.mark.parametrize("rules", ["cp", "attn", "voita"])
def test_shares_of_an_operation(name, rules):
    function, *shares = SHARES[name]
    generator = torch.Generator().manual_seed(0)
    a, b = (x.requires_grad_() for x in torch.randn(2, 2, 3, 3, dtype=torch.float64, generator=generator))
    with context._Mode(table(rules)):
        y = function(a, b)
    found = torch.autograd.grad(y.sum(), [a, b], allow_unused=True, materialize_grads=True)
    taken = [float((x * c).sum().detach() / y.sum().detach()) for x, c in zip((a, b), found, strict=True)]
    assert taken == pytest.approx(shares, abs=1e-12)


SUMS = {  # shapes of a and b of a residual stream, and of larger ones with the same rows
    "of two dimensions": ((3, 4), (3, 4), (1, 1, 3, 4), (1, 1, 3, 4)),
    "with a vector": ((3, 4), (4,), (1, 1, 3, 4), (1, 1, 1, 4)),
}


@pytest.mark.parametrize("name", SUMS)
def test_a_sum_of_few_dimensions_has_the_shares_of_more(name):
    generator = torch.Generator().manual_seed(0)
    *small, a, b = SUMS[name]
    values = [torch.randn(shape, dtype=torch.float64, generator=generator) for shape in small]
    back, found = torch.randn(3, 4, dtype=torch.float64, generator=generator), []
    for shapes in (small, (a, b)):
        leaves = [value.view(shape).clone().requires_grad_() for value, shape in zip(values, shapes, strict=True)]
        with context._Mode(table("voita")):
            y = leaves[0] + leaves[1]
        found.append([c.flatten() for c in torch.autograd.grad(y, leaves, back.view(y.shape))])
    for one, other in zip(*found, strict=True):
        close(one, other, 1e-12)
    assert not torch.allclose(found[0][0], back.flatten())  # as without rules


@pytest.mark.parametrize("shape", [(2, 6), (2, 6, 5), (2, 6, 3, 4)])
def test_the_deviations_of_a_group_norm_are_constants(shape):
    generator = torch.Generator().manual_seed(0)
    x, back = torch.randn(2, *shape, dtype=torch.float64, generator=generator)
    norm = nn.GroupNorm(3, 6).double()
    for parameter in norm.parameters():
        nn.init.uniform_(parameter, -1, 1, generator=generator)
    x.requires_grad_()
    parts = x.view(2, 3, -1)
    deviations = (parts.var(-1, correction=0, keepdim=True) + norm.eps).detach().sqrt()
    centred = (parts - parts.mean(-1, keepdim=True)) / deviations
    expected = centred.view(shape).transpose(1, -1) * norm.weight + norm.bias
    with context._Mode(table("cp")):
        found = norm(x)
    assert torch.equal(found, norm(x))
    leaves = [x, *norm.parameters()]
    both = (torch.autograd.grad(y, leaves, back) for y in (found, expected.transpose(1, -1)))
    close(*(torch.cat([each.flatten() for each in gradients]) for gradients in both), 1e-12)


@pytest.mark.parametrize("rules", ["cp", "attn"])
def test_a_norm_over_two_dimensions_has_one_deviation(rules):
    generator = torch.Generator().manual_seed(0)
    x, back = torch.randn(2, 2, 7, 3, 4, dtype=torch.float64, generator=generator)
    norm = nn.LayerNorm((3, 4)).double()
    for parameter in norm.parameters():
        nn.init.uniform_(parameter, -1, 1, generator=generator)
    x.requires_grad_()
    variance = x.var((-2, -1), correction=0, keepdim=True).detach()
    expected = (x - x.mean((-2, -1), keepdim=True)) / (variance + norm.eps).sqrt() * norm.weight.detach() + norm.bias
    with context._Mode(table(rules)):
        found = norm(x)
    for leaf in (x, norm.bias):
        close(*(torch.autograd.grad(y, leaf, back, retain_graph=True)[0] for y in (found, expected)), 1e-12)


def test_cp_gate_gives_the_gate_of_a_unit_nothing():
    model, inputs = exact("llama")
    differ = relevance(model, inputs, "cp-gate") - relevance(model, inputs, "cp")
    assert differ.abs().max() > 1e-2
    with torch.no_grad():
        for layer in model.model.layers:
            layer.mlp.act_fn = Frozen(layer.mlp.act_fn)
    close(relevance(model, inputs, "cp"), relevance(*exact("llama"), "cp-gate"), 1e-6)


class Frozen(nn.Module):
    """A function whose value is a constant."""

    def __init__(self, function):
        super().__init__()
        self.function = [function]  # no child: it shall not be taken for an activation

    def forward(self, x):
        return self.function[0](x.detach())


# --- other packages --------------------------------------------------------------------------------------------------


def test_captum_on_a_perceptron():
    attr = pytest.importorskip("captum.attr")
    rules = pytest.importorskip("captum.attr._utils.lrp_rules")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = [nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 7), nn.Tanh(), nn.Linear(7, 3)]
        model, x = nn.Sequential(*layers).double(), torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    with context._Mode(table("cp")):
        found = torch.autograd.grad(model(x)[:, 1].sum(), x)[0] * x
    for layer in layers:
        if isinstance(layer, nn.Linear):
            layer.rule = rules.EpsilonRule(1e-12)
    close(found, attr.LRP(model).attribute(x, target=1).detach(), 1e-8)


def test_lxt_on_llama():
    efficient = pytest.importorskip("lxt.efficient")
    from transformers.models.llama import modeling_llama

    model = zoo.tiny("llama")
    inputs = zoo.inputs(model, padded=False)
    found = relevance(model, inputs, "attn")
    efficient.monkey_patch(modeling_llama)
    ones = torch.ones(2, len(families.head_index(model)), requires_grad=True)
    with hr.mask_heads(model, ones):
        explained(model(**inputs)).sum().backward()
    close(ones.grad, found, 1e-5)
