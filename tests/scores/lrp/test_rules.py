"""LRP rules against slow references."""

from __future__ import annotations

from functools import cache

import pytest
import torch
import torch.nn.functional as F
from helpers import zoo
from helpers.relevance import allowed, cast, close, exact, explained, relevance

import headroles as hr
from headroles.models import heads as families
from headroles.models.attention_hooks import without_cache
from headroles.scores.lrp import RULES, context
from headroles.scores.lrp.context import table


@cache
def unchanged(name, rules, dtype=torch.float64):
    """The relevance of the heads of a model of the zoo as it is, which several tests compare with."""
    model = zoo.tiny(name).to(dtype)
    return relevance(model, cast(zoo.inputs(model), dtype), rules)


# --- gates -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["marian", "bert", "gpt2", "deberta-v2", "falcon", "albert"])
def test_without_rules_it_is_the_gradient_of_the_gate(name):
    model, inputs = exact(name)
    one = {key: value[:1] for key, value in inputs.items()}
    many, step = len(families.head_index(model)), 1e-5
    spread = {key: value.expand(2 * many, *value.shape[1:]) for key, value in one.items()}
    moved = 1 + step * torch.cat([torch.eye(many), -torch.eye(many)]).double()
    with torch.no_grad(), hr.mask_heads(model, moved):
        up, down = explained(model(**spread, **without_cache(model))).chunk(2)
    close(relevance(model, one, "gradient")[0], (up - down) / (2 * step), 1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["marian", "t5", "albert", "gpt2", "llama-grouped", "falcon"])
def test_a_head_that_nothing_reads_has_no_relevance(name):
    model, inputs = exact(name)
    index = list(families.head_index(model))
    site = families.attention_sites(model)[-1]
    rows = site.out.weight.data if type(site.out).__name__ != "Conv1D" else site.out.weight.data.T
    rows[:, site.size : 2 * site.size] = 0
    for rules in allowed(name):
        found = relevance(model, inputs, rules)[:, index.index((*site.key, 1))]
        assert found.abs().max() == 0, rules


# --- invariances -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "rules"),
    [("marian", rules) for rules in RULES] + [("t5", "cp"), ("t5", "voita"), ("bert", "attn")],
)
def test_padding_and_company_do_not_count(name, rules):
    model, inputs = exact(name)
    batched = unchanged(name, rules)
    for row, length in enumerate((7, 5)):
        alone = {key: value[row : row + 1] for key, value in inputs.items()}
        for key in ("input_ids", "attention_mask"):
            alone[key] = alone[key][:, :length]
        close(relevance(model, alone, rules)[0], batched[row], 1e-12)


# --- precision -------------------------------------------------------------------------------------------------------

ALLOWED = {torch.bfloat16: 3e-2, torch.float16: 1e-2}
HALF = [  # every two of them together
    (name, rules, dtype, ALLOWED[dtype])
    for row, name in enumerate(("marian", "bert", "llama"))
    for column, rules in enumerate(("cp", "attn", "voita"))
    for dtype in (ALLOWED if (name, rules) == ("llama", "cp") else [list(ALLOWED)[(row + column) % 2]])
]
MISSED = pytest.mark.xfail(reason="0.037 of the largest: a bound of relevance that is not met", strict=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "rules", "dtype", "tolerance"),
    [pytest.param(*row, marks=MISSED if row[:3] == ("llama", "cp", torch.bfloat16) else ()) for row in HALF],
)
def test_half_precision(name, rules, dtype, tolerance):
    model = zoo.tiny(name)
    inputs = zoo.inputs(model)
    close(relevance(model.to(dtype), inputs, rules), unchanged(name, rules, torch.float32), tolerance)


def test_small_sums_of_contributions_do_not_overflow():
    """T5's numbers are far apart, so that 1 over a sum may be beyond float16."""
    test_half_precision("t5", "voita", torch.float16, 2e-2)


# --- ways to write norms and products --------------------------------------------------------------------------------


def roots(x, eps):
    """The reciprocal of the root mean square of x, in the ways that transformers and others write it."""
    variance = x.pow(2).mean(-1, keepdim=True) + eps
    length = x.shape[-1] ** 0.5
    return {
        "rsqrt": lambda: x * torch.rsqrt(variance), "torch.pow": lambda: x * torch.pow(variance, -0.5),
        "pow": lambda: x * variance.pow(-0.5), "**": lambda: x * variance**-0.5,
        "exponent": lambda: x * torch.pow(variance, exponent=-0.5),
        "float_power": lambda: x * torch.float_power(variance, -0.5), "root as a power": lambda: x / variance**0.5,
        "sqrt": lambda: x / variance.sqrt(), "torch.divide": lambda: torch.divide(x, torch.sqrt(variance)),
        "1 / sqrt": lambda: torch.multiply(x, 1 / torch.sqrt(variance)),
        "reciprocal": lambda: x * torch.sqrt(variance).reciprocal(),
        "square": lambda: x * (torch.square(x).mean(-1, keepdim=True) + eps).rsqrt(),
        "product": lambda: x * ((x * x).mean(-1, keepdim=True) + eps).rsqrt(),
        "normalize": lambda: F.normalize(x, dim=-1) * length, "norm": lambda: x / x.norm(dim=-1, keepdim=True) * length,
        "1 / norm": lambda: x * (length / x.norm(p=2, dim=-1, keepdim=True).clamp_min(1e-12)),
        "vector_norm": lambda: length * x / torch.linalg.vector_norm(x, dim=-1, keepdim=True),
        "rms_norm": lambda: F.rms_norm(x, x.shape[-1:], eps=eps),
        "einsum": lambda: x * torch.rsqrt(torch.einsum("btd,btd->bt", x, x)[..., None] / x.shape[-1] + eps),
    }  # fmt: skip


NORMS = list(roots(torch.ones(1, 1, 1), 1e-6))


@pytest.mark.parametrize("way", NORMS)
def test_every_way_to_write_a_norm_takes_its_deviation_for_a_constant(way):
    x = torch.randn(2, 3, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    with context._Mode(table("cp")):
        y = roots(x, 1e-9)[way]()
    close(torch.autograd.grad(y.sum(), x)[0], (y / x).detach(), 1e-12)
    close(y, roots(x, 1e-9)["rsqrt"](), 1e-6)
