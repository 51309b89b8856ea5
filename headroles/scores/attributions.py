"""Attributions: a captum method or attribution patching, as a table of one score."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from transformers import PreTrainedTokenizerBase

from headroles.data.corpus import CorpusLike
from headroles.models.head_model import Model
from headroles.models.replacements import Word
from headroles.scores.gradients.base import GradientScore
from headroles.scores.gradients.captum import Attribution
from headroles.scores.gradients.patching import AttributionPatching, Patch
from headroles.scores.objectives import Name, Objective
from headroles.scores.runner import score
from headroles.tables.study import Study


def attribute(
    model: Model,
    tokenizer: PreTrainedTokenizerBase,
    corpus: CorpusLike,
    *,
    method: str = "IntegratedGradients",
    objective: Name | Objective | None = None,
    replacement: Word | Patch = "zero",
    max_tokens: int = 1024,
    n_resamples: int = 1000,
    seed: int = 0,
    study: Study | str | Path | None = None,
    **options: Any,
) -> pd.DataFrame:
    """Attribute a model's output to its heads' masks, by a captum method or by attribution patching.

    The target of a sentence is the objective's mean over its steps, for the tokens that the intact model predicts. This
    is `score` with one `Attribution` or `AttributionPatching`.

    Args:
        model: the model.
        tokenizer: tokenizer of the model.
        corpus: the sentences.
        method: name of a class of `captum.attr` that needs only a function, such as "IntegratedGradients",
            "ShapleyValueSampling", "FeatureAblation", "GradientShap", or "DeepLift" where it applies; or "AtP" and
            "AtP*", attribution patching without and with GradDrop.
        objective: name or instance of the target; default: the model's own.
        replacement: replacement of a masked head's output, "zero" or "uniform"; of what is patched, "zero" or
            "resample".
        max_tokens: upper bound on tokens per batch and side, padding included.
        n_resamples: number of bootstrap resamples; 0 for no intervals.
        seed: seed of the resamples.
        study: study or folder that adds the columns to its table `heads`, as in `score`.
        **options: options of the method's `attribute`, such as `n_steps`, `n_samples`, `perturbations_per_eval`; of
            attribution patching, `node`: "output", "query" or "key".

    Returns:
        One row per head with columns `attribution[method]` and `attribution[method].size`, and bounds as in `score`.
    """
    attribution: GradientScore
    if method in ("AtP", "AtP*"):
        drop = method == "AtP*"
        attribution = AttributionPatching(drop=drop, replacement=replacement, seed=seed, objective=objective, **options)
    else:
        attribution = Attribution(
            method=method,
            options=tuple(options.items()),
            replacement=replacement,  # type: ignore[arg-type]  # it refuses "resample"
            objective=objective,
        )
    options = {"max_tokens": max_tokens, "n_resamples": n_resamples, "seed": seed, "study": study}
    return score(model, tokenizer, corpus, attribution, **options)
