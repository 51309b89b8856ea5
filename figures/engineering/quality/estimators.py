"""Which estimator needs the fewest ablated examples?

SHARED, `--models` and `--work` are those of `predicted.py`, which ablates all heads once. Here examples are drawn from
these numbers, `--repeats` times, and the effects on the corpus are estimated from 64, 128 and 250 of them, in ways that
the library might use. A row of `estimators.csv` per corpus, way and number of examples:

- variance: mean squared error over that of the regression on equally likely examples (geometric mean over heads);
- cost: mean number of tokens that are predicted in an ablated example, over that of the corpus;
- per compute: their product, of which less is better; coverage: that of 95 % intervals for the effect on the corpus;
- rank: Spearman's correlation of the effects of heads with those on the whole corpus.

"known" means that the spread of residuals is taken from the whole corpus: a bound, which no one can reach.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import pandas as pd
import torch
import typer
from predicted import everything, replaced
from scipy import stats
from sklearn.isotonic import IsotonicRegression

from headroles.ablation.example_stats import ExampleStats
from headroles.ablation.prediction_powered import chances

ABLATED = (64, 128, 250)
REFERENCE = "regression"


class Found(NamedTuple):
    """Estimates of the effects of all heads."""

    effect: np.ndarray  # [head]
    half: np.ndarray  # half of the 95 % interval: [head]


class Corpus:
    """Changes and their predictions, [example, head], and the steps of each example."""

    def __init__(self, whole: ExampleStats) -> None:
        total, self.steps = whole.intact.T
        change = np.stack([values[:, 0] - total for values in whole.masked.values()], axis=1)
        predicted = np.stack(list(whole.predicted.values()), axis=1)
        alive = (change.std(0) > 0) & (predicted.std(0) > 0)
        self.change, self.predicted = change[:, alive], predicted[:, alive]
        self.size, self.heads = self.change.shape
        self.truth = self.change.mean(0) / self.steps.mean()
        self.x = (self.predicted - self.predicted.mean(0)) / self.predicted.std(0)
        spread = self.steps.std()
        self.length = (self.steps - self.steps.mean()) / spread if spread else np.zeros(self.size)
        self.base = [self.x, self.wide(self.length)] if spread else [self.x]
        self.sizes = np.sqrt((self.x**2).mean(1))
        design = [
            np.column_stack([column[:, head] for column in [np.ones_like(self.x), *self.base]])
            for head in range(self.heads)
        ]
        left = [y - d @ np.linalg.lstsq(d, y)[0] for d, y in zip(design, self.change.T, strict=True)]
        self.spread = np.sqrt(np.mean([(row / row.std()) ** 2 for row in left], axis=0))

    def wide(self, column: np.ndarray) -> np.ndarray:
        return np.repeat(column[:, None], self.heads, axis=1)


def regression(
    of: Corpus, rows: np.ndarray, chance: np.ndarray, columns: list[np.ndarray], *, ridge: float = 0, toward: float = 0
) -> Found:
    """Regression estimate with weights of 1 / chance; a ridge of so many examples draws the slope to 0 or 1."""
    weight, count = 1 / chance[rows], len(rows)
    design = np.stack([np.ones_like(of.x), *columns], axis=-1)  # [example, head, column]
    drawn, y = design[rows], of.change[rows]
    gram = np.einsum("n,nhi,nhj->hij", weight, drawn, drawn, optimize=True)
    moments = np.einsum("n,nhi,nh->hi", weight, drawn, y, optimize=True)
    gram[:, 1, 1] += ridge * of.size / count
    moments[:, 1] += ridge * of.size / count * toward * of.predicted.std(0)
    inverse = np.linalg.pinv(gram, hermitian=True)
    coefficients = np.einsum("hij,hj->hi", inverse, moments)
    residual = y - np.einsum("nhi,hi->nh", drawn, coefficients)
    leverage = weight[:, None] * np.einsum("nhi,hij,nhj->nh", drawn, inverse, drawn, optimize=True)
    mean = design.mean(0)
    shares = weight[:, None] * np.einsum("hi,hij,nhj->nh", mean, inverse, drawn, optimize=True)
    parts = shares * residual / np.maximum(1 - leverage, 1e-9)
    kept = (1 - chance[rows])[:, None]
    effect = (mean * coefficients).sum(-1) + (1 - 1 / count) * (kept * (parts - shares * residual)).sum(0)
    error = np.sqrt((kept * parts**2).sum(0))
    half = stats.t.ppf(0.975, count - design.shape[-1]) * error
    return Found(effect / of.steps.mean(), half / of.steps.mean())


def plain(of: Corpus, rows: np.ndarray, slope: float) -> Found:
    """Mean over the ablated examples, with a fixed slope: 1 is prediction-powered inference as first published."""
    rest, count = of.change[rows] - slope * of.predicted[rows], len(rows)
    mean = rest.mean(0) + slope * of.predicted.mean(0)
    error = rest.std(0, ddof=1) / np.sqrt(count) * np.sqrt(1 - count / of.size)
    return Found(mean / of.steps.mean(), stats.t.ppf(0.975, count - 1) * error / of.steps.mean())


def isotonic(of: Corpus, rows: np.ndarray) -> Found:
    """Monotone calibration of the prediction, each half of the examples corrected by the other's."""
    folds, count = np.array_split(rows, 2), len(rows)
    effect, error = np.zeros(of.heads), np.zeros(of.heads)
    for head in range(of.heads):
        x, y = of.predicted[:, head], of.change[:, head]
        rest = []
        for held, fitted in (folds, folds[::-1]):
            curve = IsotonicRegression(increasing=True, out_of_bounds="clip").fit(x[fitted], y[fitted]).predict(x)
            effect[head] += curve.mean() / 2
            rest.append(y[held] - curve[held])
        rest = np.concatenate(rest)
        effect[head] += rest.mean()
        error[head] = rest.std(ddof=1) / np.sqrt(count) * np.sqrt(1 - count / of.size)
    return Found(effect / of.steps.mean(), stats.t.ppf(0.975, count - 2) * error / of.steps.mean())


def shrunk(of: Corpus, found: Found, count: int) -> Found:
    """Drawn to the mean prediction of each head, as far as Stein's estimate of the risk advises over all heads."""
    target, variance = of.predicted.mean(0) / of.steps.mean(), (found.half / stats.t.ppf(0.975, count - 3)) ** 2
    away = found.effect - target
    grid = np.geomspace(1e-3, 1e3, 61) * np.median(variance)
    rest = [variance / (variance + between) for between in grid]  # how far to the target
    risk = [(variance - 2 * far * variance + (far * away) ** 2).sum() for far in rest]
    return Found(found.effect - rest[int(np.argmin(risk))] * away, np.full(of.heads, np.nan))


def groups(values: np.ndarray, number: int) -> np.ndarray:
    """Number of the group of each example, by the rank of a value."""
    return stats.rankdata(values, method="ordinal").astype(int) * number // (len(values) + 1)


def stratified(
    group: np.ndarray, spread: np.ndarray, count: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Draw from each group in proportion to its size and spread (Neyman 1934): the rows, and all chances."""
    number = np.bincount(group)
    wanted = number * spread / (number * spread).sum() * count
    each = np.clip(np.floor(wanted + rng.random()).astype(int), 4, number)
    rows = np.concatenate([rng.permutation(np.flatnonzero(group == one))[:n] for one, n in enumerate(each)])
    return rows, (each / number)[group]


def unequal(sizes: np.ndarray, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draw examples, the larger the likelier: the rows, and all chances."""
    return np.argsort(rng.random(len(sizes)) / sizes)[:count], chances(sizes, count)


def ways(of: Corpus, count: int, rng: np.random.Generator, *, slow: bool) -> dict[str, tuple[np.ndarray, Found]]:
    """Rows that are ablated and what is estimated from them, by the name of the way."""
    rows, equal = rng.permutation(of.size)[:count], np.full(of.size, count / of.size)
    mean = of.sizes.mean()
    first = regression(of, rows, equal, of.base)
    quarters = np.stack([groups(column, 4) for column in of.x.T], axis=1)
    by_prediction = [(quarters == one).astype(float) for one in (1, 2, 3)]
    square = of.x**2 - 1
    found = {
        REFERENCE: (rows, first),
        "mean of the ablated": (rows, plain(of, rows, 0)),
        "slope 1": (rows, plain(of, rows, 1)),
        "ridge to slope 1, 16 examples": (rows, regression(of, rows, equal, of.base, ridge=16, toward=1)),
        "ridge to slope 0, 4 examples": (rows, regression(of, rows, equal, of.base, ridge=4)),
        "prediction and its square": (rows, regression(of, rows, equal, [*of.base, square])),
        "post-stratified by prediction": (rows, regression(of, rows, equal, [*of.base, *by_prediction])),
        "shrunk to the prediction": (rows, shrunk(of, first, count)),
    }
    if slow:
        found["isotonic, two folds"] = (rows, isotonic(of, rows))
    if of.steps.std():
        quarter = groups(of.steps, 4)
        by_length = [of.wide((quarter == one).astype(float)) for one in (1, 2, 3)]
        found["post-stratified by length"] = (rows, regression(of, rows, equal, [of.x, *by_length]))
    draws: dict[str, Callable[[], tuple[np.ndarray, np.ndarray]]] = {}
    for name, values in {"length": of.steps, "size of gradients": of.sizes}.items():
        if values.std():
            group = groups(values, 5)
            spread = np.array([np.sqrt((of.spread[group == one] ** 2).mean()) for one in range(5)])
            draws[f"stratified by {name}"] = lambda group=group: stratified(group, np.ones(5), count, rng)
            draws[f"Neyman by {name}, known"] = lambda group=group, spread=spread: stratified(group, spread, count, rng)
    likely = {
        "size of gradients": of.sizes,
        "its root": np.sqrt(of.sizes),
        "half size, half equal": (of.sizes + mean) / 2,
        "size per root of length": of.sizes / np.sqrt(of.steps),
        "residual, known": of.spread,
    }
    for name, values in likely.items():
        draws[f"drawn by {name}"] = lambda values=values: unequal(values, count, rng)
    for name, draw in draws.items():
        others, chance = draw()
        found[name] = (others, regression(of, others, chance, of.base))
    return found


def compared(whole: ExampleStats, repeats: int) -> list[dict[str, object]]:
    """A row per way and number of ablated examples."""
    of, rows = Corpus(whole), []
    for count in ABLATED:
        rng = np.random.default_rng(count)
        kept: dict[str, list[tuple[np.ndarray, np.ndarray, float, float]]] = {}
        for number in range(repeats):
            for name, (drawn, found) in ways(of, count, rng, slow=number < repeats // 10).items():
                away = np.abs(found.effect - of.truth)
                rank = stats.spearmanr(found.effect, of.truth).statistic
                cost = of.steps[drawn].mean() / of.steps.mean()
                kept.setdefault(name, []).append((away**2, away <= found.half, float(cost), float(rank)))
        for name, parts in kept.items():
            reference = np.mean([part[0] for part in kept[REFERENCE][: len(parts)]], axis=0)
            ratio = np.exp(np.log(np.mean([part[0] for part in parts], axis=0) / reference).mean())
            cost, covered = np.mean([part[2] for part in parts]), np.mean([part[1] for part in parts])
            row = {"way": name, "ablated": count, "repeats": len(parts), "variance": ratio, "cost": cost}
            row |= {"per compute": ratio * cost, "coverage": covered if "shrunk" not in name else np.nan}
            row |= {"rank": np.mean([part[3] for part in parts])}
            rows.append({key: round(float(v), 4) if isinstance(v, float) else v for key, v in row.items()})
    return rows


def main(
    shared: Path,
    models: list[str] = ["captions", "classifier", "llama"],
    repeats: int = 100,
    work: Annotated[Path, typer.Option(help="For models and finished batches.")] = Path("predicted"),
    output: Path = Path("figures/engineering/quality"),
) -> None:
    torch.set_num_threads(1)
    for name in models:
        rows = compared(everything(name, "loss", shared, work), repeats)
        replaced(output / "estimators.csv", rows, {"corpus": name, "metric": "loss"})
        print(pd.DataFrame(rows).to_string(), flush=True)
