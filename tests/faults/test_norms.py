"""Norms, gates and products are written in many ways: relevance is conserved by each, or refused."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import architectures
import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from helpers.messages import whole
from torch import nn

import headroles as hr
from headroles.cli import arguments
from headroles.models.head_model import HeadModel
from headroles.scores.lrp.conservation_report import balance, totals
from headroles.testing.case import Case, cast, first
from headroles.testing.checks import conserved

SHARED_KEYS = ["gemma3n, shared keys", "gemma4, shared keys"]


def roots(x, eps):
    """The reciprocal of the root mean square of x, in the ways that transformers and others write it."""
    variance = x.pow(2).mean(-1, keepdim=True) + eps
    length = x.shape[-1] ** 0.5
    return {
        "rsqrt": lambda: x * torch.rsqrt(variance),
        "torch.pow": lambda: x * torch.pow(variance, -0.5),
        "pow": lambda: x * variance.pow(-0.5),
        "**": lambda: x * variance**-0.5,
        "exponent": lambda: x * torch.pow(variance, exponent=-0.5),
        "float_power": lambda: x * torch.float_power(variance, -0.5),
        "root as a power": lambda: x / variance**0.5,
        "sqrt": lambda: x / variance.sqrt(),
        "torch.divide": lambda: torch.divide(x, torch.sqrt(variance)),
        "1 / sqrt": lambda: torch.multiply(x, 1 / torch.sqrt(variance)),
        "reciprocal": lambda: x * torch.sqrt(variance).reciprocal(),
        "square": lambda: x * (torch.square(x).mean(-1, keepdim=True) + eps).rsqrt(),
        "product": lambda: x * ((x * x).mean(-1, keepdim=True) + eps).rsqrt(),
        "normalize": lambda: F.normalize(x, dim=-1) * length,
        "norm": lambda: x / x.norm(dim=-1, keepdim=True) * length,
        "1 / norm": lambda: x * (length / x.norm(p=2, dim=-1, keepdim=True).clamp_min(1e-12)),
        "vector_norm": lambda: length * x / torch.linalg.vector_norm(x, dim=-1, keepdim=True),
        "rms_norm": lambda: F.rms_norm(x, x.shape[-1:], eps=eps),
        "einsum": lambda: x * torch.rsqrt(torch.einsum("btd,btd->bt", x, x)[..., None] / x.shape[-1] + eps),
    }


WAYS = list(roots(torch.ones(1, 1, 1), 1e-6))


class Root(nn.Module):
    """A root mean square norm that is written in one of the ways."""

    def __init__(self, norm, way):
        super().__init__()
        self.weight, self.eps, self.way = norm.weight, 1e-9, way

    def forward(self, x):
        return self.weight * roots(x, self.eps)[self.way]()


def relevance_of_inputs(model, ids):
    """Relevance of heads, and of token embeddings as the plain sum of value times gradient; and the target."""
    embedded = model.get_input_embeddings()(ids).detach().requires_grad_()
    gates = torch.ones(1, len(hr.models.head_index(model)), dtype=torch.float64, requires_grad=True)
    with hr.lrp_rules(model, "cp"), hr.mask_heads(model, gates):
        target = model(inputs_embeds=embedded, use_cache=False).logits[0, -1].max()
    of_inputs, of_heads = torch.autograd.grad(target, [embedded, gates])
    return float((of_inputs * embedded.detach()).sum()), of_heads[0].numpy(), float(target.detach())


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_write_a_norm_conserves_and_is_the_same(way):
    """No bias is in the model: all of the target comes from its inputs."""
    ids = torch.tensor([[5, 9, 17, 40, 33]])
    results = {}
    for each in ("rsqrt", way):
        model = hr.tiny_model("llama").double()
        for name, module in list(model.named_modules()):
            if type(module).__name__ == "LlamaRMSNorm":
                parent, _, last = name.rpartition(".")
                setattr(model.get_submodule(parent), last, Root(module, each))
        results[each] = relevance_of_inputs(model, ids)
    of_inputs, of_heads, target = results[way]
    assert of_inputs == pytest.approx(target, rel=1e-6)
    np.testing.assert_allclose(of_heads, results["rsqrt"][1], rtol=0, atol=1e-6 * np.abs(of_heads).max())


PRODUCTS = {
    "*": lambda a, b: a * b,
    "torch.multiply": torch.multiply,
    "multiply": lambda a, b: a.multiply(b),
    "einsum": lambda a, b: torch.einsum("btd,btd->btd", a, b),
    "einsum of a list": lambda a, b: torch.einsum("btd,btd->btd", [a, b]),
}


class Gated(nn.Module):
    """A gated unit, of which the product is written in one of the ways."""

    def __init__(self, mlp, way):
        super().__init__()
        self.gate, self.up, self.down, self.act, self.way = mlp.gate_proj, mlp.up_proj, mlp.down_proj, mlp.act_fn, way

    def forward(self, x):
        return self.down(PRODUCTS[self.way](self.act(self.gate(x)), self.up(x)))


@pytest.mark.parametrize("way", [way for way in PRODUCTS if way != "*"])
def test_every_way_to_write_a_product_is_the_same(way):
    results = []
    for each in ("*", way):
        model = hr.tiny_model("llama").double()
        for layer in model.model.layers:
            layer.mlp = Gated(layer.mlp, each)
        results.append(relevance_of_inputs(model, torch.tensor([[5, 9, 17, 40, 33]])))
    (_, expected, _), (of_inputs, of_heads, target) = results
    assert of_inputs == pytest.approx(target, rel=1e-6)
    np.testing.assert_allclose(of_heads, expected, rtol=0, atol=1e-6 * np.abs(expected).max())


class OverTokens(nn.Module):
    """Instance norm over the tokens, after another norm."""

    def __init__(self, norm):
        super().__init__()
        self.norm, self.instance = norm, nn.InstanceNorm1d(len(norm.weight), affine=True).double()
        with torch.no_grad():
            self.instance.bias += torch.linspace(-1, 1, len(norm.weight))

    def forward(self, x):
        return self.instance(self.norm(x).transpose(1, 2)).transpose(1, 2)


def test_instance_norm_conserves():
    case = Case(hr.tiny_model("gpt2"))
    model = case.precise
    model.transformer.ln_f = OverTokens(model.transformer.ln_f)
    expected = first(model(**case.inputs)).amax(-1).sum()
    report = balance(HeadModel(model), case.inputs, lambda output: first(output).amax(-1).sum(), "cp")
    assert report["residue"].abs().max() < 1e-9
    assert report.attrs["explained"] == pytest.approx(float(expected.detach()), rel=1e-6)


NORMS = r"^class (\w*(?:RMSNorm|LayerNorm|L2Norm|QKNorm|GroupNorm)\w*)\(.*?(?=^\S|\Z)"
KNOWN = {  # calls in the norms of transformers that have a rule, or are linear, or stay within a constant
    "rsqrt", "sqrt", "pow", "square", "mean", "var", "norm", "sum", "cumsum", "clamp", "clamp_min", "layer_norm",
    "group_norm", "rms_norm", "normalize", "silu", "gelu", "sigmoid", "linear", "dropout",
    "to", "float", "type_as", "view", "reshape", "permute", "chunk", "split", "cat", "flatten", "unsqueeze", "squeeze",
    "contiguous", "transpose", "bool", "ones_like", "finfo", "dim", "size", "len", "int", "zip", "super", "forward",
    "_norm", "ValueError", "AssertionError", "maybe_autocast", "_cast_if_autocast_enabled", "is_deepspeed_initialized",
}  # fmt: skip


def test_transformers_writes_its_norms_in_known_ways():
    """A new release may write one in another: then it needs a rule, and a line here."""
    folder = Path(transformers.__file__).parent / "models"
    found = []
    for path in folder.glob("*/modeling_*.py"):
        for match in re.finditer(NORMS, path.read_text("utf-8"), re.MULTILINE | re.DOTALL):
            if re.match("RobertaPreLayerNorm|.*Encoder", match[1]):  # a whole model, or encoder, bears the name
                continue
            (norm,) = ast.parse(match[0]).body
            parts = {node.func.value.attr for node in ast.walk(norm) if _calls_a_part(node)}
            for function in norm.body:
                if isinstance(function, ast.FunctionDef) and function.name in ("forward", "_norm"):
                    calls = [node.func for node in ast.walk(function) if isinstance(node, ast.Call)]
                    names = {getattr(call, "attr", getattr(call, "id", "")) for call in calls}
                    own = {call.attr for call in calls if isinstance(call, ast.Attribute) and _is_self(call.value)}
                    found.append((match[1], names - own - parts - {""}))
    assert len(found) > 150
    assert {name: calls - KNOWN for name, calls in found if calls - KNOWN} == {}


def _is_self(node):
    return isinstance(node, ast.Name) and node.id == "self"


def _calls_a_part(node):
    function = node.func if isinstance(node, ast.Call) else None
    return isinstance(function, ast.Attribute) and isinstance(function.value, ast.Attribute)


# norms as powers; reused keys; gates by softplus and exp; linear attention; einsum; soft-capped logits
FAMILIES = ["embedding_gemma2_text", "muse_glimmer_text", "neomme", "laguna", "inkling_text"]
LINEAR = ["jamba", "kimi_linear", "olmo_hybrid", "qwen3_5_text", "qwen3_next"]


@pytest.mark.parametrize("name", [*SHARED_KEYS, *FAMILIES, *LINEAR])
def test_a_family_conserves(name):
    if name not in architectures.VARIANTS and name not in transformers.CONFIG_MAPPING:
        pytest.skip(f"transformers {transformers.__version__} has no {name}")
    assert conserved(Case(architectures.build(name))) < 1e-6


@pytest.mark.parametrize("name", SHARED_KEYS)
def test_every_row_of_the_report_adds_up_where_layers_reuse_keys(name):
    """Keys and values for later layers, and embeddings of a layer's own, are in the rows that they belong to."""
    case = Case(architectures.build(name))
    model = case.precise
    report = balance(
        HeadModel(model), cast(case.inputs, model.dtype), lambda output: first(output).flatten(1).amax(-1).sum(), "cp"
    )
    assert report["residue"].abs().max() < 1e-6
    assert report["arrives"].iloc[0] == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("name", ["gemma2", "vaultgemma"])
def test_the_cap_of_logits_is_no_gate(name):
    """By `cp-gate` no relevance reached the heads."""
    case = Case(hr.tiny_model(name))
    report = balance(HeadModel(case.precise), case.inputs, lambda output: first(output).amax(-1).sum(), "cp-gate")
    assert abs(totals(report)["residue"]) < 1e-6


def test_values_may_be_narrower_than_keys():
    """Latent attention has other sizes for keys and values."""
    case = Case(hr.tiny_model("minicpm3"))

    def target(output):
        values = first(output).amax(-1)
        return values.sum() / values.detach().sum()

    report = balance(HeadModel(case.precise), case.inputs, target, "voita")
    assert totals(report)["inputs"] == pytest.approx(1, abs=1e-6)


class Wave(nn.Module):
    """An operation that no rule knows."""

    def forward(self, x):
        return torch.sin(9 * x)


@pytest.fixture(scope="module")
def leaking():
    """A model of which one layer loses relevance."""
    model = hr.tiny_model("gpt2", activation_function="gelu")
    model.transformer.h[1].mlp.act = Wave()
    return model


def score_of(model, relevance, **options):
    case = Case(model)
    return hr.score(model, case.tokenizer, case.corpus, [relevance], n_resamples=0, **options)


@pytest.mark.parametrize("rules", ["cp", "cp-gate", "voita"])
def test_relevance_that_is_lost_is_refused(leaking, rules):
    said = (
        rf"relevance\[{rules}\] does not add up in GPT2LMHeadModel: got -?[\d.]+ % of the target that neither inputs "
        rf"nor biases account for, and -?[\d.]+ % in transformer.h.1; expected at most 2 %, lost or invented; try "
        rf"rules='gradient' or the score 'importance', or accept the numbers by max_residue=([\d.e+]+)"
    )
    with pytest.raises(ValueError, match=said) as error:
        score_of(leaking, hr.Relevance(rules))
    limit = float(re.fullmatch(said, str(error.value))[1])
    accepted = score_of(leaking, hr.Relevance(rules, max_residue=limit))
    assert accepted.notna().all(axis=None)
    assert abs(float(re.search(r"residue:(-?[\d.]+)", hr.provenance(accepted, list(accepted)[0]))[1])) > 0.02


def test_rules_that_promise_nothing_are_not_checked(leaking):
    for relevance in (hr.Relevance("attn"), hr.Relevance("gradient"), hr.Relevance(epsilon=0.1)):
        assert score_of(leaking, relevance).notna().all(axis=None)


def test_rounding_of_half_precision_is_no_loss():
    model = hr.tiny_model("gpt2").to(torch.bfloat16)
    assert score_of(model, hr.Relevance()).notna().all(axis=None)


def test_the_largest_loss_is_a_number():
    message = "max_residue out of range: got -1; expected a number >= 0, such as 0.02"
    for wrong in (-1, float("nan")):
        with pytest.raises(ValueError, match=whole(message.replace("-1", str(wrong)))):
            hr.Relevance(max_residue=wrong)
    assert str(hr.Relevance(max_residue=1)) == str(hr.Relevance())  # numbers do not depend on it


def test_the_largest_loss_is_an_option_of_the_command():
    first_, second = arguments.scores_of(["relevance", "confidence", "relevance"], "cp", 0.3)[::2]
    assert (first_.max_residue, second.rules) == (0.3, "cp")
