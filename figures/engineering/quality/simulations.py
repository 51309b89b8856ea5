"""Simulations of the tests and intervals: `make.py simulations` writes `simulations.csv`.

Each row is a statistic in a setting: how often a test rejects at 5 % where nothing is to be found (type I error, .05 is
right), where an effect is planted (power), or how often a 95 % interval covers (.95 is right); `rule` is "now", the
library's, or the rule that it replaced. With `runs` runs a rate of .05 has a standard error of sqrt(.05 x .95 / runs).
About four minutes on one core.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, NamedTuple
from unittest import mock

import numpy as np
import pandas as pd
import typer
from scipy import stats

import headroles as hr
from headroles.ablation.example_stats import ExampleStats
from headroles.ablation.metrics import Loss
from headroles.ablation.significance import effects
from headroles.analysis import intervals, seeds
from headroles.tables import frame

PLACE = Path(__file__).parent
sys.path.insert(0, str(PLACE.parents[1] / "questions/specialists"))
import pooling  # noqa: E402


class Rate(NamedTuple):
    """A row: what was asked of which statistic, in which setting, by which rule, and how often it was so."""

    statistic: str
    setting: str
    asked: str  # type I, power or coverage
    rule: str
    runs: int
    rate: float


def stability(runs: int) -> Iterator[Rate]:
    """`hr.stability` of two models of which layers differ; heads return, or only their layers do."""
    index = frame.index({("enc-self", layer): 4 for layer in range(4)})
    for back, asked in ((0.0, "type I"), (0.95, "power")):
        small = np.zeros(2)
        for seed in range(runs):
            random = np.random.default_rng(seed)
            common, layer = random.normal(size=(16, 3)), np.repeat(np.arange(4.0), 4)[:, None]
            tables = []
            for _ in range(2):
                values = 2 * layer + np.sqrt(back) * common + np.sqrt(1 - back) * random.normal(size=(16, 3))
                columns = dict(zip(("confidence", "entropy", "distance"), values.T, strict=True))
                tables.append(frame.table(columns, index, "simulated"))
            for number, dealt in enumerate((seeds._distributed, across_layers)):
                with mock.patch.object(seeds, "_distributed", dealt):
                    found = hr.stability(tables, n_permutations=99).set_index(["quantity", "of"])
                small[number] += found.loc[("similarity", "all heads"), "p"] < 0.05
        for rule, number in zip(("now", "chance across layers"), small, strict=True):
            yield Rate("stability", "2 models, 4 layers of 4 heads that differ", asked, rule, runs, number / runs)


def across_layers(index: pd.MultiIndex, count: int, n_permutations: int, seed: int, *, alone: bool) -> np.ndarray:
    """Heads in random order within each model, whatever their layer: the chance level of earlier versions."""
    assert not alone
    heads = np.tile(np.arange(count * len(index)).reshape(count, -1), (n_permutations, 1, 1))
    return np.random.default_rng(seed).permuted(heads, axis=-1)


def models(random: np.random.Generator, count: int, effect: float, shared: float) -> dict[str, pd.DataFrame]:
    """Models of 24 heads in 6 layers: correlation of position and what survives, and share of common errors."""
    index = frame.index({("enc-self", layer): 4 for layer in range(6)})
    common, tables = random.normal(size=(5, len(index))), {}
    for model in range(count):
        parts = np.sqrt(shared) * common + np.sqrt(1 - shared) * random.normal(size=common.shape)
        drawn = effect * parts[0] + np.sqrt(1 - effect**2) * parts[1]
        noisy = drawn + 0.3 * random.normal(size=(3, len(index)))  # three gate seeds
        survival = (noisy >= np.sort(noisy, axis=1)[:, [-6]]).mean(0)
        names = ("positional", "syntactic", "confidence", "sink")
        columns = dict(zip(names, parts[[0, 2, 3, 4]], strict=True)) | {"survival": survival}
        tables[f"model {model}"] = frame.table(columns, index, "simulated")
    return tables


def survival(runs: int) -> Iterator[Rate]:
    """`pooled_survival` over models of 24 heads, with the random-effects test that it replaced."""
    for count in (3, 5, 15):
        for effect in (0.0, 0.65):  # latent: a rank correlation of .5 with survival
            small = np.zeros(2)
            for seed in range(runs):
                tables = models(np.random.default_rng(seed), count, effect, 0.0)
                row = pooling.pooled_survival(tables, ["survival"], predictors=["positional"], n_permutations=199)
                small += row[["p", "population.p"]].iloc[0].to_numpy(float) < 0.05
            asked = "power" if effect else "type I"
            setting = f"{count} models of 24 heads" + (", rank correlation .5" if effect else "")
            for rule, number in zip(("now", "Hartung and Knapp with a floor"), small, strict=True):
                yield Rate("pooled_survival", setting, asked, rule, runs, number / runs)
    alike, pooling.ALIKE = pooling.ALIKE, 2.0  # so that ignoring the encoder is not refused
    for rule in ("now", "encoder ignored"):
        small = np.zeros(1)
        for seed in range(runs):
            tables = models(np.random.default_rng(seed), 5, 0.0, 0.9)
            encoders = dict.fromkeys(tables, "one") if rule == "now" else None
            found = pooling.pooled_survival(
                tables, ["survival"], predictors=["positional"], encoders=encoders, n_permutations=199
            )
            small += found["p"].iloc[0] < 0.05
        yield Rate("pooled_survival", "5 models of one encoder", "type I", rule, runs, float(small[0]) / runs)
    pooling.ALIKE = alike


def controls(runs: int) -> Iterator[Rate]:
    """Differences between controls of several models, three seeds each: t over models, and weighted as in the plans.

    Seeds vary by one, true differences between models by `spread`; where one is planted it is three errors large.
    """
    for count in (3, 4, 5):
        for spread in (0.0, 1.0):
            for asked, effect in (("type I", 0.0), ("power", 3.0)):
                random = np.random.default_rng(0)
                error = np.sqrt((spread**2 + 2 / 3) / count)
                true = effect * error + spread * random.normal(size=(runs, count, 1))
                tested, random_ones = true + random.normal(size=(runs, count, 3)), random.normal(size=(runs, count, 3))
                gaps = tested.mean(2) - random_ones.mean(2)
                variance = (tested.var(2, ddof=1) + random_ones.var(2, ddof=1)) / 3
                plain = stats.ttest_1samp(gaps, 0, axis=1).pvalue
                weighted = np.array([pooling.random_effects(*pair)[3] for pair in zip(gaps, variance, strict=True)])
                for rule, p in (("t over models", plain), ("weights, with a floor", weighted)):
                    setting = f"{count} models, differences spread by {spread:.0f}"
                    yield Rate("controls of equal size", setting, asked, rule, runs, float((p < 0.05).mean()))


SHAPES: dict[str, Callable[[np.random.Generator, tuple[int, int]], np.ndarray]] = {
    "normal": lambda random, size: random.normal(size=size),
    "3 % large": lambda random, size: (
        np.where(random.random(size) < 0.03, 1, -0.03 / 0.97) + 0.02 * random.normal(size=size)
    ),
    "10 % large": lambda random, size: (
        np.where(random.random(size) < 0.1, 1, -0.1 / 0.9) + 0.02 * random.normal(size=size)
    ),
    "log-normal": lambda random, size: np.exp(random.normal(size=size)) - np.exp(0.5),
}


def mean_effects(runs: int) -> Iterator[Rate]:
    """p of mean effects of `hr.ablate`, of which the true mean is 0, or half a standard deviation."""
    for shape, draw in SHAPES.items():
        for examples in (30, 100, 300):
            for shift in (0.0, 0.5) if shape == "normal" else (0.0,):
                changes = draw(np.random.default_rng(0), (runs, examples)) + shift
                intact = np.ones((examples, 2))
                masked = {
                    frozenset({("enc-self", 0, number)}): np.stack([1 + row, np.ones(examples)], axis=1)
                    for number, row in enumerate(changes)
                }
                statistics = ExampleStats(intact, masked, list(range(examples)), 0, Loss())
                now = effects(statistics, n_resamples=0).columns[".p"]
                before = stats.ttest_1samp(changes, 0, axis=1).pvalue
                for rule, p in (("now", now), ("t", before)):
                    asked = "power" if shift else "type I"
                    yield Rate("ablate", f"{examples} examples, {shape}", asked, rule, runs, float((p < 0.05).mean()))


def mean_weights(runs: int) -> Iterator[Rate]:
    """`hr.roles(test=True)` of mean weights at the threshold: sentences are alike or not (beta)."""
    for sentences in (30, 60, 100, 300):
        for at, alike in ((0.5, 0.3), (0.9, 0.3), (0.9, 0.6)):
            random = np.random.default_rng(0)
            counts = random.poisson(1.0, (200, sentences))
            means = random.beta(at * (1 / alike - 1), (1 - at) * (1 / alike - 1), (runs, sentences))
            draws = means @ counts.T / counts.sum(1)
            low, high = np.quantile(draws, [0.025, 0.975], axis=1)
            columns = {"sink[first]": means.mean(1), "sink[first].low": low, "sink[first].high": high}
            kept = {"sink[first]": draws.astype(np.float32)}
            index = frame.index({("enc-self", 0): runs})
            table = frame.table(columns, index, f"sentences:{sentences}", draws=kept)
            now = hr.roles(table, thresholds={"sink": at}, test=True)["sink[first].p"].to_numpy()
            del table.attrs["resamples"]  # by the interval alone, as before
            before = hr.roles(table, thresholds={"sink": at}, test=True)["sink[first].p"].to_numpy()
            setting = f"{sentences} sentences, mean {at}, correlation within sentences {alike}"
            for rule, p in (("now", now), ("interval of percentiles", before)):
                yield Rate("roles, mean weights", setting, "type I", rule, runs, float((p < 0.05).mean()))


def rare_tokens(runs: int) -> Iterator[Rate]:
    """Intervals of `rarity`: do they cover the value by the true frequencies of tokens?

    Six in ten queries attend to the truly rarest token of a sentence, the others to a random one.
    """
    chance = 1 / np.arange(1, 3001) ** 1.1
    chance /= chance.sum()
    truth = None  # of the first run, which is large
    for sentences in (60, 200):
        covered = {"reference": 0, "the sentences themselves": 0}
        weights = intervals.bootstrap_counts(range(sentences), 200, 0)
        for seed in range(runs + (truth is None)):
            random = np.random.default_rng(seed)
            many = 4000 if truth is None else sentences
            lengths = np.clip(random.lognormal(2.6, 0.4, many), 4, 40).astype(int)
            texts = [random.choice(3000, length, p=chance) for length in lengths]
            rarest = [int(np.argmin(chance[text])) for text in texts]
            tops = [
                np.where(random.random(len(text)) < 0.6, place, random.integers(len(text), size=len(text)))
                for text, place in zip(texts, rarest, strict=True)
            ]
            if truth is None:
                truth = float(np.concatenate([top == place for top, place in zip(tops, rarest, strict=True)]).mean())
                continue
            own = np.bincount(np.concatenate(texts), minlength=3000)
            for name, counted in (("reference", chance), ("the sentences themselves", own)):
                hits = [int((top == np.argmin(counted[text])).sum()) for top, text in zip(tops, texts, strict=True)]
                totals = weights @ lengths
                values = (weights @ hits / totals)[None]
                low, high = intervals.share(values, totals[:1], intervals.clusters(totals[None]))
                covered[name] += bool(low[0] <= truth <= high[0])
        for name, number in covered.items():
            yield Rate("rarity", f"{sentences} sentences", "coverage", f"counts of {name}", runs, number / runs)


def shares(runs: int) -> Iterator[Rate]:
    """Intervals of shares near a ceiling."""
    for of, at in ((10, 0.9), (10, 0.98), (30, 0.95)):
        random = np.random.default_rng(0)
        hits = random.binomial(of, at, runs)
        exact = np.array([intervals.exact_share(number / of, of) for number in range(of + 1)])[hits]
        mean, error = hits / of, np.sqrt(hits / of * (1 - hits / of) / (of - 1))
        half = stats.t.isf(0.025, of - 1) * error
        for rule, low, high in (("now", *exact.T), ("t, cut at 1", mean - half, np.minimum(mean + half, 1))):
            yield Rate("share", f"{at} of {of}", "coverage", rule, runs, float(((low <= at) & (at <= high)).mean()))


PARTS: tuple[tuple[Callable[[int], Iterator[Rate]], int], ...] = (  # with their runs
    (stability, 120),
    (survival, 120),
    (controls, 4000),
    (mean_effects, 3000),
    (mean_weights, 2000),
    (rare_tokens, 100),
    (shares, 20_000),
)


def main(
    output: Path = PLACE / "simulations.csv",
    share: Annotated[float, typer.Option(help="Of the runs, for a first look.")] = 1.0,
) -> None:
    """Simulate all, and write the rates."""
    rows = [rate for part, runs in PARTS for rate in part(max(2, round(runs * share)))]
    table = pd.DataFrame(rows)
    table.to_csv(output, index=False, float_format="%.4f")
    print(table.to_string(index=False))
