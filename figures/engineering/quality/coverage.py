"""How often 95 % intervals hold the truth, and p < 0.05 errs.

Simulated, by the library's own functions: shares of tokens in sentences that are more or less alike, near 0, 1 and
between; relations of 2 to 20 of 72 heads with outcomes that are normal, heavy-tailed, skewed, often exactly 0, or 0 and
1, and up to four times as spread with the role (layers that differ change nothing within layers); rank correlations;
odds of survival where role and survival share the layers but nothing else; means over seeds and examples. Writes a
row per setting: `covered` of `runs`, of those that have an interval, `given`, the share that have one, and their median
`width`; of tests `covered` is how often p >= 0.05. `percentiles` is what percentiles of the same resamples cover, where
they are known.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer
from scipy import stats

from headroles.analysis import intervals
from headroles.analysis.intervals import relation, spearman

RESAMPLES = 200
CHANCES = (0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 0.5, 0.7, 0.9, 0.97, 0.99, 0.997, 0.999, 1.0)


def main(
    output: Annotated[Path, typer.Option()],
    runs: int = 1000,
    only: Annotated[list[str], typer.Option(help="Of shares, relations, correlations, seeds.")] = [],
) -> None:
    chosen = only or sorted(PARTS)
    rows = [{"of": name, **row} for name in chosen for row in PARTS[name](runs * (5 if name in QUICK else 1))]
    table = pd.DataFrame(rows)
    table.to_csv(output, index=False, float_format="%.4g")
    for name, part in table.groupby("of"):
        print(
            f"{name}: {part['covered'].min():.3f} to {part['covered'].max():.3f}, median {part['covered'].median():.3f}"
        )


def shares(runs: int) -> Iterator[dict[str, Any]]:
    """Tokens hit in sentences of 2 to 60; `alike` is their correlation within a sentence."""
    random = np.random.default_rng(0)
    for sentences, alike, chance in product((30, 100, 300, 1000), (0.0, 0.05, 0.2), CHANCES):
        weights = np.concatenate([np.ones((1, sentences)), random.poisson(1.0, (RESAMPLES, sentences))])
        queries = np.clip(random.lognormal(2.7, 0.5, (runs, sentences)).round(), 2, 60)
        own = np.full((runs, sentences), chance)
        if alike and 0 < chance < 1:
            own = random.beta(chance * (1 / alike - 1), (1 - chance) * (1 / alike - 1), (runs, sentences))
        totals = queries @ weights.T
        values = random.binomial(queries.astype(int), own) @ weights.T / totals
        low, high = intervals.share(values, totals[:, 0], intervals.clusters(totals))
        old = np.quantile(values[:, 1:], [0.025, 0.975], axis=1)
        yield {
            "setting": f"{sentences} sentences, {alike:g} alike",
            "truth": chance,
            **_covered(low, high, chance),
            "percentiles": float(((old[0] <= chance) & (chance <= old[1])).mean()),
        }


def relations(runs: int) -> Iterator[dict[str, Any]]:
    """Roles of some of 72 heads, in 6 layers of 12, dealt out anywhere."""
    layers = np.repeat(np.arange(6), 12)
    for many, how, (spread, effect) in product(
        (2, 3, 4, 6, 10, 20), OUTCOMES, ((1, 0.0), (1, 1.0), (2, 0.0), (4, 0.0))
    ):
        if how == "binary" and spread > 1:
            continue

        def drawn(random: Any, held: Any, how: str = how, spread: int = spread, effect: float = effect) -> Any:
            return OUTCOMES[how](random, held, effect) * np.where(held, spread, 1)

        found = []
        for seed in range(runs):
            random = np.random.default_rng(seed)
            held = np.isin(np.arange(72), random.permutation(72)[:many])
            y = drawn(random, held)
            if np.ptp(y):
                found.append(relation(held, np.zeros(72), y, layers, 299, 299, seed))
        table = pd.DataFrame(found)
        large = np.random.default_rng(0)
        one, other = (drawn(large, np.full(100_000, own)) for own in (True, False))
        area = float(
            (stats.rankdata(np.concatenate([one, other]))[: len(one)].mean() - (len(one) + 1) / 2) / len(other)
        )
        truths = {"difference": one.mean() - other.mean(), "auc": area, "median": np.median(one) - np.median(other)}
        for name, truth in (truths | {"within": truths["difference"]}).items():
            low, high = table[f"{name}.low"].to_numpy(), table[f"{name}.high"].to_numpy()
            yield {
                "setting": f"{name}, {many} heads, {how}, spread {spread}",
                "truth": truth,
                **_covered(low, high, truth),
            }
        yield {
            "setting": f"p of within, {many} heads, {how}, spread {spread}",
            "truth": truths["difference"],
            "covered": float((table["p"] >= 0.05).mean()),
            "given": float(table["p"].notna().mean()),
            "runs": len(table),
        }


OUTCOMES = {
    "normal": lambda random, held, effect: random.normal(size=len(held)) + effect * held,
    "t3": lambda random, held, effect: random.standard_t(3, len(held)) / 3**0.5 + effect * held,
    "skewed": lambda random, held, effect: (random.lognormal(size=len(held)) - np.exp(0.5)) / 2.16 + effect * held,
    "zeros": lambda random, held, effect: np.where(
        random.random(len(held)) < 0.5, 0, random.exponential(size=len(held)) * (1 + effect * held)
    ),
    "binary": lambda random, held, effect: (random.random(len(held)) < 0.3 + 0.5 * effect * held).astype(float),
}


def correlations(runs: int) -> Iterator[dict[str, Any]]:
    """Rank correlations of a margin with an outcome, over 12 or 72 heads."""
    for heads, how, strength in product((12, 72), ("normal", "skewed", "zeros", "spread"), (0.0, 0.5, 0.9)):

        def drawn(random: Any, size: tuple[int, int], how: str = how, strength: float = strength) -> tuple[Any, Any]:
            x, noise = random.normal(size=(2, *size))
            y = strength * x + (1 - strength**2) ** 0.5 * noise * (np.exp(x / 2) if how == "spread" else 1)
            return x, {"skewed": np.exp(y), "zeros": np.maximum(y, 0)}.get(how, y)

        truth = float(spearman(*drawn(np.random.default_rng(1), (1, 400_000)))[0])
        found = spearman(*drawn(np.random.default_rng(0), (runs, heads)))
        low, high = np.array([intervals.rank_correlation(float(rank), heads) for rank in found]).T
        yield {"setting": f"{heads} heads, {how}", "truth": truth, **_covered(low, high, truth)}


def seeds(runs: int) -> Iterator[dict[str, Any]]:
    """Means over seeds of a metric on 200 examples; noise of seeds, of examples, and of both together."""
    for count, seed_noise, example_noise in product((2, 3, 5, 10), (0.0, 0.3, 1.0), (0.0, 3.0, 10.0)):
        random, low, high = np.random.default_rng(0), np.empty(runs), np.empty(runs)
        for run in range(runs):
            each = example_noise * random.normal(size=(200, 1)) + random.normal(size=(200, count))
            each += seed_noise * random.normal(size=count)
            weights = np.concatenate([np.ones((1, 200)), random.poisson(1.0, (RESAMPLES, 200))])
            low[run], high[run] = intervals.over_seeds((weights @ each / weights.sum(1, keepdims=True)).T)
        setting = f"{count} seeds, noise {seed_noise:g} of seeds, {example_noise:g} of examples"
        yield {"setting": setting, "truth": 0, **_covered(low, high, 0)}


def _covered(low: Any, high: Any, truth: float) -> dict[str, float]:
    given = np.isfinite(low) & np.isfinite(high)
    inside = (low[given] <= truth + 1e-12) & (truth - 1e-12 <= high[given])
    covered = float(inside.mean()) if given.any() else np.nan
    width = float(np.median((high - low)[given])) if given.any() else np.nan
    return {"covered": covered, "given": float(given.mean()), "runs": len(low), "width": width}


QUICK = ("shares", "correlations")  # five times as many runs
PARTS = {"shares": shares, "relations": relations, "correlations": correlations, "seeds": seeds}
