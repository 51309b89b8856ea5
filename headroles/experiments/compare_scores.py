"""Compare scores as predictors of a head's effect: agreement with ablation, and cumulative ablation curves."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from headroles.data.corpus import Corpus
from headroles.tables import frame
from headroles.tables.io import save_table
from headroles.tables.study import Study, study_at

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from headroles.scores import Measure
    from headroles.scores.lrp import Rules

ABLATION = "attribution[FeatureAblation].size"  # the effect of ablating one head on the target
Array = npt.NDArray[np.float64]


def compare(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    corpus: Corpus,
    held_out: Corpus,
    *,
    rules: Sequence[Rules] = ("cp", "attn", "voita", "gradient"),
    seeds: int = 10,
    max_tokens: int = 1024,
    n_resamples: int = 1000,
    study: Study | str | Path | None = None,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Compare relevance by each rule set with importance, confidence and chance.

    Four tables are kept in the study: `heads`, every head scored and ablated alone on `corpus`; `agreement`, rank
    correlations of scores with these effects; `curves`, the heads ablated cumulatively on `held_out`, the least
    relevant first (agreement with the intact model's choices; of an encoder the cosine with its states); and `areas`,
    the mean heights of the curves. Voita's rules, and they alone, explain the sum of all steps in one pass.

    Args:
        model: Model with the heads.
        tokenizer: Its tokenizer.
        corpus: Corpus on which heads are scored.
        held_out: Corpus of the curves.
        rules: Rule sets of relevance.
        seeds: Number of random rankings.
        max_tokens: Largest number of tokens in a batch, padding included; four times as many for the curves.
        n_resamples: Number of bootstrap resamples.
        study: Study or folder that keeps the tables.

    Returns:
        The tables `agreement` and `areas`.
    """
    from headroles.ablation.curves import ablation_curve, areas, orders
    from headroles.models import loading
    from headroles.scores import score

    kept, scores = study_at(study), _scores(rules, model)
    table = score(model, tokenizer, corpus, scores, max_tokens=max_tokens, n_resamples=n_resamples, study=kept)
    names = [name for name in map(str, table) if _is_candidate(name)]
    correlations = agreement(table, names, ABLATION)
    rankings = orders(table, [*names, ABLATION], seeds=seeds)
    scored = frame.holding(scores=frame.provenance(table, names[0]))
    shown = frame.sign_version(text=held_out.hash, rules=",".join(rules), seeds=seeds, resamples=n_resamples)
    key = f"{frame.sign(weights=loading.revision(model))}|{scored}|{shown}"

    @cache  # for both tables
    def curves() -> pd.DataFrame:
        return ablation_curve(model, tokenizer, held_out, rankings, n_resamples=n_resamples, max_tokens=4 * max_tokens)

    kept.keep("curves", key, curves)
    heights = kept.keep("areas", key, lambda: areas(curves()))
    save_table(correlations, kept.path("agreement"))
    return correlations, heights


def agreement(table: pd.DataFrame, columns: Sequence[str], with_: str) -> pd.DataFrame:
    """Compute Spearman's correlation of columns with another column.

    Bounds are 1.96 standard deviations of the resamples of the table to either side. Quantiles would lie too low,
    because resampling adds noise to both sides of a correlation.

    Args:
        table: Table of heads.
        columns: Columns to correlate.
        with_: The other column.

    Returns:
        One row per column, sorted: `all`, the correlation over all heads, and `within`, the mean over layers of the
        correlation within the layer, each with `.low` and `.high`, the bounds of a 95 % interval.
    """
    draws = frame.resamples(table)
    places = pd.Series(range(len(table)), index=table.index)
    layers = [part.to_numpy() for _, part in places.groupby(level=["kind", "layer"]) if len(part) > 2]

    def values(column: str) -> Array:
        column_ = table[column].to_numpy(float)[:, None]  # [heads, 1]
        return column_ if draws is None else np.concatenate([column_, draws.of(column, frame.rows(table))], axis=1)

    other = values(with_)
    rows = []
    for column in columns:
        scores = values(column)
        over_all = _spearman(scores, other)
        within = np.mean([_spearman(scores[layer], other[layer]) for layer in layers], axis=0)
        rows.append([number for draw in (over_all, within) for number in (draw[0], *_bounds(draw))])
    names = [f"{name}{end}" for name in ("all", "within") for end in ("", ".low", ".high")]
    result = pd.DataFrame(rows, index=pd.Index(columns, name="score"), columns=names)
    result.attrs["signatures"] = dict.fromkeys(names, frame.provenance(table, with_))
    return result.sort_values("all", ascending=False)


def _scores(rules: Sequence[Rules], model: PreTrainedModel) -> list[str | Measure]:
    """Return the compared scores; importance of a model without a loss is for the target of its relevance."""
    from headroles.scores import Attribution, Importance, Relevance, objectives, outputs

    lossless = not outputs.has_vocabulary(model) and not outputs.has_classes(model)
    importance = Importance(objective=objectives.Similarity() if lossless else None)
    chosen: list[str | Measure] = ["confidence", importance, Attribution(method="FeatureAblation")]
    for name in rules:
        steps: Literal["sum", "all"] = "sum" if name.startswith("voita") else "all"
        chosen += [Relevance(rules=name, steps=steps), Relevance(rules=name, steps=steps, by="logit")]
    return chosen


def _is_candidate(name: str) -> bool:
    """Return whether heads can be ranked by a column: absolute relevance, importance, confidence."""
    return name in ("confidence", "importance") or (name.startswith("relevance[") and name.endswith(".size"))


def _spearman(first: Array, second: Array) -> Array:
    """Return the rank correlation of each column of two arrays [heads, draws]: [draws]."""
    a, b = (pd.DataFrame(values).rank().to_numpy() for values in (first, second))
    a, b = a - a.mean(0), b - b.mean(0)
    with np.errstate(invalid="ignore"):  # equal values have no ranks
        return np.asarray((a * b).sum(0) / np.sqrt((a**2).sum(0) * (b**2).sum(0)))


def _bounds(values: Array) -> tuple[float, float]:
    """Return bounds around the first value, from the spread of the others."""
    draws = values[1:][~np.isnan(values[1:])]
    if not len(draws):
        return np.nan, np.nan
    half = 1.96 * float(draws.std())
    return max(-1.0, float(values[0]) - half), min(1.0, float(values[0]) + half)
