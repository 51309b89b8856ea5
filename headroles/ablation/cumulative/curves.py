"""Ablation curves: a metric as more and more heads are masked together, in a given or a random order."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from transformers import PreTrainedTokenizerBase

from headroles.ablation.effects import ablate
from headroles.ablation.example_stats import ExampleStats, HeadSet
from headroles.ablation.metrics import Metric, as_metric
from headroles.ablation.sweep import Sweep
from headroles.ablation.units import AblationReplacement, code, known_replacement, replacement_name
from headroles.analysis.intervals import Array, bounds
from headroles.data.corpus import CorpusLike
from headroles.data.readers import as_corpus
from headroles.models.head_model import HeadModel, Model
from headroles.models.identity import fingerprint
from headroles.models.masking import Head, head_mask
from headroles.patterns.base import Pattern
from headroles.scores import Measure
from headroles.scores import score as measure
from headroles.scores.objectives import Objective
from headroles.tables import frame
from headroles.tables.columns import ranked_by, without_ends
from headroles.tables.frame import Kind
from headroles.tables.study import Study, as_study


def ablation_curve(
    model: Model,
    tokenizer: PreTrainedTokenizerBase,
    corpus: CorpusLike,
    orders: Mapping[str, Iterable[Head | str] | str],
    *,
    metric: str | Metric | Objective = "agreement",
    steps: int = 10,
    replacement: AblationReplacement | Mapping[Head, Pattern] = "zero",
    max_tokens: int = 4096,
    n_resamples: int = 1000,
    seed: int = 0,
    study: Study | str | Path | None = None,
    kind: Kind | Literal["each"] | None = None,
) -> pd.DataFrame:
    """Measure a metric while more and more heads are masked (Michel et al. 2019, section 4.2).

    Args:
        model: A Hugging Face model.
        tokenizer: Its tokenizer.
        corpus: The corpus on which the metric is measured.
        orders: Name -> heads, the first masked first, (kind, layer, head) each, or in writing as in `head_mask`: all
            heads of the model or some.
        metric: Name of a metric or objective. Or one of them (`list_metrics`).
        steps: Number of steps of equal size in which the heads of an order are masked.
        replacement: What replaces the output of a masked head, as in `ablate`. A pattern hard-codes heads: they attend
            by it, and by nothing else.
        max_tokens: Tokens in one forward pass.
        n_resamples: Bootstrap resamples of the examples, the same for all orders.
        seed: Seed of the resamples, and of the examples that "resample" draws.
        study: Study or folder that keeps the table as `curves-METRIC[-KIND]`, and its areas as `areas-METRIC[-KIND]`;
            if it has them, nothing is computed. Patterns are a last word of these names. It keeps finished
            batches too: an interrupted run continues after them.
        kind: Kind of the heads in the orders; only names the tables of the study.

    Returns:
        A table with a row per order and number of masked heads; `attrs` hold the resampled values for `areas`.

        - order: name of the order.
        - masked, share: number and share of masked heads; 0 is the intact model.
        - value, low, high: the metric and its 95 % interval over Poisson bootstrap resamples of the examples.
        - change, change.low, change.high: difference from the intact model, paired.
    """
    handle, corpus = HeadModel.of(model, tokenizer, allow_sharded=True), as_corpus(corpus)
    chosen, replacement = as_metric(metric), known_replacement(replacement)
    ordered = {name: handle.sites.named(order) for name, order in orders.items()}
    points = [(name, count) for name, order in ordered.items() for count in _counts(name, order, steps)]
    masked = [frozenset(ordered[name][:count]) for name, count in points]

    @cache  # two tables of a study need it
    def curve(folder: str | Path | None) -> pd.DataFrame:
        sweep = Sweep(handle, corpus, chosen, replacement=replacement, max_tokens=max_tokens, folder=folder, seed=seed)
        stats = sweep.run(list(dict.fromkeys(filter(None, masked))))
        table = pd.DataFrame(points, columns=["order", "masked"])
        table["share"] = [count / len(ordered[name]) for name, count in points]
        return _with_values(table, masked, stats, n_resamples, seed)

    if study is None:
        return curve(None)
    replaced, pattern = replacement_name(replacement), code(replacement)
    kept, name = as_study(study), "-".join([chosen.name, *([kind] if kind else []), *([replaced] if pattern else [])])
    written = {label: " ".join(map(str, order)) for label, order in ordered.items()}
    key = handle.cache_key(
        corpus,
        metric=chosen,
        code=fingerprint(chosen),
        orders=hashlib.sha256(repr(written).encode()).hexdigest()[:12],
        options=f"max_tokens={max_tokens},n_resamples={n_resamples},replacement={replaced},seed={seed},steps={steps}",
        **pattern,
    )
    unfinished = kept.work / ".sweeps"
    table = kept.keep(f"curves-{name}", key, lambda: curve(unfinished))
    kept.keep(f"areas-{name}", key, lambda: areas(curve(unfinished)))
    return table


def _with_values(
    table: pd.DataFrame, masked: Sequence[HeadSet], stats: ExampleStats, n_resamples: int, seed: int
) -> pd.DataFrame:
    """Add the metric with each set of masked heads, and its change, with intervals."""
    parts = stats.masked | {frozenset(): stats.intact}
    whole = stats.resampled([stats.intact, *(parts[heads] for heads in masked)], n_resamples, seed)
    values, changes = whole[1:], whole[1:] - whole[0]  # [point, 1 + resamples]
    points = pd.MultiIndex.from_frame(table[["order", "masked"]])
    low, high = bounds(values[:, 1:])
    less, more = bounds(changes[:, 1:])
    table = table.assign(value=values[:, 0], low=low, high=high)
    table = table.assign(**{"change": changes[:, 0], "change.low": less, "change.high": more})
    table.attrs["draws"] = frame.Resamples(points, {"value": values})
    return frame.signed(table, stats.signature, frame.sign(resamples=n_resamples, seed=seed))


def repeated_ranking(
    model: Model,
    tokenizer: PreTrainedTokenizerBase,
    corpus: CorpusLike,
    score: str | Measure = "importance",
    *,
    column: str | None = None,
    kind: Kind | None = None,
    steps: int = 10,
    **options: Any,
) -> list[Head]:
    """Order heads by a score that is computed again after each step, with the heads so far masked.

    The smallest score comes first (Michel et al. 2019's released scripts, `--exact_pruning`). The score "ablation" is
    the harm of ablating a head beside those that are masked, a prediction-powered estimate with `precision`.

    Args:
        model: A Hugging Face model.
        tokenizer: Its tokenizer.
        corpus: The corpus on which the score is computed.
        score: A score or its name, or "ablation".
        column: Column of the score, by default the first.
        kind: Kind of the heads, by default all.
        steps: Number of steps of equal size.
        **options: Further options of `score`, or of `ablate` for "ablation" (`metric`, `precision`).

    Returns:
        The heads, (kind, layer, head) each.

    Raises:
        ValueError: If `steps` is below 1.
    """
    if steps < 1:
        raise ValueError(f"too few steps: got {steps}; expected at least 1")
    handle, corpus = HeadModel.of(model, tokenizer), as_corpus(corpus)
    left = [head for head in handle.heads if kind in (None, head[0])]
    size, masked, rest = len(left), list[Head](), list[Head]()
    options = {"n_resamples": 0, **options}
    better = as_metric(options.get("metric", "loss")).better
    is_zero = known_replacement(options.get("replacement", "zero")) == "zero"  # others depend on all masked heads
    for step in range(1, steps + 1):
        if not (count := round(size * step / steps) - len(masked)):
            continue
        with handle.mask(head_mask(handle.model, masked if is_zero else [])):
            try:
                if score == "ablation":
                    beside = [] if is_zero else masked
                    sets = {str(head): [*beside, head] for head in left}
                    table = ablate(model, tokenizer, corpus, sets=sets, **options)
                    harm = -table.iloc[:, 0] * better
                    values = harm.set_axis(pd.MultiIndex.from_tuples(left))
                else:
                    table = measure(model, tokenizer, corpus, [score], **options)
                    values = table[column or table.columns[0]].loc[left]
            except ValueError:  # no output depends on the remaining heads: their order stays
                if not masked:
                    raise
                return masked + rest
        ranked = values.sort_values(kind="stable").index.tolist()
        masked, rest = masked + ranked[:count], ranked[count:]
        left = [head for head in left if head in rest]
    return masked


def areas(table: pd.DataFrame) -> pd.DataFrame:
    """Compute the area under each ablation curve: the mean metric over the share of masked heads (trapezoids).

    Args:
        table: A table of `ablation_curve` as it was returned; a table that was loaded lacks the resampled values.

    Returns:
        A table with a row per order, largest area first: `area`, and `area.low` and `area.high`, its 95 % interval.

    Raises:
        ValueError: If the table lacks the resampled values.
    """
    if "draws" not in table.attrs:
        raise ValueError("the table has no resampled values: areas need the table that ablation_curve returned")
    draws: Array = table.attrs["draws"].draws["value"]
    rows = {}
    for name, part in table.reset_index(drop=True).groupby("order", sort=False):
        heights = np.trapezoid(draws[part.index], part["share"].to_numpy(), axis=0)  # [1 + resamples]
        low, high = bounds(heights[None, 1:])
        rows[name] = {"area": heights[0], "area.low": low[0], "area.high": high[0]}
    areas = pd.DataFrame.from_dict(rows, orient="index").rename_axis("order").sort_values("area", ascending=False)
    return frame.signed(areas, frame.provenance(table, "value"))


def _counts(name: str, order: Sequence[Head], steps: int) -> list[int]:
    if steps < 1 or len(set(order)) < len(order) or not order:
        raise ValueError(
            f"order {name!r} of {len(order)} heads cannot be masked in {steps} steps; "
            f"give each head once, and at least one step"
        )
    return sorted({round(len(order) * step / steps) for step in range(steps + 1)})


def orders(
    table: pd.DataFrame, columns: Sequence[str], *, kind: Kind | Literal["each"] | None = None, seeds: int = 0
) -> dict[str, list[Head]]:
    """Order the heads of a table by columns and at random.

    Args:
        table: A table of heads.
        columns: Names of columns; the smallest value comes first. A minus before the name reverses the order.
        kind: Kind of the heads, by default all. "each" makes orders of every kind, "cross by importance" and so on
            (Michel et al. 2019, Fig. 4).
        seeds: Number of random orders, "random 0" and so on.

    Returns:
        Name of the order -> heads, (kind, layer, head) each; heads without a value come last.

    Raises:
        ValueError: If the table lacks a column or the kind.
    """
    if kind == "each":
        parts = {present: orders(table, columns, kind=present, seeds=seeds) for present in table.index.unique("kind")}
        return {f"{present} by {name}": order for present, part in parts.items() for name, order in part.items()}
    rows = table if kind is None else table[table.index.get_level_values("kind") == kind]
    if not len(rows):
        kinds = ", ".join(table.index.unique("kind"))
        raise ValueError(f"no heads of kind {kind!r} to order: got a table of {kinds}; expected one of its kinds")
    lacking = [name for name in columns if ranked_by(name)[0] not in rows]
    if lacking:
        known = without_ends(rows)
        near = get_close_matches(lacking[0].lstrip("-"), known, cutoff=0.8)
        listed = f"try {' or '.join(near)}" if near else f"known: {', '.join(known)}"
        raise ValueError(f"no column {lacking[0]!r} to order heads by; {listed}")
    ordered = {}
    for name in columns:
        column, descending = ranked_by(name)
        values = rows[column]
        rising = values.dropna().sort_values(kind="stable").index.tolist()
        unknown = values.index[values.isna()].tolist()
        ordered[name] = (rising[::-1] if descending else rising) + unknown
    chance = {f"random {seed}": random.Random(seed).sample(rows.index.tolist(), len(rows)) for seed in range(seeds)}
    return ordered | chance
