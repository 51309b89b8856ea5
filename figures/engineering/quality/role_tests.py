"""How often tests of roles err.

Simulated, by the library's own functions: heads of which the score is at the threshold in the population of sentences,
so that every rejection is an error. Scores are shares of queries (`share`), means of weights over sentences of unequal
length (`mean`), and shares over a baseline on the same sentences (`difference`); queries of a sentence are more or less
`alike`. Writes a row per setting: the share of `runs` with p below 0.05, 0.01 and 0.001 by `hr.roles(..., test=True)`,
and below 0.05 by other tests: t over the means of sentences as of Pande et al. 2021 (`t`, of another null hypothesis
where long sentences count more), and the estimate over its bootstrap error without regard to the threshold (`wald`).
"""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer
from scipy import stats

import headroles as hr
from headroles.analysis import intervals
from headroles.analysis.intervals import bounds
from headroles.analysis.role_rules import Role
from headroles.tables import frame

RESAMPLES = 200
OVER = 0.1  # threshold of a difference


def main(output: Annotated[Path, typer.Option()], runs: int = 4000) -> None:
    settings = product(("share", "mean", "difference"), (30, 100, 300), (0.02, 0.1, 0.3), (0.1, 0.5, 0.9))
    rows = [
        {"score": score, "sentences": sentences, "alike": alike, "at": at, "runs": runs}
        | errors(score, sentences, alike, at, runs)
        for score, sentences, alike, at in settings
        if score != "difference" or at < 0.9  # a baseline of 0.9 leaves no room
    ]
    table = pd.DataFrame(rows)
    table.to_csv(output, index=False, float_format="%.4g")
    for score, part in table.groupby("score"):
        print(
            score, {name: f"{part[name].min():.3f} to {part[name].max():.3f}" for name in ("p05", "p01", "t", "wald")}
        )


def errors(score: str, sentences: int, alike: float, at: float, runs: int) -> dict[str, float]:
    """Rates of rejection of heads with a score of `at`, or of `at` + `OVER` over a baseline of `at`."""
    random = np.random.default_rng(0)
    weights = np.concatenate([np.ones((1, sentences)), random.poisson(1.0, (RESAMPLES, sentences))])
    queries = np.clip(random.lognormal(2.7, 0.5, (runs, sentences)).round(), 2, 60)
    totals = queries @ weights.T
    hits = _hits(random, score, queries, at + OVER * (score == "difference"), alike)
    base = _hits(random, score, queries, at, alike) if score == "difference" else np.zeros_like(hits)
    values, baseline = hits @ weights.T / totals, base @ weights.T / totals
    draws = {"x": values[:, 1:], "x.baseline": baseline[:, 1:]}
    ends = (
        bounds(values[:, 1:]) if score == "mean" else intervals.share(values, totals[:, 0], intervals.clusters(totals))
    )
    columns = {"x": values[:, 0], "x.baseline": baseline[:, 0], "x.low": ends[0], "x.high": ends[1]}
    kept = {name: drawn.astype(np.float32) for name, drawn in draws.items()}
    table = frame.table(columns, frame.index({("enc-self", 0): runs}), f"sentences:{sentences}", draws=kept)
    threshold = OVER if score == "difference" else at
    role = Role("role", "x", threshold, over=".baseline" if score == "difference" else None)
    p = hr.roles(table, [role], test=True)["role.p"].to_numpy()
    alone = (hits - base) / queries - threshold
    margin = values - baseline - threshold
    with np.errstate(divide="ignore", invalid="ignore"):
        wald = stats.norm.sf(margin[:, 0] / (margin[:, 1:] - margin[:, :1]).std(1))
        plain = stats.ttest_1samp(alone, 0, axis=1, alternative="greater").pvalue
    found = {"p05": p < 0.05, "p01": p < 0.01, "p001": p < 0.001, "t": plain < 0.05, "wald": wald < 0.05}
    return {name: float(rejected.mean()) for name, rejected in found.items()}


def _hits(random: Any, score: str, queries: Any, chance: float, alike: float) -> Any:
    """What the queries of each sentence add up to: their number that is right, or their weights."""
    own = random.beta(chance * (1 / alike - 1), (1 - chance) * (1 / alike - 1), queries.shape)
    return queries * own if score == "mean" else random.binomial(queries.astype(int), own).astype(float)
