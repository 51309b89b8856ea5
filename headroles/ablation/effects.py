"""Ablation: what happens when a head is switched off, for every head, with intervals and corrected tests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headroles.ablation.early_stopping import staged
from headroles.ablation.example_stats import ExampleStats, HeadSet
from headroles.ablation.metrics import Metric
from headroles.ablation.metrics import metric as the_metric
from headroles.ablation.runner import Fill
from headroles.ablation.significance import best, effects
from headroles.ablation.sweep import sweep
from headroles.data.corpus import Corpus
from headroles.models import heads as families
from headroles.models import loading
from headroles.models.masking import Head
from headroles.scores.accumulator import rounded
from headroles.tables import frame
from headroles.tables.study import Study

Unit = Literal["single", "rest", "layer", "kind"]
UNITS: tuple[Unit, ...] = get_args(Unit)
KEPT = 1000  # resamples that ride in a table: more are for p, of which many tests need small ones


def ablate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    corpus: Corpus,
    *,
    metric: str | Metric = "loss",
    unit: Unit = "single",
    replacement: Fill = "zero",
    early: bool = False,
    max_tokens: int = 4096,
    heads_per_batch: int = 8,
    n_resamples: int = 1000,
    seed: int = 0,
    folder: str | Path | None = None,
) -> pd.DataFrame:
    """Close heads and measure what changes (Michel et al. 2019, section 3): a row per head.

    `plan`: each head alone ("single"), all other heads of its layer ("rest": all but one), its whole "layer", or all
    heads of its "kind". `fill`: what a closed head puts out: "zero", its "mean" over the corpus, the output for an
    "other" example of like length, drawn by `seed` (`sweep`), that of "uniform" attention, or nothing while the rest of
    its layer is scaled up ("rescale").

    Columns, where c is `ablation[metric]`, with plan, fill and "early" after the metric where they are not "single",
    "zero" and False: c is metric(closed) - metric(intact); `c.low` and `c.high` bound its 95 % interval over paired
    Poisson bootstrap resamples of the examples; `c.p` is two-sided, of a paired t-test where the metric is a mean (of a
    ratio, by the delta method), otherwise of the paired bootstrap (Koehn 2004), and then at least 2 / (resamples + 1),
    so that many heads need many resamples; `c.holm` and `c.bh` are p corrected for all that was tested, after Holm and
    after Benjamini and Hochberg. `early` runs a head only until it is clear whether p is below 0.01 (`stopping.staged`
    has the risks); `c.examples` then says on how many examples. How it is run: `sweep`.
    """
    index = families.head_index(model)
    run = _sweeping(model, tokenizer, corpus, the_metric(metric), unit, replacement, early, seed)
    place = None if folder is None else Path(folder)
    return _told(
        run(max_tokens=max_tokens, heads_per_batch=heads_per_batch, folder=place),
        index,
        unit,
        replacement,
        early,
        n_resamples,
        seed,
    )


def ablate_sets(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    corpus: Corpus,
    sets: Mapping[str, Iterable[Head]],
    *,
    metric: str | Metric = "loss",
    replacement: Fill = "zero",
    n_resamples: int = 1000,
    seed: int = 0,
    **options: Any,
) -> pd.DataFrame:
    """Close sets of heads, each by its name, and measure what changes: a row per set, the columns of `ablate`.

    `options` are those of `sweep`.
    """
    chosen = the_metric(metric)
    if not sets:
        raise ValueError("nothing to close: give at least one set of heads")
    closed = {name: frozenset(tuple(head) for head in given) for name, given in sets.items()}
    variants = list(dict.fromkeys(closed.values()))
    found = sweep(model, tokenizer, corpus, variants, chosen, replacement=replacement, seed=seed, **options)
    effect = effects(found, n_resamples=n_resamples, seed=seed)
    rows = [variants.index(each) for each in closed.values()]
    columns = {f"ablation[{chosen.name}]{end}": values[rows] for end, values in effect.columns.items()}
    table = pd.DataFrame(columns, index=pd.Index(list(closed), name="set")).drop(
        columns=f"ablation[{chosen.name}].examples"
    )
    text = f"{found.signature}|{frame.sign(intact=f'{effect.intact:.6g}', resamples=n_resamples, seed=seed)}"
    table.attrs["signatures"] = dict.fromkeys(table.columns, text)
    return table


def closed_in(
    study: Study,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    corpus: Corpus,
    *,
    metric: str = "loss",
    unit: Unit = "single",
    replacement: Fill = "zero",
    early: bool = False,
    n_resamples: int = 1000,
    seed: int = 0,
    **options: Any,
) -> pd.DataFrame:
    """`ablate` in a study: the table `ablation-METRIC-PLAN-FILL`, kept if it was made from the same.

    Beside it are `examples-METRIC-PLAN-FILL`, the statistics of each example from which it was told without the model,
    and for the plan "rest" `best-METRIC-FILL` and `best-METRIC-FILL-halves` (`significance.best`). A run that was
    stopped goes on after its last finished batch. `options` are those of `ablate`.
    """
    name = f"{metric}-{unit}-{replacement}{'-early' if early else ''}"
    index, chosen = families.head_index(model), the_metric(metric)
    recipe = frame.sign(
        weights=loading.revision(model),
        configuration=loading.configuration(model, tokenizer),
        text=corpus.hash,
        metric=chosen,
        seed=seed if early or replacement == "other" else None,
        headroles=version("headroles"),
    )

    @cache  # several artefacts ask for it in one run
    def found() -> ExampleStats:
        run = _sweeping(model, tokenizer, corpus, chosen, unit, replacement, early, seed)
        asked: dict[str, Any] = {"folder": study.work / ".sweeps"} | options
        kept = study.keep(f"examples-{name}", recipe, lambda: run(**asked).table())
        return ExampleStats.of(kept, chosen)

    def keep(name: str, tell: Any) -> pd.DataFrame:
        return study.keep(name, f"{recipe}|resamples:{n_resamples}|seed:{seed}", tell)

    if unit == "rest" and not early:
        kept: dict[str, Any] = {"n_resamples": n_resamples, "seed": seed}
        keep(f"best-{metric}-{replacement}", lambda: best(found(), index, **kept))
        if len(found().numbers) > 1:
            keep(f"best-{metric}-{replacement}-halves", lambda: best(found(), index, halves=True, **kept))
    return keep(f"ablation-{name}", lambda: _told(found(), index, unit, replacement, early, n_resamples, seed))


def _sweeping(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    corpus: Corpus,
    metric: Metric,
    unit: Unit,
    replacement: Fill,
    early: bool,
    seed: int,
) -> Any:
    """What runs a plan, once told the options of `sweep`."""
    if unit not in UNITS:
        raise ValueError(f"unknown plan {unit!r}; known: {', '.join(UNITS)}")
    index = families.head_index(model)
    variants = list(dict.fromkeys(_closed(tuple(head), list(index), unit) for head in index))

    def run(**options: Any) -> ExampleStats:
        given: dict[str, Any] = {"replacement": replacement, "seed": seed, **options}
        run = staged if early else sweep
        return run(model, tokenizer, corpus, variants, metric, **given)

    return run


def _told(
    found: ExampleStats, index: Any, unit: Unit, replacement: Fill, early: bool, n_resamples: int, seed: int
) -> pd.DataFrame:
    """The table of effects of a sweep."""
    how = [
        *([] if unit == "single" else [unit]),
        *([] if replacement == "zero" else [replacement]),
        *(["early"] if early else []),
    ]
    name = f"ablation[{' '.join([found.metric.name, *how])}]"
    effect = effects(found, n_resamples=n_resamples, seed=seed)
    variants = list(found.closed)
    rows = np.array([variants.index(_closed(tuple(head), list(index), unit)) for head in index])
    kept = {end: values for end, values in effect.columns.items() if early or end != ".examples"}
    columns = {f"{name}{end}": values[rows] for end, values in kept.items()}
    fields = {"intact": f"{effect.intact:.6g}", "plan": unit} | ({"early": early} if early else {})
    text = f"{found.signature}|{frame.sign(**fields, resamples=n_resamples, seed=seed)}"
    draws = {name: rounded(effect.draws[rows, :KEPT])} if n_resamples else None
    return frame.table(columns, index, text, draws=draws)


def _closed(head: Head, index: list[Head], unit: Unit) -> HeadSet:
    """The heads that a plan closes for a head."""
    if unit == "single":
        return frozenset([head])
    same = (each for each in index if each[0] == head[0] and (unit == "kind" or each[1] == head[1]))
    return frozenset(each for each in same if unit != "rest" or each != head)
