"""Similarity of the heads of two models: by standardised scores, or by the cosine of their attention (no torch)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from headroles.analysis.association import OUTCOMES, measured
from headroles.analysis.resampling import Array
from headroles.tables import frame

Similarity = Callable[[int, int, int], Array]  # two models, a resample (0: the corpus) -> [heads of one, of the other]


def scores_of(tables: Sequence[pd.DataFrame], columns: Sequence[str] | None) -> list[str]:
    """Return the columns by which heads are compared: `columns`, or all scores that every table has."""
    known = [str(name) for name in tables[0] if measured(str(name), tables[0]) and name != "position[offset]"]
    known = [name for name in known if all(name in table for table in tables)]
    chosen = [name for name in known if name.split("[")[0] not in OUTCOMES] if columns is None else list(columns)
    if not chosen or not set(chosen) <= set(known):
        raise ValueError(
            f"no scores to compare heads by: got {frame.listed(chosen)}; expected some of {frame.listed(known)}"
        )
    return chosen


def by_scores(tables: Sequence[pd.DataFrame], chosen: Sequence[str]) -> Similarity:
    """Return the similarity of heads by their scores: 1 less half the mean squared difference.

    Scores are standardised over the heads of a kind of all models. Of two heads drawn at random it is 0 on average. A
    score that is missing for some head of a kind, or constant, is left out for that kind.

    Raises:
        ValueError: If no score is left for the heads of a kind.
    """
    index, kinds = frame.rows(tables[0]), tables[0].index.get_level_values("kind").to_numpy()
    values = np.stack([table[list(chosen)].to_numpy(float) for table in tables])  # [model, heads, columns]
    mean, scale = np.zeros(values.shape[1:]), np.full(values.shape[1:], np.inf)
    for kind in np.unique(kinds):
        part = values[:, kinds == kind].reshape(-1, len(chosen))
        usable = np.isfinite(part).all(0) & (np.ptp(part, axis=0) > 0)
        if not usable.any():
            raise ValueError(
                f"no score to compare heads by: {', '.join(chosen)} are missing for some of the {kind} heads, or "
                f"the same for all; expected one that varies; try other columns"
            )
        mean[np.ix_(kinds == kind, usable)] = part[:, usable].mean(0)
        scale[np.ix_(kinds == kind, usable)] = part[:, usable].std(0) * np.sqrt(2 * usable.sum())

    drawn = [frame.resamples(table) for table in tables]
    draws = [
        {} if part is None else {at: part.of(name, index) for at, name in enumerate(chosen) if name in part.draws}
        for part in drawn
    ]

    def standardised(model: int, draw: int) -> Array:
        scores = values[model].copy()
        for place, resampled in draws[model].items() if draw else ():
            scores[:, place] = resampled[:, draw - 1]
        return np.where(np.isfinite(scale) & np.isfinite(scores), (scores - mean) / scale, 0.0)

    def similarity(one: int, other: int, draw: int) -> Array:
        a, b = standardised(one, draw), standardised(other, draw)
        return np.asarray(1 - (a**2).sum(1)[:, None] - (b**2).sum(1) + 2 * a @ b.T)

    return similarity


def by_attention(tables: Sequence[pd.DataFrame], index: pd.MultiIndex) -> Similarity:
    """Return the mean cosine of heads' attention on a text (Bali et al. 2026, arXiv 2602.16740, section 4.1)."""
    parts = [dict(iter(table.set_index(frame.LEVELS).groupby("sentence"))) for table in tables]
    if any(not rows.index.sort_values().equals(index.sort_values()) for part in parts for rows in part.values()):
        raise ValueError(
            f"attention is of other heads: got {len(tables[0])} rows in the first table; expected a row for each of "
            f"the {len(index)} scored heads and each sentence, as made by hr.attention_examples"
        )
    parts = [{sentence: rows.loc[index] for sentence, rows in part.items()} for part in parts]
    texts = [
        [(sentence, [*map(list, rows["queries"])], [*map(list, rows["keys"])]) for sentence, rows in part.items()]
        for part in parts
    ]
    if any(text != texts[0] for text in texts):
        raise ValueError(
            "attention is on different text: got tables with other tokens; expected tables of hr.attention_examples on "
            "the same sentences, with one tokenizer"
        )
    kinds = index.get_level_values("kind").to_numpy()

    def similarity(one: int, other: int, _: int) -> Array:
        cosines = np.zeros((len(index), len(index)))
        for sentence, rows in parts[one].items():
            for kind in np.unique(kinds):
                both = [part["weights"][kinds == kind] for part in (rows, parts[other][sentence])]
                a, b = (np.stack([np.asarray(weights, float) for weights in part]) for part in both)
                a, b = (weights / np.linalg.norm(weights, axis=1, keepdims=True) for weights in (a, b))
                cosines[np.ix_(kinds == kind, kinds == kind)] += a @ b.T / len(parts[one])
        return cosines

    return similarity
