"""Weight change: the distance that the weights of each remaining head moved in fine-tuning, and its uniformity."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from scipy import stats
from torch import Tensor
from transformers import PreTrainedModel

from headroles.models import dummy_inputs, identity
from headroles.models.head_model import HeadModel
from headroles.models.masking import Head
from headroles.models.sites import Site, unreadable
from headroles.pruning.removal import Layout, layouts
from headroles.tables import frame
from headroles.tables.columns import Column
from headroles.tables.study import Study, as_study

PARTS = ("q", "k", "v", "o")
CHANGES = ("distance", "moved", "cosine")


def weight_change(
    before: PreTrainedModel, after: PreTrainedModel, *, seed: int = 0, study: Study | str | Path | None = None
) -> pd.DataFrame:
    """Measure the weight change of each head between two models (Budhraja et al. 2020).

    Heads that share a key-value head share its k and v. The paper does not define its distance.

    Args:
        before: The model before fine-tuning.
        after: The model after fine-tuning, which may lack pruned heads; heads of the same number are compared.
        seed: Seed of the fine-tuning, which names the table in the study.
        study: Study or folder that keeps the table as `weight-change-SEED`, and with at least three seeds, as
            `uniformity`, whether all heads change alike.

    Returns:
        A table with a row per head of `after`, with columns for queries, keys, values, the output projection and all of
        them, [q], [k], [v], [o] and [all].

        - distance[q]: Frobenius norm of the change.
        - moved[q]: that norm over the norm of the weights before.
        - cosine[q]: cosine of the weights before and after.

    Raises:
        ValueError: If `before` lacks a head of `after`, or a model has adapters of PEFT.
    """
    first, last = HeadModel(before), HeadModel(after)
    kept = as_study(study)  # a temporary one without a study
    kept.claim(f"weight-change-{seed}", frame.sign(before=first.weights))
    old, new, index = _slices(first), _slices(last), last.index
    if lacking := [head for head in index if head not in old]:
        raise ValueError(f"before must have all heads of after, got none for {lacking[0]}; try the other order")
    columns: dict[str, list[float]] = {}
    for part in (*dict.fromkeys(name for head in index for name in new[head]), "all"):
        pairs = [(_part(old[head], part), _part(new[head], part)) for head in index]
        changes = [_change(start, end) if len(start) else (np.nan,) * 3 for start, end in pairs]
        for name, values in zip(CHANGES, np.reshape(changes, (-1, 3)).T, strict=True):
            columns[f"{name}[{part}]"] = values.tolist()
    names = {"model": identity.model_name(first.model), "before": first.weights, "after": last.weights}
    table = frame.table(columns, index, frame.sign(**names, distance="frobenius"))
    kept.save(f"weight-change-{seed}", table)
    seeds = [kept.load(name) for name in kept.names() if re.fullmatch(r"weight-change--?\d+", name)]
    if len(seeds) >= 3 and all(seed.index.equals(index) for seed in seeds):
        kept.save("uniformity", alike(seeds))
    return table


def uniformity(tables: Sequence[pd.DataFrame], column: str = "moved[all]") -> pd.DataFrame:
    """Measure how uniformly the weights of heads change in fine-tunings with several seeds, a table for each.

    Returns:
        A table with the rows "heads" (all heads) and "heads of a layer" (each change relative to its layer's mean).

        - cv: standard deviation over heads of the mean change, over its mean.
        - largest over mean: the largest mean change over the mean.
        - w: Kendall's concordance of the seeds' rankings of heads (0: random, 1: always the same).
        - p: p-value of Friedman's test that every head is equally likely to have any rank.

    Raises:
        ValueError: If there are fewer than three tables, or tables of different heads.
    """
    if len(tables) < 3 or any(not table.index.equals(tables[0].index) for table in tables):
        raise ValueError(f"tables must be of the same heads after at least 3 fine-tunings, got {len(tables)}")
    moved = pd.concat([table[column].rename(seed) for seed, table in enumerate(tables)], axis=1)  # [head, seed]
    inside = moved / moved.groupby(level=["kind", "layer"]).transform("mean")
    parts = {"heads": moved, "heads of a layer": inside}
    rows = pd.DataFrame({name: _uniformity(values.to_numpy()) for name, values in parts.items()}).T.rename_axis("of")
    return frame.signed(rows, frame.provenance(tables[0], column))


def alike(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return `uniformity` of absolute and relative changes, of all weights and of each part."""
    columns = [name for name in map(str, tables[0]) if Column.parse(name).name in ("distance", "moved")]
    parts = [uniformity(tables, name) for name in columns]
    for name, part in zip(columns, parts, strict=True):
        part.index = pd.Index([f"{name} of {row}" for row in part.index], name="of")
    return frame.signed(pd.concat(parts), frame.provenance(tables[0], columns[0]))


def _uniformity(values: npt.NDArray[np.float64]) -> dict[str, float]:
    ranked = len(values) > 2 and bool(np.ptp(values, axis=0).any())  # else no head moved: all are tied
    test = stats.friedmanchisquare(*values) if ranked else None  # a block is a seed, a treatment a head
    count, seeds = values.shape
    mean = values.mean(1)
    average = mean.mean() or np.nan  # nothing changed
    return {
        "cv": float(mean.std() / average),
        "largest over mean": float(mean.max() / average),
        "w": float(test.statistic / (seeds * (count - 1))) if test else np.nan,
        "p": float(test.pvalue) if test else np.nan,
    }


def _slices(handle: HeadModel) -> dict[Head, dict[str, Tensor]]:
    """Return the weights of each head: (kind, layer, head) -> part -> flat float64."""
    for name, part in handle.model.named_modules():
        if hasattr(part, "base_layer"):
            raise ValueError(unreadable(part, f"{name} in {handle.name}"))
    dummy_inputs.check_finite(handle.model)
    rows = layouts(handle)
    slices: dict[Head, dict[str, Tensor]] = {}
    for site in handle.sites:
        columns = _weight(site.out).unflatten(1, (site.heads, site.size))
        for number in site.remaining:
            place = site.numbers.index(number)
            parts = _inputs(site, rows[site.module], place)
            slices[*site.key, number] = parts | {"o": columns[:, place].flatten()}
    return slices


def _inputs(site: Site, layout: Layout, place: int) -> dict[str, Tensor]:
    """Return queries, keys and values of a head: maps by their first letter, thirds of a fused map in their order."""
    order = ("q", "v", "k") if type(site.module).__name__ == "CodeGenAttention" else PARTS
    slices: dict[str, list[Tensor]] = {}
    for name, runs in layout.items():
        weight = _weight(site.module.get_submodule(name))
        rows = [row for heads, start, stop in runs if place in heads for row in range(start, stop)]
        fused = len(rows) == 3 * site.size and (name[0] not in PARTS or {*"qkv"} <= {*name})
        for i in range(3 if fused else 1):
            part = order[i] if fused else name[0] if name[0] in PARTS else name
            chosen = rows[i * site.size : (i + 1) * site.size] if fused else rows
            if chosen:
                slices.setdefault(part, []).append(weight[chosen].flatten())
    return {part: torch.cat(weights) for part, weights in slices.items()}


def _part(slices: dict[str, Tensor], part: str) -> Tensor:
    return torch.cat(list(slices.values())) if part == "all" else slices.get(part, torch.empty(0))


def _change(before: Tensor, after: Tensor) -> tuple[float, float, float]:
    """Return the numbers of `CHANGES` of a head's weights."""
    distance = (after - before).norm()
    return float(distance), float(distance / before.norm()), float(torch.cosine_similarity(before, after, dim=0))


def _weight(module: Any) -> Tensor:
    """Return weights [out, in] as float64."""
    weight: Tensor = module.weight.detach().double().cpu()
    return weight.T if type(module).__name__ == "Conv1D" else weight
