"""Curves: what is left of a model's work when more and more of its heads are closed, in a given order."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headroles import batches, families, heads, models, objectives, seam
from headroles.batches import Batch
from headroles.gates import Fill, Head, closed, gated
from headroles.heads import Kind
from headroles.objectives import Explain, Name, Objective
from headroles.probe import without_cache
from headroles.progress import track
from headroles.scores.book import bounds, counting
from headroles.text import Corpus

Array = npt.NDArray[np.float64]


def curve(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    corpus: Corpus,
    orders: Mapping[str, Iterable[Head]],
    *,
    metric: Name | Objective = "agreement",
    steps: int = 10,
    fill: Fill = "zero",
    budget: int = 4096,
    resamples: int = 1000,
    seed: int = 0,
) -> pd.DataFrame:
    """The metric when the first heads of each order are closed together: a row per order and number of closed heads.

    Michel et al. 2019, section 4.2. Heads are closed in `steps` steps of equal size, each time relative to the whole
    model; an order has all heads of the model, or all of those that are to be closed. Columns: `order`, `closed`,
    `share` (of the heads of the order), `value` with `low` and `high`, its 95 % interval over Poisson bootstrap
    resamples of the sentences, the same for all orders. Rows of share 0 are the intact model. `table.attrs` hold the
    resampled values for `areas`. Raises ValueError for an order with a head twice or one the model lacks.
    """
    listed = {name: list(order) for name, order in orders.items()}
    encoded = batches.encode(corpus, tokenizer, model, words=False)
    plans = [(name, count) for name, order in listed.items() for count in _counts(name, order, steps)]
    gates = {plan: closed(model, listed[plan[0]][: plan[1]]) for plan in plans}
    with seam.evaluating(model):
        groups = list(batches.batches(encoded, model, budget=budget))
        explain = objectives.objective(metric, model).explain(model, lambda: groups)
        intact = _measured(model, groups, explain, torch.ones(len(families.index(model))), fill)
        found = {
            plan: _measured(model, groups, explain, gates[plan], fill) if plan[1] else intact
            for plan in track(plans, "closing heads", total=len(plans))
        }
    numbers = [number for batch in groups for number in batch.numbers]
    weights = counting(numbers, resamples, seed).numpy()
    with np.errstate(invalid="ignore"):  # a resample without any sentence has no value
        values = np.stack([weights @ sums / (weights @ counts) for sums, counts in found.values()])  # [plan, draw]
    low, high = bounds(values[:, 1:]) if resamples else np.full((2, len(plans)), np.nan)
    table = pd.DataFrame(plans, columns=["order", "closed"])
    table["share"] = [count / len(listed[name]) for name, count in plans]
    table = table.assign(value=values[:, 0], low=low, high=high)
    text = heads.sign(
        model=models.name(model),
        weights=models.revision(model),
        corpus=corpus.name,
        text=corpus.hash,
        sentences=len(numbers),
        metric=objectives.objective(metric, model),
        fill=fill,
        resamples=resamples,
        seed=seed,
        headroles=version("headroles"),
    )
    table.attrs = {"signatures": dict.fromkeys(table.columns, text), "draws": _Draws(values)}
    return table


def orders(
    table: pd.DataFrame, columns: Sequence[str], *, kind: Kind | None = None, seeds: int = 0
) -> dict[str, list[Head]]:
    """The heads of a table by rising columns, and so many random orders, "random 0" ...; all, or those of a kind.

    Raises ValueError for a column the table lacks.
    """
    rows = table if kind is None else table[table.index.get_level_values("kind") == kind]
    lacking = [name for name in columns if name not in rows]
    if lacking:
        known = ", ".join(name for name in map(str, rows) if not name.endswith((".low", ".high")))
        raise ValueError(f"no column {lacking[0]!r} to order heads by; known: {known}")
    found = {name: rows[name].sort_values(kind="stable").index.tolist() for name in columns}
    chance = {f"random {seed}": random.Random(seed).sample(rows.index.tolist(), len(rows)) for seed in range(seeds)}
    return found | chance


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
    found.attrs["signatures"] = dict.fromkeys(found.columns, heads.signature(table, "value"))
    return found


class _Draws:
    """Resampled values that ride in attrs: pandas compares and copies attrs, and must find nothing to compare."""

    def __init__(self, values: Array) -> None:
        self.values = values

    def __deepcopy__(self, memo: dict[int, Any]) -> _Draws:
        return self


def _counts(name: str, order: list[Head], steps: int) -> list[int]:
    if steps < 1 or len(set(order)) < len(order) or not order:
        raise ValueError(
            f"order {name!r} of {len(order)} heads cannot be closed in {steps} steps; "
            f"give each head once, and at least one step"
        )
    return sorted({round(len(order) * step / steps) for step in range(steps + 1)})


def _measured(
    model: PreTrainedModel, groups: list[Batch], explain: Explain, gates: torch.Tensor, fill: Fill
) -> tuple[Array, Array]:
    """The sum of the metric over the steps of each sentence, and how many there are: two of [sentence]."""
    sums, counts = list[torch.Tensor](), list[torch.Tensor]()
    with torch.inference_mode(), gated(model, gates.to(model.device), fill=fill):
        for batch in groups:
            explained = explain(model(**batch.inputs, **without_cache(model)), batch)
            sums.append(torch.where(explained.counted, explained.values, 0.0).double().sum(-1).cpu())
            counts.append(explained.counted.sum(-1).double().cpu())
    return torch.cat(sums).numpy(), torch.cat(counts).numpy()
