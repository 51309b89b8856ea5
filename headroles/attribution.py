"""Captum on the gates: one call that gives each head its share of what a model decides."""

from __future__ import annotations

from typing import Any

import pandas as pd
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headroles.gates import Fill
from headroles.objectives import Name, Objective
from headroles.scores import Attribution, score
from headroles.text import Corpus


def attribute(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    corpus: Corpus,
    *,
    method: str = "IntegratedGradients",
    objective: Name | Objective | None = None,
    fill: Fill = "zero",
    budget: int = 1024,
    resamples: int = 1000,
    seed: int = 0,
    **options: Any,
) -> pd.DataFrame:
    """Attribute what the model decides to its heads, by a method of `captum.attr` with the gates as its input.

    Any method that needs nothing but the function: IntegratedGradients, ShapleyValueSampling, FeatureAblation,
    GradientShap, DeepLift where it applies ... ; `options` go to its `attribute` (`n_steps`, `n_samples`,
    `perturbations_per_eval`). A closed gate puts `fill` in the head's place. What is explained is the objective's mean
    over the steps of a sentence, the tokens held that the intact model chose. The column `attribution[method]` has
    intervals as those of `score`, whose errors it raises.
    """
    asked = Attribution(method=method, options=tuple(options.items()), fill=fill, objective=objective)
    return score(model, tokenizer, corpus, asked, budget=budget, resamples=resamples, seed=seed)
