"""Stopping early: a variant whose effect is clear on part of a corpus is not run on the rest of it."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headroles.ablation.example_stats import ExampleStats, HeadSet
from headroles.ablation.metrics import Metric
from headroles.ablation.significance import effects, is_mean
from headroles.ablation.sweep import sweep
from headroles.analysis.intervals import least_p
from headroles.data.corpus import Corpus
from headroles.models import batching

FIRST, GROWTH = 256, 1.5  # examples at the first look; each look has that many times the examples of the one before
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
    """A sweep over random parts of the corpus, each variant only until it is clear whether its p is below `level`.

    It is looked at after `first` examples, and after each half as many again. A variant is clear that has p below
    `risk` shared by the looks: under no effect, the chance of a p below `level` at the end or of such a stop is then at
    most `level` + `risk` (Haybittle 1971, Peto 1976). A variant is clear too if the chance that p on the whole corpus
    will be below `level`, given the effect so far (normal, no prior), is below `miss` (stochastic curtailment). Effects
    of variants that were stopped are on average too far from 0. `options` are those of `sweep`.
    """
    if not variants:
        raise ValueError("nothing to close: give at least one variant")
    numbers = batching.encode(corpus, tokenizer, model, words=False).numbers
    order = np.random.default_rng(seed).permutation(numbers)
    ends = looks(len(order), first)
    left, found = list(variants), None
    for number, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
        rows = sorted(order[start:end].tolist())
        found = _joined(found, sweep(model, tokenizer, corpus, left, metric, rows=rows, seed=seed, **options), variants)
        if end == len(order):
            break
        share = end / len(order)
        clear = stopped(scores(found, left), share, level=level, risk=risk / max(1, len(ends) - 1), miss=miss)
        left = [each for each, done in zip(left, clear, strict=True) if not done]
        log.info("look %d, %d examples: %d of %d variants go on", number + 1, end, len(left), len(variants))
        if not left:
            break
    assert found is not None
    return found


def looks(examples: int, first: int = FIRST) -> list[int]:
    """After how many examples a corpus is looked at; the last is all of them."""
    if first < 1:
        raise ValueError(f"the first look needs at least one example; got {first}")
    found = [first]
    while found[-1] < examples:
        found.append(max(found[-1] + 1, int(found[-1] * GROWTH)))
    return [*found[:-1], examples]


def scores(found: ExampleStats, variants: list[HeadSet]) -> Array:
    """The effects of variants over their standard errors, on what they have been run on: [variant]."""
    rows = np.isfinite(found.closed[variants[0]]).all(-1)  # those that go on have all been run on the same
    own = ExampleStats(found.intact, {each: found.closed[each] for each in variants}, found.numbers, 0, found.metric)
    told = effects(own.take(np.flatnonzero(rows)), n_resamples=0 if is_mean(found.metric) else 200)
    if is_mean(found.metric):
        sizes: Array = stats.norm.isf(told.columns[".p"] / 2) * np.sign(told.columns[""])
        return sizes
    with np.errstate(divide="ignore", invalid="ignore"):  # no effect on any resample
        sizes = told.columns[""] / np.nanstd(told.draws, axis=1)
    limit = float(stats.norm.isf(least_p(int(rows.sum())) / 2))  # a few examples say little, however alike
    return np.clip(np.nan_to_num(sizes, posinf=np.inf, neginf=-np.inf), -limit, limit)


def stopped(z: Array, share: float, *, level: float, risk: float, miss: float) -> npt.NDArray[np.bool_]:
    """Which effects, in standard errors after a `share` of the examples, are clear: surely there, or not to be found.

    On the whole corpus an effect of z will be about z / sqrt(share), give or take sqrt((1 - share) / share)
    (Spiegelhalter et al. 1986).
    """
    there = np.abs(z) > stats.norm.isf(risk / 2)
    end, spread = z / np.sqrt(share), np.sqrt((1 - share) / share)
    limit = stats.norm.isf(level / 2)
    chance = stats.norm.sf((limit - end) / spread) + stats.norm.cdf((-limit - end) / spread)
    found: npt.NDArray[np.bool_] = there | (chance < miss)
    return found


def _joined(before: ExampleStats | None, more: ExampleStats, variants: list[HeadSet]) -> ExampleStats:
    """Two sweeps of parts of a corpus, the second of fewer variants."""
    none = np.full_like(more.intact, np.nan)
    closed = {each: more.closed.get(each, none) for each in variants}
    if before is None:
        return replace(more, closed=closed)
    return replace(
        more,
        intact=np.concatenate([before.intact, more.intact]),
        closed={each: np.concatenate([before.closed[each], values]) for each, values in closed.items()},
        numbers=before.numbers + more.numbers,
    )
