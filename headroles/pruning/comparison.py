"""The contest: several ways to choose heads, as they are and after retraining, at equal numbers of heads and seeds."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headroles.ablation.metrics import Metric
from headroles.ablation.metrics import metric as the_metric
from headroles.analysis.intervals import over_seeds
from headroles.data.corpus import Corpus
from headroles.models import heads as families
from headroles.models.masking import Head
from headroles.pruning.cached_evaluation import Array, Trials, interval, recipe, signed, values
from headroles.pruning.rankings import Ranking, RankingContext, among
from headroles.pruning.removal import remove_heads
from headroles.pruning.selection import Strategy, closed_first, counted, prune, strategy_of
from headroles.tables import frame
from headroles.tables.frame import Kind
from headroles.tables.io import save_table
from headroles.tables.study import Study
from headroles.training.trainer import train

STRATEGIES = ("importance", "effect", "l0", "roles", "random", "-importance")
WHOLE = "all heads"


def compare_pruning(
    study: Study,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    corpus: Corpus,
    held_out: Corpus,
    *,
    strategies: Sequence[str | Strategy] = STRATEGIES,
    keep: Sequence[float] = (0.5, 0.25),
    seeds: int = 3,
    kinds: Sequence[Kind] | None = None,
    metric: str | Metric = "loss",
    scored: int = 1000,
    tune: Mapping[str, Any] | None = None,
    n_resamples: int = 1000,
) -> pd.DataFrame:
    """Does it matter how heads are chosen, without retraining (Michel et al.) and with it (Budhraja et al.)?

    Each strategy chooses the heads that stay, of every number in `keep`, for each seed: a score on another random
    sample of `scored` examples of `corpus`, learnt gates with another order of examples, chance with another draw.
    The others are closed in `model` as it is, and cut out of a copy that is trained on `corpus` by the options `tune`
    of `train`, the same for all; weights that were trained together with gates, which take no label smoothing, are not
    kept. Returns, and keeps as `contest`, a row per strategy, number of heads and retraining: the mean over seeds of
    the metric on `held_out`, with `.low` and `.high`, a 95 % interval of seeds and examples together (t of the seeds,
    none for one seed), and `gain` over the strategy random, where it is among them, of differences seed by seed on the
    same examples. `contest-seeds` has each seed, `contest-heads` which heads stay. What is finished is not run again.
    Raises ValueError for two strategies of one name, and for what `prune` does not take.
    """
    chosen = [strategy_of(one) for one in strategies]
    names = [one.name for one in chosen]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"two strategies are called {twice[0]!r}, and rows are told apart by the name")
    told = recipe(model, corpus, kinds, dict(tune or {}), scored=scored)
    gone = study.claim("contest", f"{told}|{frame.sign(text=held_out.hash)}")
    work = _Work(study, model, tokenizer, corpus, held_out, the_metric(metric), kinds, scored, dict(tune or {}))
    size = len(work.may_go)
    counts = sorted({counted(one, size) for one in keep}, reverse=True)
    runs: list[_Run] = []
    for seed in range(seeds):
        runs += work.seed(chosen, counts, seed)
    draws = values(work.metric, [run.statistics for run in runs], n_resamples=n_resamples)
    each = pd.DataFrame(
        [
            {
                "strategy": run.strategy,
                "heads": run.heads,
                "share": run.heads / size,
                "tuned": run.tuned,
                "seed": run.seed,
            }
            | dict(zip(("value", "low", "high"), interval(own), strict=True))
            for run, own in zip(runs, draws, strict=True)
        ]
    )
    study.remove(gone)
    save_table(signed(each, work.recipe, work.trials.signature), study.path("contest-seeds"))
    save_table(_survivors(work, runs), study.path("contest-heads"))
    found = _summary(each, draws)
    save_table(
        signed(found, work.recipe, work.trials.signature, f"resamples:{n_resamples}"), study.path("contest")
    )
    return found


@dataclass(frozen=True, eq=False)
class _Run:
    strategy: str
    heads: int
    seed: int
    tuned: bool
    gone: tuple[Head, ...]
    statistics: Array  # [example, statistic]


class _Work:
    """What all runs of a contest share."""

    def __init__(
        self,
        study: Study,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        corpus: Corpus,
        held_out: Corpus,
        metric: Metric,
        kinds: Sequence[Kind] | None,
        scored: int,
        tune: dict[str, Any],
    ) -> None:
        self.model, self.tokenizer, self.corpus, self.tune = model, tokenizer, corpus, tune
        self.metric, self.scored, self.kinds, self.may_go = metric, scored, kinds, among(model, kinds)
        self.recipe = recipe(model, corpus, kinds, tune, scored=scored)
        self.trials = Trials(study, tokenizer, held_out, metric, self.recipe)

    def seed(self, chosen: Sequence[Strategy], counts: Sequence[int], seed: int) -> Iterator[_Run]:
        """All runs of one seed: nothing gone, and every strategy at every number of heads, as it is and retrained."""
        size = len(self.may_go)
        plans = [(WHOLE, size, ())] + [
            (one.name, count, tuple(self.gone(one, count, seed))) for one in chosen for count in counts
        ]
        found = self.trials.closed((seed,), self.model, [gone for _, _, gone in plans])
        for (name, count, gone), statistics in zip(plans, found, strict=True):
            yield _Run(name, count, seed, False, gone, statistics)
            yield _Run(name, count, seed, True, gone, self.retrained(gone, seed))

    def gone(self, strategy: Strategy, count: int, seed: int) -> list[Head]:
        """The heads that go, chosen once and kept."""
        kept = Study(self.trials.folder)
        what = (str(strategy), seed) if isinstance(strategy, Ranking) else (str(strategy), count, seed)
        place = self.trials.place("choice", *what)
        told = f"{frame.holding(recipe=self.recipe)}|{frame.sign(what=what)}"
        if isinstance(strategy, Ranking):
            table = kept.keep(place.name, told, lambda: self._ordered(strategy, seed))
            line: Any = table["turn"].dropna().sort_values().index.tolist()
            return closed_first(line, count)

        def learnt() -> pd.DataFrame:
            plain = {name: value for name, value in self.tune.items() if name != "label_smoothing_factor"}
            options: Any = {"keep": count, "kinds": self.kinds, "seed": seed, "tune": plain, "folder": place}
            return prune(deepcopy(self.model), self.tokenizer, self.corpus, strategy, **options)

        found = kept.keep(place.name, told, learnt).iloc[:, 0]
        shutil.rmtree(place, ignore_errors=True)
        return [(kind, int(layer), int(head)) for kind, layer, head in found.index[found == 0]]

    def retrained(self, gone: tuple[Head, ...], seed: int) -> Array:
        """Statistics of every example by a copy without these heads, after training."""
        what = ("retrained", sorted(gone), seed)
        place = self.trials.place("training", *what)

        def compute() -> PreTrainedModel:
            one = deepcopy(self.model)
            if gone:
                remove_heads(one, gone)
            train(one, self.tokenizer, self.corpus, place, **{**self.tune, "seed": seed})
            return one

        found = self.trials.run(what, compute)
        shutil.rmtree(place, ignore_errors=True)
        return found

    def _ordered(self, strategy: Ranking, seed: int) -> pd.DataFrame:
        sample = random.Random(seed).sample(self.corpus.sentences, min(self.scored, len(self.corpus)))
        some = Corpus(self.corpus.name, tuple(sample))
        line = strategy.order(RankingContext(self.model, self.tokenizer, some, self.may_go, seed))
        turns = pd.Series(range(1, len(line) + 1), index=pd.MultiIndex.from_tuples(line), dtype=float)
        index = families.head_index(self.model)
        return frame.table({"turn": turns.reindex(index).to_numpy()}, index, self.recipe)


def _survivors(work: _Work, runs: Sequence[_Run]) -> pd.DataFrame:
    """A column per choice: 1 for a head that stays."""
    index = families.head_index(work.model)
    columns = {
        f"survival[{run.strategy} {run.heads} seed {run.seed}]": [float(head not in run.gone) for head in index]
        for run in runs
        if not run.tuned and run.strategy != WHOLE
    }
    return frame.table(columns, index, work.recipe)


def _summary(each: pd.DataFrame, draws: Array) -> pd.DataFrame:
    """The mean over seeds, its interval, and what it gains over chance, seed by seed on the same examples."""
    keys = ["strategy", "heads", "tuned"]
    parts = {key: draws[part.sort_values("seed").index] for key, part in each.groupby(keys, sort=False)}
    rows = []
    for (strategy, count, tuned), own in parts.items():  # [seed, 1 + resample]
        row: dict[str, Any] = {"strategy": strategy, "heads": count, "tuned": tuned}
        chance = parts.get(("random", count, tuned))
        row |= _mean("value", own) | {"seeds.sd": float(own[:, 0].std(ddof=1)) if len(own) > 1 else np.nan}
        row |= _mean("gain", own - chance) if chance is not None and strategy != "random" else {}
        rows.append(row)
    return pd.DataFrame(rows)


def _mean(name: str, values: Array) -> dict[str, float]:
    """The mean over seeds and its interval."""
    low, high = over_seeds(values)
    return {name: float(values[:, 0].mean()), f"{name}.low": low, f"{name}.high": high}
