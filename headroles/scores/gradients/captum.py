"""Attribution: any method of captum, with the heads' masks as its input; attribution patching by the same call."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from headroles.data.corpus import CorpusLike
from headroles.models.batching import Batch
from headroles.models.head_model import HeadModel, Model
from headroles.models.replacements import Word
from headroles.scores.gradients.base import GradientScore, HeadGradients
from headroles.scores.gradients.patching import AttributionPatching, Patch
from headroles.scores.lrp import lrp_rules
from headroles.scores.objectives import Name, Objective, Targets, held
from headroles.scores.runner import score
from headroles.tables.arguments import one_of
from headroles.tables.study import Study

METHODS = (  # of captum that need only a function
    *("Deconvolution", "DeepLift", "DeepLiftShap", "FeatureAblation", "FeaturePermutation", "GradientShap"),
    *("GuidedBackprop", "InputXGradient", "IntegratedGradients", "KernelShap", "Lime", "Occlusion", "Saliency"),
    *("ShapleyValueSampling", "ShapleyValues"),
)
BY_MODULES = ("DeepLift", "DeepLiftShap", "GuidedBackprop", "Deconvolution")  # of these, with rules for modules
COPIES = 8  # perturbed copies of a batch in one forward pass, by default


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


@dataclass(frozen=True)
class Attribution(GradientScore):
    """Attribution of the target (averaged over steps) to each head's mask, by a captum method.

    A method with a baseline starts from masks of zeros. DeepLift has rules for torch's own non-linear modules only, and
    takes softmax and layer norm as plain gradients. The provenance field `delta` is the part of the effect of masking
    all heads that the attributions miss. Columns are `attribution[method]` and `attribution[method].size`, the mean of
    absolute values.

    Args:
        method: name of a class of `captum.attr` such as "IntegratedGradients", "ShapleyValueSampling",
            "FeatureAblation" (heads masked one by one) or "DeepLift".
        options: (name, value) pairs for its `attribute`.
        replacement: replacement of a masked head's output, "zero" or "uniform".
        objective: name or instance of the target; default: the model's own.
    """

    method: str = "IntegratedGradients"
    options: tuple[tuple[str, object], ...] = ()
    replacement: Word = "zero"

    def __post_init__(self) -> None:
        one_of("method", self.method, METHODS)
        one_of("replacement", self.replacement, ("zero", "uniform"))

    @property
    def label(self) -> str:
        """Column name, with the method."""
        return f"attribution[{self.method}]"

    def fit(self, model: HeadModel, batches: Iterable[Batch]) -> Targets:
        """Return an object that computes the targets of a corpus."""
        if self.method in BY_MODULES:
            model.check_unsharded(self.label)
        return super().fit(model, batches)

    def notes(self, model: HeadModel, target: Targets, batch: Batch, /) -> dict[str, object]:
        """Return the objective and, if the method has one, captum's convergence delta on the first batch."""
        notes = super().notes(model, target, batch)
        with _captum(model, batch):
            run = _Run(self, model, target, batch)
            if not run.method.has_convergence_delta():
                return notes
            _, delta = run.method.attribute(run.masks, **run.arguments, return_convergence_delta=True)
            change = run.target(run.masks, run.rows) - run.target(torch.zeros_like(run.masks), run.rows)
        return notes | {"delta": f"{float((delta.abs().sum() / change.abs().sum()).detach()):.4f}"}

    def head_gradients(self, model: HeadModel, target: Targets, batch: Batch) -> HeadGradients:
        """Compute the attributions as one step per example."""
        with _captum(model, batch):
            run = _Run(self, model, target, batch)
            attributions = run.method.attribute(run.masks, **run.arguments).detach()
        counted = run.target.counted[:, None]
        return HeadGradients(None, attributions[:, None], counted.float(), counted)


class _Run:
    """A captum method and its arguments on one batch."""

    def __init__(self, score: Attribution, model: HeadModel, target: Targets, batch: Batch) -> None:
        import captum.attr

        self.target = _Target(model, target, held(model, target, batch), score.replacement)
        self.method = getattr(captum.attr, score.method)(self.target)
        self.masks = torch.ones(len(batch.numbers), len(model.gated), device=model.device, requires_grad=True)
        self.rows = torch.arange(len(self.masks), device=model.device)
        parameters = inspect.signature(self.method.attribute).parameters
        self.arguments: dict[str, object] = {"additional_forward_args": (self.rows,)}
        if "baselines" in parameters:
            self.arguments["baselines"] = torch.zeros_like(self.masks)
        if "perturbations_per_eval" in parameters:
            self.arguments["perturbations_per_eval"] = COPIES
        self.arguments |= dict(score.options)


class _Target(nn.Module):
    """The mean target of the examples at `rows`, as a function of the masks of their heads."""

    def __init__(self, model: HeadModel, target: Targets, batch: Batch, replacement: Word) -> None:
        super().__init__()
        self.model, self.target, self.batch, self.replacement = model, target, batch, replacement
        self.module = model.model  # a submodule: DeepLift searches for non-linear ones
        self.counted = torch.zeros(len(batch.numbers), dtype=torch.bool, device=model.device)  # has a step that counts

    def forward(self, masks: Tensor, rows: Tensor) -> Tensor:
        """Return the targets, [example], for masks [example, heads] and rows [example]."""
        if self.model.one_example_per_batch and len(rows) > 1:
            return torch.cat([self(mask, row) for mask, row in zip(masks.split(1), rows.split(1), strict=True)])
        batch = self.batch.take(rows)
        with self.model.mask(masks, replacement=self.replacement):
            explained = self.target.targets(self.model.forward(batch), batch)
        self.counted[rows] = explained.counted.any(-1).to(rows.device)  # masks do not change which steps count
        values = torch.where(explained.counted, explained.values, 0.0)
        return values.sum(-1) / explained.counted.sum(-1).clamp(min=1)


@contextmanager
def _captum(model: HeadModel, batch: Batch) -> Iterator[None]:
    """Take gradients to the masks only, seed random numbers by the batch, and ignore captum's warning about hooks."""
    rules = lrp_rules(model, "gradient")
    with torch.random.fork_rng(), torch.enable_grad(), rules, warnings.catch_warnings():
        state = np.random.get_state()  # captum draws from NumPy's and from torch's
        try:
            torch.manual_seed(batch.numbers[0])
            np.random.seed(batch.numbers[0])
            warnings.filterwarnings("ignore", "Setting forward, backward hooks")
            yield
        finally:
            np.random.set_state(state)
