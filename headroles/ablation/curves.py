"""Curves: a metric as more heads are masked together, in the order of scores or at random."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from transformers import PreTrainedTokenizerBase

from headroles.ablation.example_stats import ExampleStats, HeadSet
from headroles.ablation.metrics import Metric, as_metric
from headroles.ablation.significance import interval
from headroles.ablation.sweep import ReplacementLike, Sweep, known_replacement, replacement_name
from headroles.analysis.intervals import bounds
from headroles.data.corpus import CorpusLike
from headroles.data.readers import as_corpus
from headroles.models import identity
from headroles.models.head_model import HeadModel, Model
from headroles.models.masking import Head
from headroles.models.replacements import Replacement
from headroles.scores import objectives
from headroles.tables import frame
from headroles.tables.arguments import number, one_of
from headroles.tables.columns import ranked_by, without_ends
from headroles.tables.frame import Kind
from headroles.tables.study import Study, as_study, kept


def ablation_curve(
    model: Model,
    tokenizer: PreTrainedTokenizerBase,
    corpus: CorpusLike,
    orders: Mapping[str, Iterable[Head | str] | str],
    *,
    metric: str | Metric | objectives.Objective = "agreement",
    steps: int = 10,
    replacement: ReplacementLike = "zero",
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
        orders: Name -> heads, the first is masked first, (kind, layer, head) each, or in writing as in `head_mask`: all
            heads of the model or some.
        metric: A metric or objective, or its name. `list_metrics` has all names.
        steps: Number of steps of equal size in which the heads of an order are masked.
        replacement: What replaces the output of a masked head, as in `ablate`. With a pattern, heads attend only by it.
        max_tokens: Tokens in one forward pass.
        n_resamples: Bootstrap resamples of the examples, the same for all orders.
        seed: Seed of the resamples, and of the examples that "resample" draws.
        study: Study or folder that keeps the table as `curves-METRIC[-KIND][-PATTERN]`, and its areas as `areas-...`;
            if it has them, nothing is computed. Finished batches are kept too: an interrupted run continues after them.
        kind: Kind of the heads in the orders; only names the tables of the study.

    Returns:
        A table with a row per order and number of masked heads; `attrs` hold the resampled values for `areas`.

        - order: name of the order.
        - masked, share: number and share of masked heads; 0 is the intact model.
        - value, low, high: the metric and its 95 % interval over Poisson bootstrap resamples of the examples.
        - change, change.low, change.high: difference from the intact model, paired.
    """
    handle, text = HeadModel.of(model, tokenizer, allow_sharded=True), as_corpus(corpus)
    chosen, replaced = as_metric(metric), known_replacement(handle, replacement)
    ordered = {name: handle.sites.named(order) for name, order in orders.items()}
    points = [(name, count) for name, order in ordered.items() for count in _counts(name, order, steps)]
    masked = [frozenset(ordered[name][:count]) for name, count in points]
    place = None if study is None else as_study(study)

    @cache  # two tables of a study need it
    def curve() -> pd.DataFrame:
        folder = None if place is None else place.work / ".sweeps"
        options: Any = {"replacement": replaced, "max_tokens": max_tokens, "folder": folder, "seed": seed}
        stats = Sweep(handle, text, chosen, **options).run(list(dict.fromkeys(filter(None, masked))))
        table = pd.DataFrame(points, columns=["order", "masked"])
        table["share"] = [count / len(ordered[name]) for name, count in points]
        return _with_values(table, masked, stats, n_resamples, seed)

    name, pattern = replacement_name(replaced), dict[str, str]()
    words = [chosen.name, *([kind] if kind else [])]
    if isinstance(replaced, Replacement):
        words, pattern = [*words, name], {"pattern": identity.fingerprint(replaced)}

    def key() -> str:
        written = {label: " ".join(map(str, order)) for label, order in ordered.items()}
        options = f"max_tokens={max_tokens},n_resamples={n_resamples},replacement={name},seed={seed},steps={steps}"
        fields = {"code": identity.fingerprint(chosen), "orders": identity.fingerprint(written), "options": options}
        return handle.cache_key(text, metric=chosen, **fields, **pattern)

    table = kept(place, "-".join(["curves", *words]), key, curve)
    if place is not None:
        place.keep("-".join(["areas", *words]), key(), lambda: areas(curve()))
    return table


def _with_values(
    table: pd.DataFrame, masked: Sequence[HeadSet], stats: ExampleStats, n_resamples: int, seed: int
) -> pd.DataFrame:
    """Add the metric with each set of masked heads, and its change, with intervals."""
    parts = stats.masked | {frozenset(): stats.intact}
    whole = stats.resampled([stats.intact, *(parts[heads] for heads in masked)], n_resamples, seed)
    rows = []
    for values, heads in zip(whole[1:], masked, strict=True):
        value = interval(values, stats.metric, len(stats.numbers))
        change = interval(values, stats.metric, len(stats.numbers), before=whole[0])
        rows.append((*value, *(change if heads else 0 * np.array(value))))  # without masked heads 0 is certain
    table[["value", "low", "high", "change", "change.low", "change.high"]] = rows
    table.attrs["draws"] = frame.Resamples(table, {"value": whole[1:]})
    return frame.signed(table, stats.signature, frame.sign(resamples=n_resamples, seed=seed))


def areas(table: pd.DataFrame) -> pd.DataFrame:
    """Compute the area under each ablation curve: the mean metric over the share of masked heads (trapezoids).

    Args:
        table: A table of `ablation_curve`, or rows of it; a table that was loaded lacks the resampled values.

    Returns:
        A table with a row per order, largest area first: `area`, and `area.low` and `area.high`, its 95 % interval.

    Raises:
        ValueError: If the table lacks the resampled values of its rows.
    """
    kept: frame.Resamples | None = table.attrs.get("draws")
    if kept is None or not pd.Series(kept.measured["value"], kept.index).reindex(table.index).equals(table["value"]):
        raise ValueError("table must have its resampled values, got none; try rows of a table of ablation_curve")
    rows = {}
    for name, part in table.sort_values("share", kind="stable").groupby("order", sort=False):
        drawn = kept.draws["value"][kept.index.get_indexer(part.index)]
        heights = np.trapezoid(drawn, part["share"].to_numpy(), axis=0)  # [1 + resamples]
        low, high = bounds(heights[None, 1:])
        rows[name] = {"area": heights[0], "area.low": low[0], "area.high": high[0]}
    areas = pd.DataFrame.from_dict(rows, orient="index").rename_axis("order").sort_values("area", ascending=False)
    return frame.signed(areas, frame.provenance(table, "value"))


def _counts(name: str, order: Sequence[Head], steps: int) -> list[int]:
    number("steps", steps, least=1, whole=True)
    if len(set(order)) < len(order) or not order:
        raise ValueError(f"order {name!r} must have each head once, got {len(order)}, {len(set(order))} different")
    return sorted({round(len(order) * step / steps) for step in range(steps + 1)})


def orders(
    table: pd.DataFrame, columns: Sequence[str], *, kind: Kind | Literal["each"] | None = None, seeds: int = 0
) -> dict[str, list[Head]]:
    """Order the heads of a table by columns and at random.

    Args:
        table: A table of heads.
        columns: Names of columns; the smallest value comes first. A minus before the name reverses the order.
        kind: Kind of the heads, by default all. "each" makes orders for every kind, "cross by importance" and so on
            (Michel et al. 2019, Fig. 4).
        seeds: Number of random orders, "random 0" and so on.

    Returns:
        Name of the order -> heads, (kind, layer, head) each; heads without a value come last.
    """
    if kind == "each":
        parts = {present: orders(table, columns, kind=present, seeds=seeds) for present in table.index.unique("kind")}
        return {f"{present} by {name}": order for present, part in parts.items() for name, order in part.items()}
    if kind is not None:
        one_of("kind", kind, table.index.unique("kind"))
    rows = table if kind is None else table[table.index.get_level_values("kind") == kind]
    ordered = {}
    for name in columns:
        column, descending = ranked_by(name)
        if column not in rows:
            one_of("column to order heads by", column, without_ends(rows))
        values = rows[column]
        rising = values.dropna().sort_values(kind="stable").index.tolist()
        unknown = values.index[values.isna()].tolist()
        ordered[name] = (rising[::-1] if descending else rising) + unknown
    chance = {f"random {seed}": random.Random(seed).sample(rows.index.tolist(), len(rows)) for seed in range(seeds)}
    return ordered | chance
