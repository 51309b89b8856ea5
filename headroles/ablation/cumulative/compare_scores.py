"""Compare scores as predictors of a head's effect: agreement with ablation, and cumulative ablation curves."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import pandas as pd

from headroles.analysis import resampling
from headroles.analysis.association import measured, values
from headroles.analysis.intervals import Array, rank_correlation
from headroles.data.corpus import CorpusLike
from headroles.data.readers import as_corpus
from headroles.models.head_model import HeadModel
from headroles.tables import frame
from headroles.tables.columns import of_name
from headroles.tables.study import Study, as_study, as_tables

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from headroles.scores import Measure
    from headroles.scores.lrp import Rules

ABLATION = "attribution[FeatureAblation].size"  # the effect of ablating one head on the target


class Comparison(NamedTuple):
    """Results of `compare`: correlations of scores with effects, and mean heights of curves."""

    agreement: pd.DataFrame
    areas: pd.DataFrame


def compare(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    corpus: CorpusLike,
    held_out: CorpusLike,
    *,
    rules: Sequence[Rules] = ("cp", "attn", "voita", "gradient"),
    seeds: int = 10,
    max_tokens: int = 1024,
    n_resamples: int = 1000,
    study: Study | str | Path | None = None,
) -> Comparison:
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
    from headroles.ablation.cumulative.curves import ablation_curve, areas, orders
    from headroles.models import identity
    from headroles.scores import score

    corpus, held_out = as_corpus(corpus), as_corpus(held_out)
    kept, scores = as_study(study), _scores(rules, HeadModel(model))
    table = score(model, tokenizer, corpus, scores, max_tokens=max_tokens, n_resamples=n_resamples, study=kept)
    ranked = ("confidence", "importance", *of_name(table, "relevance", "size"))
    names = [name for name in map(str, table) if name in ranked]
    correlations = agreement(table, names, ABLATION)
    rankings = orders(table, [*names, ABLATION], seeds=seeds)
    scored = frame.holding(scores=frame.provenance(table, names[0]))
    shown = frame.sign_version(text=held_out.hash, rules=",".join(rules), seeds=seeds, resamples=n_resamples)
    key = f"{frame.sign(weights=identity.weights_digest(model))}|{scored}|{shown}"

    @cache  # for both tables
    def curves() -> pd.DataFrame:
        return ablation_curve(model, tokenizer, held_out, rankings, n_resamples=n_resamples, max_tokens=4 * max_tokens)

    kept.keep("curves", key, curves)
    heights = kept.keep("areas", key, lambda: areas(curves()))
    kept.save("agreement", correlations)
    return Comparison(correlations, heights)


def agreement(
    table: pd.DataFrame | Study | str | Path | Sequence[str | Path], columns: Sequence[str], other: str
) -> pd.DataFrame:
    """Compute Spearman's correlation of columns with another column.

    Bounds are 1.96 standard deviations of the resamples of the table to either side. Quantiles would lie too low,
    because resampling adds noise to both sides of a correlation.

    Args:
        table: Table of heads; or studies and files of one model, of which each column is taken from the first.
        columns: Columns to correlate.
        other: The other column.

    Returns:
        One row per column, sorted: `all`, the correlation over all heads, and `within`, the mean over layers of the
        correlation within the layer, each with `.low` and `.high`, the bounds of a 95 % interval.

    Raises:
        ValueError: If the table lacks a column.
    """
    table = as_tables(table)
    if missing := [name for name in (*columns, other) if name not in table]:
        known = [str(name) for name in table if measured(str(name), table)]
        raise ValueError(
            f"no column to correlate: got {frame.listed(missing)}; expected some of {frame.listed(known)}; try hr.join "
            f"with the table that has it"
        )
    draws = frame.resamples(table)
    if draws is not None and not {*columns, other} <= draws.draws.keys():  # some column has none
        draws = None
    places = pd.Series(range(len(table)), index=table.index)
    layers = [part.to_numpy() for _, part in places.groupby(level=["kind", "layer"]) if len(part) > 2]

    def drawn(column: str) -> Array:
        column_ = table[column].to_numpy(float)[:, None]  # [heads, 1]
        return column_ if draws is None else np.concatenate([column_, draws.of(column, frame.rows(table))], axis=1)

    rows, against = [], drawn(other)
    for column in columns:
        scores = drawn(column)
        over_all = resampling.spearman(scores.T, against.T)
        within = np.mean([resampling.spearman(scores[layer].T, against[layer].T) for layer in layers], axis=0)
        rows.append([number for draw in (over_all, within) for number in (draw[0], *_bounds(draw))])
    names = [f"{name}{end}" for name in ("all", "within") for end in ("", ".low", ".high")]
    result = pd.DataFrame(rows, index=pd.Index(columns, name="score"), columns=names)
    return frame.signed(result, frame.provenance(table, other)).sort_values("all", ascending=False)


def score_correlations(
    table: pd.DataFrame | Study | str | Path | Sequence[str | Path], columns: Sequence[str] | None = None
) -> pd.DataFrame:
    """Correlate all scores of heads with each other, over the heads of a table.

    Args:
        table: Table of heads; scores, effects of ablation and survival side by side (`hr.join`). Or studies and files
            of one model: of a column in several the first is taken, and columns of several seeds are averaged.
        columns: Columns to correlate; by default all measurements that vary.

    Returns:
        One row per pair of columns, the largest |`all`| first: `first`, `second`, `heads` that have both; `all`,
        Spearman's correlation over these heads, and `within`, its mean over the layers of a kind in which both vary.
        Each has `.low` and `.high`, a 95 % interval with heads as the sample (Bonett and Wright 2000; within layers of
        as many heads less the layers but one); NaN for fewer than eight heads and for a perfect correlation.

    Raises:
        ValueError: For an unknown column, or fewer than two that vary.
    """
    table = as_tables(table)
    frame.check_once(table)
    known = {str(name): values(table, str(name)) for name in table if measured(str(name), table)}
    varied = [name for name, column in known.items() if column.nunique() > 1 and name != "position[offset]"]
    chosen = varied if columns is None else list(columns)
    if len(chosen) < 2 or not set(chosen) <= set(varied):
        raise ValueError(
            f"no scores to correlate: got {frame.listed(chosen)}; expected two or more of {frame.listed(varied)}"
        )
    layers = resampling.strata(table.index)
    rows = [
        {"first": first, "second": second}
        | _correlation(known[first].to_numpy(float), known[second].to_numpy(float), layers)
        for first, second in combinations(chosen, 2)
    ]
    result = pd.DataFrame(rows).sort_values("all", key=np.abs, ascending=False, kind="stable", ignore_index=True)
    return frame.signed(result, frame.sign(correlations="spearman"), frame.sources(table, chosen))


def _correlation(first: Array, second: Array, layers: resampling.Whole) -> dict[str, float]:
    """Rank correlations of two columns [heads], over all heads and within layers, with intervals."""
    both = np.isfinite(first) & np.isfinite(second)
    parts = [both & (layers == layer) for layer in np.unique(layers)]
    varied = [part for part in parts if part.sum() > 2 and np.ptp(first[part]) > 0 and np.ptp(second[part]) > 0]
    row: dict[str, float] = {"heads": int(both.sum())}
    for name, groups in (("all", [both] if both.sum() > 2 else []), ("within", varied)):
        ranks = [float(resampling.spearman(first[None, group], second[None, group])[0]) for group in groups]
        rank = float(np.mean(ranks)) if ranks else np.nan
        ends = rank_correlation(rank, sum(int(group.sum()) for group in groups) - max(len(groups) - 1, 0))
        row |= dict(zip((name, f"{name}.low", f"{name}.high"), (rank, *ends), strict=True))
    return row


def _scores(rules: Sequence[Rules], model: HeadModel) -> list[str | Measure]:
    """Return the compared scores; importance of a model without a loss is for the target of its relevance."""
    from headroles.scores import Attribution, Importance, Relevance, objectives, outputs

    lossless = not outputs.has_vocabulary(model) and not outputs.has_classes(model)
    importance = Importance(objective=objectives.Similarity() if lossless else None)
    chosen: list[str | Measure] = ["confidence", importance, Attribution(method="FeatureAblation")]
    for name in rules:
        steps: Literal["sum", "all"] = "sum" if name.startswith("voita") else "all"
        chosen += [Relevance(rules=name, steps=steps), Relevance(rules=name, steps=steps, by="logit")]
    return chosen


def _bounds(values: Array) -> tuple[float, float]:
    """Return bounds around the first value, from the spread of the others."""
    draws = values[1:][~np.isnan(values[1:])]
    if not len(draws):
        return np.nan, np.nan
    half = 1.96 * float(draws.std())
    return max(-1.0, float(values[0]) - half), min(1.0, float(values[0]) + half)
