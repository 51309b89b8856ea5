"""Early stopping: measure a variant only on as much of a corpus as it takes to decide about its effect."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import norm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headroles.ablation.example_stats import ExampleStats, HeadSet
from headroles.ablation.metrics import Metric
from headroles.ablation.significance import effects, is_mean
from headroles.ablation.sweep import sweep
from headroles.analysis.intervals import least_p
from headroles.data.corpus import Corpus
from headroles.models import batching

FIRST, GROWTH = 256, 1.5  # examples at the first interim test, and the growth from each test to the next
Array = npt.NDArray[np.floating[Any]]

log = logging.getLogger(__name__)


def staged(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    corpus: Corpus,
    variants: list[HeadSet],
    metric: Metric,
    *,
    level: float = 0.01,
    risk: float = 0.001,
    miss: float = 0.05,
    first: int = FIRST,
    seed: int = 0,
    **options: Any,
) -> ExampleStats:
    """Sweep random parts of the corpus, each variant until it is clear whether its p is below `level`.

    There is an interim test after `first` examples, and after each growth by half. A variant is stopped if its p is
    below its share of `risk`: without an effect, the probability of such a stop or of p below `level` at the end is at
    most `level` + `risk` (Haybittle 1971, Peto 1976). A variant is also stopped if the probability that p on the whole
    corpus will be below `level`, given the effect so far (normal, no prior), is below `miss` (stochastic curtailment).
    Effects of stopped variants are on average too far from 0.

    Args:
        model: A Hugging Face model.
        tokenizer: Its tokenizer.
        corpus: The corpus that is measured.
        variants: Sets of heads, (kind, layer, head) each; a variant masks all heads of its set.
        metric: The metric that reads the statistics.
        level: Significance level that is decided about.
        risk: Additional probability of a false positive, divided among the interim tests.
        miss: Probability of a significant result below which a variant is stopped.
        first: Number of examples at the first interim test.
        seed: Seed of the order of the examples, and of `sweep`.
        **options: Further options of `sweep`.

    Returns:
        Example statistics, NaN for the examples on which a variant was not run.

    Raises:
        ValueError: If there is no variant, or `first` is below 1.
    """
    if not variants:
        raise ValueError("nothing to ablate: got no variant; expected at least one")
    numbers = batching.encode(corpus, tokenizer, model, words=False).numbers
    order = np.random.default_rng(seed).permutation(numbers)
    ends = looks(len(order), first)
    left, stats = list(variants), None
    for number, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
        rows = sorted(order[start:end].tolist())
        more = sweep(model, tokenizer, corpus, left, metric, rows=rows, seed=seed, **options)
        stats = _joined(stats, more, variants)
        if end == len(order):
            break
        share = end / len(order)
        clear = stopped(scores(stats, left), share, level=level, risk=risk / max(1, len(ends) - 1), miss=miss)
        left = [variant for variant, done in zip(left, clear, strict=True) if not done]
        log.info("interim test %d, %d examples: %d of %d variants continue", number + 1, end, len(left), len(variants))
        if not left:
            break
    assert stats is not None
    return stats


def looks(examples: int, first: int = FIRST) -> list[int]:
    """Return the numbers of examples at which variants are tested; the last is all of them.

    Args:
        examples: Number of examples of the corpus.
        first: Number of examples at the first interim test.

    Returns:
        Increasing numbers of examples.

    Raises:
        ValueError: If `first` is below 1.
    """
    if first < 1:
        raise ValueError(f"too few examples for the first interim test: got {first}; expected at least 1")
    ends = [first]
    while ends[-1] < examples:
        ends.append(max(ends[-1] + 1, int(ends[-1] * GROWTH)))
    return [*ends[:-1], examples]


def scores(found: ExampleStats, variants: list[HeadSet]) -> Array:
    """Compute the effects of variants divided by their standard errors, on the examples measured so far.

    Args:
        found: Example statistics.
        variants: The variants that continue, which were all run on the same examples.

    Returns:
        Standardised effects: [variant].
    """
    rows = np.isfinite(found.closed[variants[0]]).all(-1)
    left = replace(found, closed={variant: found.closed[variant] for variant in variants}).take(np.flatnonzero(rows))
    effect = effects(left, n_resamples=0 if is_mean(found.metric) else 200)
    if is_mean(found.metric):
        sizes: Array = norm.isf(effect.columns[".p"] / 2) * np.sign(effect.columns[""])
        return sizes
    with np.errstate(divide="ignore", invalid="ignore"):  # no effect on any resample
        sizes = effect.columns[""] / np.nanstd(effect.draws, axis=1)
    limit = float(norm.isf(least_p(int(rows.sum())) / 2))  # few examples prove little, however alike they are
    return np.clip(np.nan_to_num(sizes, posinf=np.inf, neginf=-np.inf), -limit, limit)


def stopped(z: Array, share: float, *, level: float, risk: float, miss: float) -> npt.NDArray[np.bool_]:
    """Decide which variants are stopped: those with a clear effect, or almost no chance of a significant one.

    On the whole corpus an effect z is predicted to be z / sqrt(share), with standard deviation
    sqrt((1 - share) / share) (Spiegelhalter et al. 1986).

    Args:
        z: Standardised effects: [variant].
        share: Share of the examples measured so far, below 1.
        level: Significance level that is decided about.
        risk: p below which an effect is clear.
        miss: Probability of a significant result below which a variant is stopped.

    Returns:
        Whether each variant is stopped: bool [variant].
    """
    significant = np.abs(z) > norm.isf(risk / 2)
    end, spread = z / np.sqrt(share), np.sqrt((1 - share) / share)
    limit = norm.isf(level / 2)
    chance = norm.sf((limit - end) / spread) + norm.cdf((-limit - end) / spread)
    clear: npt.NDArray[np.bool_] = significant | (chance < miss)
    return clear


def _joined(before: ExampleStats | None, more: ExampleStats, variants: list[HeadSet]) -> ExampleStats:
    """Concatenate the statistics of two parts of a corpus, the second with fewer variants."""
    none = np.full_like(more.intact, np.nan)
    closed = {variant: more.closed.get(variant, none) for variant in variants}
    if before is None:
        return replace(more, closed=closed)
    return replace(
        more,
        intact=np.concatenate([before.intact, more.intact]),
        closed={variant: np.concatenate([before.closed[variant], part]) for variant, part in closed.items()},
        numbers=before.numbers + more.numbers,
    )
