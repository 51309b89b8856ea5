"""Curves: what is left of a model's work when more and more of its heads are closed, in a given order."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headroles.ablation.metrics import Metric
from headroles.ablation.metrics import metric as the_metric
from headroles.ablation.runner import Fill
from headroles.ablation.sweep import sweep
from headroles.data.corpus import Corpus
from headroles.models import heads as families
from headroles.models import loading
from headroles.models.masking import Head, head_mask, mask_heads
from headroles.scores import score as measure
from headroles.scores.accumulator import bounds, counting
from headroles.scores.objectives import Objective
from headroles.tables import frame
from headroles.tables.frame import Kind
from headroles.tables.study import Study

Array = npt.NDArray[np.float64]


def ablation_curve(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    corpus: Corpus,
    orders: Mapping[str, Iterable[Head]],
    *,
    metric: str | Metric | Objective = "agreement",
    steps: int = 10,
    replacement: Fill = "zero",
    max_tokens: int = 4096,
    n_resamples: int = 1000,
    seed: int = 0,
    folder: str | Path | None = None,
) -> pd.DataFrame:
    """The metric when the first heads of each order are closed together: a row per order and number of closed heads.

    Michel et al. 2019, section 4.2. Heads are closed in `steps` steps of equal size, each time relative to the whole
    model; an order has all heads of the model, or all of those that are to be closed. Metrics and fills are those of
    `ablate`, or any objective; finished batches are kept in `folder`. Columns: `order`, `closed`, `share` (of the heads
    of the order), `value` with `low` and `high`, its 95 % interval over Poisson bootstrap resamples of the examples,
    the same for all orders, and `change` against the intact model, paired, with its own `.low` and `.high`. Rows of
    share 0 are the intact model. `table.attrs` hold the resampled values for `areas`.
    Raises ValueError for an order with a head twice or one the model lacks.
    """
    listed: dict[str, list[Head]] = {name: [*map(_head, order)] for name, order in orders.items()}
    plans = [(name, count) for name, order in listed.items() for count in _counts(name, order, steps)]
    closed = [frozenset(listed[name][:count]) for name, count in plans]
    place = None if folder is None else Path(folder)
    variants = list(dict.fromkeys(filter(None, closed)))
    found = sweep(
        model,
        tokenizer,
        corpus,
        variants,
        the_metric(metric),
        replacement=replacement,
        max_tokens=max_tokens,
        folder=place,
        seed=seed,
    )
    weights = counting(found.numbers, n_resamples, seed).numpy()
    with np.errstate(invalid="ignore"):  # a resample without any example has no value
        each = found.closed | {frozenset(): found.intact}
        values = np.stack([found.metric.value(weights @ each[one]) for one in closed])  # [plan, 1 + resamples]
        changes = values - found.metric.value(weights @ found.intact)
    low, high = bounds(values[:, 1:]) if n_resamples else np.full((2, len(plans)), np.nan)
    less, more = bounds(changes[:, 1:]) if n_resamples else np.full((2, len(plans)), np.nan)
    table = pd.DataFrame(plans, columns=["order", "closed"])
    table["share"] = [count / len(listed[name]) for name, count in plans]
    table = table.assign(value=values[:, 0], low=low, high=high)
    table = table.assign(**{"change": changes[:, 0], "change.low": less, "change.high": more})
    text = f"{found.signature}|{frame.sign(resamples=n_resamples, seed=seed)}"
    table.attrs = {"signatures": dict.fromkeys(table.columns, text), "draws": _Draws(values)}
    return table


def curves_in(
    study: Study,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    corpus: Corpus,
    orders: Mapping[str, Sequence[Head]],
    *,
    metric: str = "agreement",
    kind: Kind | Literal["each"] | None = None,
    **options: Any,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """`curve` and its `areas` in a study: `curves-METRIC[-KIND]` and `areas-...`, kept if they were made from the same.

    `kind` is what the orders are of, and only names the tables. `options` are those of `curve`.
    """
    name = "-".join([metric, *([kind] if kind else [])])
    told = {label: " ".join(map(str, order)) for label, order in orders.items()}
    recipe = frame.sign(
        weights=loading.revision(model),
        configuration=loading.configuration(model, tokenizer),
        text=corpus.hash,
        metric=the_metric(metric),
        orders=hashlib.sha256(repr(told).encode()).hexdigest()[:12],
        options=",".join(f"{key}={value}" for key, value in sorted(options.items())),
        headroles=version("headroles"),
    )

    @cache  # several artefacts ask for it in one run
    def drawn() -> pd.DataFrame:
        return ablation_curve(model, tokenizer, corpus, orders, metric=metric, folder=study.work / ".sweeps", **options)

    table = study.keep(f"curves-{name}", recipe, drawn)
    return table, study.keep(f"areas-{name}", recipe, lambda: areas(drawn()))


def orders(
    table: pd.DataFrame, columns: Sequence[str], *, kind: Kind | Literal["each"] | None = None, seeds: int = 0
) -> dict[str, list[Head]]:
    """The heads of a table by columns, and so many random orders, "random 0" ...; all, or those of a kind.

    With `kind="each"` there are such orders of every kind, "cross by importance" ... (Fig. 4). The smallest value comes
    first; with a minus before the column's name the largest: the reverse order. Raises ValueError for a column the
    table lacks.
    """
    if kind == "each":
        kinds = table.index.unique("kind")
        parts = {each: orders(table, columns, kind=each, seeds=seeds) for each in kinds}
        return {f"{each} by {name}": order for each, part in parts.items() for name, order in part.items()}
    rows = table if kind is None else table[table.index.get_level_values("kind") == kind]
    lacking = [name for name in columns if name.removeprefix("-") not in rows]
    if lacking:
        known = ", ".join(name for name in map(str, rows) if not name.endswith((".low", ".high")))
        raise ValueError(f"no column {lacking[0]!r} to order heads by; known: {known}")
    found = {}
    for name in columns:
        values = rows[name.removeprefix("-")]
        rising = values.dropna().sort_values(kind="stable").index.tolist()
        unknown = values.index[values.isna()].tolist()
        found[name] = (rising[::-1] if name.startswith("-") else rising) + unknown
    chance = {f"random {seed}": random.Random(seed).sample(rows.index.tolist(), len(rows)) for seed in range(seeds)}
    return found | chance


def order_again(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    corpus: Corpus,
    score: Any = "importance",
    *,
    column: str | None = None,
    kind: Kind | None = None,
    steps: int = 10,
    **options: Any,
) -> list[Head]:
    """The heads of a model by a score that is computed again after each of `steps` steps, the heads so far closed.

    The smallest of what is left comes first (Michel et al. 2019's released scripts: `--exact_pruning`). `column` is by
    default the score's first; all heads, or those of a `kind`. `options` are those of `score`.
    """
    left = [head for head in families.head_index(model) if kind in (None, head[0])]
    size, gone, rest = len(left), list[Head](), list[Head]()
    if steps < 1:
        raise ValueError(f"expected at least one step; got {steps}")
    for step in range(1, steps + 1):
        count = round(size * step / steps) - len(gone)
        if not count:
            continue
        with mask_heads(model, head_mask(model, gone)):
            try:
                found = measure(model, tokenizer, corpus, [score], **{"n_resamples": 0, **options})
            except ValueError:  # nothing depends on what is left: its order stays
                if not gone:
                    raise
                return gone + rest
        ranked = found[column or found.columns[0]].loc[left].sort_values(kind="stable").index.tolist()
        gone, rest = gone + ranked[:count], ranked[count:]
        left = [head for head in left if head in rest]
    return gone


def areas(table: pd.DataFrame) -> pd.DataFrame:
    """The mean height of each order's curve over the share of closed heads (trapezoids): a row per order, best first.

    `area.low` and `area.high` bound its 95 % interval; `order` is the index.
    """
    if "draws" not in table.attrs:
        raise ValueError(
            "areas need the resampled values that ride in a fresh table of curve; those of a file are gone"
        )
    draws: Array = table.attrs["draws"].values
    rows = {}
    for name, part in table.reset_index(drop=True).groupby("order", sort=False):
        found = np.trapezoid(draws[part.index], part["share"].to_numpy(), axis=0)
        low, high = bounds(found[None, 1:]) if found.shape[0] > 1 else np.full((2, 1), np.nan)
        rows[name] = {"area": found[0], "area.low": low[0], "area.high": high[0]}
    found = pd.DataFrame.from_dict(rows, orient="index").rename_axis("order").sort_values("area", ascending=False)
    found.attrs["signatures"] = dict.fromkeys(found.columns, frame.provenance(table, "value"))
    return found


class _Draws:
    """Resampled values that ride in attrs: pandas compares and copies attrs, and must find nothing to compare."""

    def __init__(self, values: Array) -> None:
        self.values = values

    def __deepcopy__(self, memo: dict[int, Any]) -> _Draws:
        return self


def _head(given: Head) -> Head:
    kind, layer, head = given
    return kind, layer, head


def _counts(name: str, order: list[Head], steps: int) -> list[int]:
    if steps < 1 or len(set(order)) < len(order) or not order:
        raise ValueError(
            f"order {name!r} of {len(order)} heads cannot be closed in {steps} steps; "
            f"give each head once, and at least one step"
        )
    return sorted({round(len(order) * step / steps) for step in range(steps + 1)})
