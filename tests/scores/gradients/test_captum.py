"""Methods of captum on masks: complete, and equal to loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers import zoo
from helpers.close import close
from helpers.explaining import FEW
from helpers.letters import batches_of, corpus, tokens_of

import headroles as hr
from headroles.data.corpus import Corpus
from headroles.models import heads as families
from headroles.models import masking
from headroles.models.head_model import HeadModel
from headroles.scores.gradients.captum import METHODS
from headroles.scores.objectives import held, objective
from headroles.tables import frame

# --- passes over a corpus -------------------------------------------------------------------------------------------


# --- attribution ----------------------------------------------------------------------------------------------------


def body(name):
    """A translator, or an encoder without its head, whose states are explained."""
    return zoo.tiny(name) if name == "marian" else zoo.tiny(name).base_model


def attributed(name, given, method, **options):
    """The signed column of an attribution, of the heads."""
    options = {"n_resamples": 0} | options
    return hr.attribute(body(name), tokens_of(name), given, method=method, **options)[f"attribution[{method}]"]


def effects(name, given, closings, replacement="zero", of=None):
    """The mean over sentences of what each closing of heads takes from what is explained of it."""
    model = body(name)
    groups = batches_of(model, tokens_of(name), given)
    fitted = objective(of, HeadModel(model)).fit(HeadModel(model), groups)

    def explained(batch, gate):
        with torch.no_grad(), masking.mask_heads(model, gate, replacement=replacement):
            found = fitted.targets(model(**batch.inputs), batch)
        return torch.where(found.counted, found.values, 0.0).sum(-1) / found.counted.sum(-1)

    kept = [held(HeadModel(model), fitted, batch) for batch in groups]
    masks = [masking.head_mask(model, closing) for closing in ([], *closings)]
    intact, *rest = (torch.cat([explained(batch, mask) for batch in kept]) for mask in masks)
    return np.array([float((intact - left).mean()) for left in rest])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["marian", "bert"])
def test_integrated_gradients_are_complete(name):
    found = attributed(name, corpus(FEW), "IntegratedGradients", n_steps=64)
    (whole_effect,) = effects(name, corpus(FEW), [list(found.index)])
    assert found.sum() == pytest.approx(whole_effect, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "replacement"), [("marian", "zero"), ("bert", "uniform")])
def test_feature_ablation_is_a_loop_that_masks_one_head_at_a_time(name, replacement):
    found = attributed(name, corpus(FEW), "FeatureAblation", replacement=replacement)
    np.testing.assert_allclose(
        found, effects(name, corpus(FEW), [[head] for head in found.index], replacement), atol=1e-5
    )
    assert found.abs().max() > 0.01


@pytest.mark.slow
@pytest.mark.parametrize(("name", "samples"), [("marian", 2), ("bert", 1)])
def test_shapley_values_sum_to_the_effect_of_all(name, samples):
    torch.manual_seed(0)
    found = attributed(name, corpus(3), "ShapleyValueSampling", n_samples=samples)
    (whole_effect,) = effects(name, corpus(3), [list(found.index)])
    assert found.sum() == pytest.approx(whole_effect, abs=1e-4)


def _slopes_at(place):
    """The mean gradient of gates that are open so far, of what is explained of three sentences."""
    model, given = body("bert"), corpus(3)
    (batch,) = batches_of(model, tokens_of("bert"), given)
    gate = torch.full((3, len(families.head_index(model))), place, requires_grad=True)
    fitted = objective(None, HeadModel(model)).fit(HeadModel(model), [batch])
    with hr.mask_heads(model, gate):
        fitted.targets(model(**batch.inputs), batch).values.sum().backward()
    return gate.grad.mean(0)


def test_options_reach_the_method():
    """Integrated by one step of Gauss and Legendre, a gradient is that at gates half open."""
    found = attributed("bert", corpus(3), "IntegratedGradients", n_steps=1)
    close(found, _slopes_at(0.5))


def test_a_method_without_a_baseline_is_given_none():
    close(attributed("bert", corpus(3), "InputXGradient"), _slopes_at(1.0))


@pytest.mark.parametrize(("method", "samples"), [("GradientShap", 2), ("ShapleyValueSampling", 1)])
def test_what_a_method_draws_follows_from_the_sentences_alone(method, samples):
    found = []
    for seed, max_tokens in ((1, 1024), (2, 1)):  # in one batch, and each by itself
        torch.manual_seed(seed)
        np.random.seed(seed)
        found.append(attributed("bert", corpus(3), method, n_samples=samples, max_tokens=max_tokens))
        drawn = torch.rand(1), np.random.rand()
        torch.manual_seed(seed)
        np.random.seed(seed)
        assert drawn == (torch.rand(1), np.random.rand())  # as if nothing had been drawn between
    close(found[0], found[1])
    assert len(set(np.round(found[0] / _slopes_at(1.0).numpy(), 6))) > 1  # it draws


@pytest.mark.slow
def test_delta_is_what_is_missed_of_the_effects_of_masking_all():
    effect, missed = [], []
    for sentence in corpus(3):
        alone = Corpus("alone", (sentence,))
        found = attributed("marian", alone, "IntegratedGradients", objective="loss", n_steps=1)
        effect.append(effects("marian", alone, [list(found.index)], of="loss")[0])
        missed.append(abs(found.sum() - effect[-1]))
    assert min(effect) < 0 < max(effect)
    options = {"objective": "loss", "n_steps": 1, "n_resamples": 0}
    table = hr.attribute(body("marian"), tokens_of("marian"), corpus(3), **options)
    fields = dict(field.partition(":")[::2] for field in frame.provenance(table, list(table)[0]).split("|"))
    assert float(fields["delta"]) == pytest.approx(sum(missed) / np.abs(effect).sum(), abs=1e-4)


# --- what cannot be measured ----------------------------------------------------------------------------------------


def test_captum_has_all_methods():
    attr = pytest.importorskip("captum.attr")
    assert all(hasattr(attr, method) for method in METHODS)
    assert hr.Attribution().label == "attribution[IntegratedGradients]"
