"""What is explained reaches inputs and biases."""

from __future__ import annotations

import architectures
import numpy as np
import pandas as pd
import pytest
import torch
import transformers
from helpers import zoo
from helpers.relevance import ONLY_FLOAT32, TOKEN, begun, exact, explained, relevance
from helpers.traces import NAMES
from torch import nn

import headroles as hr
from headroles.models.head_model import HeadModel
from headroles.scores.lrp import RULES
from headroles.scores.lrp.conservation_report import COLUMNS, balance, totals, worst
from headroles.testing.case import Case, cast, first
from headroles.testing.checks import conserved

# Norms of these compute in float32 whatever the model's precision ...
FLOAT32_NORMS = {
    *("llama", "llama-grouped", "mistral", "qwen2", "qwen3", "gemma3", "phi3", "olmo2", "cohere", "smollm3", "granite")
}


# By voita R is nowhere negative, and all of it arrives, but where LRP-0 stands in: Cohere subtracts the mean in Python,
# Mixtral's experts are one product, the first maps of sounds and pixels are convolutions.
SIGNED = {"cohere": 0.1, "mixtral": 0.5, "whisper": 0.03, "vit": 0.03}


# below, rules of voita are refused for each of zoo.OUTSIDE, and for no other
INSIDE = [name for name in NAMES if name not in zoo.OUTSIDE]


def tolerance(name):
    return 1e-6 if name in FLOAT32_NORMS | ONLY_FLOAT32 else 1e-12


def report(name, rules, *, unbiased=False):
    model, inputs = exact(name)
    if unbiased:
        with torch.no_grad():
            for key, value in [*model.named_parameters(), *model.named_buffers()]:
                if key.endswith("bias") and value.is_floating_point():
                    value.zero_()
    return balance(HeadModel(model), inputs, lambda output: begun(explained(output), rules), rules)


GATED = ["llama-grouped", "phi3", "gemma3", "modernbert"]  # units as two maps or as one


@pytest.mark.parametrize("name", zoo.each(NAMES))
def test_what_is_explained_reaches_inputs_and_biases(name):
    for rules in ("cp", "cp-gate") if name in GATED else ("cp",):
        found = report(name, rules)
        assert list(found) == COLUMNS
        assert abs(totals(found)["residue"]) <= tolerance(name)
        assert found["residue"].abs().max() <= tolerance(name)
        assert found.loc[[("output", 0)], "leaves"].item() != 0


class OverTokens(nn.Module):
    """Batch norm of a stream [batch, token, width], after another norm."""

    def __init__(self, norm, generator):
        super().__init__()
        self.norm, self.batch = norm, nn.BatchNorm1d(len(norm.weight)).double()
        for values in (*self.batch.parameters(), self.batch.running_mean, self.batch.running_var):
            nn.init.uniform_(values, 0.5, 1, generator=generator)

    def forward(self, x):
        return self.batch(self.norm(x).transpose(1, 2)).transpose(1, 2)


def test_batch_norm_keeps_the_forward_and_its_bias_takes_a_share():
    model, inputs = exact("gpt2")
    model.transformer.ln_f = OverTokens(model.transformer.ln_f, torch.Generator().manual_seed(0)).eval()
    norm = model.transformer.ln_f.batch
    with torch.no_grad():
        target, plain = explained(model(**inputs)).sum(), norm.bias.clone()
    reports = []
    for shift in (plain, torch.zeros_like(plain)):
        norm.bias.data.copy_(shift)
        reports.append(balance(HeadModel(model), inputs, lambda output: explained(output).sum(), "cp"))
        assert reports[-1]["residue"].abs().max() <= 1e-12
    assert reports[0].attrs["explained"] == pytest.approx(float(target), rel=1e-12)
    with_bias, without = (one.loc[("output", 0), "biases"] * one.attrs["explained"] for one in reports)
    weight = model.lm_head.weight.detach()[TOKEN]
    assert float(with_bias - without) == pytest.approx(float(len(inputs["input_ids"]) * weight @ plain), abs=1e-12)


def test_positions_of_two_tokens_are_inputs():
    model, inputs = exact("m2m100")  # positions are no parameters
    inputs = {name: values[:1, :2] for name, values in inputs.items()}
    found = balance(HeadModel(model), inputs, lambda output: explained(output, step=1), "cp")
    assert found.loc[("input", 0), "biases"] == 0
    assert found.loc[("input", 0), "leaves"] == pytest.approx(found.loc[("input", 0), "arrives"], abs=1e-12)


@pytest.mark.parametrize(
    ("residues", "between", "expected"),
    [
        ((0, 0.2, -0.3, 0), 0, ("layers.0", -0.3)),
        ((0, 0.2, 0, -0.3), 0, ("what precedes the first layer", -0.3)),
        ((0.3, 0.2, 0, -0.3), 0, ("what follows the last layers", 0.3)),
        ((-0.3, 0.01, 0, 0.1), 0.2, ("layers.1", 0.01)),  # the stream passes outside the layers
        ((0.3, 0.01, 0, 0.1), 0.2, ("what is outside the layers", 0.6)),
    ],
)
def test_the_worst_row_is_a_layer_or_what_is_outside(residues, between, expected):
    rows = [("output", 0), ("decoder", 1), ("decoder", 0), ("input", 0)]
    found = pd.DataFrame({"residue": residues, "biases": 0.0}, pd.MultiIndex.from_tuples(rows))
    found["leaves"] = 1 - sum(residues) - between
    found.attrs["modules"] = {("decoder", i): f"layers.{i}" for i in range(2)}
    place, residue = worst(found)
    assert (place, residue) == (expected[0], pytest.approx(expected[1]))


@pytest.mark.slow
@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("name", ["marian", "bert", "llama-grouped"])
def test_a_report_adds_up(name, rules):
    """What is missing in the end is what was lost on the way; only gradients and softmax lose."""
    found = report(name, rules)
    assert sum(totals(found).values()) == pytest.approx(1, abs=1e-12)
    assert totals(found)["residue"] == pytest.approx(found["residue"].sum(), abs=tolerance(name))
    conserves = rules not in ("attn", "gradient")
    assert (found["residue"].abs().max() < 1e-5) == conserves


@pytest.mark.slow
@pytest.mark.parametrize("name", ["marian", "m2m100", "bert", "gpt2"])  # norms after and before attention
@pytest.mark.parametrize("rules", ["cp", "voita"])
def test_without_biases_every_stream_carries_all(name, rules):
    found = report(name, rules, unbiased=True)
    assert found["biases"].abs().max() == 0
    assert totals(found)["inputs"] == pytest.approx(1, abs=tolerance(name))
    parts = set(found.index.get_level_values("part"))
    if "decoder" in parts:
        decoder = found.loc["decoder"].sort_index(ascending=False)
        streams = decoder["leaves"] + decoder["source"].cumsum()  # and what went to the source by then
        np.testing.assert_allclose(streams, 1, atol=tolerance(name))
    if "encoder" in parts:
        source = decoder["source"].sum() if "decoder" in parts else 1.0
        np.testing.assert_allclose(found.loc["encoder", "leaves"], source, atol=tolerance(name))
        assert found.loc[("output", 0), "leaves"] == pytest.approx(source + ("decoder" in parts), abs=tolerance(name))


@pytest.mark.parametrize("name", zoo.each(INSIDE))
def test_voita_gives_no_head_less_than_nothing(name):
    found = relevance(*exact(name), "voita")
    assert found.max() > 0.01
    if name not in SIGNED or name in ("whisper", "vit"):
        assert found.min() >= 0
    assert totals(report(name, "voita"))["inputs"] == pytest.approx(1, abs=SIGNED.get(name, 1e-6))


SHARED_KEYS = ["gemma3n, shared keys", "gemma4, shared keys"]
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
