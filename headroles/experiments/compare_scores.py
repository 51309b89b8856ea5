"""Which score tells best which heads matter: agreement with ablation, and what is left when the least are closed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from headroles.data.corpus import Corpus
from headroles.experiments.score_study import measure
from headroles.tables import frame
from headroles.tables.io import save_table
from headroles.tables.study import Study

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from headroles.scores.lrp import Rules

ABLATION = "attribution[FeatureAblation].size"  # the effect of closing one head on what is explained
Array = npt.NDArray[np.floating[Any]]


def compare(
    study: Study,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    corpus: Corpus,
    held_out: Corpus,
    *,
    rules: Sequence[Rules] = ("cp", "attn", "voita", "gradient"),
    seeds: int = 10,
    max_tokens: int = 1024,
    n_resamples: int = 1000,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Compare relevance by each rule set with importance, confidence and chance; kept in the study, as four tables.

    On `corpus` every head is scored and closed alone (`heads`); `agreement` are rank correlations with the latter. On
    `held_out` the heads are closed together, the least relevant first (`curves`: agreement with the intact model's
    choices, of an encoder the cosine with its states); `areas` are the mean heights of those curves. Voita's rules, and
    they alone, explain the sum of all steps in one pass. Returns `agreement` and `areas`.
    """
    from headroles.ablation.curves import ablation_curve, areas, orders
    from headroles.models import loading

    table = measure(
        study, model, tokenizer, corpus, _scores(rules, model), max_tokens=max_tokens, n_resamples=n_resamples
    )
    names = [name for name in map(str, table) if _is_candidate(name)]
    found = agreement(table, names, ABLATION)
    listed = orders(table, [*names, ABLATION], seeds=seeds)
    scored = frame.holding(scores=frame.provenance(table, names[0]))
    options: dict[str, Any] = {"rules": ",".join(rules), "seeds": seeds, "resamples": n_resamples}
    own = frame.sign(text=held_out.hash, **options, headroles=version("headroles"))
    recipe = f"{frame.sign(weights=loading.revision(model))}|{scored}|{own}"

    @cache  # several artefacts ask for it in one run
    def drawn() -> pd.DataFrame:
        return ablation_curve(model, tokenizer, held_out, listed, n_resamples=n_resamples, max_tokens=4 * max_tokens)

    study.keep("curves", recipe, drawn)
    area = study.keep("areas", recipe, lambda: areas(drawn()))
    save_table(found, study.path("agreement"))
    return found, area


def agreement(table: pd.DataFrame, columns: Sequence[str], with_: str) -> pd.DataFrame:
    """Spearman's correlation of each column with another: a row per column.

    `all`: over all heads; `within`: the mean over layers of the correlation within the layer. Each with the bounds of a
    95 % interval, 1.96 standard deviations of the resamples that ride in the table to either side (their quantiles
    would lie below: resampling adds noise to both sides of a correlation).
    """
    found = frame.resamples(table)
    places = pd.Series(range(len(table)), index=table.index)
    layers = [part.to_numpy() for _, part in places.groupby(level=["kind", "layer"]) if len(part) > 2]

    def values(column: str) -> Array:
        own = table[column].to_numpy(float)[:, None]
        return own if found is None else np.concatenate([own, found.of(column, frame.rows(table))], axis=1)

    other = values(with_)
    rows = []
    for column in columns:
        one = values(column)
        over_all = _spearman(one, other)
        within = np.mean([_spearman(one[layer], other[layer]) for layer in layers], axis=0)
        rows.append([number for each in (over_all, within) for number in (each[0], *_ends(each))])
    names = [f"{name}{end}" for name in ("all", "within") for end in ("", ".low", ".high")]
    result = pd.DataFrame(rows, index=pd.Index(columns, name="score"), columns=names)
    result.attrs["signatures"] = dict.fromkeys(names, frame.provenance(table, with_))
    return result.sort_values("all", ascending=False)


def _scores(rules: Sequence[Rules], model: PreTrainedModel) -> list[Any]:
    """What is compared; the importance of an encoder without a head is that for what its relevance explains."""
    from headroles.scores import Attribution, Importance, Relevance, objectives, outputs

    lossless = not outputs.has_vocabulary(model) and not outputs.has_classes(model)
    importance = Importance(objective=objectives.Similarity() if lossless else None)
    chosen: list[Any] = ["confidence", importance, Attribution(method="FeatureAblation")]
    for name in rules:
        steps: Any = "sum" if name.startswith("voita") else "all"
        chosen += [Relevance(rules=name, steps=steps), Relevance(rules=name, steps=steps, by="logit")]
    return chosen


def _is_candidate(name: str) -> bool:
    """Absolute relevance, importance and confidence: what heads can be ordered by."""
    return name in ("confidence", "importance") or (name.startswith("relevance[") and name.endswith(".size"))


def _spearman(one: Array, other: Array) -> Array:
    """Rank correlation of each column of two arrays [heads, draws]: [draws]."""
    a, b = (pd.DataFrame(each).rank().to_numpy() for each in (one, other))
    a, b = a - a.mean(0), b - b.mean(0)
    with np.errstate(invalid="ignore"):  # heads that are all alike have no ranks
        return np.asarray((a * b).sum(0) / np.sqrt((a**2).sum(0) * (b**2).sum(0)))


def _ends(values: Array) -> tuple[float, float]:
    """The bounds around the first value, from the spread of the others."""
    draws = values[1:][~np.isnan(values[1:])]
    if not len(draws):
        return np.nan, np.nan
    half = 1.96 * float(draws.std())
    return max(-1.0, float(values[0]) - half), min(1.0, float(values[0]) + half)
