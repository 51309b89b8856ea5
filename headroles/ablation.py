"""Ablation: what happens when a head is switched off, for every head, with intervals and corrected tests."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import stats
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headroles import families, heads, models
from headroles.gates import Head
from headroles.metrics import Mean, Metric
from headroles.metrics import metric as the_metric
from headroles.scores.book import bounds, counting, rounded
from headroles.study import Study
from headroles.sweep import Closed, Fill, Sweep, sweep
from headroles.text import Corpus

Plan = Literal["single", "rest", "layer", "kind"]
PLANS: tuple[Plan, ...] = get_args(Plan)
Array = npt.NDArray[np.floating[Any]]


def ablate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    corpus: Corpus,
    *,
    metric: str | Metric = "loss",
    plan: Plan = "single",
    fill: Fill = "zero",
    budget: int = 4096,
    together: int = 8,
    resamples: int = 1000,
    seed: int = 0,
    folder: str | Path | None = None,
) -> pd.DataFrame:
    """Close heads and measure what changes (Michel et al. 2019, section 3): a row per head.

    `plan`: each head alone ("single"), all other heads of its layer ("rest": all but one), its whole "layer", or all
    heads of its "kind". `fill`: what a closed head puts out: "zero", its "mean" over the corpus, the output for an
    "other" example, that of "uniform" attention, or nothing while the rest of its layer is scaled up ("rescale").

    Columns, where c is `ablation[metric]`, for plans but "single" `ablation[metric plan]`: c is metric(closed) -
    metric(intact); `c.low` and `c.high` bound its 95 % interval over paired Poisson bootstrap resamples of the
    examples; `c.p` is two-sided, of a paired t-test where the metric is a mean (of a ratio, by the delta method),
    otherwise of the paired bootstrap (Koehn 2004), and then at least 2 / (resamples + 1); `c.holm` and `c.bh` are p
    corrected for all that was tested, after Holm and after Benjamini and Hochberg. How it is run: `sweep`.
    """
    chosen = the_metric(metric)
    if plan not in PLANS:
        raise ValueError(f"unknown plan {plan!r}; known: {', '.join(PLANS)}")
    index = families.index(model)
    plans = {tuple(head): _closed(tuple(head), list(index), plan) for head in index}
    variants = list(dict.fromkeys(plans.values()))
    place = None if folder is None else Path(folder)
    options: dict[str, Any] = {"fill": fill, "budget": budget, "together": together, "folder": place}
    found = sweep(model, tokenizer, corpus, variants, chosen, **options)
    name = f"ablation[{chosen.name}]" if plan == "single" else f"ablation[{chosen.name} {plan}]"
    effect = effects(found, resamples=resamples, seed=seed)
    rows = [variants.index(closed) for closed in plans.values()]
    columns = {f"{name}{end}": values[rows] for end, values in effect.columns.items()}
    text = heads.sign(
        model=models.name(model),
        weights=models.revision(model),
        corpus=corpus.name,
        text=corpus.hash,
        examples=len(found.numbers),
        too_long=found.too_long,
        metric=chosen,
        intact=f"{effect.intact:.6g}",
        plan=plan,
        fill=fill,
        resamples=resamples,
        seed=seed,
        headroles=version("headroles"),
    )
    draws = {name: rounded(effect.draws[rows])} if resamples else None
    return heads.table(columns, index, text, draws=draws)


def closed_in(
    study: Study,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    corpus: Corpus,
    *,
    metric: str = "loss",
    plan: Plan = "single",
    fill: Fill = "zero",
    **options: Any,
) -> pd.DataFrame:
    """`ablate` in a study: the table `ablation-METRIC-PLAN-FILL`, kept if it was made from the same.

    A run that was stopped goes on after its last finished batch. `options` are those of `ablate`.
    """
    recipe = heads.sign(
        weights=models.revision(model),
        tokenizer=models.tokens(tokenizer),
        text=corpus.hash,
        resamples=options.get("resamples"),
        seed=options.get("seed"),
        headroles=version("headroles"),
    )
    parts = study.folder / ".sweeps"
    name = f"ablation-{metric}-{plan}-{fill}"
    asked: dict[str, Any] = {"metric": metric, "plan": plan, "fill": fill, "folder": parts} | options
    return study.keep(name, recipe, lambda: ablate(model, tokenizer, corpus, **asked))


class Effects:
    """What the variants of a sweep change: `columns` (suffix -> [variant]), `draws` [variant, resample]."""

    def __init__(self, intact: float, columns: Mapping[str, Array], draws: Array) -> None:
        self.intact, self.columns, self.draws = intact, dict(columns), draws


def effects(found: Sweep, *, resamples: int = 1000, seed: int = 0) -> Effects:
    """The effects of a sweep's variants with their statistics; needs no model."""
    weights = counting(found.numbers, resamples, seed).numpy()  # [1 + resamples, example]
    with np.errstate(invalid="ignore"):  # a resample without any example has no value
        intact = found.metric.value(weights @ found.intact)  # [1 + resamples]
        values = np.stack([found.metric.value(weights @ each) for each in found.closed.values()]) - intact
    draws = values[:, 1:]
    low, high = bounds(draws) if resamples else np.full((2, len(values)), np.nan)
    if type(found.metric).value is Mean.value:
        p = np.array([_t_test(found.intact, each) for each in found.closed.values()])
    else:
        p = _bootstrap_test(draws)
    columns = {"": values[:, 0], ".low": low, ".high": high, ".p": p, ".holm": holm(p), ".bh": benjamini_hochberg(p)}
    return Effects(float(intact[0]), columns, draws)


def holm(p: Array) -> Array:
    """p corrected for the number of tests by Holm (1979): controls the chance of any false finding."""
    order = np.argsort(p, kind="stable")
    steps = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    found = np.empty_like(p)
    found[order] = np.minimum(steps, 1)
    return found


def benjamini_hochberg(p: Array) -> Array:
    """p corrected by Benjamini and Hochberg (1995): controls the share of false findings among the findings."""
    found: Array = stats.false_discovery_control(p) if np.isfinite(p).all() else np.full_like(p, np.nan)
    return found


def _closed(head: Head, index: list[Head], plan: Plan) -> Closed:
    """The heads that a plan closes for a head."""
    if plan == "single":
        return frozenset([head])
    same = (each for each in index if each[0] == head[0] and (plan == "kind" or each[1] == head[1]))
    return frozenset(each for each in same if plan != "rest" or each != head)


def _t_test(intact: Array, closed: Array) -> float:
    """A paired t-test of a ratio of sums, by the delta method; of a plain mean it is scipy's `ttest_rel`."""
    change, count = closed[:, 0] - intact[:, 0], intact[:, 1]
    effect = change.sum() / count.sum()
    rest = change - effect * count
    if len(rest) < 2 or not (rest**2).sum():
        return 1.0 if effect == 0 or len(rest) < 2 else 0.0
    error = np.sqrt(len(rest) / (len(rest) - 1) * (rest**2).sum()) / count.sum()
    return float(2 * stats.t.sf(abs(effect / error), len(rest) - 1))


def _bootstrap_test(draws: Array) -> Array:
    """How often resampled effects are on the other side of 0, two-sided, the intact corpus counted as one of them."""
    if not draws.shape[1]:
        return np.full(len(draws), np.nan)
    many = np.isfinite(draws).sum(1) + 1
    below, above = ((side.sum(1) + 1) / many for side in (draws <= 0, draws >= 0))
    smaller: Array = np.minimum(2 * np.minimum(below, above), 1)
    return smaller
