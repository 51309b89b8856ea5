"""Comparison of pruning strategies, without and with retraining, at equal numbers of heads and seeds."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headroles.ablation.metrics import Metric, as_metric
from headroles.ablation.significance import interval
from headroles.analysis.intervals import Array, over_seeds
from headroles.data.corpus import Corpus, CorpusLike
from headroles.data.readers import as_corpus
from headroles.models.head_model import HeadModel
from headroles.models.identity import fingerprint
from headroles.models.masking import Head
from headroles.pruning.cached_evaluation import Trials, values
from headroles.pruning.rankings import Ranking, RankingContext
from headroles.pruning.removal import remove_heads
from headroles.pruning.selection import Strategy, counted, prune, strategy_of
from headroles.tables import frame
from headroles.tables.arguments import several
from headroles.tables.frame import Kind, signed
from headroles.tables.study import Study, as_study
from headroles.training.hf_trainer import TrainOptions
from headroles.training.trainer import train

STRATEGIES = ("importance", "effect", "l0", "roles", "random", "-importance")
ALL_HEADS = "all heads"


def compare_pruning(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    corpus: CorpusLike,
    held_out: CorpusLike,
    *,
    strategies: Sequence[str | Strategy] = STRATEGIES,
    keep: Sequence[float] = (0.5, 0.25),
    seeds: int | Sequence[int] = 3,
    kinds: Sequence[Kind] | None = None,
    metric: str | Metric = "loss",
    scored: int = 1000,
    tune: TrainOptions | None = None,
    study: Study | str | Path | None = None,
) -> pd.DataFrame:
    """Compare pruning strategies at equal numbers of heads.

    Without retraining (Michel et al. 2019), and with it (Budhraja et al. 2020). For each seed and number of heads, each
    strategy selects the heads to keep: by a score on a random sample of the corpus, by learned gates with another
    order of examples, or by another random draw. The other heads are masked in the model, and removed from a copy that
    is trained. Weights trained together with gates are not used. Finished runs are not repeated.

    Args:
        model: A Hugging Face model, which is not changed.
        tokenizer: Its tokenizer.
        corpus: The corpus on which heads are selected and copies are trained.
        held_out: The corpus on which the metric is measured.
        strategies: Names of strategies of `prune`. Or strategies with different names.
        keep: Numbers of heads to keep, or below 1 shares.
        seeds: Seeds, or their number (0, 1, ...). Random draws depend on the seed and the number of heads: models of
            one shape need different seeds to get different draws.
        kinds: Kinds of the heads that are pruned, by default all.
        metric: Name of a metric or objective. Or a metric.
        scored: Number of examples in the sample on which heads are ranked.
        tune: Options of `train`, the same for all; gates are learned without label smoothing.
        study: Study or folder that keeps the tables `compare-pruning`, `compare-pruning-seeds` (each seed) and
            `compare-pruning-heads` (which heads are kept), and finished runs.

    Returns:
        A table with a row per strategy, number of heads and retraining.

        - value, value.low, value.high: mean of the metric over seeds, and its 95 % interval over seeds and examples (t
          of the seeds; none for one seed).
        - seeds.sd: standard deviation over seeds.
        - gain, gain.low, gain.high: difference from the strategy "random", if it is compared, seed by seed on the same
          examples.

    Raises:
        ValueError: If two strategies have the same name, or `prune` does not accept an argument.
    """
    chosen = [strategy_of(strategy) for strategy in several(strategies)]
    names = [strategy.name for strategy in chosen]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"strategies must have different names, got {repeated[0]!r} among {', '.join(names)}")
    corpus, held_out = as_corpus(corpus), as_corpus(held_out)
    handle, kept = HeadModel(model, tokenizer), as_study(study)
    what = handle, corpus, held_out, as_metric(metric), kept
    trials = Trials(*what, kinds=kinds, tune=tune or {}, scored=scored)
    trials.check(handle)
    trials.claim("compare-pruning")
    work = _Work(trials, handle.sites.of_kinds(kinds), scored, tune or {})
    size = len(work.among)
    counts = sorted({counted(number, size) for number in several(keep)}, reverse=True)
    runs: list[_Run] = []
    for seed in range(seeds) if isinstance(seeds, int) else seeds:
        runs += work.seed(chosen, counts, seed)
    draws = values(trials.metric, [run.statistics for run in runs])
    by_seed = pd.DataFrame(
        {
            "strategy": run.strategy,
            "heads": run.heads,
            "share": run.heads / size,
            "tuned": run.tuned,
            "seed": run.seed,
            **dict(zip(("value", "low", "high"), interval(draw, trials.metric, len(run.statistics)), strict=True)),
        }
        for run, draw in zip(runs, draws, strict=True)
    )
    kept.save("compare-pruning-seeds", signed(by_seed, trials.key, trials.signature))
    kept.save("compare-pruning-heads", _survivors(work, runs))
    table = signed(_summary(by_seed, draws, trials.metric, len(runs[0].statistics)), trials.key, trials.signature)
    return kept.save("compare-pruning", table)


@dataclass(frozen=True, eq=False)
class _Run:
    strategy: str
    heads: int
    seed: int
    tuned: bool
    pruned: tuple[Head, ...]
    statistics: Array  # [example, statistic]


@dataclass
class _Work:
    """Shared state of all runs of a comparison."""

    trials: Trials
    among: Sequence[Head]
    scored: int
    tune: TrainOptions

    def seed(self, chosen: Sequence[Strategy], counts: Sequence[int], seed: int) -> Iterator[_Run]:
        """Run one seed: the whole model, and every strategy at every number of heads, without and with retraining."""
        choices = [(ALL_HEADS, len(self.among), ())] + [
            (strategy.name, count, tuple(self.pruned(strategy, count, seed))) for strategy in chosen for count in counts
        ]
        measured = self.trials.masked((seed,), [pruned for _, _, pruned in choices])
        for (name, count, pruned), statistics in zip(choices, measured, strict=True):
            yield _Run(name, count, seed, False, pruned, statistics)
            yield _Run(name, count, seed, True, pruned, self.retrained(pruned, seed))

    def pruned(self, strategy: Strategy, count: int, seed: int) -> list[Head]:
        """Return the pruned heads, selected once and kept."""
        what = "choice", str(strategy), fingerprint(strategy), seed
        if isinstance(strategy, Ranking):
            table = self.trials.keep(what, lambda: self._ranked(strategy, seed))
            ranked = table["order"].dropna().sort_values().index
            return [(kind, layer, head) for kind, layer, head in ranked[: len(ranked) - count]]

        place, left_out = self.trials.place(*what, count), ("label_smoothing_factor", "seed")  # each seed has its gates
        plain = {name: value for name, value in self.tune.items() if name not in left_out}
        options: dict[str, Any] = {"keep": count, "kinds": self.trials.kinds, "tune": plain, "seed": seed}

        def learned() -> pd.DataFrame:
            return prune(*self.trials.copy(), strategy, remove=False, study=place, **options)

        survival = self.trials.keep((*what, count), learned).iloc[:, 0]
        shutil.rmtree(place, ignore_errors=True)
        return [(kind, int(layer), int(head)) for kind, layer, head in survival.index[survival == 0]]

    def retrained(self, pruned: tuple[Head, ...], seed: int) -> Array:
        """Return the statistics [example, statistic] of a copy without these heads, after training."""
        what = ("retrained", sorted(pruned), seed)
        place = self.trials.place("training", *what)

        def compute() -> PreTrainedModel:
            model, tokenizer, corpus = self.trials.copy()
            if pruned:
                remove_heads(model, pruned)
            options: TrainOptions = {**self.tune, "seed": seed}
            if self.tune.get("rate") != 0:  # an untrained control keeps its weights
                train(model, tokenizer, corpus, place, **options)
            return model

        statistics = self.trials.run(what, compute)
        shutil.rmtree(place, ignore_errors=True)
        return statistics

    def _ranked(self, strategy: Ranking, seed: int) -> pd.DataFrame:
        handle, corpus = self.trials.handle, self.trials.corpus
        sample = random.Random(seed).sample(corpus.sentences, min(self.scored, len(corpus)))
        context = RankingContext(handle.model, handle.tokenizer, Corpus(corpus.name, tuple(sample)), self.among, seed)
        ranked = strategy.order(context)
        order = pd.Series(range(1, len(ranked) + 1), index=pd.MultiIndex.from_tuples(ranked), dtype=float)
        return frame.table({"order": order.reindex(handle.index).to_numpy()}, handle.index, self.trials.key)


def _survivors(work: _Work, runs: Sequence[_Run]) -> pd.DataFrame:
    """Return a table with a column per selection: 1 for a kept head."""
    index = work.trials.handle.index
    columns = {
        f"survival[{run.strategy} {run.heads} seed {run.seed}]": [float(head not in run.pruned) for head in index]
        for run in runs
        if not run.tuned and run.strategy != ALL_HEADS
    }
    return frame.table(columns, index, work.trials.key)


def _summary(by_seed: pd.DataFrame, draws: Array, metric: Metric, examples: int) -> pd.DataFrame:
    """Return the mean over seeds, and its difference from random, with intervals."""
    keys = ["strategy", "heads", "tuned"]
    parts = {key: draws[part.sort_values("seed").index] for key, part in by_seed.groupby(keys, sort=False)}
    rows = []
    for (strategy, count, tuned), part in parts.items():  # [seed, 1 + resample]
        row: dict[str, object] = {"strategy": strategy, "heads": count, "tuned": tuned}
        chance = parts.get(("random", count, tuned))
        row |= _mean("value", part, metric, examples) | {"seeds.sd": pd.Series(part[:, 0]).std()}
        row |= _mean("gain", part, metric, examples, chance) if chance is not None and strategy != "random" else {}
        rows.append(row)
    return pd.DataFrame(rows)


def _mean(name: str, values: Array, metric: Metric, examples: int, before: Array | None = None) -> dict[str, float]:
    """Return the mean over seeds, or its change, and its interval; an exact one if all seeds and examples are alike."""
    value, *ends = interval(values.mean(0), metric, examples, before=None if before is None else before.mean(0))
    spread = over_seeds(values if before is None else values - before)
    low, high = ends if spread[0] == spread[1] else spread
    return {name: value, f"{name}.low": low, f"{name}.high": high}
