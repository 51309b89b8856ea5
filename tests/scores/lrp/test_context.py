"""Rules keep the forward, leave no trace, and refuse what they cannot be right for."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from helpers import zoo
from helpers.messages import whole
from helpers.relevance import allowed, begun, close, exact, explained, relevance
from helpers.traces import NAMES, _traces
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import headroles as hr
from headroles.models import attention_hooks, masking
from headroles.models import heads as families
from headroles.models.attention_hooks import without_cache
from headroles.models.head_model import HeadModel
from headroles.scores.lrp import RULES, context, lrp_rules
from headroles.scores.lrp.composites import table

DETERMINISTIC = settings(
    derandomize=True, database=None, deadline=None, max_examples=15, suppress_health_check=list(HealthCheck)
)


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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "rules"),
    [("marian", "cp"), ("marian", "voita"), ("gpt2", "attn"), ("llama", "voita"), ("bert2bert", "cp")],
)
def test_generation_is_the_same(name, rules):
    model = zoo.tiny(name)
    inputs = {key: value for key, value in zoo.inputs(model, padded=False).items() if not key.startswith("decoder")}
    options = {"max_new_tokens": 5, "do_sample": False, "num_beams": 1, "pad_token_id": zoo.PAD}
    plain = model.generate(**inputs, **options)
    with lrp_rules(model, rules):
        assert torch.equal(model.generate(**inputs, **options), plain)


@pytest.mark.slow
@DETERMINISTIC
@given(name=st.sampled_from(["marian", "llama-grouped"]), data=st.data())
def test_any_part_of_the_rules_keeps_the_forward(name, data):
    model, rules = zoo.tiny(name).requires_grad_(False), data.draw(st.sampled_from(["cp", "cp-gate", "attn", "voita"]))
    inputs, full = zoo.inputs(model), table(rules)
    kept = data.draw(st.lists(st.sampled_from(sorted(full, key=str)), unique=True))
    ones = torch.ones(2, len(families.head_index(model)), requires_grad=True)
    with attention_hooks.attending(model, lambda _: None), hr.mask_heads(model, ones):
        eager = model(**inputs, **without_cache(model)).logits
    rules_kept = {operation: full[operation] for operation in kept}
    with context.applied(HeadModel(model), rules_kept), hr.mask_heads(model, ones):
        found = model(**inputs, **without_cache(model)).logits
    torch.testing.assert_close(found, eager, atol=0 if kept else 1e-5, rtol=0)
    if rules != "voita":  # its sums bear no mask outside its attention
        assert torch.autograd.grad(found.sum(), ones)[0].isfinite().all()


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
    + [("bert2gpt2", "voita"), ("albert", "voita-exact"), ("gpt2", "cp"), ("llama", "attn")],
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
    with (
        lrp_rules(first, rules),
        hr.mask_heads(first, ones[0]),
        lrp_rules(second, "attn"),
        hr.mask_heads(second, ones[1]),
    ):
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


def refused(message, model, rules="cp", **options):
    before = traces(model)
    with pytest.raises(ValueError, match=whole(message)), lrp_rules(model, rules, **options):
        pass
    assert traces(model) == before


def test_rules_that_are_none():
    message = "unknown rules 'lrp'; known: cp, cp-gate, attn, voita, voita-exact, gradient"
    refused(message, zoo.tiny("bert"), "lrp")


@pytest.mark.parametrize(("rules", "epsilon"), [("cp", -0.1), ("attn", float("nan")), ("voita", 0.1), ("gradient", 1)])
def test_an_epsilon_that_is_none(rules, epsilon):
    message = (
        f"epsilon out of range: got epsilon={epsilon} with rules {rules!r}; expected a number >= 0 for the rules cp, "
        f"cp-gate and attn, otherwise 0"
    )
    refused(message, zoo.tiny("bert"), rules, epsilon=epsilon)


def test_a_model_in_train_mode():
    message = "BertForMaskedLM is in train mode: dropout would change the relevance; try model.eval() first"
    refused(message, zoo.tiny("bert").train())


def test_gradient_checkpointing():
    model = zoo.tiny("bert")
    getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)()  # v6 knows only the first
    message = (
        "BertForMaskedLM has gradient checkpointing on, which recomputes layers without rules; "
        "try model.gradient_checkpointing_disable() first"
    )
    refused(message, model)
    getattr(model, "activation_checkpointing_disable", model.gradient_checkpointing_disable)()
    assert relevance(model, zoo.inputs(model)).any()


def test_quantised_weights():
    model = zoo.tiny("bert")
    families.attention_sites(model)  # known already: their products need floats
    dense = model.bert.encoder.layer[0].output.dense
    dense.weight = nn.Parameter(dense.weight.detach().to(torch.int8), requires_grad=False)
    message = (
        "no gradient passes the weights of BertForMaskedLM: got bert.encoder.layer.0.output.dense.weight, which is "
        "quantised; expected weights of floating-point numbers; try the model without quantization_config, before it "
        "was quantised"
    )
    refused(message, model)


@pytest.mark.parametrize(
    ("name", "rules"), [*((name, "voita") for name in sorted(zoo.OUTSIDE)), ("bloom", "voita-exact")]
)
def test_voita_needs_the_interface(name, rules):
    model = zoo.tiny(name)
    message = (
        f"rules 'voita' need query, key and value of every head, and {families.attention_sites(model)[0].name} attends "
        f"outside transformers' interface, where they cannot be taken apart; use 'cp' or 'attn'"
    )
    refused(message, model, rules)


class Fused(nn.Module):
    """A feed-forward part with attention of its own, in one piece."""

    def forward(self, x):
        return F.scaled_dot_product_attention(x, x, x)


@pytest.mark.parametrize("rules", ["cp", "attn", "voita"])
def test_attention_in_one_piece(rules):
    model = zoo.tiny("gpt2")
    model.transformer.h[1].mlp = Fused()
    inputs, before = zoo.inputs(model), traces(model)
    message = (
        "scaled_dot_product_attention attends in one piece, which cannot be taken apart into softmax and products; "
        "rules need a model that calls transformers' attention interface, or rules='gradient'"
    )
    with pytest.raises(ValueError, match=whole(message)):
        relevance(model, inputs, rules)
    assert traces(model) == before
    assert relevance(model, inputs, "gradient").any()


@pytest.mark.parametrize("rules", ["cp", "gradient"])
def test_a_model_without_attention(rules):
    outside = ", ".join(sorted(families.OUTSIDE))
    message = (
        f"no attention found in MambaForCausalLM ('mamba'): no module called transformers' attention interface, none "
        f"is of a class known outside it: {outside}; add the class to headroles.models.sites.OUTSIDE if it has "
        f"attention"
    )
    refused(message, zoo.tiny("mamba"), rules)


def test_what_is_no_model():
    message = "expected a transformers model, got Linear; load one with headroles.load(name)"
    with pytest.raises(TypeError, match=whole(message)), lrp_rules(nn.Linear(2, 2)):
        pass


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
    class FancyGelu(nn.Module):
        """Element-wise."""

    class PReluLike(nn.Module):
        """With a slope that is learnt."""

        def __init__(self):
            super().__init__()
            self.slope = nn.Parameter(torch.ones(1))

    class Plain(nn.Module):
        """Anything else."""

    found = {type(one).__name__: context.is_activation(one) for one in (FancyGelu(), PReluLike(), Plain(), nn.GELU())}
    assert found == {"FancyGelu": True, "PReluLike": False, "Plain": False, "GELU": True}
