"""The epsilon rule damps linear maps, however they are written, and nothing else."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from helpers.messages import whole
from helpers.relevance import close
from torch import nn

import headroles as hr
from headroles.models import heads as families
from headroles.models.attention_hooks import without_cache
from headroles.scores.lrp import context
from headroles.scores.lrp.composites import table

EPSILON = 0.5
EXPERT = torch.tensor([0, 0, 1, 1])  # of each token
ENDS = torch.tensor([2, 4], dtype=torch.int32)


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def frozen(*shape, seed=0):
    return nn.Parameter(numbers(*shape, seed=seed), requires_grad=False)


def in_place(y, bias):
    y.add_(bias)
    return y


def by_experts(x, w, b):
    """transformers' `batched_mm`: a product for each token, its bias added in place."""
    return in_place(torch.bmm(w[EXPERT].transpose(1, 2), x.unsqueeze(-1)).squeeze(-1), b[EXPERT])


WAYS = {  # of y = x w + b, for each token with the weights [in, out] and the bias of its expert
    "linear": lambda x, w, b: F.linear(x, w[0].T, b[0]),
    "addmm": lambda x, w, b: torch.addmm(b[0], x, w[0]),
    "Falcon's": lambda x, w, b: x @ w.transpose(1, 2)[0].T + b[0],
    "bias first": lambda x, w, b: b[0] + x @ w[0],
    "cast": lambda x, w, b: x.float() @ w[0].double().float() + b[0].float(),
    "minus": lambda x, w, b: x @ w[0] - -b[0],
    "mm": lambda x, w, b: torch.mm(x, w[0]) + b[0],
    "mv": lambda x, w, b: torch.stack([torch.mv(w[0].T, row) + b[0] for row in x]),
    "einsum": lambda x, w, b: torch.einsum("ti,io->to", x, w[0]) + b[0],
    "baddbmm": lambda x, w, b: torch.baddbmm(b[:1, None], x[None], w[:1])[0],
    "eager experts": lambda x, w, b: torch.cat([x[:2] @ w[0] + b[0], x[2:] @ w[1] + b[1]]),
    "batched experts": by_experts,
    "grouped experts": lambda x, w, b: in_place(F.grouped_mm(x, w, offs=ENDS), b[EXPERT]),
    "grouped by transformers": lambda x, w, b: torch.ops.transformers.grouped_mm_fallback(x, w, ENDS) + b[EXPERT],
}


@pytest.mark.parametrize("way", WAYS)
def test_a_linear_map_has_the_epsilon_rule_however_it_is_written(way):
    """Relevance of an input: the sum over outputs of x w / (y + epsilon sign(y)) R(y)."""
    x, back = numbers(4, 4).requires_grad_(), numbers(4, 4, seed=1)
    w, b = frozen(2, 4, 4, seed=2), frozen(2, 4, seed=3)
    experts = EXPERT if "experts" in way or "grouped" in way else torch.zeros_like(EXPERT)
    expected = torch.zeros(4, 4)
    for token, expert in enumerate(experts.tolist()):
        z = x[token].detach()[:, None] * w[expert]  # [in, out]
        y = z.sum(0) + b[expert]
        expected[token] = (z / (y + EPSILON * y.sign()) * y * back[token]).sum(1)
    with context._Mode(table("cp", EPSILON)):
        y = WAYS[way](x, w, b)
    assert torch.equal(y, WAYS[way](x, w, b))
    close(torch.autograd.grad(y, x, back)[0] * x.detach(), expected, 1e-5)


NO_MAPS = {  # of activations a and b
    "weights of attention": lambda a, b, _: b.softmax(-1) @ a,
    "queries and keys": lambda a, b, _: a @ b.T,
    "keys of tokens": lambda a, b, w: a @ F.embedding(b.argmax(-1), w).T,
    "a target": lambda a, b, _: (a * b).sum(-1),
    "positions": lambda a, _, w: torch.cat([a + w, w]),
    "numbers in the place of weights": lambda a, b, w: a @ torch.zeros_like(w).copy_(b),
}


@pytest.mark.parametrize("name", NO_MAPS)
@pytest.mark.parametrize("rules", ["cp", "attn"])
@pytest.mark.parametrize("both", [False, True])
def test_what_is_no_linear_map_is_not_damped(name, rules, both):
    """Below the first masks activations take no gradient, as weights."""
    found = []
    for epsilon in (0.0, EPSILON):
        a, b = numbers(4, 4).requires_grad_(), numbers(4, 4, seed=1).requires_grad_(both)
        with context._Mode(table(rules, epsilon)):
            found.append(torch.autograd.grad(NO_MAPS[name](a, b, frozen(4, 4, seed=2)).sum(), a)[0])
    assert torch.equal(*found)


UNKNOWN = {
    "tensordot": lambda x, w: torch.tensordot(x, w, 1),
    "bilinear": lambda x, w: F.bilinear(x, x, w[None]),
    "einsum": lambda x, w: torch.einsum("ti,tj,ij->t", x, x, w),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_may_be_a_linear_map_is_refused(name):
    message = (
        f"epsilon is not known for {name}: got an operation on weights that may be a linear map; expected F.linear, "
        f"addmm, a convolution, matmul, bmm, einsum or grouped_mm; try epsilon=0"
    )
    x, w = numbers(4, 4).requires_grad_(), frozen(4, 4, seed=2)
    with context._Mode(table("cp")):
        UNKNOWN[name](x, w)
    with context._Mode(table("cp", EPSILON)), pytest.raises(ValueError, match=whole(message)):
        UNKNOWN[name](x, w)


# --- in models -------------------------------------------------------------------------------------------------------

IDS = torch.randint(5, 90, (1, 6), generator=torch.Generator().manual_seed(0))


def relevance(model, epsilon):
    ones = torch.ones(1, len(families.head_index(model)), requires_grad=True)
    with hr.lrp_rules(model, "cp", epsilon=epsilon), hr.mask_heads(model, ones):
        largest = model(input_ids=IDS, **without_cache(model)).logits[:, -1].amax()
    return torch.autograd.grad(largest, ones)[0]


def damp(_, __, y):
    if y.requires_grad:
        size = y.detach().abs()
        y.register_hook(lambda c: c * size / (size + EPSILON))


@pytest.mark.parametrize("bias", [False, True])
def test_falcon_has_the_epsilon_rule_at_each_of_its_linear_modules(bias):
    model = hr.tiny_model("falcon", bias=bias)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter, generator=torch.Generator().manual_seed(len(name)))
    found = relevance(model, EPSILON)
    hooks = [
        module.register_forward_hook(damp) for module in model.modules() if type(module).__name__.endswith("Linear")
    ]
    expected = relevance(model, 0.0)
    for hook in hooks:
        hook.remove()
    close(found, expected, 1e-5)
    assert (found - relevance(model, 0.0)).abs().max() > 0.1 * found.abs().max()


@pytest.mark.parametrize("name", ["mixtral", "gpt_oss"])
def test_experts_have_the_epsilon_rule_in_each_implementation(name):
    found = []
    for implementation in ("eager", "grouped_mm", "batched_mm"):
        model = hr.tiny_model(name)
        model.set_experts_implementation(implementation)
        found.append(relevance(model, EPSILON))
    for other in found[1:]:
        close(other, found[0], 1e-5)
